// SPDX-License-Identifier: Apache-2.0
//
// Whether what lies around a block that memory did not have is worth reading along with it.
//
// Whoever becomes the master of a group, or starts anew, has nothing of it in the page cache, and a
// disk gives 256 KiB about as soon as 4: read in single blocks, a working set would take minutes to
// get into memory. Where reads are spread so thinly that memory will never hold them, reading more
// than was asked for only takes from others. Two things tell them apart:
//
//  * A region is read when it is missed for the second time while it is remembered; of those that
//    were missed once, no more are remembered than a working set that is worth the effort has.
//  * What is read in this way has to be earned by reads that found what they wanted in memory. An
//    allowance to begin with is all that a load without such gets.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "blockstore/types.h"

namespace hydra {

// One thread.
class ReadAround {
 public:
  static constexpr uint32_t kRegionPages = 64;  // 256 KiB
  static constexpr uint64_t kRegionBytes = uint64_t{kRegionPages} * kPageSize;
  static constexpr size_t kRemembered = 8192;       // regions: 2 GiB
  static constexpr uint64_t kAllowance = 1u << 30;  // bytes, and the most that can be saved up
  static constexpr uint64_t kEarned = 8;            // bytes for each that was in memory

  // So much was asked for, and in memory.
  void Hit(uint64_t bytes) { allowance_ = std::min(kAllowance, allowance_ + kEarned * bytes); }

  // A read wanted something of this region that was not. True: read the region.
  bool Miss(SegmentNumber segment, uint32_t region) {
    const uint64_t name = (uint64_t{segment} << 32 | region) + 1;  // 0: none
    uint64_t& place = missed_[name * 0x9e3779b97f4a7c15 >> (64 - kRememberedBits)];
    if (place != name || allowance_ < kRegionBytes) {
      place = name;
      return false;
    }
    place = 0;  // those that wait for it now will miss it too
    allowance_ -= kRegionBytes;
    read_bytes_ += kRegionBytes;
    return true;
  }

  uint64_t read_bytes() const { return read_bytes_; }

 private:
  static constexpr unsigned kRememberedBits = 13;
  static_assert(size_t{1} << kRememberedBits == kRemembered);

  std::array<uint64_t, kRemembered> missed_{};
  uint64_t allowance_ = kAllowance;
  uint64_t read_bytes_ = 0;
};

}  // namespace hydra
