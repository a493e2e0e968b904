// SPDX-License-Identifier: Apache-2.0
#include "daemon/peer_wire.h"

#include <algorithm>

#include "base/check.h"
#include "base/coding.h"
#include "blockstore/batch_format.h"
#include "blockstore/record.h"
#include "daemon/shard_install.h"
#include "paxos/wire.h"

namespace hydra {
namespace {

constexpr size_t kMaxBodies = 4096;
constexpr uint8_t kBareRow = 16;  // of a row's flags

// In the bytes.
enum class BodyKind : uint8_t { kEntry = 1, kPiece = 2 };

void PutString(std::string* out, std::string_view bytes) {
  PutVarint64(out, bytes.size());
  PutBytes(out, AsBytes(bytes));
}

// `out` is a part of what `in` reads.
bool GetView(Decoder* in, size_t limit, std::string_view* out) {
  uint64_t length = 0;
  std::span<const uint8_t> bytes;
  if (!in->Varint64(&length) || length > limit || !in->Bytes(length, &bytes)) return false;
  *out = {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  return true;
}

bool GetString(Decoder* in, size_t limit, std::string* out) {
  std::string_view bytes;
  if (!GetView(in, limit, &bytes)) return false;
  out->assign(bytes);
  return true;
}

// --- Entries: the record that the engine would write. -------------------------------------------

void EncodeEntry(const EntryBody& body, PeerFrame* frame) {
  if (body.encoded.empty()) body.encoded = EncodeAccept(0, 0, {}, 0, body.entry);
  PutString(&frame->header, body.encoded);
  for (const BufferSlice& slice : body.payload) {
    frame->payload.push_back(slice);
    frame->payload_bytes += static_cast<uint32_t>(slice.length);
  }
}

// Pages of the frame's payload, handed out in order.
class PayloadSource {
 public:
  explicit PayloadSource(const Frame& frame) : frame_(frame) {}

  bool Take(size_t pages, Payload* out) {
    const size_t bytes = pages * kPageSize;
    if (bytes > frame_.payload_bytes - taken_) return false;
    if (bytes > 0) out->push_back({frame_.payload, taken_, bytes});
    taken_ += bytes;
    return true;
  }
  bool empty() const { return taken_ == frame_.payload_bytes; }

 private:
  const Frame& frame_;
  size_t taken_ = 0;
};

Result<paxos::Body> DecodeEntryBody(std::string_view bytes, PayloadSource* payload) {
  if (bytes.size() < kRecordHeadBytes) return Status::Corruption("an entry is cut");
  // The head says how much payload there is; SplitRecords holds it to that.
  const uint32_t pages = DecodeFixed16(AsBytes(bytes).data() + 2);
  HYDRA_ASSIGN_OR_RETURN(const auto views, SplitRecords(AsBytes(bytes), 1, pages, 0));
  HYDRA_ASSIGN_OR_RETURN(AcceptRecord record, DecodeAccept(views[0]));
  if (!record.understood) {
    return Status::Unsupported("a peer sent an operation of a newer version: upgrade this node");
  }
  if (record.entry.PayloadPages() != pages) return Status::Corruption("an entry's payload differs");
  auto body = std::make_shared<EntryBody>();
  body->entry = std::move(record.entry);
  if (!payload->Take(pages, &body->payload)) return Status::Corruption("payload is missing");
  return paxos::Body(std::move(body));
}

// --- Pieces of images. --------------------------------------------------------------------------

void EncodePiece(const ImagePiece& piece, PeerFrame* frame) {
  std::string out;
  const ImageChunk& chunk = piece.chunk;
  PutU8(&out, static_cast<uint8_t>(chunk.mode));
  PutVarint64(&out, chunk.block_pages);
  for (const uint64_t v : {chunk.from, chunk.to, chunk.since, chunk.as_of, chunk.newest}) {
    PutVarint64(&out, v);
  }
  PutString(&out, chunk.cursor);
  PutString(&out, piece.state);
  PutVarint64(&out, chunk.rows.size());
  for (const ImageRow& row : chunk.rows) {
    PutU8(&out,
          static_cast<uint8_t>((row.bare ? kBareRow : 0) | static_cast<uint8_t>(row.kind) << 2 |
                               (row.same ? 2 : 0) | (row.whole_extent ? 1 : 0)));
    PutVarint64(&out, row.number);
    PutVarint64(&out, row.version);
    PutFixed32(&out, row.crc);
  }
  size_t bytes = 0;
  for (const BufferSlice& slice : piece.payload) {
    frame->payload.push_back(slice);
    bytes += slice.length;
  }
  frame->payload_bytes += static_cast<uint32_t>(bytes);
  PutVarint64(&out, bytes / kPageSize);
  PutString(&frame->header, out);
}

Result<paxos::Body> DecodePiece(std::string_view bytes, PayloadSource* payload) {
  Decoder in(AsBytes(bytes));
  auto body = std::make_shared<InstallBody>();
  ImageChunk& chunk = body->piece.chunk;
  uint8_t mode = 0;
  uint64_t rows = 0;
  uint64_t pages = 0;
  in.U8(&mode);
  in.Varint32(&chunk.block_pages);
  for (uint64_t* v : {&chunk.from, &chunk.to, &chunk.since, &chunk.as_of, &chunk.newest}) {
    in.Varint64(v);
  }
  bool good = GetString(&in, kMaxCursorBytes, &chunk.cursor) &&
              GetString(&in, kMaxInstalledState, &body->piece.state) && in.Varint64(&rows) &&
              rows <= kMaxChunkRows + kMaxChunkExtents && mode >= 1 && mode <= 2;
  for (uint64_t i = 0; good && i < rows; ++i) {
    ImageRow row;
    uint8_t flags = 0;
    in.U8(&flags);
    in.Varint64(&row.number);
    in.Varint64(&row.version);
    row.bare = (flags & kBareRow) != 0;
    const int kind = (flags & ~kBareRow) >> 2;
    good = in.Fixed32(&row.crc) && kind >= 1 && kind <= 3;
    row.whole_extent = (flags & 1) != 0;
    row.same = (flags & 2) != 0;
    row.kind = static_cast<BlockKind>(kind);
    chunk.rows.push_back(row);
  }
  good = good && in.Varint64(&pages) && in.remaining() == 0;
  if (!good || pages > kMaxPayloadPages) {
    return Status::Corruption("a piece of an image makes no sense");
  }
  chunk.mode = static_cast<InstallMode>(mode);
  if (!payload->Take(pages, &body->piece.payload)) return Status::Corruption("payload is missing");
  return paxos::Body(std::move(body));
}

// --- Copies of single blocks.
// ---------------------------------------------------------------------

void EncodeBlock(const BlockMessage& message, PeerFrame* frame) {
  std::string& out = frame->header;
  PutU8(&out, static_cast<uint8_t>((message.answer ? 1 : 0) | (message.found ? 2 : 0)));
  for (const uint64_t v : {uint64_t{message.group}, uint64_t{message.from}, uint64_t{message.to},
                           message.lba, message.version}) {
    PutVarint64(&out, v);
  }
  PutFixed32(&out, message.crc);
  if (message.found) {
    frame->payload.push_back(message.data);
    frame->payload_bytes = static_cast<uint32_t>(message.data.length);
  }
}

Result<PeerMessage> DecodeBlock(const Frame& frame) {
  Decoder in(AsBytes(frame.header));
  BlockMessage message;
  uint8_t flags = 0;
  in.U8(&flags);
  in.Varint32(&message.group);
  in.Varint32(&message.from);
  in.Varint32(&message.to);
  in.Varint64(&message.lba);
  in.Varint64(&message.version);
  message.answer = (flags & 1) != 0;
  message.found = (flags & 2) != 0;
  const size_t pages = frame.payload_bytes / kPageSize;
  const bool good = in.Fixed32(&message.crc) && in.remaining() == 0 && flags <= 3 &&
                    message.from != 0 && message.to != 0 && (message.answer || !message.found) &&
                    message.found == (frame.payload_bytes > 0) &&
                    frame.payload_bytes % kPageSize == 0 && pages <= kMaxBlockPages;
  if (!good) return Status::Corruption("a peer's block makes no sense");
  if (message.found) message.data = {frame.payload, 0, frame.payload_bytes};
  return PeerMessage(std::move(message));
}

// --- Owed blocks. -------------------------------------------------------------------------------

void EncodeOwed(const OwedMessage& message, PeerFrame* frame) {
  std::string& out = frame->header;
  PutU8(&out, message.answer ? 1 : 0);
  for (const uint64_t v : {uint64_t{message.group}, uint64_t{message.from}, uint64_t{message.to},
                           message.request, uint64_t{message.blocks.size()}}) {
    PutVarint64(&out, v);
  }
  for (const BlockName& block : message.blocks) {
    PutVarint64(&out, block.lba);
    PutVarint64(&out, block.version);
    PutFixed32(&out, block.crc);
  }
  for (const BufferSlice& slice : message.payload) {
    frame->payload.push_back(slice);
    frame->payload_bytes += static_cast<uint32_t>(slice.length);
  }
}

Result<PeerMessage> DecodeOwed(const Frame& frame) {
  Decoder in(AsBytes(frame.header));
  OwedMessage message;
  uint8_t flags = 0;
  uint64_t count = 0;
  in.U8(&flags);
  in.Varint32(&message.group);
  in.Varint32(&message.from);
  in.Varint32(&message.to);
  in.Varint64(&message.request);
  message.answer = flags == 1;
  bool good = in.Varint64(&count) && count <= OwedMessage::kMostBlocks && flags <= 1 &&
              message.from != 0 && message.to != 0;
  for (uint64_t i = 0; good && i < count; ++i) {
    BlockName& block = message.blocks.emplace_back();
    in.Varint64(&block.lba);
    in.Varint64(&block.version);
    good = in.Fixed32(&block.crc);
  }
  const size_t pages = frame.payload_bytes / kPageSize;
  PayloadSource payload(frame);
  good = good && in.remaining() == 0 && pages <= kMaxPayloadPages &&
         (message.answer && count > 0 ? pages > 0 && pages % count == 0 : pages == 0) &&
         payload.Take(pages, &message.payload) && payload.empty();
  if (!good) return Status::Corruption("a peer's message about owed blocks makes no sense");
  return PeerMessage(std::move(message));
}

}  // namespace

PeerFrame EncodePeerMessage(const PeerMessage& message) {
  PeerFrame frame;
  if (const auto* block = std::get_if<BlockMessage>(&message)) {
    frame.type = FrameType::kBlock;
    EncodeBlock(*block, &frame);
    return frame;
  }
  if (const auto* owed = std::get_if<OwedMessage>(&message)) {
    frame.type = FrameType::kOwed;
    EncodeOwed(*owed, &frame);
    return frame;
  }
  if (const auto* heartbeat = std::get_if<paxos::Heartbeat>(&message)) {
    frame.type = FrameType::kHeartbeat;
    paxos::EncodeHeartbeat(*heartbeat, &frame.header);
    return frame;
  }
  const auto& inner = std::get<paxos::Message>(message);
  const bool install = std::holds_alternative<paxos::InstallChunk>(inner.body);
  constexpr size_t kUsualHeader = 512;  // an accept of a few blocks
  std::string bytes;
  std::vector<paxos::Body> bodies;
  paxos::EncodeMessage(inner, &bytes, &bodies);
  frame.header.reserve(kUsualHeader);
  PutString(&frame.header, bytes);
  PutVarint64(&frame.header, bodies.size());
  PutU8(&frame.header, static_cast<uint8_t>(install ? BodyKind::kPiece : BodyKind::kEntry));
  for (const paxos::Body& body : bodies) {
    if (install) {
      EncodePiece(static_cast<const InstallBody*>(body.get())->piece, &frame);
    } else {
      EncodeEntry(*static_cast<const EntryBody*>(body.get()), &frame);
    }
  }
  return frame;
}

Result<PeerMessage> DecodePeerMessage(const Frame& frame) {
  if (frame.type == FrameType::kHeartbeat) {
    HYDRA_ASSIGN_OR_RETURN(paxos::Heartbeat heartbeat, paxos::DecodeHeartbeat(frame.header));
    return PeerMessage(std::move(heartbeat));
  }
  if (frame.type == FrameType::kBlock) return DecodeBlock(frame);
  if (frame.type == FrameType::kOwed) return DecodeOwed(frame);
  Decoder in(AsBytes(frame.header));
  std::string_view bytes;
  uint64_t count = 0;
  uint8_t kind = 0;
  if (!GetView(&in, paxos::kMaxWireBytes, &bytes) || !in.Varint64(&count) || count > kMaxBodies ||
      !in.U8(&kind)) {
    return Status::Corruption("a peer's message is cut");
  }
  const bool install = kind == static_cast<uint8_t>(BodyKind::kPiece);
  PayloadSource payload(frame);
  std::vector<paxos::Body> bodies;
  for (uint64_t i = 0; i < count; ++i) {
    std::string_view part;
    if (!GetView(&in, kPeerFrameLimits.header_bytes, &part)) {
      return Status::Corruption("a peer's message is cut");
    }
    HYDRA_ASSIGN_OR_RETURN(paxos::Body body,
                           install ? DecodePiece(part, &payload) : DecodeEntryBody(part, &payload));
    bodies.push_back(std::move(body));
  }
  if (in.remaining() != 0 || !payload.empty()) {
    return Status::Corruption("a peer's message has too much in it");
  }
  HYDRA_ASSIGN_OR_RETURN(paxos::Message message, paxos::DecodeMessage(bytes, bodies));
  // Whoever takes a body out knows its type from the message alone.
  if (install != std::holds_alternative<paxos::InstallChunk>(message.body)) {
    return Status::Corruption("a message has bodies of another kind");
  }
  return PeerMessage(std::move(message));
}

}  // namespace hydra
