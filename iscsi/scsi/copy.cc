// SPDX-License-Identifier: Apache-2.0
//
// EXTENDED COPY (LID1) and RECEIVE COPY RESULTS: block to block, within one logical unit, as reads
// and writes inside the cluster.
#include <algorithm>
#include <bit>
#include <cstring>

#include "iscsi/pdu.h"
#include "iscsi/scsi/handlers.h"
#include "iscsi/scsi/unit.h"

namespace hydra::iscsi {
namespace {

constexpr size_t kListHeadBytes = 16;
constexpr size_t kTargetBytes = 32;
constexpr size_t kSegmentBytes = 28;
constexpr size_t kMaxTargets = 2;
constexpr size_t kMaxSegments = 64;
constexpr size_t kMaxListBytes = kMaxTargets * kTargetBytes + kMaxSegments * kSegmentBytes;
constexpr uint8_t kIdentification = 0xe4;
constexpr uint8_t kBlockToBlock = 0x02;
constexpr uint64_t kStepBytes = 1 << 20;
constexpr size_t kMaxResults = 64;

struct Segment {
  uint16_t source = 0;
  uint16_t destination = 0;
  uint64_t count = 0;
  uint64_t from = 0;
  uint64_t to = 0;
};

struct CopyList {
  uint8_t id = 0;
  bool keep = false;       // the result, for RECEIVE COPY RESULTS
  std::vector<bool> here;  // targets: is it this unit
  std::vector<Segment> segments;
};

// Whether the designator is one of this unit's (vital product data page 83h).
bool NamesUnit(Command& command, std::span<const uint8_t> designator) {
  Command inquiry = command;
  inquiry.cdb = {0x12, 0x01, 0x83, 0x0f, 0xff};
  inquiry.lun = 0;
  const std::vector<uint8_t> page = Inquiry(inquiry).in;
  for (size_t at = 4; at + 4 <= page.size(); at += 4u + page[at + 3]) {
    const size_t length = page[at + 3];
    if ((page[at + 1] & 0x30) != 0) continue;  // of the port or the device
    if ((page[at + 1] & 0x0f) != (designator[1] & 0x0f) || designator[3] > 20) continue;
    if (length == designator[3] && std::memcmp(&page[at + 4], &designator[4], length) == 0) {
      return true;
    }
  }
  return false;
}

std::optional<Response> ParseTargets(Command& command, std::span<const uint8_t> bytes,
                                     CopyList* list) {
  if (bytes.size() % kTargetBytes != 0) return Response::ParameterLength();
  if (bytes.size() / kTargetBytes > kMaxTargets) {
    return Response::Check(SenseKey::kIllegalRequest, Asc::kTooManyTargetDescriptors);
  }
  for (size_t at = 0; at < bytes.size(); at += kTargetBytes) {
    if (bytes[at] != kIdentification) {
      return Response::Check(SenseKey::kIllegalRequest, Asc::kUnsupportedTargetDescriptor);
    }
    list->here.push_back(NamesUnit(command, bytes.subspan(at + 4, kTargetBytes - 8)));
  }
  return std::nullopt;
}

std::optional<Response> ParseSegments(std::span<const uint8_t> bytes, CopyList* list) {
  for (size_t at = 0; at < bytes.size();) {
    if (bytes.size() - at < 4) return Response::ParameterLength();
    if (bytes[at] != kBlockToBlock) {
      return Response::Check(SenseKey::kIllegalRequest, Asc::kUnsupportedSegmentDescriptor);
    }
    if (bytes.size() - at < kSegmentBytes) return Response::ParameterLength();
    if (list->segments.size() == kMaxSegments) {
      return Response::Check(SenseKey::kIllegalRequest, Asc::kTooManySegmentDescriptors);
    }
    const uint8_t* p = &bytes[at];
    list->segments.push_back(
        {Get16(p + 4), Get16(p + 6), Get16(p + 10), Get64(p + 12), Get64(p + 20)});
    at += kSegmentBytes;
  }
  return std::nullopt;
}

std::optional<Response> Parse(Command& command, CopyList* list) {
  const uint32_t length = Get32(&command.cdb[10]);
  if (length < kListHeadBytes || command.out.size() < length) return Response::ParameterLength();
  const std::span<const uint8_t> bytes = command.out.first(length);
  list->id = bytes[0];
  list->keep = (bytes[1] & 0x18) != 0x18;
  const size_t targets = Get16(&bytes[2]);
  const size_t segments = Get32(&bytes[8]);
  const size_t inline_bytes = Get32(&bytes[12]);
  const size_t room = length - kListHeadBytes;
  if (targets > room || segments > room - targets || inline_bytes > room - targets - segments ||
      targets + segments > kMaxListBytes) {
    return Response::ParameterLength();
  }
  if (auto refused = ParseTargets(command, bytes.subspan(kListHeadBytes, targets), list)) {
    return refused;
  }
  return ParseSegments(bytes.subspan(kListHeadBytes + targets, segments), list);
}

// Nothing if it can be done.
std::optional<Response> CheckSegment(Command& command, const CopyList& list, const Segment& s) {
  if (s.source >= list.here.size() || s.destination >= list.here.size()) {
    return Response::Check(SenseKey::kCopyAborted, Asc::kUnreachableCopyTarget);
  }
  if (!list.here[s.source] || !list.here[s.destination]) {
    return Response::Check(SenseKey::kCopyAborted, Asc::kCopyTargetNotReachable);
  }
  const uint64_t blocks = command.unit->blocks();
  const auto fits = [&](uint64_t lba) { return lba <= blocks && s.count <= blocks - lba; };
  if (!fits(s.from) || !fits(s.to)) return Response::Check(SenseKey::kCopyAborted, Asc::kNone);
  return std::nullopt;
}

// In steps, from the end that is not overwritten before it is read. Nothing, or why it stopped.
Task<std::optional<Response>> CopySegment(Command& command, Segment segment) {
  const uint32_t block = command.unit->block();
  const uint64_t bytes = segment.count * block;
  if (bytes == 0 || segment.from == segment.to) co_return std::nullopt;
  Result<CountedBuffer> buffer = Memory(command, std::min(bytes, kStepBytes));
  if (!buffer.ok()) co_return DiskFailure(buffer.status(), segment.to);
  const bool backwards = segment.from < segment.to;
  for (uint64_t done = 0; done < bytes;) {
    const uint64_t now = std::min(bytes - done, kStepBytes);
    const uint64_t at = backwards ? bytes - done - now : done;
    const std::span<uint8_t> data = buffer->span().first(static_cast<size_t>(now));
    // Steps and segments may share blocks; they arrive one after the other. Between them nothing is
    // under way: who stops here knows what was done.
    if (auto refused = co_await Renew(command, false)) co_return *refused;
    const hydra::Status read = co_await ReadDisk(command, segment.from * block + at, data);
    if (!read.ok()) co_return DiskFailure(read, segment.from);
    const hydra::Status written = co_await WriteDisk(command, segment.to * block + at, data);
    if (!written.ok()) co_return DiskFailure(written, segment.to);
    done += now;
  }
  co_return std::nullopt;
}

}  // namespace

Task<Response> ExtendedCopy(Command& command) {
  if (Get32(&command.cdb[10]) == 0) co_return Response::Good();
  CopyList list;
  if (auto refused = Parse(command, &list)) co_return *refused;
  Response response;
  uint32_t copied = 0;
  for (const Segment& segment : list.segments) {
    if (auto refused = CheckSegment(command, list, segment)) {
      response = *refused;
      break;
    }
    if (auto stopped = co_await CopySegment(command, segment)) {
      // Not to be repeated: what it was to read may be overwritten by now, by itself.
      response = *stopped;
      response.overtaken = false;
      break;
    }
    ++copied;
  }
  if (list.keep) {
    auto& kept = command.unit->copies;
    if (kept.size() == kMaxResults) kept.pop_front();
    kept.push_back({command.nexus->id(), list.id, copied, !response.good()});
  }
  if (response.good()) response.Moves(Get32(&command.cdb[10]));
  co_return response;
}

Response CopyStatus(Command& command) {
  auto& kept = command.unit->copies;
  const std::string nexus = command.nexus->id();
  const auto found = std::find_if(kept.begin(), kept.end(), [&](const auto& result) {
    return result.nexus == nexus && result.list == command.cdb[2];
  });
  if (found == kept.end()) return Response::BadCdb(2);
  std::vector<uint8_t> data(12);
  Put32(&data[0], 8);
  data[4] = found->failed ? 0x02 : 0x01;
  Put16(&data[5], static_cast<uint16_t>(found->segments));
  kept.erase(found);
  return Response::Data(std::move(data), Get32(&command.cdb[10]));
}

Response CopyParameters(Command& command) {
  std::vector<uint8_t> data(46);
  Put32(&data[0], static_cast<uint32_t>(data.size() - 4));
  Put16(&data[8], kMaxTargets);
  Put16(&data[10], kMaxSegments);
  Put32(&data[12], kMaxListBytes);
  Put32(&data[16], 0xffff * command.unit->block());
  Put16(&data[34], 1);  // copies at a time
  data[36] = 1;
  // Granularity of segments: a block, as a power of two.
  data[37] = static_cast<uint8_t>(std::countr_zero(command.unit->block()));
  data[43] = 2;
  data[44] = kBlockToBlock;
  data[45] = kIdentification;
  return Response::Data(std::move(data), Get32(&command.cdb[10]));
}

}  // namespace hydra::iscsi
