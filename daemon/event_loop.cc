// SPDX-License-Identifier: Apache-2.0
#include "daemon/event_loop.h"

#include <sched.h>

namespace hydra {
namespace {

// A yield that takes longer than this let somebody work. To another thread that looks, and back,
// takes less.
constexpr Nanos kWanted = 8 * kMicrosecond;
// ... and one that takes this long, somebody who has much to do. (What nodes and clients do for one
// request takes less: they take turns with whoever looks.) Then it does not look for a while: at
// most one slice of time in this much is lost by looking.
constexpr Nanos kCrowded = 500 * kMicrosecond;
constexpr Nanos kPause = 10 * kMillisecond;
// A turn has so many events at most, and begins none after this time: sockets may have more to say
// at every look, and a megabyte at a time.
constexpr int kTurnEvents = 64;
constexpr Nanos kTurnTime = 200 * kMicrosecond;

class Loop {
 public:
  Loop(boost::asio::io_context* io, const BusyWait& wait)
      : io_(io), wait_(wait), clock_(wait.clock != nullptr ? *wait.clock : real_clock_) {}

  // All that is there, within limits.
  void Turn() {
    const Nanos until = clock_.Now() + kTurnTime;
    for (int events = 0; events < kTurnEvents && io_->poll_one() > 0; ++events) {
      if (clock_.Now() >= until) break;
    }
    if (wait_.turn_ends) wait_.turn_ends();
  }

  // Whether something came; the first of it was handled.
  bool Look() {
    Nanos now = clock_.Now();
    if (now < paused_until_ || (wait_.worth && !wait_.worth())) return false;
    const Nanos until = now + wait_.at_most;
    while (now < until && !io_->stopped()) {
      if (io_->poll_one() > 0) return true;
      const Nanos before = clock_.Now();
      wait_.yield ? wait_.yield() : static_cast<void>(sched_yield());
      now = clock_.Now();
      if (now - before >= kCrowded) paused_until_ = now + kPause;
      if (now - before > kWanted) return false;
    }
    return false;
  }

 private:
  boost::asio::io_context* const io_;
  const BusyWait& wait_;
  const RealClock real_clock_;
  const Clock& clock_;
  Nanos paused_until_ = 0;
};

}  // namespace

void RunLoop(boost::asio::io_context* io, const BusyWait& wait) {
  Loop loop(io, wait);
  while (io->run_one() > 0) {
    do {
      loop.Turn();
    } while (wait.at_most > 0 && loop.Look());
  }
}

}  // namespace hydra
