// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/sim_clock.h"

#include <algorithm>

#include "base/check.h"

namespace hydra::sim {

SimClock::SimClock(Scheduler* scheduler, NodeId node, const Options& options)
    : scheduler_(scheduler),
      node_(node),
      options_(options),
      rng_(options.seed),
      local_(options.start),
      virtual_(scheduler->now()) {
  HYDRA_CHECK(options.bound_ppm >= 0 && -options.bound_ppm >= kSlowest);
  HYDRA_CHECK(-options.wild_ppm >= kSlowest);
}

Nanos SimClock::Now() const {
  const __int128 passed = scheduler_->now() - virtual_;
  return local_ + static_cast<Nanos>(passed * (kMillion + rate_ppm_) / kMillion);
}

Nanos SimClock::VirtualTimeOf(Nanos local) const {
  if (local <= local_) return virtual_;
  const __int128 missing = local - local_;
  const __int128 speed = kMillion + rate_ppm_;
  return virtual_ + static_cast<Nanos>((missing * kMillion + speed - 1) / speed);
}

void SimClock::SetRate(int64_t ppm) {
  HYDRA_CHECK(ppm >= kSlowest);
  Rebase(Now());
  rate_ppm_ = ppm;
  max_rate_seen_ = std::max(max_rate_seen_, ppm < 0 ? -ppm : ppm);
  scheduler_->Note({"clock rate", node_, static_cast<uint64_t>(kMillion + ppm), 0});
}

void SimClock::ChangeRate() {
  const bool wild = options_.wild_ppm > options_.bound_ppm && rng_.Below(kWildEvery) == 0;
  const int64_t most = wild ? options_.wild_ppm : options_.bound_ppm;
  // Often at the very edge: that is where an argument about bounds breaks.
  if (rng_.Percent(30)) return SetRate(rng_.Percent(50) ? most : -most);
  SetRate(static_cast<int64_t>(rng_.Between(0, static_cast<uint64_t>(2 * most))) - most);
}

void SimClock::KeepChanging(Nanos shortest, Nanos longest) {
  HYDRA_CHECK(0 < shortest && shortest <= longest);
  StopChanging();
  const Nanos pause = static_cast<Nanos>(
      rng_.Between(static_cast<uint64_t>(shortest), static_cast<uint64_t>(longest)));
  change_ = scheduler_->After(pause, {"clock change", node_}, [this, shortest, longest] {
    ChangeRate();
    KeepChanging(shortest, longest);
  });
}

void SimClock::StopChanging() { scheduler_->Cancel(change_); }

void SimClock::Reboot(Nanos start) {
  Rebase(start);
  scheduler_->Note({"clock reboot", node_, static_cast<uint64_t>(start), 0});
}

void SimClock::Rebase(Nanos local) {
  local_ = local;
  virtual_ = scheduler_->now();
}

}  // namespace hydra::sim
