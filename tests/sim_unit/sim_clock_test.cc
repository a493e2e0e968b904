// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/sim_clock.h"

#include <string>

#include <gtest/gtest.h>

#include "tests/sim/node_gate.h"

namespace hydra::sim {
namespace {

TEST(SimClock, ShowsSkewAndRunsAtItsRate) {
  Scheduler scheduler;
  SimClock clock(&scheduler, 1, {.start = 5 * kSecond, .bound_ppm = 100'000});
  EXPECT_EQ(clock.Now(), 5 * kSecond);
  scheduler.RunUntil(kSecond);
  EXPECT_EQ(clock.Now(), 6 * kSecond);
  clock.SetRate(100'000);
  scheduler.RunUntil(2 * kSecond);
  EXPECT_EQ(clock.Now(), 7 * kSecond + kSecond / 10);
  clock.SetRate(-100'000);
  scheduler.RunUntil(3 * kSecond);
  EXPECT_EQ(clock.Now(), 8 * kSecond);
}

TEST(SimClock, NeverGoesBackHoweverItsRateChanges) {
  Scheduler scheduler;
  SimClock clock(&scheduler, 1, {.start = 0, .bound_ppm = 100'000, .wild_ppm = 900'000, .seed = 3});
  clock.KeepChanging(1, 2'000);
  Nanos last = clock.Now();
  int changes = 0;
  int64_t rate = clock.rate_ppm();
  for (Nanos t = 0; t < 1'000'000; t += 7) {
    scheduler.RunUntil(t);
    ASSERT_GE(clock.Now(), last);
    last = clock.Now();
    changes += clock.rate_ppm() != rate ? 1 : 0;
    rate = clock.rate_ppm();
  }
  EXPECT_GT(changes, 100);
  EXPECT_GT(last, 1'000'000 / 10);
}

TEST(SimClock, StaysWithinItsBoundAndReachesIt) {
  Scheduler scheduler;
  SimClock clock(&scheduler, 1, {.bound_ppm = 50'000, .seed = 9});
  int64_t highest = 0;
  int64_t lowest = 0;
  for (int i = 0; i < 1000; ++i) {
    clock.ChangeRate();
    highest = std::max(highest, clock.rate_ppm());
    lowest = std::min(lowest, clock.rate_ppm());
  }
  EXPECT_EQ(highest, 50'000);
  EXPECT_EQ(lowest, -50'000);
  EXPECT_TRUE(clock.within_bound());
}

TEST(SimClock, AWildClockLeavesItsBoundAndSaysSo) {
  Scheduler scheduler;
  SimClock clock(&scheduler, 1, {.bound_ppm = 50'000, .wild_ppm = 300'000, .seed = 9});
  EXPECT_TRUE(clock.within_bound());
  for (int i = 0; i < 100; ++i) clock.ChangeRate();
  EXPECT_FALSE(clock.within_bound());
  clock.SetRate(0);
  EXPECT_FALSE(clock.within_bound());
}

TEST(SimClock, KnowsWhenItWillShowATime) {
  Scheduler scheduler;
  for (const int64_t rate : {0, 1, -1, 99'999, -100'000, 333'333, -999'000}) {
    SimClock clock(&scheduler, 1, {.start = 17, .bound_ppm = 0});
    clock.SetRate(rate);
    const Nanos local = clock.Now() + 1'234'567;
    const Nanos when = clock.VirtualTimeOf(local);
    scheduler.RunUntil(when - 1);
    EXPECT_LT(clock.Now(), local) << rate;
    scheduler.RunUntil(when);
    EXPECT_GE(clock.Now(), local) << rate;
    EXPECT_LE(clock.VirtualTimeOf(clock.Now() - 5), scheduler.now());
  }
}

TEST(SimClock, OnlyARebootTurnsItBack) {
  Scheduler scheduler;
  SimClock clock(&scheduler, 1, {.start = kSecond});
  scheduler.RunUntil(kSecond);
  clock.Reboot(3);
  EXPECT_EQ(clock.Now(), 3);
  scheduler.RunUntil(kSecond + 10);
  EXPECT_EQ(clock.Now(), 13);
}

TEST(SimClock, ChangesStopWhenTold) {
  Scheduler scheduler;
  SimClock clock(&scheduler, 1, {.bound_ppm = 1000});
  clock.KeepChanging(10, 20);
  scheduler.RunUntil(1000);
  clock.StopChanging();
  EXPECT_EQ(scheduler.Run(), Scheduler::Stop::kIdle);
  EXPECT_EQ(scheduler.now(), 1000);
}

// --- NodeGate ------------------------------------------------------------------------------------

TEST(NodeGate, APausedNodeDoesNothingAndThenEverythingInOrderWhileItsClockGoesOn) {
  Scheduler scheduler;
  SimClock clock(&scheduler, 1, {});
  NodeGate gate(&scheduler, 1);
  gate.Start();
  std::string done;
  gate.After(10, {"a"}, [&] { done += "a"; });
  gate.After(20, {"b"}, [&] { done += "b"; });
  gate.After(30, {"c"}, [&] { done += "c"; });
  gate.Do([&] { done += "0"; });
  EXPECT_EQ(done, "0");
  scheduler.RunUntil(15);
  gate.Pause();
  scheduler.RunUntil(1000);
  EXPECT_EQ(done, "0a");
  EXPECT_EQ(gate.waiting(), 2u);
  EXPECT_EQ(clock.Now(), 1000);
  gate.Resume();
  EXPECT_EQ(done, "0abc");
}

TEST(NodeGate, WhatWasMeantForAFormerLifeIsGone) {
  Scheduler scheduler;
  NodeGate gate(&scheduler, 1);
  std::string done;
  gate.Do([&] { done += "dead"; });
  gate.Start();
  gate.After(10, {"old"}, [&] { done += "old"; });
  const std::function<void()> completion = gate.InThisLife([&] { done += "old"; });
  gate.Pause();
  gate.Do([&] { done += "waiting"; });
  gate.Die();
  EXPECT_FALSE(gate.Offer([&] { done += "dead"; }));
  gate.Start();
  completion();
  gate.After(10, {"new"}, [&] { done += "new"; });
  scheduler.Run();
  EXPECT_EQ(done, "new");
  EXPECT_EQ(gate.life(), 2u);
}

TEST(NodeGate, ResumingStopsWhenTheWorkPausesOrKillsTheNode) {
  Scheduler scheduler;
  NodeGate gate(&scheduler, 1);
  gate.Start();
  gate.Pause();
  std::string done;
  gate.Do([&] {
    done += "a";
    gate.Pause();
  });
  gate.Do([&] {
    done += "b";
    gate.Do([&] { done += "d"; });
  });
  gate.Do([&] {
    done += "c";
    gate.Die();
  });
  gate.Resume();
  EXPECT_EQ(done, "a");
  gate.Resume();
  EXPECT_EQ(done, "abc");
  EXPECT_EQ(gate.waiting(), 0u);
}

TEST(NodeGate, APausedNodeLosesMessagesAtItsLimitButNothingElse) {
  Scheduler scheduler;
  NodeGate gate(&scheduler, 1);
  gate.Start();
  gate.Pause();
  size_t done = 0;
  for (size_t i = 0; i < NodeGate::kMaxWaiting; ++i) ASSERT_TRUE(gate.Offer([&] { ++done; }));
  EXPECT_FALSE(gate.Offer([&] { ++done; }));
  gate.Do([&] { ++done; });
  gate.Resume();
  EXPECT_EQ(done, NodeGate::kMaxWaiting + 1);
}

}  // namespace
}  // namespace hydra::sim
