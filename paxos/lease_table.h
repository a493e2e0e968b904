// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"

namespace hydra::paxos {

// Something that happened to one group at the sender and that the receiver must know of before it
// may count on a lease. Delivered with heartbeats, in order, until confirmed; only the latest of a
// group and kind is kept, so the number is bounded by that of groups.
struct Notice {
  enum class Kind : uint8_t {
    kMoved = 1,     // my promise of this group is now `ballot`, no longer yours
    kResigned = 2,  // I am no longer master of this group in `ballot`
  };
  uint64_t sequence = 0;
  GroupId group = 0;
  Kind kind = Kind::kMoved;
  Ballot ballot;
};

// One per pair of nodes and interval, whatever the number of groups. The same struct asks and
// answers; in an answer `answers` is the sequence of what it answers.
struct Heartbeat {
  NodeId from = 0;
  NodeId to = 0;
  uint64_t boot = 0;      // of the sender
  uint64_t sequence = 0;  // of the asker's heartbeats
  bool is_reply = false;
  uint64_t asker_boot = 0;  // in a reply: which process it answers; sequences start anew in each
  Nanos lease = 0;          // asked for, or granted (0: none)
  // Notices of the sender to the receiver: those not confirmed yet, and the number of the last that
  // exists. `seen_*` confirms the other direction.
  std::vector<Notice> notices;
  uint64_t last_notice = 0;
  bool more_notices = false;  // some did not fit
  uint64_t seen_boot = 0;
  uint64_t seen_notice = 0;
  // Of the sender's stream. The same store with less than before was rolled back.
  uint64_t store = 0;
  uint64_t durable_batch = 0;
  // How much payload the receiver's masters may send to the sender's store: in an answer, beyond
  // what was chosen of theirs when they asked. `credit_known`: more only if something is deleted.
  uint64_t credit = 0;
  bool credit_known = false;
};

// Leases of one node, granted and held: per pair of nodes, over all groups.
//
// A grants B a lease for `duration` of A's clock. While it lasts, A promises no ballot of another
// node in any group whose highest promise at A is B's. B counts the same lease from the moment it
// sent the heartbeat, and kUsable of it, so that B's view ends first if each clock's rate is within
// kDriftPercent of true time. Which groups are covered is the replica's business (Replica::
// LeaseValid): a group counts A's lease only if A is known to have promised B's ballot before the
// heartbeat was sent, in the same boot of A, and no notice took it back. Notices travel with every
// answer and a lease counts only with all of them delivered, so that no group is forgotten.
//
// Space. An entry that a majority cannot store would stand in the way of everything behind it, the
// deletes that make room included. So each answer carries a credit: a share of the answering
// store's room that the asker's masters may fill before they hear again. All nodes' shares
// together are half of the room: a share may have been given before others were used up.
//
// One per node, on the owner's thread; heartbeats go in and out as structs.
class LeaseTable {
 public:
  static constexpr int kDriftPercent = 10;

  struct Options {
    NodeId node = 0;
    uint64_t boot = 0;   // random, differs in every start of the process; not 0
    uint64_t store = 0;  // says which data directory it is
    Nanos lease = 300 * kMillisecond;
    Nanos interval = 75 * kMillisecond;
    Nanos dead_after = 400 * kMillisecond;  // a peer not heard for so long is taken for dead
    // A restarted node grants and promises nothing before: the longest lease it may have granted.
    Nanos quiet_until = 0;
    size_t max_notices_per_message = 256;
  };

  explicit LeaseTable(const Options& options);

  // --- Driving. ---------------------------------------------------------------------------------
  void SetPeers(const std::vector<NodeId>& peers, Nanos now);
  // Heartbeats that are due.
  void Tick(Nanos now, std::vector<Heartbeat>* out);
  // Takes in a heartbeat or an answer; `reply` is set for the former. Notices that arrived are
  // appended for the owner to hand to their groups *before* anything else is done.
  void Step(const Heartbeat& in, Nanos now, std::vector<Heartbeat>* out,
            std::vector<std::pair<NodeId, Notice>>* notices);
  // The connection to a peer broke, as it does when a process ends: it is taken for dead until it
  // is heard again. A hint: what was granted to it still binds.
  void ConnectionLost(NodeId peer);
  void SetDurableBatch(uint64_t batch) { durable_batch_ = batch; }
  // What this node's store takes before it is full; `known`: it will not become more by itself.
  void SetRoom(uint64_t bytes, bool known);
  // Payload that a master of this node proposes; what it charged is settled when it is chosen, or
  // another's business.
  void Charge(uint64_t bytes) { charged_ += bytes; }
  void Settle(uint64_t bytes) { settled_ += bytes; }
  // Nothing longer is granted: what a later life of this node will find stored, and wait out.
  void SetLongestGrant(Nanos longest) { longest_grant_ = longest; }

  // --- For replicas. ----------------------------------------------------------------------------
  NodeId node() const { return options_.node; }
  uint64_t boot() const { return options_.boot; }
  bool Quiet(Nanos now) const { return now < options_.quiet_until; }
  // Until when this node may not break what it granted to this process of `peer`; in the past if
  // nothing binds. (A process that died took its masterships with it.)
  Nanos GrantedUntil(NodeId peer, uint64_t boot) const;
  struct Held {
    uint64_t boot = 0;  // of the grantor
    Nanos sent = 0;     // when the heartbeat that it answered left
    Nanos until = 0;
  };
  // The lease that `peer` granted last; {} if none.
  Held HeldFrom(NodeId peer) const;
  bool Alive(NodeId peer, Nanos now) const;
  bool Heard(NodeId peer, Nanos now) const;  // lately, whatever became of its connection
  uint64_t BootOf(NodeId peer) const;        // 0: never heard
  enum class Space : uint8_t { kEnough, kUnknown, kFull };
  // Whether so much more payload can be sent to a node (this one included) without asking it: all
  // that this node has under way fits into its credit. kUnknown: silent, or not before it has said
  // more.
  Space SpaceOf(NodeId node, uint64_t bytes, Nanos now) const;
  void Notify(NodeId peer, GroupId group, Notice::Kind kind, const Ballot& ballot);
  // Peers whose store went back in time since; the owner must not talk to them.
  const std::vector<NodeId>& rolled_back() const { return rolled_back_; }

 private:
  struct Credit {
    uint64_t bytes = 0;
    bool known = false;
    uint64_t settled = 0;  // before it was asked for: in the room that it is a part of
    Nanos at = 0;          // when it was asked for
  };
  struct Sent {
    Nanos at = 0;
    uint64_t settled = 0;
  };
  struct Peer {
    uint64_t boot = 0;
    Nanos heard = 0;
    bool lost = false;          // its connection, since it was heard
    uint64_t heard_before = 0;  // the first heartbeat that left after it was last heard
    std::vector<std::pair<uint64_t, Nanos>> granted;  // by us, to each of its last processes
    Held held;                                        // by it
    uint64_t next_sequence = 1;
    Nanos next_due = 0;
    std::map<uint64_t, Sent> sent;  // unanswered heartbeats, bounded
    // Ours to it.
    std::map<std::pair<GroupId, Notice::Kind>, Notice> notices;
    uint64_t last_notice = 0;
    // Its to us, in its current boot.
    uint64_t seen_notice = 0;
    uint64_t store = 0;
    uint64_t durable_batch = 0;
    Credit credit;  // that it gave us
  };

  bool HeardLately(const Peer& peer, Nanos now) const;
  static void Grant(Peer* peer, uint64_t boot, Nanos until);
  void FillNotices(Peer* peer, Heartbeat* message) const;
  // Whether the message is of the peer's current process, as far as can be told.
  bool IsCurrent(Peer* peer, const Heartbeat& in);
  void Answer(Peer* peer, const Heartbeat& in, bool grant, Nanos now, std::vector<Heartbeat>* out);

  Options options_;
  std::map<NodeId, Peer> peers_;
  std::vector<NodeId> rolled_back_;
  uint64_t durable_batch_ = 0;
  Nanos longest_grant_ = 0;
  Credit own_;
  uint64_t charged_ = 0;
  uint64_t settled_ = 0;
  uint64_t last_notice_ =
      0;  // of all peers: a peer that leaves and comes back sees no number twice
};

}  // namespace hydra::paxos
