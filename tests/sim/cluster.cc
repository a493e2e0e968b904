// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/cluster.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/check.h"
#include "base/sabotage.h"
#include "blockstore/batch_format.h"

namespace hydra::sim {
namespace {

constexpr char kDirectory[] = "/store";
constexpr Nanos kSlowDisk = 10;  // times as slow as the others

struct Wire {
  PeerMessage message;
};

uint64_t SizeOf(const PeerMessage& message) {
  uint64_t bytes = 100;
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
  const auto& beat = std::get<paxos::Heartbeat>(message);
  return fmt::format("{}>{} {} {} lease {} notices {}", beat.from, beat.to,
                     beat.is_reply ? "HeartbeatReply" : "Heartbeat", beat.sequence, beat.lease,
                     beat.notices.size());
}

}  // namespace

// One machine.
struct Cluster::Node {
  Node(Scheduler* scheduler, NodeId id, const SimClock::Options& clock_options)
      : id(id), clock(scheduler, id, clock_options), gate(scheduler, id) {}

  const NodeId id;
  SimClock clock;
  NodeGate gate;
  std::unique_ptr<SimDisk> disk;
  // Destroyed in the opposite order: the core and everything in flight before the engine.
  std::unique_ptr<Engine> engine;
  std::unique_ptr<NodeCore> core;
  std::map<uint64_t, ShardRead> reads;
  std::unique_ptr<Job> job;
  std::map<uint64_t, Instance> local_reads;  // request -> what was applied when it came
  uint64_t failed_calls = 0;                 // of the disk, before the process started
  uint64_t next_read = 0;
  bool writing = false;
  bool broken = false;
  uint64_t boots = 0;
  uint64_t stores = 0;
  uint64_t durable_batch = 0;  // known to be
  Uuid store;
  std::map<GroupId, paxos::Invariants::Snapshot> before;
  std::map<GroupId, uint32_t> incarnations;
  std::set<GroupId> durable_groups;  // something of them was seen on this disk
};

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
  if (knobs_.uneven) {
    const auto lease = static_cast<uint64_t>(knobs_.leases.lease);
    options.leases.dead_after =
        static_cast<Nanos>(knobs_.odd == 0    ? rng_.Between(lease / 2, 4 * lease)
                           : knobs_.odd == id ? rng_.Between(3 * lease, 8 * lease)
                                              : rng_.Between(lease / 2, lease));
  }
  const Nanos now = node.clock.Now();
  node.core = std::make_unique<NodeCore>(options, node.engine.get(), now);
  const Status started = node.core->Start(now);
  if (!started.ok()) {
    scheduler_->Note({"does not start", id}, started.ToString());
    Died(&node);
    if (node.disk->powered()) Broken(&node, started.WithContext("start"));
    return;
  }
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
  if (power_loss) {
    node.disk->PowerLoss();
  } else {
    node.disk->Crash();
  }
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
    packet.to = std::visit(
        [](const auto& m) -> NodeId {
          if constexpr (std::is_same_v<std::decay_t<decltype(m)>, paxos::Heartbeat>) {
            return m.to;
          } else {
            return m.to.node;
          }
        },
        message);
    if (nodes_.find(packet.to) == nodes_.end()) continue;
    packet.bytes = SizeOf(message);
    packet.fingerprint = message.index() == 0 ? std::get<paxos::Message>(message).body.index() : 99;
    packet.body = std::make_shared<const Wire>(Wire{std::move(message)});
    network_.Send(std::move(packet));
  }
  for (ShardReply& reply : out.replies) {
    if (reply.answer == ShardAnswer::kDamaged && node->disk->powered() && on_broken_) {
      on_broken_(node->id, "cannot read what it has: " + reply.status.ToString());
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

// --- Checks
// ---------------------------------------------------------------------------------------

void Cluster::CheckNode(Node* node) {
  std::erase_if(node->durable_groups,
                [&](GroupId group) { return !node->core->shards().contains(group); });
  for (const auto& [group, shard] : node->core->shards()) {
    const paxos::Replica& replica = shard->replica();
    ++checks_;
    std::string broken = paxos::Invariants::State(replica);
    // Who is readmitted begins anew.
    uint32_t& incarnation = node->incarnations[group];
    if (incarnation != replica.options().self.incarnation) node->before.erase(group);
    incarnation = replica.options().self.incarnation;
    const auto before = node->before.find(group);
    if (broken.empty() && before != node->before.end()) {
      broken = paxos::Invariants::Step(before->second, replica);
    }
    if (!broken.empty()) {
      return Fail(fmt::format("node {} group {}: {}", node->id, group, broken));
    }
    const bool moved = before == node->before.end() || before->second.applied != replica.applied();
    node->before[group] = paxos::Invariants::Take(replica);
    NoteChosen(node, group);
    if (!replica.installing() && replica.applied() == replica.commit() &&
        replica.config().instance() != shard->state().config().instance()) {
      return Fail(
          fmt::format("node {} group {}: not the configuration that it applied", node->id, group));
    }
    if (!moved || replica.installing()) continue;
    const auto [chain, first] =
        chains_.try_emplace({group, replica.applied()}, shard->state().chain());
    if (!first && chain->second != shard->state().chain()) {
      return Fail(
          fmt::format("node {} group {}: what was chosen up to instance {} is not what "
                      "another replica applied",
                      node->id, group, replica.applied()));
    }
  }
}

// Reads what was chosen next from this node's log, if it is there: whoever applies an instance
// first may not have it on its own disk yet.
void Cluster::NoteChosen(Node* node, GroupId group) {
  auto& known = effects_[group];
  const auto info = node->engine->Info(group);
  if (info.ok() && info->stable > 0) node->durable_groups.insert(group);
  if (!info.ok() || info->installing) return;
  while (known.size() < info->stable) {
    const Instance instance = known.size() + 1;
    if (node->engine->LogEntries(group, instance, instance).empty()) return;
    const auto record = node->engine->ReadLogRecord(group, instance);
    if (!record.ok()) return;
    std::map<Block, LocalReads::Effect> effects;
    const auto& operations = record->entry.operations;
    for (size_t i = 0; i < operations.size(); ++i) {
      const Operation& op = operations[i];
      const bool write = op.kind == ::hydra::OpKind::kWrite;
      if (!write && op.kind != ::hydra::OpKind::kZero && op.kind != ::hydra::OpKind::kUnmap)
        continue;
      for (uint64_t b = 0; b < op.count; ++b) {
        const Block block = uint64_t{group} << 32 | (op.lba + b);
        const Version version = MakeVersion(instance, static_cast<uint32_t>(i));
        effects[block] = {block, version, write ? uint64_t{op.crcs[b]} : kAbsent};
      }
    }
    auto& list = known.emplace_back();
    for (const auto& [block, effect] : effects) list.push_back(effect);
  }
}

void Cluster::TellChosen(LocalReads* reads) const {
  for (const auto& [group, instances] : effects_) {
    for (size_t i = 0; i < instances.size(); ++i) reads->Chosen(group, i + 1, instances[i]);
  }
}

NodeId Cluster::MasterOf(GroupId group) {
  NodeId master = 0;
  Ballot best;
  for (const NodeId id : node_ids_) {
    Shard* shard = this->shard(id, group);
    if (shard == nullptr || !shard->ready()) continue;
    if (shard->replica().ballot() > best) {
      best = shard->replica().ballot();
      master = id;
    }
  }
  return master;
}

paxos::Config Cluster::NewestConfig(GroupId group) {
  paxos::Config newest;
  bool any = false;
  for (const NodeId id : node_ids_) {
    Shard* shard = this->shard(id, group);
    if (shard == nullptr) continue;
    const paxos::Config& config = shard->replica().config();
    if (!any || config.instance() > newest.instance()) newest = config;
    any = true;
  }
  return newest;
}

std::string Cluster::Unconverged() {
  for (const auto& [id, node] : nodes_) {
    if (node->writing || node->job != nullptr) return fmt::format("node {} is at work", id);
  }
  for (const GroupId group : group_ids_) {
    const NodeId master = MasterOf(group);
    if (master == 0) return fmt::format("group {} has no master", group);
    const paxos::Replica& head = shard(master, group)->replica();
    for (const paxos::Member& member : head.config().members()) {
      Shard* replica = shard(member.id.node, group);
      if (replica == nullptr) {
        return fmt::format("group {}: node {} has no replica", group, member.id.node);
      }
      if (replica->replica().options().self != member.id) {
        return fmt::format("group {}: node {} is not incarnation {}", group, member.id.node,
                           member.id.incarnation);
      }
      if (replica->replica().applied() != head.commit() || !replica->serves_local()) {
        return fmt::format("group {}: node {} has applied {} of {}{}{}", group, member.id.node,
                           replica->replica().applied(), head.commit(),
                           replica->replica().installing() ? ", installing" : "",
                           replica->replica().suspect() ? ", suspect" : "");
      }
    }
  }
  return {};
}

std::string Cluster::Describe() {
  std::string text;
  for (const auto& [id, node] : nodes_) {
    if (!node->gate.alive()) {
      text += fmt::format("node {}: {}\n", id, node->broken ? "broken" : "down");
      continue;
    }
    const EngineStats stats = node->engine->Stats();
    text += fmt::format("node {}: {}queued {} free segments {} of {} KiB{}{}\n", id,
                        node->gate.paused() ? "paused, " : "", stats.queued_bytes,
                        stats.free_segments, stats.space_bytes >> 10,
                        node->writing ? ", writing" : "", node->job ? ", job" : "");
    for (const NodeId refused : node->core->leases().rolled_back()) {
      text += fmt::format("  refuses node {}: rolled back\n", refused);
    }
    for (const auto& [group, shard] : node->core->shards()) {
      const paxos::Replica& r = shard->replica();
      constexpr const char* kModes[] = {"follower", "pre-voting", "preparing", "recovering",
                                        "master"};
      std::string members;
      for (const paxos::Member& member : r.config().members()) {
        members += fmt::format(" {}.{}{}", member.id.node, member.id.incarnation,
                               member.role == paxos::Role::kLearner ? "l" : "");
      }
      text += fmt::format(
          "  group {}: {}.{} {} promised {} commit {} applied {} last {} config {}:{}{}{}{}{}\n",
          group, r.options().self.node, r.options().self.incarnation,
          kModes[static_cast<int>(r.mode())], paxos::Describe(r.promised()), r.commit(),
          r.applied(), r.last(), r.config().instance(), members, r.suspect() ? " suspect" : "",
          r.installing() ? " installing" : "", shard->ready() ? " ready" : "",
          shard->failed().ok() ? "" : " " + shard->failed().ToString());
    }
  }
  return text;
}

std::string Cluster::CompareReplicas() {
  for (const GroupId group : group_ids_) {
    const NodeId master = MasterOf(group);
    std::optional<uint64_t> blocks;
    std::optional<uint64_t> state;
    if (master == 0) return fmt::format("group {} has no master", group);
    for (const paxos::Member& member : shard(master, group)->replica().config().members()) {
      Shard* replica = shard(member.id.node, group);
      if (replica == nullptr) continue;
      const auto digest = At(member.id.node).engine->Digest(group);
      if (!digest.ok()) return "digest: " + digest.status().ToString();
      if (blocks && *blocks != *digest) {
        return fmt::format("group {}: the blocks of node {} differ", group, member.id.node);
      }
      if (state && *state != replica->state().Digest()) {
        return fmt::format("group {}: the state of node {} differs", group, member.id.node);
      }
      blocks = *digest;
      state = replica->state().Digest();
    }
  }
  return {};
}

}  // namespace hydra::sim
