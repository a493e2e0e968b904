// SPDX-License-Identifier: Apache-2.0
//
// Workload: clients that write unique values, delete, compare-and-write and read, several at a
// time, through whatever node they believe to be the master; that lose requests and answers, send
// again, and send twice. What they asked and were told goes into a History.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/rng.h"
#include "tests/sim/cluster.h"
#include "tests/sim/history.h"
#include "tests/sim/local_reads.h"
#include "tests/sim/scheduler.h"

namespace hydra::sim {

class Workload {
 public:
  struct Options {
    unsigned clients = 4;
    unsigned depth = 3;    // operations of a client at a time
    unsigned blocks = 12;  // per group: few, so that operations meet
    unsigned loss_percent = 5;
    unsigned twice_percent = 5;
    Nanos think = 20 * kMillisecond;
    Nanos patience = 400 * kMillisecond;  // until it sends again
    unsigned give_up_percent = 3;         // per time-out, while faults go on
    uint64_t haste = 50;                  // milliseconds, at most, until it asks elsewhere
    Nanos session_timeout = 30 * kSecond;
    uint64_t epoch = 0;  // of access rights; higher than any fence
    // Some clients only read, and so stay with a master that answers, whoever else writes
    // elsewhere.
    bool readers = false;
    // They stay even if it does not answer for a while. A read that waits for long proves nothing:
    // they give it up and ask anew.
    bool loyal = false;
  };

  using FailureHandler = std::function<void(const std::string&)>;

  Workload(Scheduler* scheduler, Cluster* cluster, const Options& options, uint64_t seed);

  void SetFailureHandler(FailureHandler handler) { on_failure_ = std::move(handler); }
  void Start();
  void StopIssuing() { issuing_ = false; }
  void SetReliable();  // no more losses, nobody gives up
  size_t open() const { return operations_.size(); }
  std::string DescribeOpen() const;
  void OnReply(NodeId from, const ShardReply& reply, std::optional<Instance> as_of);

  const History& history() const { return history_; }
  uint64_t finished() const { return finished_; }
  // Every answered write knew what it overwrote. "" or what did not.
  std::string CheckSeen() const;
  // Every read that a replica answered by itself showed what it had applied. "" or what did not.
  std::string CheckLocalReads() const;

 private:
  struct Session {
    Instance id = 0;
    bool opening = false;
    uint64_t next_seq = 1;
    std::set<uint64_t> unanswered;
    Instance seen = 0;
  };
  struct Client {
    uint32_t id = 0;
    std::map<GroupId, Session> sessions;
    std::map<GroupId, NodeId> masters;  // as far as this client knows
    bool reader = false;
  };
  struct Operation {
    uint64_t key = 0;
    Client* client = nullptr;
    GroupId group = 0;
    bool opens_session = false;
    bool local = false;
    NodeId local_node = 0;
    ShardRequest request;  // id is that of the attempt
    History::OpId op = 0;
    bool maybe = false;  // an attempt without a clear answer may have been executed
    unsigned attempts = 0;
    NodeId target = 0;
    NodeId asked = 0;   // last
    NodeId silent = 0;  // did not answer
    EventId timer;
    std::vector<Value> values;  // written
  };
  struct Write {
    Version version = 0;
    Instance seen = 0;
  };

  void Think(Client* client);
  void Issue(Client* client);
  void OpenSession(Client* client, GroupId group);
  void BeginMutation(Operation* operation);
  void MakeMutation(Operation* operation);
  void MakePartOfBlock(Operation* operation);
  void MakeRead(Operation* operation);
  void Send(uint64_t key);
  void Retry(Operation* operation, NodeId hint, Nanos delay);
  void TimedOut(uint64_t key);
  void Redirect(Operation* operation, NodeId master);
  void NoteLocal(NodeId from, const ShardReply& reply, Instance as_of);
  void Handle(uint64_t id, NodeId from, const ShardReply& reply);
  void HandleDone(Operation* operation, NodeId from, const ShardReply& reply);
  void Finish(Operation* operation);
  bool Values(const Operation& operation, const ReadResult& data, std::vector<Value>* out);
  void Fail(const std::string& what) {
    if (on_failure_) on_failure_(what);
  }
  Block BlockOf(GroupId group, Lba lba) const { return uint64_t{group} << 32 | lba; }
  // Behind the blocks that are written as a whole are some of which only halves are written: each
  // half is a register of its own, whatever happens to the other one meanwhile.
  bool IsSplit(Lba lba) const { return lba >= options_.blocks; }
  Block HalfOf(GroupId group, Lba lba, uint64_t half) const {
    return BlockOf(group, lba) | (half + 1) << 30;
  }
  NodeId AnyNode();
  NodeId AnotherNode(const Operation& operation);  // than the one that did not answer
  bool IsLoyal(const Operation& operation) const {
    return options_.loyal && operation.client->reader && !reliable_;
  }

  Scheduler* const scheduler_;
  Cluster* const cluster_;
  Options options_;
  Rng rng_;
  History history_;
  FailureHandler on_failure_;
  bool issuing_ = true;
  bool reliable_ = false;
  std::vector<std::unique_ptr<Client>> clients_;
  uint64_t next_id_ = 1;
  uint64_t finished_ = 0;
  std::map<uint64_t, std::unique_ptr<Operation>> operations_;  // by key
  std::map<uint64_t, uint64_t> attempts_;                      // request id -> key
  struct Attempt {
    GroupId group = 0;
    Lba lba = 0;
    uint64_t count = 0;
    Instance seen = 0;
  };
  std::map<uint64_t, Attempt> seen_attempts_;   // request id -> what it knew
  std::map<Block, std::vector<Write>> writes_;  // answered, with what they knew
  std::vector<LocalReads::Observation> local_reads_;
};

}  // namespace hydra::sim
