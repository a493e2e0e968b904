// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "tests/sim/chaos.h"

namespace hydra::sim {
namespace {

constexpr Nanos kLook = 5 * kMillisecond;  // how often a plot looks whether it came to pass

}  // namespace

// Of the groups, often one where the odd node reigns.
Chaos::Reign Chaos::AnyReign() {
  const NodeId odd = cluster_->knobs().odd;
  Reign reign;
  for (int i = 0; i < 3; ++i) {
    reign.group = cluster_->groups()[rng_.Below(cluster_->groups().size())];
    reign.master = cluster_->MasterOf(reign.group);
    if (odd == 0 || reign.master == odd) break;
  }
  return reign;
}

std::vector<NodeId> Chaos::OtherVoters(const Reign& reign) {
  std::vector<NodeId> others;
  const Shard* shard = reign.master == 0 ? nullptr : cluster_->shard(reign.master, reign.group);
  if (shard == nullptr) return others;
  for (const paxos::Member& member : shard->replica().config().members()) {
    if (member.role == paxos::Role::kVoter && member.id.node != reign.master) {
      others.push_back(member.id.node);
    }
  }
  for (size_t i = others.size(); i > 1; --i) std::swap(others[i - 1], others[rng_.Below(i)]);
  return others;
}

void Chaos::MoveMaster() {
  const Reign reign = AnyReign();
  const auto [group, master] = reign;
  if (master == 0) return;
  if (!rng_.Percent(50) || !Crown(group)) {
    const std::vector<paxos::Member> members =
        cluster_->shard(master, group)->replica().config().members();
    const paxos::MemberId target = members[rng_.Below(members.size())].id;
    const bool resign = rng_.Percent(20);
    Count(resign ? "resign" : "hand-over", master);
    cluster_->Touch(master, [group = group, target, resign](NodeCore* core, Nanos now) {
      Shard* shard = core->shard(group);
      if (resign) {
        shard->TouchReplica().Resign(now);
      } else {
        shard->TouchReplica().HandOver(target, now).IgnoreError();
      }
    });
  }
  // The old one hears nothing of what comes of it.
  if (!rng_.Percent(60)) return;
  const Nanos soon = static_cast<Nanos>(
      rng_.Below(static_cast<uint64_t>(2 * cluster_->knobs().disk_latency + kMillisecond)));
  ++plots_;
  scheduler_->After(soon, {"hand-over unheard", master}, [this, reign] { Surround(reign); });
}

// The group is handed over to the odd node; false: that cannot be.
bool Chaos::Crown(GroupId group) {
  const NodeId odd = cluster_->knobs().odd;
  const NodeId master = cluster_->MasterOf(group);
  if (odd == 0 || master == 0 || master == odd || !cluster_->alive(odd)) return false;
  const paxos::Member* member = cluster_->shard(master, group)->replica().config().FindNode(odd);
  if (member == nullptr || member->role != paxos::Role::kVoter) return false;
  Count("hand-over", master);
  cluster_->Touch(master, [group, target = member->id](NodeCore* core, Nanos now) {
    core->shard(group)->TouchReplica().HandOver(target, now).IgnoreError();
  });
  return true;
}

// A master is cut off from all others, but not from its clients; they make another one as soon as
// they may. The odd node is the one worth it, and its clients have to find it first.
void Chaos::Coup() {
  const GroupId group = AnyReign().group;
  const bool wait = rng_.Percent(70) && Crown(group);
  const Nanos when = wait ? Milliseconds(rng_.Between(50, 400)) : 0;
  ++plots_;
  scheduler_->After(when, {"coup"}, [this, group] { Depose({group, cluster_->MasterOf(group)}); });
}

void Chaos::Depose(const Reign& reign) {
  const NodeId master = reign.master;
  if (master == 0 || !running_) return EndPlot();
  Count("coup", master);
  const auto lease = static_cast<uint64_t>(cluster_->knobs().leases.lease);
  // Some do not remember the lease they granted.
  const bool restart = rng_.Percent(30);
  // Answers may be on their way that it gets much later.
  const Nanos deaf = rng_.Percent(40) ? static_cast<Nanos>(rng_.Between(1, 2 * lease)) : 0;
  if (deaf != 0) cluster_->network().IsolateOneWay(master, /*inbound=*/true);
  scheduler_->After(deaf, {"coup", master}, [this, reign, restart] {
    Surround(reign);
    for (const NodeId node : cluster_->nodes()) {
      if (!running_ || !restart || node == reign.master || !cluster_->alive(node)) continue;
      if (rng_.Percent(20)) continue;
      cluster_->Kill(node, false);
      BootWithin(node, Milliseconds(10));
    }
  });
}

// For about as long as leases and elections take.
void Chaos::Surround(const Reign& reign) {
  if (!running_) return EndPlot();
  const auto lease = static_cast<uint64_t>(cluster_->knobs().leases.lease);
  std::vector<NodeId> side = {reign.master};
  // A companion that is not enough for a majority.
  const std::vector<NodeId> others = OtherVoters(reign);
  if (others.size() >= 4 && rng_.Percent(60)) side.push_back(others.front());
  cluster_->network().Partition(side);
  const bool watch = rng_.Percent(70);
  const Nanos longest = static_cast<Nanos>(watch ? rng_.Between(3 * lease, 8 * lease)
                                                 : lease / 4 + rng_.Below(4 * lease));
  LetGo(reign, watch, scheduler_->now() + longest);
}

// `watch`: as soon as another master serves, or soon afterwards.
void Chaos::LetGo(const Reign& reign, bool watch, Nanos until) {
  const Nanos now = scheduler_->now();
  if (!running_ || now >= until) return EndPlot();
  const NodeId master = watch ? cluster_->MasterOf(reign.group) : 0;
  if (master != 0 && master != reign.master) {
    // Its clients find the new one, and the old one's do not know of it yet.
    watch = false;
    const auto lease = static_cast<uint64_t>(cluster_->knobs().leases.lease);
    until = now + static_cast<Nanos>(rng_.Below(lease));
  }
  const Nanos wait = watch ? std::min(kLook, until - now) : until - now;
  scheduler_->After(wait, {"let go", reign.master},
                    [this, reign, watch, until] { LetGo(reign, watch, until); });
}

void Chaos::EndPlot() {
  --plots_;
  if (running_) cluster_->network().Heal();
}

// What was chosen last is known to a bare majority. All of it but one, the witness, is cut off
// then, and those come back who know nothing: whether the next master learns of it depends on what
// the witness remembers, and something happens to that one.
void Chaos::Succession() {
  const Reign reign = AnyReign();
  std::vector<NodeId> side = OtherVoters(reign);
  if (side.size() < 2) return;
  const size_t absent = side.size() / 2;
  // It may be the master itself.
  const NodeId witness = rng_.Percent(30) ? reign.master : side[absent];
  side.resize(absent);
  Count("succession", reign.master);
  ++plots_;
  cluster_->network().Partition(side);
  side.push_back(witness);
  const Nanos meanwhile = Milliseconds(rng_.Between(20, 500));
  scheduler_->After(meanwhile, {"succession", witness}, [this, reign, side, witness] {
    if (!running_) return EndPlot();
    cluster_->network().Heal(side);
    cluster_->network().Partition(side);
    Shake(witness);
    const auto lease = static_cast<uint64_t>(cluster_->knobs().leases.lease);
    LetGo(reign, true, scheduler_->now() + static_cast<Nanos>(rng_.Between(3 * lease, 8 * lease)));
  });
}

void Chaos::Shake(NodeId witness) {
  if (!cluster_->alive(witness)) return;
  const unsigned dice = static_cast<unsigned>(rng_.Below(100));
  if (dice < 20) return;
  if (dice < 55 && !RotOf(witness)) return;
  Count("witness shaken", witness);
  cluster_->Kill(witness, /*power_loss=*/dice >= 75);
  BootWithin(witness, Milliseconds(20));
}

}  // namespace hydra::sim
