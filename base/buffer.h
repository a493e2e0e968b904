// SPDX-License-Identifier: Apache-2.0
//
// Aligned memory for block payload. A block travels socket -> Buffer -> disk and peers without a
// copy, so a Buffer is shared by reference count and its memory fits O_DIRECT.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/status.h"

namespace hydra {

// The unit of the stream on disk and the alignment of every Buffer.
inline constexpr size_t kPageSize = 4096;

class BufferPool;

// A reference to a page-aligned piece of memory whose size is a multiple of kPageSize. Copying
// copies the reference. The memory goes back to its pool (or is freed) with the last reference.
// The holder of the only reference may write; shared buffers are read-only by convention. Safe to
// pass between threads.
class Buffer {
 public:
  Buffer() = default;

  // A zeroed buffer outside any pool. `bytes` is rounded up to whole pages.
  static Buffer Allocate(size_t bytes);

  // As above, in memory that the kernel is asked to make of huge pages: what is written from it
  // reaches the device in few pieces. For the few buffers that live long.
  static Buffer AllocateHuge(size_t bytes);

  uint8_t* data() const;
  size_t size() const;
  bool empty() const { return size() == 0; }
  std::span<uint8_t> span() const { return {data(), size()}; }

 private:
  friend class BufferPool;
  struct Block;
  explicit Buffer(std::shared_ptr<Block> block) : block_(std::move(block)) {}
  std::shared_ptr<Block> block_;
};

// A piece of a Buffer that keeps it alive. Offset and length are whole pages.
struct BufferSlice {
  Buffer buffer;
  size_t offset = 0;
  size_t length = 0;

  const uint8_t* data() const { return buffer.data() + offset; }
};

// Buffers up to a fixed number of bytes in all; what is returned is kept for the next caller, by
// power-of-two size class. Get() answers kBusy when the limit is reached: the caller pushes back,
// it never waits here. Thread-safe. Must outlive nothing: buffers keep the pool's state alive.
class BufferPool {
 public:
  explicit BufferPool(size_t limit_bytes);
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  // Contents are unspecified: whatever the last holder left. `bytes` is rounded up to whole pages;
  // the buffer's size() is that rounded size.
  Result<Buffer> Get(size_t bytes);

  size_t limit_bytes() const;
  size_t used_bytes() const;  // handed out now

 private:
  friend struct Buffer::Block;
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace hydra
