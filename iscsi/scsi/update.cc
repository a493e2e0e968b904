// SPDX-License-Identifier: Apache-2.0
//
// COMPARE AND WRITE and ORWRITE: atomic changes that depend on what is there.
#include <algorithm>
#include <vector>

#include "iscsi/pdu.h"
#include "iscsi/scsi/handlers.h"
#include "iscsi/scsi/unit.h"

namespace hydra::iscsi {
namespace {

constexpr int kOrAttempts = 1000;

Await<Result<bool>> CompareAndWriteDisk(Command& command, uint64_t offset,
                                        std::span<const uint8_t> expected,
                                        std::span<const uint8_t> desired) {
  DiskIo* disk = command.disk();
  return Await<Result<bool>>([disk, offset, expected, desired](auto done) {
    disk->CompareAndWrite(offset, expected, desired, std::move(done));
  });
}

// One piece that the disk can change atomically: read, or, and write if nobody was faster.
Task<hydra::Status> OrPiece(Command& command, uint64_t offset, std::span<const uint8_t> bits) {
  std::vector<uint8_t> old(bits.size());
  std::vector<uint8_t> desired(bits.size());
  for (int attempt = 0; attempt < kOrAttempts; ++attempt) {
    const hydra::Status read = co_await ReadDisk(command, offset, old);
    if (!read.ok()) co_return read;
    std::transform(old.begin(), old.end(), bits.begin(), desired.begin(),
                   [](uint8_t a, uint8_t b) { return static_cast<uint8_t>(a | b); });
    if (desired == old) co_return hydra::Status::Ok();
    Result<bool> done = co_await CompareAndWriteDisk(command, offset, old, desired);
    if (!done.ok()) co_return done.status();
    if (*done) co_return hydra::Status::Ok();
  }
  co_return hydra::Status::Busy("others keep changing the same blocks");
}

}  // namespace

Task<Response> CompareAndWrite(Command& command) {
  const BlockRange range = {Get64(&command.cdb[2]), command.cdb[13]};
  const uint32_t block = command.unit->block();
  if (range.count > LogicalUnit::kMaxCompareBlocks) co_return Response::BadCdb(13);
  if (auto refused = CheckRange(command, range)) co_return *refused;
  const uint64_t bytes = range.bytes(block);
  // Half of an instance of each would be guessed wrong one way or the other.
  if (command.expected_out != 2 * bytes || command.out.size() != 2 * bytes) {
    co_return Response::BadCdb(13).Moves(2 * bytes);
  }
  if (range.count == 0) co_return Response::Good();
  const uint64_t first = range.offset(block);
  const uint64_t unit = command.unit->disk()->atomic_bytes();
  if (first / unit != (first + bytes - 1) / unit) co_return Response::BadCdb(13);
  const auto expected = command.out.first(static_cast<size_t>(bytes));
  const auto desired = command.out.subspan(static_cast<size_t>(bytes));
  Result<bool> written = co_await CompareAndWriteDisk(command, first, expected, desired);
  if (written.status().code() == Code::kCorruption) {
    auto lost = co_await CompareRange(command, range, {});
    if (lost) co_return *lost;
  }
  if (!written.ok()) co_return DiskFailure(written.status(), range.lba);
  if (*written) co_return Response::Good().Moves(2 * bytes);
  // Where it differs, if it still does.
  auto different = co_await CompareRange(command, range, expected);
  Response response = Response::Check(SenseKey::kMiscompare, Asc::kMiscompare);
  response.sense.information = different && different->sense.key == SenseKey::kMiscompare
                                   ? *different->sense.information
                                   : 0;
  co_return response;
}

Task<Response> OrWrite(Command& command) {
  const BlockRange range = RangeOf(command);
  if (auto refused = CheckTransfer(command, range)) co_return *refused;
  const uint32_t block = command.unit->block();
  const uint64_t unit = command.unit->disk()->atomic_bytes();
  const uint64_t first = range.offset(block);
  const uint64_t have = std::min<uint64_t>(range.bytes(block), command.out.size() / block * block);
  for (uint64_t at = 0; at < have;) {
    const uint64_t length = std::min(have - at, unit - (first + at) % unit);
    const hydra::Status done =
        co_await OrPiece(command, first + at,
                         command.out.subspan(static_cast<size_t>(at), static_cast<size_t>(length)));
    const BlockRange piece = {range.lba + at / block, length / block};
    if (done.code() == Code::kCorruption) {
      auto lost = co_await CompareRange(command, piece, {});
      if (lost) co_return *lost;
    }
    if (!done.ok()) co_return DiskFailure(done, piece.lba);
    at += length;
  }
  co_return Response::Good().Moves(range.bytes(block));
}

}  // namespace hydra::iscsi
