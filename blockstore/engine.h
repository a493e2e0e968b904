// SPDX-License-Identifier: Apache-2.0
//
// The storage engine of one node: the log of all its groups, their blocks, and the map that finds
// them, in one data directory (docs/disk-format.md).
//
//   Accept / SaveHardState / ...  ->  queue  ->  NextBatch, Batch::Write, BatchDone  ->  durable
//   Apply (chosen entries, in order)  ->  overlay  ->  checkpoint job  ->  LevelDB
//   PlanRead, ReadJob::Run, FinishRead  (or Read, which does all three); PlanLogRead, PlanScrub
//   alike
//
// The engine is passive. It starts no thread and reads no clock: the owner calls it, carries its
// batches to a writer thread and its jobs to background threads, and brings them back. All
// methods belong to the owner's one thread; only Batch::Write, Job::Run and ReadJob::Run may run
// elsewhere, at most one batch at a time.
//
// Promises:
//  * what a Completion names is durable, and completions come in the order of the stream;
//  * nothing half-written is ever visible: a record is recovered whole or not at all;
//  * rot is detected and reported as faulty, never passed on, never taken for absence;
//  * after one failed write or flush the engine is poisoned: every later call fails with
//    kPoisoned, nothing is retried. A failed read poisons nothing: a checkpoint that could not read
//    the map is put off and run again. Only if that fails for a minute, or if LevelDB itself
//    refuses further writes because it could not read, does the engine stop.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/file.h"
#include "base/status.h"
#include "base/uuid.h"
#include "blockstore/install.h"
#include "blockstore/record.h"
#include "blockstore/types.h"

namespace hydra {

struct StoreIdentity {
  Uuid store;
  Uuid cluster;
  uint32_t node = 1;
  uint64_t segment_bytes = 256ull << 20;
};

struct EngineOptions {
  FileSystem* fs = nullptr;  // outlives the engine
  std::string dir;

  // Space: segments and spares together never take more than this. 0: as much as the file system
  // has. Of it, `reserve_segments` are kept from client writes, for deletes, vacuum and hard state.
  uint64_t capacity_bytes = 0;
  uint32_t reserve_segments = 4;
  uint32_t spare_segments = 2;  // made ahead, beyond the reserve
  // While nobody writes, half as many spares as there are segments are made besides, up to this:
  // for the next burst, beside which none has to be filled.
  uint64_t idle_spare_bytes = 0;

  // Limits. A full queue answers kBusy.
  size_t queue_bytes = 64u << 20;
  size_t queue_records = 65'536;
  size_t overlay_rows = 192'000;  // a checkpoint is due; at twice as many, Apply answers kBusy
  // A checkpoint is due as well when recovery would have so many batches to replay: few rows that
  // are written over and over never fill the overlay.
  uint64_t checkpoint_batches = 16'384;
  size_t log_entries_kept = 65'536;  // applied entries per group kept for shipping to peers
  uint64_t change_retention =
      1 << 20;  // instances per group for which changes can be scanned; 0: all

  Nanos seal_after = 10 * kMillisecond;

  // LevelDB. `inline_map` runs its compactions inside the engine's own calls: no thread, and the
  // same order of I/O every time, for simulations.
  bool inline_map = false;
  // A large write buffer saves LevelDB more than half of what it would write while vacuum keeps
  // moving blocks; up to twice as much is in memory.
  size_t map_write_buffer = 32u << 20;
  size_t map_cache = 32u << 20;
  size_t map_cached_rows = 512u << 10;  // that reads found in it; 32 bytes each
  uint64_t ballast_bytes = 64u << 20;   // space kept for LevelDB on a full disk
};

struct CreateOptions {
  Uuid cluster;
  uint32_t node = 1;
  uint64_t segment_bytes = 256ull << 20;
  std::optional<Uuid> store;  // tests only; random otherwise
};

// What Open found.
struct RecoveryReport {
  uint64_t batches = 0;  // replayed
  uint64_t records = 0;
  uint64_t applied = 0;         // entries re-applied
  bool torn = false;            // an unfinished last batch was cut
  bool payload_rotten = false;  // of the last batch, which was kept
  uint64_t gaps = 0;            // stretches of the stream lost to rot
  uint64_t faulty = 0;          // entries known to have been accepted but unreadable
  std::string ToString() const;
};

struct Completion {
  uint64_t token = 0;
};

// One device write. Write() does the I/O; everything it touches stays untouched until BatchDone.
class Batch {
 public:
  virtual ~Batch() = default;
  virtual Status Write() = 0;
  virtual uint64_t bytes() const = 0;
  virtual bool opens_segment() const = 0;  // which takes some writes more
};

// Work for a background thread: a checkpoint, a spare segment, vacuum, accounting.
class Job {
 public:
  virtual ~Job() = default;
  virtual void Run() = 0;
  virtual const char* name() const = 0;
};

struct BlockInfo {
  Version version = 0;  // 0 unless the block is data
  BlockKind kind = BlockKind::kUnmapped;
  uint32_t crc = 0;  // of the block's bytes, also for zeroes
};

struct ReadResult {
  Buffer data;                    // count blocks
  std::vector<BlockInfo> blocks;  // one each
};

struct ScanRequest {
  GroupId group = 0;
  bool image = false;  // ScanImage; else ScanChanges
  Version since = 0;
  std::string cursor;
  size_t limit = 0;
};

struct LbaRange {
  Lba lba = 0;
  uint64_t count = 0;
};

// A planned read: pins what it needs until it is finished or dropped.
class ReadJob {
 public:
  virtual ~ReadJob() = default;
  virtual void Run() = 0;
  // Does it at once if nothing has to wait for the disk. False: it is still to be run. On the
  // engine's thread.
  virtual bool TryRun() { return false; }
};

struct GroupInfo {
  GroupId group = 0;
  uint32_t block_pages = 1;
  Instance applied = 0;      // by Apply
  Instance stable = 0;       // ... and durable here; what a checkpoint would cover
  Instance truncated = 0;    // entries up to here are gone from the log
  Instance last = 0;         // highest accepted instance (durable)
  Ballot promised;           // durable hard state
  std::string opaque;        // durable hard state, the caller's part
  std::string state;         // of the layers above, as of the last checkpoint or install
  Instance state_at = 0;     // the instance `state` belongs to
  bool suspect = false;      // lost records to rot: must not vote until readmitted
  bool halted = false;       // met an operation it does not know: upgrade this node
  Version horizon = 0;       // changes up to here can no longer be scanned
  uint64_t data_blocks = 0;  // mapped with payload
  // ... which is not here yet: peers owe it. After a start they are counted by and by (see
  // EngineStats::accounting_complete).
  uint64_t owed_blocks = 0;
  // The blocks are being replaced by a peer's: nobody may be served from them, and nothing is
  // applied. Survives restarts until InstallFinish.
  bool installing = false;
  InstallProgress install;
  // After an install: blocks may show changes up to this instance. Serve nobody until it is
  // applied; 0 if it is.
  Instance mixed_until = 0;
};

struct LogEntryInfo {
  Instance instance = 0;
  Ballot ballot;
  bool faulty = false;  // accepted, but unreadable: fetch it from a peer, never deny it
};

struct LogEntry {
  AcceptRecord record;
  Payload payload;  // one slice
};

// Which entries of a log to read, and how much of them.
struct LogReadRequest {
  GroupId group = 0;
  Instance from = 0;
  Instance to = 0;
  size_t max_bytes = SIZE_MAX;  // of payload; one entry may be larger
  // Whether an entry's payload is wanted; runs where the job does. Null: all are.
  std::function<bool(const AcceptRecord&)> wanted;
};

struct Change {
  Lba lba = 0;  // or extent number, if whole_extent
  bool whole_extent = false;
  BlockKind kind = BlockKind::kData;
  Version version = 0;
  uint32_t crc = 0;
};

// A piece of a scan. Call again with `next` until `done`.
struct ChangeBatch {
  std::vector<Change> changes;
  Instance as_of = 0;  // the checkpoint the rows come from
  std::string next;    // cursor
  bool done = false;
};

struct SegmentStats {
  SegmentNumber segment = 0;
  uint32_t lane = 0;
  uint32_t used_pages = 0;  // payload
  uint32_t live_pages = 0;
  uint32_t open_records = 0;  // accepted, not yet applied
  bool active = false;
};

struct EngineStats {
  uint64_t batches = 0;  // written since open
  uint64_t batch_bytes = 0;
  uint64_t payload_bytes = 0;    // of client entries
  uint64_t installed_bytes = 0;  // payload taken in from peers' images and deltas
  uint64_t relocated_bytes = 0;  // payload moved by vacuum
  uint64_t zero_fill_bytes = 0;  // written into fresh spares
  uint64_t checkpoints = 0;
  uint64_t seals = 0;
  uint64_t segments_freed = 0;
  uint64_t overlay_rows = 0;
  uint64_t queued_bytes = 0;
  uint32_t free_segments = 0;   // spares ready
  uint64_t capacity_bytes = 0;  // limit in force, 0 = none
  uint64_t space_bytes = 0;     // taken by segments and spares
  uint64_t rotten_blocks = 0;   // found by reads, scrub, vacuum since open
  uint64_t repaired_blocks = 0;
  uint64_t delivered_blocks = 0;  // that were owed
  uint64_t owed_blocks = 0;       // of all groups
  uint64_t durable_batch = 0;     // number of the last durable batch
  uint64_t around_bytes = 0;      // read into memory along with what was asked for
  uint64_t map_lookups = 0;       // rows that reads had to look up in LevelDB, since open
  uint64_t map_recalled = 0;      // ... and did not have to: they were remembered
  bool accounting_complete = false;
  std::vector<SegmentStats> segments;
};

struct Room {
  uint64_t bytes = 0;
  // False: perhaps more, once what is live has been counted after a start.
  bool known = false;
};

// How far a purge is.
struct PurgeInfo {
  bool done = false;
  Status failed;      // not OK: it gave up; ask for another when what it says is mended
  uint64_t all = 0;   // segments and spares that it has to get through, 0: not known yet
  uint64_t left = 0;  // ... of them not done
};

// A rotten thing found by scrub, vacuum or a read.
struct Damage {
  enum class What { kBlock, kRecordPayload };
  What what = What::kBlock;
  GroupId group = 0;
  Lba lba = 0;            // kBlock
  Instance instance = 0;  // kRecordPayload: the entry
  SegmentNumber segment = 0;
  uint32_t page = 0;
  Version version = 0;  // kBlock: a copy of this version with this CRC is as good
  uint32_t crc = 0;     // ... of the block

  bool owed() const { return segment == kOwedSegment; }  // never was here: no rot
  friend bool operator==(const Damage&, const Damage&) = default;
};

// What a read that met rot has all the same.
struct DamagedRead {
  Lba lba = 0;                 // of the first block
  ReadResult rest;             // complete but for the data of the blocks below, which is zero
  std::vector<Damage> blocks;  // by lba; empty: not even the map could be read
};

// What one piece of a scrub found.
struct ScrubPiece {
  std::vector<Damage> found;
  uint64_t bytes = 0;  // read
  bool end = false;    // of the round
};

class Engine {
 public:
  virtual ~Engine() = default;

  // Makes a new store in `dir` (created if missing, else it must be empty or a half-made store).
  static Status Create(FileSystem* fs, const std::string& dir, const CreateOptions& options);

  // Opens and recovers. Refuses, saying what to do, a directory that is missing, in use, foreign
  // (`cluster`, where given, must match), read-only, truncated or of a newer format.
  static Result<std::unique_ptr<Engine>> Open(const EngineOptions& options,
                                              std::optional<Uuid> cluster = std::nullopt);

  virtual const StoreIdentity& identity() const = 0;
  virtual const RecoveryReport& recovery() const = 0;

  // Where a checkpoint gets the state of the layers above: called for each group when a checkpoint
  // begins, must return the state at exactly GroupInfo::applied.
  using StateSource = std::function<std::string(GroupId)>;
  virtual void SetStateSource(StateSource source) = 0;

  // --- Records. Each is durable when a Completion carries its token. -------------------------
  // kBusy: queue full. kNoSpace: the store is full (deletes and hard state are refused last).

  // Ids are never used again after a drop. The group can be used at once; it survives a restart
  // once its token completed.
  virtual Status CreateGroup(GroupId group, uint32_t block_pages, uint64_t token) = 0;
  virtual Status DropGroup(GroupId group, uint64_t token) = 0;

  // The payload's CRCs are checked here, before anything is queued (kInvalidArgument). An
  // instance may be accepted again in the same or a higher ballot until it is applied.
  virtual Status Accept(GroupId group, Instance instance, const Ballot& ballot, Entry entry,
                        Payload payload, uint64_t token) = 0;
  // The same for who goes on using the entry; whatever owns it is kept until the entry is stable.
  virtual Status AcceptShared(GroupId group, Instance instance, const Ballot& ballot,
                              std::shared_ptr<const Entry> entry, Payload payload,
                              uint64_t token) = 0;
  virtual Status SaveHardState(GroupId group, const Ballot& promised, std::string opaque,
                               uint64_t token) = 0;
  // Drops entries up to `instance`, which must be stable and, if the layers above have a state, not
  // above GroupInfo::state_at: from there on a restart rolls that state forward by the log.
  virtual Status TruncateLog(GroupId group, Instance instance, uint64_t token) = 0;
  // Clears `suspect`: the caller has made sure that the group no longer needs what was lost.
  virtual Status Readmit(GroupId group) = 0;

  // --- The writer. ----------------------------------------------------------------------------
  // The next device write, or null: nothing to do, one in flight, or no segment ready (run jobs).
  virtual Batch* NextBatch(Nanos now) = 0;
  // With what Batch::Write returned. Appends what became durable to `completions`.
  virtual void BatchDone(Batch* batch, const Status& written, Nanos now,
                         std::vector<Completion>* completions) = 0;
  // When NextBatch should be called although nothing was queued (to seal); none if never.
  virtual std::optional<Nanos> NextDeadline() const = 0;

  // --- The log. -------------------------------------------------------------------------------
  virtual Result<GroupInfo> Info(GroupId group) const = 0;
  // From which applied instance on its blocks may be served: see GroupInfo. None while a peer's
  // blocks are being installed, and of a group that is not here.
  virtual std::optional<Instance> ServesFrom(GroupId group) const = 0;
  virtual std::vector<GroupId> Groups() const = 0;
  // Durable entries in [from, to], in order; absent instances are left out.
  virtual std::vector<LogEntryInfo> LogEntries(GroupId group, Instance from, Instance to) const = 0;
  // Turns references back into data. kNotFound: truncated or never accepted. kCorruption,
  // kIoError: faulty.
  virtual Result<LogEntry> ReadLogEntry(GroupId group, Instance instance) = 0;
  // The same without the payload, which is not looked at: what was accepted, and in which ballot,
  // is known although the payload may be rotten.
  virtual Result<AcceptRecord> ReadLogRecord(GroupId group, Instance instance) = 0;
  // Several entries in a row, read elsewhere: neighbours share their reads. The result ends before
  // the first that is absent, rotten or too much. What is planned can be read whatever happens to
  // the log meanwhile.
  virtual Result<std::unique_ptr<ReadJob>> PlanLogRead(LogReadRequest request) = 0;
  virtual Result<std::vector<LogEntry>> FinishLogRead(std::unique_ptr<ReadJob> job) = 0;

  // --- The state machine. ---------------------------------------------------------------------
  // Applies `instance` = applied + 1, which was accepted here in `ballot` (queued is enough).
  // Never reads block data, never waits. kBusy: the overlay is full, or a checkpoint is about to
  // begin and the entry is not durable yet. kUnsupported: the group is halted.
  // kFailedPrecondition: also while an install is under way.
  virtual Status Apply(GroupId group, Instance instance, const Ballot& ballot) = 0;

  virtual Result<std::unique_ptr<ReadJob>> PlanRead(GroupId group, Lba lba, uint64_t count) = 0;
  // kCorruption, kIoError: some blocks are rotten or cannot be read; `damaged`, where given, has
  // the others. Where it is not, TakeDamage tells.
  virtual Result<ReadResult> FinishRead(std::unique_ptr<ReadJob> job,
                                        DamagedRead* damaged = nullptr) = 0;
  // The same, whatever became of each: what is damaged, or (no blocks at all) could not be looked
  // up. Rot is told by TakeDamage.
  virtual std::vector<DamagedRead> FinishPartialReads(std::unique_ptr<ReadJob> job) = 0;
  virtual Result<ReadResult> Read(GroupId group, Lba lba, uint64_t count) = 0;
  // Many reads as one job, for whoever is in no hurry.
  virtual Result<std::unique_ptr<ReadJob>> PlanReads(GroupId group,
                                                     const std::vector<LbaRange>& ranges) = 0;
  virtual Result<std::vector<ReadResult>> FinishReads(std::unique_ptr<ReadJob> job) = 0;
  // What those blocks are, as of everything applied, from memory: no block is read. kData or
  // kUnmapped; what was written as zeroes takes no space and is not told from a hole.
  virtual Result<std::vector<BlockKind>> ReadMap(GroupId group, Lba lba, uint64_t count) = 0;
  // Lets go of a planned read of any kind, whether it ran or not.
  virtual void DropRead(std::unique_ptr<ReadJob> job) = 0;

  // The newest applied version of a block above instance `seen`, without asking LevelDB; 0 or an
  // older version if there is none. `*known` says whether the overlay reaches back to `seen`; if
  // not, the caller's knowledge is too old to tell.
  virtual Version NewestVersion(GroupId group, Lba lba, Instance seen, bool* known) = 0;

  // Changes after `since`, oldest first, as of the last checkpoint; kOutOfRange behind the
  // horizon: use ScanImage. Rows may be outdated by newer versions already; a later scan has those.
  virtual Result<ChangeBatch> ScanChanges(GroupId group, Version since, const std::string& cursor,
                                          size_t limit) = 0;
  // All blocks that are data, by lba, as of the last checkpoint.
  virtual Result<ChangeBatch> ScanImage(GroupId group, const std::string& cursor, size_t limit) = 0;
  // Either of them as a job: rows are looked up on disk. kOutOfRange comes with the plan.
  virtual Result<std::unique_ptr<ReadJob>> PlanScan(ScanRequest request) = 0;
  virtual Result<ChangeBatch> FinishScan(std::unique_ptr<ReadJob> job) = 0;

  // A sum of hashes over (lba, version, kind, CRC) of all data blocks: equal on replicas at equal
  // applied instance. Checkpoints first (it reads the map): slow, for tests and scrub.
  virtual Result<uint64_t> Digest(GroupId group) = 0;

  // --- Installing a peer's blocks. ------------------------------------------------------------
  // For a replica whose peers no longer have the log entries it lacks. Between InstallBegin and
  // InstallFinish `applied` stands still, Apply is refused, Accept and SaveHardState go on. Each
  // call is durable when its token completes; one at a time per group (kBusy until then). After a
  // crash GroupInfo says where to go on: with the chunk behind `install.cursor`, or, if
  // `install.restart` is set, from InstallBegin. Chunks may come from different peers.
  //
  // Begins, or begins again (the cursor goes back to the start; what was taken in stays, and is
  // compared by version). `floor`: the install will lead to this instance or a later one; the first
  // chunk's `as_of` will do. Instances above it can be accepted however far they are ahead.
  virtual Status InstallBegin(GroupId group, InstallMode mode, Instance floor, uint64_t token) = 0;
  // Takes in a chunk. Everything in it is checked before anything is queued: kInvalidArgument if it
  // makes no sense, is damaged or does not follow the chunk before; kFailedPrecondition if a row
  // without payload is not what this replica has (ask for it with payload). Rows apply by version:
  // one that is not newer than what is here changes nothing, unless it brings the payload of a
  // block that is owed. Looks rows up in the map, so it may wait for LevelDB, as Apply never does.
  // Payload: that of data rows without `same` or `bare`, in order. A bare row (not newer than
  // `as_of`) makes the block owed, unless an entry that is open here has its payload.
  virtual Status InstallChunk(GroupId group, const ImageChunk& chunk, Payload payload,
                              uint64_t token) = 0;
  // After the last chunk. From then on applied = stable = truncated = `applied`, which is between
  // the floor and the install's `as_of`; entries above it stay accepted and can be applied. `state`
  // is that of the layers above at `applied`.
  virtual Status InstallFinish(GroupId group, Instance applied, std::string state,
                               uint64_t token) = 0;
  // Gives the attempt up. If no chunk was ever taken in, the group goes on as if nothing had been;
  // otherwise it stays `installing` until a later install is finished.
  virtual Status InstallAbort(GroupId group, uint64_t token) = 0;

  // --- Owed blocks: what an install of bare rows has left to be fetched. ----------------------
  // They are blocks like any other, written over or deleted by entries, moved on by installs; only
  // a read of one fails like that of a rotten one (DamagedRead says which), and Repair takes it
  // too.
  virtual uint64_t OwedCount(GroupId group) const = 0;  // GroupInfo::owed_blocks
  // Or they are not all counted yet.
  virtual bool MayOwe(GroupId group) const = 0;
  // Those at `from` or behind it, ascending, at most so many. May ask LevelDB.
  virtual Result<std::vector<BlockName>> OwedBlocks(GroupId group, Lba from, size_t limit) = 0;
  // Their payload, from a peer: block by block, all checked before anything is queued
  // (kInvalidArgument). What is owed no more is left out; kFailedPrecondition if all is. So is what
  // there is no room for now (`all` is false then), but for the first; kBusy, kNoSpace. The rest is
  // durable when the token completes.
  virtual Status Deliver(GroupId group, const std::vector<BlockName>& blocks, Payload payload,
                         uint64_t token, bool* all = nullptr) = 0;

  // --- Background work. -----------------------------------------------------------------------
  // The next job to run, or null. Several (of different kinds) may be out at once.
  virtual std::unique_ptr<Job> NextJob() = 0;
  // Whether something waits for a job that may be due at any moment: ask again soon.
  virtual bool AwaitsJob() const = 0;
  virtual void FinishJob(std::unique_ptr<Job> job) = 0;
  virtual void RequestCheckpoint() = 0;
  virtual void RequestVacuum(bool enabled) = 0;  // on by default

  // Makes payload that nobody refers to when it is called unreadable: every segment that may hold
  // some is emptied (what is live in it moves), freed and overwritten with zeroes, and so is every
  // spare. The jobs do it, with others in between; it costs about as much as writing the store
  // anew. `groups`: those on whose account; kBusy while they have entries that are not applied and
  // durable here, whose payload could yet be written. Returns its number, which is forgotten with
  // the process: whoever wants it done asks again after a restart.
  virtual Result<uint64_t> Purge(const std::vector<GroupId>& groups) = 0;
  // kNotFound: no purge of that number was asked for.
  virtual Result<PurgeInfo> PurgeProgress(uint64_t purge) const = 0;

  // Runs batches and jobs here until nothing is left to do. For tests and tools.
  virtual Status Drain(std::vector<Completion>* completions) = 0;
  // A checkpoint of everything applied, run here and now.
  virtual Status Checkpoint() = 0;

  // --- Rot. -----------------------------------------------------------------------------------
  // Verifies about `budget_bytes` of what is live from where the last piece stopped; wraps around.
  // A round covers the blocks of the checkpoint, then those in the overlay, then open entries. One
  // piece at a time (kBusy).
  virtual Result<std::unique_ptr<ReadJob>> PlanScrub(uint64_t budget_bytes) = 0;
  virtual Result<ScrubPiece> FinishScrub(std::unique_ptr<ReadJob> job) = 0;
  virtual void RestartScrub() = 0;  // the next piece begins a round
  // A piece, read here and now. Returns true at the end of a round.
  virtual Result<bool> Scrub(uint64_t budget_bytes, std::vector<Damage>* found) = 0;

  // What vacuum, reads of the log and reads without `damaged` found since the last call. Bounded:
  // what does not fit is found again by a scrub.
  virtual std::vector<Damage> TakeDamage() = 0;
  // Where the newest durable copy of a block lies, as it would be reported if it were rotten: for
  // drills and tests, which make it so. kNotFound: it is no data. May ask LevelDB.
  virtual Result<Damage> Locate(GroupId group, Lba lba) = 0;
  // Whether the block still is what was found rotten. May ask LevelDB.
  virtual Result<bool> IsStillThere(const Damage& block) = 0;
  // Replaces the rotten copy of a block by a good one, from a peer. It takes effect, when the token
  // completes, only if the row still is the one that was found rotten; an overwritten, deleted or
  // moved block stays as it is. kInvalidArgument: the payload is not that block.
  // kFailedPrecondition: the block changed since, so there is nothing to repair. kBusy, kNoSpace.
  virtual Status Repair(const Damage& block, Payload payload, uint64_t token) = 0;

  virtual EngineStats Stats() const = 0;
  // Bytes of payload that are taken before the store is full, beyond what is queued. The reserve,
  // which is for what deletes and for cleaning, is no part of it.
  virtual Room PayloadRoom() const = 0;
  // Whether Accept takes so much payload, now or after cleaning: else it is refused with kNoSpace
  // until something is deleted. Cheap while there is plenty.
  virtual bool TakesPayload(uint64_t bytes) const = 0;
  // From now on, and until the engine is closed, entries of this group may use half of the reserve:
  // what it decides makes room. It holds little, and overwrites it.
  virtual void LetUseReserve(GroupId group) = 0;
  virtual uint64_t durable_batch() const = 0;  // as in Stats(), which costs more
  virtual const Status& poisoned() const = 0;  // OK while healthy

  // Writes what is queued, seals, checkpoints and marks the store as cleanly closed.
  virtual Status Close() = 0;
};

}  // namespace hydra
