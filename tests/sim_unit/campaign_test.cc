// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/campaign.h"

#include <unistd.h>

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/check.h"
#include "base/probe.h"

namespace hydra::sim {
namespace {

using testing::HasSubstr;

RunResult Good(const RunOptions& options) {
  if (options.seed % 2 == 0) HYDRA_PROBE("campaign test: an even seed");
  if (options.seed == 1'000'000) HYDRA_PROBE("campaign test: the millionth seed");
  RunResult result;
  result.trace_hash = options.seed * 3;
  result.simulated = kSecond;
  result.operations_checked = 10;
  result.faults = {{"crash", 2}, {"rot", options.seed % 2}};
  return result;
}

CampaignOptions Seeds(uint64_t first, uint64_t last, unsigned jobs) {
  CampaignOptions options;
  options.seeds = {first, last};
  options.jobs = jobs;
  return options;
}

uint64_t Passed(const CampaignResult& result, const std::string& name) {
  for (const auto& [probe, passed] : result.probes) {
    if (probe.first == name) return passed;
  }
  ADD_FAILURE() << "no probe " << name;
  return 0;
}

TEST(Campaign, AddsUpWhatEverySeedDid) {
  for (const unsigned jobs : {1, 2, 3, 50}) {
    const CampaignResult result = RunCampaign(Seeds(11, 30, jobs), Good);
    EXPECT_TRUE(result.ok());
    EXPECT_EQ(result.seeds, 20u);
    EXPECT_EQ(result.simulated, 20 * kSecond);
    EXPECT_EQ(result.operations_checked, 200u);
    EXPECT_EQ(result.faults_injected(), 50u);
    EXPECT_EQ(result.faults.at("rot"), 10u);
    EXPECT_EQ(Passed(result, "campaign test: an even seed"), 10u);
    EXPECT_EQ(Passed(result, "campaign test: the millionth seed"), 0u);
    EXPECT_GE(result.probes_reached(), 1u);
    EXPECT_LT(result.probes_reached(), result.probes.size());
  }
}

TEST(Campaign, AFailedSeedIsNamedWithItsEvidence) {
  const CampaignResult result = RunCampaign(Seeds(1, 10'000'000, 2), [](const RunOptions& options) {
    RunResult r = Good(options);
    if (options.seed != 17) return r;
    r.ok = false;
    r.failure = "lost \xff\n\"write\"";  // any bytes
    r.knobs = "window 3";
    return r;
  });
  ASSERT_EQ(result.failures.size(), 1u);
  EXPECT_EQ(result.failures[0].seed, 17u);
  EXPECT_THAT(result.failures[0].text, HasSubstr("\n\"write\""));
  EXPECT_EQ(result.failures[0].knobs, "window 3");
  EXPECT_LT(result.seeds, 10'000'000u) << "stopped";
}

TEST(Campaign, NoMoreFailuresAreReportedThanAskedForTheLowestSeedsFirst) {
  CampaignOptions options = Seeds(1, 100, 3);
  options.max_failures = 2;
  const CampaignResult result = RunCampaign(options, [](const RunOptions&) {
    RunResult r;
    r.ok = false;
    return r;
  });
  ASSERT_EQ(result.failures.size(), 2u);
  EXPECT_LT(result.failures[0].seed, result.failures[1].seed);
}

TEST(Campaign, ASeedThatDiesIsAFailureAndTheOthersGoOn) {
  CampaignOptions options = Seeds(1, 20, 2);
  options.max_failures = 10;
  const CampaignResult result = RunCampaign(options, [](const RunOptions& run) {
    if (run.seed == 5) HYDRA_CHECK(run.seed == 6);
    if (run.seed == 8) _exit(4);
    return Good(run);
  });
  ASSERT_EQ(result.failures.size(), 2u);
  EXPECT_EQ(result.seeds, 18u);
  for (const SeedFailure& f : result.failures) {
    EXPECT_TRUE(f.seed == 5 || f.seed == 8) << f.seed;
    EXPECT_THAT(f.text, HasSubstr(f.seed == 5 ? "check failed: run.seed == 6" : "status 4"));
  }
}

TEST(Campaign, ASeedThatHangsIsKilled) {
  CampaignOptions options = Seeds(1, 4, 2);
  options.seed_wall_time = kSecond / 2;
  options.max_failures = 10;
  const CampaignResult result = RunCampaign(options, [](const RunOptions& run) {
    while (run.seed == 2) usleep(1000);
    return Good(run);
  });
  ASSERT_EQ(result.failures.size(), 1u);
  EXPECT_EQ(result.failures[0].seed, 2u);
  EXPECT_THAT(result.failures[0].text, HasSubstr("took longer"));
  EXPECT_EQ(result.seeds, 3u);
}

TEST(Campaign, TwoRunsOfASeedMustBeTheSame) {
  CampaignOptions options = Seeds(1, 10, 1);
  options.twice = true;
  EXPECT_TRUE(RunCampaign(options, Good).ok());
  const CampaignResult result = RunCampaign(options, [](const RunOptions& run) {
    static uint64_t calls = 0;
    RunResult r = Good(run);
    if (run.seed == 3) r.trace_hash += ++calls;
    return r;
  });
  ASSERT_EQ(result.failures.size(), 1u);
  EXPECT_EQ(result.failures[0].seed, 3u);
  EXPECT_THAT(result.failures[0].text, HasSubstr("two runs of the same seed differ"));
}

TEST(Campaign, EndsWhenItsTimeIsUp) {
  CampaignOptions options = Seeds(1, 1'000'000, 2);
  options.wall_time = kSecond / 2;
  const CampaignResult result = RunCampaign(options, [](const RunOptions& run) {
    usleep(10'000);
    return Good(run);
  });
  EXPECT_TRUE(result.ok());
  EXPECT_GE(result.seeds, 2u);
  EXPECT_LT(result.seeds, 1'000u);
}

TEST(Campaign, SeedsAtTheEndOfTheNumbersWork) {
  const uint64_t last = std::numeric_limits<uint64_t>::max();
  const CampaignResult result = RunCampaign(Seeds(last - 4, last, 2), Good);
  EXPECT_EQ(result.seeds, 5u);
}

TEST(SeedRange, IsParsedStrictly) {
  const Result<SeedRange> range = ParseSeedRange("7..19");
  ASSERT_TRUE(range.ok());
  EXPECT_EQ(range->first, 7u);
  EXPECT_EQ(range->last, 19u);
  for (const char* bad : {"", "7", "7..", "..9", "9..7", "7..9x", " 7..9", "-1..4", "7...9",
                          "1..99999999999999999999"}) {
    EXPECT_FALSE(ParseSeedRange(bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace hydra::sim
