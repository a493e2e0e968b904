// SPDX-License-Identifier: Apache-2.0
#include "tests/support/forge.h"

#include <algorithm>
#include <memory>

#include "base/check.h"
#include "base/coding.h"
#include "base/crc32c.h"

namespace hydra::test {
namespace {

constexpr uint64_t kHeaderCrcOffset = 8;
constexpr uint64_t kChainOffset = 32;

std::span<const uint8_t> BytesOf(const std::string& contents, uint64_t from, uint64_t to) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(contents.data());
  return std::span(bytes, contents.size()).subspan(from, to - from);
}

}  // namespace

std::string ReadWholeFile(FileSystem* fs, const std::string& path) {
  Result<std::unique_ptr<File>> file = fs->Open(path, {.read_only = true});
  HYDRA_CHECK(file.ok());
  std::string contents((*file)->Size().value(), '\0');
  const Status read =
      (*file)->ReadExactly(0, {reinterpret_cast<uint8_t*>(contents.data()), contents.size()}, path);
  HYDRA_CHECK(read.ok());
  return contents;
}

void WriteWholeFile(FileSystem* fs, const std::string& path, const std::string& contents) {
  Result<std::unique_ptr<File>> file = fs->Open(path, {.create = true, .truncate = true});
  HYDRA_CHECK(file.ok());
  const IoSlice slice{reinterpret_cast<const uint8_t*>(contents.data()), contents.size()};
  HYDRA_CHECK((*file)->PWriteV(0, {&slice, 1}, Durability::kDsync).ok());
  HYDRA_CHECK((*file)->Sync().ok());
}

std::vector<std::string> SegmentPaths(FileSystem* fs, const std::string& directory) {
  const std::string segments = directory + "/segments";
  std::vector<std::string> paths;
  const Result<std::vector<std::string>> names = fs->List(segments);
  HYDRA_CHECK(names.ok());
  for (const std::string& name : *names) {
    if (name.ends_with(".seg")) paths.push_back(segments + "/" + name);
  }
  return paths;
}

std::vector<FoundBatch> FindBatches(FileSystem* fs, const std::string& directory,
                                    const Uuid& store) {
  std::vector<FoundBatch> found;
  for (const std::string& path : SegmentPaths(fs, directory)) {
    const std::string name = path.substr(path.rfind('/') + 1);
    const auto segment = static_cast<SegmentNumber>(std::stoul(name));
    const std::string contents = ReadWholeFile(fs, path);
    const auto pages = static_cast<uint32_t>(contents.size() / kPageSize);
    for (uint32_t page = kFirstBatchPage; page < pages;) {
      const auto rest = BytesOf(contents, page * kPageSize, pages * kPageSize);
      const Result<BatchHeader> header = DecodeBatchHeader(store, segment, page, pages, rest);
      if (header.ok()) found.push_back({path, *header});
      page += header.ok() ? header->pages() : 1;
    }
  }
  std::sort(found.begin(), found.end(), [](const FoundBatch& a, const FoundBatch& b) {
    return a.header.number < b.header.number;
  });
  return found;
}

std::vector<uint64_t> RecordsIn(FileSystem* fs, const FoundBatch& batch, RecordType type) {
  const std::string contents = ReadWholeFile(fs, batch.path);
  const BatchHeader& header = batch.header;
  const auto records = SplitRecords(
      BytesOf(contents, batch.offset() + kBatchFixedBytes, batch.offset() + header.header_bytes),
      header.record_count, header.payload_pages, kBatchFixedBytes);
  HYDRA_CHECK(records.ok());
  std::vector<uint64_t> offsets;
  for (const RecordView& record : *records) {
    if (record.type == static_cast<uint8_t>(type)) offsets.push_back(record.offset);
  }
  return offsets;
}

void ForgeHeader(FileSystem* fs, const Uuid& store, const FoundBatch& batch, uint64_t offset,
                 std::span<const uint8_t> bytes) {
  const uint64_t length = batch.header.header_pages * kPageSize;
  std::string contents = ReadWholeFile(fs, batch.path);
  auto* header = reinterpret_cast<uint8_t*>(contents.data()) + batch.offset();
  for (size_t i = 0; i < bytes.size() && offset + i < length; ++i) header[offset + i] = bytes[i];
  EncodeFixed32(header + kHeaderCrcOffset, 0);
  const uint32_t seed = HeaderSeed(store, batch.header.segment, batch.header.page);
  EncodeFixed32(header + kHeaderCrcOffset, Crc32c(header, length, seed));
  WriteWholeFile(fs, batch.path, contents);
}

void ForgeInChain(FileSystem* fs, const std::string& directory, const Uuid& store,
                  const FoundBatch& batch, uint64_t offset, std::span<const uint8_t> bytes) {
  ForgeHeader(fs, store, batch, offset, bytes);
  for (uint64_t number = batch.header.number + 1;; ++number) {
    uint32_t crc = 0;  // of the batch before
    const FoundBatch* next = nullptr;
    const std::vector<FoundBatch> batches = FindBatches(fs, directory, store);
    for (const FoundBatch& found : batches) {
      if (found.header.number + 1 == number) crc = found.header.crc;
      if (found.header.number == number) next = &found;
    }
    if (next == nullptr) return;
    uint8_t chain[sizeof(crc)];
    EncodeFixed32(chain, crc);
    ForgeHeader(fs, store, *next, kChainOffset, chain);
  }
}

}  // namespace hydra::test
