// SPDX-License-Identifier: Apache-2.0
//
// The words of the consensus core (docs/consensus.md).
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/ids.h"

namespace hydra::paxos {

inline constexpr size_t kMaxMembers = 16;  // of one group, learners included

// A node's place in a group. The incarnation grows when the place is given to a replica that does
// not remember what its predecessor promised: a new disk, or one that lost log records to rot.
struct MemberId {
  NodeId node = 0;
  uint32_t incarnation = 0;
  friend auto operator<=>(const MemberId&, const MemberId&) = default;
};

enum class Role : uint8_t { kVoter = 1, kLearner = 2 };

struct Member {
  MemberId id;
  Role role = Role::kVoter;
  friend bool operator==(const Member&, const Member&) = default;
};

// Who is in a group. In force for the instances above the one that chose it.
class Config {
 public:
  Config() = default;
  Config(Instance instance, std::vector<Member> members);

  Instance instance() const { return instance_; }                  // 0: the group's first
  const std::vector<Member>& members() const { return members_; }  // ordered by id
  size_t voters() const { return voters_; }
  size_t majority() const { return voters_ / 2 + 1; }
  // Index into members(), or -1.
  int IndexOf(const MemberId& id) const;
  // The member that is `node` in whatever incarnation; null if none.
  const Member* FindNode(NodeId node) const;
  bool IsVoter(const MemberId& id) const;
  // Bit i: members()[i] is a voter.
  uint32_t voter_mask() const { return voter_mask_; }
  // Whether the voters among the members with these bits are a majority.
  bool IsMajority(uint32_t bits) const;
  // Whether at least one of them is in any majority: what was chosen, one of them accepted.
  bool MeetsEveryMajority(uint32_t bits) const;

  friend bool operator==(const Config&, const Config&) = default;

 private:
  Instance instance_ = 0;
  std::vector<Member> members_;
  size_t voters_ = 0;
  uint32_t voter_mask_ = 0;
};

enum class EntryKind : uint8_t { kNoop = 0, kCommand = 1, kConfig = 2 };

// What the core knows of an entry. Equal digests mean equal entries.
struct EntryMeta {
  EntryKind kind = EntryKind::kNoop;
  uint32_t bytes = 0;                    // of payload, for the window
  uint64_t digest = 0;                   // over the entry without its ballot; 0 for a no-op
  std::shared_ptr<const Config> config;  // kConfig only
  // kNoop: the mastership whose first entry this is; {} if it fills a gap. When that mastership
  // began, a majority had promised it and held nothing above this instance. So entries of lower
  // ballots above it are dead: never chosen, and never to be proposed again, because they were
  // decided upon a log that is no longer the one below them.
  Ballot fence = {};
  Instance fence_config = 0;  // with a fence: the newest configuration that mastership knew chosen
};

// The no-op that begins a mastership.
EntryMeta FenceEntry(const Ballot& ballot, Instance config);

// The entry itself, which the core passes on and never looks at. Null for a no-op, and where the
// owner is to take it from its log.
using Body = std::shared_ptr<const void>;

}  // namespace hydra::paxos
