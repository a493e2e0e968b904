// SPDX-License-Identifier: Apache-2.0
#include "daemon/block_content.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/check.h"
#include "base/coding.h"

namespace hydra::history {
namespace {

constexpr size_t kWord = sizeof(uint64_t);
constexpr uint64_t kMagic = 0x6b636f6c426d6953;  // "SimBlock"

// The i-th word: magic, block, value, then noise.
uint64_t Word(Block block, Value value, size_t i) {
  switch (i) {
    case 0: return kMagic;
    case 1: return block;
    case 2: return value;
    default: break;
  }
  uint64_t z = value * 0x9e3779b97f4a7c15 + block * 0xd6e8feb86659fd93 + i;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  return z ^ (z >> 27);
}

}  // namespace

void FillBlock(Block block, Value value, std::span<uint8_t> bytes) {
  HYDRA_CHECK(bytes.size() % kWord == 0 && bytes.size() >= 4 * kWord);
  if (value == kAbsent) {
    std::fill(bytes.begin(), bytes.end(), 0);
    return;
  }
  for (size_t i = 0; i < bytes.size() / kWord; ++i) {
    EncodeFixed64(bytes.data() + i * kWord, Word(block, value, i));
  }
}

Result<Value> ParseBlock(Block block, std::span<const uint8_t> bytes) {
  HYDRA_CHECK(bytes.size() % kWord == 0 && bytes.size() >= 4 * kWord);
  if (std::all_of(bytes.begin(), bytes.end(), [](uint8_t b) { return b == 0; })) return kAbsent;
  const uint64_t magic = DecodeFixed64(bytes.data());
  const Block written_to = DecodeFixed64(bytes.data() + kWord);
  const Value value = DecodeFixed64(bytes.data() + 2 * kWord);
  if (magic != kMagic || value == kAbsent) {
    return Status::Corruption(fmt::format("block {} holds bytes that nobody wrote", block));
  }
  if (written_to != block) {
    return Status::Corruption(
        fmt::format("block {} holds value {} of block {}", block, value, written_to));
  }
  for (size_t i = 3; i < bytes.size() / kWord; ++i) {
    if (DecodeFixed64(bytes.data() + i * kWord) == Word(block, value, i)) continue;
    return Status::Corruption(
        fmt::format("block {} holds value {} up to byte {} only", block, value, i * kWord));
  }
  return value;
}

}  // namespace hydra::history
