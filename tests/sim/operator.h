// SPDX-License-Identifier: Apache-2.0
//
// Operator: what people and the catalogue do to a cluster. Wants new replicas for members whose
// store is lost or lost records, more of them, fewer, or on other nodes; lets each group's master
// take the steps that the daemon's own planner says (daemon/member_plan.h); makes and drops
// replicas as the catalogue would tell their nodes. Sees all nodes at once, as a person would, but
// changes members only through masters.
#pragma once

#include <iterator>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "base/rng.h"
#include "tests/sim/cluster.h"
#include "tests/sim/fault_atlas.h"

namespace hydra::sim {

class Operator {
 public:
  Operator(Scheduler* scheduler, Cluster* cluster, FaultAtlas* atlas, uint64_t seed)
      : scheduler_(scheduler),
        cluster_(cluster),
        atlas_(atlas),
        rng_(seed),
        moves_percent_(kMovesPercent[rng_.Below(std::size(kMovesPercent))]) {}

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
  // A group whose members are not yet those that are wanted; "" if there is none.
  std::string Unfinished();

 private:
  // How often replicas move: rot, for one, is met again only where they stay.
  static constexpr unsigned kMovesPercent[] = {0, 1, 3, 8};

  void Round();
  void Look(GroupId group);
  void NoteConfig(GroupId group, const paxos::Config& config);
  // What is wanted.
  void Replace(GroupId group, const paxos::Config& config);
  uint32_t GiveName(GroupId group, NodeId node);
  void Move(GroupId group, const paxos::Config& config);
  bool Reached(GroupId group, const paxos::Config& config) const;
  // What is done about it.
  void TellNames(GroupId group);
  void CreateMissing(GroupId group, const paxos::Config& config);
  void DropUnwanted(GroupId group, const paxos::Config& config);
  void TakeStep(GroupId group, NodeId master);
  void Propose(GroupId group, NodeId master, std::vector<paxos::Member> members);
  void CheckRepaired();

  Scheduler* const scheduler_;
  Cluster* const cluster_;
  FaultAtlas* const atlas_;
  Rng rng_;
  const unsigned moves_percent_;
  bool restless_ = true;
  uint64_t changes_ = 0;
  std::map<GroupId, std::vector<paxos::Member>> wanted_;  // all of them voters
  std::map<GroupId, Instance> noted_;
  std::map<GroupId, Ballot> proposed_in_;     // the change in flight
  std::map<GroupId, uint32_t> incarnations_;  // the highest given out
  struct Name {
    uint32_t incarnation = 0;
    Uuid store;  // that it was given to
  };
  std::map<std::pair<GroupId, NodeId>, Name> names_;  // the latest
  // Replicas that were ever made: one whose disk is lost is not made again under the same name.
  std::set<std::tuple<GroupId, NodeId, uint32_t>> created_;
  std::set<NodeId> wiped_;  // came back with an empty disk since it was damaged
};

}  // namespace hydra::sim
