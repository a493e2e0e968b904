// SPDX-License-Identifier: Apache-2.0
//
// Reading the stream back (docs/disk-format.md, section 7): which batches are there, which are
// lost, and where the stream ends.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "base/status.h"
#include "base/uuid.h"
#include "blockstore/batch_format.h"
#include "blockstore/record.h"
#include "blockstore/segment_table.h"

namespace hydra {

// A point between two batches of the stream.
struct StreamPosition {
  struct Cursor {
    SegmentNumber segment = 0;  // 0: the lane has no segment yet
    uint32_t page = 0;
  };
  uint64_t next_batch = 1;
  uint32_t chain = 0;  // header CRC of the batch before
  uint32_t generation = 0;
  std::array<Cursor, kLanes> lanes;
};

// A batch header read and found valid, with its records.
struct ScannedBatch {
  BatchHeader header;
  Buffer pages;                     // the header pages
  std::vector<RecordView> records;  // point into `pages`

  // First payload page (within the segment) of records[i].
  uint32_t PayloadPage(size_t i) const;
};

// Reads the header at (segment, page). kCorruption: not a valid header. kIoError: unreadable.
Result<ScannedBatch> ReadBatchHeader(const Uuid& store, const SegmentTable& table,
                                     uint32_t segment_pages, SegmentNumber segment, uint32_t page);

// Whether every block that the batch's records describe has the bytes its CRC says. kCorruption:
// no. kIoError: unreadable. kUnsupported: a newer Hydra wrote it.
Status VerifyPayload(const SegmentTable& table, const ScannedBatch& batch);

class BatchSink {
 public:
  virtual ~BatchSink() = default;
  // `position` is behind the batch.
  virtual Status OnBatch(const ScannedBatch& batch, const StreamPosition& position) = 0;
  // Batches from `from` up to and without `to` are lost; the stream goes on with `to`.
  virtual Status OnGap(uint64_t from, uint64_t to) = 0;
};

// Walks the stream once. Used by recovery only, on the owner's thread.
class StreamScanner {
 public:
  // `segments` gives what each segment's header page says (a segment whose header is rotten is
  // described by the first valid batch in it). `segment_lost`: a segment opened after `start`
  // cannot be described at all, so that no end of the stream can be trusted.
  StreamScanner(const Uuid& store, SegmentTableRef table,
                std::map<SegmentNumber, SegmentHeader> segments, uint32_t segment_pages,
                const StreamPosition& start, bool segment_lost);

  Status Run(BatchSink* sink);

  // After Run:
  const StreamPosition& end() const { return position_; }
  // The highest generation seen, that of a batch that was cut included: a batch n written next
  // must outrank the leftover.
  uint32_t generation() const { return std::max(position_.generation, cut_generation_); }
  bool torn() const { return torn_; }
  bool payload_rotten() const { return payload_rotten_; }
  bool gap_at_tail() const { return gap_at_tail_; }

 private:
  struct Place {
    std::optional<ScannedBatch> batch;  // valid header with the wanted number
    bool readable = true;
  };
  struct Pending {
    ScannedBatch batch;
    bool chain_valid;
    StreamPosition before;
  };

  Place Look(uint64_t number);
  Place LookAt(const StreamPosition::Cursor& cursor, uint64_t number);
  // The valid batch with the smallest number >= `number` ahead of the cursors; failing that, the
  // start of a segment that was opened for a batch > `number`.
  struct Later {
    uint64_t number;
    uint32_t lane;
    StreamPosition::Cursor cursor;
  };
  std::optional<Later> FindLater(uint64_t number);
  // Whether a segment was opened for batch `number` or a later one: the batches before it were
  // whole then.
  bool OpenedFor(uint64_t number) const;
  // A segment's file has its full length before it gets its name: a shorter one was damaged.
  bool IsWhole(SegmentNumber segment) const;
  SegmentNumber NextSegment(uint32_t lane, SegmentNumber after) const;
  // Decides about the batch looked at before; false if the stream ends with it.
  Result<bool> Settle(bool successor, bool impostor, BatchSink* sink);
  Status Gap(uint64_t from, uint64_t to, BatchSink* sink);

  Uuid store_;
  SegmentTableRef table_;
  std::map<SegmentNumber, SegmentHeader> segments_;
  uint32_t segment_pages_;
  StreamPosition position_;
  bool segment_lost_;
  std::optional<Pending> pending_;
  uint64_t lost_from_ = 0;  // first batch of the gap that is open, 0 if none
  uint32_t cut_generation_ = 0;
  bool torn_ = false;
  bool payload_rotten_ = false;
  bool gap_at_tail_ = false;
};

// First valid batch of a segment at or after page `from` with a number >= `number`.
std::optional<BatchHeader> FindBatch(const Uuid& store, const SegmentTable& table,
                                     uint32_t segment_pages, SegmentNumber segment, uint32_t from,
                                     uint64_t number);

}  // namespace hydra
