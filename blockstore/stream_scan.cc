// SPDX-License-Identifier: Apache-2.0
#include "blockstore/stream_scan.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/check.h"
#include "base/crc32c.h"
#include "base/logging.h"
#include "base/sabotage.h"

namespace hydra {
namespace {

constexpr uint32_t kChunkPages = 256;

// Calls `visit(block page, crc, block pages)` for each block the record describes, in payload
// order.
template <typename Visit>
Status ForEachBlock(const RecordView& view, uint32_t first_page, Visit visit) {
  if (view.type == static_cast<uint8_t>(RecordType::kAccept)) {
    HYDRA_ASSIGN_OR_RETURN(const AcceptRecord record, DecodeAccept(view));
    uint32_t page = first_page;
    for (const Operation& op : record.entry.operations) {
      if (op.kind != OpKind::kWrite) continue;
      for (uint32_t crc : op.crcs) {
        HYDRA_RETURN_IF_ERROR(visit(page, crc, op.block_pages));
        page += op.block_pages;
      }
    }
  } else if (view.type == static_cast<uint8_t>(RecordType::kRelocate)) {
    HYDRA_ASSIGN_OR_RETURN(const RelocateRecord record, DecodeRelocate(view));
    HYDRA_RETURN_IF_ERROR(visit(first_page, record.old_reference.crc, record.block_pages));
  } else if (view.type == static_cast<uint8_t>(RecordType::kChunk)) {
    HYDRA_ASSIGN_OR_RETURN(const ChunkRecord record, DecodeChunk(view));
    uint32_t page = first_page;
    for (const ChunkRow& row : record.rows) {
      if (row.kind != ChunkRow::Kind::kData) continue;
      HYDRA_RETURN_IF_ERROR(visit(page, row.crc, record.block_pages));
      page += record.block_pages;
    }
  } else if (view.type == static_cast<uint8_t>(RecordType::kInstall)) {
    HYDRA_ASSIGN_OR_RETURN(const InstallRecord record, DecodeInstall(view));
    if (view.payload_pages > 0) {
      HYDRA_RETURN_IF_ERROR(visit(first_page, record.state_crc, uint32_t{view.payload_pages}));
    }
  }
  return Status::Ok();
}

}  // namespace

uint32_t ScannedBatch::PayloadPage(size_t index) const {
  uint32_t page = header.page + header.header_pages;
  for (size_t i = 0; i < index; ++i) page += records[i].payload_pages;
  return page;
}

Result<ScannedBatch> ReadBatchHeader(const Uuid& store, const SegmentTable& table,
                                     uint32_t segment_pages, SegmentNumber segment, uint32_t page) {
  if (page < kFirstBatchPage || page >= segment_pages) {
    return Status::Corruption("beyond the segment");
  }
  ScannedBatch batch;
  batch.pages = Buffer::Allocate(kPageSize);
  HYDRA_RETURN_IF_ERROR(ReadPagesDirect(table, segment, page, batch.pages.span()));
  const uint32_t pages = PeekBatchHeader(segment, page, batch.pages.span());
  if (pages == 0 || pages > segment_pages - page) return Status::Corruption("no batch here");
  if (pages > 1) {
    batch.pages = Buffer::Allocate(pages * kPageSize);
    HYDRA_RETURN_IF_ERROR(ReadPagesDirect(table, segment, page, batch.pages.span()));
  }
  HYDRA_ASSIGN_OR_RETURN(
      batch.header, DecodeBatchHeader(store, segment, page, segment_pages, batch.pages.span()));
  HYDRA_ASSIGN_OR_RETURN(
      batch.records,
      SplitRecords(batch.pages.span().first(batch.header.header_bytes).subspan(kBatchFixedBytes),
                   batch.header.record_count, batch.header.payload_pages, kBatchFixedBytes));
  return batch;
}

Status VerifyPayload(const SegmentTable& table, const ScannedBatch& batch) {
  if (batch.header.payload_pages == 0) return Status::Ok();
  const uint32_t first = batch.header.page + batch.header.header_pages;
  Buffer payload = Buffer::Allocate(batch.header.payload_pages * kPageSize);
  HYDRA_RETURN_IF_ERROR(ReadPagesDirect(table, batch.header.segment, first, payload.span()));
  for (size_t i = 0; i < batch.records.size(); ++i) {
    HYDRA_RETURN_IF_ERROR(ForEachBlock(
        batch.records[i], batch.PayloadPage(i), [&](uint32_t page, uint32_t crc, uint32_t pages) {
          const auto block = payload.span().subspan((page - first) * kPageSize, pages * kPageSize);
          if (Crc32c(block) == crc) return Status::Ok();
          return Status::Corruption(
              fmt::format("segment {} page {}: checksum", batch.header.segment, page));
        }));
  }
  return Status::Ok();
}

std::optional<BatchHeader> FindBatch(const Uuid& store, const SegmentTable& table,
                                     uint32_t segment_pages, SegmentNumber segment, uint32_t from,
                                     uint64_t number) {
  Buffer chunk = Buffer::Allocate(kChunkPages * kPageSize);
  for (uint32_t start = from; start < segment_pages; start += kChunkPages) {
    const uint32_t pages = std::min(kChunkPages, segment_pages - start);
    auto bytes = chunk.span().first(size_t{pages} * kPageSize);
    const bool whole = ReadPagesDirect(table, segment, start, bytes).ok();
    for (uint32_t i = 0; i < pages; ++i) {
      auto page = bytes.subspan(size_t{i} * kPageSize, kPageSize);
      if (!whole && !ReadPagesDirect(table, segment, start + i, page).ok()) continue;
      if (PeekBatchHeader(segment, start + i, page) == 0) continue;
      auto batch = ReadBatchHeader(store, table, segment_pages, segment, start + i);
      if (batch.ok() && batch->header.number >= number) return batch->header;
    }
  }
  return std::nullopt;
}

StreamScanner::StreamScanner(const Uuid& store, SegmentTableRef table,
                             std::map<SegmentNumber, SegmentHeader> segments,
                             uint32_t segment_pages, const StreamPosition& start, bool segment_lost)
    : store_(store),
      table_(std::move(table)),
      segments_(std::move(segments)),
      segment_pages_(segment_pages),
      position_(start),
      segment_lost_(segment_lost) {}

bool StreamScanner::IsWhole(SegmentNumber segment) const {
  const auto found = table_->find(segment);
  if (found == table_->end()) return false;
  const auto size = found->second->direct->Size();
  return size.ok() && *size >= uint64_t{segment_pages_} * kPageSize;
}

SegmentNumber StreamScanner::NextSegment(uint32_t lane, SegmentNumber after) const {
  for (auto it = segments_.upper_bound(after); it != segments_.end(); ++it) {
    if (it->second.lane == lane) return it->first;
  }
  return 0;
}

StreamScanner::Place StreamScanner::LookAt(const StreamPosition::Cursor& cursor, uint64_t number) {
  Place place;
  // The end of a segment holds nothing; that is no damage.
  if (cursor.segment == 0 || cursor.page >= segment_pages_) return place;
  auto batch = ReadBatchHeader(store_, *table_, segment_pages_, cursor.segment, cursor.page);
  if (batch.ok()) {
    if (batch->header.number == number) place.batch = std::move(*batch);
  } else {
    place.readable = batch.status().code() != Code::kIoError && IsWhole(cursor.segment);
  }
  return place;
}

StreamScanner::Place StreamScanner::Look(uint64_t number) {
  Place best;
  best.readable = !segment_lost_;
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    StreamPosition::Cursor& cursor = position_.lanes[lane];
    // Once a segment was opened for batch n, what stands at the old cursor is a leftover of an n
    // that was cut.
    const SegmentNumber next = NextSegment(lane, cursor.segment);
    if (next != 0 && segments_.at(next).first_batch == number) cursor = {next, kFirstBatchPage};
    Place place = LookAt(cursor, number);
    best.readable = best.readable && place.readable;
    // Two lanes can both hold a batch n: one is the leftover of a run that was cut.
    if (place.batch &&
        (!best.batch || place.batch->header.generation > best.batch->header.generation)) {
      best.batch = std::move(place.batch);
    }
  }
  return best;
}

std::optional<StreamScanner::Later> StreamScanner::FindLater(uint64_t number) {
  std::optional<Later> first;
  std::optional<Later> opened;
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    SegmentNumber segment = position_.lanes[lane].segment;
    uint32_t page = position_.lanes[lane].page;
    while (true) {
      if (segment != 0 && table_->contains(segment)) {
        const auto found = FindBatch(store_, *table_, segment_pages_, segment, page, number);
        if (found && (!first || found->number < first->number)) {
          first = Later{found->number, lane, {found->segment, found->page}};
        }
        if (found) break;
      }
      segment = NextSegment(lane, segment);
      if (segment == 0) break;
      page = kFirstBatchPage;
      const uint64_t named = segments_.at(segment).first_batch;
      if (named > number && (!opened || named < opened->number)) {
        opened = Later{named, lane, {segment, kFirstBatchPage}};
      }
    }
  }
  return first ? first : opened;
}

bool StreamScanner::OpenedFor(uint64_t number) const {
  return std::any_of(segments_.begin(), segments_.end(),
                     [&](const auto& segment) { return segment.second.first_batch >= number; });
}

Status StreamScanner::Gap(uint64_t from, uint64_t to, BatchSink* sink) {
  HYDRA_LOG_WARN("batches {} to {} of the stream are lost to rot", from, to - 1);
  return sink->OnGap(from, to);
}

Result<bool> StreamScanner::Settle(bool successor, bool impostor, BatchSink* sink) {
  if (!pending_) return true;
  Pending pending = std::move(*pending_);
  pending_.reset();
  if (impostor) {
    HYDRA_LOG_WARN("batch {} is not the one that its successor follows",
                   pending.batch.header.number);
    if (lost_from_ == 0) lost_from_ = pending.batch.header.number;
    return true;
  }
  BatchEvidence evidence{.readable = true,
                         .header_valid = true,
                         .generation_ok = true,
                         .chain_valid = pending.chain_valid,
                         .successor = successor,
                         .payload_valid = true};
  if (!successor) {
    const Status payload = VerifyPayload(*table_, pending.batch);
    // The header is valid, so a newer Hydra wrote it, and only that can tell whether it is whole.
    if (payload.code() == Code::kUnsupported) return payload;
    evidence.payload_valid = payload.ok();
    evidence.readable =
        payload.code() != Code::kIoError && IsWhole(pending.batch.header.segment) && !segment_lost_;
  }
  const BatchVerdict verdict = Judge(evidence);
  if (verdict == BatchVerdict::kTorn || verdict == BatchVerdict::kTornAfterGap) {
    if (lost_from_ != 0) {
      HYDRA_RETURN_IF_ERROR(Gap(lost_from_, pending.batch.header.number, sink));
    }
    lost_from_ = 0;
    position_ = pending.before;
    cut_generation_ = pending.batch.header.generation;
    torn_ = true;
    return false;
  }
  if (lost_from_ != 0) {
    HYDRA_RETURN_IF_ERROR(Gap(lost_from_, pending.batch.header.number, sink));
    lost_from_ = 0;
  }
  payload_rotten_ = payload_rotten_ || verdict == BatchVerdict::kAcceptPayloadRotten ||
                    verdict == BatchVerdict::kAcceptAfterGapPayloadRotten;
  StreamPosition behind = pending.before;
  const BatchHeader& header = pending.batch.header;
  behind.next_batch = header.number + 1;
  behind.chain = header.crc;
  behind.generation = header.generation;
  behind.lanes[header.lane] = {header.segment, header.page + header.pages()};
  HYDRA_RETURN_IF_ERROR(sink->OnBatch(pending.batch, behind));
  return true;
}

Status StreamScanner::Run(BatchSink* sink) {
  while (true) {
    const uint64_t number = position_.next_batch;
    Place place = Look(number);
    const bool header_valid = place.batch.has_value();
    const bool generation_ok =
        header_valid && place.batch->header.generation >= position_.generation;
    const bool usable = header_valid && generation_ok;
    std::optional<Later> later;
    if (!usable) later = FindLater(number + (header_valid ? 1 : 0));
    if (HYDRA_SABOTAGE(kTreatRotAsTorn)) {
      later.reset();
      place.readable = true;
    }
    const bool chain_valid = usable && place.batch->header.chain == position_.chain;

    HYDRA_ASSIGN_OR_RETURN(
        const bool go_on,
        Settle(usable || later.has_value() || OpenedFor(number), usable && !chain_valid, sink));
    if (!go_on) return Status::Ok();

    if (!usable) {
      const BatchVerdict verdict = Judge({.readable = place.readable,
                                          .header_valid = header_valid,
                                          .generation_ok = generation_ok,
                                          .chain_valid = false,
                                          .successor = later.has_value(),
                                          .payload_valid = false});
      if (verdict == BatchVerdict::kEnd) {
        if (lost_from_ == 0) return Status::Ok();
        // An impostor without anything after it cannot be: its successor exposed it.
        gap_at_tail_ = true;
        return Gap(lost_from_, number, sink);
      }
      HYDRA_CHECK(verdict == BatchVerdict::kHeaderRotten);
      if (!later) {
        gap_at_tail_ = true;
        return Gap(lost_from_ != 0 ? lost_from_ : number, number + 1, sink);
      }
      // Found further on: what lies between is lost. (If it is batch n itself, only batches that
      // are already counted as lost lay between.)
      if (later->number > number && lost_from_ == 0) lost_from_ = number;
      position_.lanes[later->lane] = later->cursor;
      position_.next_batch = later->number;
      continue;
    }
    if (!chain_valid && lost_from_ == 0) lost_from_ = number;

    const BatchHeader header = place.batch->header;
    pending_ = Pending{std::move(*place.batch), chain_valid, position_};
    position_.next_batch = number + 1;
    position_.chain = header.crc;
    position_.generation = header.generation;
    position_.lanes[header.lane] = {header.segment, header.page + header.pages()};
  }
}

}  // namespace hydra
