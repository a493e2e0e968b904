// SPDX-License-Identifier: Apache-2.0
#include "blockstore/image_source.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "base/coding.h"
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

class Builder {
 public:
  Builder(Engine* engine, const ImageRequest& request, const GroupInfo& info)
      : engine_(engine),
        request_(request),
        block_pages_(info.block_pages),
        blocks_(
            std::max<uint64_t>(std::min(request.max_pages, kMaxPayloadPages) / block_pages_, 1)),
        rows_(std::clamp<size_t>(request.max_rows, 1, kMaxChunkRows)) {
    chunk_.mode = request.mode;
    chunk_.block_pages = info.block_pages;
  }

  Result<ImagePiece> Build() {
    HYDRA_RETURN_IF_ERROR(request_.mode == InstallMode::kDelta ? ListChanges() : ListBlocks());
    HYDRA_RETURN_IF_ERROR(ReadBlocks());
    HYDRA_ASSIGN_OR_RETURN(const GroupInfo info, engine_->Info(request_.group));
    chunk_.newest = std::max(info.applied, info.mixed_until);
    if (info.state_at == chunk_.as_of) piece_.state = info.state;
    piece_.chunk = std::move(chunk_);
    return std::move(piece_);
  }

 private:
  // Takes a row, unless the chunk is full.
  bool Take(const ImageRow& row) {
    const bool read = row.kind == BlockKind::kData && !row.same;
    if (read && reads_ == blocks_) return false;
    if (row.whole_extent && extents_ == kMaxChunkExtents) return false;
    reads_ += read ? 1 : 0;
    extents_ += row.whole_extent ? 1 : 0;
    chunk_.rows.push_back(row);
    return true;
  }

  // Image: data blocks from the cursor on, as the last checkpoint has them.
  Status ListBlocks() {
    if (!request_.cursor.empty() && !GetCursor(request_.cursor, {&chunk_.from})) return BadCursor();
    HYDRA_ASSIGN_OR_RETURN(
        const ChangeBatch batch,
        engine_->ScanImage(request_.group, BlockRowKey(request_.group, chunk_.from), rows_));
    chunk_.as_of = batch.as_of;
    chunk_.to = kEndOfBlocks;
    for (const Change& change : batch.changes) {
      const bool same = change.version <= request_.base;
      if (!Take({change.lba, false, change.kind, change.version, change.crc, same})) {
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

  // Delta: changes from the cursor on, oldest first. What is older than the cursor was sent, so it
  // may be swept meanwhile.
  Status ListChanges() {
    chunk_.since = request_.base;
    Version since = request_.base;
    std::string from;
    if (!request_.cursor.empty()) {
      Version version = 0;
      uint64_t number = 0;
      if (!GetCursor(request_.cursor, {&version, &number}) || version <= since) return BadCursor();
      since = version - 1;
      from = ChangeKey(request_.group, version, number);
    }
    HYDRA_ASSIGN_OR_RETURN(const ChangeBatch batch,
                           engine_->ScanChanges(request_.group, since, from, rows_));
    chunk_.as_of = batch.as_of;
    for (const Change& change : batch.changes) {
      if (!Take(
              {change.lba, change.whole_extent, change.kind, change.version, change.crc, false})) {
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

  // The blocks as they are now, which may be newer than their rows. One that is no longer data goes
  // without a word: it was deleted after `as_of`, and the log from there on says so.
  Status ReadBlocks() {
    std::vector<ImageRow> listed = std::move(chunk_.rows);
    chunk_.rows.clear();
    const auto wanted = [&](size_t i) {
      return listed[i].kind == BlockKind::kData && !listed[i].same;
    };
    const size_t longest = kExtentPages / block_pages_;
    for (size_t i = 0; i < listed.size();) {
      if (!wanted(i)) {
        chunk_.rows.push_back(listed[i++]);
        continue;
      }
      size_t run = 1;
      while (i + run < listed.size() && run < longest && wanted(i + run) &&
             listed[i + run].number == listed[i].number + run) {
        ++run;
      }
      HYDRA_ASSIGN_OR_RETURN(const ReadResult read,
                             engine_->Read(request_.group, listed[i].number, run));
      for (size_t b = 0; b < run; ++b) KeepBlock(listed[i + b], read, b);
      i += run;
    }
    return Status::Ok();
  }

  void KeepBlock(ImageRow row, const ReadResult& read, size_t b) {
    if (read.blocks[b].kind != BlockKind::kData) return;
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

  Engine* const engine_;
  const ImageRequest& request_;
  const uint32_t block_pages_;
  const uint64_t blocks_;  // to be read, at most
  const size_t rows_;
  uint64_t reads_ = 0;
  size_t extents_ = 0;
  ImageChunk chunk_;
  ImagePiece piece_;
};

}  // namespace

Result<ImagePiece> BuildImageChunk(Engine* engine, const ImageRequest& request) {
  HYDRA_ASSIGN_OR_RETURN(const GroupInfo info, engine->Info(request.group));
  if (info.installing) {
    return Status::FailedPrecondition(
        fmt::format("group {} is being installed here itself; ask another peer", request.group));
  }
  if (request.mode != InstallMode::kImage && request.mode != InstallMode::kDelta) {
    return Status::InvalidArgument("an install is an image or a delta");
  }
  return Builder(engine, request, info).Build();
}

}  // namespace hydra
