// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <set>

#include "tests/sim/cluster.h"

namespace hydra::sim {

// One machine.
struct Cluster::Node {
  Node(Scheduler* scheduler, NodeId id, const SimClock::Options& clock_options)
      : id(id), clock(scheduler, id, clock_options), gate(scheduler, id) {}

  const NodeId id;
  SimClock clock;
  NodeGate gate;
  std::unique_ptr<SimDisk> disk;
  // Destroyed in the opposite order: the core and everything in flight before the engine.
  std::unique_ptr<Engine> engine;
  std::unique_ptr<NodeCore> core;
  std::map<uint64_t, ShardRead> reads;
  std::unique_ptr<Job> job;
  std::map<uint64_t, Instance> local_reads;  // request -> what was applied when it came
  uint64_t failed_calls = 0;                 // of the disk, before the process started
  uint64_t next_read = 0;
  uint64_t rotten = 0;  // blocks that this process found
  bool writing = false;
  bool broken = false;
  uint64_t boots = 0;
  uint64_t stores = 0;
  uint64_t durable_batch = 0;  // known to be
  Uuid store;
  std::map<GroupId, paxos::Invariants::Snapshot> before;
  std::map<GroupId, uint32_t> incarnations;
  std::set<GroupId> durable_groups;  // something of them was seen on this disk
};

}  // namespace hydra::sim
