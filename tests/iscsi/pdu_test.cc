// SPDX-License-Identifier: Apache-2.0
#include "iscsi/pdu.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/gtest_status.h"

namespace hydra::iscsi {
namespace {

struct Received {
  Header header;
  std::vector<uint8_t> ahs;
  std::vector<uint8_t> data;
  bool intact = true;
};

class Collector : public PduReader::Sink {
 public:
  Result<std::span<uint8_t>> Begin(const Header& header, std::span<const uint8_t> ahs) override {
    received.push_back({header, {ahs.begin(), ahs.end()}, {}, true});
    if (drop) return std::span<uint8_t>();
    received.back().data.resize(header.data_bytes());
    return std::span(received.back().data);
  }
  void HeaderDamaged() override { ++damaged_headers; }
  Status End(bool intact) override {
    received.back().intact = intact;
    return Status::Ok();
  }

  std::vector<Received> received;
  bool drop = false;
  int damaged_headers = 0;
};

std::string Wire(OutPdu pdu, Digests digests) {
  const Framing framing = Frame(&pdu, digests);
  std::string bytes(framing.head.begin(), framing.head.begin() + framing.head_bytes);
  bytes.append(reinterpret_cast<const char*>(pdu.data().data()), pdu.data().size());
  bytes.append(framing.tail.begin(), framing.tail.begin() + framing.tail_bytes);
  return bytes;
}

// In pieces of at most `step` bytes.
Status FeedReader(PduReader* reader, std::string_view bytes, size_t step) {
  while (!bytes.empty()) {
    const std::span<uint8_t> want = reader->Want();
    const size_t now = std::min({want.size(), bytes.size(), step});
    std::copy_n(bytes.begin(), now, want.begin());
    bytes.remove_prefix(now);
    HYDRA_RETURN_IF_ERROR(reader->Got(now));
  }
  return Status::Ok();
}

OutPdu Nop(std::string text) {
  OutPdu pdu;
  pdu.header = Header(Opcode::kNopOut);
  pdu.header.set_task_tag(7);
  pdu.text = std::move(text);
  return pdu;
}

TEST(Pdu, NumbersAreBigEndian) {
  const uint8_t bytes[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  EXPECT_EQ(Get16(bytes), 0x0102);
  EXPECT_EQ(Get24(bytes), 0x010203u);
  EXPECT_EQ(Get32(bytes), 0x01020304u);
  EXPECT_EQ(Get64(bytes), 0x0102030405060708u);
  uint8_t copy[8];
  Put64(copy, Get64(bytes));
  EXPECT_TRUE(std::equal(bytes, bytes + 8, copy));
}

TEST(Pdu, SerialNumbersCompareAroundTheEnd) {
  EXPECT_TRUE(SerialLess(1, 2));
  EXPECT_FALSE(SerialLess(2, 2));
  EXPECT_TRUE(SerialLess(0xffffffff, 0));
  EXPECT_FALSE(SerialLess(0, 0xffffffff));
}

TEST(PduReader, TakesPdusApartHoweverTheyArrive) {
  for (const bool header_digest : {false, true}) {
    for (const bool data_digest : {false, true}) {
      for (const size_t step : {1u, 3u, 4u, 48u, 1000u}) {
        const Digests digests{header_digest, data_digest};
        Collector collector;
        PduReader reader(&collector);
        reader.SetDigests(digests);
        std::string wire;
        for (const size_t length : {0u, 1u, 2u, 3u, 4u, 5u, 511u}) {
          wire += Wire(Nop(std::string(length, 'x')), digests);
        }
        ASSERT_OK(FeedReader(&reader, wire, step));
        ASSERT_EQ(collector.received.size(), 7u);
        EXPECT_EQ(collector.received[6].data.size(), 511u);
        for (const Received& pdu : collector.received) EXPECT_TRUE(pdu.intact);
        EXPECT_TRUE(reader.at_start());
      }
    }
  }
}

TEST(PduReader, GivesAdditionalHeadersToTheSink) {
  Collector collector;
  PduReader reader(&collector);
  Header header(Opcode::kScsiCommand);
  header.bytes[4] = 2;
  std::string wire(header.bytes.begin(), header.bytes.end());
  wire += "abcdefgh";
  ASSERT_OK(FeedReader(&reader, wire, 5));
  ASSERT_EQ(collector.received.size(), 1u);
  EXPECT_EQ(std::string(collector.received[0].ahs.begin(), collector.received[0].ahs.end()),
            "abcdefgh");
}

TEST(PduReader, RefusesDataBeyondTheLimitBeforeAskingForMemory) {
  Collector collector;
  PduReader reader(&collector);
  reader.SetMaxData(512);
  EXPECT_EQ(FeedReader(&reader, Wire(Nop(std::string(513, 'x')), {}), 48).code(),
            Code::kInvalidArgument);
  EXPECT_TRUE(collector.received.empty());
}

TEST(PduReader, AWrongHeaderDigestEndsIt) {
  Collector collector;
  PduReader reader(&collector);
  reader.SetDigests({true, true});
  std::string wire = Wire(Nop("hello"), {true, true});
  wire[16] ^= 1;
  EXPECT_EQ(FeedReader(&reader, wire, 100).code(), Code::kCorruption);
  EXPECT_EQ(collector.damaged_headers, 1);
}

TEST(PduReader, AWrongDataDigestIsToldAlsoOfDroppedData) {
  for (const bool drop : {false, true}) {
    for (const bool damage : {false, true}) {
      Collector collector;
      collector.drop = drop;
      PduReader reader(&collector);
      reader.SetDigests({false, true});
      std::string wire = Wire(Nop(std::string(5000, 'y')), {false, true});
      if (damage) wire[100] ^= 1;
      ASSERT_OK(FeedReader(&reader, wire, 777));
      ASSERT_EQ(collector.received.size(), 1u);
      EXPECT_EQ(collector.received[0].intact, !damage);
    }
  }
}

}  // namespace
}  // namespace hydra::iscsi
