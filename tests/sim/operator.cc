// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/operator.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/sabotage.h"
#include "daemon/member_plan.h"

namespace hydra::sim {
namespace {

constexpr unsigned kDropPercent = 4;   // of the rounds, a replica that is not wanted is looked at
constexpr unsigned kNamePercent = 30;  // ... is told that it has a new name

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
    wanted_[group] = cluster_->NewestConfig(group).members();
    atlas_->AddGroup(group, Voters(wanted_[group]));
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
  TellNames(group);
  CreateMissing(group, config);
  DropUnwanted(group, config);
  Replace(group, config);
  if (restless_ && rng_.Percent(moves_percent_) && Reached(group, config)) Move(group, config);
  const NodeId master = cluster_->MasterOf(group);
  if (master == 0 || cluster_->shard(master, group)->replica().config() != config) return;
  TakeStep(group, master);
}

void Operator::NoteConfig(GroupId group, const paxos::Config& config) {
  FaultAtlas::Members complete;
  for (const paxos::Member& member : config.members()) {
    Shard* shard = cluster_->shard(member.id.node, group);
    if (shard == nullptr || shard->replica().options().self != member.id) continue;
    if (shard->replica().applied() >= config.instance() && shard->serves_local() &&
        !shard->Owes() && !shard->replica().suspect()) {
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

// --- What is wanted -----------------------------------------------------------------------------

bool Operator::Reached(GroupId group, const paxos::Config& config) const {
  return paxos::Config(0, wanted_.at(group)).members() == config.members();
}

std::string Operator::Unfinished() {
  for (const GroupId group : cluster_->groups()) {
    if (Reached(group, cluster_->NewestConfig(group))) continue;
    std::string members;
    for (const paxos::Member& member : wanted_[group]) {
      members += fmt::format(" {}.{}", member.id.node, member.id.incarnation);
    }
    return fmt::format("group {} has not the members that are wanted:{}", group, members);
  }
  return {};
}

// A member whose replica is gone, or may not vote any more, gets its place anew.
void Operator::Replace(GroupId group, const paxos::Config& config) {
  for (const paxos::Member& member : config.members()) {
    const NodeId node = member.id.node;
    if (!cluster_->alive(node)) continue;
    Shard* shard = cluster_->shard(node, group);
    const bool lost = shard == nullptr;
    if (!lost && !shard->replica().suspect()) continue;
    if (!lost && shard->replica().options().self != member.id) continue;
    // A learner that was just added gets its replica in CreateMissing.
    if (lost && member.role == paxos::Role::kLearner &&
        !created_.contains({group, node, member.id.incarnation})) {
      continue;
    }
    for (paxos::Member& wanted : wanted_[group]) {
      if (wanted.id != member.id) continue;
      wanted.id.incarnation = GiveName(group, node);
    }
  }
}

// A replica that is there becomes the new one by itself. If its disk is lost then, another of that
// name must not be made for it, which a node does not do either: it is replaced first.
uint32_t Operator::GiveName(GroupId group, NodeId node) {
  const uint32_t incarnation = ++incarnations_[group];
  names_[{group, node}] = {incarnation, cluster_->store(node)};
  if (cluster_->shard(node, group) != nullptr) created_.insert({group, node, incarnation});
  return incarnation;
}

// One more, one fewer, or one somewhere else.
void Operator::Move(GroupId group, const paxos::Config& config) {
  std::vector<paxos::Member>& wanted = wanted_[group];
  std::vector<NodeId> spare;
  for (const NodeId node : cluster_->nodes()) {
    if (config.FindNode(node) == nullptr && cluster_->alive(node)) spare.push_back(node);
  }
  const bool more = wanted.size() > cluster_->knobs().replicas;
  const bool leave = more ? !rng_.Percent(20) : rng_.Percent(50) && !spare.empty();
  if (leave) {
    const size_t victim = rng_.Below(wanted.size());
    wanted.erase(wanted.begin() + static_cast<long>(victim));
  }
  if (spare.empty() || wanted.size() > cluster_->knobs().replicas + 1 || (leave && more)) return;
  const NodeId node = spare[rng_.Below(spare.size())];
  wanted.push_back({{node, GiveName(group, node)}, paxos::Role::kVoter});
}

// --- What is done about it ----------------------------------------------------------------------

void Operator::TakeStep(GroupId group, NodeId master) {
  if (cluster_->paused(master)) return;
  const paxos::Replica& replica = cluster_->shard(master, group)->replica();
  std::set<NodeId> alive;
  std::set<NodeId> gone;
  const Nanos now = cluster_->clock(master).Now();
  for (const NodeId node : cluster_->nodes()) {
    if (node == master || cluster_->core(master)->leases().Alive(node, now)) {
      alive.insert(node);
    } else if (rng_.Percent(50)) {
      gone.insert(node);  // a master waits for long; here time is short
    }
  }
  const MemberStep step =
      NextMemberStep(wanted_[group], ViewOf(replica, std::move(alive), std::move(gone)));
  if (step.kind == MemberStep::Kind::kChange) Propose(group, master, step.members);
  if (step.kind != MemberStep::Kind::kHandOver) return;
  cluster_->Touch(master, [=, to = step.to](NodeCore* core, Nanos at) {
    core->shard(group)->TouchReplica().HandOver(to, at).IgnoreError();
  });
}

void Operator::Propose(GroupId group, NodeId master, std::vector<paxos::Member> members) {
  if (Voters(members).empty() || atlas_->changing(group)) return;
  const paxos::Config config = cluster_->NewestConfig(group);
  if (Voters(members) != Voters(config.members()) && !atlas_->BeginChange(group, Voters(members))) {
    return;
  }
  cluster_->Touch(master, [this, group, members](NodeCore* core, Nanos now) {
    Shard* shard = core->shard(group);
    proposed_in_[group] = shard->replica().ballot();
    shard->ChangeMembers(members, now).IgnoreError();
  });
}

// As Node::Impl::NameReplicas.
void Operator::TellNames(GroupId group) {
  for (const NodeId node : cluster_->nodes()) {
    if (!cluster_->alive(node) || cluster_->paused(node)) continue;
    const Shard* const there = cluster_->shard(node, group);
    const auto name = names_.find({group, node});
    if (there == nullptr || name == names_.end()) continue;
    if (name->second.store != cluster_->store(node)) continue;
    if (there->replica().options().self.incarnation >= name->second.incarnation) continue;
    if (!rng_.Percent(kNamePercent)) continue;  // nor does a node hear of it at once
    cluster_->Touch(node, [group, incarnation = name->second.incarnation](NodeCore* core, Nanos) {
      Shard* const shard = core->shard(group);
      if (shard != nullptr) shard->BeNamed(incarnation);
    });
  }
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

// As Node::Impl::TendUnwanted: a replica goes when its own log says that it does not vote.
void Operator::DropUnwanted(GroupId group, const paxos::Config& config) {
  const paxos::Config wanted(0, wanted_[group]);
  // Who knows the group's members may be down.
  if (config.instance() < noted_[group]) return;
  for (const NodeId node : cluster_->nodes()) {
    if (!cluster_->alive(node) || cluster_->paused(node)) continue;
    if (wanted.FindNode(node) != nullptr || config.FindNode(node) != nullptr) continue;
    // A node may hear of it late, and goes on with what is out of date meanwhile.
    if (cluster_->shard(node, group) == nullptr || !rng_.Percent(kDropPercent)) continue;
    cluster_->Touch(node, [group](NodeCore* core, Nanos now) {
      Shard* shard = core->shard(group);
      if (shard == nullptr) return;
      if (shard->replica().IsVoter()) return shard->TouchReplica().AskMembership(now);
      core->DropGroup(group, now).IgnoreError();
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
              member->role == paxos::Role::kVoter && shard->serves_local() && !shard->Owes() &&
              shard->replica().applied() >= config.instance();
    }
    if (!whole) continue;
    atlas_->Repaired(node);
    wiped_.erase(node);
  }
}

}  // namespace hydra::sim
