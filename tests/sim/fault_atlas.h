// SPDX-License-Identifier: Apache-2.0
//
// FaultAtlas: which node's disk may lose what, so that a good copy of everything acknowledged
// always exists and a majority can go on. Then any loss is our bug, and a cluster that does not
// recover is one too. The injector asks before it damages anything.
//
// Words. A group's configuration is a set of n voters; a quorum has q = n/2 + 1 of them, which
// leaves f = n - q. A node is *damaged* from the moment a fault may have taken durable data from it
// until it is reported repaired: rot (which may sleep undetected), a write that went astray, a
// wiped or replaced disk, and a failed write or flush, after which a node stops until it is
// rebuilt. A member is *behind* if it need not hold all that was chosen before its configuration
// was. *Lacking* = damaged or behind.
//
// Besides whole nodes, single payloads may rot on nodes that stay sound: each range of kRotRange
// instances of a group has its own r replicas on which it may, a function of the seed alone.
//
// Rules.
//   1. X may be damaged if, with X, in each configuration in force that has X: lacking + r <= f.
//   2. A change that removes Y may begin if, with Y, in the present one: lacking + r < q.
//   3. From the beginning of a change until it is known to be chosen or dead, both configurations
//      are in force.
//   4. When a configuration is chosen, its members that do not hold everything below are behind.
//
// Why a good copy always exists. Take an entry chosen under the configuration in force: q members
// made it durable. Those that may have lost it are damaged (at most f - r, by rule 1) or in its
// range's rot set (r): at most f < q, so one holds it still. Now one chosen under an earlier
// configuration. At the change q of the old members had it, and by rule 2 one of them had not lost
// it and stays a member. (Damage granted while the change was in flight obeyed rule 1 in the new
// configuration as well: at most (n - 2)/2 are lacking there; with Y, that is less than q.) After
// the change, rule 4 counts as behind whoever may lack it; as long as rule 1 lets anything be
// damaged, at least q members are neither damaged nor behind; and when it does not, nothing is
// lost. A member that catches up only adds copies.
//
// Why a majority can go on. Damaged nodes, which may not vote, are at most f, so q are sound. A
// rotten payload does not stop its node from voting.
//
// The argument needs that "repaired" and "caught up" mean what they say:
//   Repaired(X): X holds, readable, everything it ever acknowledged (also accepted entries that
//   were not chosen yet) or a value that it knows to be chosen in its place, and everything that
//   was chosen in its groups. In practice: a full scrub of the node found nothing, no entry is
//   faulty, no group is suspect or being installed, and each has applied what was committed and is
//   owed no block.
//   CaughtUp(group, X): X has applied the group's newest configuration and is owed no block.
//
// Faults that take nothing durable need no permission: crashes, power loss, tears of unsynced
// writes, full or slow disks, failed reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/sim/trace.h"

namespace hydra::sim {

class FaultAtlas {
 public:
  using Group = uint32_t;
  using Members = std::set<NodeId>;  // voters
  static constexpr uint64_t kRotRange = 16;

  // Which of a group's f losses are single payloads (r) and which whole nodes; drawn from the seed.
  enum class Mode { kNodes, kMixed, kPayloads };

  // A permission, already counted. Commit() it when the damage is done; otherwise it is given back.
  class Permit {
   public:
    Permit() = default;
    Permit(Permit&& other) noexcept;
    Permit& operator=(Permit&& other) noexcept;
    ~Permit();
    explicit operator bool() const { return granted_; }
    void Commit();

   private:
    friend class FaultAtlas;
    Permit(FaultAtlas* atlas, NodeId node);
    void GiveBack();

    FaultAtlas* atlas_ = nullptr;  // null once committed or given back; outlives the permit
    NodeId node_ = 0;
    bool granted_ = false;
  };

  explicit FaultAtlas(uint64_t seed);
  FaultAtlas(uint64_t seed, Mode mode) : seed_(seed), mode_(mode) {}
  FaultAtlas(const FaultAtlas&) = delete;
  FaultAtlas& operator=(const FaultAtlas&) = delete;
  Mode mode() const { return mode_; }

  // --- Groups. ----------------------------------------------------------------------------------
  void AddGroup(Group group, Members members);
  void DropGroup(Group group);
  // Asked before a change of at most one voter is proposed; false: not now. Counts from then on.
  // A change to the same members again (under new incarnations) needs nothing.
  [[nodiscard]] bool BeginChange(Group group, const Members& members);
  // The configuration in force; ends a change in flight, which may have been chosen or not.
  // `complete`: members known to hold everything chosen below it.
  void ConfigChosen(Group group, const Members& members, const Members& complete);
  void CaughtUp(Group group, NodeId node);
  bool changing(Group group) const;

  // --- Damage. ----------------------------------------------------------------------------------
  // Bits flip anywhere in the node's store.
  [[nodiscard]] Permit MayRot(NodeId node) { return Ask(node); }
  // Writes are dropped or misdirected, or syncs lie.
  [[nodiscard]] Permit MayLoseWrites(NodeId node) { return Ask(node); }
  // The disk is lost; the node comes back empty.
  [[nodiscard]] Permit MayWipe(NodeId node) { return Ask(node); }
  // A write or flush fails: the node stops and must be rebuilt.
  [[nodiscard]] Permit MayFailWrite(NodeId node) { return Ask(node); }
  // The payload of this entry, or of a block this entry wrote, wherever it lies; never a header.
  // Needs no Permit and no repair.
  [[nodiscard]] bool MayRotPayload(NodeId node, Group group, uint64_t instance) const;
  // Nothing will be damaged any more: what is, is repaired in whatever order.
  void Calm() { calm_ = true; }
  // See above what it takes. The node must be damaged.
  void Repaired(NodeId node);

  // Damaged, or may be any moment: a permit is out.
  bool damaged(NodeId node) const { return damaged_.contains(node) || permits_.contains(node); }
  const std::set<NodeId>& damaged() const { return damaged_; }
  uint64_t granted() const { return granted_; }
  uint64_t refused() const { return refused_; }
  std::string Describe() const;

 private:
  struct GroupState {
    std::vector<Members> in_force;  // the present one, and the one in flight
    Members behind;
    Members rot_candidates;   // the first members
    size_t rot_replicas = 0;  // r
  };

  Permit Ask(NodeId node);
  Members Lacking(const GroupState& group, const Members& members) const;

  const uint64_t seed_;
  const Mode mode_;
  std::map<Group, GroupState> groups_;
  bool calm_ = false;
  std::set<NodeId> damaged_;
  std::map<NodeId, size_t> permits_;  // out, not committed
  uint64_t granted_ = 0;
  uint64_t refused_ = 0;
};

}  // namespace hydra::sim
