// SPDX-License-Identifier: Apache-2.0
#include "blockstore/batch_format.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "base/coding.h"
#include "base/crc32c.h"

namespace hydra {
namespace {

constexpr uint32_t kSegmentPages = 65'536;

Uuid StoreUuid(uint8_t last = 1) {
  Uuid uuid;
  uuid.bytes[0] = 0xab;
  uuid.bytes[15] = last;
  return uuid;
}

BatchHeader SomeHeader() {
  BatchHeader header;
  header.number = 77;
  header.segment = 9;
  header.page = 1000;
  header.lane = 1;
  header.chain = 0xdeadbeef;
  header.header_pages = 2;
  header.header_bytes = 5000;
  header.payload_pages = 30;
  header.generation = 4;
  header.record_count = 3;
  return header;
}

std::vector<uint8_t> EncodedBatch(BatchHeader* header) {
  std::vector<uint8_t> pages(header->header_pages * kPageSize);
  for (size_t i = kBatchFixedBytes; i < header->header_bytes; ++i) {
    pages[i] = static_cast<uint8_t>(i * 7);
  }
  EncodeBatchHeader(StoreUuid(), header, pages);
  return pages;
}

// As recovery does it: peek first, then decode.
bool IsBatch(const std::vector<uint8_t>& pages, SegmentNumber segment = 9, uint32_t page = 1000,
             const Uuid& store = StoreUuid()) {
  const uint32_t header_pages = PeekBatchHeader(segment, page, std::span(pages).first(kPageSize));
  if (header_pages == 0 || header_pages * kPageSize > pages.size()) return false;
  return DecodeBatchHeader(store, segment, page, kSegmentPages, pages).ok();
}

RC_GTEST_PROP(BatchHeader, ComesBackAsItWas, ()) {
  BatchHeader header;
  header.number = 1 + *rc::gen::arbitrary<uint32_t>();
  header.segment = *rc::gen::arbitrary<uint32_t>();
  header.lane = static_cast<uint32_t>(*rc::gen::inRange(0, 2));
  header.seal = *rc::gen::arbitrary<bool>();
  header.chain = *rc::gen::arbitrary<uint32_t>();
  header.header_pages = static_cast<uint32_t>(*rc::gen::inRange(1, 17));
  header.payload_pages = static_cast<uint32_t>(*rc::gen::inRange(0, 257));
  header.header_bytes = *rc::gen::inRange<uint32_t>(
      kBatchFixedBytes, header.header_pages * static_cast<uint32_t>(kPageSize) + 1);
  header.page = *rc::gen::inRange<uint32_t>(1, kSegmentPages - 300);
  header.generation = *rc::gen::arbitrary<uint32_t>();
  header.record_count = *rc::gen::arbitrary<uint32_t>();
  const std::vector<uint8_t> pages = EncodedBatch(&header);

  RC_ASSERT(PeekBatchHeader(header.segment, header.page, pages) == header.header_pages);
  const Result<BatchHeader> back =
      DecodeBatchHeader(StoreUuid(), header.segment, header.page, kSegmentPages, pages);
  RC_ASSERT(back.ok());
  RC_ASSERT(back->number == header.number);
  RC_ASSERT(back->segment == header.segment);
  RC_ASSERT(back->page == header.page);
  RC_ASSERT(back->lane == header.lane);
  RC_ASSERT(back->seal == header.seal);
  RC_ASSERT(back->chain == header.chain);
  RC_ASSERT(back->header_bytes == header.header_bytes);
  RC_ASSERT(back->header_pages == header.header_pages);
  RC_ASSERT(back->payload_pages == header.payload_pages);
  RC_ASSERT(back->generation == header.generation);
  RC_ASSERT(back->record_count == header.record_count);
  RC_ASSERT(back->crc == header.crc);
}

TEST(BatchHeader, EverySingleBitFlipIsDetected) {
  BatchHeader header = SomeHeader();
  std::vector<uint8_t> pages = EncodedBatch(&header);
  ASSERT_TRUE(IsBatch(pages));
  for (size_t bit = 0; bit < pages.size() * 8; ++bit) {
    pages[bit / 8] ^= static_cast<uint8_t>(1u << (bit % 8));
    ASSERT_FALSE(IsBatch(pages)) << "bit " << bit;
    pages[bit / 8] ^= static_cast<uint8_t>(1u << (bit % 8));
  }
  ASSERT_TRUE(IsBatch(pages));
}

TEST(BatchHeader, IsValidAtItsOwnPlaceInItsOwnStoreOnly) {
  BatchHeader header = SomeHeader();
  const std::vector<uint8_t> pages = EncodedBatch(&header);
  EXPECT_TRUE(IsBatch(pages, 9, 1000));
  EXPECT_FALSE(IsBatch(pages, 10, 1000));
  EXPECT_FALSE(IsBatch(pages, 9, 1001));
  EXPECT_FALSE(IsBatch(pages, 9, 1000, StoreUuid(2)));

  // Nor with the place in the bytes corrected, under the CRC of the place it comes from.
  const auto moved = [&](size_t field, uint32_t value) {
    std::vector<uint8_t> forged = pages;
    EncodeFixed32(forged.data() + field, value);
    EncodeFixed32(forged.data() + 8, 0);
    EncodeFixed32(forged.data() + 8, Crc32c(forged, HeaderSeed(StoreUuid(), 9, 1000)));
    return forged;
  };
  EXPECT_TRUE(IsBatch(moved(24, 9), 9, 1000)) << "the forger knows how to make a CRC";
  EXPECT_FALSE(IsBatch(moved(24, 10), 10, 1000));
  EXPECT_FALSE(IsBatch(moved(28, 1001), 9, 1001));
}

TEST(BatchHeader, IsRefusedWhenItReachesPastItsSegment) {
  BatchHeader header = SomeHeader();
  const std::vector<uint8_t> pages = EncodedBatch(&header);
  const auto fits = [&](uint32_t segment_pages) {
    return DecodeBatchHeader(StoreUuid(), 9, 1000, segment_pages, pages).ok();
  };
  EXPECT_TRUE(fits(1032));
  EXPECT_FALSE(fits(1031));
  EXPECT_FALSE(fits(10));
  EXPECT_FALSE(fits(0));
}

TEST(BatchHeader, IsRefusedWhenPagesAreMissing) {
  BatchHeader header = SomeHeader();
  const std::vector<uint8_t> pages = EncodedBatch(&header);
  EXPECT_FALSE(
      DecodeBatchHeader(StoreUuid(), 9, 1000, kSegmentPages, std::span(pages).first(kPageSize))
          .ok());
  EXPECT_FALSE(DecodeBatchHeader(StoreUuid(), 9, 1000, kSegmentPages, {}).ok());
}

// A header whose CRC is right but whose fields make no sense comes from a broken writer; reading
// it must not lead anywhere.
TEST(BatchHeader, NonsenseUnderAValidCrcIsRefused) {
  const auto refuse = [](const char* what, void (*spoil)(uint8_t*)) {
    BatchHeader header = SomeHeader();
    std::vector<uint8_t> pages = EncodedBatch(&header);
    spoil(pages.data());
    EncodeFixed32(pages.data() + 8, 0);
    const uint32_t seed = HeaderSeed(StoreUuid(), 9, 1000);
    EncodeFixed32(pages.data() + 8, Crc32c(pages, seed));
    EXPECT_FALSE(IsBatch(pages)) << what;
  };
  refuse("lane", [](uint8_t* p) { p[7] = 2; });
  refuse("number 0", [](uint8_t* p) { EncodeFixed64(p + 16, 0); });
  refuse("header bytes below the fixed part", [](uint8_t* p) { EncodeFixed32(p + 12, 63); });
  refuse("header bytes above the pages", [](uint8_t* p) { EncodeFixed32(p + 12, 8193); });
  refuse("payload pages", [](uint8_t* p) { EncodeFixed16(p + 38, 257); });
  refuse("format version", [](uint8_t* p) { EncodeFixed16(p + 4, 2); });
}

TEST(BatchHeader, PeekRefusesShortAndForeignPages) {
  BatchHeader header = SomeHeader();
  std::vector<uint8_t> pages = EncodedBatch(&header);
  EXPECT_EQ(PeekBatchHeader(9, 1000, std::span(pages).first(100)), 0u);
  EXPECT_EQ(PeekBatchHeader(9, 1000, {}), 0u);
  EncodeFixed16(pages.data() + 36, kMaxHeaderPages + 1);
  EXPECT_EQ(PeekBatchHeader(9, 1000, pages), 0u);
  EXPECT_EQ(PeekBatchHeader(9, 1000, std::vector<uint8_t>(kPageSize)), 0u);
}

// --- Segments --------------------------------------------------------------------------------

std::vector<uint8_t> EncodedSegment() {
  SegmentHeader header;
  header.segment = 12;
  header.lane = 1;
  header.segment_bytes = 1 << 20;
  header.first_batch = 345;
  header.chain = 0x12345678;
  std::vector<uint8_t> page(kPageSize);
  EncodeSegmentHeader(StoreUuid(), header, page);
  return page;
}

TEST(SegmentHeader, ComesBackAsItWas) {
  const Result<SegmentHeader> back = DecodeSegmentHeader(StoreUuid(), 12, EncodedSegment());
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->segment, 12u);
  EXPECT_EQ(back->lane, 1u);
  EXPECT_EQ(back->segment_bytes, 1u << 20);
  EXPECT_EQ(back->first_batch, 345u);
  EXPECT_EQ(back->chain, 0x12345678u);
}

TEST(SegmentHeader, EverySingleBitFlipIsDetected) {
  std::vector<uint8_t> page = EncodedSegment();
  for (size_t bit = 0; bit < page.size() * 8; ++bit) {
    page[bit / 8] ^= static_cast<uint8_t>(1u << (bit % 8));
    ASSERT_FALSE(DecodeSegmentHeader(StoreUuid(), 12, page).ok()) << "bit " << bit;
    page[bit / 8] ^= static_cast<uint8_t>(1u << (bit % 8));
  }
}

TEST(SegmentHeader, BelongsToOneStoreAndOneNumber) {
  const std::vector<uint8_t> page = EncodedSegment();
  EXPECT_FALSE(DecodeSegmentHeader(StoreUuid(), 13, page).ok());
  EXPECT_FALSE(DecodeSegmentHeader(StoreUuid(2), 12, page).ok());
}

TEST(SegmentHeader, IsNotABatchHeader) { EXPECT_EQ(PeekBatchHeader(12, 0, EncodedSegment()), 0u); }

}  // namespace
}  // namespace hydra
