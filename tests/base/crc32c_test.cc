// SPDX-License-Identifier: Apache-2.0
#include "base/crc32c.h"

#include <array>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/rng.h"

namespace hydra {
namespace {

// One bit at a time, straight from the definition.
uint32_t SlowCrc32c(std::span<const uint8_t> bytes) {
  uint32_t crc = ~0u;
  for (const uint8_t byte : bytes) {
    crc ^= byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
  }
  return ~crc;
}

TEST(Crc32c, MatchesTheVectorsOfRfc3720) {
  std::array<uint8_t, 32> bytes;
  bytes.fill(0);
  EXPECT_EQ(Crc32c(bytes), 0x8A9136AAu);
  bytes.fill(0xff);
  EXPECT_EQ(Crc32c(bytes), 0x62A8AB43u);
  std::iota(bytes.begin(), bytes.end(), uint8_t{0});
  EXPECT_EQ(Crc32c(bytes), 0x46DD794Eu);
  std::iota(bytes.rbegin(), bytes.rend(), uint8_t{0});
  EXPECT_EQ(Crc32c(bytes), 0x113FDB5Cu);

  const std::array<uint8_t, 48> read10 = {
      0x01, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,    0, 0, 0, 0,  //
      0x14, 0,    0, 0, 0, 0, 4, 0, 0, 0, 0, 0x14, 0, 0, 0, 0x18,
      0x28, 0,    0, 0, 0, 0, 0, 0, 2, 0, 0, 0,    0, 0, 0, 0};
  EXPECT_EQ(Crc32c(read10), 0xD9963A56u);
}

TEST(Crc32c, MatchesTheCommonCheckValue) { EXPECT_EQ(Crc32c("123456789", 9), 0xE3069283u); }

TEST(Crc32c, OfNothingIsTheStartingValue) {
  const std::span<const uint8_t> nothing;
  EXPECT_EQ(Crc32c(nothing), 0u);
  EXPECT_EQ(Crc32c(nothing, 0x12345678), 0x12345678u);
}

TEST(Crc32c, ContinuesAtEverySplitPoint) {
  const std::string text = "the log entry holds a reference to where the payload already is";
  const uint32_t whole = Crc32c(text.data(), text.size());
  for (size_t split = 0; split <= text.size(); ++split) {
    const uint32_t first = Crc32c(text.data(), split);
    EXPECT_EQ(Crc32c(text.data() + split, text.size() - split, first), whole) << split;
  }
}

TEST(Crc32c, AgreesWithTheDefinitionAtEveryAlignmentAndLength) {
  Rng rng(7);
  std::vector<uint8_t> bytes(3 * 4096);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(rng.Next());
  for (size_t start = 0; start < 16; ++start) {
    for (const size_t length : {1, 7, 8, 63, 64, 511, 512, 1023, 4096, 8191}) {
      const std::span<const uint8_t> piece(bytes.data() + start, length);
      EXPECT_EQ(Crc32c(piece), SlowCrc32c(piece)) << start << " " << length;
    }
  }
}

}  // namespace
}  // namespace hydra
