// SPDX-License-Identifier: Apache-2.0
#include "base/crc32c.h"

#include <algorithm>

#include <isa-l/crc.h>

namespace hydra {

uint32_t Crc32c(std::span<const uint8_t> bytes, uint32_t crc) {
  // ISA-L takes an int as length, a pointer without const (it does not write), and leaves both
  // inversions to the caller.
  constexpr size_t kMaxPiece = size_t{1} << 30;
  uint32_t state = ~crc;
  while (!bytes.empty()) {
    const size_t piece = std::min(bytes.size(), kMaxPiece);
    state = crc32_iscsi(const_cast<uint8_t*>(bytes.data()), static_cast<int>(piece), state);
    bytes = bytes.subspan(piece);
  }
  return ~state;
}

}  // namespace hydra
