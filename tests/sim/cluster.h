// SPDX-License-Identifier: Apache-2.0
//
// Cluster: nodes of the real thing (daemon/node_core.h: consensus core, storage engine, sessions)
// on simulated disks, clocks and a simulated network. Everything that the daemon does with threads
// is an event here.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/rng.h"
#include "base/sim_disk.h"
#include "blockstore/engine.h"
#include "daemon/node_core.h"
#include "paxos/invariants.h"
#include "tests/sim/knobs.h"
#include "tests/sim/local_reads.h"
#include "tests/sim/network.h"
#include "tests/sim/node_gate.h"
#include "tests/sim/scheduler.h"
#include "tests/sim/sim_clock.h"

namespace hydra::sim {

inline constexpr char kSegmentDirectory[] = "/store/segments";  // on every node's disk

// How a broken node's complaint about a damaged read begins.
inline constexpr char kCannotRead[] = "cannot read what it has: ";

// Replies go back to whoever asked. `as_of`: of a local read, what the replica had applied when it
// took the request.
using ReplyHandler =
    std::function<void(NodeId from, const ShardReply& reply, std::optional<Instance> as_of)>;

class Cluster {
 public:
  // A broken promise ends the run; the first one counts.
  using FailureHandler = std::function<void(const std::string& what)>;

  Cluster(Scheduler* scheduler, const Knobs& knobs, uint64_t seed);
  ~Cluster();

  void SetFailureHandler(FailureHandler handler) { on_failure_ = std::move(handler); }
  // A store failed or cannot be opened; whoever listens knows whether that was to be expected.
  using BrokenHandler = std::function<void(NodeId node, const std::string& why)>;
  void SetBrokenHandler(BrokenHandler handler) { on_broken_ = std::move(handler); }
  void SetReplyHandler(ReplyHandler handler) { on_reply_ = std::move(handler); }
  Network& network() { return network_; }
  const Knobs& knobs() const { return knobs_; }
  Nanos SlowestWrite() const;
  const std::vector<NodeId>& nodes() const { return node_ids_; }
  const std::vector<GroupId>& groups() const { return group_ids_; }

  // --- Life. ---
  void CreateAll();  // stores and groups, on the first `replicas` nodes in turn
  void Kill(NodeId node, bool power_loss);
  void Boot(NodeId node);  // kills the node for good if its store cannot be opened
  // An empty disk under the same node id. The groups it was in have to be told (Operator).
  void Wipe(NodeId node);
  bool alive(NodeId node) const;
  bool paused(NodeId node) const;
  bool broken(NodeId node) const;  // its store failed: only Wipe helps
  // As a node sees it whose peer has died, or whose connection broke for another reason.
  void LoseConnection(NodeId node, NodeId peer);
  void Pause(NodeId node);
  void Resume(NodeId node);

  // --- To ask and to tell. ---
  NodeCore* core(NodeId node);  // null unless alive
  SimDisk& disk(NodeId node);
  SimClock& clock(NodeId node);
  Shard* shard(NodeId node, GroupId group);
  // The replica that serves this group as master, if any (the newest ballot's).
  NodeId MasterOf(GroupId group);
  void Submit(NodeId node, GroupId group, ShardRequest request);
  // Runs `work` as an event of the node now, then lets the node act.
  void Touch(NodeId node, const std::function<void(NodeCore*, Nanos now)>& work);
  // The configuration chosen last that any live replica knows.
  paxos::Config NewestConfig(GroupId group);

  // Whether every live member of every group has applied the same, all that is known as chosen.
  // If not, says what is missing.
  std::string Unconverged();
  // Every node and replica in a line, for reports.
  std::string Describe();
  // Compares blocks and state of all members; checkpoints. "" or what differs.
  std::string CompareReplicas();
  // Every node looks at all it has; "" when all have, and what they found is mended.
  void StartScrubs();
  std::string Unscrubbed();
  // A rotten block that is left; "" if none.
  std::string FindDamage();

  // Reports all that was chosen, as far as it was seen on a disk. Values are the blocks' checksums.
  void TellChosen(LocalReads* reads) const;

  uint64_t checks() const { return checks_; }
  uint64_t life(NodeId node) const;              // changes with every start
  Instance HighestApplied(GroupId group) const;  // by any replica, ever
  uint64_t durable_batch(NodeId node) const;     // of its store, as far as it was told
  const Uuid& store(NodeId node) const;

 private:
  struct Node;

  Node& At(NodeId node) { return *nodes_.at(node); }
  const Node& At(NodeId node) const { return *nodes_.at(node); }
  Status OpenEngine(Node* node);
  void ScheduleTick(Node* node);
  void Act(Node* node);  // pumps and carries what came of it
  void StartBatch(Node* node);
  Nanos DiskLatency(const Node& node) const;
  void StartJob(Node* node);
  void Deliver(Node* node, const Packet& packet);
  void CheckNode(Node* node);
  void NoteChosen(Node* node, GroupId group);
  void Died(Node* node);
  void Fail(const std::string& what);
  void Broken(Node* node, const Status& why);

  Scheduler* const scheduler_;
  const Knobs knobs_;
  Rng rng_;
  Network network_;
  std::vector<NodeId> node_ids_;
  std::vector<GroupId> group_ids_;
  std::map<NodeId, std::unique_ptr<Node>> nodes_;
  FailureHandler on_failure_;
  ReplyHandler on_reply_;
  BrokenHandler on_broken_;
  // (group, instance) -> checksum over all that was chosen up to there.
  std::map<std::pair<GroupId, Instance>, uint64_t> chains_;
  // What instances 1, 2 ... of each group do to blocks.
  std::map<GroupId, std::vector<std::vector<LocalReads::Effect>>> effects_;
  uint64_t checks_ = 0;
};

}  // namespace hydra::sim
