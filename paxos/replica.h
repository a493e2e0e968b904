// SPDX-License-Identifier: Apache-2.0
//
// One replica of one group: Multi-Paxos as a pure state machine (docs/consensus.md).
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"
#include "base/status.h"
#include "paxos/lease_table.h"
#include "paxos/message.h"
#include "paxos/types.h"

namespace hydra::paxos {

struct ReplicaOptions {
  GroupId group = 0;
  MemberId self;
  uint64_t seed = 0;  // of the time-outs
  // The highest that a former replica of the group used in this process: what it said of a ballot
  // must not be taken for this one's.
  uint64_t used_round = 0;

  // Open (not yet chosen) instances of a master; a full window refuses proposals with kBusy.
  uint32_t window_instances = 1024;
  uint64_t window_bytes = 16u << 20;
  // Chosen but not yet applied; more of them stop proposals and catching up.
  uint32_t apply_backlog = 4096;
  uint32_t max_entries_per_message = 128;
  uint64_t max_bytes_per_message = 1u << 20;
  size_t max_reads = 65'536;  // waiting for confirmation

  Nanos election_timeout = 500 * kMillisecond;  // up to twice that, at random
  // After a master was lost, candidates come forward within so long, at random.
  Nanos election_spread = 40 * kMillisecond;
  Nanos retransmit_after = 200 * kMillisecond;
  Nanos catch_up_retry = 200 * kMillisecond;
  Nanos prepare_timeout = kSecond;
  Nanos hand_over_timeout = 2 * kSecond;
  Nanos commit_interval = 20 * kMillisecond;  // how soon followers of an idle group learn a commit
};

// An entry of the local log above the applied instance, as the store found it.
struct RecoveredEntry {
  Instance instance = 0;
  Ballot ballot;
  EntryMeta meta;
  bool faulty = false;  // its body is lost to rot
};

// What a replica starts from; all of it was durable.
struct RecoveredState {
  Ballot promised;  // hard state; accepts may imply a higher one
  Instance applied = 0;
  Config config;                        // in force at `applied`
  Ballot fence;                         // the highest of the entries up to `applied`
  std::vector<RecoveredEntry> entries;  // above `applied`, in order
  // Log records may be missing: this replica must not say what it promised or accepted. It votes
  // again only under a new incarnation.
  bool suspect = false;
  bool installing = false;  // an install was under way
  std::string install_cursor;
};

// A record to make durable. Persisted(token) must follow, in the order of tokens.
struct Append {
  enum class Kind : uint8_t { kAccept = 1, kHardState = 2 };
  uint64_t token = 0;
  Kind kind = Kind::kAccept;
  Ballot ballot;          // accepted in, or promised
  Instance instance = 0;  // kAccept
  EntryMeta meta;
  Body body;
};

// Apply it (accepted here in `ballot`, or known to be equal to what was), then call Applied.
struct Chosen {
  Instance instance = 0;
  Ballot ballot;  // of the local record
  EntryMeta meta;
  Body body;  // null: in the local log
};

struct ReadAnswer {
  uint64_t id = 0;
  bool ok = false;        // false: not the master any more, or too many; ask again
  Instance instance = 0;  // serve when this is applied
};

// What the owner is to do with its log or state for a peer, and answer with Send.
struct ServeCatchUp {
  MemberId to;
  CatchUp request;
  Instance commit = 0;  // serve nothing above
};
struct ServeBody {
  MemberId to;  // may be this replica itself: then call BodyLoaded
  FetchBody request;
};
struct ServeInstall {
  MemberId to;
  InstallRequest request;
};
// A piece of a peer's state: make it durable, then call InstallProgress.
struct InstallPiece {
  InstallChunk chunk;
};

// Everything that came of the inputs since the last TakeOutput.
struct Output {
  std::vector<Message> messages;
  std::vector<Append> appends;
  std::vector<Chosen> chosen;
  std::vector<ReadAnswer> reads;
  std::vector<ServeCatchUp> catch_ups;
  std::vector<ServeBody> bodies;
  std::vector<ServeInstall> installs;
  std::optional<InstallPiece> piece;
  bool install_begun = false;  // drop what a former install left, keep `applied`
  bool mastership_changed = false;
  bool removed = false;  // a chosen configuration is without this replica

  void Clear();
  void Swap(Output* other);
  bool empty() const;
};

enum class Mode : uint8_t { kFollower, kPreVoting, kPreparing, kRecovering, kMaster };

// Owned and called by one thread. Inputs never block and never fail for want of memory: what is too
// much is refused or dropped, as the protocol allows. Time comes with the inputs.
//
// Durable before said: everything that asserts a promise or an acceptance leaves through
// SayWhenDurable or FlushAccepted, and nowhere else (docs/consensus.md, 2).
class Replica {
 public:
  // `leases` is the node's and outlives the replica.
  Replica(const ReplicaOptions& options, const RecoveredState& recovered, LeaseTable* leases,
          Nanos now);

  // --- Inputs. ----------------------------------------------------------------------------------
  void Tick(Nanos now);
  void Step(Message message, Nanos now);
  void OnNotice(NodeId from, const Notice& notice, Nanos now);
  // kUnavailable: not the master (see master_hint()), or not yet serving. kBusy: window full.
  Result<Instance> Propose(EntryMeta meta, Body body, Nanos now);
  // Changes one voter at most; chosen like any entry, as a barrier.
  Status ProposeConfig(std::vector<Member> members, uint64_t digest, Body body, Nanos now);
  void Persisted(uint64_t token, Nanos now);
  void Applied(Instance instance);
  // Answered in Output::reads, now or later, at the master or a follower.
  void Read(uint64_t id, Nanos now);
  Status HandOver(const MemberId& target, Nanos now);
  // Gives up mastership at once, telling the others.
  void Resign(Nanos now);
  // Starts an election at once if the rules allow it (first start of a group, tests).
  void Campaign(Nanos now);
  // Asks the others whether this replica is still a member: who knows that it is not says so.
  void AskMembership(Nanos now);
  void BodyLoaded(Instance instance, const Ballot& ballot, Body body, Nanos now);
  void InstallProgress(const std::string& cursor, Nanos now);
  // The install is complete and durable: the state is that at `applied`.
  void Installed(Instance applied, const Config& config, const Ballot& fence, Nanos now);
  // Installs of a voter may bring what the blocks are without their payload, which the owner then
  // fetches in its own time: until it has, it says that this replica owes. One that does not vote
  // has to have the payload before it may, so it does not ask for less.
  void MayAskBare(bool may) { may_ask_bare_ = may; }
  void SetOwes(bool owes) { owes_ = owes; }
  void TakeOutput(Output* output);
  bool has_output() const { return !out_.empty(); }

  // --- What the owner may look at. --------------------------------------------------------------
  Mode mode() const { return mode_; }
  // Master, with its own no-op chosen: proposals and reads are served.
  bool serving() const { return mode_ == Mode::kMaster && active_ && !handing_over_; }
  bool LeaseValid(Nanos now) const;
  // Whom to ask instead; {} if unknown.
  MemberId master_hint() const;
  const Ballot& promised() const { return promised_; }
  const Ballot& ballot() const { return ballot_; }  // own, while candidate or master
  uint64_t highest_round() const { return highest_round_; }
  Instance commit() const { return commit_; }
  Instance applied() const { return applied_; }
  Instance last() const { return slots_.empty() ? applied_ : applied_ + slots_.size(); }
  Instance commit_heard() const { return commit_heard_; }  // chosen, if not here then elsewhere
  const Config& config() const { return config_; }
  bool installing() const { return install_.active; }
  bool suspect() const { return suspect_; }
  bool IsVoter() const { return !suspect_ && config_.IsVoter(options_.self); }
  const ReplicaOptions& options() const { return options_; }
  // From when a change of members is asked for until it is settled.
  bool changing_members() const { return config_waiting_ || config_at_ != 0 || !settled(); }
  // An entry above the newest configuration is chosen: whatever is lost now, a majority of that
  // configuration can prove that it is in force (docs/consensus.md, 7).
  bool settled() const { return config_.instance() == 0 || commit_ > config_.instance(); }
  // Applied instance a peer reported last; 0 if not master.
  Instance PeerApplied(const MemberId& id) const;
  // Master: whether a member has nearly all that is chosen, the payload included, as far as it
  // said.
  bool PeerIsWhole(const MemberId& id) const;
  // Master: whether a majority lives, has applied so much and installs nothing, without this one.
  bool KeepsUpWithout(const MemberId& id, Instance at_least, Nanos now) const;

 private:
  friend class Invariants;

  // One instance above `applied_`.
  struct Slot {
    Ballot ballot;  // accepted here in; {} = nothing accepted
    EntryMeta meta;
    Body body;
    bool faulty = false;
    bool durable = false;  // in `ballot`
    bool chosen = false;
    uint32_t votes = 0;  // members (by index) that accepted in ballot_, while master
    Nanos sent = 0;      // as master: when it last went out
  };

  // The master's view of another member.
  struct Peer {
    MemberId id;
    Instance applied = 0;
    Lacks lacks = Lacks::kNothing;
    uint64_t round = 0;           // last read round it answered
    uint64_t confirmed_boot = 0;  // it is known to have promised ballot_, in this boot of its
    Nanos confirmed_at = 0;       // process, since this moment
    Nanos probe_due = 0;

    // What a message says, unless a later one was faster.
    void Take(Instance said_applied, Lacks said_lacks) {
      if (said_applied < applied) return;
      applied = said_applied;
      lacks = said_lacks;
    }
  };

  struct PromiseInfo {
    uint64_t boot = 0;
    Nanos at = 0;
    Instance commit = 0;
    std::vector<PromisedEntry> entries;
  };

  // An instance that a new master re-proposes.
  struct Reproposal {
    bool decided = false;  // false: the value may be one whose body nobody has answered with yet
    Ballot ballot;
    EntryMeta meta;
    bool has_body = false;
    Body body;
    std::vector<MemberId> holders;  // who can send the body
    size_t asked = 0;               // next holder to ask
    Nanos ask_again = 0;
  };

  struct Durable {
    uint64_t token = 0;
    Append::Kind kind = Append::Kind::kAccept;
    Ballot ballot;
    Instance instance = 0;
    std::vector<Message> say;  // when this and all before are durable
  };

  struct Install {
    bool active = false;
    uint64_t transfer = 0;
    MemberId source;
    std::string cursor;
    bool waiting = false;  // for the owner to persist a piece
    Nanos retry_at = 0;
    uint32_t tries = 0;
  };

  // replica.cc: slots, output, durability
  Slot* Find(Instance instance);
  const Slot* Find(Instance instance) const;
  Slot& Reach(Instance instance);
  void Send(const MemberId& to, MessageBody body);
  void SayWhenDurable(const MemberId& to, MessageBody body);
  uint64_t AppendHardState();
  void AppendAccept(Instance instance, const Slot& slot);
  void FlushAccepted();
  std::vector<MemberId> Others() const;
  std::vector<MemberId> Sources() const;
  void AdvanceCommit();
  void AdoptConfig(const Config& config);
  // Whether the sender is no member, as far as both sides know.
  bool IsStranger(const MemberId& sender, Instance their_config) const;
  void AddAccepted(Instance instance);
  bool MasterAlive(Nanos now) const;
  // Whether a process of its node said that it gave up the ballot that was promised last.
  bool GaveUpPromised(uint64_t boot) const;

  // replica_election.cc
  void StartPreVote(Nanos now);
  void StartPrepare(Nanos now, const Ballot& released);
  void On(const PreVote& m, const Message& in, Nanos now);
  void On(const PreVoteReply& m, const Message& in, Nanos now);
  void On(const Prepare& m, const Message& in, Nanos now);
  void On(const Promise& m, const Message& in, Nanos now);
  void On(const Reject& m, const Message& in, Nanos now);
  bool LeaseForbids(const Ballot& candidate, const Ballot& released, Nanos now) const;
  void MovePromise(const Ballot& ballot, Nanos now);
  Promise MakePromise(const Ballot& ballot, Instance from) const;
  void CheckPromises(Nanos now);
  bool HavePreVotes(const Config& config) const;
  void EndPreVote(Nanos now);
  bool HavePromiseQuorum() const;
  // Configurations that may be chosen above what is known: of each instance's best entry.
  template <typename F>
  void ForEachOpen(F&& f) const;
  std::vector<Config> OpenConfigs() const;
  bool IsProven(const Config& config) const;
  // The instance of the last of them that is proven; 0 if none is.
  Instance LastProven(const std::vector<Config>& open) const;
  std::vector<MemberId> PrepareTargets() const;
  Instance HighestPromisedCommit(MemberId* holder) const;
  void Decide(Nanos now);
  void LearnUpTo(Instance instance, Nanos now);
  bool DecideUpTo(Instance highest);
  void ChooseBest(Instance instance, const Ballot& fence, Reproposal* out) const;
  void AskForBodies(Nanos now);
  void On(const FetchBody& m, const Message& in, Nanos now);
  void On(const FetchedBody& m, const Message& in, Nanos now);
  void BecomeMaster(Nanos now);
  void ProposeRecovered(Nanos now);
  void StepDown(Nanos now, bool tell);
  void ResetElectionTimer(Nanos now);
  void HurryElection(Nanos now);
  void FollowerTick(Nanos now);
  void On(const TakeOver& m, const Message& in, Nanos now);

  // replica_log.cc: proposing, accepting, learning, catching up
  void ProposeAt(Instance instance, EntryMeta meta, Body body, Nanos now);
  void ProposeNoop(Nanos now);
  void Vote(Slot* slot, uint32_t bits);
  void FlushProposals();
  bool IsFarBehind(const Peer& peer) const;
  void Retransmit(Nanos now);
  void AddPeersOf(const Config& config);
  Lacks WhatItLacks() const;
  Status CheckWhole(const std::set<MemberId>& voters) const;
  void MaybeProposeConfig(Nanos now);
  void On(const Accept& m, const Message& in, Nanos now);
  void On(const Accepted& m, const Message& in, Nanos now);
  void LearnCommit(const Ballot& ballot, Instance commit, const MemberId& from, Nanos now);
  void RequestCatchUp(const MemberId& from, Nanos now);
  void On(const CatchUp& m, const Message& in, Nanos now);
  void On(const CatchUpReply& m, const Message& in, Nanos now);
  void BeginInstall(const MemberId& source, Nanos now);
  void RequestInstall(Nanos now);
  void On(const InstallRequest& m, const Message& in, Nanos now);
  void On(const InstallChunk& m, const Message& in, Nanos now);
  void MaybeFinishHandOver(Nanos now);

  // replica_read.cc: beats, reads, leases
  void On(const Beat& m, const Message& in, Nanos now);
  void On(const BeatReply& m, const Message& in, Nanos now);
  void On(const ReadIndex& m, const Message& in, Nanos now);
  void On(const ReadIndexReply& m, const Message& in, Nanos now);
  void Confirm(Peer* peer, uint64_t boot, Nanos now);
  void StartReadRound(Nanos now);
  void FinishReadRounds(Nanos now);
  void AnswerRead(uint64_t id, const MemberId& asker, bool ok, Instance instance);
  void FailReads();
  void TickReads(Nanos now);
  Peer* FindPeer(const MemberId& id);
  const Peer* FindPeer(const MemberId& id) const;

  ReplicaOptions options_;
  LeaseTable* leases_;
  Rng rng_;
  Output out_;

  // Durable state, or about to be.
  Ballot promised_;
  Ballot durable_promise_;  // what has been flushed of it
  Instance applied_ = 0;
  Instance commit_ = 0;     // all up to here are chosen and known here
  std::deque<Slot> slots_;  // of applied_ + 1 and on
  size_t recovered_slots_ = 0;
  Ballot fence_;   // highest of the chosen entries: see EntryMeta
  Config config_;  // newest chosen
  bool suspect_ = false;

  uint64_t next_token_ = 1;
  std::deque<Durable> pending_;              // in order of tokens
  std::vector<InstanceRange> accepted_now_;  // durable in promised_, to be said
  Nanos now_ = 0;

  Mode mode_ = Mode::kFollower;
  Nanos election_due_ = 0;
  Nanos prepared_at_ = 0;           // when it last came forward
  bool has_master_ = false;         // it was alive when last looked at
  unsigned hurried_pre_votes_ = 0;  // in a row
  MemberId promised_to_;            // whose ballot promised_ is, if heard from in it
  uint64_t promised_boot_ = 0;      // ... and which of its processes it was
  Ballot master_seen_;              // a ballot whose master was heard from as such
  uint64_t master_boot_ = 0;
  // The last ballot that a node said it gave up, and its lease. Another process of it may use that
  // ballot again: one that was never durable is forgotten in a crash, and so is all with a disk.
  struct Resigned {
    Ballot ballot;
    uint64_t boot = 0;
  };
  std::map<NodeId, Resigned> resigned_;
  uint64_t highest_round_ = 0;
  Instance commit_heard_ = 0;  // highest commit any message named

  // Candidate.
  Ballot ballot_;
  std::set<MemberId> pre_votes_;
  bool pre_vote_refused_ = false;
  std::map<MemberId, PromiseInfo> promises_;
  bool self_promised_ = false;
  Nanos phase_deadline_ = 0;
  Nanos resend_at_ = 0;
  Ballot released_;
  std::map<Instance, Reproposal> reproposals_;

  // Master.
  bool active_ = false;
  Instance noop_ = 0;  // own no-op
  std::vector<Peer> peers_;
  Instance next_ = 0;  // next instance to propose
  uint64_t open_bytes_ = 0;
  Instance unsent_ = 0;  // proposals from here on have not gone out
  std::optional<EntryMeta> config_waiting_;
  Body config_body_;
  Instance config_at_ = 0;  // of the one proposed and not chosen yet
  bool handing_over_ = false;
  MemberId hand_over_to_;
  Nanos hand_over_deadline_ = 0;
  Nanos commit_told_at_ = 0;
  Instance commit_told_ = 0;
  Nanos laggards_due_ = 0;

  // Reads.
  struct WaitingRead {
    uint64_t id = 0;
    MemberId asker;
  };
  uint64_t round_ = 0;  // under way; answers to it alone count
  Instance round_instance_ = 0;
  std::vector<WaitingRead> round_reads_;
  std::vector<WaitingRead> next_reads_;
  Nanos round_due_ = 0;
  std::map<uint64_t, Nanos> asked_master_;  // reads of this follower -> deadline

  // Catching up.
  MemberId catch_up_from_;
  MemberId told_by_;  // who spoke to a later incarnation of this node of more than is known here
  Nanos catch_up_due_ = 0;
  Instance catch_up_gap_ = 0;  // the missing instance for which it was put off
  bool catch_up_out_ = false;
  uint32_t catch_up_tries_ = 0;
  Install install_;
  bool may_ask_bare_ = false;
  bool owes_ = false;
};

}  // namespace hydra::paxos
