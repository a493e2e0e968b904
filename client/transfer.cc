// SPDX-License-Identifier: Apache-2.0
#include "client/transfer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/crc32c.h"

namespace hydra {
namespace {

// Of one call: enough to keep all shards busy, and a long call does not crowd out others.
constexpr unsigned kMaxInFlight = 16;
// A range without payload may be of any length; so much of it is planned at a time.
constexpr uint64_t kPlanBytes = 16384 * kExtentBytes;

// Which of two failures to report: an unknown outcome outweighs a certain one.
Status Worse(const Status& first, const Status& second) {
  if (first.ok()) return second;
  if (first.code() != Code::kAborted && second.code() == Code::kAborted) return second;
  return first;
}

}  // namespace

void CopyRead(const GroupReply& reply, uint32_t block_bytes, uint32_t part_offset,
              std::span<uint8_t> out) {
  const uint8_t* data = reply.payload.data();
  size_t at = 0;
  size_t skip = part_offset;
  for (const char kind : reply.kinds) {
    if (at == out.size()) return;
    const size_t length = std::min<size_t>(block_bytes - skip, out.size() - at);
    if (static_cast<ReadKind>(kind) == ReadKind::kData) {
      std::memcpy(out.data() + at, data + skip, length);
      data += block_bytes;
    } else {
      std::memset(out.data() + at, 0, length);
    }
    at += length;
    skip = 0;
  }
}

void Address(const VolumeState& volume, uint32_t shard, const Guard* guard, GroupRequest* request) {
  request->group = volume.groups[shard];
  request->block_bytes = volume.layout.block_bytes();
  request->timeout = volume.runtime->options.timeout;
  if (guard == nullptr) return;
  request->epoch = guard->epoch;
  // 0 would mean: not checked.
  if (shard < guard->seen.size()) request->seen = std::max<uint64_t>(guard->seen[shard], 1);
}

Result<BufferSlice> PaddedCopy(Router* router, std::span<const uint8_t> bytes) {
  HYDRA_ASSIGN_OR_RETURN(Buffer buffer, router->Allocate(bytes.size()));
  std::memcpy(buffer.data(), bytes.data(), bytes.size());
  std::memset(buffer.data() + bytes.size(), 0, buffer.size() - bytes.size());
  return BufferSlice{buffer, 0, buffer.size()};
}

void Transfer::Start(std::function<void(Status)> done) {
  done_ = std::move(done);
  Fill();
}

void Transfer::Plan() {
  steps_.clear();
  next_step_ = 0;
  const uint64_t from = offset_ + planned_;
  // Up to a multiple of the chunk, so that no extent is cut.
  const uint64_t end = std::min(offset_ + length_, (from / kPlanBytes + 1) * kPlanBytes);
  const uint64_t length = end - from;
  if (kind_ == Kind::kRead || kind_ == Kind::kWrite || kind_ == Kind::kMap) {
    for (uint64_t at = 0; at < length; at += steps_.back().piece.bytes) {
      Piece piece = volume_->layout.First(from + at, length - at);
      piece.at = planned_ + at;
      const auto write =
          piece.whole_blocks ? GroupRequest::Kind::kWrite : GroupRequest::Kind::kWritePart;
      steps_.push_back({kind_ == Kind::kWrite ? write : GroupRequest::Kind::kRead, piece, {}});
    }
  } else {
    RangePlan plan = volume_->layout.Plan(from, length);
    const auto whole =
        kind_ == Kind::kZero ? GroupRequest::Kind::kZero : GroupRequest::Kind::kUnmap;
    for (const Piece& piece : plan.pieces) {
      if (piece.whole_blocks) {
        steps_.push_back({whole, piece, {}});
      } else {
        HYDRA_CHECK(kind_ == Kind::kZero);  // discards were cut to whole blocks
        PlanZeroPiece(piece);
      }
    }
    for (ExtentRun& run : plan.runs) {
      Piece piece;
      piece.shard = run.shard;
      steps_.push_back({whole, piece, std::move(run.extents)});
    }
  }
  planned_ += length;
}

// Zeroes for the parts of blocks at its ends, a mapping for the blocks between them.
void Transfer::PlanZeroPiece(const Piece& piece) {
  const uint64_t block = volume_->layout.block_bytes();
  const uint64_t begin = piece.lba * block + piece.part_offset;
  const uint64_t end = begin + piece.bytes;
  const uint64_t first = std::min(end, (begin + block - 1) / block * block);
  const uint64_t last = std::max(first, end / block * block);
  const auto add = [&](uint64_t from, uint64_t to, GroupRequest::Kind kind) {
    if (from < to) steps_.push_back({kind, volume_->layout.First(from, to - from), {}});
  };
  add(begin, first, GroupRequest::Kind::kWritePart);
  add(first, last, GroupRequest::Kind::kZero);
  add(last, end, GroupRequest::Kind::kWritePart);
}

void Transfer::Fill() {
  const auto self = shared_from_this();
  while (in_flight_ < kMaxInFlight && error_.ok()) {
    if (next_step_ == steps_.size() && planned_ < length_) Plan();
    if (next_step_ == steps_.size()) break;
    Issue(std::move(steps_[next_step_++]));
  }
  if (in_flight_ > 0) return;
  const auto done = std::move(done_);
  done_ = nullptr;
  if (done) done(error_);
}

void Transfer::FillPayload(const Piece& piece, GroupRequest* request) {
  static const std::vector<uint8_t> kZeroes(64u << 10, 0);  // the largest block
  std::span<const uint8_t> bytes(kZeroes.data(), std::min<size_t>(piece.bytes, kZeroes.size()));
  if (!in_.empty()) bytes = in_.subspan(piece.at, piece.bytes);
  HYDRA_CHECK(bytes.size() == piece.bytes);
  Result<BufferSlice> copy = PaddedCopy(&volume_->runtime->router, bytes);
  HYDRA_CHECK(copy.ok());
  if (request->kind == GroupRequest::Kind::kWritePart) {
    request->part_offset = piece.part_offset;
    request->part_bytes = static_cast<uint32_t>(piece.bytes);
    request->crcs = {Crc32c(bytes)};
  } else {
    const uint32_t block = request->block_bytes;
    request->crcs.reserve(piece.count);
    for (uint64_t i = 0; i < piece.count; ++i) {
      request->crcs.push_back(Crc32c(bytes.subspan(i * block, block)));
    }
  }
  request->payload.push_back(std::move(*copy));
}

void Transfer::Issue(Step&& step) {
  GroupRequest request;
  request.kind = step.kind;
  Address(*volume_, step.piece.shard, guard_.get(), &request);
  request.lba = step.piece.lba;
  request.count = step.piece.count;
  request.extents = std::move(step.extents);
  request.local = local_;
  request.map_only = kind_ == Kind::kMap;
  if (step.kind == GroupRequest::Kind::kWrite || step.kind == GroupRequest::Kind::kWritePart) {
    FillPayload(step.piece, &request);
  }
  ++in_flight_;
  volume_->runtime->router.Submit(
      std::move(request), [self = shared_from_this(), piece = step.piece](const GroupReply& reply) {
        self->OnReply(piece, reply);
      });
}

void Transfer::OnReply(const Piece& piece, const GroupReply& reply) {
  --in_flight_;
  volume_->NoteCommit(piece.shard, reply.commit);
  if (!reply.status.ok()) {
    error_ = Worse(error_, reply.status);
  } else if (kind_ == Kind::kRead) {
    CopyRead(reply, volume_->layout.block_bytes(), piece.part_offset,
             out_.subspan(piece.at, piece.bytes));
  } else if (kind_ == Kind::kMap) {
    AddToMap(piece, reply);
  }
  Fill();
}

void Transfer::AddToMap(const Piece& piece, const GroupReply& reply) {
  const uint64_t block = volume_->layout.block_bytes();
  const uint64_t begin = offset_ + piece.at;
  const uint64_t end = begin + piece.bytes;
  uint64_t at = begin;
  for (size_t i = 0; i < reply.kinds.size() && at < end; ++i) {
    const bool mapped = static_cast<ReadKind>(reply.kinds[i]) == ReadKind::kData;
    const uint64_t next = std::min(end, (piece.lba + i + 1) * block);
    if (at > begin && map_->back().mapped == mapped) {
      map_->back().length += next - at;
    } else {
      map_->push_back({at, next - at, mapped});
    }
    at = next;
  }
}

}  // namespace hydra
