// SPDX-License-Identifier: Apache-2.0
//
// READ, WRITE, WRITE ATOMIC, WRITE AND VERIFY, VERIFY, PRE-FETCH, SYNCHRONIZE CACHE.
#include <algorithm>
#include <array>

#include "iscsi/pdu.h"
#include "iscsi/scsi/handlers.h"
#include "iscsi/scsi/unit.h"

namespace hydra::iscsi {
namespace {

// Writes as many whole blocks as arrived: an initiator that sends less than its CDB says finds out
// from the residual count.
Task<Response> WriteRange(Command& command, BlockRange range) {
  const uint32_t block = command.unit->block();
  const uint64_t bytes = range.bytes(block);
  const size_t have =
      static_cast<size_t>(std::min<uint64_t>(bytes, command.out.size() / block * block));
  if (have > 0) {
    const hydra::Status written =
        co_await WriteDisk(command, range.offset(block), command.out.first(have));
    if (written.code() == Code::kCorruption) {
      // Only of the physical blocks at its two ends something is read.
      const uint64_t end = range.lba + have / block;
      const uint64_t last =
          (end - 1) / command.unit->blocks_per_physical() * command.unit->blocks_per_physical();
      const std::array<uint64_t, 2> ends = {range.lba, std::max(range.lba, last)};
      for (const uint64_t lba : ends) {
        auto lost = co_await CompareRange(command, {lba, 1}, {});
        if (lost) co_return *lost;
      }
    }
    if (!written.ok()) co_return DiskFailure(written, range.lba);
  }
  co_return Response::Good().Moves(bytes);
}

uint8_t ByteCheck(const Command& command) { return command.cdb[1] >> 1 & 3; }

}  // namespace

Task<Response> Read(Command& command) {
  const BlockRange range = RangeOf(command);
  if (auto refused = CheckTransfer(command, range)) co_return *refused;
  const uint32_t block = command.unit->block();
  if (range.count == 0) co_return Response::Good();
  Response response;
  Result<CountedBuffer> buffer = Memory(command, range.bytes(block));
  if (!buffer.ok()) co_return DiskFailure(buffer.status(), range.lba);
  response.buffer = *buffer;
  response.buffer_bytes = static_cast<size_t>(range.bytes(block));
  const hydra::Status read = co_await ReadDisk(command, range.offset(block),
                                               response.buffer.span().first(response.buffer_bytes));
  if (read.code() == Code::kCorruption) {
    // What is before the first block that is lost is sent, and the residual count says how much.
    uint64_t good = 0;
    Response failure = co_await FindCorruption(
        command, range, response.buffer.span().first(response.buffer_bytes), &good);
    if (good > 0) failure.buffer = response.buffer;
    failure.buffer_bytes = static_cast<size_t>(good);
    co_return failure.Moves(good);
  }
  if (!read.ok()) co_return DiskFailure(read, range.lba);
  co_return response;
}

Task<Response> Write(Command& command) {
  const BlockRange range = RangeOf(command);
  if (auto refused = CheckTransfer(command, range)) co_return *refused;
  co_return co_await WriteRange(command, range);
}

// Of whole physical blocks, as the block limits page says, and within what the disk writes whole or
// not at all. The page has no word for that edge, except in a form that initiators do not use; of
// what is aligned to its own size, a power of two, nothing crosses it.
Task<Response> WriteAtomic(Command& command) {
  const BlockRange range = {Get64(&command.cdb[2]), Get16(&command.cdb[12])};
  if (auto refused = CheckTransfer(command, range)) co_return *refused;
  const uint32_t block = command.unit->block();
  if (Get16(&command.cdb[10]) != 0) co_return Response::BadCdb(10);
  const uint32_t physical = command.unit->blocks_per_physical();
  if (range.lba % physical != 0) co_return Response::BadCdb(2);
  if (range.count > LogicalUnit::kMaxAtomicBlocks || range.count % physical != 0) {
    co_return Response::BadCdb(12);
  }
  const uint64_t unit = command.unit->disk()->atomic_bytes();
  if (range.offset(block) % unit + range.bytes(block) > unit) co_return Response::BadCdb(12);
  if (command.out.size() < range.bytes(block)) {
    co_return Response::Check(SenseKey::kIllegalRequest, Asc::kInvalidFieldInInformationUnit)
        .Moves(range.bytes(block));
  }
  co_return co_await WriteRange(command, range);
}

Task<Response> WriteAndVerify(Command& command) {
  if (ByteCheck(command) > 1) co_return Response::BadCdb(1, 2);
  const BlockRange range = RangeOf(command);
  if (auto refused = CheckTransfer(command, range)) co_return *refused;
  Response written = co_await WriteRange(command, range);
  if (!written.good()) co_return written;
  const uint32_t block = command.unit->block();
  const uint64_t blocks = std::min<uint64_t>(range.count, command.out.size() / block);
  const std::span<const uint8_t> data = ByteCheck(command) == 1
                                            ? command.out.first(static_cast<size_t>(blocks * block))
                                            : std::span<const uint8_t>();
  if (blocks > 0) {
    auto wrong = co_await CompareRange(command, {range.lba, blocks}, data);
    if (wrong) co_return *wrong;
  }
  co_return written;
}

Task<Response> Verify(Command& command) {
  const BlockRange range = RangeOf(command);
  const uint8_t check = ByteCheck(command);
  if (check == 2) co_return Response::BadCdb(1, 2);
  if (auto refused = check == 1 ? CheckTransfer(command, range) : CheckRange(command, range)) {
    co_return *refused;
  }
  const uint32_t block = command.unit->block();
  // 0: whether it can be read; 1: against as many blocks; 3: each against one block.
  const uint64_t expected = check == 0 ? 0 : check == 3 ? block : range.bytes(block);
  if (range.count == 0) co_return Response::Good();
  if (command.out.size() < expected) {
    co_return Response::Check(SenseKey::kIllegalRequest, Asc::kInvalidFieldInInformationUnit)
        .Moves(expected);
  }
  auto wrong =
      co_await CompareRange(command, range, command.out.first(static_cast<size_t>(expected)));
  if (wrong) co_return *wrong;
  co_return Response::Good().Moves(expected);
}

// There is no cache to fetch into: GOOD says that not all of it fitted.
Task<Response> PreFetch(Command& command) {
  if (auto refused = CheckRange(command, RangeOf(command))) co_return *refused;
  co_return Response::Good();
}

// A write that was answered is durable. What is still under way need not be.
Task<Response> SynchronizeCache(Command& command) {
  const BlockRange range = RangeOf(command);
  if (auto refused = CheckRange(command, range)) co_return *refused;
  Disk* disk = command.unit->disk();
  const hydra::Status flushed =
      co_await Await<hydra::Status>([disk](auto done) { disk->Flush(std::move(done)); });
  if (!flushed.ok()) co_return DiskFailure(flushed, range.lba);
  co_return Response::Good();
}

}  // namespace hydra::iscsi
