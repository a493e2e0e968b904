// SPDX-License-Identifier: Apache-2.0
//
// READ CAPACITY and GET LBA STATUS.
#include <algorithm>
#include <bit>

#include "iscsi/pdu.h"
#include "iscsi/scsi/handlers.h"
#include "iscsi/scsi/unit.h"

namespace hydra::iscsi {
namespace {

constexpr size_t kDescriptorBytes = 16;
constexpr size_t kMaxDescriptors = 4096;

size_t Count(const std::vector<uint8_t>& data) { return (data.size() - 8) / kDescriptorBytes; }

// Neighbours of the same kind made one.
std::vector<MappedRange> Join(const std::vector<MappedRange>& ranges) {
  std::vector<MappedRange> joined;
  for (const MappedRange& range : ranges) {
    if (!joined.empty() && joined.back().mapped == range.mapped) {
      joined.back().length += range.length;
    } else {
      joined.push_back(range);
    }
  }
  return joined;
}

}  // namespace

Response ReadCapacity10(Command& command) {
  const bool partial = (command.cdb[8] & 1) != 0;  // PMI, obsolete
  if (!partial && Get32(&command.cdb[2]) != 0) return Response::BadCdb(2);
  const uint64_t last = command.unit->blocks() - 1;
  std::vector<uint8_t> data(8);
  Put32(&data[0], static_cast<uint32_t>(std::min<uint64_t>(last, UINT32_MAX)));
  Put32(&data[4], command.unit->block());
  return Response::Data(std::move(data), 8);
}

Response ReadCapacity16(Command& command) {
  std::vector<uint8_t> data(32);
  Put64(&data[0], command.unit->blocks() - 1);
  Put32(&data[8], command.unit->block());
  // Logical blocks per physical block, as a power of two.
  data[13] = static_cast<uint8_t>(std::countr_zero(command.unit->blocks_per_physical()));
  data[14] = 0xc0;  // LBPME, LBPRZ: thin, and what is not there reads as zeroes
  return Response::Data(std::move(data), Get32(&command.cdb[10]));
}

Task<Response> GetLbaStatus(Command& command) {
  const uint64_t blocks = command.unit->blocks();
  const uint32_t block = command.unit->block();
  uint64_t lba = Get64(&command.cdb[2]);
  const uint32_t allocation = Get32(&command.cdb[10]);
  if (auto refused = CheckRange(command, {lba, 0})) co_return *refused;
  // What is mapped are whole physical blocks: of one that the range begins within nothing is said,
  // unless there is no other.
  const uint64_t group = command.unit->blocks_per_physical();
  const uint64_t next = (lba + group - 1) / group * group;
  if (next < blocks) lba = next;

  Disk* disk = command.unit->disk();
  const uint64_t offset = lba * block;
  const uint64_t length = (blocks - lba) * block;
  Result<std::vector<MappedRange>> map = co_await Await<Result<std::vector<MappedRange>>>(
      [disk, offset, length](auto done) { disk->GetMap(offset, length, std::move(done)); });
  if (!map.ok()) co_return DiskFailure(map.status(), lba);

  const size_t room = allocation < 8 + kDescriptorBytes ? 1 : (allocation - 8) / kDescriptorBytes;
  const size_t most = std::min(room, kMaxDescriptors);
  std::vector<uint8_t> data(8);
  const std::vector<MappedRange> ranges = Join(*map);
  for (const MappedRange& range : ranges) {
    for (uint64_t left = range.length / block; left > 0 && Count(data) < most;) {
      const uint64_t now = std::min<uint64_t>(left, UINT32_MAX);
      const size_t at = data.size();
      data.resize(at + kDescriptorBytes);
      Put64(&data[at], lba);
      Put32(&data[at + 8], static_cast<uint32_t>(now));
      data[at + 12] = range.mapped ? 0 : 1;
      lba += now;
      left -= now;
    }
  }
  Put32(&data[0], static_cast<uint32_t>(data.size() - 4));
  co_return Response::Data(std::move(data), allocation);
}

}  // namespace hydra::iscsi
