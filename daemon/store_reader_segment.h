// SPDX-License-Identifier: Apache-2.0
//
// Reading segment files page by page: which batches lie where, and which pages lie between them.
#pragma once

#include <bitset>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "daemon/store_reader.h"

namespace hydra::store_reader {

// One segment file, opened read-only. Sequential readers use Page(), which keeps a window of 1 MiB;
// random ones use Read(), which reads only what it is asked for. One thread at a time.
class SegmentFile {
 public:
  static constexpr uint32_t kWindowPages = 256;

  // `pages`: what the store's identity says a segment has.
  static Result<std::unique_ptr<SegmentFile>> Open(FileSystem* fs, const std::string& path,
                                                   uint32_t pages);

  uint32_t pages() const { return pages_; }  // readable or not; at most the file's
  uint64_t file_bytes() const { return file_bytes_; }

  // The page's bytes, good until the next call. Empty if the device does not return them or the
  // file ends before.
  ByteSpan Page(uint32_t index);

  // False if any of the pages cannot be read.
  bool Read(uint32_t page, uint32_t count, std::vector<uint8_t>* out);

 private:
  SegmentFile(std::unique_ptr<File> file, uint64_t file_bytes, uint32_t pages);
  bool ReadRaw(uint32_t page, uint32_t count, uint8_t* out);
  void LoadWindow(uint32_t index);

  std::unique_ptr<File> file_;
  uint64_t file_bytes_;
  uint32_t pages_;
  std::vector<uint8_t> window_;
  std::bitset<kWindowPages> readable_;
  uint32_t window_start_ = 0;
  uint32_t window_count_ = 0;
};

struct BadBlock {
  PayloadBlock block;
  bool readable = true;
};

// A valid batch as the scan found it.
struct ScannedBatch {
  BatchHeader header;
  ByteSpan header_bytes;  // good during the callback
  Status records_status;  // kCorruption: the writer broke the format
  std::vector<Record> records;
  std::vector<BadBlock> bad_blocks;  // where payload is checked
  bool payload_readable = true;
  // Another valid batch starts inside what this header calls payload: the header is a leftover.
  bool overrun = false;

  bool payload_valid() const { return bad_blocks.empty() && payload_readable; }
};

// Pages between batches that hold no valid batch though they must: a later one follows.
struct RottenPages {
  uint32_t first = 0;
  uint32_t end = 0;
  bool readable = true;  // of the first page
  std::string why;
};

// What a scan knows of a segment when it is through.
struct SegmentSummary {
  uint32_t number = 0;
  uint64_t file_bytes = 0;
  uint32_t pages = 0;
  Status header_status;  // not ok: the header page is rotten
  SegmentHeader header;  // only if header_status is ok
  int lane = -1;         // of the header, or of the first valid batch; -1 unknown
  uint64_t batches = 0;
  uint64_t first_number = 0;  // smallest and greatest number seen; 0 if no batch
  uint64_t last_number = 0;
  uint32_t first_chain = 0;  // chain of the batch with the smallest number
  uint64_t rotten_ranges = 0;
  uint32_t end_page = 1;            // behind the last valid batch
  bool end_readable = true;         // the page there (true if the segment is full)
  uint64_t end_claimed_number = 0;  // of the batch whose remains are there; 0 if none
  std::string end_why;              // what is wrong with it, if so
};

struct ScanOptions {
  bool check_payload = true;
  std::function<void(const SegmentSummary&)> on_header;  // number, lane and header are set
  std::function<void(const ScannedBatch&)> on_batch;
  std::function<void(const RottenPages&)> on_rotten;
};

// Looks at every page of the segment that is not payload of a valid batch, to the end of the file.
// Memory: a window, one header and one block.
SegmentSummary ScanSegment(SegmentFile* file, const Identity& identity, uint32_t number,
                           const ScanOptions& options);

// The valid batch at this page, its header pages in `header_bytes`.
Result<BatchHeader> ReadBatchAt(SegmentFile* file, const Identity& identity, uint32_t segment,
                                uint32_t page, std::vector<uint8_t>* header_bytes);

}  // namespace hydra::store_reader
