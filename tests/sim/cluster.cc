// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/sabotage.h"
#include "blockstore/batch_format.h"
#include "tests/sim/cluster_node.h"

namespace hydra::sim {
namespace {

constexpr char kDirectory[] = "/store";
constexpr Nanos kSlowDisk = 10;  // times as slow as the others

struct Wire {
  PeerMessage message;
};

uint64_t SizeOf(const PeerMessage& message) {
  uint64_t bytes = 100;
  if (const auto* block = std::get_if<BlockMessage>(&message)) bytes += block->data.length;
  if (const auto* owed = std::get_if<OwedMessage>(&message)) {
    bytes += owed->blocks.size() * 20;
    for (const BufferSlice& slice : owed->payload) bytes += slice.length;
  }
  if (const auto* inner = std::get_if<paxos::Message>(&message)) {
    if (const auto* accept = std::get_if<paxos::Accept>(&inner->body)) {
      for (const paxos::AcceptEntry& entry : *accept->entries) bytes += 50 + entry.meta.bytes;
    } else if (const auto* reply = std::get_if<paxos::CatchUpReply>(&inner->body)) {
      for (const paxos::ChosenEntry& entry : reply->entries) {
        bytes += 50 + (entry.same ? 0 : entry.meta.bytes);
      }
    } else if (std::holds_alternative<paxos::InstallChunk>(inner->body)) {
      bytes += 64 * 1024;
    }
  }
  return bytes;
}

Network::Options NetworkOptions(const Knobs& knobs, uint64_t seed) {
  Network::Options options;
  options.seed = seed;
  options.weather.duplicate_permille = knobs.duplicate_permille;
  options.hold_percent = knobs.hold_percent;
  return options;
}

std::string DescribeWire(const PeerMessage& message) {
  if (const auto* inner = std::get_if<paxos::Message>(&message)) {
    return fmt::format("g{} {}", inner->group, paxos::Describe(*inner));
  }
  if (const auto* block = std::get_if<BlockMessage>(&message)) {
    return fmt::format("g{} {}>{} {} {} version {}", block->group, block->from, block->to,
                       !block->answer ? "Block?"
                       : block->found ? "Block"
                                      : "NoBlock",
                       block->lba, block->version);
  }
  if (const auto* owed = std::get_if<OwedMessage>(&message)) {
    return fmt::format("g{} {}>{} {} {} {} blocks", owed->group, owed->from, owed->to,
                       owed->answer ? "Owed" : "Owed?", owed->request, owed->blocks.size());
  }
  const auto& beat = std::get<paxos::Heartbeat>(message);
  return fmt::format("{}>{} {} {} lease {} notices {}", beat.from, beat.to,
                     beat.is_reply ? "HeartbeatReply" : "Heartbeat", beat.sequence, beat.lease,
                     beat.notices.size());
}

}  // namespace

Cluster::Cluster(Scheduler* scheduler, const Knobs& knobs, uint64_t seed)
    : scheduler_(scheduler),
      knobs_(knobs),
      rng_(seed),
      network_(scheduler, NetworkOptions(knobs, rng_.Next())) {
  network_.SetDescriber([](const Packet& p) { return DescribeWire(p.As<Wire>().message); });
  for (NodeId id = 1; id <= knobs.nodes; ++id) {
    node_ids_.push_back(id);
    SimClock::Options clock;
    clock.start = static_cast<Nanos>(rng_.Below(1000)) * kSecond;
    clock.bound_ppm = knobs.drift_ppm;
    clock.seed = rng_.Next();
    auto node = std::make_unique<Node>(scheduler, id, clock);
    // At the edge of the bound from the start, and for longer than a lease.
    const bool slow = knobs.steady_clocks && knobs.odd != 0 ? id == knobs.odd : rng_.Percent(50);
    if (knobs.steady_clocks || rng_.Percent(70)) {
      node->clock.SetRate(slow ? -clock.bound_ppm : clock.bound_ppm);
    }
    if (!knobs.steady_clocks) node->clock.KeepChanging(kSecond, 20 * kSecond);
    Node* raw = node.get();
    nodes_.emplace(id, std::move(node));
    network_.AddNode(id, [this, raw](const Packet& packet) { Deliver(raw, packet); });
    network_.SetUp(id, false);
  }
}

Cluster::~Cluster() {
  for (auto& [id, node] : nodes_) Died(node.get());
}

void Cluster::Fail(const std::string& what) {
  if (on_failure_) on_failure_(what);
}

// --- Life
// -----------------------------------------------------------------------------------------

void Cluster::CreateAll() {
  for (const NodeId id : node_ids_) Wipe(id);
  for (unsigned g = 0; g < knobs_.groups; ++g) {
    const GroupId group = g + 1;
    group_ids_.push_back(group);
    std::vector<paxos::Member> members;
    for (unsigned r = 0; r < knobs_.replicas; ++r) {
      members.push_back({{node_ids_[(g + r) % node_ids_.size()], 1}, paxos::Role::kVoter});
    }
    for (const paxos::Member& member : members) {
      Touch(member.id.node, [&](NodeCore* core, Nanos now) {
        const Status created = core->CreateGroup(group, 1, 1, members, now);
        if (!created.ok()) Fail("create a group: " + created.ToString());
      });
    }
  }
}

Status Cluster::OpenEngine(Node* node) {
  EngineOptions options = knobs_.engine;
  options.fs = node->disk.get();
  options.dir = kDirectory;
  auto engine = Engine::Open(options);
  if (!engine.ok()) return engine.status();
  node->engine = std::move(*engine);
  return Status::Ok();
}

void Cluster::Wipe(NodeId id) {
  Node& node = At(id);
  Died(&node);
  SimDisk::Options disk;
  disk.seed = rng_.Next();
  disk.lose_percent = knobs_.lose_percent;
  disk.garble_percent = knobs_.garble_percent;
  node.disk = std::make_unique<SimDisk>(disk);
  node.broken = false;
  node.durable_batch = 0;
  node.durable_groups.clear();
  ++node.stores;
  CreateOptions create;
  create.node = id;
  create.segment_bytes = knobs_.segment_bytes;
  Uuid uuid;
  for (uint8_t& byte : uuid.bytes) byte = static_cast<uint8_t>(rng_.Next());
  create.store = uuid;
  node.store = uuid;
  const Status created = Engine::Create(node.disk.get(), kDirectory, create);
  if (!created.ok()) return Fail("create a store: " + created.ToString());
  Boot(id);
}

void Cluster::Boot(NodeId id) {
  Node& node = At(id);
  if (node.gate.alive() || node.broken) return;
  if (!node.disk->powered()) node.disk->Restart();
  ++node.boots;
  const Status opened = OpenEngine(&node);
  if (!opened.ok()) {
    // Nothing but damage may keep a store from opening; the run asks which it was.
    scheduler_->Note({"does not open", id}, opened.ToString());
    // Without power or space it opens later.
    const bool later = !node.disk->powered() || opened.code() == Code::kNoSpace;
    if (!later) Broken(&node, opened.WithContext("open"));
    return;
  }
  node.failed_calls = node.disk->failed_calls(kSegmentDirectory);
  const uint64_t durable = node.engine->durable_batch();
  if (durable < node.durable_batch && on_broken_) {
    on_broken_(id, fmt::format("went back from batch {} to {}", node.durable_batch, durable));
  }
  node.durable_batch = durable;
  for (const GroupId group : node.engine->Groups()) {
    const auto info = node.engine->Info(group);
    if (info.ok() && info->suspect && on_broken_) {
      on_broken_(id, fmt::format("group {} may have lost records", group));
    }
    node.durable_groups.erase(group);
  }
  for (const GroupId group : node.durable_groups) {
    if (on_broken_) on_broken_(id, fmt::format("group {} is gone", group));
  }
  node.durable_groups.clear();
  NodeCore::Options options;
  options.node = id;
  options.boot = rng_.Next() | 1;
  options.seed = rng_.Next();
  options.leases = knobs_.leases;
  options.shard = knobs_.shard;
  options.recovery_rate = knobs_.recovery_rate;
  if (knobs_.uneven) {
    const auto lease = static_cast<uint64_t>(knobs_.leases.lease);
    options.leases.dead_after =
        static_cast<Nanos>(knobs_.odd == 0    ? rng_.Between(lease / 2, 4 * lease)
                           : knobs_.odd == id ? rng_.Between(3 * lease, 8 * lease)
                                              : rng_.Between(lease / 2, lease));
  }
  const Nanos now = node.clock.Now();
  node.rotten = 0;
  node.core = std::make_unique<NodeCore>(options, node.engine.get(), now);
  node.core->MayAskBare(knobs_.bare);
  const Status started = node.core->Start(now);
  if (!started.ok()) {
    scheduler_->Note({"does not start", id}, started.ToString());
    Died(&node);
    if (node.disk->powered()) Broken(&node, started.WithContext("start"));
    return;
  }
  // As the catalogue tells it.
  for (const NodeId other : node_ids_) node.core->Know(other);
  node.before.clear();
  node.gate.Start();
  network_.SetUp(id, true);
  scheduler_->Note({"boot", id, node.boots, durable});
  ScheduleTick(&node);
  Act(&node);
}

void Cluster::Broken(Node* node, const Status& why) {
  node->broken = true;
  if (on_broken_) on_broken_(node->id, why.ToString());
}

void Cluster::Died(Node* node) {
  if (node->gate.alive()) node->gate.Die();
  network_.SetUp(node->id, false);
  node->writing = false;
  node->reads.clear();
  node->local_reads.clear();
  node->job.reset();
  node->core.reset();
  node->engine.reset();
}

void Cluster::Kill(NodeId id, bool power_loss) {
  Node& node = At(id);
  if (!node.gate.alive()) return;
  scheduler_->Note({power_loss ? "power loss" : "killed", id});
  Died(&node);
  for (const NodeId other : node_ids_) {
    if (rng_.Percent(50)) LoseConnection(other, id);
  }
  if (power_loss) {
    node.disk->PowerLoss();
  } else {
    node.disk->Crash();
  }
}

void Cluster::LoseConnection(NodeId id, NodeId peer) {
  Node& node = At(id);
  if (id != peer && node.gate.alive() && !node.gate.paused()) node.core->ConnectionLost(peer);
}

uint64_t Cluster::life(NodeId id) const { return At(id).boots; }
uint64_t Cluster::durable_batch(NodeId id) const { return At(id).durable_batch; }
const Uuid& Cluster::store(NodeId id) const { return At(id).store; }

Instance Cluster::HighestApplied(GroupId group) const {
  const auto behind = chains_.lower_bound({group + 1, 0});
  if (behind == chains_.begin()) return 0;
  const auto& [key, chain] = *std::prev(behind);
  return key.first == group ? key.second : 0;
}

bool Cluster::alive(NodeId id) const { return At(id).gate.alive(); }
bool Cluster::paused(NodeId id) const { return At(id).gate.paused(); }
bool Cluster::broken(NodeId id) const { return At(id).broken; }
void Cluster::Pause(NodeId id) { At(id).gate.Pause(); }
void Cluster::Resume(NodeId id) { At(id).gate.Resume(); }
SimDisk& Cluster::disk(NodeId id) { return *At(id).disk; }
SimClock& Cluster::clock(NodeId id) { return At(id).clock; }

NodeCore* Cluster::core(NodeId id) { return At(id).gate.alive() ? At(id).core.get() : nullptr; }

Shard* Cluster::shard(NodeId id, GroupId group) {
  NodeCore* node = core(id);
  return node == nullptr ? nullptr : node->shard(group);
}

// --- Events of a node
// -----------------------------------------------------------------------------

void Cluster::ScheduleTick(Node* node) {
  node->gate.After(knobs_.tick, {"tick", node->id}, [this, node] {
    node->core->Tick(node->clock.Now());
    ScheduleTick(node);
    Act(node);
  });
}

void Cluster::Touch(NodeId id, const std::function<void(NodeCore*, Nanos)>& work) {
  Node& node = At(id);
  if (!node.gate.alive()) return;
  node.gate.Do([this, &node, work] {
    work(node.core.get(), node.clock.Now());
    Act(&node);
  });
}

void Cluster::Submit(NodeId id, GroupId group, ShardRequest request) {
  Node& node = At(id);
  auto shared = std::make_shared<ShardRequest>(std::move(request));
  node.gate.Offer([this, &node, group, shared] {
    const Shard* shard = node.core->shard(group);
    if (shared->kind == ShardRequest::Kind::kReadLocal && shard != nullptr) {
      node.local_reads[shared->id] = shard->replica().applied();
    }
    node.core->Submit(group, std::move(*shared), node.clock.Now());
    Act(&node);
  });
}

void Cluster::Deliver(Node* node, const Packet& packet) {
  node->gate.Offer([this, node, packet] {
    node->core->Receive(packet.As<Wire>().message, node->clock.Now());
    Act(node);
  });
}

void Cluster::Act(Node* node) {
  NodeOutput out;
  node->core->Pump(node->clock.Now(), &out);
  CheckNode(node);
  for (PeerMessage& message : out.messages) {
    Packet packet;
    packet.from = node->id;
    packet.to = ReceiverOf(message);
    if (nodes_.find(packet.to) == nodes_.end()) continue;
    packet.bytes = SizeOf(message);
    packet.fingerprint = message.index() == 0 ? std::get<paxos::Message>(message).body.index() : 99;
    packet.body = std::make_shared<const Wire>(Wire{std::move(message)});
    network_.Send(std::move(packet));
  }
  // A block that was mended from a peer was rotten all the same: something must have made it so.
  const uint64_t rotten = node->core->Repairs().found;
  if (rotten > std::exchange(node->rotten, rotten) && node->disk->powered() && on_broken_) {
    on_broken_(node->id, std::string(kCannotRead) + "rotten blocks");
  }
  for (ShardReply& reply : out.replies) {
    if (reply.answer == ShardAnswer::kDamaged && node->disk->powered() && on_broken_) {
      on_broken_(node->id, std::string(kCannotRead) + reply.status.ToString());
    }
    std::optional<Instance> as_of;
    const auto local = node->local_reads.find(reply.id);
    if (local != node->local_reads.end()) {
      as_of = local->second;
      node->local_reads.erase(local);
    }
    if (on_reply_) on_reply_(node->id, reply, as_of);
  }
  for (ShardRead& read : out.reads) {
    const uint64_t ticket = node->next_read++;
    node->reads.emplace(ticket, std::move(read));
    const Nanos delay = static_cast<Nanos>(rng_.Below(static_cast<uint64_t>(DiskLatency(*node))));
    node->gate.After(delay, {"read", node->id, ticket}, [this, node, ticket] {
      const auto found = node->reads.find(ticket);
      ShardRead done = std::move(found->second);
      node->reads.erase(found);
      done.job->Run();
      node->core->ReadDone(std::move(done), node->clock.Now());
      Act(node);
    });
  }
  const Status failed = node->core->failed();
  if (!failed.ok() || !node->disk->powered()) {
    // The process stops; whether its store may be trusted again depends on why.
    const bool power = !node->disk->powered();
    scheduler_->Note({"stops", node->id, power}, failed.ToString());
    const NodeId id = node->id;
    if (!power) Broken(node, failed);
    Node* raw = node;
    scheduler_->After(0, {"stopped", id}, [this, raw, power] {
      if (!raw->gate.alive()) return;
      Died(raw);
      if (!power) raw->disk->Crash();
    });
    return;
  }
  // Nothing is known of what a failed write left behind, or what later ones are worth.
  if (!node->writing && node->job == nullptr &&
      node->disk->failed_calls(kSegmentDirectory) > node->failed_calls) {
    return Fail(fmt::format("node {} goes on after a failed write", node->id));
  }
  StartBatch(node);
  StartJob(node);
}

Nanos Cluster::DiskLatency(const Node& node) const {
  return node.id == knobs_.slow_disk ? kSlowDisk * knobs_.disk_latency : knobs_.disk_latency;
}

Nanos Cluster::SlowestWrite() const {
  return knobs_.slow_disk != 0 ? kSlowDisk * knobs_.disk_latency : knobs_.disk_latency;
}

void Cluster::StartBatch(Node* node) {
  if (node->writing) return;
  Batch* batch = node->engine->NextBatch(node->clock.Now());
  if (batch == nullptr) return;
  node->writing = true;
  // The device may have the bytes long before it says so.
  const bool early = rng_.Percent(50);
  auto written = std::make_shared<Status>();
  if (early) *written = batch->Write();
  const Nanos latency = DiskLatency(*node);
  const Nanos delay =
      latency / 2 + static_cast<Nanos>(rng_.Below(static_cast<uint64_t>(latency) + 1));
  node->gate.After(delay, {"written", node->id, batch->bytes()},
                   [this, node, batch, early, written] {
                     if (!early) *written = batch->Write();
                     node->writing = false;
                     std::vector<Completion> completions;
                     node->engine->BatchDone(batch, *written, node->clock.Now(), &completions);
                     node->durable_batch = node->engine->durable_batch();
                     node->core->Completed(completions, node->clock.Now());
                     Act(node);
                   });
}

void Cluster::StartJob(Node* node) {
  if (node->job != nullptr) return;
  node->job = node->engine->NextJob();
  if (node->job == nullptr) return;
  const Nanos delay = static_cast<Nanos>(rng_.Below(static_cast<uint64_t>(4 * DiskLatency(*node))));
  node->gate.After(delay, {"job", node->id}, [this, node] {
    node->job->Run();
    node->engine->FinishJob(std::move(node->job));
    Act(node);
  });
}

}  // namespace hydra::sim
