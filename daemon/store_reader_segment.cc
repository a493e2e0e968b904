// SPDX-License-Identifier: Apache-2.0
#include "daemon/store_reader_segment.h"

#include <algorithm>
#include <utility>

#include "base/crc32c.h"

namespace hydra::store_reader {

// --- SegmentFile -----------------------------------------------------------------------------

SegmentFile::SegmentFile(std::unique_ptr<File> file, uint64_t file_bytes, uint32_t pages)
    : file_(std::move(file)), file_bytes_(file_bytes), pages_(pages) {}

Result<std::unique_ptr<SegmentFile>> SegmentFile::Open(FileSystem* fs, const std::string& path,
                                                       uint32_t pages) {
  OpenOptions options;
  options.read_only = true;
  HYDRA_ASSIGN_OR_RETURN(auto file, fs->Open(path, options));
  HYDRA_ASSIGN_OR_RETURN(const uint64_t bytes, file->Size());
  const auto whole = static_cast<uint32_t>(std::min<uint64_t>(bytes / kPageBytes, pages));
  return std::unique_ptr<SegmentFile>(new SegmentFile(std::move(file), bytes, whole));
}

bool SegmentFile::ReadRaw(uint32_t page, uint32_t count, uint8_t* out) {
  const size_t bytes = size_t{count} * kPageBytes;
  auto got = file_->PRead(uint64_t{page} * kPageBytes, {out, bytes});
  return got.ok() && *got == bytes;
}

void SegmentFile::LoadWindow(uint32_t index) {
  window_.resize(size_t{kWindowPages} * kPageBytes);
  window_start_ = index;
  window_count_ = std::min(kWindowPages, pages_ - index);
  if (ReadRaw(index, window_count_, window_.data())) {
    readable_.set();
    return;
  }
  // Somewhere in there is a page that the device does not return. Which?
  for (uint32_t i = 0; i < window_count_; ++i) {
    readable_[i] = ReadRaw(index + i, 1, window_.data() + size_t{i} * kPageBytes);
  }
}

ByteSpan SegmentFile::Page(uint32_t index) {
  if (index >= pages_) return {};
  if (index < window_start_ || index >= window_start_ + window_count_) LoadWindow(index);
  const uint32_t at = index - window_start_;
  if (!readable_[at]) return {};
  return {window_.data() + size_t{at} * kPageBytes, kPageBytes};
}

bool SegmentFile::Read(uint32_t page, uint32_t count, std::vector<uint8_t>* out) {
  if (count > kWindowPages || page >= pages_ || count > pages_ - page) return false;
  out->resize(size_t{count} * kPageBytes);
  if (page < window_start_ || page + count > window_start_ + window_count_) {
    return ReadRaw(page, count, out->data());
  }
  const uint32_t at = page - window_start_;
  for (uint32_t i = 0; i < count; ++i) {
    if (!readable_[at + i]) return false;
  }
  std::copy_n(window_.data() + size_t{at} * kPageBytes, out->size(), out->data());
  return true;
}

// --- Scanning --------------------------------------------------------------------------------

namespace {

Result<BatchHeader> ReadHeader(SegmentFile* file, const Identity& identity, uint32_t segment,
                               uint32_t page, ByteSpan first_page,
                               std::vector<uint8_t>* header_bytes) {
  const uint32_t claimed = ClaimedHeaderPages(first_page);
  if (claimed == 0) return Status::Corruption("no batch header (magic or header pages)");
  if (claimed == 1) {
    header_bytes->assign(first_page.begin(), first_page.end());
  } else if (!file->Read(page, claimed, header_bytes)) {
    return Status::Corruption("the batch header runs into pages that cannot be read");
  }
  return ParseBatchHeader(*header_bytes, identity, segment, page);
}

class Scanner {
 public:
  Scanner(SegmentFile* file, const Identity& identity, uint32_t number, const ScanOptions& options)
      : file_(file), identity_(identity), options_(options) {
    summary_.number = number;
    summary_.file_bytes = file->file_bytes();
    summary_.pages = file->pages();
  }

  SegmentSummary Run() {
    ReadSegmentHeader();
    if (options_.on_header) options_.on_header(summary_);
    uint32_t page = 1;
    while (page < file_->pages()) {
      RottenPages rotten;
      rotten.first = page;
      std::optional<BatchHeader> header = Find(&page, file_->pages(), &rotten);
      if (!header.has_value()) break;
      if (page > rotten.first) {
        rotten.end = page;
        ++summary_.rotten_ranges;
        if (options_.on_rotten) options_.on_rotten(rotten);
      }
      page = Visit(*header);
      summary_.end_page = page;
    }
    LookAtEnd();
    return std::move(summary_);
  }

 private:
  void ReadSegmentHeader() {
    const ByteSpan page = file_->Page(0);
    if (page.empty()) {
      summary_.header_status = Status::Corruption("the header page cannot be read");
      return;
    }
    auto header = ParseSegmentHeader(page, identity_, summary_.number);
    summary_.header_status = header.status();
    if (!header.ok()) return;
    summary_.header = *header;
    summary_.lane = header->lane;
  }

  // The header at `page` if it is valid, here and for this segment's lane.
  Result<BatchHeader> At(uint32_t page) {
    const ByteSpan bytes = file_->Page(page);
    if (bytes.empty()) return Status::IoError("the page cannot be read");
    auto header = ReadHeader(file_, identity_, summary_.number, page, bytes, &header_bytes_);
    if (header.ok() && summary_.lane >= 0 && header->lane != summary_.lane) {
      return Status::Corruption("the batch belongs to the other lane");
    }
    return header;
  }

  // The first valid batch at *page or behind it; moves *page there. Notes in `rotten` what is
  // wrong with the first page it looks at.
  std::optional<BatchHeader> Find(uint32_t* page, uint32_t end, RottenPages* rotten) {
    for (const uint32_t first = *page; *page < end; ++*page) {
      auto header = At(*page);
      if (header.ok()) return *header;
      if (*page == first && rotten != nullptr) {
        rotten->readable = header.status().code() != Code::kIoError;
        rotten->why = header.status().message();
      }
    }
    return std::nullopt;
  }

  // Reports the batch whose header bytes are in header_bytes_; returns where to go on.
  uint32_t Visit(const BatchHeader& header) {
    ScannedBatch batch;
    batch.header = header;
    const std::vector<uint8_t> bytes = header_bytes_;  // the search below reads other headers
    batch.header_bytes = bytes;
    auto records = ParseRecords(header, bytes);
    batch.records_status = records.status();
    if (records.ok()) batch.records = std::move(*records);
    uint32_t next = header.end_page();
    if (options_.check_payload) {
      CheckPayload(&batch);
      uint32_t inside = header.payload_page();
      if (!batch.payload_valid() && Find(&inside, next, nullptr).has_value()) {
        batch.overrun = true;
        next = inside;
      }
    }
    if (summary_.lane < 0) summary_.lane = header.lane;
    ++summary_.batches;
    if (summary_.first_number == 0 || header.number < summary_.first_number) {
      summary_.first_number = header.number;
      summary_.first_chain = header.chain;
    }
    summary_.last_number = std::max(summary_.last_number, header.number);
    if (options_.on_batch) options_.on_batch(batch);
    return next;
  }

  void CheckPayload(ScannedBatch* batch) {
    for (const Record& record : batch->records) {
      for (const PayloadBlock& block : PayloadBlocks(record)) {
        const bool readable = ReadBlock(block);
        if (!readable) batch->payload_readable = false;
        if (!readable || Crc32c(block_) != block.crc)
          batch->bad_blocks.push_back({block, readable});
      }
    }
  }

  // Through the window, page by page, so that a batch is read from the device once.
  bool ReadBlock(const PayloadBlock& block) {
    block_.clear();
    for (uint32_t i = 0; i < block.pages; ++i) {
      const ByteSpan page = file_->Page(block.page + i);
      if (page.empty()) return false;
      block_.insert(block_.end(), page.begin(), page.end());
    }
    return true;
  }

  void LookAtEnd() {
    if (summary_.end_page >= file_->pages()) return;
    const ByteSpan page = file_->Page(summary_.end_page);
    summary_.end_readable = !page.empty();
    if (page.empty()) {
      summary_.end_why = "the page cannot be read";
      return;
    }
    summary_.end_claimed_number = ClaimedNumberAt(page, summary_.number, summary_.end_page);
    if (summary_.end_claimed_number != 0) {
      summary_.end_why = At(summary_.end_page).status().message();
    }
  }

  SegmentFile* const file_;
  const Identity& identity_;
  const ScanOptions& options_;
  SegmentSummary summary_;
  std::vector<uint8_t> header_bytes_;
  std::vector<uint8_t> block_;
};

}  // namespace

SegmentSummary ScanSegment(SegmentFile* file, const Identity& identity, uint32_t number,
                           const ScanOptions& options) {
  return Scanner(file, identity, number, options).Run();
}

Result<BatchHeader> ReadBatchAt(SegmentFile* file, const Identity& identity, uint32_t segment,
                                uint32_t page, std::vector<uint8_t>* header_bytes) {
  std::vector<uint8_t> first;
  if (!file->Read(page, 1, &first)) return Status::IoError("the page cannot be read");
  return ReadHeader(file, identity, segment, page, first, header_bytes);
}

}  // namespace hydra::store_reader
