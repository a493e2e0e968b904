// SPDX-License-Identifier: Apache-2.0
#include "base/coding.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck.h>

namespace hydra {
namespace {

TEST(Coding, FixedIsLittleEndianAndBigIsBigEndian) {
  std::string s;
  PutU8(&s, 0x01);
  PutFixed16(&s, 0x0302);
  PutFixed32(&s, 0x07060504);
  PutFixed64(&s, 0x0f0e0d0c0b0a0908);
  PutBig32(&s, 0x10111213);
  PutBig64(&s, 0x1415161718191a1b);
  for (size_t i = 0; i < s.size(); ++i) {
    EXPECT_EQ(static_cast<uint8_t>(s[i]), i + 1) << i;
  }
}

TEST(Coding, EveryValueComesBack) {
  EXPECT_TRUE(rc::check([](uint8_t a, uint16_t b, uint32_t c, uint64_t d, uint64_t e) {
    std::string s;
    PutU8(&s, a);
    PutFixed16(&s, b);
    PutFixed32(&s, c);
    PutFixed64(&s, d);
    PutVarint64(&s, e);
    PutBig32(&s, c);
    PutBig64(&s, d);
    PutVarint64(&s, c);
    Decoder in(AsBytes(s));
    uint8_t a2 = 0;
    uint16_t b2 = 0;
    uint32_t c2 = 0, c3 = 0, c4 = 0;
    uint64_t d2 = 0, d3 = 0, e2 = 0;
    RC_ASSERT(in.U8(&a2) && in.Fixed16(&b2) && in.Fixed32(&c2) && in.Fixed64(&d2));
    RC_ASSERT(in.Varint64(&e2) && in.Big32(&c3) && in.Big64(&d3) && in.Varint32(&c4));
    RC_ASSERT(a == a2 && b == b2 && c == c2 && d == d2 && e == e2);
    RC_ASSERT(c == c3 && c == c4 && d == d3);
    RC_ASSERT(in.remaining() == 0u && in.ok());
  }));
}

TEST(Coding, PointersAndStringsAgree) {
  uint8_t bytes[8];
  EncodeFixed16(bytes, 0xabcd);
  EXPECT_EQ(DecodeFixed16(bytes), 0xabcd);
  EncodeFixed32(bytes, 0xdeadbeef);
  EXPECT_EQ(DecodeFixed32(bytes), 0xdeadbeef);
  EXPECT_EQ(DecodeBig32(bytes), 0xefbeaddeu);
  EncodeBig64(bytes, 0x0102030405060708);
  EXPECT_EQ(bytes[0], 1);
  EXPECT_EQ(DecodeBig64(bytes), 0x0102030405060708u);
}

TEST(Coding, BigEndianKeysSortAsNumbers) {
  EXPECT_TRUE(rc::check([](uint64_t a, uint64_t b) {
    std::string x, y;
    PutBig64(&x, a);
    PutBig64(&y, b);
    RC_ASSERT((a < b) == (x < y));
  }));
}

TEST(Varint, HasTheLengthItAnnouncesAtEveryBorder) {
  for (unsigned bits = 0; bits <= 64; ++bits) {
    const uint64_t top = bits == 64 ? ~0ull : (1ull << bits) - 1;
    for (const uint64_t v : {top, top + 1}) {
      std::string s;
      PutVarint64(&s, v);
      EXPECT_EQ(s.size(), VarintLength(v)) << v;
      Decoder in(AsBytes(s));
      uint64_t back = 0;
      EXPECT_TRUE(in.Varint64(&back));
      EXPECT_EQ(back, v);
    }
  }
}

bool DecodesAsVarint64(const std::vector<uint8_t>& bytes) {
  Decoder in(bytes);
  uint64_t v;
  return in.Varint64(&v);
}

TEST(Varint, RejectsAnythingButTheShortestForm) {
  EXPECT_FALSE(DecodesAsVarint64({0x80, 0x00}));
  EXPECT_FALSE(DecodesAsVarint64({0xff, 0x80, 0x00}));
  EXPECT_FALSE(DecodesAsVarint64({0x81, 0x80, 0x80, 0x00}));
  EXPECT_TRUE(DecodesAsVarint64({0x80, 0x01}));
  EXPECT_TRUE(DecodesAsVarint64({0x00}));
}

TEST(Varint, RejectsMoreThan64Bits) {
  std::vector<uint8_t> bytes(9, 0xff);
  bytes.push_back(0x01);
  EXPECT_TRUE(DecodesAsVarint64(bytes));
  bytes.back() = 0x02;
  EXPECT_FALSE(DecodesAsVarint64(bytes));
  bytes.back() = 0x81;
  bytes.push_back(0x00);
  EXPECT_FALSE(DecodesAsVarint64(bytes));
  EXPECT_FALSE(DecodesAsVarint64(std::vector<uint8_t>(20, 0xff)));
}

TEST(Varint, OfThirtyTwoBitsRejectsMore) {
  std::string s;
  PutVarint64(&s, 1ull << 32);
  Decoder in(AsBytes(s));
  uint32_t v = 7;
  EXPECT_FALSE(in.Varint32(&v));
  EXPECT_EQ(v, 7u);
  EXPECT_EQ(in.position(), 0u);
}

TEST(Decoder, AfterTheFirstFailureEverythingFails) {
  const std::vector<uint8_t> bytes{1, 2, 3};
  Decoder in(bytes);
  uint32_t wide = 99;
  EXPECT_FALSE(in.Fixed32(&wide));
  EXPECT_EQ(wide, 99u);
  uint8_t narrow = 0;
  EXPECT_FALSE(in.U8(&narrow));
  uint64_t v = 0;
  EXPECT_FALSE(in.Varint64(&v));
  std::span<const uint8_t> rest;
  EXPECT_FALSE(in.Bytes(0, &rest));
  EXPECT_FALSE(in.Skip(0));
  EXPECT_FALSE(in.ok());
  EXPECT_EQ(in.position(), 0u);
}

TEST(Decoder, LengthPrefixedStaysInside) {
  std::string bytes;
  PutLengthPrefixed(&bytes, "");
  PutLengthPrefixed(&bytes, "text");
  PutVarint64(&bytes, std::numeric_limits<uint64_t>::max());
  Decoder in(AsBytes(bytes));
  std::string text = "old";
  EXPECT_TRUE(in.LengthPrefixed(&text));
  EXPECT_EQ(text, "");
  EXPECT_TRUE(in.LengthPrefixed(&text));
  EXPECT_EQ(text, "text");
  EXPECT_FALSE(in.LengthPrefixed(&text));
  EXPECT_EQ(text, "text");
}

TEST(Decoder, BytesIsAViewThatStaysInside) {
  const std::vector<uint8_t> bytes{1, 2, 3, 4};
  Decoder in(bytes);
  std::span<const uint8_t> view;
  EXPECT_TRUE(in.Bytes(3, &view));
  EXPECT_EQ(view.data(), bytes.data());
  EXPECT_EQ(in.remaining(), 1u);
  EXPECT_FALSE(in.Bytes(SIZE_MAX, &view));
}

TEST(Decoder, SurvivesArbitraryBytes) {
  EXPECT_TRUE(rc::check([](const std::vector<uint8_t>& bytes, const std::vector<uint8_t>& script) {
    Decoder in(bytes);
    for (const uint8_t step : script) {
      uint64_t v64;
      uint32_t v32;
      uint16_t v16;
      uint8_t v8;
      std::span<const uint8_t> view;
      const size_t before = in.position();
      switch (step % 7) {
        case 0: (void)in.U8(&v8); break;
        case 1: (void)in.Fixed16(&v16); break;
        case 2: (void)in.Fixed32(&v32); break;
        case 3: (void)in.Fixed64(&v64); break;
        case 4: (void)in.Varint64(&v64); break;
        case 5: (void)in.Varint32(&v32); break;
        default: (void)in.Bytes(step, &view); break;
      }
      RC_ASSERT(in.position() >= before);
      RC_ASSERT(in.position() + in.remaining() == bytes.size());
    }
  }));
}

}  // namespace
}  // namespace hydra
