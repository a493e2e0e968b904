// SPDX-License-Identifier: Apache-2.0
//
// Fuzzes everything that reads a batch header: the input becomes header pages, gets a valid seeded
// CRC (a fuzzer cannot guess one), and goes through the decoders. They must refuse or understand;
// what they understood must encode to the same thing again.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/coding.h"
#include "base/crc32c.h"
#include "blockstore/batch_format.h"
#include "blockstore/record.h"

namespace {

using namespace hydra;  // NOLINT: a program of its own

constexpr SegmentNumber kSegment = 7;
constexpr uint32_t kPage = 33;
constexpr uint32_t kSegmentPages = 1024;
constexpr uint32_t kBatchMagic = 0x54414248;

Uuid Store() {
  Uuid uuid;
  uuid.bytes.fill(0x5a);
  return uuid;
}

// Whole pages with magic, version and place as they must be, and a valid CRC.
std::vector<uint8_t> MakePages(const uint8_t* data, size_t size) {
  const size_t pages = std::clamp<size_t>((size + kPageSize - 1) / kPageSize, 1, kMaxHeaderPages);
  std::vector<uint8_t> bytes(pages * kPageSize);
  std::copy_n(data, std::min(size, bytes.size()), bytes.begin());
  EncodeFixed32(bytes.data(), kBatchMagic);
  EncodeFixed16(bytes.data() + 4, 1);
  EncodeFixed32(bytes.data() + 24, kSegment);
  EncodeFixed32(bytes.data() + 28, kPage);
  const size_t claimed = DecodeFixed16(bytes.data() + 36);
  if (claimed == 0 || claimed > pages) EncodeFixed16(bytes.data() + 36, pages);
  const size_t covered = DecodeFixed16(bytes.data() + 36) * kPageSize;
  EncodeFixed32(bytes.data() + 8, 0);
  const uint32_t crc = Crc32c(bytes.data(), covered, HeaderSeed(Store(), kSegment, kPage));
  EncodeFixed32(bytes.data() + 8, crc);
  return bytes;
}

template <typename Record>
void SameAgain(const Result<Record>& record, const RecordView& view) {
  if (!record.ok()) return;
  const std::string bytes = Encode(*record);
  HYDRA_CHECK(bytes.size() == view.body.size() + kRecordHeadBytes);
  HYDRA_CHECK(
      std::equal(view.body.begin(), view.body.end(), AsBytes(bytes).begin() + kRecordHeadBytes));
}

// Operation flags beyond those known, and empty contexts, are read and not written again.
void AcceptAgain(const RecordView& view) {
  const Result<AcceptRecord> record = DecodeAccept(view);
  if (!record.ok() || !record->understood) return;
  (void)ValidateEntry(record->entry, 1);
  const std::string bytes = Encode(*record);
  HYDRA_CHECK(bytes.size() <= view.body.size() + kRecordHeadBytes);
  RecordView again = view;
  again.body = AsBytes(bytes).subspan(kRecordHeadBytes);
  const Result<AcceptRecord> same = DecodeAccept(again);
  HYDRA_CHECK(same.ok() && same->understood && same->entry == record->entry);
  HYDRA_CHECK(same->group == record->group && same->instance == record->instance);
  HYDRA_CHECK(same->ballot == record->ballot && same->stable == record->stable);
}

void DecodeRecord(const RecordView& view) {
  AcceptAgain(view);
  SameAgain(DecodeHardState(view), view);
  SameAgain(DecodeTruncate(view), view);
  SameAgain(DecodeCheckpoint(view), view);
  SameAgain(DecodeRelocate(view), view);
  SameAgain(DecodeGroup(view), view);
  SameAgain(DecodeStable(view), view);
}

void HeaderAgain(const std::vector<uint8_t>& pages, BatchHeader header) {
  std::vector<uint8_t> copy(
      pages.begin(), pages.begin() + static_cast<ptrdiff_t>(header.header_pages * kPageSize));
  const uint32_t crc = header.crc;
  const bool canonical =
      pages[6] <= 1 && std::all_of(pages.begin() + 48, pages.begin() + kBatchFixedBytes,
                                   [](uint8_t b) { return b == 0; });
  EncodeBatchHeader(Store(), &header, copy);
  if (canonical) HYDRA_CHECK(header.crc == crc);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // As it is: no CRC fits, so that only the first look is at stake.
  const std::span<const uint8_t> raw(data, size);
  HYDRA_CHECK(PeekBatchHeader(kSegment, kPage, raw) <= kMaxHeaderPages);
  (void)DecodeBatchHeader(Store(), kSegment, kPage, kSegmentPages, raw);
  if (size >= kPageSize) (void)DecodeSegmentHeader(Store(), kSegment, raw.first(kPageSize));

  const std::vector<uint8_t> pages = MakePages(data, size);
  HYDRA_CHECK(PeekBatchHeader(kSegment, kPage, pages) > 0);
  const Result<BatchHeader> header =
      DecodeBatchHeader(Store(), kSegment, kPage, kSegmentPages, pages);
  if (!header.ok()) return 0;
  HYDRA_CHECK(header->pages() <= kSegmentPages - kPage);
  HeaderAgain(pages, *header);
  const std::span<const uint8_t> area =
      std::span(pages).subspan(kBatchFixedBytes, header->header_bytes - kBatchFixedBytes);
  const Result<std::vector<RecordView>> records =
      SplitRecords(area, header->record_count, header->payload_pages, kBatchFixedBytes);
  if (!records.ok()) return 0;
  for (const RecordView& view : *records) DecodeRecord(view);
  return 0;
}
