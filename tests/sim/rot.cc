// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/rot.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "base/buffer.h"
#include "base/coding.h"
#include "blockstore/batch_format.h"
#include "blockstore/vacuum.h"

namespace hydra::sim {
namespace {

constexpr uint64_t kNewestBatches = 40;  // about what a restart reads
constexpr uint64_t kOpenBatches = 4;     // about what is not applied yet
constexpr size_t kSegmentNumberAt = 24;  // in a batch's header

// Where a batch lies, in bytes.
struct Place {
  uint64_t number = 0;
  std::string path;
  uint64_t header = 0;
  uint64_t payload = 0;
  uint64_t end = 0;
};

// By number.
std::vector<std::string> Segments(const RotTarget& target) {
  std::vector<std::string> paths;
  const auto names = target.disk->List(target.segments);
  if (!names.ok()) return paths;
  for (const std::string& name : *names) {
    if (name.ends_with(".seg")) paths.push_back(target.segments + "/" + name);
  }
  return paths;
}

Buffer Contents(SimDisk* disk, const std::string& path) {
  OpenOptions options;
  options.read_only = true;
  auto file = disk->Open(path, options);
  if (!file.ok()) return {};
  const auto size = (*file)->Size();
  if (!size.ok() || *size < kPageSize) return {};
  Buffer bytes = Buffer::Allocate(*size / kPageSize * kPageSize);
  return (*file)->ReadExactly(0, bytes.span(), path).ok() ? bytes : Buffer();
}

// Every batch whose header is whole, in no order.
std::vector<Place> Batches(const RotTarget& target) {
  std::vector<Place> batches;
  for (const std::string& path : Segments(target)) {
    const Buffer bytes = Contents(target.disk, path);
    const auto pages = static_cast<uint32_t>(bytes.size() / kPageSize);
    for (uint32_t page = kFirstBatchPage; page < pages; ++page) {
      const uint64_t offset = uint64_t{page} * kPageSize;
      const auto rest = bytes.span().subspan(offset);
      const SegmentNumber segment = DecodeFixed32(rest.data() + kSegmentNumberAt);
      const auto header = DecodeBatchHeader(target.store, segment, page, pages, rest);
      if (!header.ok()) continue;
      batches.push_back({header->number, path, offset, offset + header->header_pages * kPageSize,
                         offset + header->pages() * kPageSize});
    }
  }
  return batches;
}

}  // namespace

bool RotAnywhere(const RotTarget& target, Rng* rng) {
  const std::vector<std::string> paths = Segments(target);
  if (paths.empty()) return false;
  const size_t last = paths.size() - 1;
  const size_t which =
      rng->Percent(50) ? last - rng->Below(std::min<size_t>(last + 1, 2)) : rng->Below(last + 1);
  const uint64_t size = Contents(target.disk, paths[which]).size();
  const std::vector<Place> batches = Batches(target);
  // (A leftover of a batch that was cut may have the same number.)
  const auto spared = [&](uint64_t at) {
    return std::any_of(batches.begin(), batches.end(), [&](const Place& batch) {
      return batch.number == target.durable_batch && batch.path == paths[which] &&
             batch.header <= at && at < batch.end;
    });
  };
  if (size == 0) return false;
  const uint64_t flips = rng->Between(1, 20);
  for (uint64_t i = 0; i < flips; ++i) {
    const uint64_t at = rng->Below(size);
    const auto bit = static_cast<unsigned>(rng->Below(8));
    if (!spared(at)) target.disk->FlipBit(paths[which], at, bit);
  }
  return true;
}

bool RotBlocks(const RotTarget& target, const std::function<bool(GroupId, Instance)>& may,
               Rng* rng) {
  constexpr size_t kLately = 80;
  auto table = std::make_shared<SegmentTable>();
  std::vector<std::pair<std::string, Candidate>> blocks;
  const std::vector<Place> batches = Batches(target);
  for (const std::string& path : Segments(target)) {
    const SegmentNumber number = ParseSegmentFileName(path.substr(path.rfind('/') + 1));
    auto file = OpenSegmentFile(target.disk, path, false);
    if (!file.ok()) return false;
    const auto size = (*file)->cached->Size();
    if (!size.ok()) return false;
    (*table)[number] = *file;
    // Vacuum knows how to list a segment's blocks.
    VacuumScanJob scan(target.store, table, static_cast<uint32_t>(*size / kPageSize), number);
    scan.Run();
    for (const Candidate& candidate : scan.candidates) {
      if (!may(candidate.group, VersionInstance(candidate.version))) continue;
      const uint64_t at = uint64_t{candidate.reference.page} * kPageSize;
      const bool spared = std::any_of(batches.begin(), batches.end(), [&](const Place& batch) {
        return batch.number >= target.durable_batch && batch.path == path && batch.header <= at &&
               at < batch.end;
      });
      if (!spared) blocks.emplace_back(path, candidate);
    }
  }
  if (blocks.empty()) return false;
  for (uint64_t n = rng->Between(1, 4); n > 0; --n) {
    const auto& [path, block] =
        blocks[blocks.size() - 1 - rng->Below(std::min(blocks.size(), kLately))];
    const uint64_t byte = rng->Below(uint64_t{block.block_pages} * kPageSize);
    target.disk->FlipBit(path, uint64_t{block.reference.page} * kPageSize + byte,
                         static_cast<unsigned>(rng->Below(8)));
  }
  return true;
}

bool RotNewest(const RotTarget& target, Rng* rng) {
  std::vector<Place> batches = Batches(target);
  const uint64_t newest = rng->Percent(50) ? kOpenBatches : kNewestBatches;
  std::erase_if(batches, [&](const Place& batch) {
    return batch.number >= target.durable_batch || batch.number + newest < target.durable_batch;
  });
  if (batches.empty()) return false;
  const Place& victim = batches[rng->Below(batches.size())];
  const bool payload = victim.end > victim.payload && rng->Percent(40);
  const uint64_t at = payload ? rng->Between(victim.payload, victim.end - 1)
                              : victim.header + rng->Below(kBatchFixedBytes);
  const auto bit = static_cast<unsigned>(rng->Below(8));
  target.disk->FlipBit(victim.path, at, bit);
  return true;
}

}  // namespace hydra::sim
