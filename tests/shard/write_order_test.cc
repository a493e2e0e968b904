// SPDX-License-Identifier: Apache-2.0
#include "daemon/write_order.h"

#include <algorithm>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "base/rng.h"

namespace hydra {
namespace {

constexpr uint64_t kExtentBlocks = kExtentPages;

// The applied half: one newest version for all blocks, known back to `floor`.
struct AppliedState {
  Version newest = 0;
  Instance floor = 0;

  Version operator()(Lba, uint64_t, Instance seen, bool* known) const {
    *known = seen >= floor;
    return newest;
  }
};

TEST(WriteOrder, TheNewestPendingInstanceOfARangeIsKnownUntilApplied) {
  WriteOrder order;
  EXPECT_EQ(order.Newest(0, 100), 0u);
  order.NotePending(5, 10, 4);
  order.NotePending(6, 12, 1);
  order.NotePending(8, 40, 2);
  EXPECT_EQ(order.Newest(10, 1), 5u);
  EXPECT_EQ(order.Newest(12, 1), 6u);
  EXPECT_EQ(order.Newest(13, 1), 5u);
  EXPECT_EQ(order.Newest(14, 26), 0u);
  EXPECT_EQ(order.Newest(0, 100), 8u);
  order.Applied(5);
  EXPECT_EQ(order.Newest(10, 2), 0u);
  EXPECT_EQ(order.Newest(13, 1), 0u);
  EXPECT_EQ(order.Newest(10, 4), 6u);
  order.Applied(7);
  EXPECT_FALSE(order.HasUnapplied(0, 40));
  EXPECT_TRUE(order.HasUnapplied(0, 41));
  order.Applied(8);
  EXPECT_EQ(order.pending(), 0u);
}

TEST(WriteOrder, AWholeExtentCountsForEachOfItsBlocks) {
  WriteOrder order;
  order.NotePending(3, 7, 1);
  order.NotePending(4, 0, 4096 * kExtentBlocks);
  order.NotePending(5, 2 * kExtentBlocks + 9, 1);
  EXPECT_EQ(order.Newest(7, 1), 4u);
  EXPECT_EQ(order.Newest(4096 * kExtentBlocks - 1, 1), 4u);
  EXPECT_EQ(order.Newest(4096 * kExtentBlocks, 1), 0u);
  EXPECT_EQ(order.Newest(2 * kExtentBlocks, kExtentBlocks), 5u);
  order.Applied(4);
  EXPECT_EQ(order.Newest(0, 4096 * kExtentBlocks), 5u);
  EXPECT_EQ(order.Newest(0, 2 * kExtentBlocks + 9), 0u);
}

TEST(WriteOrder, OperationsOfOneEntrySeeEachOther) {
  WriteOrder order;
  AppliedState applied;
  order.NotePending(9, 0, 4);
  EXPECT_EQ(order.CheckSeen(3, 4, 8, applied), SeenVerdict::kStale);
  order.NotePending(9, 8, 4);
  order.NotePending(9, 2, 8);
  EXPECT_EQ(order.Newest(0, 12), 9u);
  order.Applied(9);
  EXPECT_EQ(order.Newest(0, 12), 0u);
}

TEST(WriteOrder, LosingMastershipForgetsWhatWasPending) {
  WriteOrder order;
  order.NotePending(9, 0, 4);
  order.Clear();
  EXPECT_FALSE(order.HasUnapplied(0, 4));
  order.NotePending(2, 0, 4);  // the next term may find itself at a lower open instance
  EXPECT_EQ(order.Newest(0, 1), 2u);
}

TEST(WriteOrder, ThereIsRoomForSoManyRangesAndNoMore) {
  WriteOrder order;
  for (size_t i = 0; i < WriteOrder::kMaxPending; ++i) order.NotePending(1 + i / 8, i * 3, 2);
  EXPECT_FALSE(order.HasRoom(1));
  EXPECT_TRUE(order.HasRoom(0));
  order.Applied(1);
  EXPECT_TRUE(order.HasRoom(8));
  EXPECT_FALSE(order.HasRoom(9));
}

TEST(WriteOrderDeathTest, NotesComeInOrderAndWithinLimits) {
  WriteOrder order;
  order.NotePending(5, 0, 1);
  EXPECT_DEATH(order.NotePending(4, 9, 1), "check failed");
  EXPECT_DEATH(order.NotePending(6, 9, 0), "check failed");
  EXPECT_DEATH(order.NotePending(6, 9, ~uint64_t{0}), "check failed");
}

// --- seen ---------------------------------------------------------------------------------------

TEST(Seen, AWriteBehindANewerOneIsRefusedWhetherThatIsAppliedOrPending) {
  struct Row {
    Instance pending;
    Instance applied;
    Instance floor;
    Instance seen;
    SeenVerdict expected;
  };
  const Row rows[] = {
      {0, 0, 0, 0, SeenVerdict::kAllowed},     // a new volume
      {0, 0, 0, 9, SeenVerdict::kAllowed},     // never written
      {0, 9, 0, 9, SeenVerdict::kAllowed},     // knows the newest
      {0, 9, 0, 8, SeenVerdict::kStale},       // applied is newer
      {9, 0, 0, 8, SeenVerdict::kStale},       // pending is newer
      {9, 3, 0, 8, SeenVerdict::kStale},       //
      {9, 3, 0, 9, SeenVerdict::kAllowed},     // chosen, told, but not applied here yet
      {9, 12, 0, 10, SeenVerdict::kStale},     //
      {0, 3, 5, 4, SeenVerdict::kBelowFloor},  // nothing newer is known, but could have been
      {0, 0, 5, 4, SeenVerdict::kBelowFloor}, {0, 3, 5, 5, SeenVerdict::kAllowed},
      {0, 6, 5, 4, SeenVerdict::kStale},  // below the floor, and newer anyway
      {6, 0, 5, 4, SeenVerdict::kStale},
  };
  for (const Row& row : rows) {
    WriteOrder order;
    if (row.pending != 0) order.NotePending(row.pending, 100, 1);
    AppliedState applied{row.applied == 0 ? 0 : MakeVersion(row.applied, 7), row.floor};
    EXPECT_EQ(order.CheckSeen(96, 8, row.seen, applied), row.expected)
        << "pending " << row.pending << " applied " << row.applied << " floor " << row.floor
        << " seen " << row.seen;
  }
}

TEST(Seen, OnlyOverlappingPendingWritesCount) {
  WriteOrder order;
  AppliedState applied;
  order.NotePending(50, 0, 8);
  order.NotePending(51, 16, 8);
  EXPECT_EQ(order.CheckSeen(8, 8, 10, applied), SeenVerdict::kAllowed);
  EXPECT_EQ(order.CheckSeen(8, 9, 10, applied), SeenVerdict::kStale);
  EXPECT_EQ(order.CheckSeen(7, 1, 10, applied), SeenVerdict::kStale);
}

TEST(Seen, TheAppliedStateIsAskedOnceForTheWholeRangeAndOnlyIfNeeded) {
  WriteOrder order;
  order.NotePending(50, 0, 8);
  int asked = 0;
  const auto applied = [&asked](Lba lba, uint64_t count, Instance seen, bool* known) -> Version {
    ++asked;
    EXPECT_EQ(lba, 8u);
    EXPECT_EQ(count, 4 * kExtentBlocks);
    EXPECT_EQ(seen, 10u);
    *known = true;
    return 0;
  };
  EXPECT_EQ(order.CheckSeen(0, 1, 10, applied), SeenVerdict::kStale);
  EXPECT_EQ(asked, 0);
  EXPECT_EQ(order.CheckSeen(8, 4 * kExtentBlocks, 10, applied), SeenVerdict::kAllowed);
  EXPECT_EQ(asked, 1);
}

// A gateway stalls with a write to block 5; the initiator switches path and writes block 5 through
// another one; then the stalled one goes on.
TEST(Seen, AnOldWriteIsRefusedAtEveryMomentAfterTheNewPathsWriteHasItsPlace) {
  WriteOrder order;
  AppliedState applied;
  const Instance stalled_seen = 20;
  EXPECT_EQ(order.CheckSeen(5, 1, 20, applied), SeenVerdict::kAllowed);  // the new path's
  order.NotePending(21, 5, 1);
  EXPECT_EQ(order.CheckSeen(5, 1, stalled_seen, applied), SeenVerdict::kStale) << "not sent yet";
  applied.newest = MakeVersion(21, 0);
  EXPECT_EQ(order.CheckSeen(5, 1, stalled_seen, applied), SeenVerdict::kStale) << "applied";
  order.Applied(21);
  EXPECT_EQ(order.CheckSeen(5, 1, stalled_seen, applied), SeenVerdict::kStale)
      << "no longer pending";
  applied = {0, 21};  // a checkpoint took the overlay's rows away
  EXPECT_EQ(order.CheckSeen(5, 1, stalled_seen, applied), SeenVerdict::kBelowFloor);
  EXPECT_EQ(order.CheckSeen(5, 1, 21, applied), SeenVerdict::kAllowed) << "after a new seen";
}

// --- The model: a list of what is pending ------------------------------------------------------

struct Pending {
  Instance instance = 0;
  Lba lba = 0;
  uint64_t count = 0;
};

Instance NewestIn(const std::vector<Pending>& list, Lba lba, uint64_t count) {
  Instance newest = 0;
  for (const Pending& p : list) {
    if (p.lba < lba + count && lba < p.lba + p.count) newest = std::max(newest, p.instance);
  }
  return newest;
}

using OrderStep = std::tuple<int, Lba, uint64_t, Instance>;  // what, lba, count, step of instance

RC_GTEST_PROP(WriteOrderModel, AnswersWhatAListOfPendingWritesWould, ()) {
  const auto steps =
      *rc::gen::scale(3, rc::gen::container<std::vector<OrderStep>>(rc::gen::tuple(
                             rc::gen::inRange(0, 10), rc::gen::inRange<Lba>(0, 32),
                             rc::gen::inRange<uint64_t>(1, 12), rc::gen::inRange<Instance>(0, 3))));
  WriteOrder order;
  std::vector<Pending> list;
  Instance instance = 1;
  Instance applied = 0;
  for (const auto& [what, lba, count, step] : steps) {
    if (what < 7) {
      instance = std::max(instance + step, applied + 1);
      const uint64_t blocks = what == 0 ? count * 1'000'000 : count;
      order.NotePending(instance, lba, blocks);
      list.push_back({instance, lba, blocks});
    } else {
      applied = std::min(instance, applied + 1 + step * 2);
      order.Applied(applied);
      std::erase_if(list, [&](const Pending& p) { return p.instance <= applied; });
    }
    RC_ASSERT(order.pending() == list.size());
    for (Lba from = 0; from < 46; ++from) {
      RC_ASSERT(order.Newest(from, 1) == NewestIn(list, from, 1));
      RC_ASSERT(order.Newest(from, count) == NewestIn(list, from, count));
      RC_ASSERT(order.Newest(from, 5'000'000) == NewestIn(list, from, 5'000'000));
      RC_ASSERT(order.HasUnapplied(from, 2) == (NewestIn(list, from, 2) != 0));
    }
  }
  order.Applied(instance);
  RC_ASSERT(!order.HasUnapplied(0, uint64_t{1} << 40));
}

TEST(WriteOrderModel, ALongPipelineStaysTheSame) {
  Rng rng(3);
  WriteOrder order;
  std::vector<Pending> list;
  for (Instance instance = 1; instance <= 20'000; ++instance) {
    const uint64_t operations = rng.Between(1, 3);
    for (uint64_t i = 0; i < operations; ++i) {
      const bool whole = rng.Percent(3);
      const Lba lba = whole ? rng.Below(8) * kExtentBlocks : rng.Below(8 * kExtentBlocks);
      const uint64_t count = whole ? kExtentBlocks : rng.Between(1, 16);
      order.NotePending(instance, lba, count);
      list.push_back({instance, lba, count});
    }
    const Lba lba = rng.Below(8 * kExtentBlocks);
    const uint64_t count = rng.Between(1, 64);
    ASSERT_EQ(order.Newest(lba, count), NewestIn(list, lba, count)) << instance;
    if (instance > 64 && rng.Percent(60)) {
      const Instance applied = instance - rng.Between(1, 64);
      order.Applied(applied);
      std::erase_if(list, [&](const Pending& p) { return p.instance <= applied; });
      ASSERT_EQ(order.pending(), list.size());
    }
  }
}

}  // namespace
}  // namespace hydra
