// SPDX-License-Identifier: Apache-2.0
#include "base/buffer.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include <gtest/gtest.h>

namespace hydra {
namespace {

bool Aligned(const Buffer& buffer) {
  return reinterpret_cast<uintptr_t>(buffer.data()) % kPageSize == 0;
}

TEST(Buffer, AllocatesZeroedAlignedWholePages) {
  const Buffer buffer = Buffer::Allocate(kPageSize + 1);
  EXPECT_EQ(buffer.size(), 2 * kPageSize);
  EXPECT_TRUE(Aligned(buffer));
  const auto bytes = buffer.span();
  EXPECT_TRUE(std::all_of(bytes.begin(), bytes.end(), [](uint8_t b) { return b == 0; }));
}

TEST(Buffer, OfNothingIsEmpty) {
  EXPECT_TRUE(Buffer().empty());
  EXPECT_EQ(Buffer().data(), nullptr);
  EXPECT_TRUE(Buffer::Allocate(0).empty());
}

TEST(Buffer, CopiesShareTheirMemory) {
  Buffer one = Buffer::Allocate(kPageSize);
  const Buffer two = one;
  one.data()[5] = 42;
  EXPECT_EQ(two.data()[5], 42);
  one = Buffer();
  EXPECT_EQ(two.data()[5], 42);
  const BufferSlice slice{two, 0, kPageSize};
  EXPECT_EQ(slice.data()[5], 42);
}

TEST(BufferPool, HandsOutAlignedMemoryOfTheRoundedSize) {
  BufferPool pool(1 << 20);
  for (const size_t bytes : {1ul, kPageSize, kPageSize + 1, 5 * kPageSize, 100'000ul}) {
    const auto buffer = pool.Get(bytes);
    ASSERT_TRUE(buffer.ok());
    EXPECT_EQ(buffer->size(), (bytes + kPageSize - 1) / kPageSize * kPageSize);
    EXPECT_TRUE(Aligned(*buffer));
    std::memset(buffer->data(), 1, buffer->size());
  }
  EXPECT_EQ(pool.used_bytes(), 0u);
  EXPECT_EQ(pool.limit_bytes(), 1u << 20);
  EXPECT_TRUE(pool.Get(0).value().empty());
}

TEST(BufferPool, IsBusyAtItsLimitAndServesAgainAfterAReturn) {
  BufferPool pool(4 * kPageSize);
  std::vector<Buffer> held;
  for (int i = 0; i < 4; ++i) held.push_back(pool.Get(kPageSize).value());
  EXPECT_EQ(pool.used_bytes(), 4 * kPageSize);
  EXPECT_EQ(pool.Get(kPageSize).status().code(), Code::kBusy);
  held.pop_back();
  EXPECT_TRUE(pool.Get(kPageSize).ok());
}

TEST(BufferPool, CountsTheWholeSizeClassAgainstTheLimit) {
  BufferPool pool(8 * kPageSize);
  const auto five = pool.Get(5 * kPageSize);
  ASSERT_TRUE(five.ok());
  EXPECT_EQ(pool.used_bytes(), 8 * kPageSize);
  EXPECT_EQ(pool.Get(kPageSize).status().code(), Code::kBusy);
}

TEST(BufferPool, WhatCanNeverFitIsNotBusyButInvalid) {
  BufferPool pool(4 * kPageSize + 100);
  EXPECT_EQ(pool.Get(5 * kPageSize).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(pool.Get(4 * kPageSize + 50).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(pool.Get(SIZE_MAX).status().code(), Code::kInvalidArgument);
}

TEST(BufferPool, ServesARequestThatFitsEvenIfItsSizeClassDoesNot) {
  BufferPool pool(6 * kPageSize);
  EXPECT_EQ(pool.Get(5 * kPageSize).value().size(), 5 * kPageSize);
  EXPECT_EQ(pool.used_bytes(), 0u);
}

TEST(BufferPool, ReusesMemoryWithoutClearingIt) {
  BufferPool pool(16 * kPageSize);
  Buffer first = pool.Get(3 * kPageSize).value();
  first.data()[0] = 77;
  const uint8_t* const memory = first.data();
  first = Buffer();
  const Buffer again = pool.Get(4 * kPageSize).value();
  EXPECT_EQ(again.data(), memory);
  EXPECT_EQ(again.data()[0], 77);
}

TEST(BufferPool, GivesUpIdleMemoryOfOtherSizesForANewOne) {
  BufferPool pool(8 * kPageSize);
  {
    std::vector<Buffer> small;
    for (int i = 0; i < 8; ++i) small.push_back(pool.Get(kPageSize).value());
  }
  EXPECT_TRUE(pool.Get(8 * kPageSize).ok());
  EXPECT_TRUE(pool.Get(kPageSize).ok());
}

TEST(BufferPool, BuffersOutliveIt) {
  auto pool = std::make_unique<BufferPool>(4 * kPageSize);
  Buffer idle = pool->Get(kPageSize).value();
  idle = Buffer();
  const Buffer kept = pool->Get(2 * kPageSize).value();
  pool.reset();
  std::memset(kept.data(), 3, kept.size());
  EXPECT_EQ(kept.data()[kept.size() - 1], 3);
}

}  // namespace
}  // namespace hydra
