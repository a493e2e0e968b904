// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/chaos.h"

#include "tests/sim/rot.h"

namespace hydra::sim {
namespace {

constexpr uint64_t kPlenty = 1ull << 40;

}  // namespace

Chaos::Chaos(Scheduler* scheduler, Cluster* cluster, FaultAtlas* atlas, Operator* op, uint64_t seed)
    : scheduler_(scheduler),
      cluster_(cluster),
      atlas_(atlas),
      operator_(op),
      rng_(seed),
      rot_rng_(~seed) {
  pace_ = Milliseconds(rng_.Percent(60) ? rng_.Between(50, 800) : rng_.Between(500, 2000));
  if (cluster->knobs().taste == Taste::kPolitics) pace_ = Milliseconds(rng_.Between(50, 500));
  DrawKinds();
}

// By taste; and many runs leave out some kinds altogether.
void Chaos::DrawKinds() {
  struct Row {
    void (Chaos::*strike)();
    unsigned mixed, politics, storage;
  };
  static constexpr Row kRows[] = {
      {&Chaos::DisturbNetwork, 17, 7, 7},
      {&Chaos::HealNetwork, 11, 5, 5},
      {&Chaos::Storm, 6, 3, 3},
      {&Chaos::Crash, 10, 4, 4},
      {&Chaos::LosePower, 10, 4, 4},
      {&Chaos::PauseOne, 6, 3, 3},
      {&Chaos::BreakConnections, 6, 6, 2},
      {&Chaos::KillAll, 2, 1, 12},
      {&Chaos::CutPower, 8, 3, 20},
      {&Chaos::Rot, 4, 2, 10},
      {&Chaos::FailIo, 3, 1, 7},
      {&Chaos::WipeOne, 2, 1, 5},
      {&Chaos::FillDisk, 3, 1, 7},
      {&Chaos::Housekeeping, 7, 2, 8},
      {&Chaos::MoveMaster, 7, 18, 3},
      {&Chaos::Coup, 5, 45, 2},
      {&Chaos::Succession, 5, 10, 10},
  };
  const Taste taste = cluster_->knobs().taste;
  const bool picky = rng_.Percent(50);
  for (const Row& row : kRows) {
    const unsigned weight = taste == Taste::kMixed      ? row.mixed
                            : taste == Taste::kPolitics ? row.politics
                                                        : row.storage;
    const bool mends = row.strike == &Chaos::HealNetwork;
    if (picky && rng_.Percent(40) && !mends) continue;
    kinds_.push_back({row.strike, weight});
  }
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
  // What is going on is given time to do its harm.
  if (running_ && (plots_ == 0 || rng_.Percent(25))) One();
  if (running_ && atlas_->mode() != FaultAtlas::Mode::kNodes) RotAndScrub();
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
  uint64_t sum = 0;
  for (const Kind& kind : kinds_) sum += kind.weight;
  uint64_t lot = rng_.Below(sum);
  for (const Kind& kind : kinds_) {
    if (lot < kind.weight) return (this->*kind.strike)();
    lot -= kind.weight;
  }
}

void Chaos::BootLater(NodeId node) { BootWithin(node, Milliseconds(rng_.Percent(50) ? 50 : 3000)); }

void Chaos::BootWithin(NodeId node, Nanos longest) {
  down_.insert(node);
  const Nanos delay =
      static_cast<Nanos>(rng_.Between(kMillisecond, static_cast<uint64_t>(longest)));
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

void Chaos::DisturbNetwork() {
  if (cluster_->nodes().size() < 2) return;
  cluster_->network().Disturb();
  Count("network");
}

void Chaos::HealNetwork() { cluster_->network().Heal(); }

void Chaos::Crash() {
  const NodeId node = AnyAlive();
  if (node != 0) Kill(node, false);
}

void Chaos::LosePower() {
  const NodeId node = AnyAlive();
  if (node != 0) Kill(node, true);
}

void Chaos::Kill(NodeId node, bool power) {
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

// Nobody died, but it looks so.
void Chaos::BreakConnections() {
  const NodeId peer = AnyNode();
  Count("connections", peer);
  for (const NodeId node : cluster_->nodes()) {
    if (rng_.Percent(60)) cluster_->LoseConnection(node, peer);
  }
}

void Chaos::Rot() {
  const NodeId node = AnyNode();
  // It may sleep for a while, and be met by a restart.
  if (!RotOf(node) || rng_.Percent(40) || !cluster_->alive(node)) return;
  cluster_->Kill(node, false);
  BootLater(node);
}

// Whether any bit flipped.
bool Chaos::RotOf(NodeId node) {
  if (cluster_->broken(node)) return false;
  FaultAtlas::Permit permit = atlas_->MayRot(node);
  SimDisk& disk = cluster_->disk(node);
  if (!permit || !disk.powered()) return false;
  const RotTarget target{&disk, kSegmentDirectory, cluster_->store(node),
                         cluster_->durable_batch(node)};
  const bool flipped = rng_.Percent(60) ? RotNewest(target, &rng_) : RotAnywhere(target, &rng_);
  if (!flipped) return false;
  permit.Commit();
  operator_->Damaged(node);
  Count("rot", node);
  scheduler_->After(Milliseconds(rng_.Between(100, 4000)), {"rot found", node}, [this, node] {
    if (!running_ || !atlas_->damaged(node)) return;
    cluster_->Kill(node, false);
    Mend(node);
  });
  return true;
}

// Where single payloads may rot, their nodes stay in service: it is theirs to notice and to mend.
void Chaos::RotBlocksOf(NodeId node) {
  SimDisk& disk = cluster_->disk(node);
  if (cluster_->broken(node) || !disk.powered()) return;
  const RotTarget target{&disk, kSegmentDirectory, cluster_->store(node),
                         cluster_->durable_batch(node)};
  const auto may = [&](GroupId group, Instance instance) {
    return atlas_->MayRotPayload(node, group % kMaxGroups, instance);
  };
  if (RotBlocks(target, may, &rot_rng_)) Count("rotten blocks", node);
}

void Chaos::RotAndScrub() {
  const auto any = [&] { return cluster_->nodes()[rot_rng_.Below(cluster_->nodes().size())]; };
  if (rot_rng_.Percent(30)) RotBlocksOf(any());
  if (rot_rng_.Percent(10)) {
    const NodeId node = any();
    constexpr uint64_t kRate = 4u << 20;
    cluster_->Touch(node, [](NodeCore* core, Nanos now) { core->scrubber().Start(kRate, now); });
  }
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

// Of a group in which somebody is owed blocks, one who may have them: then one copy is left.
NodeId Chaos::AnyCreditor() {
  std::vector<NodeId> creditors;
  for (const GroupId group : cluster_->groups()) {
    std::vector<NodeId> whole;
    bool owed = false;
    for (const NodeId node : cluster_->nodes()) {
      const Shard* const shard = cluster_->shard(node, group);
      if (shard == nullptr) continue;
      owed = owed || shard->OwedBytes() > 0;
      if (shard->OwedBytes() == 0) whole.push_back(node);
    }
    if (owed) creditors.insert(creditors.end(), whole.begin(), whole.end());
  }
  return creditors.empty() ? 0 : creditors[rng_.Below(creditors.size())];
}

void Chaos::WipeOne() {
  NodeId node = AnyCreditor();
  if (node == 0) node = AnyNode();
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
