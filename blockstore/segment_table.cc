// SPDX-License-Identifier: Apache-2.0
#include "blockstore/segment_table.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "base/crc32c.h"

namespace hydra {

Result<std::shared_ptr<SegmentFile>> OpenSegmentFile(FileSystem* fs, const std::string& path,
                                                     bool create) {
  auto file = std::make_shared<SegmentFile>();
  HYDRA_ASSIGN_OR_RETURN(file->direct, fs->Open(path, {.create = create, .direct = true}));
  HYDRA_ASSIGN_OR_RETURN(file->cached, fs->Open(path, {.read_only = true, .random = true}));
  return file;
}

const Buffer& Zeroes() {
  static const auto* const zeroes = new Buffer(Buffer::AllocateHuge(1u << 20));  // never freed
  return *zeroes;
}

std::string SegmentFileName(SegmentNumber number) { return fmt::format("{:010}.seg", number); }

SegmentNumber ParseSegmentFileName(const std::string& name) {
  constexpr size_t kDigits = 10;
  if (name.size() != kDigits + 4 || !name.ends_with(".seg")) return 0;
  SegmentNumber number = 0;
  const char* end = name.data() + kDigits;
  const auto [stop, error] = std::from_chars(name.data(), end, number);
  return error == std::errc() && stop == end && number != kOwedSegment ? number : 0;
}

namespace {

Result<SegmentFile*> Find(const SegmentTable& table, SegmentNumber segment) {
  if (segment == kOwedSegment) return Status::Corruption("a peer still owes its payload");
  const auto found = table.find(segment);
  if (found == table.end()) {
    return Status::Corruption(fmt::format("segment {} does not exist", segment));
  }
  return found->second.get();
}

}  // namespace

Status ReadBlock(const SegmentTable& table, const Reference& reference, std::span<uint8_t> out) {
  HYDRA_ASSIGN_OR_RETURN(SegmentFile * file, Find(table, reference.segment));
  const uint64_t offset = uint64_t{reference.page} * kPageSize;
  const Result<size_t> first = file->cached->PRead(offset, out);
  if (first.ok() && *first == out.size() && Crc32c(out) == reference.crc) return Status::Ok();
  const std::string what = fmt::format("segment {} page {}", reference.segment, reference.page);
  HYDRA_RETURN_IF_ERROR(file->direct->ReadExactly(offset, out, what));
  if (Crc32c(out) == reference.crc) return Status::Ok();
  return Status::Corruption(what + ": the block's checksum does not match");
}

Status ReadPagesDirect(const SegmentTable& table, SegmentNumber segment, uint32_t page,
                       std::span<uint8_t> out) {
  HYDRA_ASSIGN_OR_RETURN(SegmentFile * file, Find(table, segment));
  return file->direct->ReadExactly(uint64_t{page} * kPageSize, out,
                                   fmt::format("segment {} page {}", segment, page));
}

}  // namespace hydra
