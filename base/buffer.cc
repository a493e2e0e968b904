// SPDX-License-Identifier: Apache-2.0
#include "base/buffer.h"

#include <sys/mman.h>

#include <array>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>

#include "base/check.h"

namespace hydra {

namespace {

size_t RoundUpToPages(size_t bytes) {
  HYDRA_CHECK(bytes <= SIZE_MAX - kPageSize);
  return (bytes + kPageSize - 1) / kPageSize * kPageSize;
}

}  // namespace

// What is handed out and what is kept for reuse never exceed the limit together, so the pool's
// memory is bounded, not only its use.
struct BufferPool::State {
  explicit State(size_t limit_bytes) : limit(limit_bytes) {}
  ~State() {
    for (const auto& list : idle) {
      for (uint8_t* memory : list) std::free(memory);
    }
  }

  // Returns null when out of bounds or out of memory.
  uint8_t* Take(size_t capacity) {
    std::lock_guard<std::mutex> lock(mutex);
    if (capacity > limit - used) return nullptr;
    if (auto& list = idle[ClassOf(capacity)]; std::has_single_bit(capacity) && !list.empty()) {
      uint8_t* memory = list.back();
      list.pop_back();
      idle_bytes -= capacity;
      used += capacity;
      return memory;
    }
    while (capacity > limit - used - idle_bytes) FreeLargestIdle();
    auto* memory = static_cast<uint8_t*>(std::aligned_alloc(kPageSize, capacity));
    if (memory != nullptr) used += capacity;
    return memory;
  }

  void Return(uint8_t* memory, size_t capacity) {
    std::lock_guard<std::mutex> lock(mutex);
    HYDRA_CHECK(capacity <= used);
    used -= capacity;
    if (closed || !std::has_single_bit(capacity)) {
      std::free(memory);
      return;
    }
    idle[ClassOf(capacity)].push_back(memory);
    idle_bytes += capacity;
  }

  void Close() {
    std::lock_guard<std::mutex> lock(mutex);
    closed = true;
    while (idle_bytes > 0) FreeLargestIdle();
  }

  void FreeLargestIdle() {
    HYDRA_CHECK(idle_bytes > 0);
    size_t largest = idle.size() - 1;
    while (idle[largest].empty()) --largest;
    std::free(idle[largest].back());
    idle[largest].pop_back();
    idle_bytes -= size_t{1} << largest;
  }

  // Which list keeps pieces of that size: of powers of two alone.
  static size_t ClassOf(size_t capacity) { return std::bit_width(capacity) - 1; }

  const size_t limit;
  std::mutex mutex;
  // All guarded by mutex.
  std::array<std::vector<uint8_t*>, std::numeric_limits<size_t>::digits> idle;
  size_t idle_bytes = 0;
  size_t used = 0;
  bool closed = false;  // the BufferPool is gone: what comes back is freed
};

struct Buffer::Block {
  Block() = default;
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block() {
    if (pool != nullptr) {
      pool->Return(memory, capacity);
    } else {
      std::free(memory);
    }
  }

  uint8_t* memory = nullptr;
  size_t size = 0;      // asked for, in whole pages
  size_t capacity = 0;  // allocated
  std::shared_ptr<BufferPool::State> pool;
};

Buffer Buffer::Allocate(size_t bytes) {
  const size_t size = RoundUpToPages(bytes);
  if (size == 0) return Buffer();
  auto block = std::make_shared<Block>();
  block->memory = static_cast<uint8_t*>(std::aligned_alloc(kPageSize, size));
  HYDRA_CHECK(block->memory != nullptr);
  std::memset(block->memory, 0, size);
  block->size = size;
  block->capacity = size;
  return Buffer(std::move(block));
}

Buffer Buffer::AllocateHuge(size_t bytes) {
  constexpr size_t kHugePage = 2u << 20;
  const size_t size = RoundUpToPages(bytes);
  if (size == 0) return Buffer();
  auto block = std::make_shared<Block>();
  block->size = size;
  block->capacity = (size + kHugePage - 1) / kHugePage * kHugePage;
  block->memory = static_cast<uint8_t*>(std::aligned_alloc(kHugePage, block->capacity));
  HYDRA_CHECK(block->memory != nullptr);
  // A wish: where the kernel has no huge page to spare, small ones serve as well.
  (void)::madvise(block->memory, block->capacity, MADV_HUGEPAGE);
  std::memset(block->memory, 0, block->size);
  return Buffer(std::move(block));
}

uint8_t* Buffer::data() const { return block_ ? block_->memory : nullptr; }
size_t Buffer::size() const { return block_ ? block_->size : 0; }

BufferPool::BufferPool(size_t limit_bytes) : state_(std::make_shared<State>(limit_bytes)) {}
BufferPool::~BufferPool() { state_->Close(); }

Result<Buffer> BufferPool::Get(size_t bytes) {
  if (bytes > state_->limit || RoundUpToPages(bytes) > state_->limit) {
    return Status::InvalidArgument("a buffer of " + std::to_string(bytes) +
                                   " bytes can never come from a pool of " +
                                   std::to_string(state_->limit));
  }
  const size_t size = RoundUpToPages(bytes);
  if (size == 0) return Buffer();
  // A class larger than the whole pool would make a request fail for ever that fits by itself;
  // such a one gets exactly its size and is not kept for reuse.
  size_t capacity = std::bit_ceil(size);
  if (capacity > state_->limit) capacity = size;

  auto block = std::make_shared<Buffer::Block>();
  uint8_t* memory = state_->Take(capacity);
  if (memory == nullptr) {
    return Status::Busy("the buffer pool of " + std::to_string(state_->limit) +
                        " bytes is exhausted");
  }
  block->memory = memory;
  block->size = size;
  block->capacity = capacity;
  block->pool = state_;
  return Buffer(std::move(block));
}

size_t BufferPool::limit_bytes() const { return state_->limit; }

size_t BufferPool::used_bytes() const {
  std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->used;
}

}  // namespace hydra
