// SPDX-License-Identifier: Apache-2.0
#include "daemon/block_content.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

namespace hydra::history {
namespace {

std::vector<uint8_t> Filled(Block block, Value value, size_t size = 4096) {
  std::vector<uint8_t> bytes(size, 0xee);
  FillBlock(block, value, bytes);
  return bytes;
}

TEST(BlockContent, SaysWhoseItIs) {
  for (const size_t size : {32, 4096, 65536}) {
    for (const Value value : {1, 2, 1'000'000}) {
      const Result<Value> read = ParseBlock(7, Filled(7, value, size));
      ASSERT_TRUE(read.ok()) << read.status().ToString();
      EXPECT_EQ(*read, value);
    }
  }
  EXPECT_EQ(*ParseBlock(7, Filled(7, kAbsent)), kAbsent);
  EXPECT_EQ(*ParseBlock(7, std::vector<uint8_t>(4096, 0)), kAbsent);
}

TEST(BlockContent, AnotherBlocksBytesAreNotTaken) {
  EXPECT_EQ(ParseBlock(8, Filled(7, 1)).status().code(), Code::kCorruption);
}

TEST(BlockContent, EveryFlippedByteIsNoticed) {
  const std::vector<uint8_t> good = Filled(7, 5);
  for (size_t i = 0; i < good.size(); ++i) {
    std::vector<uint8_t> bad = good;
    bad[i] ^= 0x10;
    EXPECT_FALSE(ParseBlock(7, bad).ok()) << i;
    std::vector<uint8_t> touched(4096, 0);
    touched[i] = 1;
    EXPECT_FALSE(ParseBlock(7, touched).ok()) << i;
  }
}

TEST(BlockContent, AMixOfTwoWritesIsNoticed) {
  const std::vector<uint8_t> old_bytes = Filled(7, 5);
  const std::vector<uint8_t> new_bytes = Filled(7, 6);
  for (size_t cut = 512; cut < 4096; cut += 512) {
    std::vector<uint8_t> torn = new_bytes;
    std::copy(old_bytes.begin() + static_cast<ptrdiff_t>(cut), old_bytes.end(),
              torn.begin() + static_cast<ptrdiff_t>(cut));
    EXPECT_FALSE(ParseBlock(7, torn).ok()) << cut;
    std::vector<uint8_t> zeroed = new_bytes;
    std::fill(zeroed.begin() + static_cast<ptrdiff_t>(cut), zeroed.end(), 0);
    EXPECT_FALSE(ParseBlock(7, zeroed).ok()) << cut;
  }
}

}  // namespace
}  // namespace hydra::history
