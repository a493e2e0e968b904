// SPDX-License-Identifier: Apache-2.0
#include "blockstore/vacuum.h"

#include <algorithm>

#include "base/check.h"
#include "base/crc32c.h"
#include "blockstore/stream_scan.h"

namespace hydra {

VacuumScanJob::VacuumScanJob(const Uuid& store, SegmentTableRef table, uint32_t segment_pages,
                             SegmentNumber victim)
    : store_(store), table_(std::move(table)), segment_pages_(segment_pages), victim_(victim) {}

void VacuumScanJob::Run() {
  uint32_t page = kFirstBatchPage;
  while (page < segment_pages_) {
    auto batch = ReadBatchHeader(store_, *table_, segment_pages_, victim_, page);
    if (!batch.ok()) {
      // The end of the segment, unless a batch follows.
      const auto next = FindBatch(store_, *table_, segment_pages_, victim_, page + 1, 1);
      if (!next) return;
      rotten = true;
      page = next->page;
      continue;
    }
    Collect(*batch);
    page += batch->header.pages();
  }
}

void VacuumScanJob::Collect(const ScannedBatch& batch) {
  for (size_t i = 0; i < batch.records.size(); ++i) {
    const RecordView& view = batch.records[i];
    uint32_t page = batch.PayloadPage(i);
    if (view.type == static_cast<uint8_t>(RecordType::kRelocate)) {
      auto record = DecodeRelocate(view);
      if (!record.ok()) continue;
      candidates.push_back({record->group,
                            record->lba,
                            record->version,
                            {victim_, page, record->old_reference.crc},
                            record->block_pages,
                            false});
    } else if (view.type == static_cast<uint8_t>(RecordType::kChunk)) {
      auto record = DecodeChunk(view);
      if (!record.ok()) continue;
      for (const ChunkRow& row : record->rows) {
        if (row.kind != ChunkRow::Kind::kData) continue;
        candidates.push_back({record->group,
                              row.number,
                              row.version,
                              {victim_, page, row.crc},
                              record->block_pages,
                              false});
        page += record->block_pages;
      }
    } else if (view.type == static_cast<uint8_t>(RecordType::kAccept)) {
      auto record = DecodeAccept(view);
      if (!record.ok()) continue;
      const auto& operations = record->entry.operations;
      for (size_t o = 0; o < operations.size(); ++o) {
        const Operation& op = operations[o];
        if (op.kind != OpKind::kWrite) continue;
        const Version version = MakeVersion(record->instance, static_cast<uint32_t>(o));
        for (size_t b = 0; b < op.crcs.size(); ++b) {
          candidates.push_back({record->group,
                                op.lba + b,
                                version,
                                {victim_, page, op.crcs[b]},
                                op.block_pages,
                                false});
          page += op.block_pages;
        }
      }
    }
  }
}

VacuumReadJob::VacuumReadJob(const BlockMap* map, SegmentTableRef table,
                             std::vector<Candidate> candidates)
    : map_(map), table_(std::move(table)), candidates_(std::move(candidates)) {}

void VacuumReadJob::Run() {
  HYDRA_CHECK(!candidates_.empty());
  const uint32_t first = candidates_.front().reference.page;
  const uint32_t end = candidates_.back().reference.page + candidates_.back().block_pages;
  const Buffer window = Buffer::Allocate(size_t{end - first} * kPageSize);
  const bool whole =
      ReadPagesDirect(*table_, candidates_.front().reference.segment, first, window.span()).ok();
  for (const Candidate& candidate : candidates_) {
    status = CopyLive(candidate, window, first, whole);
    if (!status.ok()) return;
  }
}

Status VacuumReadJob::CopyLive(const Candidate& candidate, const Buffer& window,
                               uint32_t first_page, bool window_ok) {
  if (!candidate.in_overlay) {
    HYDRA_ASSIGN_OR_RETURN(const MapRow row, map_->GetStored(candidate.group, candidate.lba));
    if (row.kind != BlockKind::kData || row.version != candidate.version ||
        row.reference != candidate.reference) {
      return Status::Ok();
    }
  }
  const size_t bytes = size_t{candidate.block_pages} * kPageSize;
  BufferSlice data{window, size_t{candidate.reference.page - first_page} * kPageSize, bytes};
  if (!window_ok || Crc32c(data.data(), bytes) != candidate.reference.crc) {
    data = {Buffer::Allocate(bytes), 0, bytes};
    if (!ReadBlock(*table_, candidate.reference, data.buffer.span()).ok()) {
      rotten.push_back(candidate);
      return Status::Ok();
    }
  }
  copies.push_back({candidate, std::move(data)});
  return Status::Ok();
}

std::vector<Candidate> NextWindow(VacuumState* state, uint32_t payload_pages) {
  std::vector<Candidate> window;
  uint32_t pages = 0;
  while (state->next < state->candidates.size()) {
    const Candidate& candidate = state->candidates[state->next];
    const uint32_t end = candidate.reference.page + candidate.block_pages;
    if (!window.empty() && (end - window.front().reference.page > kVacuumWindowPages ||
                            pages + candidate.block_pages > payload_pages)) {
      break;
    }
    pages += candidate.block_pages;
    window.push_back(candidate);
    ++state->next;
  }
  return window;
}

}  // namespace hydra
