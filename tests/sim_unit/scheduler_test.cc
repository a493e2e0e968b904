// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/scheduler.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/rng.h"

namespace hydra::sim {
namespace {

TEST(Scheduler, EventsRunByTimeThenInTheOrderTheyWereMade) {
  Scheduler scheduler;
  std::string order;
  scheduler.At(20, {"c"}, [&] { order += "c"; });
  scheduler.At(10, {"a"}, [&] { order += "a"; });
  scheduler.At(20, {"d"}, [&] { order += "d"; });
  scheduler.At(10, {"b"}, [&] { order += "b"; });
  EXPECT_EQ(scheduler.Run(), Scheduler::Stop::kIdle);
  EXPECT_EQ(order, "abcd");
  EXPECT_EQ(scheduler.now(), 20);
  EXPECT_EQ(scheduler.events(), 4u);
}

TEST(Scheduler, AnEventForThePastRunsNowAfterWhatIsDueAlready) {
  Scheduler scheduler;
  std::string order;
  scheduler.At(10, {"a"}, [&] {
    order += "a";
    scheduler.At(3, {"late"}, [&] { order += "l"; });
  });
  scheduler.At(10, {"b"}, [&] { order += "b"; });
  scheduler.Run();
  EXPECT_EQ(order, "abl");
  EXPECT_EQ(scheduler.now(), 10);
}

TEST(Scheduler, ACancelledEventNeverRunsAndItsNameIsNotReused) {
  Scheduler scheduler;
  int ran = 0;
  const EventId first = scheduler.At(10, {"x"}, [&] { ++ran; });
  EXPECT_TRUE(scheduler.Cancel(first));
  EXPECT_FALSE(scheduler.Cancel(first));
  EXPECT_FALSE(scheduler.Cancel(EventId()));
  const EventId second = scheduler.At(10, {"x"}, [&] { ++ran; });  // in the same slot
  EXPECT_EQ(second.slot, first.slot);
  EXPECT_FALSE(scheduler.Cancel(first));
  EXPECT_EQ(scheduler.pending(), 1u);
  scheduler.Run();
  EXPECT_EQ(ran, 1);
  EXPECT_FALSE(scheduler.Cancel(second));
}

TEST(Scheduler, AnEventMayCancelOneOfTheSameTime) {
  Scheduler scheduler;
  bool ran = false;
  EventId victim;
  scheduler.At(5, {"killer"}, [&] { scheduler.Cancel(victim); });
  victim = scheduler.At(5, {"victim"}, [&] { ran = true; });
  scheduler.Run();
  EXPECT_FALSE(ran);
}

TEST(Scheduler, ManyCancelledTimersCostNoMemoryAndChangeNoOrder) {
  Scheduler scheduler;
  std::vector<int> order;
  for (int i = 0; i < 100; ++i) {
    scheduler.At(1'000'000 + i / 3, {"keep"}, [&order, i] { order.push_back(i); });
  }
  for (int i = 0; i < 100'000; ++i) {
    scheduler.Cancel(scheduler.At(2'000'000, {"x"}, [] { FAIL(); }));
  }
  EXPECT_EQ(scheduler.pending(), 100u);
  scheduler.Run();
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

TEST(Scheduler, RunUntilStopsAtTheDeadlineAndMovesTimeThere) {
  Scheduler scheduler;
  int ran = 0;
  scheduler.At(10, {"x"}, [&] { ++ran; });
  scheduler.At(11, {"x"}, [&] { ++ran; });
  EXPECT_EQ(scheduler.RunUntil(10), Scheduler::Stop::kDeadline);
  EXPECT_EQ(ran, 1);
  EXPECT_EQ(scheduler.RunUntil(500), Scheduler::Stop::kDeadline);
  EXPECT_EQ(ran, 2);
  EXPECT_EQ(scheduler.now(), 500);
}

TEST(Scheduler, AnEventMayAskToStop) {
  Scheduler scheduler;
  int ran = 0;
  scheduler.At(1, {"x"}, [&] { scheduler.RequestStop(); });
  scheduler.At(1, {"x"}, [&] { ++ran; });
  EXPECT_EQ(scheduler.RunUntil(10), Scheduler::Stop::kAsked);
  EXPECT_EQ(ran, 0);
  EXPECT_EQ(scheduler.RunUntil(10), Scheduler::Stop::kDeadline);
  EXPECT_EQ(ran, 1);
}

TEST(Scheduler, ALoopThatTakesNoTimeIsFound) {
  Scheduler scheduler({.events_at_one_time = 100});
  std::function<void()> again = [&] { scheduler.After(0, {"again"}, again); };
  scheduler.At(5, {"again"}, again);
  EXPECT_EQ(scheduler.RunUntil(10), Scheduler::Stop::kStandstill);
  EXPECT_EQ(scheduler.now(), 5);
}

TEST(Scheduler, AnEndlessRunIsFound) {
  Scheduler scheduler({.events = 1000});
  std::function<void()> again = [&] { scheduler.After(1, {"again"}, again); };
  scheduler.After(1, {"again"}, again);
  const Scheduler::Stop stop = scheduler.Run();
  EXPECT_EQ(stop, Scheduler::Stop::kEvents);
  EXPECT_TRUE(Scheduler::IsLimit(stop));
  EXPECT_FALSE(Scheduler::IsLimit(Scheduler::Stop::kAsked));
}

TEST(Scheduler, TooMuchToDoIsFound) {
  Scheduler scheduler({.pending = 10});
  std::function<void()> more = [&] {
    scheduler.After(1, {"more"}, more);
    scheduler.After(1, {"more"}, more);
  };
  scheduler.After(1, {"more"}, more);
  EXPECT_EQ(scheduler.Run(), Scheduler::Stop::kPending);
}

uint64_t HashOfRun(uint64_t seed, std::vector<std::string>* text) {
  Scheduler scheduler;
  if (text != nullptr) {
    scheduler.trace().SetSink([text](const std::string& line) { text->push_back(line); });
  }
  Rng rng(seed);
  std::function<void()> step = [&] {
    const auto node = static_cast<NodeId>(rng.Between(1, 3));
    scheduler.Note({"note", node, rng.Below(10), 0}, "detail");
    scheduler.After(static_cast<Nanos>(rng.Below(100)), {"step", node, rng.Next(), 1}, step);
  };
  scheduler.After(0, {"step"}, step);
  scheduler.RunUntil(10'000);
  return scheduler.trace().hash();
}

TEST(Trace, TheSameRunHasTheSameHashWithTextOrWithout) {
  std::vector<std::string> text;
  EXPECT_EQ(HashOfRun(7, nullptr), HashOfRun(7, &text));
  EXPECT_NE(HashOfRun(7, nullptr), HashOfRun(8, nullptr));
  EXPECT_GT(text.size(), 100u);
  std::vector<std::string> again;
  HashOfRun(7, &again);
  EXPECT_EQ(text, again);
}

TEST(Trace, EveryPartOfAnEventCounts) {
  const auto hash = [](Nanos time, const Label& label) {
    Trace trace;
    trace.Add(time, label);
    return trace.hash();
  };
  const uint64_t base = hash(1, {"what", 2, 3, 4});
  EXPECT_EQ(base, hash(1, {"what", 2, 3, 4}));
  EXPECT_NE(base, hash(2, {"what", 2, 3, 4}));
  EXPECT_NE(base, hash(1, {"whaT", 2, 3, 4}));
  EXPECT_NE(base, hash(1, {"what", 1, 3, 4}));
  EXPECT_NE(base, hash(1, {"what", 2, 4, 4}));
  EXPECT_NE(base, hash(1, {"what", 2, 3, 5}));
  EXPECT_NE(base, hash(1, {"what", 2, 4, 3}));
}

TEST(Trace, AHashIsOfWhatALiteralSaysNotOfWhereItIs) {
  const std::string copy = "what happened, at length";
  Trace a;
  Trace b;
  a.Add(1, {"what happened, at length", 1, 2, 3});
  b.Add(1, {copy.c_str(), 1, 2, 3});
  EXPECT_EQ(a.hash(), b.hash());
}

TEST(Trace, TheTailIsTheEnd) {
  Trace trace;
  for (uint64_t i = 0; i < Trace::kTail + 10; ++i) trace.Add(1, {"event", 1, i, 0});
  const std::string tail = trace.Tail();
  EXPECT_EQ(tail.find("event 9 "), std::string::npos);
  EXPECT_NE(tail.find("event 10 "), std::string::npos);
  EXPECT_NE(tail.find("event 265 "), std::string::npos);
  EXPECT_LT(tail.find("event 10 "), tail.find("event 265 "));
}

}  // namespace
}  // namespace hydra::sim
