// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include <boost/asio/io_context.hpp>

#include "base/clock.h"

namespace hydra {

// How long a thread that has just done something looks for more before it sleeps. To wake a
// processor that sleeps takes as long as most of what a node does for a read (35 us in a virtual
// machine), and a read crosses threads and processes four times.
struct BusyWait {
  Nanos at_most = 0;                 // 0: not at all
  std::function<bool()> worth = {};  // asked, on the thread, before it looks; empty: always
  // Called on the thread at the end of a turn: when all that was there has been handled, or much of
  // it, before it looks or sleeps, and once after a stop. What is to happen in another turn has to
  // be posted, to an io_context that has other work as well. Empty: nothing.
  std::function<void()> turn_ends = {};

  // For tests; null and empty: the real ones.
  const Clock* clock = nullptr;
  std::function<void()> yield = {};  // lets whoever else wants the processor have it
};

// Runs `io` on this thread until it is stopped or has no more to do, like io->run(). Looks only as
// long as nobody else wants the processor. Where somebody has much to do on it, a thread that
// yields may wait for a whole slice of time, in which a sleeper would have been woken: so it then
// does not look again for a while.
void RunLoop(boost::asio::io_context* io, const BusyWait& wait);

}  // namespace hydra
