// SPDX-License-Identifier: Apache-2.0
//
// Status, Uuid, Rng, clocks and logging: too small for files of their own.
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/logging.h"
#include "base/rng.h"
#include "base/status.h"
#include "base/uuid.h"

namespace hydra {
namespace {

TEST(Status, OkCarriesNothing) {
  const Status status;
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.code(), Code::kOk);
  EXPECT_EQ(status.message(), "");
  EXPECT_EQ(status.ToString(), "ok");
  EXPECT_TRUE(status.WithContext("anything").ok());
}

TEST(Status, SaysCodeContextAndMessage) {
  const Status status = Status::NoSpace("the disk is full").WithContext("open segment 7");
  EXPECT_EQ(status.code(), Code::kNoSpace);
  EXPECT_EQ(status.ToString(), "no space: open segment 7: the disk is full");
}

TEST(Status, EveryCodeHasItsOwnName) {
  std::set<std::string_view> names;
  for (int code = 0; code <= static_cast<int>(Code::kFenced); ++code) {
    EXPECT_NE(CodeName(static_cast<Code>(code)), "unknown code");
    names.insert(CodeName(static_cast<Code>(code)));
  }
  EXPECT_EQ(names.size(), static_cast<size_t>(Code::kFenced) + 1);
}

Result<int> Half(int v) {
  if (v % 2 != 0) return Status::InvalidArgument("odd");
  return v / 2;
}

Result<int> Quarter(int v) {
  HYDRA_ASSIGN_OR_RETURN(const int half, Half(v));
  HYDRA_ASSIGN_OR_RETURN(const int quarter, Half(half));
  return quarter;
}

Status CheckQuarter(int v) {
  HYDRA_RETURN_IF_ERROR(Quarter(v).status());
  return Status::Ok();
}

TEST(Result, PassesValuesAndFailuresOn) {
  EXPECT_EQ(Quarter(12).value(), 3);
  EXPECT_EQ(Quarter(6).status().message(), "odd");
  EXPECT_TRUE(CheckQuarter(8).ok());
  EXPECT_EQ(CheckQuarter(5).code(), Code::kInvalidArgument);
}

TEST(ResultDeathTest, ReadingTheValueOfAFailureAborts) {
  EXPECT_DEATH((void)Half(3).value(), "odd");
}

TEST(CheckDeathTest, NamesTheBrokenCondition) {
  EXPECT_DEATH(HYDRA_CHECK(1 + 1 == 3), "1 \\+ 1 == 3");
}

TEST(Uuid, PrintsWhatItParses) {
  const std::string text = "01234567-89ab-cdef-0123-456789abcdef";
  const Uuid uuid = Uuid::Parse(text).value();
  EXPECT_EQ(uuid.bytes[0], 0x01);
  EXPECT_EQ(uuid.bytes[15], 0xef);
  EXPECT_EQ(uuid.ToString(), text);
  EXPECT_EQ(Uuid::Parse("01234567-89AB-CDEF-0123-456789ABCDEF").value(), uuid);
  EXPECT_FALSE(uuid.IsNil());
  EXPECT_TRUE(Uuid().IsNil());
  EXPECT_EQ(Uuid().ToString(), "00000000-0000-0000-0000-000000000000");
}

TEST(Uuid, RejectsEverythingElse) {
  for (const std::string text :
       {"", "01234567", "0123456789ab-cdef-0123-456789abcdef-",
        "01234567-89ab-cdef-0123-456789abcde", "01234567-89ab-cdef-0123-456789abcdef0",
        "g1234567-89ab-cdef-0123-456789abcdef", "01234567089ab-cdef-0123-456789abcdef",
        "{1234567-89ab-cdef-0123-456789abcde}"}) {
    EXPECT_EQ(Uuid::Parse(text).status().code(), Code::kInvalidArgument) << text;
  }
}

TEST(Uuid, RandomOnesAreVersionFourAndDiffer) {
  std::set<Uuid> seen;
  for (int i = 0; i < 100; ++i) {
    const Uuid uuid = Uuid::Random();
    EXPECT_EQ(uuid.ToString()[14], '4');
    EXPECT_EQ(uuid.bytes[8] >> 6, 2);
    EXPECT_TRUE(seen.insert(uuid).second);
  }
}

TEST(Rng, SameSeedSameNumbersOnEveryMachine) {
  Rng rng(42);
  const uint64_t first = rng.Next();
  EXPECT_EQ(first, 0x15780b2e0c2ec716u);
  EXPECT_EQ(Rng(42).Next(), first);
  EXPECT_NE(Rng(43).Next(), first);
}

TEST(Rng, StaysInRangeAndReachesBothEnds) {
  Rng rng(1);
  std::set<uint64_t> below, between;
  int hits = 0;
  for (int i = 0; i < 10000; ++i) {
    below.insert(rng.Below(5));
    between.insert(rng.Between(10, 12));
    hits += rng.Percent(30);
    EXPECT_FALSE(rng.Percent(0));
    EXPECT_TRUE(rng.Percent(100));
  }
  EXPECT_EQ(below, (std::set<uint64_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(between, (std::set<uint64_t>{10, 11, 12}));
  EXPECT_NEAR(hits, 3000, 200);
  EXPECT_EQ(rng.Between(7, 7), 7u);
  (void)rng.Between(0, UINT64_MAX);
}

TEST(Clock, TheRealOneNeverGoesBack) {
  const RealClock clock;
  Nanos last = clock.Now();
  EXPECT_GT(last, 0);
  for (int i = 0; i < 1000; ++i) {
    const Nanos now = clock.Now();
    EXPECT_GE(now, last);
    last = now;
  }
}

TEST(Clock, TheManualOneMovesOnlyWhenTold) {
  ManualClock clock;
  EXPECT_EQ(clock.Now(), 0);
  clock.Advance(3 * kMillisecond);
  EXPECT_EQ(clock.Now(), 3 * kMillisecond);
}

class Logging : public ::testing::Test {
 protected:
  Logging() {
    SetLogSink([this](LogLevel level, std::string_view line) { lines_.emplace_back(level, line); });
  }
  ~Logging() override {
    SetLogSink(nullptr);
    SetLogLevel(LogLevel::kInfo);
  }
  std::vector<std::pair<LogLevel, std::string>> lines_;
};

TEST_F(Logging, FormatsIntoTheSink) {
  HYDRA_LOG_INFO("plain");
  HYDRA_LOG_WARN("segment {} has {} bytes", 7, 4096);
  ASSERT_EQ(lines_.size(), 2u);
  EXPECT_EQ(lines_[0], std::pair(LogLevel::kInfo, std::string("plain")));
  EXPECT_EQ(lines_[1], std::pair(LogLevel::kWarn, std::string("segment 7 has 4096 bytes")));
}

TEST_F(Logging, DoesNotEvaluateArgumentsBelowTheLevel) {
  int evaluated = 0;
  HYDRA_LOG_DEBUG("{}", ++evaluated);
  EXPECT_EQ(evaluated, 0);
  SetLogLevel(LogLevel::kDebug);
  HYDRA_LOG_DEBUG("{}", ++evaluated);
  EXPECT_EQ(evaluated, 1);
  SetLogLevel(LogLevel::kOff);
  HYDRA_LOG_ERROR("{}", ++evaluated);
  EXPECT_EQ(evaluated, 1);
  EXPECT_EQ(lines_.size(), 1u);
}

TEST_F(Logging, GoesToStderrWithoutASinkAndTakesBracesLiterally) {
  SetLogSink(nullptr);
  ::testing::internal::CaptureStderr();
  HYDRA_LOG_ERROR("{}", "disk {} gone");
  const std::string out = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(out.find("error disk {} gone\n"), std::string::npos) << out;
}

}  // namespace
}  // namespace hydra
