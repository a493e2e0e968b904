// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "paxos/replica.h"

namespace hydra::paxos {

// What must be true of one replica at any time (State), and of any step it takes (Step). Used by
// tests and the simulator after every input; docs/consensus.md numbers them.
class Invariants {
 public:
  // What Step compares.
  struct Snapshot {
    Ballot promised;
    Ballot durable_promise;
    Instance applied = 0;
    Instance commit = 0;
    Instance config = 0;
    Mode mode = Mode::kFollower;
    Ballot ballot;
    bool active = false;
  };

  static Snapshot Take(const Replica& replica);
  // Empty, or the invariant that is broken.
  static std::string State(const Replica& replica);
  static std::string Step(const Snapshot& before, const Replica& after);
};

}  // namespace hydra::paxos
