// SPDX-License-Identifier: Apache-2.0
//
// Random lives of a store, by seed. A failure prints its seed; to replay it:
//   HYDRA_CRASH_FIRST_SEED=<seed> HYDRA_CRASH_SEEDS=1 crash-test --gtest_filter='*Random*'
#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include "tests/crash/crash_run.h"
#include "tests/support/effort.h"

namespace hydra::test {
namespace {

constexpr uint64_t kShards = 8;
constexpr uint64_t kDefaultSeeds = 2000;
constexpr uint64_t kQuickSeeds = Repeat(40, 20);
constexpr uint64_t kSeedsToSeeAll = 200;  // after which everything rare should have happened

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

void RunSeeds(uint64_t first, uint64_t count, bool installs) {
  Sightings seen;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    CrashRun run(seed, installs);
    const std::string report = run.Run();
    ASSERT_TRUE(report.empty()) << report;
    seen += run.seen();
  }
  if (count >= kSeedsToSeeAll) {
    EXPECT_EQ(seen.Missing(installs), "") << "never happened";
  }
}

// A few seeds for every run of the tests, sanitizers included.
TEST(Crash, RandomWorkloadsSurvivePowerLoss) {
  const uint64_t seeds = std::min(kQuickSeeds, FromEnvironment("HYDRA_CRASH_SEEDS", kQuickSeeds));
  RunSeeds(FromEnvironment("HYDRA_CRASH_FIRST_SEED", 1), seeds, false);
}

TEST(Crash, RandomInstallsSurvivePowerLoss) {
  const uint64_t seeds = std::min(kQuickSeeds, FromEnvironment("HYDRA_CRASH_SEEDS", kQuickSeeds));
  RunSeeds(FromEnvironment("HYDRA_CRASH_FIRST_SEED", 1), seeds, true);
}

TEST(SoakInstall, RandomInstallsSurvivePowerLoss) { RunSeeds(1, kSeedsToSeeAll, true); }

// All of them, in shards that run beside each other.
class SoakCrash : public testing::TestWithParam<uint64_t> {};

TEST_P(SoakCrash, RandomWorkloadsSurvivePowerLoss) {
  const uint64_t seeds = FromEnvironment("HYDRA_CRASH_SEEDS", kDefaultSeeds);
  const uint64_t first = FromEnvironment("HYDRA_CRASH_FIRST_SEED", 1);
  const uint64_t begin = seeds * GetParam() / kShards;
  const uint64_t end = seeds * (GetParam() + 1) / kShards;
  if (begin == end) GTEST_SKIP() << "fewer seeds than shards";
  RunSeeds(first + begin, end - begin, false);
}

INSTANTIATE_TEST_SUITE_P(Shards, SoakCrash, testing::Range<uint64_t>(0, kShards));

}  // namespace
}  // namespace hydra::test
