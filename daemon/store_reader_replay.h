// SPDX-License-Identifier: Apache-2.0
//
// Section 7 as pure functions: the decision table, and the walk from the checkpoint to the end of
// the stream over what a scan found.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "daemon/store_reader.h"

namespace hydra::store_reader {

// --- The table -------------------------------------------------------------------------------

enum class Verdict {
  kAccept,
  kAcceptPayloadRotten,
  kAcceptAfterGap,
  kAcceptAfterGapPayloadRotten,
  kHeaderRotten,
  kEnd,
  kTorn,
  kTornAfterGap,
};

// One place of the stream, judged.
struct Evidence {
  bool readable = true;
  bool header_valid = false;
  bool older_generation = false;
  bool chain_valid = false;
  bool successor = false;
  bool payload_valid = false;
};

struct Judgement {
  int row = 0;  // of the document's table, 1 to 14
  Verdict verdict = Verdict::kEnd;
};

// The first matching row; the table has one for every combination.
Judgement Judge(const Evidence& evidence);

// --- The walk --------------------------------------------------------------------------------

// A valid batch behind the checkpoint.
struct TailBatch {
  uint64_t number = 0;
  uint32_t crc = 0;
  uint32_t chain = 0;
  uint32_t generation = 0;
  uint32_t segment = 0;
  uint32_t page = 0;
  bool payload_readable = true;
  bool payload_valid = true;
  bool rotten_before = false;  // pages without a valid batch between it and the one before
  uint32_t rotten_page = 0;
};

// Where a lane's next batch would go.
struct LaneEnd {
  uint32_t segment = 0;  // 0: the lane has no segment
  uint32_t page = 0;
  bool readable = true;
  uint64_t claimed_number = 0;  // of the batch whose remains are there; 0 if none
};

struct LaneTail {
  std::vector<TailBatch> batches;  // in the order in which they lie
  LaneEnd end;
};

struct ReplayInput {
  uint64_t next_batch = 1;
  uint32_t chain = 0;
  uint64_t generation = 0;  // of the checkpoint
  std::array<LaneTail, kLanes> lanes;
  std::vector<uint64_t> segment_firsts;  // first batches named by valid segment headers, sorted
};

// What was not a plain accept (row 7).
struct Decision {
  int row = 0;
  Verdict verdict = Verdict::kEnd;
  uint64_t batch = 0;    // judged, or expected here
  uint32_t segment = 0;  // 0: nowhere, the batch is lost without a trace
  uint32_t page = 0;
  uint64_t lost_end = 0;  // for gaps: batches from `batch` up to, not including, this are lost
};

struct Leftover {
  uint64_t batch = 0;
  uint32_t segment = 0;
  uint32_t page = 0;
};

struct ReplayResult {
  static constexpr size_t kMaxDecisions = 10'000;

  uint64_t accepted = 0;
  uint64_t next_batch = 0;  // what the engine would write next
  bool gap = false;         // every group is suspect
  bool torn = false;        // something was being written when the end came
  uint32_t torn_segment = 0;
  uint32_t torn_page = 0;
  std::vector<Decision> decisions;  // at most kMaxDecisions
  std::vector<Leftover> leftovers;  // valid headers that a cut left behind, at most as many
};

ReplayResult Replay(const ReplayInput& input);

}  // namespace hydra::store_reader
