// SPDX-License-Identifier: Apache-2.0
//
// One replica of one group, whole: the consensus core joined to the storage engine, the group's
// replicated state, and what its master needs to serve clients.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <boost/unordered/unordered_flat_map.hpp>

#include "base/clock.h"
#include "blockstore/engine.h"
#include "daemon/block_message.h"
#include "daemon/group_state.h"
#include "daemon/operation.h"
#include "daemon/range_locks.h"
#include "daemon/recovery_budget.h"
#include "daemon/write_order.h"
#include "paxos/replica.h"

namespace hydra {

// What a client or gateway wants of a group.
struct ShardRequest {
  enum class Kind : uint8_t { kMutate, kRead, kReadLocal };
  static constexpr Instance kAnySeen = kMaxInstance;

  uint64_t id = 0;  // the owner's; not used twice
  Kind kind = Kind::kMutate;
  // kMutate
  RequestContext context;
  Operation op;
  Payload payload;
  BufferSlice compare;  // compare-and-write: what the blocks must hold
  // Only these bytes of the blocks, from the start of payload and compare, are meant: the master
  // fills in the rest. 0: whole blocks.
  uint32_t part_offset = 0;
  uint32_t part_bytes = 0;
  Instance seen = kAnySeen;  // commit index known when the command arrived; kAnySeen: not checked
  // Reads. context.epoch counts for them too, unless it is 0: then nothing was checked.
  Lba lba = 0;
  uint64_t count = 0;
  bool map_only = false;  // how the blocks are mapped, and nothing of their data
};

enum class ShardAnswer : uint8_t {
  kDone,            // `outcome` says how
  kNotMaster,       // ask `master`, or any other if 0; certainly not executed
  kBusy,            // certainly not executed; try again shortly
  kUnknown,         // proposed, and mastership lost: it may still happen. Repeat it
  kStale,           // a newer write than `seen` stands: take a new `seen` if still wanted
  kSessionExpired,  // this copy is never executed
  kForgotten,       // the client said it has the outcome
  kCancelled,
  kFenced,
  kInvalid,  // `status` says why
  kNoSpace,  // certainly not executed: no majority has space for data; deletes still work
  kDamaged,  // the local copy of a block is rotten: read it from a peer
};

struct ShardReply {
  uint64_t id = 0;
  ShardAnswer answer = ShardAnswer::kDone;
  Status status;
  NodeId master = 0;
  Outcome outcome;
  Instance commit = 0;  // known at the time of the answer: a good `seen`
  // When it was proposed, or allowed to be read; chosen; applied, or read. 0: it was not.
  Nanos begun = 0;
  Nanos chosen = 0;
  Nanos ended = 0;
  std::optional<ReadResult> data;  // without the blocks' bytes if only the map was asked for
};

// Work for the read pool; bring it back with ReadDone.
struct ShardRead {
  GroupId group = 0;
  uint64_t ticket = 0;
  std::unique_ptr<ReadJob> job;
  size_t bytes = 0;  // about how much it reads
};

struct ShardOutput {
  std::vector<paxos::Message> messages;
  std::vector<BlockMessage> blocks;
  std::vector<OwedMessage> owed;
  std::vector<ShardReply> replies;
  std::vector<ShardRead> reads;

  void Clear() {
    messages.clear();
    blocks.clear();
    owed.clear();
    replies.clear();
    reads.clear();
  }
};

// Rotten blocks of a replica since it started, or of all replicas of a node.
struct RepairStats {
  uint64_t found = 0;
  uint64_t repaired = 0;  // of a node alone: its engine knows which copies took effect
  uint64_t given_up = 0;  // no peer had a good copy, or this disk no room for it
  uint64_t reads = 0;     // of clients, answered with a peer's copy
  uint64_t under_way = 0;

  RepairStats& operator+=(const RepairStats& other) {
    found += other.found;
    given_up += other.given_up;
    reads += other.reads;
    under_way += other.under_way;
    return *this;
  }
};

// Hands out the engine's tokens and remembers whose they are, and counts the payload that the
// shards of a node have accepted and the engine has not taken yet.
class TokenTable {
 public:
  struct Owner {
    GroupId group = 0;
    uint64_t local = 0;
  };
  uint64_t Add(GroupId group, uint64_t local) {
    owners_.emplace(++last_, Owner{group, local});
    return last_;
  }
  void Cancel(uint64_t token) { owners_.erase(token); }
  // A replica is gone, and a later one of the same group must not take its records for its own.
  void CancelAll(GroupId group) {
    erase_if(owners_, [group](const auto& owner) { return owner.second.group == group; });
  }
  std::optional<Owner> Take(uint64_t token) {
    const auto found = owners_.find(token);
    if (found == owners_.end()) return std::nullopt;
    const Owner owner = found->second;
    owners_.erase(found);
    return owner;
  }
  void AddWaiting(uint64_t bytes) { waiting_bytes_ += bytes; }
  void RemoveWaiting(uint64_t bytes) { waiting_bytes_ -= bytes; }
  uint64_t waiting_bytes() const { return waiting_bytes_; }

 private:
  uint64_t last_ = 0;
  uint64_t waiting_bytes_ = 0;
  boost::unordered_flat_map<uint64_t, Owner> owners_;
};

// The shards of a node that have something to do, and whether one has failed: a node has many
// groups, most of them idle, and looks at those in its ticks alone.
class ActiveShards {
 public:
  void Add(GroupId group) { groups_.push_back(group); }
  // In the order of their numbers; in the place of what the caller took before.
  void Take(std::vector<GroupId>* taken) {
    std::sort(groups_.begin(), groups_.end());
    groups_.erase(std::unique(groups_.begin(), groups_.end()), groups_.end());
    taken->clear();
    taken->swap(groups_);
  }
  void NoteFailed(const Status& status) {
    if (failed_.ok()) failed_ = status;
  }
  const Status& failed() const { return failed_; }  // not OK: this node must go silent

 private:
  std::vector<GroupId> groups_;
  Status failed_;
};

// What a replica keeps beside its promise (Engine::SaveHardState's opaque part): who it is, the
// longest lease it may have granted, and the group's first configuration, which is in no entry.
struct ReplicaIdentity {
  uint32_t incarnation = 1;
  Nanos lease = 0;
  std::vector<paxos::Member> first_members;
  // Made the only voter by force, in the place of the configuration of this instance: the majority
  // is lost. A later configuration of the log ends it.
  std::optional<Instance> sole_at = {};
  // Peers may owe it blocks. Without it, a start need not count the blocks to know that none do.
  bool owes = false;

  std::string Encode() const;
  static Result<ReplicaIdentity> Decode(std::span<const uint8_t> bytes);
};

// Pure: no thread, no clock, no socket. The owner (NodeCore) calls inputs, then Pump, which lets
// core, engine and state act until nothing moves. One thread; reads may run elsewhere.
//
// The master decides before it proposes: it keeps a second session table that is ahead by
// everything proposed, asks it, and proposes only what will execute. Applying then only confirms.
// It can, because a new master serves nothing before all that its predecessors proposed is applied.
class Shard {
 public:
  struct Options {
    GroupId group = 0;
    // What the engine calls it, if not the same: it never takes an id again, and a replica may come
    // back to a node that dropped an earlier one of its group.
    std::optional<GroupId> store_group = {};
    uint64_t life = 0;  // of the replicas that a process made; so reads of others are told apart
    NodeId node = 0;
    Nanos lease = 0;
    paxos::ReplicaOptions replica;  // group, self and seed are filled in
    uint64_t seed = 0;
    size_t max_waiting = 4096;         // client requests held here
    size_t catch_up_bytes = 1u << 20;  // per answer
    size_t install_chunk_bytes = 256u << 10;
    // A replica that the log still reaches gets a delta if that is shorter by so much.
    uint64_t delta_gain_bytes = 8u << 20;
    // ... or, where a delta may be bare, if the log is longer than this; less is sent at once, at
    // any rate: then it takes part in what is new.
    uint64_t near_bytes = 16u << 20;
    // Before each question for owed blocks. Simulations let other things happen meanwhile.
    Nanos owed_pause = 0;
    // With so many entries under way, what arrives is gathered for the next one, up to so much.
    size_t gather_entries = 1;
    uint64_t gather_bytes = 64u << 10;
    bool may_use_reserve = false;  // Engine::LetUseReserve; nothing is refused for lack of room
  };

  // All outlive the shard. The engine's records are what it starts from.
  Shard(const Options& options, Engine* engine, paxos::LeaseTable* leases, TokenTable* tokens,
        RecoveryBudget* budget, ActiveShards* active);
  ~Shard();

  // A group that the engine was just told to create.
  Status StartNew(const ReplicaIdentity& identity, Nanos now);
  // From what the engine recovered.
  Status StartRecovered(Nanos now);

  // --- Inputs. ----------------------------------------------------------------------------------
  void Tick(Nanos now);
  void Step(paxos::Message message, Nanos now);
  void OnBlockMessage(BlockMessage message, Nanos now);
  void OnOwedMessage(OwedMessage message, Nanos now);
  // Something of this group was found rotten (Engine::TakeDamage, scrub).
  void OnDamage(const Damage& damage, Nanos now);
  void OnNotice(NodeId from, const paxos::Notice& notice, Nanos now);
  void Submit(ShardRequest&& request, Nanos now);
  void Completed(uint64_t local_token, Nanos now);
  void ReadDone(uint64_t ticket, std::unique_ptr<ReadJob> job, Nanos now);
  Status ChangeMembers(const std::vector<paxos::Member>& members, Nanos now);
  // To tell the core something else; what comes of it is in the next Pump.
  paxos::Replica& TouchReplica() {
    Touch();
    return *replica_;
  }
  // Incarnations up to this one were given to this very store (if any was: a replica that is made
  // anew gets its first with it). Without it a replica takes no other than it has: where a node was
  // replaced, its former disk finds the name of its successor in the group's log. Not kept: to be
  // said again after a start.
  void BeNamed(uint32_t incarnation);
  // Whether all peers can answer for owed blocks, so that installs may leave payload out.
  void MayAskBare(bool may);
  // For when the majority is lost for good: this replica alone decides from now on, from what it
  // has. Whatever it has accepted counts as chosen; what only the others had is lost.
  Status ForceSole(Nanos now);
  void Pump(Nanos now, ShardOutput* out);
  // Answers everything that waits here; nothing may be called afterwards.
  void Abandon(Nanos now, ShardOutput* out);

  // --- To look at. ------------------------------------------------------------------------------
  const paxos::Replica& replica() const { return *replica_; }
  const GroupState& state() const { return state_; }
  GroupId store_group() const { return store_group_; }
  const ReplicaIdentity& identity() const { return identity_; }
  // What a restart would find of identity().lease. A new replica has said nothing that a lease
  // could bind before its identity is durable, so it sets no limit.
  Nanos durable_lease() const { return durable_lease_; }
  bool ready() const { return ready_ && replica_->serving(); }  // serves mutations
  bool serves_local() const;
  bool sole() const { return forced_ || IsSole(); }  // decides alone, by force, or is about to
  // What this replica has to fetch of what lies before `end`, by the size of the entries that it
  // has seen.
  uint64_t MissingBytes(Instance end = kMaxInstance) const;
  // What peers still owe this replica, as far as it is known; whether it may be anything.
  uint64_t OwedBytes() const;
  bool Owes() const { return identity_.owes && engine_->MayOwe(store_group_); }
  const RepairStats& repairs() const;
  // Payload that was applied while this replica led, since the last call, in bytes.
  uint64_t TakeWritten() { return std::exchange(written_, 0); }
  const Status& failed() const { return failed_; }
  std::string SavedState() const { return state_.Encode(); }

 private:
  // Tokens that are not the core's, which count from 1.
  static constexpr uint64_t kLocalIdentity = 0;
  static constexpr uint64_t kLocalInstall = 1ull << 62;
  static constexpr uint64_t kLocalOwed = kLocalInstall + 1;
  static constexpr uint64_t kLocalRepair = 1ull << 63;  // and the repair's number
  // Tickets of reads begin with the life of the replica that planned them.
  static constexpr unsigned kLifeShift = 40;

  struct Proposed {  // one operation of an entry of ours
    uint64_t request = 0;
    RangeLocks::Ticket lock = 0;
    uint64_t bytes = 0;  // of payload, charged
    Nanos at = 0;        // when it was proposed
    Nanos chosen = 0;    // ... and chosen
  };
  struct Waiting {
    ShardRequest request;
    Instance after = 0;  // compare-and-write: when this is applied
    bool reading = false;
  };
  struct ReadWait {
    ShardRequest request;
    Instance after = 0;
    bool answered = false;
  };

  struct Reading {
    ShardRequest request;
    Nanos since = 0;
    unsigned again = 0;  // times that it began anew, because its blocks changed while it waited
  };

  // shard.cc
  Status BuildReplica(Nanos now);
  Status RollForward();
  Status RecoveredEntries(paxos::RecoveredState* out);
  bool DrainAppends(Nanos now);
  void NoteDurable(uint64_t local_token);
  void ReportDurable(Nanos now);
  bool SubmitAppend(const paxos::Append& append);
  void NoteAppend(paxos::Append append);
  bool DrainApplies(Nanos now);
  void NoteChosen(Instance instance, Nanos now);
  bool ApplyOne(const paxos::Chosen& chosen, Nanos now);
  void OnConfigApplied();
  bool IsSettled() const;
  bool BeReborn(Nanos now);
  bool BeSole(Nanos now);
  bool Rebuild(Nanos now);
  bool IsSole() const {
    return identity_.sole_at && state_.config().instance() <= *identity_.sole_at;
  }
  void SaveIdentity();
  void Fail(const Status& status);
  void Touch();
  bool HasWork() const;

  // shard_recovery.cc: what replicas that are behind are sent
  void ServeCatchUps();
  bool Serve(const paxos::ServeCatchUp& serve);
  bool IsNeeded(const paxos::MemberId& id) const;
  bool IsNear(const paxos::ServeCatchUp& serve) const;
  bool DeltaIsShorter(const paxos::ServeCatchUp& serve);
  bool LookDone(uint64_t ticket, std::unique_ptr<ReadJob>* job);
  void CatchUpRead(const paxos::ServeCatchUp& serve, Instance truncated, uint64_t spent,
                   std::vector<LogEntry> entries);
  uint64_t AnswerCatchUp(const paxos::ServeCatchUp& serve, Instance truncated,
                         std::vector<LogEntry> entries);
  void ServeInstalls();
  bool Serve(const paxos::ServeInstall& serve);
  bool InstallReadDone(uint64_t ticket, std::unique_ptr<ReadJob>* job);
  void ReadForInstall(NodeId peer, std::unique_ptr<ReadJob> job);
  bool IsTooEarly(NodeId peer);
  void AnswerInstall(NodeId peer, std::unique_ptr<ReadJob> reads);

  // shard_peer.cc: what else peers ask of the log, and taking in theirs
  void Serve(const paxos::ServeBody& serve, Nanos now);
  bool ServeDone(uint64_t ticket, std::unique_ptr<ReadJob>* job, Nanos now);
  void AnswerBody(const paxos::ServeBody& serve, std::vector<LogEntry> entries, Nanos now);
  void TakePiece(const paxos::InstallChunk& chunk);
  void InstallStep(Nanos now);
  void InstallStepDone(Nanos now);
  void LeaveOutWhatDoesNotFit(paxos::Accept* accept);
  void LeaveOutWhatDoesNotFit(paxos::CatchUpReply* reply);
  bool TakesIn(Instance instance, const paxos::Body& body);
  Status CheckBody(const paxos::EntryMeta& meta, const paxos::Body& body, Instance instance) const;
  Status CheckBody(uint64_t digest, const paxos::Body& body, Instance instance) const;
  void WarnOfDropped(NodeId from, Instance instance, const Status& why);
  void Send(const paxos::MemberId& to, paxos::MessageBody body);

  // shard_owed.cc (its work is in shard_owed.h)
  struct OwedWork;
  bool HasOwedWork() const;
  void FetchOwed(Nanos now);
  bool MarkOwes(const ImageChunk& chunk);
  void UnmarkOwes();
  void NoteOwedAfterAll();
  void LogOwed() const;
  void StopAsking();
  void AskAllForOwed(Nanos now);
  std::vector<NodeId> PeersToAsk(Nanos now) const;
  void TakeOwed(Nanos now);
  void OwedDone(Nanos now);
  void ServeOwed();
  void ReadOwed(const OwedMessage& asked);
  void ExcuseOwed(const DamagedRead& damaged, Result<ReadResult>* result) const;
  bool OwedRead(uint64_t ticket, std::unique_ptr<ReadJob>* job);

  // shard_client.cc
  void OnMastership(Nanos now);
  void LoseMastership();
  void DropUnproposed();
  void BecomeReadyIfApplied(Nanos now);
  Status CheckMutation(const ShardRequest& request) const;
  void Mutate(ShardRequest&& request, Nanos now, bool locked);
  void Resolve(uint64_t ticket, Nanos now);
  Status CheckPart(const ShardRequest& request) const;
  static bool NeedsRead(const ShardRequest& request);
  void Resolved(ShardRequest request, const ReadResult& found, Nanos now);
  void Merge(const Buffer& blocks, ShardRequest* request) const;
  bool Decide(const ShardRequest& request, ShardAnswer* refusal, Outcome* repeat);
  bool SeenAllows(const ShardRequest& request);
  void RefuseAsStale(const ShardRequest& request, Nanos now);
  Status CheckSpace(uint64_t bytes, Nanos now);
  bool RefuseForSpace(const ShardRequest& request, Nanos now);
  void GiveWay(uint64_t bytes, Nanos now);
  void AnswerAndSettle(const Proposed& operation, ShardAnswer answer, Outcome outcome);
  void Join(ShardRequest&& request, RangeLocks::Ticket lock, Nanos now);
  bool Gathers() const;
  bool FlushBuilder(Nanos now);
  void ReleaseLock(RangeLocks::Ticket ticket, Nanos now);
  void Answer(const ShardRequest& request, ShardAnswer answer, Status status = Status::Ok());
  void AnswerId(uint64_t id, ShardAnswer answer, Outcome outcome);
  size_t BytesOf(uint64_t blocks) const { return blocks * block_pages_ * kPageSize; }

  // shard_read.cc
  void StartRead(ShardRequest request, unsigned again = 0);
  void ReadFinished(uint64_t ticket, Result<ReadResult> result, Nanos now);
  void AnswerMap(const ShardRequest& request);
  void ServeReads(Nanos now);

  // shard_repair.cc (its work is in shard_repair.h)
  struct RepairWork;
  bool NoteRotten(const Damage& damage);
  void VerifyBlocksOf(Instance instance);
  bool TakeRead(uint64_t ticket, const Result<ReadResult>& result, DamagedRead* damaged, Nanos now);
  void Repair(Nanos now);
  void BeginRound(const std::pair<Lba, Version>& key, Nanos now);
  void AskNext(const std::pair<Lba, Version>& key, Nanos now);
  void WriteGoodCopy(const std::pair<Lba, Version>& key, Nanos now);
  void RepairDone(uint64_t local_token, Nanos now);
  void GiveToReads(const std::pair<Lba, Version>& key, const BufferSlice& good, Nanos now);
  void FailReads(const std::pair<Lba, Version>& key, Nanos now);
  void ReadAgain(const std::pair<Lba, Version>& key, Nanos now);
  void ServeBlock(const BlockMessage& asked);
  void AnswerBlock(uint64_t ticket, const Result<ReadResult>& read);
  void SearchLog(BlockMessage answer);
  bool LogSearched(uint64_t ticket, std::unique_ptr<ReadJob>* job);

  Options options_;
  const GroupId store_group_;
  Engine* engine_;
  paxos::LeaseTable* leases_;
  TokenTable* tokens_;
  RecoveryBudget* budget_;
  ActiveShards* active_;
  ReplicaIdentity identity_;
  Nanos durable_lease_ = 0;
  bool identity_waits_ = false;  // the engine would not take it yet
  std::unique_ptr<paxos::Replica> replica_;
  GroupState state_;
  Status failed_;
  uint32_t block_pages_ = 1;
  uint32_t next_incarnation_ = 0;  // that this replica is about to become; 0: none
  uint32_t named_ = 0;             // see BeNamed
  bool forced_ = false;            // about to be the only voter
  ShardOutput out_;
  paxos::Output core_;
  Nanos now_ = 0;
  bool touched_ = false;  // is among active_: to be pumped
  Nanos looked_ = 0;      // when a tick last had it pumped
  Nanos warned_ = 0;      // of an entry that was dropped

  // Records on their way to disk.
  std::deque<paxos::Append> append_queue_;  // the engine would not take them yet
  uint64_t taken_in_ = 0;                   // payload handed to the core since it last acted
  uint64_t appended_bytes_ = 0;             // payload of all entries
  uint64_t appended_entries_ = 0;
  struct Outstanding {
    uint64_t token = 0;  // local
    bool durable = false;
  };
  std::deque<Outstanding> outstanding_;  // in the order of tokens
  struct Accepting {                     // the newest record of an instance that is not applied
    uint64_t token = 0;
    Ballot ballot;
    bool taken = false;  // by the engine
  };
  std::map<Instance, Accepting> accepted_;
  std::deque<paxos::Chosen> apply_queue_;

  // Master.
  bool ready_ = false;
  Instance ready_at_ = 0;  // serve when this is applied; 0: not master
  SessionTable decided_;   // state_.sessions() plus everything proposed
  EntryBuilder builder_;
  Payload building_payload_;
  uint64_t building_bytes_ = 0;  // a page at least for each operation
  std::vector<Proposed> building_;
  std::vector<std::pair<Lba, uint64_t>> building_ranges_;  // until proposed: then in order_
  Nanos building_interval_ = 0;
  std::shared_ptr<EntryBody> held_;  // built, refused by a full window
  std::vector<Proposed> held_proposed_;
  std::map<Instance, std::vector<Proposed>> proposed_;
  Nanos time_told_ = 0;
  RangeLocks locks_;
  WriteOrder order_;
  uint64_t next_ticket_;
  std::map<uint64_t, Waiting> waiting_;  // by lock ticket
  // Refused as older than a write that is under way, when that one is applied: not before can
  // whoever asks again have seen it.
  struct Overtaken {
    uint64_t request = 0;
    Instance by = 0;
  };
  std::vector<Overtaken> overtaken_;

  // Reads.
  std::map<uint64_t, ReadWait> reads_;      // by request id
  std::map<uint64_t, Reading> reading_;     // by ticket, at the read pool
  std::map<uint64_t, uint64_t> resolving_;  // read ticket -> lock ticket

  // Bodies for peers, at the read pool.
  std::map<uint64_t, paxos::ServeBody> bodies_;  // by ticket

  // For replicas that are behind.
  struct RecoveryWork;
  std::unique_ptr<RecoveryWork> recovery_;
  PayloadHistory history_;
  uint64_t written_ = 0;

  // Install.
  struct InstallWork;
  std::unique_ptr<InstallWork> install_;

  std::unique_ptr<RepairWork> repair_;
  std::unique_ptr<OwedWork> owed_;
  bool may_ask_bare_ = false;
};

}  // namespace hydra
