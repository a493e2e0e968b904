// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "iscsi/pdu.h"
#include "iscsi/scsi/handlers.h"
#include "iscsi/scsi/unit.h"

namespace hydra::iscsi {
namespace {

constexpr uint64_t kCompareStep = 1 << 20;

// Where the first difference is.
size_t Mismatch(std::span<const uint8_t> a, std::span<const uint8_t> b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin()).first - a.begin());
}

}  // namespace

BlockRange RangeOf(const Command& command) {
  const uint8_t* cdb = command.cdb.data();
  switch (cdb[0] >> 5) {
    case 0: return {Get24(cdb + 1) & 0x1fffff, cdb[4] == 0 ? 256u : cdb[4]};
    case 1:
    case 2: return {Get32(cdb + 2), Get16(cdb + 7)};
    case 5: return {Get32(cdb + 2), Get32(cdb + 6)};
    default: return {Get64(cdb + 2), Get32(cdb + 10)};
  }
}

std::optional<Response> CheckRange(const Command& command, const BlockRange& range) {
  const uint64_t blocks = command.unit->blocks();
  if (range.lba < blocks && range.count <= blocks - range.lba) return std::nullopt;
  Response response = Response::Check(SenseKey::kIllegalRequest, Asc::kLbaOutOfRange);
  response.sense.information = range.lba;
  return response;
}

std::optional<Response> CheckTransfer(const Command& command, const BlockRange& range) {
  if (auto refused = CheckRange(command, range)) return refused;
  if (range.bytes(command.unit->block()) <= LogicalUnit::kMaxTransferBytes) return std::nullopt;
  const uint8_t group = command.opcode() >> 5;
  return Response::BadCdb(group == 5 ? 6 : group == 4 ? 10 : 7);
}

Response DiskFailure(const hydra::Status& status, uint64_t lba) {
  switch (status.code()) {
    case Code::kNoSpace:
      return Response::Check(SenseKey::kDataProtect, Asc::kSpaceAllocationFailed);
    case Code::kBusy: return Response::Status(ScsiStatus::kTaskSetFull);
    case Code::kUnavailable: return Response::Check(SenseKey::kNotReady, Asc::kBecomingReady);
    case Code::kStale:
    case Code::kFenced: {
      Response response = Response::Check(SenseKey::kAbortedCommand, Asc::kCommunicationFailure);
      response.overtaken = true;
      response.fenced = status.code() == Code::kFenced;
      return response;
    }
    case Code::kAborted: {
      Response response = Response::Check(SenseKey::kAbortedCommand, Asc::kCommunicationFailure);
      response.unknown = true;
      return response;
    }
    case Code::kNotFound:
      return Response::Check(SenseKey::kIllegalRequest, Asc::kLogicalUnitNotSupported);
    case Code::kOutOfRange: return Response::Check(SenseKey::kIllegalRequest, Asc::kLbaOutOfRange);
    case Code::kCorruption: {
      Response response = Response::Check(SenseKey::kMediumError, Asc::kUnrecoveredReadError);
      response.sense.information = lba;
      return response;
    }
    default: return Response::Check(SenseKey::kHardwareError, Asc::kInternalFailure);
  }
}

DiskIo* Command::disk() const { return arrived ? arrived.get() : unit->disk(); }

Await<hydra::Status> ReadDisk(Command& command, uint64_t offset, std::span<uint8_t> data) {
  DiskIo* disk = command.disk();
  return Await<hydra::Status>(
      [disk, offset, data](auto done) { disk->Read(offset, data, std::move(done)); });
}

Await<hydra::Status> WriteDisk(Command& command, uint64_t offset, std::span<const uint8_t> data) {
  DiskIo* disk = command.disk();
  return Await<hydra::Status>(
      [disk, offset, data](auto done) { disk->Write(offset, data, std::move(done)); });
}

Result<CountedBuffer> Memory(Command& command, uint64_t bytes) {
  if (command.share != nullptr) return command.share->Get(bytes);
  if (command.memory == nullptr) return CountedBuffer(Buffer::Allocate(bytes));
  HYDRA_ASSIGN_OR_RETURN(Buffer buffer, command.memory->Get(bytes));
  return CountedBuffer(std::move(buffer));
}

Task<Response> FindCorruption(Command& command, BlockRange range, std::span<uint8_t> data,
                              uint64_t* good) {
  const uint32_t block = command.unit->block();
  const uint64_t physical = command.unit->disk()->block_bytes();
  const uint64_t first = range.offset(block);
  uint64_t begin = first;  // what is before it can be read
  uint64_t end = first + data.size();
  while (begin / physical != (end - 1) / physical) {
    if (command.aborted && command.aborted()) co_return Response::Status(ScsiStatus::kTaskAborted);
    const uint64_t blocks = (end - 1) / physical - begin / physical + 1;
    const uint64_t middle = (begin / physical + blocks / 2) * physical;
    const hydra::Status read = co_await ReadDisk(
        command, begin,
        data.subspan(static_cast<size_t>(begin - first), static_cast<size_t>(middle - begin)));
    if (!read.ok() && read.code() != Code::kCorruption) co_return DiskFailure(read, begin / block);
    (read.ok() ? begin : end) = middle;
  }
  // It may have been mended or written meanwhile: then nothing is lost, and the command is
  // repeated.
  const hydra::Status last = co_await ReadDisk(
      command, begin,
      data.subspan(static_cast<size_t>(begin - first), static_cast<size_t>(end - begin)));
  if (last.ok()) co_return DiskFailure(hydra::Status::Busy("it was mended"), begin / block);
  if (last.code() == Code::kCorruption) *good = begin - first;
  co_return DiskFailure(last, begin / block);
}

Task<std::optional<Response>> CompareRange(Command& command, BlockRange range,
                                           std::span<const uint8_t> expected) {
  const uint32_t block = command.unit->block();
  const uint64_t bytes = range.bytes(block);
  Result<CountedBuffer> buffer = Memory(command, std::min(bytes, kCompareStep));
  if (!buffer.ok()) co_return DiskFailure(buffer.status(), range.lba);
  for (uint64_t at = 0; at < bytes; at += kCompareStep) {
    // It may be all of the disk, and whoever aborts it waits for its end.
    if (command.aborted && command.aborted()) co_return Response::Status(ScsiStatus::kTaskAborted);
    const std::span<uint8_t> data =
        buffer->span().first(static_cast<size_t>(std::min(bytes - at, kCompareStep)));
    const hydra::Status read = co_await ReadDisk(command, range.offset(block) + at, data);
    const BlockRange step = {range.lba + at / block, data.size() / block};
    if (read.code() == Code::kCorruption) {
      uint64_t good = 0;
      co_return co_await FindCorruption(command, step, data, &good);
    }
    if (!read.ok()) co_return DiskFailure(read, step.lba);
    if (expected.empty()) continue;
    for (size_t done = 0; done < data.size();) {
      const size_t start = static_cast<size_t>((at + done) % expected.size());
      const size_t length = std::min(data.size() - done, expected.size() - start);
      const std::span<const uint8_t> want = expected.subspan(start, length);
      if (std::memcmp(data.data() + done, want.data(), length) != 0) {
        Response response = Response::Check(SenseKey::kMiscompare, Asc::kMiscompare);
        response.sense.information = at + done + Mismatch(want, data.subspan(done, length));
        co_return response;
      }
      done += length;
    }
  }
  co_return std::nullopt;
}

}  // namespace hydra::iscsi
