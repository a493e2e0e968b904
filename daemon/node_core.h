// SPDX-License-Identifier: Apache-2.0
//
// All replicas of one node on one engine, and their leases: everything that hydrad does, without
// its threads and sockets, which is how the simulator runs it.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <variant>
#include <vector>

#include "blockstore/engine.h"
#include "daemon/scrubber.h"
#include "daemon/shard.h"
#include "paxos/lease_table.h"

namespace hydra {

using PeerMessage = std::variant<paxos::Message, paxos::Heartbeat, BlockMessage, OwedMessage>;

inline NodeId ReceiverOf(const paxos::Message& message) { return message.to.node; }
inline NodeId ReceiverOf(const paxos::Heartbeat& message) { return message.to; }
inline NodeId ReceiverOf(const BlockMessage& message) { return message.to; }
inline NodeId ReceiverOf(const OwedMessage& message) { return message.to; }
inline NodeId SenderOf(const paxos::Message& message) { return message.from.node; }
inline NodeId SenderOf(const paxos::Heartbeat& message) { return message.from; }
inline NodeId SenderOf(const BlockMessage& message) { return message.from; }
inline NodeId SenderOf(const OwedMessage& message) { return message.from; }
inline NodeId ReceiverOf(const PeerMessage& message) {
  return std::visit([](const auto& m) { return ReceiverOf(m); }, message);
}
inline NodeId SenderOf(const PeerMessage& message) {
  return std::visit([](const auto& m) { return SenderOf(m); }, message);
}

struct NodeOutput {
  std::vector<PeerMessage> messages;  // `to` says where
  std::vector<ShardReply> replies;
  std::vector<ShardRead> reads;
};

// In the store a group has its own number plus a multiple of this: how many replicas of it were
// dropped there before.
inline constexpr GroupId kMaxGroups = 1u << 24;

// One thread. Inputs first, then Pump.
class NodeCore {
 public:
  struct Options {
    NodeId node = 0;
    uint64_t boot = 0;  // random per start of the process
    uint64_t seed = 0;
    paxos::LeaseTable::Options leases;  // node, boot and quiet_until are filled in
    Shard::Options shard;               // group, node, lease and seed are filled in
    // The group that goes on where a full disk stops the others: the catalogue, by which volumes
    // are deleted.
    std::optional<GroupId> reserve_group = {};
    uint64_t recovery_rate = 128u << 20;  // bytes per second; 0: no limit
  };

  // The engine outlives the node.
  NodeCore(const Options& options, Engine* engine, Nanos now);
  ~NodeCore();

  // Starts every group that the engine recovered. A group that cannot start fails the node.
  Status Start(Nanos now);
  // A replica of a new group, or a new replica of an old one (then `members` may be empty).
  // kFailedPrecondition: this one was here and was dropped. It would have forgotten its promises.
  Status CreateGroup(GroupId group, uint32_t block_pages, uint32_t incarnation,
                     const std::vector<paxos::Member>& members, Nanos now);

  // The replica and its blocks are gone once the record is durable. What was asked of it is
  // answered as by a node that is not the master.
  Status DropGroup(GroupId group, Nanos now);

  // A node of the cluster, whether or not it is a member of a group already: it gets heartbeats.
  // And one that is none any more: they end when no group has it as a member.
  void Know(NodeId node) { known_.insert(node); }
  void Forget(NodeId node) { known_.erase(node); }

  // Whether all nodes of the cluster know owed blocks (kOwedBlocksLevel).
  void MayAskBare(bool may);
  // What peers owe the replicas here, in bytes.
  uint64_t OwedBytes() const;

  void Tick(Nanos now);
  void Receive(PeerMessage message, Nanos now);
  void ConnectionLost(NodeId peer) { leases_->ConnectionLost(peer); }
  void Submit(GroupId group, ShardRequest&& request, Nanos now);
  void Completed(const std::vector<Completion>& completions, Nanos now);
  void ReadDone(ShardRead read, Nanos now);
  void Pump(Nanos now, NodeOutput* out);

  Shard* shard(GroupId group);
  const Shard* shard(GroupId group) const;
  const std::map<GroupId, std::unique_ptr<Shard>>& shards() const { return shards_; }
  paxos::LeaseTable& leases() { return *leases_; }
  Scrubber& scrubber() { return scrubber_; }
  const RecoveryBudget& recovery_budget() const { return recovery_budget_; }
  RepairStats Repairs() const;  // of all groups, those that were dropped since the start included
  Engine* engine() { return engine_; }
  // Not OK: the node must fall silent and stop; nothing it holds may be trusted to grow.
  Status failed() const;

 private:
  std::unique_ptr<Shard> MakeShard(GroupId group, GroupId store_group);
  Result<GroupId> CreateInStore(GroupId group, uint32_t block_pages, uint32_t incarnation);
  void OnDamage(const std::vector<Damage>& found, Nanos now);
  void UpdatePeers(Nanos now);
  void UpdateLeases();
  void UpdateRoom();

  Options options_;
  Engine* engine_;
  TokenTable tokens_;
  RecoveryBudget recovery_budget_;
  ActiveShards active_;
  uint64_t shards_made_ = 0;
  std::unique_ptr<paxos::LeaseTable> leases_;
  std::map<GroupId, std::unique_ptr<Shard>> shards_;
  struct Dropped {  // the highest of both, since the start
    uint32_t incarnation = 0;
    uint64_t round = 0;
  };
  std::map<GroupId, Dropped> dropped_;
  RepairStats dropped_repairs_;  // of these
  Nanos peers_updated_ = 0;
  std::set<NodeId> known_;  // told, or heard from: groups may not know their members yet
  std::vector<paxos::Heartbeat> heartbeats_;
  std::vector<ShardReply> replies_;  // of groups that were dropped
  // Of one Pump; kept for their memory.
  std::vector<GroupId> pumped_;
  ShardOutput shard_out_;
  Scrubber scrubber_;
  std::vector<ShardRead> scrub_reads_;
  bool may_ask_bare_ = false;
  bool clients_ = false;  // asked for something since the last tick
};

}  // namespace hydra
