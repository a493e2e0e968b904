// SPDX-License-Identifier: Apache-2.0
//
// How far replicas are that catch up, and when they will be there: from two looks at all replicas,
// a moment apart. Pure.
//
// A replica that takes in a peer's blocks has so many of them as its map says, of those that its
// master has; one that takes in a peer's log is so many entries behind; one that is owed blocks
// says how many. Blocks that changed while a replica was away replace others, so that nobody knows
// how many are left: then there is no estimate.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

namespace hydra::ctl {

// A replica as one look saw it.
struct ReplicaProgress {
  bool installing = false;  // takes in blocks
  uint64_t have_bytes = 0;  // of blocks that hold data
  uint64_t of_bytes = 0;    // ... at its master
  uint64_t owed_bytes = 0;  // of blocks that it takes part with, and peers have yet to send
  uint64_t applied = 0;     // entries
  uint64_t expected = 0;    // ... that make it up to date
};
// By node and group.
using RecoveryLook = std::map<std::pair<uint32_t, uint32_t>, ReplicaProgress>;

// What a node lacks, over all its groups.
struct NodeRecovery {
  size_t installing = 0;  // replicas
  uint64_t have_bytes = 0;
  uint64_t of_bytes = 0;
  uint64_t bytes_per_second = 0;
  size_t owed = 0;  // replicas that wait for blocks they know
  uint64_t owed_bytes = 0;
  uint64_t owed_per_second = 0;
  size_t behind = 0;  // replicas that take in a log
  uint64_t entries = 0;
  uint64_t entries_per_second = 0;
  // Until the last of them is up to date; none: it makes no progress, or cannot be known.
  std::optional<std::chrono::seconds> left;
};

// Of nodes that lack something at the second look.
std::map<uint32_t, NodeRecovery> EstimateRecovery(const RecoveryLook& before,
                                                  const RecoveryLook& now,
                                                  std::chrono::milliseconds between);

}  // namespace hydra::ctl
