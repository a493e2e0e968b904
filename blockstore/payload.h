// SPDX-License-Identifier: Apache-2.0
//
// Walking through payload that came as slices: a block may be spread over several.
#pragma once

#include <algorithm>
#include <cstdint>

#include <fmt/format.h>

#include "base/crc32c.h"
#include "base/status.h"
#include "blockstore/record.h"
#include "blockstore/types.h"

namespace hydra {

// Whether the slices are whole, aligned pages within their buffers, `expected` bytes in all.
inline Status CheckSlices(const Payload& payload, uint64_t expected) {
  uint64_t bytes = 0;
  for (const BufferSlice& slice : payload) {
    if (slice.length == 0 || slice.length % kPageSize != 0 || slice.offset % kPageSize != 0 ||
        slice.offset + slice.length > slice.buffer.size()) {
      return Status::InvalidArgument("payload slices must be whole, aligned pages");
    }
    bytes += slice.length;
  }
  if (bytes == expected) return Status::Ok();
  return Status::InvalidArgument(
      fmt::format("{} bytes of payload for {} bytes of blocks", bytes, expected));
}

// Takes blocks off the front of a payload that CheckSlices found right. The payload outlives it.
class PayloadWalk {
 public:
  explicit PayloadWalk(const Payload& payload) : payload_(payload) {}

  // The CRC of the next `bytes`; where `keep` is given, their slices are appended to it.
  uint32_t Next(size_t bytes, Payload* keep = nullptr) {
    uint32_t crc = 0;
    while (bytes > 0) {
      const BufferSlice& slice = payload_[slice_];
      const size_t piece = std::min(bytes, slice.length - used_);
      crc = Crc32c(slice.data() + used_, piece, crc);
      if (keep != nullptr) keep->push_back({slice.buffer, slice.offset + used_, piece});
      bytes -= piece;
      used_ += piece;
      if (used_ == slice.length) {
        ++slice_;
        used_ = 0;
      }
    }
    return crc;
  }

 private:
  const Payload& payload_;
  size_t slice_ = 0;
  size_t used_ = 0;
};

// Whether the payload is that of the entry.
inline Status CheckEntryPayload(const Entry& entry, const Payload& payload, uint32_t block_pages) {
  HYDRA_RETURN_IF_ERROR(CheckSlices(payload, uint64_t{entry.PayloadPages()} * kPageSize));
  PayloadWalk walk(payload);
  for (const Operation& op : entry.operations) {
    if (op.kind != OpKind::kWrite) continue;
    for (size_t i = 0; i < op.crcs.size(); ++i) {
      const uint32_t crc = walk.Next(size_t{block_pages} * kPageSize);
      if (crc != op.crcs[i]) {
        return Status::InvalidArgument(fmt::format(
            "block {}: the payload's checksum is {:08x}, the entry says {:08x}. It was damaged on "
            "its way here; send it again",
            op.lba + i, crc, op.crcs[i]));
      }
    }
  }
  return Status::Ok();
}

}  // namespace hydra
