// SPDX-License-Identifier: Apache-2.0
//
// Header pages of segments and batches (docs/disk-format.md, sections 3 and 4), and what a batch
// header found on disk is worth.
#pragma once

#include <cstdint>
#include <span>

#include "base/buffer.h"
#include "base/status.h"
#include "base/uuid.h"
#include "blockstore/types.h"

namespace hydra {

inline constexpr uint32_t kLanes = 2;
inline constexpr uint32_t kLogLane = 0;
inline constexpr uint32_t kRelocationLane = 1;

inline constexpr uint32_t kMaxHeaderPages = 16;
inline constexpr uint32_t kMaxPayloadPages = 256;  // 1 MiB: a whole extent in one batch
inline constexpr uint32_t kBatchFixedBytes = 64;
inline constexpr uint32_t kMaxRecordAreaBytes = kMaxHeaderPages * kPageSize - kBatchFixedBytes;
inline constexpr uint32_t kFirstBatchPage = 1;

struct SegmentHeader {
  SegmentNumber segment = 0;
  uint32_t lane = 0;
  uint64_t segment_bytes = 0;
  uint64_t first_batch = 0;
  uint32_t chain = 0;
};

struct BatchHeader {
  uint64_t number = 0;
  SegmentNumber segment = 0;
  uint32_t page = 0;
  uint32_t lane = 0;
  bool seal = false;
  uint32_t chain = 0;
  uint32_t header_bytes = 0;
  uint32_t header_pages = 0;
  uint32_t payload_pages = 0;
  uint32_t generation = 0;
  uint32_t record_count = 0;
  uint32_t crc = 0;  // filled in by EncodeBatchHeader and by DecodeBatchHeader

  uint32_t pages() const { return header_pages + payload_pages; }
};

// The CRC that every header of this store, at this place, starts from.
uint32_t HeaderSeed(const Uuid& store, SegmentNumber segment, uint32_t page);

// `page` has kPageSize bytes.
void EncodeSegmentHeader(const Uuid& store, const SegmentHeader& header, std::span<uint8_t> page);
Result<SegmentHeader> DecodeSegmentHeader(const Uuid& store, SegmentNumber segment,
                                          std::span<const uint8_t> page);

// `pages` holds header->header_pages pages with the records from kBatchFixedBytes on and zeroes
// after them. Fills in the fixed part and header->crc.
void EncodeBatchHeader(const Uuid& store, BatchHeader* header, std::span<uint8_t> pages);

// Quick look at a page: may it be the first page of a batch header of this segment at this page?
// Gives the number of header pages to read before DecodeBatchHeader can decide; 0 = no.
uint32_t PeekBatchHeader(SegmentNumber segment, uint32_t page, std::span<const uint8_t> bytes);

// `pages` holds at least as many pages as PeekBatchHeader said. `segment_pages` bounds the batch.
Result<BatchHeader> DecodeBatchHeader(const Uuid& store, SegmentNumber segment, uint32_t page,
                                      uint32_t segment_pages, std::span<const uint8_t> pages);

// --- The recovery decision (docs/disk-format.md, section 7) ---------------------------------

// What is known about the place where batch n should be.
struct BatchEvidence {
  bool readable = true;        // the device returned the pages
  bool header_valid = false;   // seeded CRC and all fields are right
  bool generation_ok = false;  // not older than the batch before
  bool chain_valid = false;    // number and chain CRC follow the batch before
  bool successor = false;      // a later valid batch exists
  bool payload_valid = false;  // evaluated only without a successor
};

enum class BatchVerdict : uint8_t {
  kAccept,
  kAcceptPayloadRotten,
  kAcceptAfterGap,
  kAcceptAfterGapPayloadRotten,
  kHeaderRotten,
  kTorn,
  kTornAfterGap,
  kEnd,
};

BatchVerdict Judge(const BatchEvidence& evidence);
const char* VerdictName(BatchVerdict verdict);

}  // namespace hydra
