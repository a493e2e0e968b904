// SPDX-License-Identifier: Apache-2.0
#include "client/frame.h"

#include <array>
#include <cstdint>
#include <string>

#include <gtest/gtest.h>

#include "base/coding.h"
#include "base/crc32c.h"
#include "tests/support/gtest_status.h"

namespace hydra {
namespace {

using Head = std::array<uint8_t, kFrameHeadBytes>;

Head Encoded(FrameType type = FrameType::kRequest, uint32_t payload = 8192) {
  Head head;
  EncodeFrameHead(type, 0x1122334455667788, "header", payload, head.data());
  return head;
}

void Reseal(Head* head) {
  EncodeFixed32(head->data() + 28, Crc32c(head->data(), kFrameHeadBytes - 4));
}

TEST(Frame, HeadComesBackAsItWas) {
  const auto head = DecodeFrameHead(Encoded(), {});
  ASSERT_OK(head.status());
  EXPECT_EQ(head->type, FrameType::kRequest);
  EXPECT_EQ(head->id, 0x1122334455667788u);
  EXPECT_EQ(head->header_bytes, 6u);
  EXPECT_EQ(head->payload_bytes, 8192u);
  EXPECT_EQ(head->header_crc, Crc32c("header", 6));
}

TEST(Frame, BytesAreWhatTheFormatSays) {
  const Head head = Encoded();
  EXPECT_EQ(std::string(head.begin(), head.begin() + 4), "HYF1");
  EXPECT_EQ(head[4], 1);
  EXPECT_EQ(head[5], 6);
  EXPECT_EQ(head[6] | head[7], 0);
  EXPECT_EQ(head[8], 0x88);
  EXPECT_EQ(head[15], 0x11);
  EXPECT_EQ(head[16], 6);
  EXPECT_EQ(head[21], 0x20);
}

TEST(Frame, EveryTruncationIsRefused) {
  const Head head = Encoded();
  for (size_t length = 0; length < head.size(); ++length) {
    EXPECT_CODE(DecodeFrameHead(std::span(head).first(length), {}).status(), Code::kCorruption);
  }
}

TEST(Frame, EveryBitFlipIsRefused) {
  for (size_t bit = 0; bit < kFrameHeadBytes * 8; ++bit) {
    Head head = Encoded();
    head[bit / 8] ^= static_cast<uint8_t>(1u << (bit % 8));
    EXPECT_CODE(DecodeFrameHead(head, {}).status(), Code::kCorruption);
  }
}

TEST(Frame, NewerVersionsAndFlagsAreNamedAsSuch) {
  Head newer = Encoded();
  newer[4] = 2;
  Reseal(&newer);
  EXPECT_CODE(DecodeFrameHead(newer, {}).status(), Code::kUnsupported);
  Head flagged = Encoded();
  flagged[6] = 1;
  Reseal(&flagged);
  EXPECT_CODE(DecodeFrameHead(flagged, {}).status(), Code::kUnsupported);
}

TEST(Frame, LimitsAreCheckedBeforeAnythingElseIsRead) {
  FrameLimits limits;
  limits.payload_bytes = 8191;
  EXPECT_CODE(DecodeFrameHead(Encoded(), limits).status(), Code::kOutOfRange);
  limits.payload_bytes = 8192;
  limits.header_bytes = 5;
  EXPECT_CODE(DecodeFrameHead(Encoded(), limits).status(), Code::kOutOfRange);
  limits.header_bytes = 6;
  EXPECT_OK(DecodeFrameHead(Encoded(), limits).status());
}

}  // namespace
}  // namespace hydra
