// SPDX-License-Identifier: Apache-2.0
#include "blockstore/log_index.h"

#include <map>
#include <vector>

#include <gtest/gtest.h>

#include "base/rng.h"

namespace hydra {
namespace {

LogIndex::Slot In(SegmentNumber segment) {
  LogIndex::Slot slot;
  slot.segment = segment;
  return slot;
}

TEST(LogIndex, AHoleOfMillionsCostsNothing) {
  LogIndex log;
  log.Put(3, In(1));
  log.Put(1ull << 40, In(2));
  log.Put((1ull << 40) + 2, In(3));
  log.Put(5, In(1));
  EXPECT_EQ(log.last(), (1ull << 40) + 2);
  ASSERT_NE(log.Find(3), nullptr);
  ASSERT_NE(log.Find(5), nullptr);
  EXPECT_EQ(log.Find(4), nullptr);
  EXPECT_EQ(log.Find((1ull << 40) + 1), nullptr);
  EXPECT_EQ(log.HighestIn(1, kMaxInstance), 5u);
  EXPECT_EQ(log.HighestIn(1, 4), 3u);
  EXPECT_EQ(log.HighestIn(3, kMaxInstance), (1ull << 40) + 2);
  log.Truncate(1ull << 40);
  EXPECT_EQ(log.truncated(), 1ull << 40);
  EXPECT_EQ(log.Find(5), nullptr);
  EXPECT_EQ(log.last(), (1ull << 40) + 2);
}

// Against a plain map, with holes small and large, in any order.
TEST(LogIndex, EqualsAModel) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Rng rng(seed);
    LogIndex log;
    std::map<Instance, SegmentNumber> model;
    Instance truncated = 0;
    Instance near = 1;
    for (int step = 0; step < 2000; ++step) {
      if (rng.Percent(1)) near += rng.Below(2'000'000);
      const Instance instance = near + rng.Below(200);
      if (rng.Percent(10)) {
        const Instance to = rng.Percent(50) ? instance : truncated + rng.Below(100);
        log.Truncate(to);
        truncated = std::max(truncated, to);
        model.erase(model.begin(), model.upper_bound(to));
      } else {
        const auto segment = static_cast<SegmentNumber>(1 + rng.Below(5));
        log.Put(instance, In(segment));
        if (instance > truncated) model[instance] = segment;
      }
      ASSERT_EQ(log.truncated(), truncated);
      ASSERT_EQ(log.last(), model.empty() ? truncated : model.rbegin()->first);
      std::map<Instance, SegmentNumber> listed;
      log.ForEach(1, kMaxInstance,
                  [&](Instance i, const LogIndex::Slot& slot) { listed[i] = slot.segment; });
      ASSERT_EQ(listed, model) << "seed " << seed << " step " << step;
    }
  }
}

}  // namespace
}  // namespace hydra
