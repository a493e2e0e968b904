// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/status.h"
#include "daemon/store_reader_chain.h"
#include "daemon/store_reader_segment.h"
#include "daemon/store_reader_verify.h"

namespace hydra::store_reader {

// What is kept of a valid batch.
struct StreamBatch {
  Link link;
  uint8_t lane = 0;
  uint32_t end_page = 0;
  bool payload_readable = true;
  bool payload_valid = true;
  uint32_t rotten_page = 0;  // where the rotten pages right before it start; 0 if none
  std::vector<BadBlock> bad_blocks;
};

// Verifies the segments of a store against each other and against row c of the report. Owned by
// VerifyStore; one thread. Memory: the runs of ChainSet, a few words per segment, and the batches
// behind the checkpoint without their payload.
//
// A segment's last batch is treated apart, because it is the only one that may be no damage
// though it looks like it: torn by power loss, or the leftover of a cut (valid header, payload
// torn, its number used again by the other lane).
class StreamVerifier {
 public:
  // The report has the identity, and the checkpoint if there is one.
  StreamVerifier(FileSystem* fs, std::string directory, VerifyReport* report);

  Status Scan();  // reads everything once
  void Judge();   // after Scan()

  // Pages per block of the groups that the stream mentions.
  const std::map<uint32_t, uint8_t>& group_pages() const { return group_pages_; }

 private:
  using Place = std::pair<uint32_t, uint32_t>;  // segment, page
  using Batch = StreamBatch;

  // While scanning.
  void ScanOne(SegmentFile* file, uint32_t number);
  void CheckSegment(const SegmentSummary& summary);
  void OnBatch(const ScannedBatch& scanned);
  void LookAtRecord(const BatchHeader& header, const Record& record);
  void RememberGroup(uint32_t group, uint8_t pages);
  void Settle(const Batch& batch, uint64_t number_behind);
  void KeepForReplay(const Batch& batch);

  // While judging.
  void SettleLastBatches();
  void SettleLast(const Batch& batch);
  void CheckCheckpoint();
  void CheckCursor(size_t lane);
  void CheckHoles();
  bool MayBeFreed(const Hole& hole, int lane) const;
  std::vector<Place> PlacesOf(const Hole& hole) const;
  bool RotExplains(const Hole& hole) const;
  void RunReplay();
  LaneEnd EndOf(size_t lane) const;
  void Report(const Decision& decision);
  void ReportDeferredPayload();

  bool InTail(uint64_t number) const;
  bool BehindCursor(const Batch& batch) const;
  const SegmentSummary* FindSegment(uint32_t number) const;

  void Add(FindingKind kind, Place place, std::string what, uint64_t batch = 0);
  void AddPayload(const Batch& batch);
  void NoteLeftover(uint64_t batch, uint32_t segment, uint32_t page);
  void BrokenChain(const Link& before, const Link& after);

  FileSystem* const fs_;
  const std::string directory_;
  VerifyReport* const report_;
  ChainSet chain_;                   // batches before the checkpoint; all if there is none
  std::optional<Batch> pending_;     // the batch before, while a segment is scanned
  uint32_t rotten_page_ = 0;         // where the rotten pages right before now start
  std::vector<Batch> last_batches_;  // of each segment
  std::vector<Batch> deferred_;      // those of them whose payload awaits the replay
  std::vector<Batch> tail_;          // behind the checkpoint
  std::set<Place> header_places_;    // of findings of kind header
  std::set<uint32_t> crcs_before_;   // of the batch before the checkpoint's next
  std::array<bool, kLanes> cursor_fits_{};
  std::map<uint32_t, uint8_t> group_pages_;
};

}  // namespace hydra::store_reader
