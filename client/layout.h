// SPDX-License-Identifier: Apache-2.0
//
// Where the bytes of a volume are. Pure arithmetic, fixed for ever: clients and nodes of all
// versions must agree about it.
//
// A volume is cut into extents of 1 MiB. Extent e belongs to shard Mix64(e) mod shards, where Mix64
// is the finaliser of SplitMix64: neighbours fall into different shards, so that one stream of
// writes keeps all groups busy. Blocks keep their number: the block that holds byte b of the volume
// is block b / block_bytes of its shard's group, which simply never sees the others.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"

namespace hydra {

inline constexpr uint64_t kExtentBytes = 1u << 20;
// What every offset and length is a multiple of; blocks are larger (512e).
inline constexpr uint64_t kSectorBytes = 512;
// ZERO and UNMAP of whole extents: at most so many in one request.
inline constexpr size_t kMaxExtentsPerIo = 4096;

constexpr uint64_t Mix64(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

// A part of a range that lies within one extent, as its group sees it.
struct Piece {
  uint32_t shard = 0;
  uint64_t lba = 0;          // first block touched
  uint64_t count = 0;        // blocks touched
  uint32_t part_offset = 0;  // byte of the first block at which the range begins
  uint64_t bytes = 0;
  uint64_t at = 0;  // where these bytes are in the caller's buffer
  bool whole_blocks = false;
};

// Whole extents of one shard.
struct ExtentRun {
  uint32_t shard = 0;
  std::vector<uint64_t> extents;  // strictly ascending, at most kMaxExtentsPerIo
};

// What a discard or a write of zeroes turns into.
struct RangePlan {
  std::vector<ExtentRun> runs;
  std::vector<Piece> pieces;  // what is left at the ends
};

class Layout {
 public:
  Layout() = default;
  Layout(uint32_t block_bytes, uint32_t shards) : block_bytes_(block_bytes), shards_(shards) {
    HYDRA_CHECK(block_bytes > 0 && kExtentBytes % block_bytes == 0 && shards > 0);
  }

  uint32_t block_bytes() const { return block_bytes_; }
  uint32_t shards() const { return shards_; }
  uint64_t blocks_per_extent() const { return kExtentBytes / block_bytes_; }
  uint32_t ShardOfExtent(uint64_t extent) const {
    return static_cast<uint32_t>(Mix64(extent) % shards_);
  }
  uint32_t ShardOfBlock(uint64_t lba) const { return ShardOfExtent(lba / blocks_per_extent()); }

  // The first piece of [offset, offset + length); `length` is not 0.
  Piece First(uint64_t offset, uint64_t length) const {
    HYDRA_CHECK(length > 0);
    const uint64_t end = std::min(offset + length, (offset / kExtentBytes + 1) * kExtentBytes);
    Piece piece;
    piece.shard = ShardOfExtent(offset / kExtentBytes);
    piece.lba = offset / block_bytes_;
    piece.count = (end + block_bytes_ - 1) / block_bytes_ - piece.lba;
    piece.part_offset = static_cast<uint32_t>(offset % block_bytes_);
    piece.bytes = end - offset;
    piece.whole_blocks = piece.bytes == piece.count * block_bytes_;
    return piece;
  }

  // All of a range for operations that need no payload: whole extents are grouped by shard.
  RangePlan Plan(uint64_t offset, uint64_t length) const {
    RangePlan plan;
    std::vector<size_t> open(shards_, SIZE_MAX);  // index of the run that takes the next extent
    for (uint64_t at = 0; at < length;) {
      Piece piece = First(offset + at, length - at);
      piece.at = at;
      at += piece.bytes;
      if (piece.bytes < kExtentBytes) {
        plan.pieces.push_back(piece);
        continue;
      }
      size_t& run = open[piece.shard];
      if (run == SIZE_MAX || plan.runs[run].extents.size() == kMaxExtentsPerIo) {
        run = plan.runs.size();
        plan.runs.push_back({piece.shard, {}});
      }
      plan.runs[run].extents.push_back(piece.lba / blocks_per_extent());
    }
    return plan;
  }

 private:
  uint32_t block_bytes_ = 4096;
  uint32_t shards_ = 1;
};

}  // namespace hydra
