// SPDX-License-Identifier: Apache-2.0
#include "blockstore/extent_table.h"

#include <map>

#include <gtest/gtest.h>

#include "base/rng.h"

namespace hydra {
namespace {

TEST(ExtentTable, TellsWhichSegmentAnOverwriteEmpties) {
  SegmentSlots slots;
  ExtentTable table(1, &slots);
  EXPECT_FALSE(table.IsData(5));
  EXPECT_EQ(table.SetData(5, 10), 0u);
  EXPECT_TRUE(table.IsData(5));
  EXPECT_EQ(table.SetData(5, 11), 10u);
  EXPECT_EQ(table.Clear(5), 11u);
  EXPECT_EQ(table.Clear(5), 0u);
  EXPECT_FALSE(table.IsData(5));
  EXPECT_EQ(table.data_blocks(), 0u);
}

TEST(ExtentTable, EqualsAModelForEveryBlockSize) {
  for (uint32_t block_pages : {1, 2, 4, 8, 16}) {
    SegmentSlots slots;
    ExtentTable table(block_pages, &slots);
    std::map<Lba, SegmentNumber> model;
    Rng rng(block_pages);
    const Lba blocks = 4 * table.blocks_per_extent();
    for (int i = 0; i < 20'000; ++i) {
      const Lba lba = rng.Below(blocks);
      const auto found = model.find(lba);
      const SegmentNumber before = found == model.end() ? 0 : found->second;
      if (rng.Percent(60)) {
        const SegmentNumber segment =
            rng.Percent(10) ? kOwedSegment : static_cast<SegmentNumber>(rng.Between(1, 500));
        ASSERT_EQ(table.SetData(lba, segment), before);
        model[lba] = segment;
      } else if (rng.Percent(95)) {
        ASSERT_EQ(table.Clear(lba), before);
        model.erase(lba);
      } else {
        const Extent extent = lba / table.blocks_per_extent();
        size_t told = 0;
        table.ClearExtent(extent, [&](SegmentNumber) { ++told; });
        told -= std::erase_if(model, [&](const auto& row) {
          return row.first / table.blocks_per_extent() == extent;
        });
        ASSERT_EQ(told, 0u);
      }
      if (i % 1000 == 0) (void)table.TakeDirty();
    }
    EXPECT_EQ(table.data_blocks(), model.size());
    std::vector<Lba> owed;
    for (const auto& [lba, segment] : model) {
      if (segment == kOwedSegment) owed.push_back(lba);
    }
    EXPECT_EQ(table.owed_blocks(), owed.size());
    EXPECT_EQ(table.OwedFrom(0, blocks), owed);
    for (Lba lba = 0; lba < blocks; ++lba) EXPECT_EQ(table.IsData(lba), model.contains(lba));
  }
}

TEST(ExtentTable, PresenceRowsBringTheBitsBack) {
  SegmentSlots slots;
  ExtentTable table(2, &slots);
  Rng rng(7);
  std::map<Extent, std::string> rows;
  for (int round = 0; round < 50; ++round) {
    for (int i = 0; i < 40; ++i) {
      const Lba lba = rng.Below(1000);
      rng.Percent(50) ? table.SetData(lba, 3) : table.Clear(lba);
    }
    for (auto& [extent, bitmap] : table.TakeDirty()) {
      if (bitmap.empty()) {
        rows.erase(extent);
      } else {
        EXPECT_EQ(bitmap.size(), 16u);
        rows[extent] = bitmap;
      }
    }
    EXPECT_TRUE(table.TakeDirty().empty());
  }
  ExtentTable loaded(2, &slots);
  for (const auto& [extent, bitmap] : rows) loaded.LoadPresence(extent, bitmap);
  EXPECT_EQ(loaded.data_blocks(), table.data_blocks());
  for (Lba lba = 0; lba < 1000; ++lba) {
    EXPECT_EQ(loaded.IsData(lba), table.IsData(lba));
    EXPECT_EQ(loaded.SegmentOf(lba), 0u);
  }
}

TEST(ExtentTable, ALateLoadNeverOverrulesAChange) {
  SegmentSlots slots;
  ExtentTable table(1, &slots);
  table.LoadPresence(0, std::string(32, '\x0f'));
  EXPECT_EQ(table.SetData(0, 9), 0u);  // overwritten before its old place was known
  EXPECT_EQ(table.Clear(1), 0u);       // unmapped before
  EXPECT_FALSE(table.LoadSegment(0, 4));
  EXPECT_FALSE(table.LoadSegment(1, 4));
  EXPECT_TRUE(table.LoadSegment(2, 4));
  EXPECT_FALSE(table.LoadSegment(2, 4));
  EXPECT_EQ(table.SegmentOf(0), 9u);
  EXPECT_EQ(table.SegmentOf(2), 4u);
}

TEST(ExtentTable, CountsAndListsWhatIsOwed) {
  SegmentSlots slots;
  ExtentTable table(1, &slots);
  for (const Lba lba : {3u, 4u, 255u, 256u, 900u}) table.SetData(lba, kOwedSegment);
  table.SetData(5, 7);
  EXPECT_EQ(table.owed_blocks(), 5u);
  EXPECT_EQ(table.data_blocks(), 6u);
  EXPECT_EQ(table.OwedFrom(0, 100), (std::vector<Lba>{3, 4, 255, 256, 900}));
  EXPECT_EQ(table.OwedFrom(4, 2), (std::vector<Lba>{4, 255}));
  EXPECT_TRUE(table.OwedFrom(901, 100).empty());
  EXPECT_EQ(table.SetData(3, 7), kOwedSegment);
  EXPECT_EQ(table.SetData(4, kOwedSegment), kOwedSegment);  // in a newer version
  EXPECT_EQ(table.Clear(255), kOwedSegment);
  EXPECT_EQ(table.SetData(5, kOwedSegment), 7u);
  EXPECT_EQ(table.OwedFrom(0, 100), (std::vector<Lba>{4, 5, 256, 900}));
  table.ClearExtent(0, [](SegmentNumber) {});
  EXPECT_EQ(table.owed_blocks(), 2u);
  (void)table.TakeDirty();
  table.Clear(256);
  table.SetData(900, 7);
  EXPECT_EQ(table.owed_blocks(), 0u);
  EXPECT_TRUE(table.OwedFrom(0, 100).empty());
}

TEST(ExtentTable, WhatIsOwedIsCountedWhenItIsLoaded) {
  SegmentSlots slots;
  ExtentTable table(1, &slots);
  table.LoadPresence(0, std::string(32, '\x0f'));
  EXPECT_EQ(table.owed_blocks(), 0u);
  table.SetData(0, 9);
  EXPECT_FALSE(table.LoadSegment(0, kOwedSegment));  // it was, until it was written again
  EXPECT_TRUE(table.LoadSegment(1, kOwedSegment));
  EXPECT_FALSE(table.LoadSegment(1, kOwedSegment));
  EXPECT_TRUE(table.LoadSegment(2, 4));
  EXPECT_EQ(table.OwedFrom(0, 100), (std::vector<Lba>{1}));
}

TEST(SegmentSlots, ReusesTheNamesOfFreedSegments) {
  SegmentSlots slots;
  for (SegmentNumber segment = 1; segment <= 1'000'000; ++segment) {
    const auto slot = slots.Of(segment);
    ASSERT_EQ(slots.Segment(slot), segment);
    slots.Release(segment);
    ASSERT_EQ(slots.Segment(slot), 0u);
  }
  EXPECT_LT(slots.Of(5), 10);
}

}  // namespace
}  // namespace hydra
