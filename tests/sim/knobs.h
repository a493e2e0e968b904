// SPDX-License-Identifier: Apache-2.0
//
// Knobs: what kind of cluster a seed is about.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "base/rng.h"
#include "blockstore/engine.h"
#include "daemon/node_core.h"
#include "paxos/lease_table.h"
#include "tests/sim/trace.h"

namespace hydra::sim {

// A little of everything rarely adds up to what one kind of trouble needs to do harm, so a run has
// a taste: anything, masters that should not serve any more, or disks.
enum class Taste { kMixed, kPolitics, kStorage };

// What a seed draws once.
struct Knobs {
  Taste taste = Taste::kMixed;
  unsigned nodes = 3;
  unsigned groups = 2;
  unsigned replicas = 3;
  uint64_t segment_bytes = 512 * 1024;
  uint64_t capacity_bytes = 0;
  Nanos tick = 10 * kMillisecond;
  Nanos disk_latency = 100'000;
  NodeId slow_disk = 0;  // if not 0: this node's is slower
  unsigned lose_percent = 40;
  unsigned garble_percent = 20;
  EngineOptions engine;
  paxos::LeaseTable::Options leases;
  Shard::Options shard;
  uint64_t recovery_rate = 0;  // bytes per second; 0: no limit
  bool bare = false;           // installs leave payload out
  int64_t drift_ppm = 0;
  unsigned duplicate_permille = 0;  // of messages, in any weather
  unsigned hold_percent = 30;       // of messages at a cut that arrive when it is healed
  // Nodes differ in when they give up a peer, and elect a master as soon as they may: nothing but
  // the lease itself is left to keep two from serving at a time.
  bool uneven = false;
  // If not 0: of uneven nodes, the one that gives up last, and whose clock is the slowest where
  // clocks are steady. A master there outlives its lease by as much as it may.
  NodeId odd = 0;
  bool steady_clocks = false;  // each stays at its edge of the bound

  std::string ToString() const;
};
Knobs DrawKnobs(Rng* rng, unsigned nodes);

}  // namespace hydra::sim
