// SPDX-License-Identifier: Apache-2.0
//
// SimClock: the clock of one node (CLOCK_BOOTTIME of a machine whose quartz is not perfect). It
// starts anywhere, runs faster or slower than virtual time by a rate that may change, and never
// goes back until the machine is rebooted.
//
// Rates are in parts per million of virtual time and are kept within `bound_ppm`. Two clocks whose
// rates are both within b differ by a factor of at most (1 + b) / (1 - b): a lease that allows for
// a drift of d between two nodes is safe while that factor is at most 1 + d. Runs that go beyond
// the bound (`wild_ppm`) show what the lease protects: there, stale reads are expected, lost writes
// are not.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "base/rng.h"
#include "tests/sim/scheduler.h"

namespace hydra::sim {

class SimClock final : public Clock {
 public:
  struct Options {
    Nanos start = 0;        // what it shows at virtual time 0: skew
    int64_t bound_ppm = 0;  // ChangeRate stays within +-this
    int64_t wild_ppm = 0;   // if larger: one change in kWildEvery goes up to +-this instead
    uint64_t seed = 1;
  };
  static constexpr unsigned kWildEvery = 4;
  static constexpr int64_t kMillion = 1'000'000;
  // The clock never stands still: nothing would ever time out again.
  static constexpr int64_t kSlowest = -999'000;

  // `scheduler` outlives the clock.
  SimClock(Scheduler* scheduler, NodeId node, const Options& options);
  ~SimClock() override { StopChanging(); }
  SimClock(const SimClock&) = delete;
  SimClock& operator=(const SimClock&) = delete;

  Nanos Now() const override;
  // The first virtual time at which Now() >= local, if the rate stays. A timer set for it may fire
  // too early or too late if the rate changes; whoever sets one looks at Now() again.
  Nanos VirtualTimeOf(Nanos local) const;

  int64_t rate_ppm() const { return rate_ppm_; }
  bool within_bound() const { return max_rate_seen_ <= options_.bound_ppm; }  // so far
  void SetRate(int64_t ppm);
  void ChangeRate();  // to a random one
  // From now on, again and again, after random pauses between these. Until StopChanging.
  void KeepChanging(Nanos shortest, Nanos longest);
  void StopChanging();

  // The machine restarts and its clock shows `start`: the only way back. (Restarting a process
  // changes nothing.)
  void Reboot(Nanos start);

 private:
  void Rebase(Nanos local);

  Scheduler* const scheduler_;
  const NodeId node_;
  const Options options_;
  Rng rng_;
  // Now() = local_ + (virtual now - virtual_) * (1 + rate), rounded down.
  Nanos local_;
  Nanos virtual_;
  int64_t rate_ppm_ = 0;
  int64_t max_rate_seen_ = 0;  // absolute
  EventId change_;
};

}  // namespace hydra::sim
