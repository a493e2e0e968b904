// SPDX-License-Identifier: Apache-2.0
#include "blockstore/record.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "base/check.h"
#include "base/coding.h"
#include "blockstore/batch_format.h"

namespace hydra {
namespace {

constexpr uint8_t kRecordVersion = 1;
constexpr uint8_t kChunkWithBareRows = 2;  // the version of a chunk that has some
constexpr uint8_t kOperationVersion = 1;
constexpr uint8_t kHasContext = 1;
constexpr uint8_t kLastChunk = 1;

// The head is patched in when the body is complete.
std::string Start(RecordType type, size_t room = 64) {
  std::string bytes;
  bytes.reserve(room);  // most records fit in 64; growing would copy them several times
  bytes.assign(kRecordHeadBytes, '\0');
  bytes[0] = static_cast<char>(type);
  bytes[1] = static_cast<char>(kRecordVersion);
  return bytes;
}

std::string Finish(std::string bytes, uint32_t payload_pages) {
  HYDRA_CHECK(payload_pages <= std::numeric_limits<uint16_t>::max());
  auto* head = reinterpret_cast<uint8_t*>(bytes.data());
  EncodeFixed16(head + 2, static_cast<uint16_t>(payload_pages));
  EncodeFixed32(head + 4, static_cast<uint32_t>(bytes.size()));
  return bytes;
}

// At least as many bytes as EncodeOperation writes.
size_t LargestOperation(const Operation& op) {
  constexpr size_t kFixed = 4;    // kind, version, flags, block pages
  constexpr size_t kNumbers = 4;  // of a range or of extents, and of a context's bytes
  return kFixed + kNumbers * kMaxVarint64Bytes + op.crcs.size() * sizeof(uint32_t) +
         op.extents.size() * kMaxVarint64Bytes + op.context.size();
}

// Returns the end.
uint8_t* EncodeOperation(uint8_t* to, const Operation& op) {
  *to++ = static_cast<uint8_t>(op.kind);
  *to++ = op.version;
  *to++ = op.context.empty() ? 0 : kHasContext;
  switch (op.kind) {
    case OpKind::kNoop:
    case OpKind::kOpaque: break;
    case OpKind::kWrite:
      to = EncodeVarint64(to, op.lba);
      to = EncodeVarint64(to, op.count);
      *to++ = static_cast<uint8_t>(op.block_pages);
      HYDRA_CHECK(op.crcs.size() == op.count);
      for (uint32_t crc : op.crcs) {
        EncodeFixed32(to, crc);
        to += sizeof(crc);
      }
      break;
    case OpKind::kZero:
    case OpKind::kUnmap:
      to = EncodeVarint64(to, op.lba);
      to = EncodeVarint64(to, op.count);
      break;
    case OpKind::kZeroExtents: {
      to = EncodeVarint64(to, op.extents.size());
      Extent previous = 0;
      for (Extent extent : op.extents) {
        to = EncodeVarint64(to, extent - previous);
        previous = extent;
      }
      break;
    }
  }
  if (op.context.empty()) return to;
  to = EncodeVarint64(to, op.context.size());
  return std::copy(op.context.begin(), op.context.end(), to);
}

enum class Parse { kOk, kUnknown, kBad };

Parse GetExtents(Decoder* in, Operation* op) {
  uint64_t count = 0;
  if (!in->Varint64(&count) || count == 0 || count > kMaxExtentsPerEntry) return Parse::kBad;
  op->extents.reserve(count);
  Extent extent = 0;
  for (uint64_t i = 0; i < count; ++i) {
    uint64_t step = 0;
    if (!in->Varint64(&step) || (i > 0 && step == 0) || extent + step < extent) return Parse::kBad;
    extent += step;
    op->extents.push_back(extent);
  }
  return Parse::kOk;
}

Parse GetWrite(Decoder* in, Operation* op) {
  uint8_t block_pages = 0;
  if (!in->Varint64(&op->lba) || !in->Varint64(&op->count) || !in->U8(&block_pages)) {
    return Parse::kBad;
  }
  if (block_pages == 0 || block_pages > kMaxBlockPages || op->count == 0 ||
      op->count > kMaxPayloadPages / block_pages) {
    return Parse::kBad;
  }
  op->block_pages = block_pages;
  op->crcs.resize(op->count);
  for (uint32_t& crc : op->crcs) {
    if (!in->Fixed32(&crc)) return Parse::kBad;
  }
  return Parse::kOk;
}

Parse GetOperation(Decoder* in, Operation* op) {
  uint8_t kind = 0;
  uint8_t flags = 0;
  if (!in->U8(&kind) || !in->U8(&op->version) || !in->U8(&flags)) return Parse::kBad;
  if (kind > static_cast<uint8_t>(OpKind::kOpaque) || op->version != kOperationVersion ||
      (flags & ~kHasContext) != 0) {
    return Parse::kUnknown;
  }
  op->kind = static_cast<OpKind>(kind);
  Parse parse = Parse::kOk;
  switch (op->kind) {
    case OpKind::kNoop:
    case OpKind::kOpaque: break;
    case OpKind::kWrite: parse = GetWrite(in, op); break;
    case OpKind::kZero:
    case OpKind::kUnmap:
      if (!in->Varint64(&op->lba) || !in->Varint64(&op->count)) parse = Parse::kBad;
      break;
    case OpKind::kZeroExtents: parse = GetExtents(in, op); break;
  }
  if (parse == Parse::kOk && (flags & kHasContext) && !in->LengthPrefixed(&op->context)) {
    parse = Parse::kBad;
  }
  return parse;
}

Status Malformed(const char* what) {
  return Status::Corruption(fmt::format("malformed {} record", what));
}

uint32_t StatePages(const InstallRecord& record) {
  return static_cast<uint32_t>((record.state_bytes + kPageSize - 1) / kPageSize);
}

// Whether a record is of this type, in the form that this build knows.
Status CheckHead(const RecordView& view, RecordType type, const char* what,
                 uint8_t newest = kRecordVersion) {
  if (view.type != static_cast<uint8_t>(type) || view.version == 0) return Malformed(what);
  if (view.version <= newest) return Status::Ok();
  return Status::Unsupported(
      fmt::format("a record ({}) of version {} was written by a newer Hydra; upgrade this node",
                  what, view.version));
}

}  // namespace

std::string Encode(const AcceptRecord& record) {
  return EncodeAccept(record.group, record.instance, record.ballot, record.stable, record.entry);
}

std::string EncodeAccept(GroupId group, Instance instance, const Ballot& ballot, Instance stable,
                         const Entry& entry) {
  // Every write of a client is encoded here, so its bytes go to memory that is large enough.
  constexpr size_t kNumbers = 6;
  size_t largest = kRecordHeadBytes + kNumbers * kMaxVarint64Bytes;
  for (const Operation& op : entry.operations) largest += LargestOperation(op);
  std::string bytes = Start(RecordType::kAccept, largest);
  bytes.resize(largest);
  auto* const begin = reinterpret_cast<uint8_t*>(bytes.data());
  uint8_t* to = begin + kRecordHeadBytes;
  to = EncodeVarint64(to, group);
  to = EncodeVarint64(to, instance);
  to = EncodeVarint64(to, ballot.round);
  to = EncodeVarint64(to, ballot.node);
  to = EncodeVarint64(to, stable);
  to = EncodeVarint64(to, entry.operations.size());
  for (const Operation& op : entry.operations) to = EncodeOperation(to, op);
  const auto size = static_cast<size_t>(to - begin);
  HYDRA_CHECK(size <= largest);
  bytes.resize(size);
  return Finish(std::move(bytes), entry.PayloadPages());
}

std::string Encode(const HardStateRecord& record) {
  std::string bytes = Start(RecordType::kHardState);
  PutVarint64(&bytes, record.group);
  PutVarint64(&bytes, record.promised.round);
  PutVarint64(&bytes, record.promised.node);
  PutLengthPrefixed(&bytes, record.opaque);
  return Finish(std::move(bytes), 0);
}

std::string Encode(const TruncateRecord& record) {
  std::string bytes = Start(RecordType::kTruncate);
  PutVarint64(&bytes, record.group);
  PutVarint64(&bytes, record.instance);
  return Finish(std::move(bytes), 0);
}

std::string Encode(const CheckpointRecord& record) {
  std::string bytes = Start(RecordType::kCheckpoint);
  PutVarint64(&bytes, record.id);
  PutVarint64(&bytes, record.replay_from);
  return Finish(std::move(bytes), 0);
}

std::string Encode(const RelocateRecord& record) {
  std::string bytes = Start(RecordType::kRelocate);
  PutVarint64(&bytes, record.group);
  PutVarint64(&bytes, record.lba);
  PutVarint64(&bytes, record.version);
  PutVarint64(&bytes, record.old_reference.segment);
  PutVarint64(&bytes, record.old_reference.page);
  PutFixed32(&bytes, record.old_reference.crc);
  PutU8(&bytes, static_cast<uint8_t>(record.block_pages));
  return Finish(std::move(bytes), record.block_pages);
}

std::string Encode(const GroupRecord& record) {
  std::string bytes = Start(RecordType::kGroup);
  PutVarint64(&bytes, record.group);
  PutU8(&bytes, static_cast<uint8_t>(record.action));
  PutU8(&bytes, static_cast<uint8_t>(record.block_pages));
  return Finish(std::move(bytes), 0);
}

std::string Encode(const StableRecord& record) {
  std::string bytes = Start(RecordType::kStable);
  PutVarint64(&bytes, record.groups.size());
  for (const auto& [group, instance] : record.groups) {
    PutVarint64(&bytes, group);
    PutVarint64(&bytes, instance);
  }
  return Finish(std::move(bytes), 0);
}

std::string Encode(const InstallRecord& record) {
  std::string bytes = Start(RecordType::kInstall);
  PutVarint64(&bytes, record.group);
  PutU8(&bytes, static_cast<uint8_t>(record.action));
  switch (record.action) {
    case InstallAction::kBegin:
      PutU8(&bytes, static_cast<uint8_t>(record.mode));
      PutVarint64(&bytes, record.instance);
      PutVarint64(&bytes, record.floor);
      break;
    case InstallAction::kFinish:
      PutVarint64(&bytes, record.instance);
      PutVarint64(&bytes, record.state_bytes);
      PutFixed32(&bytes, record.state_crc);
      break;
    case InstallAction::kAbort: break;
  }
  return Finish(std::move(bytes), StatePages(record));
}

std::string Encode(const ChunkRecord& record) {
  std::string bytes = Start(RecordType::kChunk);
  const auto is_bare = [](const ChunkRow& row) { return row.kind == ChunkRow::Kind::kBare; };
  if (std::ranges::any_of(record.rows, is_bare)) bytes[1] = static_cast<char>(kChunkWithBareRows);
  PutVarint64(&bytes, record.group);
  PutVarint64(&bytes, record.as_of);
  PutVarint64(&bytes, record.newest);
  PutVarint64(&bytes, record.covered);
  PutLengthPrefixed(&bytes, record.cursor);
  PutU8(&bytes, record.last ? kLastChunk : 0);
  PutU8(&bytes, static_cast<uint8_t>(record.block_pages));
  PutVarint64(&bytes, record.rows.size());
  uint32_t pages = 0;
  for (const ChunkRow& row : record.rows) {
    PutU8(&bytes, static_cast<uint8_t>(row.kind));
    PutVarint64(&bytes, row.number);
    if (row.kind == ChunkRow::Kind::kErase) PutVarint64(&bytes, row.count);
    PutVarint64(&bytes, row.version);
    const bool data = row.kind == ChunkRow::Kind::kData;
    if (data || is_bare(row)) PutFixed32(&bytes, row.crc);
    pages += data ? record.block_pages : 0;
  }
  return Finish(std::move(bytes), pages);
}

Result<std::vector<RecordView>> SplitRecords(std::span<const uint8_t> bytes, uint32_t count,
                                             uint32_t payload_pages, uint32_t offset) {
  std::vector<RecordView> records;
  size_t position = 0;
  uint64_t pages = 0;
  for (uint32_t i = 0; i < count; ++i) {
    if (bytes.size() - position < kRecordHeadBytes) return Malformed("short");
    const uint8_t* head = bytes.data() + position;
    const uint32_t length = DecodeFixed32(head + 4);
    if (length < kRecordHeadBytes || length > bytes.size() - position) return Malformed("long");
    RecordView view;
    view.type = head[0];
    view.version = head[1];
    view.payload_pages = DecodeFixed16(head + 2);
    view.offset = offset + static_cast<uint32_t>(position);
    view.body = bytes.subspan(position + kRecordHeadBytes, length - kRecordHeadBytes);
    pages += view.payload_pages;
    position += length;
    records.push_back(view);
  }
  if (position != bytes.size()) return Malformed("trailing");
  if (pages != payload_pages) return Malformed("unbalanced");
  return records;
}

Result<AcceptRecord> DecodeAccept(const RecordView& view) {
  HYDRA_RETURN_IF_ERROR(CheckHead(view, RecordType::kAccept, "accept"));
  AcceptRecord record;
  Decoder in(view.body);
  uint64_t operations = 0;
  if (!in.Varint32(&record.group) || !in.Varint64(&record.instance) ||
      !in.Varint64(&record.ballot.round) || !in.Varint32(&record.ballot.node) ||
      !in.Varint64(&record.stable) || !in.Varint64(&operations) || operations > kMaxOpsPerEntry ||
      record.instance > kMaxInstance) {
    return Malformed("accept");
  }
  for (uint64_t i = 0; i < operations; ++i) {
    const Parse parse = GetOperation(&in, &record.entry.operations.emplace_back());
    if (parse == Parse::kBad) return Malformed("accept");
    if (parse == Parse::kUnknown) {
      record.entry.operations.pop_back();
      record.understood = false;
      return record;
    }
  }
  if (in.remaining() != 0 || record.entry.PayloadPages() != view.payload_pages) {
    return Malformed("accept");
  }
  return record;
}

Result<HardStateRecord> DecodeHardState(const RecordView& view) {
  HYDRA_RETURN_IF_ERROR(CheckHead(view, RecordType::kHardState, "hard state"));
  HardStateRecord record;
  Decoder in(view.body);
  if (!in.Varint32(&record.group) || !in.Varint64(&record.promised.round) ||
      !in.Varint32(&record.promised.node) || !in.LengthPrefixed(&record.opaque) ||
      in.remaining() != 0) {
    return Malformed("hard state");
  }
  return record;
}

Result<TruncateRecord> DecodeTruncate(const RecordView& view) {
  HYDRA_RETURN_IF_ERROR(CheckHead(view, RecordType::kTruncate, "truncate"));
  TruncateRecord record;
  Decoder in(view.body);
  if (!in.Varint32(&record.group) || !in.Varint64(&record.instance) || in.remaining() != 0) {
    return Malformed("truncate");
  }
  return record;
}

Result<CheckpointRecord> DecodeCheckpoint(const RecordView& view) {
  HYDRA_RETURN_IF_ERROR(CheckHead(view, RecordType::kCheckpoint, "checkpoint"));
  CheckpointRecord record;
  Decoder in(view.body);
  if (!in.Varint64(&record.id) || !in.Varint64(&record.replay_from) || in.remaining() != 0) {
    return Malformed("checkpoint");
  }
  return record;
}

Result<RelocateRecord> DecodeRelocate(const RecordView& view) {
  HYDRA_RETURN_IF_ERROR(CheckHead(view, RecordType::kRelocate, "relocate"));
  RelocateRecord record;
  Decoder in(view.body);
  uint8_t block_pages = 0;
  if (!in.Varint32(&record.group) || !in.Varint64(&record.lba) || !in.Varint64(&record.version) ||
      !in.Varint32(&record.old_reference.segment) || !in.Varint32(&record.old_reference.page) ||
      !in.Fixed32(&record.old_reference.crc) || !in.U8(&block_pages) || in.remaining() != 0 ||
      block_pages == 0 || block_pages > kMaxBlockPages || block_pages != view.payload_pages) {
    return Malformed("relocate");
  }
  record.block_pages = block_pages;
  return record;
}

Result<GroupRecord> DecodeGroup(const RecordView& view) {
  HYDRA_RETURN_IF_ERROR(CheckHead(view, RecordType::kGroup, "group"));
  GroupRecord record;
  Decoder in(view.body);
  uint8_t action = 0;
  uint8_t block_pages = 0;
  if (!in.Varint32(&record.group) || !in.U8(&action) || !in.U8(&block_pages) ||
      in.remaining() != 0 || (action != 1 && action != 2) || block_pages == 0 ||
      block_pages > kMaxBlockPages) {
    return Malformed("group");
  }
  record.action = static_cast<GroupAction>(action);
  record.block_pages = block_pages;
  return record;
}

Result<StableRecord> DecodeStable(const RecordView& view) {
  HYDRA_RETURN_IF_ERROR(CheckHead(view, RecordType::kStable, "stable"));
  StableRecord record;
  Decoder in(view.body);
  uint64_t count = 0;
  if (!in.Varint64(&count) || count > in.remaining()) {
    return Malformed("stable");
  }
  for (uint64_t i = 0; i < count; ++i) {
    GroupId group = 0;
    Instance instance = 0;
    if (!in.Varint32(&group) || !in.Varint64(&instance)) return Malformed("stable");
    record.groups.emplace_back(group, instance);
  }
  if (in.remaining() != 0) return Malformed("stable");
  return record;
}

Result<InstallRecord> DecodeInstall(const RecordView& view) {
  HYDRA_RETURN_IF_ERROR(CheckHead(view, RecordType::kInstall, "install"));
  InstallRecord record;
  Decoder in(view.body);
  uint8_t action = 0;
  uint8_t mode = 0;
  if (!in.Varint32(&record.group) || !in.U8(&action)) {
    return Malformed("install");
  }
  record.action = static_cast<InstallAction>(action);
  switch (record.action) {
    case InstallAction::kBegin:
      if (!in.U8(&mode) || (mode != 1 && mode != 2) || !in.Varint64(&record.instance) ||
          !in.Varint64(&record.floor)) {
        return Malformed("install");
      }
      record.mode = static_cast<InstallMode>(mode);
      break;
    case InstallAction::kFinish:
      if (!in.Varint64(&record.instance) || !in.Varint32(&record.state_bytes) ||
          !in.Fixed32(&record.state_crc) || record.state_bytes > kMaxInstalledState) {
        return Malformed("install");
      }
      break;
    case InstallAction::kAbort: break;
    default: return Malformed("install");
  }
  if (in.remaining() != 0 || record.instance > kMaxInstance || record.floor > kMaxInstance ||
      view.payload_pages != StatePages(record)) {
    return Malformed("install");
  }
  return record;
}

Result<ChunkRecord> DecodeChunk(const RecordView& view) {
  HYDRA_RETURN_IF_ERROR(CheckHead(view, RecordType::kChunk, "chunk", kChunkWithBareRows));
  const uint8_t last_kind = static_cast<uint8_t>(
      view.version == kChunkWithBareRows ? ChunkRow::Kind::kBare : ChunkRow::Kind::kErase);
  ChunkRecord record;
  Decoder in(view.body);
  uint8_t flags = 0;
  uint8_t block_pages = 0;
  uint64_t count = 0;
  if (!in.Varint32(&record.group) || !in.Varint64(&record.as_of) || !in.Varint64(&record.newest) ||
      !in.Varint64(&record.covered) || !in.LengthPrefixed(&record.cursor) || !in.U8(&flags) ||
      (flags & ~kLastChunk) != 0 || !in.U8(&block_pages) || block_pages == 0 ||
      block_pages > kMaxBlockPages || !in.Varint64(&count) || count > in.remaining() ||
      record.as_of > kMaxInstance || record.newest > kMaxInstance) {
    return Malformed("chunk");
  }
  record.last = flags != 0;
  record.block_pages = block_pages;
  uint64_t pages = 0;
  for (uint64_t i = 0; i < count; ++i) {
    ChunkRow row;
    uint8_t kind = 0;
    if (!in.U8(&kind) || kind < 1 || kind > last_kind || !in.Varint64(&row.number)) {
      return Malformed("chunk");
    }
    row.kind = static_cast<ChunkRow::Kind>(kind);
    const bool data = row.kind == ChunkRow::Kind::kData;
    const bool has_crc = data || row.kind == ChunkRow::Kind::kBare;
    if ((row.kind == ChunkRow::Kind::kErase &&
         (!in.Varint64(&row.count) || row.count > kEndOfBlocks - row.number)) ||
        !in.Varint64(&row.version) || (has_crc && !in.Fixed32(&row.crc))) {
      return Malformed("chunk");
    }
    if (row.kind == ChunkRow::Kind::kExtent &&
        row.number >= kEndOfBlocks / (kExtentPages / block_pages)) {
      return Malformed("chunk");
    }
    pages += data ? block_pages : 0;
    record.rows.push_back(row);
  }
  if (in.remaining() != 0 || pages != view.payload_pages) return Malformed("chunk");
  return record;
}

Status ValidateEntry(const Entry& entry, uint32_t block_pages) {
  return ValidateOperations(entry.operations, block_pages);
}

Status ValidateOperations(std::span<const Operation> operations, uint32_t block_pages) {
  if (operations.size() > kMaxOpsPerEntry) {
    return Status::InvalidArgument(fmt::format("an entry holds at most {} operations, not {}",
                                               kMaxOpsPerEntry, operations.size()));
  }
  const uint64_t extent_blocks = kExtentPages / block_pages;
  uint64_t pages = 0;
  uint64_t extents = 0;
  for (const Operation& op : operations) {
    if (static_cast<uint8_t>(op.kind) > static_cast<uint8_t>(OpKind::kOpaque) ||
        op.version != kOperationVersion) {
      return Status::Unsupported("unknown kind or version of an operation");
    }
    if (op.kind == OpKind::kWrite || op.kind == OpKind::kZero || op.kind == OpKind::kUnmap) {
      if (op.count == 0) return Status::InvalidArgument("a range of no blocks");
      if (op.lba + op.count < op.lba) {
        return Status::InvalidArgument(
            fmt::format("blocks {} + {} reach past 2^64", op.lba, op.count));
      }
      if (op.count > extent_blocks) {
        return Status::InvalidArgument(
            fmt::format("{} blocks in one operation; at most {} (1 MiB): split it, or use whole "
                        "extents to zero more",
                        op.count, extent_blocks));
      }
    }
    if (op.kind == OpKind::kWrite) {
      if (op.block_pages != block_pages) {
        return Status::InvalidArgument(
            fmt::format("a write in blocks of {} pages to a group "
                        "with blocks of {}",
                        op.block_pages, block_pages));
      }
      if (op.crcs.size() != op.count) {
        return Status::InvalidArgument(
            fmt::format("{} checksums for {} blocks", op.crcs.size(), op.count));
      }
      pages += op.PayloadPages();
    }
    if (op.kind == OpKind::kZeroExtents) {
      if (op.extents.empty()) return Status::InvalidArgument("no extents to zero");
      for (size_t i = 1; i < op.extents.size(); ++i) {
        if (op.extents[i] <= op.extents[i - 1]) {
          return Status::InvalidArgument("extents must ascend");
        }
      }
      if (op.extents.back() > std::numeric_limits<uint64_t>::max() / extent_blocks - 1) {
        return Status::InvalidArgument("an extent reaches past block 2^64");
      }
      extents += op.extents.size();
    }
  }
  if (pages > kMaxPayloadPages) {
    return Status::InvalidArgument(
        fmt::format("{} pages of payload in one entry; at most {}", pages, kMaxPayloadPages));
  }
  if (extents > kMaxExtentsPerEntry) {
    return Status::InvalidArgument(
        fmt::format("{} extents in one entry; at most {}", extents, kMaxExtentsPerEntry));
  }
  return Status::Ok();
}

}  // namespace hydra
