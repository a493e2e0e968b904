// SPDX-License-Identifier: Apache-2.0
//
// The append-only physical volume of a node: segments, and the one stream of batches that all
// its groups share (docs/disk-format.md, sections 3 and 4).
//
// Records come in with Enqueue. NextBatch forms a device write of what waits; the caller runs
// Batch::Write on a thread of its choice and reports back with BatchDone, which says where each
// record now lies. One batch is in flight at a time: what arrives meanwhile forms the next one.
// Two lanes keep what vacuum moves away from fresh writes (blocks that die together lie
// together); both are numbered and chained as one stream.
//
// The volume knows records only as bytes with pages of payload. It counts, per segment, what the
// layer above tells it: live pages (referenced by the map) and open records (accepted, not yet
// applied). A segment without either can be freed once a checkpoint holds no reference into it.
//
// One thread owns the volume; only VolumeBatch::Write and SpareJob::Run may run elsewhere.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/file.h"
#include "base/status.h"
#include "base/uuid.h"
#include "blockstore/batch_queue.h"
#include "blockstore/engine.h"
#include "blockstore/segment_table.h"
#include "blockstore/stream_scan.h"

namespace hydra {

// What two bytes per block can name (blockstore/extent_table.h): 16 TiB in segments of 256 MiB.
inline constexpr uint32_t kMaxSegments = 65'000;

// A file for the next segment: full length, contents of no value.
struct Spare {
  std::string path;
  std::shared_ptr<SegmentFile> file;
  bool clean = false;  // holds zeroes, not what a former segment left
};

// One that is not filled yet, under its name with kTemporarySuffix behind it.
struct UnfinishedSpare {
  std::string path;
  std::shared_ptr<SegmentFile> file;  // null: not made yet
  uint64_t filled = 0;                // bytes from the start
};

inline constexpr char kSparePrefix[] = "spare-";
inline constexpr char kTemporarySuffix[] = ".tmp";
std::string SpareName(uint64_t number);

struct Segment {
  std::shared_ptr<SegmentFile> file;
  uint32_t lane = 0;
  uint64_t first_batch = 0;
  uint32_t used_pages = 0;  // payload written
  uint32_t live_pages = 0;
  uint32_t open_records = 0;
  uint32_t open_pages = 0;
  bool shared = false;       // pages of open records may be live as well
  bool condemned = false;    // freed once its readers are gone
  uint64_t retry_after = 0;  // batch number before which vacuum does not try it again
  bool unreadable = false;   // nothing in it is known; kept for its blocks
  bool clean = false;        // nothing but its own batches was ever in it
};

class PhysicalVolume {
 public:
  struct Options {
    FileSystem* fs = nullptr;
    std::string dir;  // the store's segments/
    Uuid store;
    uint64_t segment_bytes = 0;
    uint64_t capacity_bytes = 0;
    uint32_t reserve_segments = 0;
    uint32_t spare_segments = 0;
    uint64_t idle_spare_bytes = 0;
    size_t queue_bytes = 0;
    size_t queue_records = 0;
    Nanos seal_after = 0;
    uint64_t keep_free_bytes = 0;  // of the file system, for LevelDB
  };

  struct Placed {
    uint64_t cookie;
    Placement placement;
  };

  struct Counters {
    uint64_t batches = 0;
    uint64_t batch_bytes = 0;
    uint64_t zero_fill_bytes = 0;
    uint64_t seals = 0;
    uint64_t segments_freed = 0;
  };

  // Opens the files that are there; Recover must follow.
  static Result<std::unique_ptr<PhysicalVolume>> Open(const Options& options);
  ~PhysicalVolume();

  // Walks the stream from `start`, then stands ready to append behind its end under a new
  // generation. `highest` is the highest segment number the checkpoint knows.
  Status Recover(const StreamPosition& start, SegmentNumber highest, BatchSink* sink,
                 RecoveryReport* report);

  // --- Appending ------------------------------------------------------------------------------
  // Whether a record may be queued now: kBusy (a limit, or segments are being made or cleaned),
  // kNoSpace (full of live data, or nobody knows of what), kInvalidArgument (larger than a batch).
  // `replaced_pages`: payload that nobody needs any more once the record is durable.
  Status CheckRoom(Urgency urgency, size_t record_bytes, uint32_t payload_pages,
                   uint32_t replaced_pages = 0) const;
  // The same for what goes the way of vacuum's copies, but makes the store fuller: it leaves as
  // much of the reserve to vacuum as an install does.
  Status CheckRoomForDelivery(size_t record_bytes, uint32_t payload_pages) const;
  // As in Engine. The first asks the file system, the second only if there are few spares.
  Room PayloadRoom() const;
  bool TakesPayload(uint64_t bytes) const;
  // After CheckRoom said OK.
  void Enqueue(Urgency urgency, uint32_t flow, std::string record, Payload payload,
               uint64_t cookie);
  // What a seal carries besides its chain; asked when one is written.
  void SetSealNote(std::function<std::string()> note) { seal_note_ = std::move(note); }

  Batch* NextBatch(Nanos now);
  void BatchDone(Batch* batch, Nanos now, std::vector<Placed>* placed);
  std::optional<Nanos> SealDue() const;
  bool in_flight() const { return in_flight_; }
  bool Idle() const { return queue_.empty() && !in_flight_; }

  // Behind the last durable batch.
  const StreamPosition& position() const { return durable_; }
  SegmentNumber highest_segment() const { return highest_; }

  // --- Segments -------------------------------------------------------------------------------
  SegmentTableRef table() const { return table_.Get(); }
  const NewestSegmentTable* newest_table() const { return &table_; }
  std::map<SegmentNumber, Segment>& segments() { return segments_; }
  const std::map<SegmentNumber, Segment>& segments() const { return segments_; }
  Segment* Find(SegmentNumber number);
  bool IsActive(SegmentNumber number) const;
  uint32_t segment_pages() const { return segment_pages_; }
  uint32_t max_payload_pages() const { return max_payload_pages_; }
  // How full cleaning can make a segment, for sure: of tiny ones (tests) a large record may leave
  // half unused.
  uint32_t DensePages() const {
    return segment_pages_ >= 4 * max_batch_pages_ ? segment_pages_ - segment_pages_ / 8
                                                  : segment_pages_ / 2;
  }
  size_t spares() const { return spares_.size(); }
  uint32_t max_segments() const;  // limit on segments and spares together
  uint32_t total_segments() const;
  uint64_t live_pages() const { return live_pages_; }
  void AddLive(SegmentNumber number, int64_t pages);
  // A block refers to payload of an open record, so its pages are counted twice.
  void NoteShared(SegmentNumber number);
  // An accepted entry that is not applied yet, with its payload.
  void AddOpen(SegmentNumber number, uint32_t pages);
  void RemoveOpen(SegmentNumber number, uint32_t pages);
  // Turns a segment that nothing refers to into a spare.
  Status Free(SegmentNumber number);
  // Whether cleaning is due. `waiting`: segments that the next checkpoint frees.
  bool WantsVacuum(size_t waiting) const;
  void SetAccountingComplete() { accounting_complete_ = true; }
  // What is live will not be known, so nothing can be cleaned.
  void SetAccountingFailed(Status why) { accounting_failed_ = std::move(why); }

  // --- Purging (engine_purge.cc) --------------------------------------------------------------
  // From here on batches go to other segments than any that is there now, and only clean spares
  // become segments. Returns the segments that hold, or may hold, payload that nobody refers to.
  std::vector<SegmentNumber> BeginPurge();
  void EndPurge() { only_clean_ = false; }
  // That the batch in flight opens: neither spare nor segment; 0: none.
  SegmentNumber opening_segment() const;
  // A record has to be queued for the lane before it leaves its segment.
  bool IsClosing(uint32_t lane) const { return closing_[lane]; }
  size_t clean_spares() const;
  size_t dirty_spares() const { return spares_.size() - clean_spares() + (wiping_ ? 1 : 0); }
  // Overwrites a spare that is not clean, or null if there is none or one is being overwritten.
  std::unique_ptr<Job> NextWipeJob();
  // True if it was such a job.
  bool FinishWipeJob(Job* job, Status* status);

  // --- Spares (physical_volume_spares.cc) -----------------------------------------------------
  // Makes a piece of one more spare, or null if there are enough, no room, or it is not time yet.
  std::unique_ptr<Job> NextSpareJob();
  Status FinishSpareJob(Job* job);
  // Whether there are more spares than the reserve, with which cleaning gets along, and than what
  // is queued was promised.
  bool HasSurplusSpare() const {
    return spares_.size() > options_.reserve_segments +
                                SegmentsFor(kLogLane, queue_.foreground_pages()) +
                                SegmentsFor(kRelocationLane, queue_.background_pages());
  }
  // Removes a surplus spare that is clean, if there is one. True: the file system has its space.
  Result<bool> GiveBackSpare();

  const Counters& counters() const { return counters_; }
  uint64_t queued_bytes() const { return queue_.bytes(); }

 private:
  class VolumeBatch;
  class SpareJob;
  class WipeJob;
  struct Lane {
    SegmentNumber segment = 0;
    uint32_t page = 0;
  };

  explicit PhysicalVolume(const Options& options);
  Status LoadFiles();
  Result<SegmentHeader> DescribeSegment(SegmentNumber number);
  void PublishTable();
  Status CheckRoomBut(uint32_t kept, Urgency urgency, size_t record_bytes, uint32_t payload_pages,
                      uint32_t replaced_pages) const;
  uint32_t LaneRoom(uint32_t lane) const;
  uint64_t SegmentsFor(uint32_t lane, uint64_t pages) const;
  uint32_t SurelyUsedPages() const;
  // Payload that segments have to hold: live, accepted, or on its way into one.
  uint64_t HeldPages() const;
  uint64_t LiveLimit(uint64_t segments, uint32_t reserve) const;
  Batch* FormBatch(uint32_t lane, uint32_t page_limit);
  Batch* FormSeal();
  void StartBatch(uint32_t lane, bool seal, std::vector<QueuedRecord> records);
  bool OpenNextSegment(uint32_t lane);
  bool CanMakeSpare() const;
  void EarnFilling(uint64_t written_bytes);
  size_t IdleSpares() const;
  bool HasRoomForIdleSpares() const;

  Options options_;
  uint32_t segment_pages_;
  uint32_t max_batch_pages_;
  uint32_t max_header_pages_;
  uint32_t max_payload_pages_;

  std::map<SegmentNumber, Segment> segments_;
  NewestSegmentTable table_;
  std::vector<Spare> spares_;
  SegmentNumber highest_ = 0;
  uint64_t next_spare_name_ = 1;
  bool making_spare_ = false;                  // a job is at it
  std::optional<UnfinishedSpare> unfinished_;  // no job is at it
  uint64_t fill_credit_ = 0;                   // bytes that may be filled while clients write
  mutable bool spare_awaited_ = false;         // something was refused for want of a spare
  bool wiping_ = false;                        // a spare that is not among spares_ meanwhile
  bool only_clean_ = false;
  bool closing_[kLanes] = {};        // the lane's next batch opens a segment
  uint64_t refused_free_bytes_ = 0;  // free when making a spare failed all the same
  mutable bool disk_full_ = false;   // the file system refused or is about to
  bool accounting_complete_ = false;
  Status accounting_failed_;
  uint64_t live_pages_ = 0;
  uint64_t open_pages_ = 0;

  BatchQueue queue_;
  std::function<std::string()> seal_note_;
  StreamPosition durable_;
  Lane lanes_[kLanes];  // where the next batch goes
  uint32_t generation_ = 0;
  uint32_t background_credit_ = 0;  // pages that vacuum may write while clients wait
  bool in_flight_ = false;
  bool sealed_ = true;
  Nanos last_done_ = 0;
  Nanos now_ = 0;  // as of the last NextBatch
  std::unique_ptr<VolumeBatch> batch_;
  Counters counters_;
};

}  // namespace hydra
