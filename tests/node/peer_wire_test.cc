// SPDX-License-Identifier: Apache-2.0
#include "daemon/peer_wire.h"

#include <cstring>

#include <gtest/gtest.h>

#include "base/crc32c.h"
#include "daemon/shard_install.h"
#include "tests/support/gtest_status.h"

namespace hydra {
namespace {

// As it arrives: one buffer for all payload.
Frame Arrived(const PeerFrame& sent) {
  Frame frame;
  frame.type = sent.type;
  frame.header = sent.header;
  frame.payload_bytes = sent.payload_bytes;
  if (sent.payload_bytes > 0) frame.payload = Buffer::Allocate(sent.payload_bytes);
  size_t at = 0;
  for (const BufferSlice& slice : sent.payload) {
    std::memcpy(frame.payload.data() + at, slice.data(), slice.length);
    at += slice.length;
  }
  return frame;
}

std::shared_ptr<EntryBody> WriteOf(uint8_t fill, uint64_t blocks) {
  auto body = std::make_shared<EntryBody>();
  Buffer data = Buffer::Allocate(blocks * kPageSize);
  std::memset(data.data(), fill, data.size());
  Operation op;
  op.kind = OpKind::kWrite;
  op.lba = fill;
  op.count = blocks;
  for (uint64_t i = 0; i < blocks; ++i) op.crcs.push_back(Crc32c(data.data(), kPageSize));
  body->entry.operations.push_back(op);
  body->payload.push_back({data, 0, data.size()});
  return body;
}

paxos::Message AcceptOf(const std::vector<std::shared_ptr<EntryBody>>& bodies) {
  auto entries = std::make_shared<std::vector<paxos::AcceptEntry>>();
  Instance instance = 8;
  for (const auto& body : bodies) {
    paxos::EntryMeta meta = *MetaOf(body->entry, instance);
    entries->push_back({instance++, meta, body});
  }
  return {3, {1, 1}, {2, 1}, 77, paxos::Accept{{4, 1}, 7, entries}};
}

TEST(PeerWire, CarriesEntriesAndTheirPayload) {
  const auto first = WriteOf(1, 3);
  const auto second = WriteOf(2, 1);
  const PeerFrame sent = EncodePeerMessage(AcceptOf({first, second}));
  EXPECT_EQ(sent.payload_bytes, 4 * kPageSize);
  ASSERT_EQ(sent.payload.size(), 2u);
  EXPECT_EQ(sent.payload[0].data(), first->payload[0].data());  // not copied
  const auto got = DecodePeerMessage(Arrived(sent));
  ASSERT_OK(got.status());
  const auto& accept = std::get<paxos::Accept>(std::get<paxos::Message>(*got).body);
  ASSERT_EQ(accept.entries->size(), 2u);
  const auto* body = static_cast<const EntryBody*>((*accept.entries)[1].body.get());
  EXPECT_EQ(body->entry, second->entry);
  ASSERT_EQ(body->payload.size(), 1u);
  EXPECT_EQ(std::memcmp(body->payload[0].data(), second->payload[0].data(), kPageSize), 0);
}

// The bytes of an entry are made for the first receiver, and kept for the others.
TEST(PeerWire, ASecondReceiverGetsTheSame) {
  const std::vector<std::shared_ptr<EntryBody>> bodies = {WriteOf(1, 3), WriteOf(2, 1)};
  paxos::Message message = AcceptOf(bodies);
  std::vector<PeerFrame> sent;
  for (const NodeId to : {2, 3}) {
    message.to.node = to;
    sent.push_back(EncodePeerMessage(message));
    for (const auto& body : bodies) EXPECT_FALSE(body->encoded.empty());
    // As if it had been sent to nobody else.
    paxos::Message alone = AcceptOf({WriteOf(1, 3), WriteOf(2, 1)});
    alone.to.node = to;
    EXPECT_EQ(sent.back().header, EncodePeerMessage(alone).header);
  }
  EXPECT_EQ(sent[0].type, sent[1].type);
  EXPECT_EQ(sent[0].payload_bytes, sent[1].payload_bytes);
  ASSERT_EQ(sent[0].header.size(), sent[1].header.size());
  size_t different = 0;
  for (size_t i = 0; i < sent[0].header.size(); ++i) {
    if (sent[0].header[i] == sent[1].header[i]) continue;
    ++different;
    EXPECT_EQ(sent[0].header[i], 2);
    EXPECT_EQ(sent[1].header[i], 3);
  }
  EXPECT_EQ(different, 1u);  // the receiver
  for (const PeerFrame& frame : sent) {
    ASSERT_EQ(frame.payload.size(), 2u);
    const auto got = DecodePeerMessage(Arrived(frame));
    ASSERT_OK(got.status());
    EXPECT_EQ(ReceiverOf(*got), &frame == &sent[0] ? 2u : 3u);
    const auto& accept = std::get<paxos::Accept>(std::get<paxos::Message>(*got).body);
    ASSERT_EQ(accept.entries->size(), 2u);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(frame.payload[i].data(), bodies[i]->payload[0].data());  // not copied
      const auto* body = static_cast<const EntryBody*>((*accept.entries)[i].body.get());
      EXPECT_EQ(body->entry, bodies[i]->entry);
      ASSERT_EQ(body->payload.size(), 1u);
      ASSERT_EQ(body->payload[0].length, bodies[i]->payload[0].length);
      EXPECT_EQ(std::memcmp(body->payload[0].data(), bodies[i]->payload[0].data(),
                            body->payload[0].length),
                0);
    }
  }
}

TEST(PeerWire, CarriesPiecesOfImages) {
  auto body = std::make_shared<InstallBody>();
  ImageChunk& chunk = body->piece.chunk;
  chunk.mode = InstallMode::kImage;
  chunk.from = 5;
  chunk.to = kEndOfBlocks;
  chunk.as_of = 9;
  chunk.newest = 12;
  chunk.cursor = "next";
  chunk.rows = {{.number = 1, .whole_extent = true, .kind = BlockKind::kZero, .version = 3},
                {.number = 7, .kind = BlockKind::kData, .version = 4, .crc = 99},
                {.number = 8, .kind = BlockKind::kData, .version = 5, .crc = 98, .same = true},
                {.number = 9, .kind = BlockKind::kData, .version = 6, .crc = 97, .bare = true}};
  body->piece.state = std::string(5000, 's');
  body->piece.payload.push_back({Buffer::Allocate(kPageSize), 0, kPageSize});
  paxos::InstallChunk message;
  message.transfer = 6;
  message.next = "next";
  message.as_of = 9;
  message.body = body;
  const PeerFrame sent = EncodePeerMessage(paxos::Message{3, {1, 1}, {2, 1}, 77, message});
  const auto got = DecodePeerMessage(Arrived(sent));
  ASSERT_OK(got.status());
  const auto& back = std::get<paxos::InstallChunk>(std::get<paxos::Message>(*got).body);
  const auto* piece = static_cast<const InstallBody*>(back.body.get());
  EXPECT_EQ(piece->piece.chunk.rows, chunk.rows);
  EXPECT_EQ(piece->piece.chunk.to, kEndOfBlocks);
  EXPECT_EQ(piece->piece.chunk.cursor, "next");
  EXPECT_EQ(piece->piece.state, body->piece.state);
  EXPECT_EQ(piece->piece.payload.size(), 1u);
}

TEST(PeerWire, CarriesBlocks) {
  BlockMessage message{3, 1, 2, false, false, 77, 1234567, 0xabcdef01, {}};
  auto got = DecodePeerMessage(Arrived(EncodePeerMessage(message)));
  ASSERT_OK(got.status());
  const BlockMessage& asked = std::get<BlockMessage>(*got);
  EXPECT_EQ(asked.group, 3u);
  EXPECT_EQ(asked.from, 1u);
  EXPECT_EQ(asked.to, 2u);
  EXPECT_FALSE(asked.answer);
  EXPECT_EQ(asked.lba, 77u);
  EXPECT_EQ(asked.version, 1234567u);
  EXPECT_EQ(asked.crc, 0xabcdef01u);

  message.answer = message.found = true;
  message.data = {Buffer::Allocate(4 * kPageSize), kPageSize, 2 * kPageSize};
  const PeerFrame sent = EncodePeerMessage(message);
  EXPECT_EQ(sent.type, FrameType::kBlock);
  EXPECT_EQ(sent.payload[0].data(), message.data.data());  // not copied
  const Frame good = Arrived(sent);
  got = DecodePeerMessage(good);
  ASSERT_OK(got.status());
  EXPECT_EQ(std::get<BlockMessage>(*got).data.length, 2 * kPageSize);
  for (size_t length = 0; length < good.header.size(); ++length) {
    Frame cut = good;
    cut.header.resize(length);
    EXPECT_FALSE(DecodePeerMessage(cut).ok()) << length;
  }
  Frame none = good;
  none.payload_bytes = 0;
  EXPECT_FALSE(DecodePeerMessage(none).ok());
  Frame huge = good;
  huge.payload = Buffer::Allocate(17 * kPageSize);
  huge.payload_bytes = 17 * kPageSize;
  EXPECT_FALSE(DecodePeerMessage(huge).ok());
}

TEST(PeerWire, CarriesOwedBlocks) {
  OwedMessage message{3, 1, 2, false, 77, {{5, 1234567, 0xabcdef01}, {9, 1, 2}}, {}};
  const Frame question = Arrived(EncodePeerMessage(message));
  auto got = DecodePeerMessage(question);
  ASSERT_OK(got.status());
  const OwedMessage& asked = std::get<OwedMessage>(*got);
  EXPECT_EQ(asked.group, 3u);
  EXPECT_EQ(asked.from, 1u);
  EXPECT_EQ(asked.to, 2u);
  EXPECT_FALSE(asked.answer);
  EXPECT_EQ(asked.request, 77u);
  EXPECT_EQ(asked.blocks, message.blocks);
  EXPECT_TRUE(asked.payload.empty());

  message.answer = true;
  message.payload = {{Buffer::Allocate(4 * kPageSize), kPageSize, kPageSize},
                     {Buffer::Allocate(kPageSize), 0, kPageSize}};
  const PeerFrame sent = EncodePeerMessage(message);
  EXPECT_EQ(sent.type, FrameType::kOwed);
  EXPECT_EQ(sent.payload[0].data(), message.payload[0].data());  // not copied
  const Frame good = Arrived(sent);
  got = DecodePeerMessage(good);
  ASSERT_OK(got.status());
  EXPECT_EQ(std::get<OwedMessage>(*got).payload[0].length, 2 * kPageSize);
  for (size_t length = 0; length < good.header.size(); ++length) {
    Frame cut = good;
    cut.header.resize(length);
    EXPECT_FALSE(DecodePeerMessage(cut).ok()) << length;
  }
  const auto with_pages = [](Frame frame, uint32_t pages) {
    frame.payload = Buffer::Allocate(std::max(1u, pages) * kPageSize);
    frame.payload_bytes = pages * kPageSize;
    return DecodePeerMessage(frame).ok();
  };
  EXPECT_FALSE(with_pages(good, 0)) << "blocks without bytes";
  EXPECT_FALSE(with_pages(good, 3)) << "one and a half pages a block";
  EXPECT_FALSE(with_pages(good, 2 * kMaxPayloadPages));
  EXPECT_FALSE(with_pages(question, 2)) << "a question with payload";

  // The answer of one who has none.
  got = DecodePeerMessage(Arrived(EncodePeerMessage(OwedMessage{3, 2, 1, true, 77, {}, {}})));
  ASSERT_OK(got.status());
  EXPECT_TRUE(std::get<OwedMessage>(*got).blocks.empty());
  const std::vector<BlockName> many(OwedMessage::kMostBlocks + 1);
  EXPECT_FALSE(
      DecodePeerMessage(Arrived(EncodePeerMessage(OwedMessage{3, 1, 2, false, 1, many, {}}))).ok());
}

TEST(PeerWire, CarriesHeartbeats) {
  paxos::Heartbeat heartbeat;
  heartbeat.from = 1;
  heartbeat.to = 2;
  heartbeat.boot = 5;
  heartbeat.sequence = 9;
  const PeerFrame sent = EncodePeerMessage(heartbeat);
  EXPECT_EQ(sent.type, FrameType::kHeartbeat);
  const auto got = DecodePeerMessage(Arrived(sent));
  ASSERT_OK(got.status());
  EXPECT_EQ(std::get<paxos::Heartbeat>(*got).sequence, 9u);
}

// Whatever is cut, too long or of another kind is refused, and nothing reads beyond its end.
TEST(PeerWire, RefusesWhatIsNotWhole) {
  const Frame good = Arrived(EncodePeerMessage(AcceptOf({WriteOf(1, 2)})));
  ASSERT_OK(DecodePeerMessage(good).status());
  for (size_t length = 0; length < good.header.size(); ++length) {
    Frame cut = good;
    cut.header.resize(length);
    EXPECT_FALSE(DecodePeerMessage(cut).ok()) << length;
  }
  Frame longer = good;
  longer.header += "x";
  EXPECT_FALSE(DecodePeerMessage(longer).ok());
  Frame less = good;
  less.payload_bytes -= kPageSize;
  EXPECT_FALSE(DecodePeerMessage(less).ok());
  Frame none = good;
  none.payload_bytes = 0;
  none.payload = {};
  EXPECT_FALSE(DecodePeerMessage(none).ok());
  for (size_t at = 0; at < good.header.size(); ++at) {
    for (const uint8_t flip : {0x01, 0x80, 0xff}) {
      Frame changed = good;
      changed.header[at] = static_cast<char>(changed.header[at] ^ flip);
      DecodePeerMessage(changed).status().IgnoreError();  // any answer, no crash
    }
  }
}

}  // namespace
}  // namespace hydra
