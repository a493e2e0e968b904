// SPDX-License-Identifier: Apache-2.0
#include "daemon/drill_faults.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/posix_file.h"

namespace hydra {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class DrillFaultsTest : public testing::Test {
 protected:
  void Send(NodeId peer, int message) {
    const auto deliver = [this, message] { delivered_.push_back(message); };
    faults_.faulty(peer) ? faults_.Pass(peer, deliver) : deliver();
  }

  boost::asio::io_context io_;
  DrillFaults faults_{&io_};
  std::vector<int> delivered_;
};

TEST_F(DrillFaultsTest, NothingIsWrongAtFirst) {
  EXPECT_FALSE(faults_.faulty(2));
  EXPECT_TRUE(faults_.BeforeWrite().ok());
  EXPECT_FALSE(faults_.full());
}

TEST_F(DrillFaultsTest, WhatMakesNoSenseIsRefusedAndChangesNothing) {
  ASSERT_TRUE(faults_.Set(R"({"links":{"2":{"drop":true}}})").ok());
  for (const char* body :
       {"", "[]", "{", R"({"link":{}})", R"({"links":{"two":{}}})", R"({"links":{"2":{"drop":1}}})",
        R"({"links":[]})", R"({"links":{"0":{}}})", R"({"disk":{"write_delay_ms":-1}})",
        R"({"disk":{"full":"yes"}})", R"({"disk":{"slow":1}})", R"({"for_ms":999999999})"}) {
    EXPECT_EQ(faults_.Set(body).code(), Code::kInvalidArgument) << body;
    EXPECT_TRUE(faults_.faulty(2)) << body;
  }
}

TEST_F(DrillFaultsTest, ADroppedLinkLosesItsMessagesAndNoOthers) {
  ASSERT_TRUE(faults_.Set(R"({"links":{"2":{"drop":true}}})").ok());
  Send(2, 1);
  Send(3, 2);
  EXPECT_THAT(delivered_, ElementsAre(2));
  EXPECT_THAT(faults_.Describe(), HasSubstr("\"messages_lost\": 1"));
  ASSERT_TRUE(faults_.Set("{}").ok());
  Send(2, 3);
  EXPECT_THAT(delivered_, ElementsAre(2, 3));
}

TEST_F(DrillFaultsTest, DelayedMessagesComeInTheirOrderAndNotTooSoon) {
  ASSERT_TRUE(faults_.Set(R"({"links":{"2":{"delay_ms":60},"3":{"delay_ms":20}}})").ok());
  const auto began = std::chrono::steady_clock::now();
  Send(2, 1);
  Send(2, 2);
  Send(3, 3);
  EXPECT_THAT(delivered_, IsEmpty());
  while (std::count(delivered_.begin(), delivered_.end(), 3) == 0) io_.run_one();
  EXPECT_GE(std::chrono::steady_clock::now() - began, milliseconds(20));
  while (delivered_.size() < 3) io_.run_one();
  EXPECT_GE(std::chrono::steady_clock::now() - began, milliseconds(60));
  // How 3 comes between the others is up to how long this process waited for the processor.
  std::erase(delivered_, 3);
  EXPECT_THAT(delivered_, ElementsAre(1, 2));
}

TEST_F(DrillFaultsTest, FaultsEndByThemselves) {
  const auto began = std::chrono::steady_clock::now();
  ASSERT_TRUE(faults_.Set(R"({"for_ms":100,"links":{"2":{"delay_ms":5000}}})").ok());
  Send(2, 1);
  EXPECT_TRUE(faults_.faulty(2));
  io_.run();  // ends when the faults do
  EXPECT_GE(std::chrono::steady_clock::now() - began, milliseconds(100));
  EXPECT_FALSE(faults_.faulty(2));
  EXPECT_THAT(delivered_, ElementsAre(1));
}

TEST_F(DrillFaultsTest, TheEndOfFaultsDeliversWhatWasDelayed) {
  ASSERT_TRUE(faults_.Set(R"({"links":{"2":{"delay_ms":5000}}})").ok());
  Send(2, 1);
  ASSERT_TRUE(faults_.Set("{}").ok());
  EXPECT_THAT(delivered_, ElementsAre(1));
  ASSERT_TRUE(faults_.Set(R"({"links":{"2":{"delay_ms":5000}}})").ok());
  Send(2, 2);
  faults_.Clear(false);  // the node stops
  EXPECT_THAT(delivered_, ElementsAre(1));
}

TEST_F(DrillFaultsTest, DisksAreSlowFailOrAreFull) {
  ASSERT_TRUE(faults_.Set(R"({"disk":{"write_delay_ms":30}})").ok());
  const auto began = std::chrono::steady_clock::now();
  EXPECT_TRUE(faults_.BeforeWrite().ok());
  EXPECT_GE(std::chrono::steady_clock::now() - began, milliseconds(30));
  ASSERT_TRUE(faults_.Set(R"({"disk":{"fail_writes":true,"full":true}})").ok());
  EXPECT_EQ(faults_.BeforeWrite().code(), Code::kIoError);
  PosixFileSystem real;
  DrillFileSystem disk(&real, &faults_);
  EXPECT_LE(*disk.FreeBytes(testing::TempDir()), DrillFileSystem::kLeftWhenFull);
  ASSERT_TRUE(faults_.Set("{}").ok());
  EXPECT_EQ(*disk.FreeBytes("/proc"), *real.FreeBytes("/proc"));
}

}  // namespace
}  // namespace hydra
