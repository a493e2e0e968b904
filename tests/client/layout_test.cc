// SPDX-License-Identifier: Apache-2.0
#include "client/layout.h"

#include <cstdint>
#include <map>
#include <set>

#include <gtest/gtest.h>
#include <rapidcheck.h>

namespace hydra {
namespace {

Layout AnyLayout() {
  const uint32_t block = *rc::gen::element(4096u, 8192u, 16384u, 32768u, 65536u);
  return {block, *rc::gen::inRange(1u, 65u)};
}

struct Range {
  uint64_t offset = 0;
  uint64_t length = 0;
};

// Ends near extents' ends in half of the cases.
Range AnyRange(uint64_t max_extents) {
  const uint64_t sectors = max_extents * kExtentBytes / kSectorBytes;
  Range range;
  range.offset = *rc::gen::inRange<uint64_t>(0, 4 * sectors) * kSectorBytes;
  range.length = *rc::gen::inRange<uint64_t>(1, sectors) * kSectorBytes;
  if (*rc::gen::arbitrary<bool>()) range.offset = range.offset / kExtentBytes * kExtentBytes;
  if (*rc::gen::arbitrary<bool>()) {
    range.length = (range.length + kExtentBytes - 1) / kExtentBytes * kExtentBytes;
  }
  return range;
}

TEST(Layout, HashIsTheFinaliserOfSplitMix64AndNeverChanges) {
  EXPECT_EQ(Mix64(0), 0u);
  EXPECT_EQ(Mix64(1), 0x5692161d100b05e5u);
  EXPECT_EQ(Mix64(0x9e3779b97f4a7c15), 0xe220a8397b1dcdafu);  // SplitMix64's first, seeded with 0
}

TEST(Layout, ShardsAreNearlyEvenlyUsed) {
  const Layout layout(4096, 7);
  std::map<uint32_t, int> used;
  for (uint64_t extent = 0; extent < 70'000; ++extent) ++used[layout.ShardOfExtent(extent)];
  EXPECT_EQ(used.size(), 7u);
  for (const auto& [shard, count] : used) {
    EXPECT_GT(count, 9'500);
    EXPECT_LT(count, 10'500);
  }
}

TEST(Layout, PiecesCoverARangeOnceInOrderAndStayInTheirExtent) {
  rc::check([] {
    const Layout layout = AnyLayout();
    const Range range = AnyRange(8);
    uint64_t at = 0;
    while (at < range.length) {
      const Piece piece = layout.First(range.offset + at, range.length - at);
      RC_ASSERT(piece.bytes > 0u);
      const uint64_t begin = piece.lba * layout.block_bytes() + piece.part_offset;
      RC_ASSERT(piece.part_offset < layout.block_bytes());
      RC_ASSERT(begin == range.offset + at);
      const uint64_t end = begin + piece.bytes;
      RC_ASSERT(begin / kExtentBytes == (end - 1) / kExtentBytes);
      RC_ASSERT(piece.shard == layout.ShardOfExtent(begin / kExtentBytes));
      RC_ASSERT(piece.shard == layout.ShardOfBlock(piece.lba));
      // The blocks are those that are touched, and no others.
      RC_ASSERT((end - 1) / layout.block_bytes() == piece.lba + piece.count - 1);
      RC_ASSERT(piece.whole_blocks ==
                (begin % layout.block_bytes() == 0 && end % layout.block_bytes() == 0));
      at += piece.bytes;
    }
    RC_ASSERT(at == range.length);
  });
}

TEST(Layout, PlansCoverARangeOnceWithWholeExtentsGroupedByShard) {
  rc::check([] {
    const Layout layout = AnyLayout();
    const Range range = AnyRange(64);
    const RangePlan plan = layout.Plan(range.offset, range.length);
    uint64_t bytes = 0;
    std::set<uint64_t> extents;
    for (const ExtentRun& run : plan.runs) {
      RC_ASSERT(!run.extents.empty());
      uint64_t last = 0;
      for (size_t i = 0; i < run.extents.size(); ++i) {
        const uint64_t extent = run.extents[i];
        RC_ASSERT(i == 0 || extent > last);
        last = extent;
        RC_ASSERT(extents.insert(extent).second);
        RC_ASSERT(layout.ShardOfExtent(extent) == run.shard);
        RC_ASSERT(extent * kExtentBytes >= range.offset);
        RC_ASSERT((extent + 1) * kExtentBytes <= range.offset + range.length);
        bytes += kExtentBytes;
      }
    }
    RC_ASSERT(plan.pieces.size() <= 2u);
    for (const Piece& piece : plan.pieces) {
      RC_ASSERT(piece.bytes < kExtentBytes);
      RC_ASSERT(!extents.contains(piece.lba / layout.blocks_per_extent()));
      bytes += piece.bytes;
    }
    RC_ASSERT(bytes == range.length);
    RC_ASSERT(plan.runs.size() <= layout.shards());
  });
}

TEST(Layout, RunsHoldNoMoreExtentsThanARequestTakes) {
  const Layout layout(4096, 2);
  const uint64_t extents = 4 * kMaxExtentsPerIo;
  const RangePlan plan = layout.Plan(0, extents * kExtentBytes);
  uint64_t seen = 0;
  for (const ExtentRun& run : plan.runs) {
    EXPECT_LE(run.extents.size(), kMaxExtentsPerIo);
    seen += run.extents.size();
  }
  EXPECT_EQ(seen, extents);
  EXPECT_TRUE(plan.pieces.empty());
}

}  // namespace
}  // namespace hydra
