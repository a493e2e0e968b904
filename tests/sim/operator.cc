// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/operator.h"

#include <algorithm>

#include "base/sabotage.h"

namespace hydra::sim {
namespace {

FaultAtlas::Members Voters(const std::vector<paxos::Member>& members) {
  FaultAtlas::Members voters;
  for (const paxos::Member& member : members) {
    if (member.role == paxos::Role::kVoter) voters.insert(member.id.node);
  }
  return voters;
}

}  // namespace

void Operator::Start() {
  for (const GroupId group : cluster_->groups()) {
    atlas_->AddGroup(group, Voters(cluster_->NewestConfig(group).members()));
    incarnations_[group] = 1;
  }
  Round();
}

void Operator::Round() {
  for (const GroupId group : cluster_->groups()) Look(group);
  CheckRepaired();
  scheduler_->After(static_cast<Nanos>(rng_.Between(50, 250)) * kMillisecond, {"operator"},
                    [this] { Round(); });
}

void Operator::Look(GroupId group) {
  const paxos::Config config = cluster_->NewestConfig(group);
  if (config.members().empty()) return;
  NoteConfig(group, config);
  CreateMissing(group, config);
  const NodeId master = cluster_->MasterOf(group);
  if (master == 0 || cluster_->shard(master, group)->replica().config() != config) return;
  if (Replace(group, master, config) || Promote(group, master, config)) return;
  if (restless_ && rng_.Percent(3)) Move(group, master, config);
}

void Operator::NoteConfig(GroupId group, const paxos::Config& config) {
  FaultAtlas::Members complete;
  for (const paxos::Member& member : config.members()) {
    Shard* shard = cluster_->shard(member.id.node, group);
    if (shard == nullptr || shard->replica().options().self != member.id) continue;
    if (shard->replica().applied() >= config.instance() && shard->serves_local() &&
        !shard->replica().suspect()) {
      complete.insert(member.id.node);
    }
  }
  // Until it is settled, the others may need a majority of the former one to find out that it is
  // chosen: both are in force.
  const auto settled = [&](const paxos::Member& member) {
    Shard* shard = cluster_->shard(member.id.node, group);
    return shard != nullptr && shard->replica().config() == config && shard->replica().settled();
  };
  if (std::none_of(config.members().begin(), config.members().end(), settled)) return;
  if (config.instance() > noted_[group]) {
    noted_[group] = config.instance();
    ++changes_;
    atlas_->ConfigChosen(group, Voters(config.members()), complete);
  }
  for (const NodeId node : complete) atlas_->CaughtUp(group, node);
  // A later master that serves knows all that earlier ones may have got chosen: what is not among
  // it is dead. (One that only believes to be master still proves that about those before it.)
  const NodeId master = cluster_->MasterOf(group);
  if (atlas_->changing(group) && master != 0) {
    const paxos::Replica& replica = cluster_->shard(master, group)->replica();
    if (replica.config() == config && !replica.changing_members() &&
        replica.ballot() >= proposed_in_[group]) {
      atlas_->ConfigChosen(group, Voters(config.members()), complete);
    }
  }
}

// A member whose replica is gone, is somebody else by now, or may not vote any more.
bool Operator::Replace(GroupId group, NodeId master, const paxos::Config& config) {
  for (const paxos::Member& member : config.members()) {
    const NodeId node = member.id.node;
    if (!cluster_->alive(node) || node == master) continue;
    Shard* shard = cluster_->shard(node, group);
    const bool lost = shard == nullptr;
    if (!lost && !shard->replica().suspect()) continue;
    if (!lost && shard->replica().options().self != member.id) continue;
    // A learner that was just added gets its replica in CreateMissing.
    if (lost && member.role == paxos::Role::kLearner &&
        !created_.contains({group, node, member.id.incarnation})) {
      continue;
    }
    std::vector<paxos::Member> members = config.members();
    for (paxos::Member& m : members) {
      if (m.id == member.id) {
        m = {{node, ++incarnations_[group]}, paxos::Role::kLearner};
      }
    }
    return Propose(group, master, std::move(members));
  }
  return false;
}

bool Operator::Promote(GroupId group, NodeId master, const paxos::Config& config) {
  for (const paxos::Member& member : config.members()) {
    if (member.role != paxos::Role::kLearner) continue;
    Shard* shard = cluster_->shard(member.id.node, group);
    if (shard == nullptr || shard->replica().options().self != member.id ||
        !shard->serves_local() || shard->replica().suspect()) {
      continue;
    }
    std::vector<paxos::Member> members = config.members();
    for (paxos::Member& m : members) {
      if (m.id == member.id) m.role = paxos::Role::kVoter;
    }
    return Propose(group, master, std::move(members));
  }
  return false;
}

bool Operator::Move(GroupId group, NodeId master, const paxos::Config& config) {
  std::vector<paxos::Member> members = config.members();
  if (config.voters() > cluster_->knobs().replicas) {
    const size_t victim = rng_.Below(members.size());
    members.erase(members.begin() + static_cast<long>(victim));
    return Propose(group, master, std::move(members));
  }
  std::vector<NodeId> spare;
  for (const NodeId node : cluster_->nodes()) {
    if (config.FindNode(node) == nullptr && cluster_->alive(node) &&
        cluster_->shard(node, group) == nullptr) {
      spare.push_back(node);
    }
  }
  if (spare.empty()) return false;
  members.push_back(
      {{spare[rng_.Below(spare.size())], ++incarnations_[group]}, paxos::Role::kLearner});
  return Propose(group, master, std::move(members));
}

bool Operator::Propose(GroupId group, NodeId master, std::vector<paxos::Member> members) {
  if (Voters(members).empty() || atlas_->changing(group) || cluster_->paused(master)) return false;
  const paxos::Config config = cluster_->NewestConfig(group);
  if (Voters(members) != Voters(config.members()) && !atlas_->BeginChange(group, Voters(members))) {
    return false;
  }
  cluster_->Touch(master, [this, group, members](NodeCore* core, Nanos now) {
    Shard* shard = core->shard(group);
    proposed_in_[group] = shard->replica().ballot();
    shard->ChangeMembers(members, now).IgnoreError();
  });
  return true;
}

// A member without a replica gets one, as the catalogue would tell its node.
void Operator::CreateMissing(GroupId group, const paxos::Config& config) {
  for (const paxos::Member& member : config.members()) {
    // A voter without a replica lost it with its disk, and its place is another's (Replace).
    const bool reborn = HYDRA_SABOTAGE(kWipedNodeVotes) && member.role == paxos::Role::kVoter;
    if (member.role != paxos::Role::kLearner && !reborn) continue;
    if (!cluster_->alive(member.id.node)) continue;
    if (cluster_->shard(member.id.node, group) != nullptr) continue;
    // What it promised in its first life may be lost with its disk: Replace gives it another name.
    const bool first = created_.insert({group, member.id.node, member.id.incarnation}).second;
    if (!first && !reborn) continue;
    cluster_->Touch(member.id.node, [=, id = member.id](NodeCore* core, Nanos now) {
      if (core->shard(group) != nullptr) return;
      const auto members = reborn ? config.members() : std::vector<paxos::Member>();
      core->CreateGroup(group, 1, id.incarnation, members, now).IgnoreError();
    });
  }
}

void Operator::CheckRepaired() {
  const std::set<NodeId> damaged = atlas_->damaged();
  for (const NodeId node : damaged) {
    if (!wiped_.contains(node) || !cluster_->alive(node)) continue;
    bool whole = true;
    for (const GroupId group : cluster_->groups()) {
      const paxos::Config config = cluster_->NewestConfig(group);
      // Who knows the group's members may be down.
      if (config.members().empty() || config.instance() < noted_[group]) whole = false;
      const paxos::Member* member = config.FindNode(node);
      if (member == nullptr) continue;
      Shard* shard = cluster_->shard(node, group);
      whole = whole && shard != nullptr && shard->replica().options().self == member->id &&
              member->role == paxos::Role::kVoter && shard->serves_local() &&
              shard->replica().applied() >= config.instance();
    }
    if (!whole) continue;
    atlas_->Repaired(node);
    wiped_.erase(node);
  }
}

}  // namespace hydra::sim
