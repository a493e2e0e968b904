// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace hydra {

// A 64-bit hash of a sequence of values, the same on every machine and in every version: replicas
// compare it. Each step is a bijection of the state and of the value, so that two sequences of one
// length that differ in one value never meet in that step. Finds accidents, not forgers.
class Digester {
 public:
  void Add(uint64_t value) { state_ = Mix(state_ + 0x9e3779b97f4a7c15 + value); }

  // With its length, so that two neighbours cannot trade bytes.
  void Add(std::span<const uint8_t> bytes) {
    Add(bytes.size());
    for (; bytes.size() >= sizeof(uint64_t); bytes = bytes.subspan(sizeof(uint64_t))) {
      uint64_t word = 0;
      std::memcpy(&word, bytes.data(), sizeof(word));
      Add(word);
    }
    if (bytes.empty()) return;
    uint64_t word = 0;
    std::memcpy(&word, bytes.data(), bytes.size());
    Add(word);
  }

  uint64_t value() const { return state_; }

 private:
  // The finalizer of splitmix64.
  static uint64_t Mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }

  uint64_t state_ = 0;
};

}  // namespace hydra
