// SPDX-License-Identifier: Apache-2.0
#include "blockstore/batch_format.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/coding.h"
#include "base/crc32c.h"

namespace hydra {
namespace {

constexpr uint32_t kSegmentMagic = 0x47455348;
constexpr uint32_t kBatchMagic = 0x54414248;
constexpr uint16_t kFormatVersion = 1;
constexpr size_t kCrcOffset = 8;
constexpr uint8_t kSealFlag = 1;

// CRC of header pages with the CRC field taken as zero.
uint32_t PagesCrc(const Uuid& store, SegmentNumber segment, uint32_t page,
                  std::span<const uint8_t> pages) {
  static constexpr std::array<uint8_t, 4> kZero{};
  uint32_t crc = HeaderSeed(store, segment, page);
  crc = Crc32c(pages.first(kCrcOffset), crc);
  crc = Crc32c(kZero, crc);
  return Crc32c(pages.subspan(kCrcOffset + 4), crc);
}

Status Invalid(const char* why) { return Status::Corruption(why); }

}  // namespace

uint32_t HeaderSeed(const Uuid& store, SegmentNumber segment, uint32_t page) {
  std::array<uint8_t, 24> seed;
  std::copy(store.bytes.begin(), store.bytes.end(), seed.begin());
  EncodeFixed32(seed.data() + 16, segment);
  EncodeFixed32(seed.data() + 20, page);
  return Crc32c(seed);
}

void EncodeSegmentHeader(const Uuid& store, const SegmentHeader& header, std::span<uint8_t> page) {
  HYDRA_CHECK(page.size() == kPageSize);
  std::fill(page.begin(), page.end(), uint8_t{0});
  uint8_t* p = page.data();
  EncodeFixed32(p, kSegmentMagic);
  EncodeFixed16(p + 4, kFormatVersion);
  p[6] = static_cast<uint8_t>(header.lane);
  EncodeFixed32(p + 12, header.segment);
  std::copy(store.bytes.begin(), store.bytes.end(), p + 16);
  EncodeFixed64(p + 32, header.segment_bytes);
  EncodeFixed64(p + 40, header.first_batch);
  EncodeFixed32(p + 48, header.chain);
  EncodeFixed32(p + kCrcOffset, PagesCrc(store, header.segment, 0, page));
}

Result<SegmentHeader> DecodeSegmentHeader(const Uuid& store, SegmentNumber segment,
                                          std::span<const uint8_t> page) {
  const uint8_t* p = page.data();
  if (page.size() != kPageSize || DecodeFixed32(p) != kSegmentMagic) return Invalid("no magic");
  if (DecodeFixed16(p + 4) != kFormatVersion) return Invalid("unknown format version");
  if (DecodeFixed32(p + kCrcOffset) != PagesCrc(store, segment, 0, page)) return Invalid("CRC");
  SegmentHeader header;
  header.lane = p[6];
  header.segment = DecodeFixed32(p + 12);
  header.segment_bytes = DecodeFixed64(p + 32);
  header.first_batch = DecodeFixed64(p + 40);
  header.chain = DecodeFixed32(p + 48);
  if (header.segment != segment || header.lane >= kLanes) return Invalid("fields");
  return header;
}

void EncodeBatchHeader(const Uuid& store, BatchHeader* header, std::span<uint8_t> pages) {
  HYDRA_CHECK(header->header_pages >= 1 && header->header_pages <= kMaxHeaderPages);
  HYDRA_CHECK(header->payload_pages <= kMaxPayloadPages);
  HYDRA_CHECK(pages.size() == header->header_pages * kPageSize);
  HYDRA_CHECK(header->header_bytes >= kBatchFixedBytes && header->header_bytes <= pages.size());
  uint8_t* p = pages.data();
  std::fill(p, p + kBatchFixedBytes, uint8_t{0});
  EncodeFixed32(p, kBatchMagic);
  EncodeFixed16(p + 4, kFormatVersion);
  p[6] = header->seal ? kSealFlag : 0;
  p[7] = static_cast<uint8_t>(header->lane);
  EncodeFixed32(p + 12, header->header_bytes);
  EncodeFixed64(p + 16, header->number);
  EncodeFixed32(p + 24, header->segment);
  EncodeFixed32(p + 28, header->page);
  EncodeFixed32(p + 32, header->chain);
  EncodeFixed16(p + 36, static_cast<uint16_t>(header->header_pages));
  EncodeFixed16(p + 38, static_cast<uint16_t>(header->payload_pages));
  EncodeFixed32(p + 40, header->generation);
  EncodeFixed32(p + 44, header->record_count);
  header->crc = PagesCrc(store, header->segment, header->page, pages);
  EncodeFixed32(p + kCrcOffset, header->crc);
}

uint32_t PeekBatchHeader(SegmentNumber segment, uint32_t page, std::span<const uint8_t> bytes) {
  const uint8_t* p = bytes.data();
  if (bytes.size() < kPageSize || DecodeFixed32(p) != kBatchMagic) return 0;
  if (DecodeFixed16(p + 4) != kFormatVersion) return 0;
  if (DecodeFixed32(p + 24) != segment || DecodeFixed32(p + 28) != page) return 0;
  const uint32_t header_pages = DecodeFixed16(p + 36);
  return header_pages <= kMaxHeaderPages ? header_pages : 0;
}

Result<BatchHeader> DecodeBatchHeader(const Uuid& store, SegmentNumber segment, uint32_t page,
                                      uint32_t segment_pages, std::span<const uint8_t> pages) {
  const uint32_t header_pages = PeekBatchHeader(segment, page, pages);
  if (header_pages == 0) return Invalid("not a batch header");
  if (pages.size() < header_pages * kPageSize) return Invalid("cut short");
  pages = pages.first(header_pages * kPageSize);
  const uint8_t* p = pages.data();
  BatchHeader header;
  header.crc = DecodeFixed32(p + kCrcOffset);
  if (header.crc != PagesCrc(store, segment, page, pages)) return Invalid("CRC");
  header.seal = (p[6] & kSealFlag) != 0;
  header.lane = p[7];
  header.header_bytes = DecodeFixed32(p + 12);
  header.number = DecodeFixed64(p + 16);
  header.segment = segment;
  header.page = page;
  header.chain = DecodeFixed32(p + 32);
  header.header_pages = header_pages;
  header.payload_pages = DecodeFixed16(p + 38);
  header.generation = DecodeFixed32(p + 40);
  header.record_count = DecodeFixed32(p + 44);
  if (header.lane >= kLanes || header.number == 0 || header.payload_pages > kMaxPayloadPages ||
      header.header_bytes < kBatchFixedBytes || header.header_bytes > pages.size() ||
      header.pages() > segment_pages || page > segment_pages - header.pages()) {
    return Invalid("fields");
  }
  return header;
}

namespace {

enum class Is : uint8_t { kNo, kYes, kAny };

struct Rule {
  Is readable, header, generation, chain, successor, payload;
  BatchVerdict verdict;
};

// docs/disk-format.md, section 7, row by row; the first match counts.
constexpr Is N = Is::kNo, Y = Is::kYes, A = Is::kAny;
constexpr Rule kRules[] = {
    // readable header generation chain successor payload
    {A, N, A, A, Y, A, BatchVerdict::kHeaderRotten},
    {Y, N, A, A, N, A, BatchVerdict::kEnd},
    {N, N, A, A, N, A, BatchVerdict::kHeaderRotten},
    {A, Y, N, A, Y, A, BatchVerdict::kHeaderRotten},
    {Y, Y, N, A, N, A, BatchVerdict::kEnd},
    {N, Y, N, A, N, A, BatchVerdict::kHeaderRotten},
    {A, Y, Y, Y, A, Y, BatchVerdict::kAccept},
    {A, Y, Y, Y, Y, N, BatchVerdict::kAcceptPayloadRotten},
    {Y, Y, Y, Y, N, N, BatchVerdict::kTorn},
    {N, Y, Y, Y, N, N, BatchVerdict::kAcceptPayloadRotten},
    {A, Y, Y, N, Y, A, BatchVerdict::kAcceptAfterGap},
    {A, Y, Y, N, N, Y, BatchVerdict::kAcceptAfterGap},
    {Y, Y, Y, N, N, N, BatchVerdict::kTornAfterGap},
    {N, Y, Y, N, N, N, BatchVerdict::kAcceptAfterGapPayloadRotten},
};

bool Matches(Is rule, bool fact) { return rule == Is::kAny || (rule == Is::kYes) == fact; }

}  // namespace

BatchVerdict Judge(const BatchEvidence& e) {
  for (const Rule& rule : kRules) {
    if (Matches(rule.readable, e.readable) && Matches(rule.header, e.header_valid) &&
        Matches(rule.generation, e.generation_ok) && Matches(rule.chain, e.chain_valid) &&
        Matches(rule.successor, e.successor) && Matches(rule.payload, e.payload_valid)) {
      return rule.verdict;
    }
  }
  HYDRA_CHECK(false && "the recovery table has a hole");
  return BatchVerdict::kEnd;
}

const char* VerdictName(BatchVerdict verdict) {
  switch (verdict) {
    case BatchVerdict::kAccept: return "accept";
    case BatchVerdict::kAcceptPayloadRotten: return "accept, payload rotten";
    case BatchVerdict::kAcceptAfterGap: return "accept after a gap";
    case BatchVerdict::kAcceptAfterGapPayloadRotten: return "accept after a gap, payload rotten";
    case BatchVerdict::kHeaderRotten: return "header rotten";
    case BatchVerdict::kTorn: return "torn";
    case BatchVerdict::kTornAfterGap: return "torn after a gap";
    case BatchVerdict::kEnd: return "end";
  }
  return "?";
}

}  // namespace hydra
