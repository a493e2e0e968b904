// SPDX-License-Identifier: Apache-2.0
//
// All replicas of one node on one engine, and their leases: everything that hydrad does, without
// its threads and sockets, which is how the simulator runs it.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <variant>
#include <vector>

#include "blockstore/engine.h"
#include "daemon/shard.h"
#include "paxos/lease_table.h"

namespace hydra {

using PeerMessage = std::variant<paxos::Message, paxos::Heartbeat>;

struct NodeOutput {
  std::vector<PeerMessage> messages;  // `to` says where
  std::vector<ShardReply> replies;
  std::vector<ShardRead> reads;
};

// One thread. Inputs first, then Pump.
class NodeCore {
 public:
  struct Options {
    NodeId node = 0;
    uint64_t boot = 0;  // random per start of the process
    uint64_t seed = 0;
    paxos::LeaseTable::Options leases;  // node, boot and quiet_until are filled in
    Shard::Options shard;               // group, node, lease and seed are filled in
  };

  // The engine outlives the node.
  NodeCore(const Options& options, Engine* engine, Nanos now);
  ~NodeCore();

  // Starts every group that the engine recovered. A group that cannot start fails the node.
  Status Start(Nanos now);
  // A replica of a new group, or a new replica of an old one (then `members` may be empty).
  Status CreateGroup(GroupId group, uint32_t block_pages, uint32_t incarnation,
                     const std::vector<paxos::Member>& members, Nanos now);

  // The replica and its blocks are gone once the record is durable. What was asked of it is
  // answered as by a node that is not the master.
  Status DropGroup(GroupId group, Nanos now);

  void Tick(Nanos now);
  void Receive(PeerMessage message, Nanos now);
  void Submit(GroupId group, ShardRequest request, Nanos now);
  void Completed(const std::vector<Completion>& completions, Nanos now);
  void ReadDone(ShardRead read, Nanos now);
  void Pump(Nanos now, NodeOutput* out);

  Shard* shard(GroupId group);
  const std::map<GroupId, std::unique_ptr<Shard>>& shards() const { return shards_; }
  paxos::LeaseTable& leases() { return *leases_; }
  Engine* engine() { return engine_; }
  // Not OK: the node must fall silent and stop; nothing it holds may be trusted to grow.
  Status failed() const;

 private:
  std::unique_ptr<Shard> MakeShard(GroupId group);
  void UpdatePeers(Nanos now);
  void UpdateLeases();
  void UpdateRoom();

  Options options_;
  Engine* engine_;
  TokenTable tokens_;
  CatchUpBudget catch_up_budget_;
  std::unique_ptr<paxos::LeaseTable> leases_;
  std::map<GroupId, std::unique_ptr<Shard>> shards_;
  std::set<NodeId> heard_from_;  // of groups that do not know their members yet
  std::vector<paxos::Heartbeat> heartbeats_;
  std::vector<ShardReply> replies_;  // of groups that were dropped
};

}  // namespace hydra
