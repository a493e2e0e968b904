// SPDX-License-Identifier: Apache-2.0
//
// The engine's insides (blockstore/engine.h has its contract). Split by concern:
//   engine_open.cc   creating, opening, recovery
//   engine_log.cc    records in, batches out, completions
//   engine_log_read.cc  the log's entries as values
//   engine_apply.cc  the state machine and reads
//   engine_install.cc  taking in a peer's image or delta
//   engine_jobs.cc   checkpoints, spares, accounting, freeing
//   engine_vacuum.cc cleaning
//   engine_purge.cc  leaving nothing behind
//   engine_scan.cc   changes, images, digest, stats
//   engine_rot.cc    scrub, repair
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "blockstore/ahead_rows.h"
#include "blockstore/block_map.h"
#include "blockstore/checkpoint.h"
#include "blockstore/engine.h"
#include "blockstore/identity.h"
#include "blockstore/log_index.h"
#include "blockstore/map_schema.h"
#include "blockstore/map_store.h"
#include "blockstore/physical_volume.h"
#include "blockstore/read_around.h"
#include "blockstore/vacuum.h"

namespace hydra {

// An accepted entry that is not yet stable. `payload` is there until the record is durable; `entry`
// is null where the record cannot be read (faulty).
struct LiveEntry {
  Instance instance = 0;
  Ballot ballot;
  std::shared_ptr<const Entry> entry;
  bool understood = true;
  bool faulty = false;    // accepted, its record unreadable
  bool doubtful = false;  // something that is lost may have replaced it: another ballot, an install
  bool moving = false;    // vacuum has queued a copy
  bool durable = false;
  Placement placement;  // valid when durable
  Payload payload;

  uint32_t pages() const { return entry == nullptr ? 0 : entry->PayloadPages(); }
};

struct Group {
  GroupId id = 0;
  uint32_t block_pages = 1;
  Ballot promised;                                      // durable
  std::string opaque;                                   // durable
  LogIndex log;                                         // durable records
  std::map<Instance, std::shared_ptr<LiveEntry>> live;  // accepted, above `stable`
  std::deque<std::shared_ptr<LiveEntry>> waiting;       // applied, not all durable yet
  Instance applied = 0;
  Instance stable = 0;
  Instance noted_stable = 0;  // what the stream last said of `stable`
  Instance checkpointed = 0;  // `applied` of the last finished checkpoint
  Version horizon = 0;
  Version durable_horizon = 0;
  std::string state;  // of the layers above, as of the last checkpoint or install
  Instance state_at = 0;
  std::string next_state;  // ... as of the checkpoint being written
  Instance next_state_at = 0;
  bool suspect = false;
  bool halted = false;

  InstallProgress install;      // durable
  bool install_queued = false;  // one of its records is on its way
  Instance chunk_as_of = 0;     // ... a chunk that leads here; 0: none is
  // The state came with an install, and nothing was applied since: the layers above may not have
  // taken it over yet, so they are not asked.
  bool state_installed = false;
  Instance mixed_until = 0;   // 0: the blocks are those of `applied`
  Instance overlay_from = 0;  // an install wrote versions up to here past the overlay
  AheadRows ahead;            // installed rows above the install's floor

  uint32_t blocks_per_extent() const { return kExtentPages / block_pages; }
  bool installing() const { return install.active() || install_queued; }
  // Bounds the accepted instances that are not applied: behind what is, or will be installed.
  bool MayBeOpen(Instance instance) const {
    const auto follows = [instance](Instance point) {
      return instance > point && instance - point <= kMaxOpenInstances;
    };
    return follows(stable) || (install.active() && follows(install.floor));
  }
};

struct PendingInstall {
  InstallRecord record;  // install
  std::string state;     // ... finish
  ChunkRecord chunk;     // chunk
};

// What a queued record becomes when it is durable.
struct PendingRecord {
  RecordType type = RecordType::kAccept;
  GroupId group = 0;
  bool report = true;  // the caller waits for `token`
  uint64_t token = 0;
  uint64_t sequence = 0;             // in the order in which they were queued
  std::shared_ptr<LiveEntry> entry;  // accept
  bool moved = false;                // accept: re-appended by vacuum
  bool repair = false;               // relocate: a peer's copy of a rotten block
  HardStateRecord hard_state;        // hard state
  Instance instance = 0;             // truncate
  RelocateRecord relocate;           // relocate
  GroupAction action = GroupAction::kCreate;
  std::shared_ptr<const PendingInstall> install;  // install, chunk
};

// Keeps segments from being recycled under a reader.
class ReadPins {
 public:
  using Pin = std::multiset<uint64_t>::iterator;

  Pin Take() { return active_.insert(epoch_); }
  void Release(Pin pin) { active_.erase(pin); }
  // The moment after which a reader cannot have seen what is being retired now.
  uint64_t Retire() { return epoch_++; }
  bool DrainedUpTo(uint64_t epoch) const { return active_.empty() || *active_.begin() > epoch; }

 private:
  uint64_t epoch_ = 1;
  std::multiset<uint64_t> active_;
};

// Where a purge stands. First what was begun before comes to its end (a victim's blocks that were
// read may be dead by now, and are written all the same; so are copies for rotten blocks, and
// entries of a group whose drop is queued) and spares are wiped; then, from one moment on, the
// segments of that moment are emptied.
struct PurgeState {
  enum class Phase : uint8_t { kIdle, kPreparing, kEmptying } phase = Phase::kIdle;
  uint64_t last = 0;       // asked for
  uint64_t current = 0;    // under way
  uint64_t completed = 0;  // all up to here have ended
  uint64_t failed = 0;     // the last one that failed
  Status failure;
  uint64_t barrier = 0;              // the last record that was queued when the last caller asked
  size_t awaited = 0;                // records up to there that are not durable
  std::set<SegmentNumber> segments;  // not freed yet
  bool record_queued[kLanes] = {};
  uint64_t all = 0;
  // Segments with blocks that could not be moved. They are reported when they are met, and peers
  // may have good copies.
  struct Stuck {
    unsigned tries = 0;
    Nanos next = 0;  // not before
  };
  std::map<SegmentNumber, Stuck> stuck;
};

// Rot is what the disk gives back wrongly, and what it does not give back at all.
inline bool IsRot(const Status& status) {
  return status.code() == Code::kCorruption || status.code() == Code::kIoError;
}

// The record at `slot`; any thread. With its payload, kCorruption if that is rotten: then what
// could be read is in `*rotten`, where given.
struct LogRecordPlace {
  Uuid store;
  uint32_t segment_pages = 0;
  GroupId group = 0;
  uint32_t block_pages = 1;
  Instance instance = 0;
  LogIndex::Slot slot;
};
Result<LogEntry> ReadRecordAt(const SegmentTable& table, const LogRecordPlace& place,
                              bool with_payload, LogEntry* rotten = nullptr,
                              uint32_t* payload_page = nullptr);

// What every planned read is.
class PinnedRead : public ReadJob {
 public:
  ReadPins::Pin pin;
  // What the look-ups see, if they must agree with each other and with what is known already.
  const leveldb::Snapshot* snapshot = nullptr;
  std::vector<std::unique_ptr<ReadJob>> parts;  // of several in one, each with its own pin
};

class EngineImpl final : public Engine, private BatchSink {
 public:
  EngineImpl(const EngineOptions& options, StoreIdentity identity, std::unique_ptr<FileLock> lock);
  ~EngineImpl() override;

  Status Recover();

  // Engine
  const StoreIdentity& identity() const override { return identity_; }
  const RecoveryReport& recovery() const override { return report_; }
  void SetStateSource(StateSource source) override { state_source_ = std::move(source); }
  Status CreateGroup(GroupId group, uint32_t block_pages, uint64_t token) override;
  Status DropGroup(GroupId group, uint64_t token) override;
  Status Accept(GroupId group, Instance instance, const Ballot& ballot, Entry entry,
                Payload payload, uint64_t token) override;
  Status AcceptShared(GroupId group, Instance instance, const Ballot& ballot,
                      std::shared_ptr<const Entry> entry, Payload payload, uint64_t token) override;
  Status SaveHardState(GroupId group, const Ballot& promised, std::string opaque,
                       uint64_t token) override;
  Status TruncateLog(GroupId group, Instance instance, uint64_t token) override;
  Status Readmit(GroupId group) override;
  Batch* NextBatch(Nanos now) override;
  void BatchDone(Batch* batch, const Status& written, Nanos now,
                 std::vector<Completion>* completions) override;
  std::optional<Nanos> NextDeadline() const override;
  std::optional<Instance> ServesFrom(GroupId id) const override;
  Result<GroupInfo> Info(GroupId group) const override;
  std::vector<GroupId> Groups() const override;
  std::vector<LogEntryInfo> LogEntries(GroupId group, Instance from, Instance to) const override;
  Result<LogEntry> ReadLogEntry(GroupId group, Instance instance) override;
  Result<AcceptRecord> ReadLogRecord(GroupId group, Instance instance) override;
  Result<std::unique_ptr<ReadJob>> PlanLogRead(LogReadRequest request) override;
  Result<std::vector<LogEntry>> FinishLogRead(std::unique_ptr<ReadJob> job) override;
  Status Apply(GroupId group, Instance instance, const Ballot& ballot) override;
  Result<std::unique_ptr<ReadJob>> PlanRead(GroupId group, Lba lba, uint64_t count) override;
  Result<ReadResult> FinishRead(std::unique_ptr<ReadJob> job, DamagedRead* damaged) override;
  Result<std::unique_ptr<ReadJob>> PlanReads(GroupId group,
                                             const std::vector<LbaRange>& ranges) override;
  Result<std::vector<ReadResult>> FinishReads(std::unique_ptr<ReadJob> job) override;
  std::vector<DamagedRead> FinishPartialReads(std::unique_ptr<ReadJob> job) override;
  Result<ReadResult> Read(GroupId group, Lba lba, uint64_t count) override;
  Result<std::vector<BlockKind>> ReadMap(GroupId group, Lba lba, uint64_t count) override;
  void DropRead(std::unique_ptr<ReadJob> job) override;
  Version NewestVersion(GroupId group, Lba lba, Instance seen, bool* known) override;
  Result<ChangeBatch> ScanChanges(GroupId group, Version since, const std::string& cursor,
                                  size_t limit) override;
  Result<ChangeBatch> ScanImage(GroupId group, const std::string& cursor, size_t limit) override;
  Result<std::unique_ptr<ReadJob>> PlanScan(ScanRequest request) override;
  Status CheckHorizon(const ScanRequest& request);
  Result<ChangeBatch> FinishScan(std::unique_ptr<ReadJob> job) override;
  Result<uint64_t> Digest(GroupId group) override;
  Status InstallBegin(GroupId group, InstallMode mode, Instance floor, uint64_t token) override;
  Status InstallChunk(GroupId group, const ImageChunk& chunk, Payload payload,
                      uint64_t token) override;
  Status InstallFinish(GroupId group, Instance applied, std::string state, uint64_t token) override;
  Status InstallAbort(GroupId group, uint64_t token) override;
  uint64_t OwedCount(GroupId group) const override;
  bool MayOwe(GroupId group) const override {
    return !accounting_complete_ || OwedCount(group) > 0;
  }
  Result<std::vector<BlockName>> OwedBlocks(GroupId group, Lba from, size_t limit) override;
  Status Deliver(GroupId group, const std::vector<BlockName>& blocks, Payload payload,
                 uint64_t token, bool* all) override;
  std::unique_ptr<Job> NextJob() override;
  bool AwaitsJob() const override {
    return draining_ || (checkpoint_requested_ && put_off_checkpoint_ == nullptr);
  }
  void FinishJob(std::unique_ptr<Job> job) override;
  void RequestCheckpoint() override { checkpoint_requested_ = true; }
  void RequestVacuum(bool enabled) override { vacuum_enabled_ = enabled; }
  Result<uint64_t> Purge(const std::vector<GroupId>& groups) override;
  Result<PurgeInfo> PurgeProgress(uint64_t purge) const override;
  Status Drain(std::vector<Completion>* completions) override;
  Status Checkpoint() override;
  Result<std::unique_ptr<ReadJob>> PlanScrub(uint64_t budget_bytes) override;
  Result<ScrubPiece> FinishScrub(std::unique_ptr<ReadJob> job) override;
  void RestartScrub() override;
  Result<bool> Scrub(uint64_t budget_bytes, std::vector<Damage>* found) override;
  std::vector<Damage> TakeDamage() override { return std::exchange(damage_, {}); }
  Result<Damage> Locate(GroupId group, Lba lba) override;
  Result<bool> IsStillThere(const Damage& block) override;
  Status Repair(const Damage& block, Payload payload, uint64_t token) override;
  EngineStats Stats() const override;
  Room PayloadRoom() const override { return volume_->PayloadRoom(); }
  bool TakesPayload(uint64_t bytes) const override { return volume_->TakesPayload(bytes); }
  void LetUseReserve(GroupId group) override { use_reserve_.insert(group); }
  uint64_t durable_batch() const override { return volume_->position().next_batch - 1; }
  const Status& poisoned() const override { return poisoned_; }
  Status Close() override;

 private:
  class BlockReadJob;
  class ManyReadsJob;
  class MapScanJob;
  class LogReadJob;
  class AccountingJob;
  class ScrubJob;
  struct Condemned {
    SegmentNumber segment;
    uint64_t epoch;
  };

  // BatchSink, during recovery
  Status OnBatch(const ScannedBatch& batch, const StreamPosition& position) override;
  Status OnGap(uint64_t from, uint64_t to) override;

  // engine_open.cc
  Status LoadCheckpoint(CheckpointRow* row, std::optional<IntentRow>* intent);
  Status LoadGroup(GroupId group, const GroupMeta& meta);
  Status LoadOpenEntry(Group* group, const OpenEntry& open);
  Status ReplayRecord(const ScannedBatch& batch, size_t index);
  Status ReplayAccept(const RecordView& view, const Placement& placement, uint32_t lane);
  Status ReplayGroup(const GroupRecord& record);
  Status ReplayStable(GroupId group, Instance stable);
  void EnsureBallast();
  void ReleaseBallast();  // on any thread

  // engine_log.cc
  Result<Group*> Usable(GroupId group);
  Group* FindGroup(GroupId group);
  Status Poison(const Status& cause, std::string_view why = "a write failed");
  // Returns its cookie.
  uint64_t Queue(Urgency urgency, PendingRecord&& pending, std::string record, Payload payload);
  void Complete(PendingRecord&& pending, const Placement& placement,
                std::vector<Completion>* completions);
  void CompleteAccept(const PendingRecord& pending, const Placement& placement);
  void CompleteMovedAccept(Group* group, const PendingRecord& pending, const Placement& placement);
  void IndexEntry(Group* group, const LiveEntry& entry);
  void DropGroupState(GroupId group);
  std::string SealNote();

  // engine_log_read.cc
  Result<LogIndex::Slot*> FindSlot(Group* group, Instance instance);
  Result<LogEntry> ReadRecord(Group* group, Instance instance, const LogIndex::Slot& slot,
                              bool with_payload);

  // engine_rot.cc
  void NoteDamage(const Damage& damage);
  void VerifyOpenEntries();
  void ListForScrub();
  void AddToScrub(ScrubJob* job, uint64_t budget_bytes);
  Status MayTakeCopies();
  PendingRecord RepairOf(const Damage& block, uint32_t block_pages) const;
  void CompleteRepair(const PendingRecord& pending, const Placement& placement);

  // engine_apply.cc
  Result<Group*> Readable(GroupId group, Lba lba, uint64_t count);
  void Unpin(PinnedRead* read);
  void FoldStable(Group* group);
  void ApplyToMap(Group* group, const LiveEntry& entry);
  void ZeroExtentUnlessNewer(Group* group, Extent extent, Version version);
  const LiveEntry* FindWaiting(const Group& group, Lba lba, uint32_t* operation) const;

  // engine_install.cc
  Result<Group*> Installable(GroupId group);
  Status CheckChunk(const Group& group, const ImageChunk& chunk) const;
  Status ResolveChunk(Group* group, const ImageChunk& chunk, const Payload& payload,
                      ChunkRecord* record, Payload* kept);
  Status ResolveExtent(Group* group, const ImageRow& row, ChunkRecord* record);
  Status ResolveBlock(Group* group, const ImageRow& row, Instance as_of, bool* changes);
  void ResolveErasures(const Group& group, const ImageChunk& chunk, ChunkRecord* record) const;
  uint64_t OverlayRowsOf(const Group& group, const ChunkRecord& record) const;
  void QueueInstall(Group* group, RecordType type, PendingInstall pending, std::string record,
                    Payload payload, uint64_t token);
  void CompleteInstall(Group* group, const PendingRecord& pending, const Placement& placement);
  void ApplyInstallRecord(Group* group, const InstallRecord& record, std::string state);
  void ApplyChunk(Group* group, const ChunkRecord& record, const Placement& placement);
  Reference FindInOpenEntry(const Group& group, const ChunkRow& row) const;
  void EraseRange(Group* group, const ChunkRow& row);
  void FinishInstall(Group* group, Instance applied, std::string state);
  Status ReplayInstall(const RecordView& view, const Placement& placement);
  Status ReplayChunk(const RecordView& view, const Placement& placement);
  Status LoadAheadRows(Group* group);

  // engine_jobs.cc
  bool WantsCheckpoint() const;
  std::unique_ptr<Job> BeginCheckpoint(bool clean);
  GroupMeta MetaOf(Group* group);
  void FinishCheckpoint(CheckpointJob* job);
  void PutOffCheckpoint(std::unique_ptr<CheckpointJob> job);
  Status CheckpointNow(bool clean);
  void FinishAccounting(AccountingJob* job);
  void FreeCondemned();
  void TrimLogs(SegmentNumber segment);
  // What a checkpoint of so many rows may take of the disk.
  static uint64_t CheckpointBytes(uint64_t rows);
  bool CheckpointFits();

  // engine_vacuum.cc
  SegmentNumber PickVictim() const;
  bool IsFreeable(SegmentNumber number, const Segment& segment) const;
  size_t FreeableSegments() const;
  std::unique_ptr<Job> NextVacuumJob();
  Status ListVictim();
  void ListingDone();
  void FinishVacuumScan(VacuumScanJob* job);
  void FinishVacuumRead(VacuumReadJob* job);
  void QueueRelocations();
  void MoveOpenEntries();
  void EndVacuum();

  // engine_purge.cc
  void AdvancePurge();
  void BeginEmptying();
  void LeaveSegments();
  void EndPurge(Status failure);
  SegmentNumber PickPurgeVictim() const;
  void PurgeVictimDone(SegmentNumber number, Segment* segment);
  bool purging() const { return purge_.phase == PurgeState::Phase::kEmptying; }

  EngineOptions options_;
  StoreIdentity identity_;
  std::unique_ptr<FileLock> lock_;
  RecoveryReport report_;
  Status poisoned_;

  std::unique_ptr<MapStore> store_;
  std::unique_ptr<PhysicalVolume> volume_;
  std::unique_ptr<BlockMap> map_;
  std::map<GroupId, Group> groups_;
  std::set<GroupId> dropped_;            // ids that must not come back
  std::set<GroupId> use_reserve_;        // LetUseReserve
  std::vector<GroupId> dropped_now_;     // since the last checkpoint
  std::vector<GroupId> dropped_before_;  // rows not yet swept

  // Queued records by cookie: index + 1. Slots are used again, so that the write path does not
  // allocate.
  std::vector<PendingRecord> pending_;
  uint64_t queued_ = 0;  // records so far
  std::vector<uint64_t> free_cookies_;
  std::vector<Completion> held_;  // completed while nobody listened; told with the next batch

  StateSource state_source_;
  uint64_t checkpoint_id_ = 0;
  uint64_t replay_from_ = 0;  // batch
  bool checkpoint_requested_ = false;
  bool checkpoint_running_ = false;
  std::unique_ptr<CheckpointJob> put_off_checkpoint_;  // to be run again
  unsigned checkpoint_tries_ = 0;                      // of that
  Nanos checkpoint_from_ = 0;                          // the next one, not before
  bool draining_ = false;  // a checkpoint waits for applied entries to become durable
  std::mutex ballast_mutex_;
  std::atomic<bool> ballast_released_ = false;  // written under it
  bool checkpoint_refused_ = false;             // for want of space, and said so

  Nanos now_ = 0;  // as of the last NextBatch
  ReadPins pins_;
  ReadAround around_;
  uint64_t map_lookups_ = 0;
  uint64_t map_recalled_ = 0;
  std::vector<Condemned> condemned_;
  std::string accounting_cursor_;
  bool accounting_running_ = false;
  bool accounting_complete_ = false;
  unsigned accounting_tries_ = 0;  // failed since the last piece that was read
  Nanos accounting_from_ = 0;      // the next try, not before
  Status accounting_failed_;       // for good

  bool vacuum_enabled_ = true;
  VacuumState vacuum_;
  PurgeState purge_;

  // Where the scrub stands. The lists are made when their turn comes.
  struct ScrubState {
    enum class Phase : uint8_t { kStored, kOverlay, kOpen } phase = Phase::kStored;
    bool out = false;    // a piece is being read
    std::string cursor;  // kStored
    std::vector<BlockKey> overlay;
    std::vector<std::pair<GroupId, Instance>> open;
    size_t next = 0;  // of the list
  };
  ScrubState scrub_;
  uint64_t scrub_round_ = 0;
  std::vector<Damage> damage_;  // not told yet
  uint64_t rotten_blocks_ = 0;
  uint64_t repaired_blocks_ = 0;
  uint64_t delivered_blocks_ = 0;
  uint64_t payload_bytes_ = 0;
  uint64_t installed_bytes_ = 0;
  uint64_t relocated_bytes_ = 0;
  uint64_t checkpoints_ = 0;
};

}  // namespace hydra
