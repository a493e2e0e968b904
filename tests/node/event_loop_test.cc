// SPDX-License-Identifier: Apache-2.0
#include "daemon/event_loop.h"

#include <time.h>

#include <atomic>
#include <chrono>
#include <thread>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <gtest/gtest.h>

namespace hydra {
namespace {

namespace asio = boost::asio;

constexpr Nanos kLook = 200'000;

Nanos CpuOfThisThread() {
  timespec used{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return used.tv_sec * kSecond + used.tv_nsec;
}

// What a loop that has nothing to do but a timer uses in `length`.
Nanos CpuOfALoop(const BusyWait& wait, Nanos length) {
  asio::io_context io(1);
  asio::steady_timer timer(io, std::chrono::nanoseconds(length));
  timer.async_wait([](const boost::system::error_code&) {});
  asio::post(io, [] {});
  const Nanos before = CpuOfThisThread();
  RunLoop(&io, wait);
  return CpuOfThisThread() - before;
}

TEST(EventLoop, EndsWhenThereIsNoMoreToDo) {
  for (const Nanos at_most : {Nanos{0}, kLook}) {
    asio::io_context io(1);
    int ran = 0;
    asio::post(io, [&] {
      ++ran;
      asio::post(io, [&] { ++ran; });
    });
    RunLoop(&io, {at_most, {}});
    EXPECT_EQ(ran, 2);
  }
}

TEST(EventLoop, EndsWhenItIsStoppedThoughThereIsMore) {
  for (const Nanos at_most : {Nanos{0}, kLook}) {
    asio::io_context io(1);
    const auto work = asio::make_work_guard(io);
    int ran = 0;
    asio::post(io, [&] {
      ++ran;
      io.stop();
      asio::post(io, [&] { ++ran; });
    });
    RunLoop(&io, {at_most, {}});
    EXPECT_EQ(ran, 1);
  }
}

TEST(EventLoop, HearsOtherThreadsWhetherItLooksOrSleeps) {
  for (const Nanos at_most : {Nanos{0}, kLook}) {
    asio::io_context io(1);
    auto work = asio::make_work_guard(io);
    std::atomic<int> ran{0};
    std::thread loop([&] { RunLoop(&io, {at_most, {}}); });
    for (int i = 1; i <= 200; ++i) {
      asio::post(io, [&] { ++ran; });
      while (ran < i) std::this_thread::yield();
    }
    asio::post(io, [&] { work.reset(); });
    loop.join();
    EXPECT_EQ(ran, 200);
  }
}

TEST(EventLoop, AsksBeforeItLooksWhetherThatIsWorthIt) {
  asio::io_context io(1);
  int asked = 0;
  asio::post(io, [] {});
  RunLoop(&io, {kLook, [&] {
                  ++asked;
                  return false;
                }});
  EXPECT_EQ(asked, 1);
}

// However long it has nothing to do, it looks for a moment and sleeps for the rest.
TEST(EventLoop, SleepsWhenNothingComes) {
  constexpr Nanos kLength = 200 * kMillisecond;
  EXPECT_LT(CpuOfALoop({kLook, {}}, kLength), kLength / 4);
  EXPECT_LT(CpuOfALoop({kLook, [] { return false; }}, kLength), kLength / 4);
}

}  // namespace
}  // namespace hydra
