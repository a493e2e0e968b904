// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/chaos.h"

#include <algorithm>

#include <fmt/format.h>

namespace hydra::sim {
namespace {

constexpr uint64_t kPlenty = 1ull << 40;

Nanos Milliseconds(uint64_t n) { return static_cast<Nanos>(n) * kMillisecond; }

}  // namespace

Chaos::Chaos(Scheduler* scheduler, Cluster* cluster, FaultAtlas* atlas, Operator* op, uint64_t seed)
    : scheduler_(scheduler), cluster_(cluster), atlas_(atlas), operator_(op), rng_(seed) {
  pace_ = Milliseconds(rng_.Between(50, 800));
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
  if (dice < 18) {
    if (cluster_->nodes().size() < 2) return;
    cluster_->network().Disturb();
    Count("network");
  } else if (dice < 30) {
    cluster_->network().Heal();
  } else if (dice < 36) {
    Storm();
  } else if (dice < 46) {
    KillOne(false);
  } else if (dice < 56) {
    KillOne(true);
  } else if (dice < 58) {
    KillAll();
  } else if (dice < 66) {
    CutPower();
  } else if (dice < 72) {
    PauseOne();
  } else if (dice < 77) {
    Rot();
  } else if (dice < 80) {
    FailIo();
  } else if (dice < 83) {
    WipeOne();
  } else if (dice < 86) {
    FillDisk();
  } else if (dice < 94) {
    MoveMaster();
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
  const std::string path = "/store/segments/" + (*names)[rng_.Below(names->size())];
  if (!path.ends_with(".seg")) return;
  const uint64_t flips = rng_.Between(1, 20);
  for (uint64_t i = 0; i < flips; ++i) {
    disk.FlipBit(path, rng_.Below(cluster_->knobs().segment_bytes),
                 static_cast<unsigned>(rng_.Below(8)));
  }
  permit.Commit();
  operator_->Damaged(node);
  Count("rot", node);
  // It may sleep for a while, and be met by a restart.
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
  scheduler_->After(Milliseconds(rng_.Between(100, 2000)), {"space again", node},
                    [this, node] { cluster_->disk(node).SetCapacity(kPlenty); });
}

void Chaos::Storm() {
  Weather weather;
  weather.delay_min = static_cast<Nanos>(rng_.Between(20, 500)) * 1000;
  weather.delay_max = weather.delay_min + static_cast<Nanos>(rng_.Between(10, 20'000)) * 1000;
  weather.loss_permille = static_cast<unsigned>(rng_.Below(150));
  weather.duplicate_permille = static_cast<unsigned>(rng_.Below(100));
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
