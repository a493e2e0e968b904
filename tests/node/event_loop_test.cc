// SPDX-License-Identifier: Apache-2.0
#include "daemon/event_loop.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <gtest/gtest.h>

namespace hydra {
namespace {

namespace asio = boost::asio;

// Far longer than to look takes in real time, where the clock is moved by yields alone.
constexpr std::chrono::milliseconds kAsleep(200);

class EventLoopTest : public testing::Test {
 protected:
  EventLoopTest() {
    wait_.at_most = 50 * kMicrosecond;
    wait_.clock = &clock_;
    wait_.yield = [this] {
      ++yields_;
      clock_.Advance(yield_takes_);
      if (yields_ == post_at_) asio::post(io_, [this] { came_at_ = yields_; });
      if (yields_ == stop_at_) io_.stop();
    };
  }

  // Handles one event, then `then` in turn, each when it has slept for a while.
  void Run(std::vector<std::function<void()>> then = {}) {
    then.push_back([this] { io_.stop(); });
    asio::steady_timer timer(io_);
    const std::function<void(size_t)> next = [&](size_t step) {
      timer.expires_after(kAsleep);
      timer.async_wait([&, step](const boost::system::error_code&) {
        if (step + 1 < then.size()) next(step + 1);
        then[step]();
      });
    };
    next(0);
    asio::post(io_, [] {});
    RunLoop(&io_, wait_);
  }

  asio::io_context io_{1};
  ManualClock clock_;
  BusyWait wait_;
  Nanos yield_takes_ = 1 * kMicrosecond;
  int post_at_ = 0;  // at that yield
  int stop_at_ = 0;
  int yields_ = 0;
  int came_at_ = 0;
};

TEST_F(EventLoopTest, LooksForAsLongAsItMayAndThenSleeps) {
  Run();
  EXPECT_EQ(yields_, 50);
}

TEST_F(EventLoopTest, HandlesWhatComesWhileItLooksAndLooksOn) {
  post_at_ = 3;
  Run();
  EXPECT_EQ(came_at_, 3);
  EXPECT_EQ(yields_, 3 + 50);
}

TEST_F(EventLoopTest, SleepsWhenTheProcessorIsWantedAndLooksAgainAfterTheNextEvent) {
  yield_takes_ = 9 * kMicrosecond;
  Run({[&] { EXPECT_EQ(yields_, 1); }, [&] { EXPECT_EQ(yields_, 2); }});
}

TEST_F(EventLoopTest, LooksNoMoreForAWhileWhereTheProcessorIsCrowded) {
  yield_takes_ = 500 * kMicrosecond;
  Run({[&] { EXPECT_EQ(yields_, 1); },
       [&] {
         EXPECT_EQ(yields_, 1);
         clock_.Advance(10 * kMillisecond);
       },
       [&] { EXPECT_EQ(yields_, 2); }});
}

TEST_F(EventLoopTest, SleepsAtOnceWhereToLookIsNotWorthIt) {
  wait_.worth = [] { return false; };
  Run();
  EXPECT_EQ(yields_, 0);
}

TEST_F(EventLoopTest, NeverLooksIfTold) {
  wait_.at_most = 0;
  Run();
  EXPECT_EQ(yields_, 0);
}

TEST_F(EventLoopTest, EndsWhenItIsStoppedWhileItLooks) {
  stop_at_ = 7;
  Run();
  EXPECT_EQ(yields_, 7);
}

TEST_F(EventLoopTest, EndsWhenThereIsNoMoreToDo) {
  int ran = 0;
  asio::post(io_, [&] {
    ++ran;
    asio::post(io_, [&] { ++ran; });
  });
  RunLoop(&io_, wait_);
  EXPECT_EQ(ran, 2);
}

TEST_F(EventLoopTest, EndsATurnWhenAllThatWasThereIsHandledAndBeforeItLooks) {
  const auto work = asio::make_work_guard(io_);
  int handled = 0;
  std::vector<int> turns;
  wait_.turn_ends = [&] {
    EXPECT_EQ(yields_, 0);
    turns.push_back(handled);
    if (turns.size() == 1) asio::post(io_, [&] { ++handled; });  // for the next
    if (turns.size() == 2) io_.stop();
  };
  for (int i = 0; i < 5; ++i) asio::post(io_, [&] { ++handled; });
  RunLoop(&io_, wait_);
  EXPECT_EQ(turns, (std::vector<int>{5, 6}));
}

TEST_F(EventLoopTest, TurnsEndWhetherItLooksOrNotAndHoweverMuchThereIs) {
  for (const Nanos at_most : {Nanos{0}, wait_.at_most}) {
    asio::io_context io(1);
    int handled = 0;
    int turns = 0;
    const std::function<void()> again = [&] {
      ++handled;
      asio::post(io, again);
    };
    asio::post(io, again);
    RunLoop(&io, {.at_most = at_most, .turn_ends = [&] {
                    if (++turns == 3) io.stop();
                  }});
    EXPECT_EQ(turns, 3);
    EXPECT_LE(handled, 3 * 100);
  }
}

TEST_F(EventLoopTest, ATurnOfLongEventsEndsEarlier) {
  int handled = 0;
  int at_end = 0;
  for (int i = 0; i < 10; ++i) {
    asio::post(io_, [&] {
      ++handled;
      clock_.Advance(100 * kMicrosecond);
    });
  }
  wait_.turn_ends = [&] {
    if (at_end == 0) at_end = handled;
  };
  RunLoop(&io_, wait_);
  EXPECT_EQ(at_end, 3);
  EXPECT_EQ(handled, 10);
}

TEST(EventLoop, HearsOtherThreadsWhetherItLooksOrSleeps) {
  for (const Nanos at_most : {Nanos{0}, 200 * kMicrosecond}) {
    asio::io_context io(1);
    auto work = asio::make_work_guard(io);
    std::atomic<int> ran{0};
    std::thread loop([&] { RunLoop(&io, {.at_most = at_most}); });
    for (int i = 0; i < 200; ++i) {
      asio::post(io, [&] {
        ++ran;
        ran.notify_one();
      });
      ran.wait(i);
    }
    asio::post(io, [&] { work.reset(); });
    loop.join();
    EXPECT_EQ(ran, 200);
  }
}

}  // namespace
}  // namespace hydra
