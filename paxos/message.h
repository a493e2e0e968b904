// SPDX-License-Identifier: Apache-2.0
//
// What replicas of a group say to each other. docs/consensus.md, section 3, has the table of who
// says what when; paxos.proto is the same for the wire, with bodies out of band.
#pragma once

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "paxos/types.h"

namespace hydra::paxos {

// "Would you promise?" Changes nothing at the receiver.
struct PreVote {
  Ballot ballot;
  Instance config = 0;  // newest configuration that the sender knows
};
struct PreVoteReply {
  Ballot ballot;
  bool granted = false;
  Ballot promised;  // the answerer's; if refused, ask again above it
};

struct Prepare {
  Ballot ballot;
  Instance from = 0;    // the candidate knows all instances below as chosen
  Instance config = 0;  // as in PreVote
  Ballot released;      // a mastership whose master gave up its lease of this group
};
struct PromisedEntry {
  Instance instance = 0;
  Ballot ballot;  // accepted in
  EntryMeta meta;
  bool faulty = false;  // accepted, but its body was lost to rot
};
struct Promise {
  Ballot ballot;
  Instance commit = 0;                 // all up to here are chosen; not listed
  std::vector<PromisedEntry> entries;  // accepted above max(from - 1, commit)
};

enum class Refusal : uint8_t {
  kBallot = 1,     // promised a higher ballot
  kLease = 2,      // granted a lease to another master that may still be valid
  kNotMember = 3,  // the sender was removed
};
struct Reject {
  Ballot ballot;  // of the message refused
  Ballot promised;
  Refusal reason = Refusal::kBallot;
  Instance config = 0;
};

struct AcceptEntry {
  Instance instance = 0;
  EntryMeta meta;
  Body body;
};
struct Accept {
  Ballot ballot;
  Instance commit = 0;
  std::shared_ptr<const std::vector<AcceptEntry>> entries;  // one list for all receivers
};
struct InstanceRange {
  Instance from = 0;
  Instance to = 0;  // included
  friend bool operator==(const InstanceRange&, const InstanceRange&) = default;
};
// Of what it has applied. Who installs blocks serves nobody and does not lead; whose blocks are
// there without all of their payload does, and fetches what it is asked for.
enum class Lacks : uint8_t { kNothing = 0, kPayload = 1, kBlocks = 2 };

struct Accepted {
  Ballot ballot;
  std::vector<InstanceRange> ranges;
  Instance applied = 0;
  Lacks lacks = Lacks::kNothing;
};

// "I am the master in this ballot; commit is known up to here." Answered in kind.
struct Beat {
  Ballot ballot;
  Instance commit = 0;
  uint64_t round = 0;  // of reads to confirm; 0 = none
};
struct BeatReply {
  Ballot ballot;
  uint64_t round = 0;
  Instance applied = 0;
  Lacks lacks = Lacks::kNothing;
};

// Chosen entries from any peer that knows them. `held[i]` is the digest of what the asker holds at
// from + i, accepted whole in any ballot; such a one is confirmed without its body.
struct CatchUp {
  struct Held {
    bool any = false;
    uint64_t digest = 0;
  };
  Instance from = 0;
  std::vector<Held> held;
};
struct ChosenEntry {
  Instance instance = 0;
  Ballot ballot;  // in which the sender accepted it
  EntryMeta meta;
  bool same = false;  // as held: no body
  Body body;
};
struct CatchUpReply {
  Instance from = 0;
  Instance commit = 0;
  Instance truncated = 0;  // the sender's log begins above this
  std::vector<ChosenEntry> entries;
};

// A new master asks for the body of an entry that a promise listed.
struct FetchBody {
  Instance instance = 0;
  Ballot ballot;
  uint64_t digest = 0;
};
struct FetchedBody {
  Instance instance = 0;
  Ballot ballot;
  uint64_t digest = 0;
  bool found = false;
  Body body;
};

// A follower asks the master from which instance on a read is linearizable.
struct ReadIndex {
  uint64_t id = 0;
};
struct ReadIndexReply {
  uint64_t id = 0;
  bool ok = false;
  Instance instance = 0;
};

// The master of `ballot` has stopped: it proposes nothing more and its lease of this group is void.
struct TakeOver {
  Ballot ballot;
};

// State of a replica that is behind the sender's log, piece by piece (docs/consensus.md, 8).
struct InstallRequest {
  uint64_t transfer = 0;
  Instance base = 0;   // the asker's applied instance
  std::string cursor;  // empty: from the start
  bool bare = false;   // what the blocks are, without their payload
};
struct InstallChunk {
  uint64_t transfer = 0;
  std::string cursor;  // the one asked for
  std::string next;
  Instance as_of = 0;
  bool done = false;
  Body body;
};

using MessageBody = std::variant<PreVote, PreVoteReply, Prepare, Promise, Reject, Accept, Accepted,
                                 Beat, BeatReply, CatchUp, CatchUpReply, FetchBody, FetchedBody,
                                 ReadIndex, ReadIndexReply, TakeOver, InstallRequest, InstallChunk>;

struct Message {
  GroupId group = 0;
  MemberId from;
  MemberId to;
  uint64_t boot = 0;  // of the sender's process
  MessageBody body;
};

// One line for transcripts and traces: "1>2 Accept (3,1) commit 7: 8 9".
std::string Describe(const Message& message);
std::string Describe(const Ballot& ballot);
const char* NameOf(const MessageBody& body);

}  // namespace hydra::paxos
