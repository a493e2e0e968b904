// SPDX-License-Identifier: Apache-2.0
#include "daemon/store_reader.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <limits>

#include <fmt/format.h>

#include "base/coding.h"
#include "base/crc32c.h"

namespace hydra::store_reader {

namespace {

constexpr uint32_t kSegmentMagic = 0x47455348;
constexpr uint32_t kBatchMagic = 0x54414248;
constexpr uint32_t kCrcOffset = 8;  // in both headers
constexpr uint8_t kSealFlag = 1;
constexpr uint8_t kContextFlag = 1;
constexpr uint32_t kSegmentHeaderUsed = 52;
constexpr uint8_t kChunkType = 9;
constexpr uint8_t kChunkWithBareRows = 2;  // its record version
constexpr uint8_t kDataRow = 1;            // kinds of a chunk's rows
constexpr uint8_t kEraseRow = 5;
constexpr uint8_t kBareRow = 6;

bool AllZero(ByteSpan bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](uint8_t b) { return b == 0; });
}

// Decimal without sign, space or leading zero, as the only thing in `text`.
bool ParseDecimal(std::string_view text, uint64_t* out) {
  if (text.empty() || text.size() > 20 || (text.size() > 1 && text[0] == '0')) return false;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && end == text.data() + text.size();
}

bool ParseHex32(std::string_view text, uint32_t* out) {
  if (text.size() != 8) return false;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out, 16);
  return error == std::errc() && end == text.data() + text.size();
}

// Takes the line `key value\n` off the front of `text`.
bool TakeLine(std::string_view* text, std::string_view key, std::string_view* value) {
  const size_t end = text->find('\n');
  if (end == std::string_view::npos) return false;
  const std::string_view line = text->substr(0, end);
  if (line.size() < key.size() + 2 || !line.starts_with(key) || line[key.size()] != ' ') {
    return false;
  }
  *value = line.substr(key.size() + 1);
  text->remove_prefix(end + 1);
  return true;
}

Status BadLine(std::string_view key) {
  return Status::Corruption(
      fmt::format("IDENTITY: the line \"{}\" is missing, misplaced or malformed", key));
}

Status Malformed(uint32_t offset, std::string_view what) {
  return Status::Corruption(fmt::format("record at offset {}: {}", offset, what));
}

}  // namespace

bool ReadString(Decoder* in, std::string* out) {
  uint64_t length = 0;
  ByteSpan bytes;
  if (!in->Varint64(&length) || length > in->remaining() || !in->Bytes(length, &bytes)) {
    return false;
  }
  out->assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return true;
}

// --- Section 2 -------------------------------------------------------------------------------

Result<Identity> ParseIdentity(std::string_view text) {
  Identity identity;
  std::string_view rest = text;
  std::string_view value;
  uint64_t version = 0;
  if (!TakeLine(&rest, "hydra-store", &value) || !ParseDecimal(value, &version) || version == 0) {
    return BadLine("hydra-store");
  }
  if (version > kFormatVersion) {
    return Status::Unsupported(
        fmt::format("the store has format version {}, this tool reads up to {}: use a newer one",
                    version, kFormatVersion));
  }
  const size_t crc_at = text.rfind("crc ");
  uint32_t crc = 0;
  if (crc_at == std::string_view::npos || text.back() != '\n' ||
      !ParseHex32(text.substr(crc_at + 4, text.size() - crc_at - 5), &crc)) {
    return BadLine("crc");
  }
  if (crc != Crc32c(text.data(), crc_at)) {
    return Status::Corruption("IDENTITY: its CRC does not match its contents");
  }
  for (auto [key, uuid] : {std::pair{"store", &identity.store}, {"cluster", &identity.cluster}}) {
    if (!TakeLine(&rest, key, &value)) return BadLine(key);
    auto parsed = Uuid::Parse(value);
    if (!parsed.ok()) return BadLine(key);
    *uuid = *parsed;
  }
  uint64_t node = 0;
  if (!TakeLine(&rest, "node", &value) || !ParseDecimal(value, &node) || node < 1 || node > 65535) {
    return BadLine("node");
  }
  identity.node = static_cast<uint32_t>(node);
  // A header, one batch and the seal's page are the least that makes sense; a page index has 32
  // bits.
  if (!TakeLine(&rest, "segment-bytes", &value) || !ParseDecimal(value, &identity.segment_bytes) ||
      identity.segment_bytes % kPageBytes != 0 || identity.segment_bytes < 3 * kPageBytes ||
      identity.segment_bytes / kPageBytes > std::numeric_limits<uint32_t>::max()) {
    return BadLine("segment-bytes");
  }
  if (rest.size() != text.size() - crc_at) {
    return Status::Corruption("IDENTITY: unexpected lines before \"crc\"");
  }
  return identity;
}

// --- Section 3 -------------------------------------------------------------------------------

uint32_t ParseSegmentName(std::string_view name) {
  if (name.size() != 14 || !name.ends_with(".seg")) return 0;
  uint64_t number = 0;
  for (const char c : name.substr(0, 10)) {
    if (c < '0' || c > '9') return 0;
    number = number * 10 + static_cast<uint64_t>(c - '0');
  }
  return number > std::numeric_limits<uint32_t>::max() ? 0 : static_cast<uint32_t>(number);
}

std::string SegmentName(uint32_t number) { return fmt::format("{:010}.seg", number); }

uint32_t SeededCrc(const Uuid& store, uint32_t segment, uint32_t page, ByteSpan header) {
  std::array<uint8_t, 24> seed;
  std::copy(store.bytes.begin(), store.bytes.end(), seed.begin());
  EncodeFixed32(seed.data() + 16, segment);
  EncodeFixed32(seed.data() + 20, page);
  const std::array<uint8_t, 4> zero{};
  uint32_t crc = Crc32c(seed);
  crc = Crc32c(header.first(kCrcOffset), crc);
  crc = Crc32c(zero, crc);
  return Crc32c(header.subspan(kCrcOffset + 4), crc);
}

Result<SegmentHeader> ParseSegmentHeader(ByteSpan page, const Identity& identity, uint32_t number) {
  if (page.size() != kPageBytes) return Status::Corruption("the header page is not whole");
  SegmentHeader header;
  Decoder in(page);
  uint32_t magic = 0;
  uint16_t version = 0;
  uint8_t zero = 0;
  ByteSpan store;
  uint64_t segment_bytes = 0;
  in.Fixed32(&magic);
  in.Fixed16(&version);
  in.U8(&header.lane);
  in.U8(&zero);
  in.Fixed32(&header.crc);
  in.Fixed32(&header.number);
  in.Bytes(16, &store);
  in.Fixed64(&segment_bytes);
  in.Fixed64(&header.first_batch);
  in.Fixed32(&header.chain);
  if (magic != kSegmentMagic) return Status::Corruption("no segment header (magic)");
  if (header.crc != SeededCrc(identity.store, number, 0, page)) {
    return Status::Corruption("the segment header's CRC is wrong");
  }
  const auto wrong = [](std::string_view what) {
    return Status::Corruption(
        fmt::format("the segment header's CRC is right but its {} is not", what));
  };
  if (version != kFormatVersion) return wrong("format version");
  if (header.lane >= kLanes) return wrong("lane");
  if (header.number != number) return wrong("number");
  if (!std::equal(store.begin(), store.end(), identity.store.bytes.begin())) return wrong("store");
  if (segment_bytes != identity.segment_bytes) return wrong("segment size");
  if (header.first_batch == 0) return wrong("first batch");
  if (header.first_batch == 1 && header.chain != 0) return wrong("chain");
  if (zero != 0 || !AllZero(page.subspan(kSegmentHeaderUsed))) return wrong("padding");
  return header;
}

// --- Section 4 -------------------------------------------------------------------------------

uint32_t ClaimedHeaderPages(ByteSpan page) {
  if (page.size() < kBatchFixedBytes || DecodeFixed32(page.data()) != kBatchMagic) return 0;
  const uint32_t pages = DecodeFixed16(page.data() + 36);
  return pages <= kMaxHeaderPages ? pages : 0;
}

uint64_t ClaimedNumberAt(ByteSpan page, uint32_t segment, uint32_t index) {
  const bool here = page.size() >= kBatchFixedBytes && DecodeFixed32(page.data()) == kBatchMagic &&
                    DecodeFixed32(page.data() + 24) == segment &&
                    DecodeFixed32(page.data() + 28) == index;
  return here ? DecodeFixed64(page.data() + 16) : 0;
}

Result<BatchHeader> ParseBatchHeader(ByteSpan header, const Identity& identity, uint32_t segment,
                                     uint32_t page) {
  const uint32_t claimed = ClaimedHeaderPages(header);
  if (claimed == 0) return Status::Corruption("no batch header (magic or header pages)");
  if (header.size() != size_t{claimed} * kPageBytes) {
    return Status::Corruption("the batch header is not whole");
  }
  BatchHeader batch;
  uint16_t version = 0;
  uint8_t flags = 0;
  Decoder in(header);
  in.Skip(4);
  in.Fixed16(&version);
  in.U8(&flags);
  in.U8(&batch.lane);
  in.Fixed32(&batch.crc);
  in.Fixed32(&batch.used_bytes);
  in.Fixed64(&batch.number);
  in.Fixed32(&batch.segment);
  in.Fixed32(&batch.page);
  in.Fixed32(&batch.chain);
  in.Fixed16(&batch.header_pages);
  in.Fixed16(&batch.payload_pages);
  in.Fixed32(&batch.generation);
  in.Fixed32(&batch.records);
  batch.seal = (flags & kSealFlag) != 0;
  if (batch.crc != SeededCrc(identity.store, segment, page, header)) {
    return Status::Corruption("the batch header's CRC is wrong");
  }
  const auto wrong = [](std::string_view what) {
    return Status::Corruption(
        fmt::format("the batch header's CRC is right but its {} is not", what));
  };
  if (version != kFormatVersion) return wrong("format version");
  if ((flags & ~kSealFlag) != 0) return wrong("flags field");
  if (batch.lane >= kLanes) return wrong("lane");
  if (batch.segment != segment) return wrong("segment number");
  if (batch.page != page) return wrong("page index");
  if (batch.number == 0) return wrong("batch number");
  if (batch.number == 1 && batch.chain != 0) return wrong("chain");
  if (batch.payload_pages > kMaxPayloadPages) return wrong("payload size");
  if (batch.seal && batch.payload_pages != 0) return wrong("payload size (a seal has none)");
  // The last page is kept for a seal.
  const uint64_t end = uint64_t{page} + batch.header_pages + batch.payload_pages;
  if (end > identity.segment_pages() - (batch.seal ? 0u : 1u)) return wrong("size");
  if (batch.used_bytes < kBatchFixedBytes || batch.used_bytes > header.size()) {
    return wrong("count of used bytes");
  }
  if (!AllZero(header.subspan(48, 16)) || !AllZero(header.subspan(batch.used_bytes))) {
    return wrong("padding");
  }
  return batch;
}

// --- Section 5 -------------------------------------------------------------------------------

namespace {

enum class OperationResult { kOk, kUnknown, kMalformed };

bool ReadExtents(Decoder* in, std::vector<uint64_t>* out) {
  uint64_t n = 0;
  if (!in->Varint64(&n) || n > in->remaining()) return false;
  out->reserve(n);
  uint64_t extent = 0;
  for (uint64_t i = 0; i < n; ++i) {
    uint64_t value = 0;
    if (!in->Varint64(&value)) return false;
    if (i > 0 && (value == 0 || extent + value < extent)) return false;
    extent += value;
    out->push_back(extent);
  }
  return true;
}

bool ReadWrite(Decoder* in, Operation* op) {
  in->Varint64(&op->lba);
  in->Varint64(&op->count);
  if (!in->U8(&op->pages_per_block) || op->pages_per_block == 0 ||
      op->pages_per_block > kMaxPagesPerBlock || op->count > in->remaining() / 4) {
    return false;
  }
  op->crcs.resize(op->count);
  for (uint32_t& crc : op->crcs) in->Fixed32(&crc);
  return in->ok();
}

OperationResult ReadOperation(Decoder* in, Operation* op) {
  in->U8(&op->kind);
  in->U8(&op->version);
  if (!in->U8(&op->flags)) return OperationResult::kMalformed;
  if (op->version != 1) return OperationResult::kUnknown;
  bool ok = true;
  switch (static_cast<OperationKind>(op->kind)) {
    case OperationKind::kNoOp:
    case OperationKind::kOpaque: break;
    case OperationKind::kWrite: ok = ReadWrite(in, op); break;
    case OperationKind::kZero:
    case OperationKind::kUnmap: ok = in->Varint64(&op->lba) && in->Varint64(&op->count); break;
    case OperationKind::kZeroExtents: ok = ReadExtents(in, &op->extents); break;
    default: return OperationResult::kUnknown;
  }
  if (ok && (op->flags & kContextFlag) != 0) {
    op->has_context = true;
    ok = ReadString(in, &op->context);
  }
  return ok ? OperationResult::kOk : OperationResult::kMalformed;
}

// Null if well-formed.
const char* ReadAccept(Decoder* in, Accept* accept) {
  in->Varint32(&accept->group);
  in->Varint64(&accept->instance);
  in->Varint64(&accept->round);
  in->Varint64(&accept->node);
  in->Varint64(&accept->stable);
  if (!in->Varint64(&accept->operation_count)) return "an accept's fixed part is cut short";
  // The smallest operation has three bytes.
  if (accept->operation_count > kMaxOperations || accept->operation_count > in->remaining() / 3) {
    return "an accept has too many operations";
  }
  for (uint64_t i = 0; i < accept->operation_count; ++i) {
    Operation op;
    switch (ReadOperation(in, &op)) {
      case OperationResult::kMalformed: return "an operation is malformed";
      case OperationResult::kUnknown:
        accept->operations.push_back(std::move(op));
        accept->complete = false;
        in->Skip(in->remaining());
        return nullptr;
      case OperationResult::kOk: accept->operations.push_back(std::move(op));
    }
  }
  return nullptr;
}

const char* ReadStable(Decoder* in, Stable* stable) {
  uint64_t n = 0;
  if (!in->Varint64(&n) || n > in->remaining() / 2) return "a stable record has too many groups";
  stable->marks.resize(n);
  for (StableMark& mark : stable->marks) {
    in->Varint32(&mark.group);
    in->Varint64(&mark.instance);
  }
  return nullptr;
}

const char* ReadInstall(Decoder* in, Install* install) {
  in->Varint32(&install->group);
  in->U8(&install->action);
  switch (install->action) {
    case 1:
      in->U8(&install->mode);
      in->Varint64(&install->instance);
      in->Varint64(&install->floor);
      if (in->ok() && install->mode != 1 && install->mode != 2) {
        return "an install is neither an image nor a delta";
      }
      return nullptr;
    case 2:
      in->Varint64(&install->instance);
      in->Varint32(&install->state_bytes);
      in->Fixed32(&install->state_crc);
      return nullptr;
    case 3: return nullptr;
    default: return in->ok() ? "an install's action is out of range" : nullptr;
  }
}

const char* ReadChunk(Decoder* in, uint8_t version, Chunk* chunk) {
  const uint8_t last_kind = version == kChunkWithBareRows ? kBareRow : kEraseRow;
  uint8_t flags = 0;
  uint64_t n = 0;
  in->Varint32(&chunk->group);
  in->Varint64(&chunk->as_of);
  in->Varint64(&chunk->newest);
  in->Varint64(&chunk->covered);
  if (!ReadString(in, &chunk->cursor)) return "a chunk's cursor is cut short";
  in->U8(&flags);
  in->U8(&chunk->pages_per_block);
  if (!in->Varint64(&n) || n > in->remaining() / 3) return "a chunk has too many rows";
  if (flags > 1) return "a chunk has an unknown flag";
  if (chunk->pages_per_block == 0 || chunk->pages_per_block > kMaxPagesPerBlock) {
    return "a chunk's pages per block are out of range";
  }
  chunk->last = flags == 1;
  chunk->rows.resize(n);  // a row has at least three bytes
  for (ChunkRow& row : chunk->rows) {
    in->U8(&row.kind);
    if (in->ok() && (row.kind < 1 || row.kind > last_kind))
      return "a chunk has a row of unknown kind";
    in->Varint64(&row.number);
    if (row.kind == kEraseRow) in->Varint64(&row.count);
    in->Varint64(&row.version);
    if (row.kind == kDataRow || row.kind == kBareRow) in->Fixed32(&row.crc);
  }
  return nullptr;
}

const char* ReadBody(Decoder* in, Record* record) {
  switch (record->type) {
    case 1: return ReadAccept(in, &record->body.emplace<Accept>());
    case 2: {
      auto& hard = record->body.emplace<HardState>();
      in->Varint32(&hard.group);
      in->Varint64(&hard.round);
      in->Varint64(&hard.node);
      return ReadString(in, &hard.opaque) ? nullptr : "a hard state is cut short";
    }
    case 3: {
      auto& truncate = record->body.emplace<Truncate>();
      in->Varint32(&truncate.group);
      in->Varint64(&truncate.instance);
      return nullptr;
    }
    case 4: {
      auto& note = record->body.emplace<CheckpointNote>();
      in->Varint64(&note.id);
      in->Varint64(&note.first_batch);
      return nullptr;
    }
    case 5: {
      auto& move = record->body.emplace<Relocate>();
      in->Varint32(&move.group);
      in->Varint64(&move.lba);
      in->Varint64(&move.version);
      in->Varint32(&move.old_segment);
      in->Varint32(&move.old_page);
      in->Fixed32(&move.crc);
      in->U8(&move.pages_per_block);
      if (in->ok() && (move.pages_per_block == 0 || move.pages_per_block > kMaxPagesPerBlock)) {
        return "a relocation's pages per block are out of range";
      }
      return nullptr;
    }
    case 6: {
      auto& change = record->body.emplace<GroupChange>();
      in->Varint32(&change.group);
      in->U8(&change.action);
      in->U8(&change.pages_per_block);
      return nullptr;
    }
    case 7: return ReadStable(in, &record->body.emplace<Stable>());
    case 8: return ReadInstall(in, &record->body.emplace<Install>());
    case kChunkType: return ReadChunk(in, record->version, &record->body.emplace<Chunk>());
    default: in->Skip(in->remaining()); return nullptr;
  }
}

// The payload pages that the body describes, for the types where it does.
Status CheckPayloadPages(const Record& record) {
  uint64_t expected = 0;
  if (const auto* accept = std::get_if<Accept>(&record.body)) {
    if (!accept->complete) return Status::Ok();
    for (const Operation& op : accept->operations) expected += op.count * op.pages_per_block;
  } else if (const auto* move = std::get_if<Relocate>(&record.body)) {
    expected = move->pages_per_block;
  } else if (const auto* install = std::get_if<Install>(&record.body)) {
    expected = (uint64_t{install->state_bytes} + kPageBytes - 1) / kPageBytes;
  } else if (const auto* chunk = std::get_if<Chunk>(&record.body)) {
    for (const ChunkRow& row : chunk->rows)
      expected += row.kind == kDataRow ? chunk->pages_per_block : 0;
  } else if (std::holds_alternative<UnknownBody>(record.body)) {
    return Status::Ok();
  }
  if (expected == record.payload_pages) return Status::Ok();
  return Malformed(record.offset, fmt::format("{} payload pages where its contents make {}",
                                              record.payload_pages, expected));
}

Result<Record> ParseRecord(ByteSpan bytes, uint32_t offset) {
  if (bytes.size() < kRecordHeadBytes) return Malformed(offset, "its head is cut short");
  Record record;
  record.offset = offset;
  Decoder head(bytes);
  head.U8(&record.type);
  head.U8(&record.version);
  head.Fixed16(&record.payload_pages);
  head.Fixed32(&record.length);
  if (record.length < kRecordHeadBytes || record.length > bytes.size()) {
    return Malformed(offset, "its length runs out of the header");
  }
  const bool known =
      record.version == 1 || (record.type == kChunkType && record.version == kChunkWithBareRows);
  if (!known) return record;
  Decoder body(bytes.subspan(kRecordHeadBytes, record.length - kRecordHeadBytes));
  if (const char* problem = ReadBody(&body, &record)) return Malformed(offset, problem);
  if (!body.ok()) return Malformed(offset, "its body is cut short");
  if (body.remaining() != 0) return Malformed(offset, "bytes left over behind its body");
  HYDRA_RETURN_IF_ERROR(CheckPayloadPages(record));
  return record;
}

}  // namespace

Result<std::vector<Record>> ParseRecords(const BatchHeader& batch, ByteSpan header) {
  std::vector<Record> records;
  if (batch.used_bytes > header.size() || batch.used_bytes < kBatchFixedBytes) {
    return Status::Corruption("the count of used bytes is out of range");
  }
  uint32_t offset = kBatchFixedBytes;
  uint32_t payload = 0;
  for (uint32_t i = 0; i < batch.records; ++i) {
    auto record = ParseRecord(header.subspan(offset, batch.used_bytes - offset), offset);
    if (!record.ok()) return record.status();
    if (payload + record->payload_pages > batch.payload_pages) {
      return Malformed(offset, "the records own more payload than the batch has");
    }
    record->payload_page = batch.payload_page() + payload;
    payload += record->payload_pages;
    offset += record->length;
    records.push_back(std::move(*record));
  }
  if (offset != batch.used_bytes) {
    return Malformed(offset, "bytes in use behind the last record");
  }
  if (payload != batch.payload_pages) {
    return Malformed(offset, fmt::format("the records own {} payload pages of {}", payload,
                                         batch.payload_pages));
  }
  return records;
}

std::string_view RecordName(uint8_t type) {
  static constexpr std::string_view kNames[] = {"unknown",    "accept",   "hard state", "truncate",
                                                "checkpoint", "relocate", "group",      "stable",
                                                "install",    "chunk"};
  return type < std::size(kNames) ? kNames[type] : kNames[0];
}

std::string_view OperationName(uint8_t kind) {
  static constexpr std::string_view kNames[] = {"no-op", "write",        "zero",
                                                "unmap", "zero extents", "opaque"};
  return kind < std::size(kNames) ? kNames[kind] : "unknown";
}

std::string_view ChunkRowName(uint8_t kind) {
  static constexpr std::string_view kNames[] = {"unknown", "data",  "zero", "unmapped",
                                                "extent",  "erase", "bare"};
  return kind < std::size(kNames) ? kNames[kind] : kNames[0];
}

std::vector<PayloadBlock> PayloadBlocks(const Record& record) {
  std::vector<PayloadBlock> blocks;
  uint32_t page = record.payload_page;
  const uint32_t end = page + record.payload_pages;
  if (const auto* move = std::get_if<Relocate>(&record.body)) {
    blocks.push_back(
        {move->group, move->lba, move->version, page, move->pages_per_block, move->crc});
  } else if (const auto* install = std::get_if<Install>(&record.body)) {
    if (record.payload_pages == 0) return blocks;
    blocks.push_back({install->group, 0, install->instance << 16, page, record.payload_pages,
                      install->state_crc});
  } else if (const auto* chunk = std::get_if<Chunk>(&record.body)) {
    for (const ChunkRow& row : chunk->rows) {
      if (row.kind != kDataRow) continue;
      blocks.push_back(
          {chunk->group, row.number, row.version, page, chunk->pages_per_block, row.crc});
      page += chunk->pages_per_block;
    }
  } else if (const auto* accept = std::get_if<Accept>(&record.body)) {
    for (size_t i = 0; i < accept->operations.size(); ++i) {
      const Operation& op = accept->operations[i];
      for (size_t k = 0; k < op.crcs.size(); ++k) {
        if (page + op.pages_per_block > end) return blocks;  // only after an unknown operation
        blocks.push_back({accept->group, op.lba + k, accept->instance << 16 | i, page,
                          op.pages_per_block, op.crcs[k]});
        page += op.pages_per_block;
      }
    }
  }
  return blocks;
}

}  // namespace hydra::store_reader
