// SPDX-License-Identifier: Apache-2.0
//
// What is known about every block of a group without asking LevelDB: whether it holds data (one
// bit), and in which segment that data lies (two bytes). The bit answers reads of blocks that were
// never written; the segment tells, the moment a block is overwritten, which segment just got
// emptier. 10 GiB of 4 KiB blocks take 5.6 MB.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <boost/unordered/unordered_flat_map.hpp>

#include "blockstore/types.h"

namespace hydra {

// Short names for the segments in use. A name is free again when its segment is.
class SegmentSlots {
 public:
  using Slot = uint16_t;
  static constexpr Slot kUnknown = 0;

  Slot Of(SegmentNumber segment);
  SegmentNumber Segment(Slot slot) const { return slot == kUnknown ? 0 : segments_[slot]; }
  void Release(SegmentNumber segment);

 private:
  std::vector<SegmentNumber> segments_{0};
  std::vector<Slot> free_;
  boost::unordered_flat_map<SegmentNumber, Slot> slots_;
};

// One group's blocks. One thread. After a restart the bits are loaded at once and the segments
// later, block by block (LoadSegment); until then the segment of an untouched block is unknown (0).
class ExtentTable {
 public:
  ExtentTable(uint32_t block_pages, SegmentSlots* slots);

  uint32_t blocks_per_extent() const { return blocks_per_extent_; }
  uint64_t data_blocks() const { return data_blocks_; }

  bool IsData(Lba lba) const;
  SegmentNumber SegmentOf(Lba lba) const;  // 0: no data, or unknown

  // Each returns the segment that held the block's data before; 0: none or unknown.
  SegmentNumber SetData(Lba lba, SegmentNumber segment);
  SegmentNumber Clear(Lba lba);
  // Clears a whole extent; `each` is called with the segment of every block that was known.
  template <typename Each>
  void ClearExtent(Extent extent, Each each) {
    const auto found = extents_.find(extent);
    if (found == extents_.end()) return;
    for (uint32_t i = 0; i < blocks_per_extent_; ++i) {
      const Lba lba = extent * blocks_per_extent_ + i;
      const SegmentNumber segment = SegmentOf(lba);
      Clear(lba);
      if (segment != 0) each(segment);
    }
  }
  template <typename Each>
  void ForEachKnown(Each each) const {
    for (const auto& [extent, state] : extents_) {
      for (uint32_t i = 0; i < blocks_per_extent_; ++i) {
        if (state.Has(i) && state.slots[i] != SegmentSlots::kUnknown) {
          each(slots_->Segment(state.slots[i]));
        }
      }
    }
  }

  // The extents with data that have blocks in [from, to), ascending.
  std::vector<Extent> ExtentsIn(Lba from, Lba to) const;
  // Calls `each(lba)` for the data blocks in [from, to), ascending.
  template <typename Each>
  void ForEachData(Lba from, Lba to, Each each) const {
    for (const Extent extent : ExtentsIn(from, to)) {
      const State& state = extents_.at(extent);
      for (uint32_t i = 0; i < blocks_per_extent_; ++i) {
        const Lba lba = extent * blocks_per_extent_ + i;
        if (state.Has(i) && lba >= from && lba < to) each(lba);
      }
    }
  }

  // Blocks whose payload is owed (kOwedSegment), as far as it is known.
  uint64_t owed_blocks() const { return owed_blocks_; }
  // Those at `from` or behind it, ascending, at most so many.
  std::vector<Lba> OwedFrom(Lba from, size_t limit) const;

  void LoadPresence(Extent extent, std::string_view bitmap);
  // True if the block is data whose segment was unknown until now.
  bool LoadSegment(Lba lba, SegmentNumber segment);

  // Presence bitmaps that changed since the last call, as rows; an empty bitmap is an empty string.
  std::vector<std::pair<Extent, std::string>> TakeDirty();

 private:
  struct State {
    std::array<uint64_t, 4> present{};
    std::unique_ptr<SegmentSlots::Slot[]> slots;
    bool dirty = false;

    bool Has(uint32_t i) const { return (present[i / 64] >> (i % 64) & 1) != 0; }
  };

  size_t BitmapBytes() const { return std::max(1u, blocks_per_extent_ / 8); }
  State& At(Extent extent);
  void MarkDirty(Extent extent, State* state);
  void NoteMoved(Extent extent, SegmentNumber from, SegmentNumber to);

  uint32_t blocks_per_extent_;
  SegmentSlots* slots_;
  boost::unordered_flat_map<Extent, State> extents_;
  std::vector<Extent> dirty_;
  uint64_t data_blocks_ = 0;
  std::map<Extent, uint32_t> owed_;  // blocks, of the extents that have some
  uint64_t owed_blocks_ = 0;
};

}  // namespace hydra
