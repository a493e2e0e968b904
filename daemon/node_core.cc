// SPDX-License-Identifier: Apache-2.0
#include "daemon/node_core.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/coding.h"
#include "base/probe.h"
#include "base/sabotage.h"
#include "daemon/digest.h"

namespace hydra {

NodeCore::NodeCore(const Options& options, Engine* engine, Nanos now)
    : options_(options), engine_(engine) {
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
    const auto found = shards_.find(group);
    return found == shards_.end() ? std::string() : found->second->SavedState();
  });
}

NodeCore::~NodeCore() {
  engine_->SetStateSource([](GroupId) { return std::string(); });
}

std::unique_ptr<Shard> NodeCore::MakeShard(GroupId group) {
  Shard::Options options = options_.shard;
  options.group = group;
  options.node = options_.node;
  options.lease = options_.leases.lease;
  options.seed = options_.seed * 1'000'003 + group;
  return std::make_unique<Shard>(options, engine_, leases_.get(), &tokens_, &catch_up_budget_);
}

Status NodeCore::Start(Nanos now) {
  for (const GroupId group : engine_->Groups()) {
    std::unique_ptr<Shard> shard = MakeShard(group);
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
  HYDRA_RETURN_IF_ERROR(engine_->CreateGroup(group, block_pages, 0));
  std::unique_ptr<Shard> shard = MakeShard(group);
  ReplicaIdentity identity;
  identity.incarnation = incarnation;
  identity.lease = options_.leases.lease;
  identity.first_members = members;
  HYDRA_RETURN_IF_ERROR(shard->StartNew(identity, now));
  shards_.emplace(group, std::move(shard));
  UpdatePeers(now);
  return Status::Ok();
}

Status NodeCore::DropGroup(GroupId group, Nanos now) {
  const auto found = shards_.find(group);
  if (found == shards_.end()) return Status::NotFound("no such group");
  HYDRA_RETURN_IF_ERROR(engine_->DropGroup(group, 0));
  ShardOutput last;
  found->second->Abandon(now, &last);
  for (ShardReply& reply : last.replies) replies_.push_back(std::move(reply));
  shards_.erase(found);
  return Status::Ok();
}

Shard* NodeCore::shard(GroupId group) {
  const auto found = shards_.find(group);
  return found == shards_.end() ? nullptr : found->second.get();
}

void NodeCore::UpdatePeers(Nanos now) {
  std::set<NodeId> nodes = heard_from_;
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
  leases_->SetRoom(room.bytes > spoken_for ? room.bytes - spoken_for : 0, known);
}

void NodeCore::Tick(Nanos now) {
  UpdatePeers(now);
  UpdateLeases();
  leases_->SetDurableBatch(engine_->durable_batch());
  UpdateRoom();
  for (auto& [group, shard] : shards_) shard->Tick(now);
  leases_->Tick(now, &heartbeats_);
}

void NodeCore::Receive(PeerMessage message, Nanos now) {
  if (auto* heartbeat = std::get_if<paxos::Heartbeat>(&message)) {
    if (heard_from_.insert(heartbeat->from).second) UpdatePeers(now);
    std::vector<std::pair<NodeId, paxos::Notice>> notices;
    leases_->Step(*heartbeat, now, &heartbeats_, &notices);
    for (const auto& [from, notice] : notices) {
      Shard* shard = this->shard(notice.group);
      if (shard != nullptr) shard->OnNotice(from, notice, now);
    }
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

void NodeCore::Submit(GroupId group, ShardRequest request, Nanos now) {
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
  Shard* target = shard(read.group);
  if (target != nullptr) {
    target->ReadDone(read.ticket, std::move(read.job), now);
  } else {
    engine_->DropRead(std::move(read.job));
  }
}

void NodeCore::Pump(Nanos now, NodeOutput* out) {
  ShardOutput shard_out;
  for (auto& [group, shard] : shards_) shard->Pump(now, &shard_out);
  const bool silent = !failed().ok();
  if (!silent) {
    for (paxos::Message& message : shard_out.messages) out->messages.push_back(std::move(message));
    for (paxos::Heartbeat& beat : heartbeats_) out->messages.push_back(std::move(beat));
  }
  heartbeats_.clear();
  for (ShardReply& reply : replies_) shard_out.replies.push_back(std::move(reply));
  replies_.clear();
  for (ShardReply& reply : shard_out.replies) {
    if (!silent) out->replies.push_back(std::move(reply));
  }
  for (ShardRead& read : shard_out.reads) out->reads.push_back(std::move(read));
}

Status NodeCore::failed() const {
  if (!engine_->poisoned().ok()) return engine_->poisoned();
  for (const auto& [group, shard] : shards_) {
    if (!shard->failed().ok()) return shard->failed();
  }
  return Status::Ok();
}

}  // namespace hydra
