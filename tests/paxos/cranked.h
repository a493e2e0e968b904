// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "paxos/invariants.h"
#include "paxos/lease_table.h"
#include "paxos/replica.h"

namespace hydra::paxos::test {

inline constexpr Nanos kMs = kMillisecond;

// Lines of a transcript: without indentation and empty lines, so that an expected one may stand
// indented in a raw string.
std::string Lines(std::string_view text);

// One group on a hand-cranked network: nothing is delivered, flushed or ticked but by the test.
//
// Each node has its own time, lease table and disk. Appends are lost in a crash unless flushed;
// messages wait in a list, oldest first, and are named by how Describe prints them: "1>2 Accept"
// means the oldest that starts so. Entries are named by a text, whose hash is the digest.
//
// After every input the fixture checks, and reports through violation():
//   - the replica's invariants, of its state and of the step;
//   - agreement: no two replicas ever learn different entries of one instance, and each learns them
//     in order;
//   - durable before said: whatever promise or acceptance a message asserts is on the disk;
//   - reads: none is answered below what was known as chosen anywhere when it was asked.
class Cluster {
 public:
  struct Options {
    int nodes = 3;             // the first `voters` of them are members
    int voters = 0;            // 0: all
    ReplicaOptions replica{};  // group, self and seed are set by the fixture
    LeaseTable::Options lease{};
    uint64_t seed = 1;
    bool flush = true;       // append = durable at once; else by Flush
    bool apply = true;       // chosen = applied at once; else by Apply
    bool heartbeats = true;  // delivered at once; else by DeliverHeartbeats
    bool bodies = true;      // the owner answers requests for bodies and pieces at once
    bool quick = false;      // checks State now and then only, for long random runs
  };

  explicit Cluster(int nodes) : Cluster(WithNodes(nodes)) {}
  explicit Cluster(const Options& options);
  Cluster(const Cluster&) = delete;
  ~Cluster();  // fails the test if there was a violation

  // --- The network. -----------------------------------------------------------------------------
  std::string Pending() const;                 // all messages that wait, one per line
  std::string TakePending();                   // and drops them
  void Deliver(std::string_view starts_with);  // the oldest such; it must exist
  void DeliverAt(size_t index);
  void DeliverHeartbeatAt(size_t index);
  void DeliverAll(std::string_view starts_with = "");  // those waiting now, not what they cause
  void Drop(std::string_view starts_with);             // all such
  void Duplicate(std::string_view starts_with);
  bool Has(std::string_view starts_with) const;
  Message Copy(std::string_view starts_with) const;
  void Inject(Message message);  // to the end of the list
  // Messages and heartbeats from and to it vanish.
  void Cut(int node) { At(node).cut = true; }
  void Heal(int node) { At(node).cut = false; }
  void DeliverHeartbeats(int from = 0, int to = 0);  // those waiting now; 0: all
  void DropHeartbeats() { heartbeats_.clear(); }
  std::deque<Heartbeat>& heartbeats() { return heartbeats_; }
  std::deque<Message>& messages() { return messages_; }
  // Delivers and flushes until nothing waits.
  void Settle();

  // --- Time. ------------------------------------------------------------------------------------
  Nanos now(int node) const { return At(node).now; }
  void Tick(int node);
  // Passes on all clocks in steps of 5 ms, ticking all nodes; consensus messages wait unless
  // `settle`.
  void Pass(Nanos duration, bool settle = false);
  void PassAt(int node, Nanos duration, bool tick = true);
  // Passes on all clocks, and nobody ticks: leases run out.
  void Idle(Nanos duration);

  // --- Nodes. -----------------------------------------------------------------------------------
  Replica& operator[](int node) { return *At(node).replica; }
  LeaseTable& leases(int node) { return *At(node).leases; }
  bool up(int node) const { return At(node).replica != nullptr; }
  int size() const { return static_cast<int>(nodes_.size()); }
  void Crash(int node);
  void Restart(int node);  // also waits out nothing: the node is quiet for its lease
  void Wipe(int node, uint32_t incarnation);  // a new disk
  void Flush(int node);
  void FlushOne(int node);
  bool HasUnflushed(int node) const { return !At(node).unflushed.empty(); }
  void Apply(int node);
  void Rot(int node, Instance instance);  // seen at the next start
  void MakeSuspect(int node) { At(node).disk.suspect = true; }
  void Checkpoint(int node);                // applied state is durable
  void Truncate(int node, Instance up_to);  // the log up to there is gone
  void Campaign(int node);
  void Elect(int node);  // until it serves
  Result<Instance> Propose(int node, std::string_view entry, uint32_t bytes = 0);
  Status Reconfigure(int node, const std::vector<Member>& members);
  Status HandOver(int node, int to);
  void Resign(int node);
  uint64_t Read(int node);
  std::string Answer(uint64_t id) const;  // "", "no", "at 7"
  // Loads a body that node asked of its own log, when bodies are held.
  void LoadBodies(int node);
  void StorePiece(int node);
  int Pieces(int node) const { return At(node).piece ? 1 : 0; }
  MemberId Id(int node) const { return At(node).id; }
  Member Voter(int node) const { return {Id(node), Role::kVoter}; }
  Member Learner(int node) const { return {Id(node), Role::kLearner}; }
  // What it applied, in order: "n a b c"; n is a no-op, {1 2 3} a configuration.
  std::string Log(int node) const;
  bool removed(int node) const { return At(node).removed; }
  int Serving() const;          // the node that serves; 0: none
  std::string Summary() const;  // a line for each node, for failures

  const std::string& violation() const { return violation_; }
  uint64_t chosen() const { return oracle_.size(); }
  Options& options() { return options_; }

 private:
  struct Record {
    Ballot ballot;
    EntryMeta meta;
    Body body;
    bool faulty = false;
  };
  struct State {  // as of `applied`
    Instance applied = 0;
    Config config;
    std::vector<std::string> log;
  };
  struct Disk {
    Ballot promised;
    std::map<Instance, Record> log;
    State checkpoint;
    Instance truncated = 0;
    bool suspect = false;
    bool installing = false;
    std::string cursor;
  };
  struct Node {
    MemberId id;
    Nanos now = 0;
    bool cut = false;
    bool removed = false;
    uint64_t starts = 0;
    Disk disk;
    State state;
    std::map<Instance, Record> log;  // disk.log with what is not flushed yet
    std::vector<Append> unflushed;
    std::vector<Chosen> unapplied;
    std::vector<ServeBody> bodies;
    std::optional<InstallChunk> piece;
    std::unique_ptr<LeaseTable> leases;
    std::unique_ptr<Replica> replica;
  };
  struct Image {
    State state;
  };

  static Options WithNodes(int nodes) {
    Options options;
    options.nodes = nodes;
    return options;
  }

  Node& At(int node) { return nodes_.at(node - 1); }
  const Node& At(int node) const { return nodes_.at(node - 1); }
  template <typename Input>
  void Do(Node& node, Input input);
  void Drain(Node& node);
  void TakeIn(Node& node, Output& output);
  void Fail(const Node& node, std::string what);
  void CheckSaid(const Node& node, const Message& message);
  void Learn(Node& node, const Chosen& chosen);
  void ApplyOne(Node& node, const Chosen& chosen);
  void Persist(Node& node, const Append& append);
  void Serve(Node& node, const ServeCatchUp& serve);
  void Serve(Node& node, const ServeBody& serve);
  void Serve(Node& node, const ServeInstall& serve);
  void Reply(const Node& node, const MemberId& to, MessageBody body);
  void Start(Node& node, Nanos quiet);
  void StepHeartbeat(const Heartbeat& heartbeat);
  void DeliverMessage(Message message);
  std::deque<Message>::iterator Oldest(std::string_view starts_with);

  Options options_;
  std::vector<Node> nodes_;
  std::deque<Message> messages_;
  std::deque<Heartbeat> heartbeats_;
  uint64_t boots_ = 100;
  uint64_t inputs_ = 0;

  // Oracles.
  std::map<Instance, std::string> oracle_;
  std::map<uint64_t, Instance> read_floor_;
  std::map<uint64_t, std::string> answers_;
  uint64_t next_read_ = 1;
  std::string violation_;
};

}  // namespace hydra::paxos::test
