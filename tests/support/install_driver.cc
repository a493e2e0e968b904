// SPDX-License-Identifier: Apache-2.0
#include "tests/support/install_driver.h"

#include <algorithm>

#include <fmt/format.h>

namespace hydra::test {
namespace {

constexpr Lba kLook = 512;

}  // namespace

Result<ImagePiece> InstallDriver::Build() {
  HYDRA_ASSIGN_OR_RETURN(const GroupInfo info, (*target_)->Info(group_));
  ImageRequest request;
  request.group = group_;
  request.mode = options_.mode;
  request.base = options_.ignore_base && options_.mode == InstallMode::kImage
                     ? 0
                     : LastVersionOf(info.applied);
  const bool resume = info.installing && info.install.mode == options_.mode;
  if (resume) request.cursor = info.install.cursor;
  request.max_pages = options_.max_pages;
  request.max_rows = options_.max_rows;
  request.bare = options_.bare;
  HYDRA_ASSIGN_OR_RETURN(ImagePiece piece, BuildImageChunk(source_->engine(), request));
  if (options_.newer) HYDRA_RETURN_IF_ERROR(AddNewer(&piece));
  return piece;
}

Status InstallDriver::AddNewer(ImagePiece* piece) {
  ImageChunk& chunk = piece->chunk;
  if (chunk.block_pages != 1) return Status::Ok();
  const bool image = chunk.mode == InstallMode::kImage;
  uint32_t added = 0;  // a bare chunk has many rows, and would have as much payload
  for (Lba lba = image ? chunk.from : 0; lba < (image ? std::min(chunk.to, kLook) : kLook); ++lba) {
    HYDRA_ASSIGN_OR_RETURN(const ReadResult read, source_->engine()->Read(group_, lba, 1));
    const BlockInfo& block = read.blocks[0];
    if (block.kind != BlockKind::kData || block.version <= LastVersionOf(chunk.as_of)) continue;
    const auto is_row = [&](const ImageRow& row) { return !row.whole_extent && row.number == lba; };
    if (options_.bare && added++ == options_.max_pages) break;
    std::erase_if(chunk.rows, is_row);
    chunk.rows.push_back({lba, false, BlockKind::kData, block.version, block.crc, false});
    chunk.newest = std::max(chunk.newest, VersionInstance(block.version));
  }
  std::sort(chunk.rows.begin(), chunk.rows.end(), [](const ImageRow& a, const ImageRow& b) {
    return a.whole_extent != b.whole_extent ? a.whole_extent : a.number < b.number;
  });
  piece->payload.clear();
  for (const ImageRow& row : chunk.rows) {
    if (!HasPayload(row)) continue;
    HYDRA_ASSIGN_OR_RETURN(const ReadResult read, source_->engine()->Read(group_, row.number, 1));
    piece->payload.push_back({read.data, 0, read.data.size()});
  }
  return Status::Ok();
}

Status InstallDriver::Begin() {
  HYDRA_ASSIGN_OR_RETURN(const GroupInfo info, (*target_)->Info(group_));
  ImageRequest request;
  request.group = group_;
  request.mode = options_.mode;
  request.base = LastVersionOf(info.applied);
  request.max_rows = 1;
  HYDRA_ASSIGN_OR_RETURN(const ImagePiece first, BuildImageChunk(source_->engine(), request));
  target_->model().Learned(group_, source_->model().group(group_));
  return target_->InstallBegin(group_, options_.mode, first.chunk.as_of);
}

Status InstallDriver::QueueChunk() {
  HYDRA_ASSIGN_OR_RETURN(const ImagePiece piece, Build());
  HYDRA_RETURN_IF_ERROR(target_->InstallChunk(group_, piece.chunk, piece.payload));
  ++counts_.chunks;
  counts_.rows += piece.chunk.rows.size();
  for (const BufferSlice& slice : piece.payload) counts_.payload_pages += slice.length / kPageSize;
  for (const ImageRow& row : piece.chunk.rows) counts_.same += row.same ? 1 : 0;
  return Status::Ok();
}

Status InstallDriver::QueueDelivery(size_t limit) {
  const uint64_t count = (*target_)->OwedCount(group_);
  HYDRA_ASSIGN_OR_RETURN(const auto owed, (*target_)->OwedBlocks(group_, 0, count));
  std::vector<BlockName> blocks;
  Payload payload;
  for (const BlockName& block : owed) {
    if (blocks.size() == limit) break;
    HYDRA_ASSIGN_OR_RETURN(const ReadResult read, source_->engine()->Read(group_, block.lba, 1));
    if (read.blocks[0].version != block.version) continue;
    blocks.push_back(block);
    payload.push_back({read.data, 0, read.data.size()});
  }
  if (blocks.empty()) return Status::NotFound("nothing that is owed is here");
  HYDRA_RETURN_IF_ERROR(target_->Deliver(group_, blocks, payload));
  counts_.delivered += blocks.size();
  return Status::Ok();
}

Status InstallDriver::DeliverAll() {
  Status status;
  while (status.ok()) {
    status = QueueDelivery();
    HYDRA_RETURN_IF_ERROR(target_->Flush());
  }
  return status.code() == Code::kNotFound ? Status::Ok() : status;
}

Status InstallDriver::QueueFinish() {
  HYDRA_ASSIGN_OR_RETURN(const GroupInfo info, (*target_)->Info(group_));
  // The source may have moved on, and had more chosen, while it was sending.
  target_->model().Learned(group_, source_->model().group(group_));
  return target_->InstallFinish(group_, info.install.as_of);
}

Status InstallDriver::QueueNext() {
  HYDRA_ASSIGN_OR_RETURN(const GroupInfo info, (*target_)->Info(group_));
  if (!info.installing || info.install.restart || info.install.mode != options_.mode) {
    return Begin();
  }
  return info.install.complete ? QueueFinish() : QueueChunk();
}

Status InstallDriver::Run() {
  for (bool finished = false; !finished;) {
    HYDRA_ASSIGN_OR_RETURN(const GroupInfo info, (*target_)->Info(group_));
    finished = info.installing && info.install.complete && !info.install.restart &&
               info.install.mode == options_.mode;
    HYDRA_RETURN_IF_ERROR(QueueNext());
    HYDRA_RETURN_IF_ERROR(target_->Flush());
  }
  return Status::Ok();
}

Status InstallDriver::RunAndCatchUp() {
  HYDRA_RETURN_IF_ERROR(Run());
  HYDRA_RETURN_IF_ERROR(DeliverAll());
  target_->model().Learned(group_, source_->model().group(group_));
  return target_->Settle();
}

Status Follow(Store* source, Store* target, GroupId group, Instance instance) {
  target->model().Learned(group, source->model().group(group));
  while (target->model().group(group).applied < instance) {
    HYDRA_RETURN_IF_ERROR(target->Apply(group));
    HYDRA_RETURN_IF_ERROR(target->Flush());
  }
  return Status::Ok();
}

std::string Differences(Store* a, Store* b, GroupId group) {
  const Result<GroupInfo> ours = (*a)->Info(group);
  const Result<GroupInfo> theirs = (*b)->Info(group);
  if (!ours.ok() || !theirs.ok()) return "a replica has no such group\n";
  if (ours->applied != theirs->applied || ours->mixed_until != 0 || theirs->mixed_until != 0) {
    return fmt::format("applied {} and {}, mixed until {} and {}\n", ours->applied, theirs->applied,
                       ours->mixed_until, theirs->mixed_until);
  }
  const Result<uint64_t> one = (*a)->Digest(group);
  const Result<uint64_t> other = (*b)->Digest(group);
  if (!one.ok() || !other.ok()) return "no digest\n";
  std::string problems = *one == *other ? "" : "the digests differ\n";
  return problems + a->model().VerifyBlocks(a->engine(), group) +
         b->model().VerifyBlocks(b->engine(), group);
}

}  // namespace hydra::test
