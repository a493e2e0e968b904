// SPDX-License-Identifier: Apache-2.0
#include "blockstore/image_source.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "base/coding.h"
#include "base/probe.h"
#include "blockstore/map_schema.h"

namespace hydra {
namespace {

// An image's cursor is the next lba, a delta's the next (version, lba or extent).
std::string PutCursor(std::initializer_list<uint64_t> numbers) {
  std::string cursor;
  for (const uint64_t number : numbers) PutBig64(&cursor, number);
  return cursor;
}

bool GetCursor(const std::string& cursor, std::initializer_list<uint64_t*> numbers) {
  Decoder in(AsBytes(cursor));
  for (uint64_t* number : numbers) in.Big64(number);
  return in.ok() && in.remaining() == 0;
}

Status BadCursor() { return Status::InvalidArgument("a cursor that no chunk of this kind has"); }

}  // namespace

ImageBuilder::ImageBuilder(Engine* engine, const ImageRequest& request)
    : engine_(engine), request_(request) {}

Result<std::unique_ptr<ReadJob>> ImageBuilder::PlanList() {
  HYDRA_ASSIGN_OR_RETURN(GroupInfo info, engine_->Info(request_.group));
  if (info.installing) {
    return Status::FailedPrecondition(
        fmt::format("group {} is being installed here itself; ask another peer", request_.group));
  }
  if (request_.mode != InstallMode::kImage && request_.mode != InstallMode::kDelta) {
    return Status::InvalidArgument("an install is an image or a delta");
  }
  block_pages_ = info.block_pages;
  blocks_ = std::max<uint64_t>(std::min(request_.max_pages, kMaxPayloadPages) / block_pages_, 1);
  rows_ = std::clamp<size_t>(request_.max_rows, 1, kMaxChunkRows);
  chunk_.mode = request_.mode;
  chunk_.block_pages = block_pages_;
  state_ = std::move(info.state);
  state_at_ = info.state_at;
  ScanRequest scan;
  scan.group = request_.group;
  if (request_.mode == InstallMode::kImage) {
    // Data blocks from the cursor on, as the last checkpoint has them.
    if (!request_.cursor.empty() && !GetCursor(request_.cursor, {&chunk_.from})) return BadCursor();
    scan.image = true;
    scan.cursor = BlockRowKey(request_.group, chunk_.from);
    scan.limit = request_.base == 0 && !request_.bare ? RowsToScan() : rows_;
    return engine_->PlanScan(std::move(scan));
  }
  // Changes from the cursor on, oldest first. What is older than the cursor was sent, so it may be
  // swept meanwhile.
  chunk_.since = request_.base;
  scan.since = request_.base;
  scan.limit = request_.bare ? rows_ : RowsToScan();
  if (!request_.cursor.empty()) {
    Version version = 0;
    uint64_t number = 0;
    if (!GetCursor(request_.cursor, {&version, &number}) || version <= scan.since) {
      return BadCursor();
    }
    scan.since = version - 1;
    scan.cursor = ChangeKey(request_.group, version, number);
  }
  return engine_->PlanScan(std::move(scan));
}

// Most rows have payload, which fills a chunk long before its rows do.
size_t ImageBuilder::RowsToScan() const { return std::min<size_t>(rows_, 2 * blocks_ + 64); }

// Takes a row, unless the chunk is full.
bool ImageBuilder::AddRow(const ImageRow& row) {
  const bool read = HasPayload(row);
  if (read && reads_ == blocks_) return false;
  if (row.whole_extent && extents_ == kMaxChunkExtents) return false;
  reads_ += read ? 1 : 0;
  extents_ += row.whole_extent ? 1 : 0;
  chunk_.rows.push_back(row);
  return true;
}

Status ImageBuilder::TakeBlocks(const ChangeBatch& batch) {
  chunk_.to = kEndOfBlocks;
  for (const Change& change : batch.changes) {
    // Of a checkpoint that is being written, or brought here by an install: as in KeepBlock.
    if (request_.bare && change.version > LastVersionOf(batch.as_of)) continue;
    const bool same = change.version <= request_.base;
    if (!AddRow({change.lba, false, change.kind, change.version, change.crc, same,
                 request_.bare && !same})) {
      chunk_.to = change.lba;
      break;
    }
  }
  if (chunk_.to == kEndOfBlocks && !batch.done) {
    const auto next = ParseMapKey(batch.next);
    if (!next) return Status::Corruption("malformed row in the map");
    chunk_.to = next->first;
  }
  if (chunk_.to != kEndOfBlocks) chunk_.cursor = PutCursor({chunk_.to});
  return Status::Ok();
}

Status ImageBuilder::TakeChanges(const ChangeBatch& batch) {
  for (const Change& change : batch.changes) {
    const bool bare = request_.bare && change.kind == BlockKind::kData;
    if (!AddRow({change.lba, change.whole_extent, change.kind, change.version, change.crc, false,
                 bare})) {
      chunk_.cursor = PutCursor({change.version, change.lba});
      break;
    }
  }
  if (chunk_.cursor.empty() && !batch.done) {
    const auto next = ParseMapKey(batch.next);
    if (!next) return Status::Corruption("malformed change row in the map");
    chunk_.cursor = PutCursor({next->first, next->second});
  }
  std::sort(chunk_.rows.begin(), chunk_.rows.end(), [](const ImageRow& a, const ImageRow& b) {
    return a.whole_extent != b.whole_extent ? a.whole_extent : a.number < b.number;
  });
  return Status::Ok();
}

// Neighbours in one read.
void ImageBuilder::MakeRuns() {
  const size_t longest = kExtentPages / block_pages_;
  for (size_t i = 0; i < listed_.size(); ++i) {
    if (!HasPayload(listed_[i])) continue;
    const bool joins = !runs_.empty() && runs_.back().first + runs_.back().count == i &&
                       runs_.back().count < longest &&
                       listed_[i].number == listed_[i - 1].number + 1;
    if (joins) {
      ++runs_.back().count;
    } else {
      runs_.push_back({i, 1});
    }
  }
}

Result<std::unique_ptr<ReadJob>> ImageBuilder::PlanReads(std::unique_ptr<ReadJob> list) {
  HYDRA_ASSIGN_OR_RETURN(const ChangeBatch batch, engine_->FinishScan(std::move(list)));
  chunk_.as_of = batch.as_of;
  if (state_at_ == chunk_.as_of) piece_.state = std::move(state_);
  HYDRA_RETURN_IF_ERROR(chunk_.mode == InstallMode::kDelta ? TakeChanges(batch)
                                                           : TakeBlocks(batch));
  listed_ = std::move(chunk_.rows);
  chunk_.rows.clear();
  MakeRuns();
  if (runs_.empty()) return std::unique_ptr<ReadJob>();
  std::vector<LbaRange> ranges;
  for (const Run& run : runs_) ranges.push_back({listed_[run.first].number, run.count});
  return engine_->PlanReads(request_.group, ranges);
}

Result<ImagePiece> ImageBuilder::Finish(std::unique_ptr<ReadJob> reads) {
  std::vector<ReadResult> blocks;
  if (reads != nullptr) {
    HYDRA_ASSIGN_OR_RETURN(blocks, engine_->FinishReads(std::move(reads)));
  }
  size_t run = 0;
  for (size_t i = 0; i < listed_.size();) {
    if (run == runs_.size() || i < runs_[run].first) {
      chunk_.rows.push_back(listed_[i++]);
      continue;
    }
    for (size_t b = 0; b < runs_[run].count; ++b) KeepBlock(listed_[i + b], blocks[run], b);
    i += runs_[run++].count;
  }
  HYDRA_ASSIGN_OR_RETURN(const GroupInfo info, engine_->Info(request_.group));
  chunk_.newest = std::max(info.applied, info.mixed_until);
  piece_.chunk = std::move(chunk_);
  return std::move(piece_);
}

// The block as it is now, which may be newer than its row. One that is no longer data, or was
// written again after `as_of`, goes without a word: the log from there on says so, and a delta that
// comes to it later has it once.
void ImageBuilder::KeepBlock(ImageRow row, const ReadResult& read, size_t b) {
  if (read.blocks[b].kind != BlockKind::kData) return;
  if (read.blocks[b].version > LastVersionOf(chunk_.as_of)) {
    HYDRA_PROBE("install: a block that was written again is left to the log");
    return;
  }
  row.version = read.blocks[b].version;
  row.crc = read.blocks[b].crc;
  chunk_.rows.push_back(row);
  const size_t bytes = size_t{block_pages_} * kPageSize;
  Payload& payload = piece_.payload;
  if (!payload.empty() && payload.back().buffer.data() == read.data.data() &&
      payload.back().offset + payload.back().length == b * bytes) {
    payload.back().length += bytes;
  } else {
    payload.push_back({read.data, b * bytes, bytes});
  }
}

Result<ImagePiece> BuildImageChunk(Engine* engine, const ImageRequest& request) {
  ImageBuilder builder(engine, request);
  HYDRA_ASSIGN_OR_RETURN(auto list, builder.PlanList());
  list->Run();
  HYDRA_ASSIGN_OR_RETURN(auto reads, builder.PlanReads(std::move(list)));
  if (reads != nullptr) reads->Run();
  return builder.Finish(std::move(reads));
}

}  // namespace hydra
