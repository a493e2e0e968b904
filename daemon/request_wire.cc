// SPDX-License-Identifier: Apache-2.0
#include "daemon/request_wire.h"

#include <fmt/format.h>

#include "base/crc32c.h"

namespace hydra {
namespace {

ShardRequest SessionRequest(RequestKind kind) {
  ShardRequest request;
  request.kind = ShardRequest::Kind::kMutate;
  request.context.kind = kind;
  request.op.kind = OpKind::kOpaque;
  return request;
}

Status CheckRange(const rpc::Io& io, uint32_t block_pages, uint64_t max_blocks) {
  if (io.count() == 0 || io.count() > max_blocks) {
    return Status::InvalidArgument(
        fmt::format("{} blocks in one request: 1 to {} are taken", io.count(), max_blocks));
  }
  const uint64_t extent = kExtentPages / block_pages;
  if (io.lba() > UINT64_MAX - io.count() ||
      io.lba() / extent != (io.lba() + io.count() - 1) / extent) {
    return Status::InvalidArgument("a request crosses the end of an extent; split it there");
  }
  return Status::Ok();
}

Status CheckPayload(const Frame& frame, uint64_t bytes) {
  if (frame.payload_bytes == bytes) return Status::Ok();
  return Status::InvalidArgument(
      fmt::format("a payload of {} bytes instead of {}", frame.payload_bytes, bytes));
}

Status FillWrite(const rpc::Io& io, uint32_t block_pages, BufferSlice data, ShardRequest* request) {
  if (static_cast<uint64_t>(io.crcs_size()) != io.count()) {
    return Status::InvalidArgument("one checksum per block is needed");
  }
  request->op.kind = OpKind::kWrite;
  request->op.block_pages = block_pages;
  request->op.crcs.assign(io.crcs().begin(), io.crcs().end());
  request->payload.push_back(std::move(data));
  return Status::Ok();
}

// The bytes of a part lie at the start of `pages` pages.
Status FillPart(const rpc::Io& io, const Frame& frame, uint32_t block_pages, bool compare,
                ShardRequest* request) {
  const uint64_t room = io.count() * block_pages * kPageSize;
  if (io.part_bytes() == 0 || io.part_offset() >= block_pages * kPageSize ||
      uint64_t{io.part_offset()} + io.part_bytes() > room) {
    return Status::InvalidArgument("the part lies outside the blocks named");
  }
  const size_t half = (io.part_bytes() + kPageSize - 1) / kPageSize * kPageSize;
  HYDRA_RETURN_IF_ERROR(CheckPayload(frame, compare ? 2 * half : half));
  const BufferSlice data{frame.payload, compare ? half : 0, half};
  if (io.crcs_size() != 1 || Crc32c(data.data(), io.part_bytes()) != io.crcs(0)) {
    return Status::InvalidArgument("the bytes to write do not match their checksum");
  }
  if (compare) request->compare = {frame.payload, 0, half};
  request->part_offset = io.part_offset();
  request->part_bytes = io.part_bytes();
  request->op.kind = OpKind::kWrite;
  request->op.block_pages = block_pages;
  request->payload.push_back(data);
  return Status::Ok();
}

}  // namespace

Result<ShardRequest> ToShardRequest(const rpc::Io& io, const Frame& frame, uint32_t block_pages) {
  ShardRequest request;
  request.lba = io.lba();
  request.count = io.count();
  if (io.kind() == rpc::Io::READ) {
    HYDRA_RETURN_IF_ERROR(CheckRange(io, block_pages, kMaxIoPages / block_pages));
    request.kind = io.local() ? ShardRequest::Kind::kReadLocal : ShardRequest::Kind::kRead;
    request.context.epoch = io.epoch();
    request.map_only = io.map_only();
    return request;
  }
  request.kind = ShardRequest::Kind::kMutate;
  request.context.session = io.session();
  request.context.seq = io.seq();
  request.context.lowest_unanswered = io.lowest_unanswered();
  request.context.epoch = io.epoch();
  if (io.seen() != 0) request.seen = io.seen();
  if (io.session() == 0 || io.seq() == 0) {
    return Status::InvalidArgument("a mutation needs a session and a number in it");
  }
  request.op.lba = io.lba();
  request.op.count = io.count();
  const uint64_t bytes = io.count() * block_pages * kPageSize;
  switch (io.kind()) {
    case rpc::Io::WRITE:
      HYDRA_RETURN_IF_ERROR(CheckRange(io, block_pages, kMaxIoPages / block_pages));
      HYDRA_RETURN_IF_ERROR(CheckPayload(frame, bytes));
      request.context.kind = RequestKind::kWrite;
      HYDRA_RETURN_IF_ERROR(FillWrite(io, block_pages, {frame.payload, 0, bytes}, &request));
      return request;
    case rpc::Io::COMPARE_AND_WRITE:
      HYDRA_RETURN_IF_ERROR(CheckRange(io, block_pages, kMaxIoPages / block_pages));
      HYDRA_RETURN_IF_ERROR(CheckPayload(frame, 2 * bytes));
      request.context.kind = RequestKind::kCompareAndWrite;
      request.compare = {frame.payload, 0, bytes};
      HYDRA_RETURN_IF_ERROR(FillWrite(io, block_pages, {frame.payload, bytes, bytes}, &request));
      return request;
    case rpc::Io::WRITE_PART:
    case rpc::Io::COMPARE_PART: {
      const bool compare = io.kind() == rpc::Io::COMPARE_PART;
      HYDRA_RETURN_IF_ERROR(CheckRange(io, block_pages, kMaxIoPages / block_pages));
      request.context.kind = compare ? RequestKind::kCompareAndWrite : RequestKind::kWrite;
      HYDRA_RETURN_IF_ERROR(FillPart(io, frame, block_pages, compare, &request));
      return request;
    }
    case rpc::Io::ZERO:
    case rpc::Io::UNMAP: {
      const bool zero = io.kind() == rpc::Io::ZERO;
      HYDRA_RETURN_IF_ERROR(CheckPayload(frame, 0));
      if (io.extents_size() == 0) {
        HYDRA_RETURN_IF_ERROR(CheckRange(io, block_pages, kMaxIoPages / block_pages));
        request.context.kind = zero ? RequestKind::kZero : RequestKind::kUnmap;
        request.op.kind = zero ? OpKind::kZero : OpKind::kUnmap;
        return request;
      }
      request.context.kind = RequestKind::kZeroExtents;
      request.op.kind = OpKind::kZeroExtents;
      request.op.lba = request.op.count = 0;
      request.op.extents.assign(io.extents().begin(), io.extents().end());
      return request;  // ValidateEntry looks at the list
    }
    default: return Status::Unsupported("an operation of a newer version: upgrade this node");
  }
}

ShardRequest ToShardRequest(const rpc::OpenSession& open) {
  ShardRequest request = SessionRequest(RequestKind::kOpenSession);
  request.context.timeout = static_cast<Nanos>(open.timeout_ms()) * kMillisecond;
  return request;
}

ShardRequest ToShardRequest(const rpc::KeepAlive& keep) {
  ShardRequest request = SessionRequest(RequestKind::kKeepAlive);
  request.context.session = keep.session();
  request.context.lowest_unanswered = keep.lowest_unanswered();
  return request;
}

ShardRequest ToShardRequest(const rpc::CloseSession& close) {
  ShardRequest request = SessionRequest(RequestKind::kCloseSession);
  request.context.session = close.session();
  return request;
}

ShardRequest ToShardRequest(const rpc::Fence& fence) {
  ShardRequest request = SessionRequest(RequestKind::kFence);
  request.context.epoch = fence.epoch();
  return request;
}

namespace {

rpc::Reply::Answer AnswerOf(const ShardReply& from) {
  switch (from.answer) {
    case ShardAnswer::kDone: break;
    case ShardAnswer::kNotMaster: return rpc::Reply::NOT_MASTER;
    case ShardAnswer::kBusy: return rpc::Reply::BUSY;
    case ShardAnswer::kUnknown: return rpc::Reply::UNKNOWN;
    case ShardAnswer::kStale: return rpc::Reply::STALE;
    case ShardAnswer::kSessionExpired: return rpc::Reply::SESSION_EXPIRED;
    case ShardAnswer::kForgotten: return rpc::Reply::FORGOTTEN;
    case ShardAnswer::kCancelled: return rpc::Reply::CANCELLED;
    case ShardAnswer::kFenced: return rpc::Reply::FENCED;
    case ShardAnswer::kInvalid: return rpc::Reply::INVALID;
    case ShardAnswer::kNoSpace: return rpc::Reply::NO_SPACE;
    case ShardAnswer::kDamaged: return rpc::Reply::DAMAGED;
  }
  switch (from.outcome.code) {
    case Code::kOk: return rpc::Reply::DONE;
    case Code::kFailedPrecondition: return rpc::Reply::MISCOMPARE;
    case Code::kNotFound: return rpc::Reply::SESSION_EXPIRED;  // close, keep-alive
    case Code::kBusy:
    case Code::kNoSpace: return rpc::Reply::BUSY;  // no room for another session
    default: return rpc::Reply::INVALID;
  }
}

}  // namespace

void FillReply(const ShardReply& from, rpc::Reply* to, std::vector<BufferSlice>* payload) {
  to->set_answer(AnswerOf(from));
  if (!from.status.ok()) {
    to->set_message(std::string(from.status.message()));
    to->set_code(static_cast<uint32_t>(from.status.code()));
  }
  to->set_master(from.master);
  to->set_commit(from.commit);
  to->set_version(from.outcome.version);
  if (!from.data) return;
  const std::vector<BlockInfo>& blocks = from.data->blocks;
  const size_t bytes = blocks.empty() ? 0 : from.data->data.size() / blocks.size();
  std::string kinds;
  for (size_t i = 0; i < blocks.size(); ++i) {
    kinds.push_back(static_cast<char>(blocks[i].kind));
    if (bytes == 0) continue;  // only the map was asked for
    to->add_crcs(blocks[i].crc);
    to->add_versions(blocks[i].version);
    if (blocks[i].kind != BlockKind::kData) continue;
    if (!payload->empty() && payload->back().offset + payload->back().length == i * bytes) {
      payload->back().length += bytes;
    } else {
      payload->push_back({from.data->data, i * bytes, bytes});
    }
  }
  to->set_kinds(std::move(kinds));
}

}  // namespace hydra
