// SPDX-License-Identifier: Apache-2.0
#include "daemon/event_loop.h"

#include <sched.h>

namespace hydra {
namespace {

// Who gets the processor back only after this much has let somebody else do real work on it; to a
// thread that looks as well, and back, takes less.
constexpr Nanos kWanted = 8'000;

// Whether something came, and was handled.
bool Look(boost::asio::io_context* io, Nanos at_most) {
  const RealClock clock;
  const Nanos until = clock.Now() + at_most;
  for (Nanos now = 0; now < until && !io->stopped();) {
    if (io->poll() > 0) return true;
    const Nanos before = clock.Now();
    sched_yield();
    now = clock.Now();
    if (now - before > kWanted) return false;
  }
  return false;
}

}  // namespace

void RunLoop(boost::asio::io_context* io, const BusyWait& wait) {
  while (io->run_one() > 0) {
    while (io->poll() > 0) {
    }
    if (wait.at_most == 0) continue;
    while ((!wait.worth || wait.worth()) && Look(io, wait.at_most)) {
    }
  }
}

}  // namespace hydra
