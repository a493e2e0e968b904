// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include <boost/unordered/unordered_flat_map.hpp>

#include "blockstore/types.h"

namespace hydra {

// The blocks of a group that an install brought in a version newer than the instance it led to.
// Entries applied afterwards skip them as long as they are older: what a block has become is never
// undone, and Apply needs no look-up in LevelDB to know. As many rows as blocks were written at the
// sender while the install ran; gone as soon as the group has applied that far. One thread.
class AheadRows {
 public:
  bool empty() const { return blocks_.empty() && extents_.empty(); }

  void Note(Lba lba, Version version) {
    Version& known = blocks_[lba];
    known = std::max(known, version);
  }
  void NoteExtent(Extent extent, Version version) {
    Version& known = extents_[extent];
    known = std::max(known, version);
  }

  // Whether the block, or the extent it is in, was changed after `version`.
  bool IsNewer(Lba lba, Extent extent, Version version) const {
    const auto block = blocks_.find(lba);
    if (block != blocks_.end() && block->second > version) return true;
    return IsExtentNewer(extent, version);
  }
  bool IsExtentNewer(Extent extent, Version version) const {
    const auto whole = extents_.find(extent);
    return whole != extents_.end() && whole->second > version;
  }
  // Whether any block of the extent by itself was changed after `version`.
  bool HasNewerBlock(Extent extent, uint32_t blocks_per_extent, Version version) const {
    if (blocks_.empty()) return false;
    for (uint32_t i = 0; i < blocks_per_extent; ++i) {
      const auto block = blocks_.find(extent * blocks_per_extent + i);
      if (block != blocks_.end() && block->second > version) return true;
    }
    return false;
  }

  // Drops what is not newer than `version`.
  void Forget(Version version) {
    erase_if(blocks_, [version](const auto& row) { return row.second <= version; });
    erase_if(extents_, [version](const auto& row) { return row.second <= version; });
  }
  void Clear() {
    blocks_ = {};
    extents_ = {};
  }

 private:
  boost::unordered_flat_map<Lba, Version> blocks_;
  boost::unordered_flat_map<Extent, Version> extents_;
};

}  // namespace hydra
