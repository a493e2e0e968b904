// SPDX-License-Identifier: Apache-2.0
//
// What one session may hold of the memory that all sessions of a portal have for data. One thread.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <memory>
#include <utility>

#include "base/buffer.h"

namespace hydra::iscsi {

// A buffer that counts in a share until the last copy of it is gone; or in none.
struct CountedBuffer : Buffer {
  CountedBuffer() = default;
  CountedBuffer(Buffer buffer) : Buffer(std::move(buffer)) {}

  std::shared_ptr<void> counted;
};

class MemoryShare {
 public:
  // A quarter: who takes buffers and neither fills nor empties them leaves enough to others, and
  // that much (of the usual 128 MiB) keeps a fast connection busy.
  static constexpr size_t kParts = 4;

  explicit MemoryShare(std::shared_ptr<BufferPool> pool) : pool_(std::move(pool)) {}

  // kBusy: the share, or all of the memory, is in use. Who holds nothing is never above its share,
  // so that every command can be carried out that fits into the memory at all.
  Result<CountedBuffer> Get(size_t bytes) {
    // As the pool counts.
    const size_t taken = std::bit_ceil(std::max(bytes, kPageSize));
    if (*used_ > 0 && *used_ + taken > pool_->limit_bytes() / kParts) {
      return Status::Busy("the session's share of the memory is in use");
    }
    HYDRA_ASSIGN_OR_RETURN(Buffer buffer, pool_->Get(bytes));
    CountedBuffer counted(std::move(buffer));
    *used_ += taken;
    counted.counted =
        std::shared_ptr<void>(nullptr, [used = used_, taken](void*) { *used -= taken; });
    return counted;
  }
  size_t used_bytes() const { return *used_; }

 private:
  std::shared_ptr<BufferPool> pool_;
  std::shared_ptr<size_t> used_ = std::make_shared<size_t>(0);  // outlives this with the buffers
};

}  // namespace hydra::iscsi
