// SPDX-License-Identifier: Apache-2.0
//
// WRITE SAME and UNMAP.
#include <algorithm>
#include <cstring>
#include <vector>

#include "iscsi/pdu.h"
#include "iscsi/scsi/handlers.h"
#include "iscsi/scsi/unit.h"

namespace hydra::iscsi {
namespace {

constexpr uint64_t kExpandStep = 1 << 20;
constexpr uint8_t kUnmapBit = 0x08;
constexpr uint8_t kNoDataBit = 0x01;  // NDOB

bool IsZero(std::span<const uint8_t> data) {
  return std::all_of(data.begin(), data.end(), [](uint8_t byte) { return byte == 0; });
}

Await<hydra::Status> UnmapDisk(Command& command, uint64_t offset, uint64_t length) {
  DiskIo* disk = command.disk();
  return Await<hydra::Status>(
      [disk, offset, length](auto done) { disk->Unmap(offset, length, std::move(done)); });
}

Await<hydra::Status> ZeroDisk(Command& command, uint64_t offset, uint64_t length) {
  DiskIo* disk = command.disk();
  return Await<hydra::Status>(
      [disk, offset, length](auto done) { disk->WriteZeroes(offset, length, std::move(done)); });
}

Task<hydra::Status> Repeat(Command& command, uint64_t offset, uint64_t length,
                           std::span<const uint8_t> block) {
  Result<CountedBuffer> buffer = Memory(command, std::min(length, kExpandStep));
  if (!buffer.ok()) co_return buffer.status();
  // Whole steps end where the disk's own pieces do.
  const size_t step = static_cast<size_t>(std::min(length, kExpandStep));
  for (size_t at = 0; at < step; at += block.size()) {
    std::memcpy(buffer->data() + at, block.data(), block.size());
  }
  for (uint64_t at = 0; at < length;) {
    const uint64_t now = std::min(length - at, kExpandStep - (offset + at) % kExpandStep);
    const hydra::Status written = co_await WriteDisk(
        command, offset + at, buffer->span().first(std::min(step, static_cast<size_t>(now))));
    if (!written.ok()) co_return written;
    at += std::min<uint64_t>(step, now);
  }
  co_return hydra::Status::Ok();
}

// Ranges that touch or overlap become one: initiators name runs of blocks one by one, and each
// range costs the disk a change.
std::vector<BlockRange> Merge(std::vector<BlockRange> ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const BlockRange& a, const BlockRange& b) { return a.lba < b.lba; });
  std::vector<BlockRange> merged;
  for (const BlockRange& range : ranges) {
    if (merged.empty() || range.lba > merged.back().lba + merged.back().count) {
      merged.push_back(range);
      continue;
    }
    BlockRange& last = merged.back();
    last.count = std::max(last.count, range.lba + range.count - last.lba);
  }
  return merged;
}

}  // namespace

// Zero blocks means: to the end. Whoever says so with UNMAP gives everything from there on back,
// whatever the block that comes with it holds; otherwise a block that is not zero is written, UNMAP
// or not.
Task<Response> WriteSame(Command& command) {
  BlockRange range = RangeOf(command);
  const uint32_t block = command.unit->block();
  const bool unmap = (command.cdb[1] & kUnmapBit) != 0;
  const bool no_data = command.opcode() == 0x93 && (command.cdb[1] & kNoDataBit) != 0;
  const bool to_end = range.count == 0;
  const uint16_t count_at = command.opcode() == 0x93 ? 10 : 7;
  if (auto refused = CheckRange(command, range)) co_return *refused;
  if (to_end) range.count = command.unit->blocks() - range.lba;
  if (range.count > LogicalUnit::kMaxSameBlocks) co_return Response::BadCdb(count_at);
  const uint64_t expected = no_data ? 0 : block;
  if (command.expected_out != expected || command.out.size() != expected) {
    co_return Response::BadCdb(count_at).Moves(expected);
  }
  const uint64_t offset = range.offset(block);
  const uint64_t bytes = range.bytes(block);
  const bool zero = no_data || IsZero(command.out) || (to_end && unmap);
  hydra::Status done;
  if (zero && unmap) {
    done = co_await UnmapDisk(command, offset, bytes);
  } else if (zero) {
    done = co_await ZeroDisk(command, offset, bytes);
  } else {
    done = co_await Repeat(command, offset, bytes, command.out);
  }
  if (!done.ok()) co_return DiskFailure(done, range.lba);
  co_return Response::Good().Moves(expected);
}

// Parameter list (SBC-3, 5.28): 8 bytes of header, then 16 per range: LBA, number of blocks,
// reserved.
Task<Response> Unmap(Command& command) {
  const uint16_t length = Get16(&command.cdb[7]);
  if (length == 0) co_return Response::Good();
  if (length < 8 || command.out.size() < length) co_return Response::ParameterLength();
  const std::span<const uint8_t> list = command.out.first(length);
  const size_t described = Get16(&list[2]);
  const size_t ranges = std::min<size_t>(described, length - 8u) / 16;
  if (ranges > LogicalUnit::kMaxUnmapRanges) co_return Response::BadParameter(2);
  const uint32_t block = command.unit->block();
  const uint64_t blocks = command.unit->blocks();
  // All are checked before any is carried out.
  uint64_t total = 0;
  std::vector<BlockRange> wanted;
  for (size_t i = 0; i < ranges; ++i) {
    const BlockRange range = {Get64(&list[8 + 16 * i]), Get32(&list[16 + 16 * i])};
    if (range.lba > blocks || range.count > blocks - range.lba) {
      Response response = Response::Check(SenseKey::kIllegalRequest, Asc::kLbaOutOfRange);
      response.sense.information = range.lba;
      co_return response;
    }
    total += range.count;
    if (range.count > 0) wanted.push_back(range);
  }
  if (total > LogicalUnit::kMaxUnmapBlocks) co_return Response::BadParameter(8);
  const std::vector<BlockRange> merged = Merge(std::move(wanted));
  const uint32_t physical = command.unit->disk()->block_bytes();
  uint64_t changed = 0;  // blocks of the disk before this one
  for (const BlockRange& range : merged) {
    // What this command itself has changed of a block is no reason to come too late for the rest.
    if (range.offset(block) / physical < changed) {
      if (auto refused = co_await Renew(command, false)) co_return *refused;
    }
    changed = (range.offset(block) + range.bytes(block) + physical - 1) / physical;
    const hydra::Status done = co_await UnmapDisk(command, range.offset(block), range.bytes(block));
    if (!done.ok()) co_return DiskFailure(done, range.lba);
  }
  co_return Response::Good().Moves(length);
}

}  // namespace hydra::iscsi
