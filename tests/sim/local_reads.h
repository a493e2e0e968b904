// SPDX-License-Identifier: Apache-2.0
//
// LocalReads: checks reads that a replica answers from its own state, without asking anyone. They
// may be old, but a replica never shows what was not chosen, and a session at a replica never goes
// back.
//
// An observation is judged by what was reported as chosen before it. Reads that were under way side
// by side at a replica are sessions of their own: what bounds them is what the replica had applied.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/sim/history.h"
#include "tests/sim/trace.h"

namespace hydra::sim {

class LocalReads {
 public:
  using Group = uint32_t;
  using Version = uint64_t;  // instance << 16 | operation, as in the block store; 0 = none

  struct Effect {
    Block block = 0;
    Version version = 0;
    Value value = kAbsent;
  };

  struct Seen {
    Block block = 0;
    Version version = 0;  // 0 if absent, as the block store reports it
    Value value = kAbsent;
  };

  struct Observation {
    NodeId replica = 0;
    uint64_t session = 0;  // a new one after every restart of the replica
    Group group = 0;
    std::optional<uint64_t> as_of;  // the instance the replica had applied, if it says so
    // Blocks may be as new as this: what the replica had applied when it answered. At least as_of.
    uint64_t until = 0;
    std::vector<Seen> blocks;
  };

  // Instances of a group in order; those without effect may be left out.
  void Chosen(Group group, uint64_t instance, const std::vector<Effect>& effects);

  uint64_t chosen(Group group) const;  // the last instance reported
  // "" or what is wrong with it.
  [[nodiscard]] std::string Observe(const Observation& read);
  uint64_t observations() const { return observations_; }

 private:
  std::string CheckBlock(const Observation& read, const Seen& seen);
  std::string CheckAsOf(const Observation& read, const Seen& seen) const;

  std::map<Group, uint64_t> chosen_;
  std::map<Block, std::map<Version, Value>> versions_;
  // What a session at a replica has seen, by group and by block.
  std::map<std::tuple<NodeId, uint64_t, Group>, uint64_t> seen_as_of_;
  std::map<std::tuple<NodeId, uint64_t, Block>, Version> seen_version_;
  uint64_t observations_ = 0;
};

}  // namespace hydra::sim
