// SPDX-License-Identifier: Apache-2.0
#include "daemon/node_core.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/coding.h"
#include "base/probe.h"
#include "base/sabotage.h"
#include "daemon/digest.h"

namespace hydra {
namespace {

// How soon members of a new configuration get heartbeats.
constexpr Nanos kPeersInterval = 50 * kMillisecond;

}  // namespace

NodeCore::NodeCore(const Options& options, Engine* engine, Nanos now)
    : options_(options),
      engine_(engine),
      recovery_budget_(options.recovery_rate),
      scrubber_(engine) {
  // What this node granted before it started is forgotten, so it waits out the longest.
  Nanos longest = 0;
  for (const GroupId group : engine_->Groups()) {
    const auto info = engine_->Info(group);
    if (!info.ok()) continue;
    const auto identity = ReplicaIdentity::Decode(AsBytes(info->opaque));
    if (identity.ok()) longest = std::max(longest, identity->lease);
  }
  paxos::LeaseTable::Options leases = options.leases;
  leases.node = options.node;
  leases.boot = options.boot;
  const std::string store = engine_->identity().store.ToString();
  Digester digester;
  digester.Add(AsBytes(store));
  leases.store = digester.value();
  if (HYDRA_SABOTAGE(kLeaseIgnoresRestart)) longest = 0;
  leases.quiet_until = longest == 0 ? 0 : now + longest;
  leases_ = std::make_unique<paxos::LeaseTable>(leases);
  leases_->SetDurableBatch(engine_->durable_batch());
  engine_->SetStateSource([this](GroupId group) {
    const auto found = shards_.find(group % kMaxGroups);
    const bool has = found != shards_.end() && found->second->store_group() == group;
    return has ? found->second->SavedState() : std::string();
  });
}

NodeCore::~NodeCore() {
  engine_->SetStateSource([](GroupId) { return std::string(); });
}

std::unique_ptr<Shard> NodeCore::MakeShard(GroupId group, GroupId store_group) {
  Shard::Options options = options_.shard;
  options.group = group;
  options.store_group = store_group;
  options.life = shards_made_++;
  options.node = options_.node;
  options.lease = options_.leases.lease;
  options.seed = options_.seed * 1'000'003 + group;
  options.may_use_reserve = options_.reserve_group == group;
  const auto dropped = dropped_.find(group);
  if (dropped != dropped_.end()) options.replica.used_round = dropped->second.round;
  auto shard = std::make_unique<Shard>(options, engine_, leases_.get(), &tokens_, &recovery_budget_,
                                       &active_);
  shard->MayAskBare(may_ask_bare_);
  return shard;
}

Status NodeCore::Start(Nanos now) {
  std::map<GroupId, GroupId> newest;  // that the store has of each group
  for (const GroupId store_group : engine_->Groups()) {
    GroupId& known = newest[store_group % kMaxGroups];
    known = std::max(known, store_group);
  }
  for (const GroupId store_group : engine_->Groups()) {
    const GroupId group = store_group % kMaxGroups;
    if (newest[group] != store_group) {
      // It was being dropped when its successor was made.
      HYDRA_PROBE("node: a dropped replica is found beside its successor, and dropped again");
      HYDRA_RETURN_IF_ERROR(engine_->DropGroup(store_group, 0));
      continue;
    }
    std::unique_ptr<Shard> shard = MakeShard(group, store_group);
    const Status started = shard->StartRecovered(now);
    if (!started.ok()) return started.WithContext(fmt::format("group {}", group));
    shards_.emplace(group, std::move(shard));
  }
  UpdatePeers(now);
  UpdateLeases();
  return Status::Ok();
}

Status NodeCore::CreateGroup(GroupId group, uint32_t block_pages, uint32_t incarnation,
                             const std::vector<paxos::Member>& members, Nanos now) {
  if (shards_.contains(group)) return Status::AlreadyExists("this node has a replica of it");
  HYDRA_ASSIGN_OR_RETURN(const GroupId store_group, CreateInStore(group, block_pages, incarnation));
  std::unique_ptr<Shard> shard = MakeShard(group, store_group);
  ReplicaIdentity identity;
  identity.incarnation = incarnation;
  identity.lease = options_.leases.lease;
  identity.first_members = members;
  HYDRA_RETURN_IF_ERROR(shard->StartNew(identity, now));
  shards_.emplace(group, std::move(shard));
  UpdatePeers(now);
  return Status::Ok();
}

// Under the first number that the store has not given to a replica that was dropped, or is about to
// be: the record of that goes before this one's. Incarnations only grow, so the one that comes
// after as many as were dropped is at least the next; a lower one was here.
Result<GroupId> NodeCore::CreateInStore(GroupId group, uint32_t block_pages, uint32_t incarnation) {
  HYDRA_CHECK(group < kMaxGroups);
  const Status was_here = Status::FailedPrecondition(fmt::format(
      "its replica of incarnation {} was dropped here, and is not made again", incarnation));
  const auto dropped = dropped_.find(group);
  if (dropped != dropped_.end() && incarnation <= dropped->second.incarnation) return was_here;
  for (GroupId id = group; id < UINT32_MAX - kMaxGroups; id += kMaxGroups) {
    if (id / kMaxGroups >= incarnation) return was_here;
    const Status created = engine_->CreateGroup(id, block_pages, 0);
    if (created.ok() && id != group) HYDRA_PROBE("node: a replica of a group that was here before");
    if (created.ok()) return id;
    const Code code = created.code();
    if (code != Code::kFailedPrecondition && code != Code::kAlreadyExists) return created;
  }
  return Status::FailedPrecondition(fmt::format(
      "group {} had replicas here too often: replace this node under a new data directory", group));
}

Status NodeCore::DropGroup(GroupId group, Nanos now) {
  const auto found = shards_.find(group);
  if (found == shards_.end()) return Status::NotFound("no such group");
  HYDRA_RETURN_IF_ERROR(engine_->DropGroup(found->second->store_group(), 0));
  Dropped& dropped = dropped_[group];
  dropped.incarnation = std::max(dropped.incarnation, found->second->identity().incarnation);
  dropped.round = std::max(dropped.round, found->second->replica().highest_round());
  tokens_.CancelAll(group);
  ShardOutput last;
  found->second->Abandon(now, &last);
  for (ShardReply& reply : last.replies) replies_.push_back(std::move(reply));
  dropped_repairs_ += found->second->repairs();
  dropped_repairs_.under_way = 0;
  shards_.erase(found);
  return Status::Ok();
}

Shard* NodeCore::shard(GroupId group) {
  const auto found = shards_.find(group);
  return found == shards_.end() ? nullptr : found->second.get();
}

const Shard* NodeCore::shard(GroupId group) const {
  return const_cast<NodeCore*>(this)->shard(group);
}

void NodeCore::UpdatePeers(Nanos now) {
  peers_updated_ = now;
  std::set<NodeId> nodes = known_;
  for (const auto& [group, shard] : shards_) {
    for (const paxos::Member& member : shard->replica().config().members()) {
      nodes.insert(member.id.node);
    }
  }
  nodes.erase(options_.node);
  leases_->SetPeers({nodes.begin(), nodes.end()}, now);
}

// A lease that was raised since the last start is granted when all groups have it in their hard
// state: a restart waits out what is stored.
void NodeCore::UpdateLeases() {
  Nanos longest = options_.leases.lease;
  for (const auto& [group, shard] : shards_) longest = std::min(longest, shard->durable_lease());
  leases_->SetLongestGrant(longest);
}

// What this store may be sent: not what it still has to fetch of what others have chosen.
void NodeCore::UpdateRoom() {
  const Room room = engine_->PayloadRoom();
  uint64_t spoken_for = tokens_.waiting_bytes();
  bool known = room.known;
  for (const auto& [group, shard] : shards_) {
    const uint64_t behind = shard->MissingBytes();
    spoken_for += behind;
    known = known && behind == 0;
  }
  spoken_for += OwedBytes();
  leases_->SetRoom(room.bytes > spoken_for ? room.bytes - spoken_for : 0, known);
}

void NodeCore::MayAskBare(bool may) {
  may_ask_bare_ = may;
  for (const auto& [group, shard] : shards_) shard->MayAskBare(may);
}

uint64_t NodeCore::OwedBytes() const {
  uint64_t bytes = 0;
  for (const auto& [group, shard] : shards_) bytes += shard->OwedBytes();
  return bytes;
}

void NodeCore::Tick(Nanos now) {
  if (now >= peers_updated_ + kPeersInterval) UpdatePeers(now);
  UpdateLeases();
  leases_->SetDurableBatch(engine_->durable_batch());
  UpdateRoom();
  uint64_t written = 0;
  for (auto& [group, shard] : shards_) {
    shard->Tick(now);
    written += shard->TakeWritten();
  }
  leases_->Tick(now, &heartbeats_);
  const bool clients = std::exchange(clients_, false);
  recovery_budget_.Tick(now, clients, written);
  scrubber_.Tick(now, clients, &scrub_reads_);
}

// The engine names groups as it calls them.
void NodeCore::OnDamage(const std::vector<Damage>& found, Nanos now) {
  for (const Damage& damage : found) {
    Shard* target = shard(damage.group % kMaxGroups);
    if (target == nullptr) continue;
    // Of an earlier replica of the same group, which was dropped meanwhile.
    if (target->store_group() == damage.group) target->OnDamage(damage, now);
  }
}

RepairStats NodeCore::Repairs() const {
  RepairStats sum = dropped_repairs_;
  for (const auto& [group, shard] : shards_) sum += shard->repairs();
  sum.repaired = engine_->Stats().repaired_blocks;
  return sum;
}

void NodeCore::Receive(PeerMessage message, Nanos now) {
  if (auto* heartbeat = std::get_if<paxos::Heartbeat>(&message)) {
    if (known_.insert(heartbeat->from).second) UpdatePeers(now);
    std::vector<std::pair<NodeId, paxos::Notice>> notices;
    leases_->Step(*heartbeat, now, &heartbeats_, &notices);
    for (const auto& [from, notice] : notices) {
      Shard* shard = this->shard(notice.group);
      if (shard != nullptr) shard->OnNotice(from, notice, now);
    }
    return;
  }
  if (auto* block = std::get_if<BlockMessage>(&message)) {
    Shard* target = shard(block->group);
    if (target != nullptr) target->OnBlockMessage(std::move(*block), now);
    return;
  }
  if (auto* owed = std::get_if<OwedMessage>(&message)) {
    Shard* target = shard(owed->group);
    if (target != nullptr) target->OnOwedMessage(std::move(*owed), now);
    return;
  }
  auto& inner = std::get<paxos::Message>(message);
  // A store that went back in time has forgotten promises.
  const std::vector<NodeId>& refused = leases_->rolled_back();
  if (std::find(refused.begin(), refused.end(), inner.from.node) != refused.end()) return;
  Shard* target = shard(inner.group);
  if (target == nullptr) return;  // unknown groups are created by the catalogue alone
  target->Step(std::move(inner), now);
}

void NodeCore::Submit(GroupId group, ShardRequest&& request, Nanos now) {
  clients_ = true;
  Shard* target = shard(group);
  if (target != nullptr) target->Submit(std::move(request), now);
}

void NodeCore::Completed(const std::vector<Completion>& completions, Nanos now) {
  for (const Completion& completion : completions) {
    const auto owner = tokens_.Take(completion.token);
    if (!owner) continue;
    Shard* target = shard(owner->group);
    if (target != nullptr) target->Completed(owner->local, now);
  }
}

void NodeCore::ReadDone(ShardRead read, Nanos now) {
  if (read.group == kNodeGroup) return OnDamage(scrubber_.Done(std::move(read.job), now), now);
  Shard* target = shard(read.group);
  if (target != nullptr) {
    target->ReadDone(read.ticket, std::move(read.job), now);
  } else {
    engine_->DropRead(std::move(read.job));
  }
}

void NodeCore::Pump(Nanos now, NodeOutput* out) {
  OnDamage(engine_->TakeDamage(), now);
  active_.Take(&pumped_);
  for (const GroupId group : pumped_) {
    Shard* const active = shard(group);  // null: dropped meanwhile
    if (active != nullptr) active->Pump(now, &shard_out_);
  }
  const bool silent = !failed().ok();
  if (!silent) {
    for (paxos::Message& message : shard_out_.messages) out->messages.push_back(std::move(message));
    for (paxos::Heartbeat& beat : heartbeats_) out->messages.push_back(std::move(beat));
    for (BlockMessage& message : shard_out_.blocks) out->messages.push_back(std::move(message));
    for (OwedMessage& message : shard_out_.owed) out->messages.push_back(std::move(message));
  }
  heartbeats_.clear();
  for (ShardReply& reply : replies_) shard_out_.replies.push_back(std::move(reply));
  replies_.clear();
  for (ShardReply& reply : shard_out_.replies) {
    if (!silent) out->replies.push_back(std::move(reply));
  }
  for (ShardRead& read : shard_out_.reads) out->reads.push_back(std::move(read));
  shard_out_.Clear();
  for (ShardRead& read : scrub_reads_) out->reads.push_back(std::move(read));
  scrub_reads_.clear();
}

Status NodeCore::failed() const {
  return engine_->poisoned().ok() ? active_.failed() : engine_->poisoned();
}

}  // namespace hydra
