// SPDX-License-Identifier: Apache-2.0
//
// Machines that reach the cluster through gateways, as initiators do through iSCSI portals.
// Gateways stall, holding what they were given, and die, forgetting it; a machine that loses
// patience goes on through another one, or resets what is under way. Whatever happens, no old write
// comes after a newer one, and nothing that was given before a reset happens after it.
//
// A gateway does what DESIGN demands of one: it notes `seen` and the epoch when a command arrives;
// refused as stale or fenced, it takes new ones first, then asks the machine whether it still waits
// for this very command, and only then tries again.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/rng.h"
#include "daemon/shard.h"
#include "tests/sim/cluster.h"
#include "tests/sim/scheduler.h"

namespace hydra::sim {

class Gateways {
 public:
  static constexpr uint64_t kFirstId = 1ull << 40;  // of requests: these are ours
  // What clients without a gateway say: the rights that change here do not bind them.
  static constexpr uint64_t kEpochOfOthers = 1ull << 40;

  Gateways(Scheduler* scheduler, Cluster* cluster, uint64_t seed);

  void SetFailureHandler(std::function<void(const std::string&)> handler) {
    on_failure_ = std::move(handler);
  }
  void Start();
  void SetReliable();  // nothing is lost any more, no gateway stalls or dies
  void StopIssuing();  // and looks at every block once more
  bool idle() const { return open_ == 0; }
  uint64_t finished() const { return finished_; }
  uint64_t faults() const { return faults_; }
  void OnReply(NodeId from, const ShardReply& reply);

 private:
  // What a machine asks of a group: to write the next number into its own block there.
  struct Command {
    uint64_t id = 0;
    size_t machine = 0;
    GroupId group = 0;
    uint64_t number = 0;
    Instance seen = 0;   // noted at arrival
    uint64_t epoch = 0;  // likewise
    Instance session = 0;
    uint64_t seq = 0;
  };
  struct Machine {
    size_t path = 0;       // gateway
    uint64_t current = 0;  // command that it waits for; 0: none
    EventId patience;
    std::map<GroupId, uint64_t> issued;
    std::map<GroupId, uint64_t> acknowledged;
  };
  struct Session {
    Instance id = 0;
    bool opening = false;
    uint64_t next_seq = 1;
    std::set<uint64_t> unanswered;
    std::deque<Command> waiting;
  };
  struct Gateway {
    uint64_t life = 1;  // of which it knows what it knows; higher after each death
    bool alive = true;
    Nanos stalled_until = 0;
    std::map<GroupId, Session> sessions;
    std::map<GroupId, Instance> seen;
    std::map<GroupId, NodeId> masters;
  };
  // Something sent to nodes until one answers for good.
  struct Asked {
    GroupId group = 0;
    ShardRequest request;
    size_t gateway = kDirect;
    uint64_t life = 0;
    uint64_t attempt = 0;  // request id
    bool maybe = false;    // a copy was sent whose fate is not known
    EventId timer;
    std::function<void(const ShardReply&, bool maybe)> done;
  };
  static constexpr size_t kDirect = ~size_t{0};

  // Machines.
  void Think(size_t machine);
  void Begin(size_t machine);
  void Dispatch(size_t machine, GroupId group);
  void LosePatience(size_t machine, GroupId group);
  void Reset(size_t machine, GroupId group);
  void Acknowledged(const Command& command);
  void Look(size_t machine, GroupId group, std::function<void(uint64_t)> then);

  // Gateways.
  void Trouble(size_t gateway);
  void Arrive(size_t gateway, Command command);
  void Serve(size_t gateway, Command command);
  void OpenSession(size_t gateway, GroupId group);
  void Submit(size_t gateway, Command command);
  void Answered(size_t gateway, Command command, const ShardReply& reply, bool maybe);
  void ProveAlive(size_t gateway, Command command);

  // Nodes.
  void Ask(std::unique_ptr<Asked> asked);
  void Send(uint64_t key);
  Nanos Delay() { return static_cast<Nanos>(rng_.Between(50, 2000)) * 1000; }
  Block BlockOf(size_t machine, GroupId group) const;
  Lba LbaOf(size_t machine) const { return 200 + machine; }

  Scheduler* const scheduler_;
  Cluster* const cluster_;
  Rng rng_;
  std::function<void(const std::string&)> on_failure_;
  bool issuing_ = true;
  bool reliable_ = false;
  std::vector<Machine> machines_;
  std::vector<Gateway> gateways_;
  std::map<GroupId, uint64_t> epochs_;  // as a catalogue would say
  uint64_t next_id_ = kFirstId;
  uint64_t open_ = 0;  // what machines are about
  uint64_t finished_ = 0;
  uint64_t faults_ = 0;
  std::map<uint64_t, std::unique_ptr<Asked>> asked_;  // by key
  std::map<uint64_t, uint64_t> attempts_;             // request id -> key
};

}  // namespace hydra::sim
