// SPDX-License-Identifier: Apache-2.0
#include "daemon/range_locks.h"

#include <algorithm>
#include <deque>
#include <map>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

namespace hydra {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Answer = RangeLocks::Answer;

TEST(RangeLocks, DisjointRangesDoNotWait) {
  RangeLocks locks;
  EXPECT_EQ(locks.Acquire(1, 0, 8), Answer::kGranted);
  EXPECT_EQ(locks.Acquire(2, 8, 8), Answer::kGranted);
  EXPECT_EQ(locks.Acquire(3, ~uint64_t{0} - 8, 8), Answer::kGranted);
  EXPECT_TRUE(locks.Holds(1) && locks.Holds(2) && locks.Holds(3));
}

TEST(RangeLocks, OneBlockInCommonIsEnoughToWait) {
  RangeLocks locks;
  EXPECT_EQ(locks.Acquire(1, 10, 5), Answer::kGranted);
  EXPECT_EQ(locks.Acquire(2, 14, 10), Answer::kQueued);
  EXPECT_EQ(locks.Acquire(3, 0, 11), Answer::kQueued);
  EXPECT_FALSE(locks.Holds(2));
  EXPECT_THAT(locks.Release(1), ElementsAre(2, 3));
  EXPECT_TRUE(locks.Holds(2) && locks.Holds(3));
}

TEST(RangeLocks, WaitersAreServedInTheOrderOfArrival) {
  RangeLocks locks;
  EXPECT_EQ(locks.Acquire(1, 0, 1), Answer::kGranted);
  for (RangeLocks::Ticket ticket : {5, 3, 9})
    EXPECT_EQ(locks.Acquire(ticket, 0, 1), Answer::kQueued);
  EXPECT_THAT(locks.Release(1), ElementsAre(5));
  EXPECT_THAT(locks.Release(5), ElementsAre(3));
  EXPECT_THAT(locks.Release(3), ElementsAre(9));
  EXPECT_THAT(locks.Release(9), IsEmpty());
  EXPECT_EQ(locks.size(), 0u);
}

TEST(RangeLocks, AWideWaiterIsNotOvertakenByNarrowOnes) {
  RangeLocks locks;
  EXPECT_EQ(locks.Acquire(1, 0, 1), Answer::kGranted);
  EXPECT_EQ(locks.Acquire(2, 0, 100), Answer::kQueued);
  EXPECT_EQ(locks.Acquire(3, 50, 1), Answer::kQueued) << "nobody holds block 50, but 2 is before";
  EXPECT_THAT(locks.Release(1), ElementsAre(2));
  EXPECT_THAT(locks.Release(2), ElementsAre(3));
}

TEST(RangeLocks, AWaiterMayGiveUp) {
  RangeLocks locks;
  EXPECT_EQ(locks.Acquire(1, 0, 10), Answer::kGranted);
  EXPECT_EQ(locks.Acquire(2, 5, 10), Answer::kQueued);
  EXPECT_EQ(locks.Acquire(3, 12, 10), Answer::kQueued);
  EXPECT_THAT(locks.Release(2), ElementsAre(3)) << "3 overlaps only 2";
  EXPECT_THAT(locks.Release(1), IsEmpty());
}

TEST(RangeLocks, ReleasingWhatIsNotKnownChangesNothing) {
  RangeLocks locks;
  EXPECT_EQ(locks.Acquire(1, 0, 10), Answer::kGranted);
  EXPECT_EQ(locks.Acquire(2, 0, 10), Answer::kQueued);
  EXPECT_THAT(locks.Release(7), IsEmpty());
  EXPECT_TRUE(locks.Holds(1));
  EXPECT_FALSE(locks.Holds(2));
}

TEST(RangeLocks, ARangeIsFreeOnlyIfNobodyHoldsItOrWaitsForIt) {
  RangeLocks locks;
  EXPECT_TRUE(locks.IsFree(0, 1000));
  EXPECT_EQ(locks.Acquire(1, 10, 10), Answer::kGranted);
  EXPECT_EQ(locks.Acquire(2, 15, 10), Answer::kQueued);
  EXPECT_FALSE(locks.IsFree(0, 11));
  EXPECT_FALSE(locks.IsFree(24, 1));
  EXPECT_TRUE(locks.IsFree(0, 10));
  EXPECT_TRUE(locks.IsFree(25, 10));
}

TEST(RangeLocks, TooManyAreRefusedWithNothingNoted) {
  RangeLocks locks;
  for (size_t i = 0; i < RangeLocks::kMaxLocks; ++i) {
    EXPECT_EQ(locks.Acquire(i, i, 1), Answer::kGranted);
  }
  EXPECT_EQ(locks.Acquire(9999, 5000, 1), Answer::kBusy);
  EXPECT_EQ(locks.size(), RangeLocks::kMaxLocks);
  EXPECT_TRUE(locks.IsFree(5000, 1));
  EXPECT_THAT(locks.Release(3), IsEmpty());
  EXPECT_EQ(locks.Acquire(9999, 5000, 1), Answer::kGranted);
}

TEST(RangeLocks, LosingMastershipReturnsEveryTicketOnce) {
  RangeLocks locks;
  for (RangeLocks::Ticket ticket : {4, 2, 8}) (void)locks.Acquire(ticket, 0, 1);
  EXPECT_THAT(locks.Clear(), ElementsAre(4, 2, 8));
  EXPECT_THAT(locks.Clear(), IsEmpty());
  EXPECT_THAT(locks.Release(4), IsEmpty());
  EXPECT_EQ(locks.Acquire(4, 0, 1), Answer::kGranted);
}

TEST(RangeLocksDeathTest, EmptyAndOverflowingRangesAndReusedTicketsAreBugs) {
  RangeLocks locks;
  EXPECT_DEATH((void)locks.Acquire(1, 0, 0), "check failed");
  EXPECT_DEATH((void)locks.Acquire(1, 2, ~uint64_t{0}), "check failed");
  ASSERT_EQ(locks.Acquire(1, 0, 1), Answer::kGranted);
  EXPECT_DEATH((void)locks.Acquire(1, 5, 1), "check failed");
}

// --- The model: who came when; a lock is held if nothing before it overlaps ---------------------

struct Waiting {
  RangeLocks::Ticket ticket = 0;
  Lba lba = 0;
  uint64_t count = 0;
};

bool Overlap(const Waiting& a, const Waiting& b) {
  return a.lba < b.lba + b.count && b.lba < a.lba + a.count;
}

class LockModel {
 public:
  bool Held(size_t at) const {
    return std::none_of(list.begin(), list.begin() + static_cast<ptrdiff_t>(at),
                        [&](const Waiting& earlier) { return Overlap(earlier, list[at]); });
  }

  std::vector<RangeLocks::Ticket> AllHeld() const {
    std::vector<RangeLocks::Ticket> held;
    for (size_t i = 0; i < list.size(); ++i) {
      if (Held(i)) held.push_back(list[i].ticket);
    }
    return held;
  }

  // Those that become held.
  std::vector<RangeLocks::Ticket> Remove(size_t at) {
    std::vector<RangeLocks::Ticket> before = AllHeld();
    list.erase(list.begin() + static_cast<ptrdiff_t>(at));
    std::vector<RangeLocks::Ticket> granted;
    for (const RangeLocks::Ticket ticket : AllHeld()) {
      if (std::find(before.begin(), before.end(), ticket) == before.end()) {
        granted.push_back(ticket);
      }
    }
    return granted;
  }

  std::vector<Waiting> list;
};

using LockStep = std::tuple<bool, Lba, uint64_t, size_t>;  // acquire, lba, count, whom to release

RC_GTEST_PROP(RangeLocksModel, LocksExcludeAreFifoAndAllGrantedInTheEnd, ()) {
  const auto steps = *rc::gen::container<std::vector<LockStep>>(rc::gen::tuple(
      rc::gen::weightedElement<bool>({{3, true}, {2, false}}), rc::gen::inRange<Lba>(0, 24),
      rc::gen::inRange<uint64_t>(1, 9), rc::gen::inRange<size_t>(0, 1000)));
  RangeLocks locks;
  LockModel model;
  RangeLocks::Ticket next = 1;
  const auto release = [&](size_t at) {
    const RangeLocks::Ticket ticket = model.list[at].ticket;
    const auto expected = model.Remove(at);
    RC_ASSERT(locks.Release(ticket) == expected);
  };
  for (const auto& [acquire, lba, count, whom] : steps) {
    if (acquire) {
      model.list.push_back({next, lba, count});
      const bool held = model.Held(model.list.size() - 1);
      RC_ASSERT(locks.Acquire(next++, lba, count) == (held ? Answer::kGranted : Answer::kQueued));
    } else if (!model.list.empty()) {
      release(whom % model.list.size());
    }
    RC_ASSERT(locks.size() == model.list.size());
    for (size_t i = 0; i < model.list.size(); ++i) {
      RC_ASSERT(locks.Holds(model.list[i].ticket) == model.Held(i));
      for (size_t j = 0; j < i; ++j) {
        RC_ASSERT(!Overlap(model.list[i], model.list[j]) || !locks.Holds(model.list[i].ticket));
      }
    }
  }
  // Whoever holds a lock releases it, in any order: nobody is left waiting.
  size_t pick = steps.size();
  while (!model.list.empty()) {
    std::vector<size_t> held;
    for (size_t i = 0; i < model.list.size(); ++i) {
      if (locks.Holds(model.list[i].ticket)) held.push_back(i);
    }
    RC_ASSERT(!held.empty());
    release(held[pick++ % held.size()]);
  }
  RC_ASSERT(locks.size() == 0u);
}

}  // namespace
}  // namespace hydra
