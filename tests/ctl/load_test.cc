// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "daemon/hydractl_load.h"

namespace hydra::ctl {
namespace {

std::map<uint64_t, int> Choose(const BlockChooser& chooser, int times) {
  Rng rng(7);
  std::map<uint64_t, int> chosen;
  for (int i = 0; i < times; ++i) ++chosen[chooser.Next(&rng)];
  return chosen;
}

TEST(BlockChooser, WithoutSkewEveryBlockIsAsLikely) {
  const auto chosen = Choose(BlockChooser(100, {}), 100'000);
  EXPECT_EQ(chosen.size(), 100u);
  for (const auto& [block, times] : chosen) {
    EXPECT_LT(block, 100u);
    EXPECT_NEAR(times, 1000, 200);
  }
}

TEST(BlockChooser, SkewSendsItsShareOfRequestsToItsShareOfBlocks) {
  // Nine in ten of 180,000 to 100 blocks: 1,620 each; the rest to 900: 20 each.
  const auto chosen = Choose(BlockChooser(1000, {.requests = 90, .blocks = 10}), 180'000);
  EXPECT_EQ(chosen.size(), 1000u);
  std::set<uint64_t> preferred;
  int to_preferred = 0;
  for (const auto& [block, times] : chosen) {
    EXPECT_LT(block, 1000u);
    if (times < 500) continue;
    preferred.insert(block);
    to_preferred += times;
  }
  EXPECT_EQ(preferred.size(), 100u);
  EXPECT_NEAR(to_preferred, 162'000, 2'000);
}

TEST(BlockChooser, PreferredBlocksLieAllOverTheRange) {
  const auto chosen = Choose(BlockChooser(10'000, {.requests = 100, .blocks = 1}), 10'000);
  std::set<uint64_t> tenths;
  for (const auto& [block, times] : chosen) tenths.insert(block / 1000);
  EXPECT_EQ(tenths.size(), 10u);
}

TEST(BlockChooser, SmallRangesAndWholeSharesWork) {
  EXPECT_EQ(Choose(BlockChooser(1, {.requests = 90, .blocks = 10}), 100).size(), 1u);
  EXPECT_EQ(Choose(BlockChooser(2, {.requests = 50, .blocks = 10}), 100).size(), 2u);
  EXPECT_EQ(Choose(BlockChooser(8, {.requests = 10, .blocks = 100}), 1000).size(), 8u);
}

}  // namespace
}  // namespace hydra::ctl
