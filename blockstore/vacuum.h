// SPDX-License-Identifier: Apache-2.0
//
// Cleaning a segment: find the blocks in it that are still live, copy them to the relocation
// lane, and let a checkpoint make the old segment free.
//
// A relocation says (group, lba, version, old reference -> new reference) and takes effect only if
// the map still has exactly the old row, so it can never bring back what a client has overwritten
// meanwhile. The engine drives: scan job, then read jobs one window at a time, then records.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/buffer.h"
#include "base/status.h"
#include "base/uuid.h"
#include "blockstore/block_map.h"
#include "blockstore/engine.h"
#include "blockstore/segment_table.h"
#include "blockstore/types.h"

namespace hydra {

// A block that the victim's records say was written there.
struct Candidate {
  GroupId group = 0;
  Lba lba = 0;
  Version version = 0;
  Reference reference;
  uint32_t block_pages = 1;
  bool in_overlay = false;  // the map row was compared already
};

// Lists a segment's blocks from its batch headers.
class VacuumScanJob final : public Job {
 public:
  VacuumScanJob(const Uuid& store, SegmentTableRef table, uint32_t segment_pages,
                SegmentNumber victim);
  void Run() override;
  const char* name() const override { return "vacuum scan"; }

  SegmentNumber victim() const { return victim_; }
  std::vector<Candidate> candidates;  // by page
  bool rotten = false;                // a header could not be read

 private:
  void Collect(const ScannedBatch& batch);

  Uuid store_;
  SegmentTableRef table_;
  uint32_t segment_pages_;
  SegmentNumber victim_;
};

// Reads one window of the victim and keeps the candidates whose rows still point there.
class VacuumReadJob final : public Job {
 public:
  VacuumReadJob(const BlockMap* map, SegmentTableRef table, std::vector<Candidate> candidates);
  void Run() override;
  const char* name() const override { return "vacuum read"; }

  struct Copy {
    Candidate candidate;
    BufferSlice data;
  };
  std::vector<Copy> copies;
  std::vector<Candidate> rotten;
  Status status;  // of looking up the map

 private:
  Status CopyLive(const Candidate& candidate, const Buffer& window, uint32_t first_page,
                  bool window_ok);

  const BlockMap* map_;
  SegmentTableRef table_;
  std::vector<Candidate> candidates_;
};

// Where the cleaning of the current victim stands.
struct VacuumState {
  SegmentNumber victim = 0;  // 0: idle
  bool job_running = false;
  bool moved_entries = false;
  std::vector<Candidate> candidates;
  size_t next = 0;
  std::vector<VacuumReadJob::Copy> copies;  // read, waiting for room in the queue
  size_t outstanding = 0;                   // records queued, not yet durable
  Status failed;                            // the map could not be read
  uint64_t rotten_pages = 0;                // of candidates that stay where they are
  // What the scan did not find is listed from the map, group by group.
  std::optional<GroupId> next_group;
  GroupId listing = 0;
  std::vector<Extent> extents;  // of that group, not looked at yet
  std::vector<Candidate> unfound;
  bool listed = false;  // done: `candidates` are these
};

// Windows of the victim: large sequential reads, of which the live part becomes one batch.
inline constexpr uint32_t kVacuumWindowPages = 512;

// Takes the next window from `state`: candidates within kVacuumWindowPages, with at most
// `payload_pages` of payload.
std::vector<Candidate> NextWindow(VacuumState* state, uint32_t payload_pages);

}  // namespace hydra
