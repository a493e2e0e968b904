// SPDX-License-Identifier: Apache-2.0
#include "blockstore/read_around.h"

#include <memory>

#include <gtest/gtest.h>

#include "base/rng.h"

namespace hydra {
namespace {

constexpr uint32_t kSegmentRegions = 256;  // 64 MiB

class ReadAroundTest : public testing::Test {
 protected:
  // Misses regions of the first `segments` in no order; how many regions were read for it.
  uint64_t MissAtRandom(uint64_t segments, int times) {
    uint64_t regions = 0;
    for (int i = 0; i < times; ++i) {
      const auto segment = static_cast<SegmentNumber>(1 + rng_.Below(segments));
      if (around_->Miss(segment, static_cast<uint32_t>(rng_.Below(kSegmentRegions)))) ++regions;
    }
    return regions;
  }

  std::unique_ptr<ReadAround> around_ = std::make_unique<ReadAround>();
  Rng rng_{7};
};

TEST_F(ReadAroundTest, ReadsARegionThatIsMissedTwice) {
  EXPECT_FALSE(around_->Miss(3, 5));
  EXPECT_FALSE(around_->Miss(3, 6));
  EXPECT_FALSE(around_->Miss(4, 5));  // another segment's
  EXPECT_TRUE(around_->Miss(3, 5));
  EXPECT_EQ(around_->read_bytes(), ReadAround::kRegionBytes);
  EXPECT_FALSE(around_->Miss(3, 5));  // begins anew
  EXPECT_TRUE(around_->Miss(3, 5));
}

TEST_F(ReadAroundTest, BringsAWorkingSetIntoMemorySoon) {
  // 512 MiB are 2048 regions.
  EXPECT_GT(MissAtRandom(8, 4'096), 1'000u);
}

TEST_F(ReadAroundTest, LeavesAThinlySpreadLoadAlone) {
  // 64 GiB: at most a few pages more for each that was asked for.
  constexpr int kMisses = 100'000;
  EXPECT_LT(MissAtRandom(1'024, kMisses) * ReadAround::kRegionPages, 4u * kMisses);
}

TEST_F(ReadAroundTest, StopsWhereNothingIsEverFoundInMemory) {
  const uint64_t most = ReadAround::kAllowance / ReadAround::kRegionBytes;
  EXPECT_EQ(MissAtRandom(8, 50'000), most);
  EXPECT_EQ(MissAtRandom(8, 50'000), 0u);
  around_->Hit(3 * ReadAround::kRegionBytes / ReadAround::kEarned);
  EXPECT_EQ(MissAtRandom(8, 50'000), 3u);
}

TEST_F(ReadAroundTest, SavesUpNoMoreThanItsAllowance) {
  for (int i = 0; i < 1'000; ++i) around_->Hit(ReadAround::kAllowance);
  EXPECT_EQ(MissAtRandom(8, 100'000), ReadAround::kAllowance / ReadAround::kRegionBytes);
}

}  // namespace
}  // namespace hydra
