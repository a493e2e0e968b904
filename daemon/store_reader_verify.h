// SPDX-License-Identifier: Apache-2.0
//
// The whole store judged: every batch of every segment, the chain, the stream from the checkpoint
// on, and every row of the map.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/status.h"
#include "daemon/store_reader.h"
#include "daemon/store_reader_map.h"
#include "daemon/store_reader_replay.h"
#include "daemon/store_reader_segment.h"

namespace hydra::store_reader {

enum class FindingKind {
  kIdentity,
  kSegmentHeader,  // page 0 of a segment, or its file's size
  kBatchHeader,    // pages that must hold a batch and do not
  kGap,            // batches lost, or a chain that does not fit
  kPayload,        // a block whose bytes do not match its record
  kRecord,         // valid CRC, contents that break the format: the writer is wrong
  kMap,            // LevelDB's files
  kMapRow,         // a row that is malformed, or points at something else
  kPresence,       // a presence bitmap that differs from the rows
};

std::string_view FindingName(FindingKind kind);
// What to do about it, as a sentence.
std::string_view Advice(FindingKind kind);

// Fields that make no sense for a kind are 0.
struct Finding {
  FindingKind kind = FindingKind::kMap;
  uint32_t segment = 0;
  uint32_t page = 0;
  uint64_t batch = 0;
  uint32_t group = 0;
  uint64_t lba = 0;
  uint64_t version = 0;
  bool live = false;  // payload: the map uses this block, reading it fails
  std::string what;
};

struct VerifyReport {
  // Beyond these, findings and notes are only counted.
  static constexpr size_t kMaxFindings = 10'000;
  static constexpr size_t kMaxNotes = 1'000;

  Identity identity;
  std::optional<CheckpointRow> checkpoint;
  std::optional<IntentRow> intent;
  std::vector<SegmentSummary> segments;
  uint64_t batches = 0;
  uint64_t records = 0;
  uint64_t payload_blocks = 0;
  uint64_t map_rows = 0;
  uint64_t live_blocks = 0;
  uint64_t owed_blocks = 0;  // of the live ones: peers still owe their payload, which is no damage
  bool replayed = false;     // false: no checkpoint row could be had
  ReplayResult replay;
  std::vector<Finding> findings;
  std::vector<std::string> notes;
  uint64_t findings_left_off = 0;
  uint64_t notes_left_off = 0;

  bool clean() const { return findings.empty(); }

  void Add(Finding finding);
  void Note(std::string note);
  // Where payload was found rotten: (segment, page) to the index of its finding.
  std::map<std::pair<uint32_t, uint32_t>, size_t> rotten_payload;
};

struct VerifyOptions {
  std::string temporary_parent;  // for the copy of the map; "" = the usual place
};

// Fails only if there is nothing to verify: no store, a newer format, a directory that cannot be
// listed. Damage is in the report. Reads only. Nobody may write to the store meanwhile.
Result<VerifyReport> VerifyStore(FileSystem* fs, const std::string& directory,
                                 const VerifyOptions& options);

// Reads IDENTITY: kNotFound if there is none, so that this is no store.
Result<Identity> ReadIdentity(FileSystem* fs, const std::string& directory);

// Numbers of the segments in use, ascending. `unknown` (may be null) gets the names of files that
// should not be there.
Result<std::vector<uint32_t>> ListSegments(FileSystem* fs, const std::string& directory,
                                           std::vector<std::string>* unknown);

std::string SegmentPath(const std::string& directory, uint32_t number);

// The part of VerifyStore that looks at map rows. `group_pages`: pages per block of the groups
// that the stream mentions, for groups whose meta row is not written yet.
void VerifyMap(FileSystem* fs, const std::string& directory, const StoreMap& map,
               const std::map<uint32_t, uint8_t>& group_pages, VerifyReport* report);

}  // namespace hydra::store_reader
