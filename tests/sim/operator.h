// SPDX-License-Identifier: Apache-2.0
//
// Operator: what people and the catalogue do to a cluster. Replaces members whose store is lost or
// lost records, promotes learners that caught up, moves replicas to spare nodes. Sees all nodes at
// once, as a person would, but changes members only through masters.
#pragma once

#include <map>
#include <set>
#include <tuple>

#include "base/rng.h"
#include "tests/sim/cluster.h"
#include "tests/sim/fault_atlas.h"

namespace hydra::sim {

class Operator {
 public:
  Operator(Scheduler* scheduler, Cluster* cluster, FaultAtlas* atlas, uint64_t seed)
      : scheduler_(scheduler), cluster_(cluster), atlas_(atlas), rng_(seed) {}

  void Start();
  // Replicas move to spare nodes now and then.
  void SetRestless(bool restless) { restless_ = restless; }
  // Every node that lost something has been replaced in all its groups.
  bool AllRepaired() const { return atlas_->damaged().empty(); }
  // The node came back with an empty disk.
  void Wiped(NodeId node) { wiped_.insert(node); }
  void Damaged(NodeId node) { wiped_.erase(node); }
  bool wiped(NodeId node) const { return wiped_.contains(node); }
  uint64_t changes() const { return changes_; }

 private:
  void Round();
  void Look(GroupId group);
  void NoteConfig(GroupId group, const paxos::Config& config);
  bool Replace(GroupId group, NodeId master, const paxos::Config& config);
  bool Promote(GroupId group, NodeId master, const paxos::Config& config);
  bool Move(GroupId group, NodeId master, const paxos::Config& config);
  void CreateMissing(GroupId group, const paxos::Config& config);
  bool Propose(GroupId group, NodeId master, std::vector<paxos::Member> members);
  void CheckRepaired();

  Scheduler* const scheduler_;
  Cluster* const cluster_;
  FaultAtlas* const atlas_;
  Rng rng_;
  bool restless_ = true;
  uint64_t changes_ = 0;
  std::map<GroupId, Instance> noted_;
  std::map<GroupId, Ballot> proposed_in_;     // the change in flight
  std::map<GroupId, uint32_t> incarnations_;  // the highest given out
  // Replicas that were ever made: one whose disk is lost is not made again under the same name.
  std::set<std::tuple<GroupId, NodeId, uint32_t>> created_;
  std::set<NodeId> wiped_;  // came back with an empty disk since it was damaged
};

}  // namespace hydra::sim
