// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/chaos.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

namespace hydra::sim {
namespace {

constexpr uint64_t kPlenty = 1ull << 40;

Nanos Milliseconds(uint64_t n) { return static_cast<Nanos>(n) * kMillisecond; }

}  // namespace

Chaos::Chaos(Scheduler* scheduler, Cluster* cluster, FaultAtlas* atlas, Operator* op, uint64_t seed)
    : scheduler_(scheduler), cluster_(cluster), atlas_(atlas), operator_(op), rng_(seed) {
  pace_ = Milliseconds(rng_.Percent(60) ? rng_.Between(50, 800) : rng_.Between(500, 2000));
  const uint64_t taste = rng_.Below(100);
  taste_ = taste < 50 ? Taste::kMixed : taste < 75 ? Taste::kPolitics : Taste::kStorage;
}

void Chaos::Start() { Round(); }

void Chaos::Count(const char* kind, NodeId node) {
  ++faults_[kind];
  scheduler_->Note({kind, node});
}

NodeId Chaos::AnyNode() { return cluster_->nodes()[rng_.Below(cluster_->nodes().size())]; }

NodeId Chaos::AnyAlive() {
  for (int i = 0; i < 8; ++i) {
    const NodeId node = AnyNode();
    if (cluster_->alive(node)) return node;
  }
  return 0;
}

void Chaos::Round() {
  if (running_) One();
  // Stores that failed for good, whatever the reason, are replaced by people.
  for (const NodeId node : cluster_->nodes()) {
    if (cluster_->broken(node) && !down_.contains(node)) ReplaceLater(node);
    if (!cluster_->alive(node) && !cluster_->broken(node) && !down_.contains(node)) {
      BootLater(node);
    }
  }
  const Nanos delay = static_cast<Nanos>(rng_.Below(static_cast<uint64_t>(2 * pace_) + 1));
  scheduler_->After(delay, {"chaos"}, [this] { Round(); });
}

void Chaos::One() {
  const unsigned dice = static_cast<unsigned>(rng_.Below(100));
  if (taste_ == Taste::kPolitics && rng_.Percent(60)) return dice < 60 ? Coup() : MoveMaster();
  if (taste_ == Taste::kStorage && rng_.Percent(60)) return DamageStorage(dice);
  if (dice < 17) {
    if (cluster_->nodes().size() < 2) return;
    cluster_->network().Disturb();
    Count("network");
  } else if (dice < 28) {
    cluster_->network().Heal();
  } else if (dice < 34) {
    Storm();
  } else if (dice < 44) {
    KillOne(false);
  } else if (dice < 54) {
    KillOne(true);
  } else if (dice < 60) {
    PauseOne();
  } else if (dice < 68) {
    DamageStorage(static_cast<unsigned>(rng_.Below(100)));
  } else if (dice < 83) {
    DamageStorage(20 + static_cast<unsigned>(rng_.Below(80)));
  } else if (dice < 90) {
    MoveMaster();
  } else if (dice < 95) {
    Coup();
  } else {
    Housekeeping();
  }
}

void Chaos::DamageStorage(unsigned dice) {
  if (dice < 20) {
    KillAll();
  } else if (dice < 50) {
    CutPower();
  } else if (dice < 65) {
    Rot();
  } else if (dice < 75) {
    FailIo();
  } else if (dice < 82) {
    WipeOne();
  } else if (dice < 92) {
    FillDisk();
  } else {
    Housekeeping();
  }
}

void Chaos::BootLater(NodeId node) {
  down_.insert(node);
  const Nanos delay = Milliseconds(rng_.Percent(50) ? rng_.Between(1, 50) : rng_.Between(50, 3000));
  scheduler_->After(delay, {"boot soon", node}, [this, node] {
    if (!down_.contains(node)) return;
    down_.erase(node);
    cluster_->Boot(node);
  });
}

void Chaos::ReplaceLater(NodeId node) {
  down_.insert(node);
  scheduler_->After(Milliseconds(rng_.Between(10, 2000)), {"replace soon", node}, [this, node] {
    if (!down_.contains(node)) return;
    down_.erase(node);
    if (cluster_->broken(node)) Mend(node);
  });
}

// A damaged node gets a new disk.
void Chaos::Mend(NodeId node) {
  Count("disk replaced", node);
  cluster_->Wipe(node);
  operator_->Wiped(node);
}

void Chaos::KillOne(bool power) {
  const NodeId node = AnyAlive();
  if (node == 0) return;
  Count(power ? "power loss" : "crash", node);
  cluster_->Kill(node, power);
  BootLater(node);
}

void Chaos::KillAll() {
  Count("power loss of all");
  for (const NodeId node : cluster_->nodes()) {
    if (!cluster_->alive(node)) continue;
    cluster_->Kill(node, rng_.Percent(80));
    BootLater(node);
  }
}

// Power fails within an I/O, some calls from now.
void Chaos::CutPower() {
  const NodeId node = AnyAlive();
  if (node == 0) return;
  Count("power cut in an I/O", node);
  cluster_->disk(node).CutPowerAfter(rng_.Between(1, 30));
}

void Chaos::PauseOne() {
  const NodeId node = AnyAlive();
  if (node == 0) return;
  Count("pause", node);
  cluster_->Pause(node);
  scheduler_->After(Milliseconds(rng_.Between(20, 2500)), {"resume", node}, [this, node] {
    if (cluster_->alive(node)) cluster_->Resume(node);
  });
}

void Chaos::Rot() {
  const NodeId node = AnyNode();
  if (cluster_->broken(node)) return;
  FaultAtlas::Permit permit = atlas_->MayRot(node);
  if (!permit) return;
  SimDisk& disk = cluster_->disk(node);
  const auto names = disk.List("/store/segments");
  if (!names.ok() || names->empty() || !disk.powered()) return;
  std::vector<std::string> segments;
  std::copy_if(names->begin(), names->end(), std::back_inserter(segments),
               [](const std::string& name) { return name.ends_with(".seg"); });
  if (segments.empty()) return;
  // The newest ones hold what a restart reads.
  const size_t last = segments.size() - 1;
  const size_t which =
      rng_.Percent(50) ? last - rng_.Below(std::min<size_t>(last + 1, 2)) : rng_.Below(last + 1);
  const std::string path = "/store/segments/" + segments[which];
  const uint64_t flips = rng_.Between(1, 20);
  for (uint64_t i = 0; i < flips; ++i) {
    disk.FlipBit(path, rng_.Below(cluster_->knobs().segment_bytes),
                 static_cast<unsigned>(rng_.Below(8)));
  }
  permit.Commit();
  operator_->Damaged(node);
  Count("rot", node);
  // It may sleep for a while, and be met by a restart.
  if (rng_.Percent(60) && cluster_->alive(node)) {
    cluster_->Kill(node, false);
    BootLater(node);
  }
  scheduler_->After(Milliseconds(rng_.Between(100, 4000)), {"rot found", node}, [this, node] {
    if (!running_ || !atlas_->damaged(node)) return;
    cluster_->Kill(node, false);
    Mend(node);
  });
}

void Chaos::FailIo() {
  const NodeId node = AnyAlive();
  if (node == 0) return;
  FaultAtlas::Permit permit = atlas_->MayFailWrite(node);
  if (!permit) return;
  permit.Commit();
  operator_->Damaged(node);
  Count("I/O error", node);
  const IoKind kinds[] = {IoKind::kWrite, IoKind::kSync, IoKind::kSyncDirectory, IoKind::kRename};
  cluster_->disk(node).FailNth(kinds[rng_.Below(4)], rng_.Between(1, 10));
  scheduler_->After(Milliseconds(rng_.Between(500, 4000)), {"failed disk", node}, [this, node] {
    if (!running_ || !atlas_->damaged(node)) return;
    cluster_->Kill(node, false);
    Mend(node);
  });
}

void Chaos::WipeOne() {
  const NodeId node = AnyNode();
  FaultAtlas::Permit permit = atlas_->MayWipe(node);
  if (!permit) return;
  permit.Commit();
  Count("disk lost", node);
  cluster_->Kill(node, true);
  down_.erase(node);
  Mend(node);
}

void Chaos::FillDisk() {
  const NodeId node = AnyAlive();
  if (node == 0) return;
  Count("disk full", node);
  SimDisk& disk = cluster_->disk(node);
  disk.SetCapacity(disk.used_bytes() + rng_.Below(4 * cluster_->knobs().segment_bytes));
  scheduler_->After(Milliseconds(rng_.Between(100, 4000)), {"space again", node},
                    [this, node] { cluster_->disk(node).SetCapacity(kPlenty); });
}

void Chaos::Storm() {
  Weather weather;
  weather.delay_min = static_cast<Nanos>(rng_.Between(20, 500)) * 1000;
  weather.delay_max = weather.delay_min + static_cast<Nanos>(rng_.Between(10, 20'000)) * 1000;
  weather.loss_permille = static_cast<unsigned>(rng_.Below(150));
  weather.duplicate_permille = static_cast<unsigned>(rng_.Below(200));
  weather.reorder_permille = static_cast<unsigned>(rng_.Below(200));
  cluster_->network().SetWeather(weather);
  Count("weather");
}

void Chaos::MoveMaster() {
  const GroupId group = cluster_->groups()[rng_.Below(cluster_->groups().size())];
  const NodeId master = cluster_->MasterOf(group);
  if (master == 0) return;
  const std::vector<paxos::Member> members =
      cluster_->shard(master, group)->replica().config().members();
  const paxos::MemberId target = members[rng_.Below(members.size())].id;
  const bool resign = rng_.Percent(20);
  Count(resign ? "resign" : "hand-over", master);
  cluster_->Touch(master, [group, target, resign](NodeCore* core, Nanos now) {
    Shard* shard = core->shard(group);
    if (resign) {
      shard->replica().Resign(now);
    } else {
      shard->replica().HandOver(target, now).IgnoreError();
    }
  });
  // The old one hears nothing of what comes of it.
  if (!rng_.Percent(60)) return;
  const Nanos soon = static_cast<Nanos>(
      rng_.Below(static_cast<uint64_t>(2 * cluster_->knobs().disk_latency + kMillisecond)));
  scheduler_->After(soon, {"hand-over unheard", master}, [this, master] {
    if (running_) Surround(master, cluster_->knobs().leases.lease);
  });
}

// A master is cut off from all others, but not from its clients; they make another one as soon as
// they may.
void Chaos::Coup() {
  const GroupId group = cluster_->groups()[rng_.Below(cluster_->groups().size())];
  const NodeId master = cluster_->MasterOf(group);
  if (master == 0) return;
  Count("coup", master);
  const Nanos lease = cluster_->knobs().leases.lease;
  // Some do not remember the lease they granted.
  const bool restart = rng_.Percent(40);
  // Answers may be on their way that it gets much later.
  const Nanos deaf = rng_.Percent(50) ? static_cast<Nanos>(rng_.Below(2 * lease)) : 0;
  if (deaf != 0) cluster_->network().IsolateOneWay(master, /*inbound=*/true);
  scheduler_->After(deaf, {"coup", master}, [this, master, lease, restart] {
    if (!running_) return;
    Surround(master, lease);
    for (const NodeId node : cluster_->nodes()) {
      if (!restart || node == master || !cluster_->alive(node) || rng_.Percent(20)) continue;
      cluster_->Kill(node, false);
      down_.insert(node);
      scheduler_->After(Milliseconds(rng_.Between(1, 10)), {"boot soon", node}, [this, node] {
        if (down_.erase(node) > 0) cluster_->Boot(node);
      });
    }
  });
}

// For about as long as leases and elections take.
void Chaos::Surround(NodeId master, Nanos lease) {
  std::vector<NodeId> side = {master};
  // A companion that is not enough for a majority.
  if (cluster_->knobs().replicas >= 5 && rng_.Percent(50)) {
    const NodeId other = AnyNode();
    if (other != master) side.push_back(other);
  }
  cluster_->network().Partition(side);
  const Nanos until = lease / 4 + static_cast<Nanos>(rng_.Below(4 * static_cast<uint64_t>(lease)));
  scheduler_->After(until, {"let go", master}, [this] {
    if (running_) cluster_->network().Heal();
  });
}

void Chaos::Housekeeping() {
  const NodeId node = AnyAlive();
  if (node == 0) return;
  Count("checkpoint", node);
  cluster_->Touch(node, [](NodeCore* core, Nanos) { core->engine()->RequestCheckpoint(); });
}

void Chaos::StopAndHeal() {
  running_ = false;
  cluster_->network().Heal();
  cluster_->network().Calm();
  atlas_->Calm();
  down_.clear();
  operator_->SetRestless(false);
  for (const NodeId node : cluster_->nodes()) {
    cluster_->disk(node).SetCapacity(kPlenty);
    cluster_->disk(node).CutPowerAfter(0);
    if (cluster_->alive(node)) cluster_->Resume(node);
    const bool sick = atlas_->damaged(node) || cluster_->broken(node);
    if (sick && (cluster_->broken(node) || !operator_->wiped(node))) {
      cluster_->Kill(node, false);
      Mend(node);
    } else {
      cluster_->Boot(node);
    }
  }
}

}  // namespace hydra::sim
