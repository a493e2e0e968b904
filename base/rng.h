// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/check.h"

namespace hydra {

// xoshiro256** seeded by splitmix64: the same seed gives the same numbers on every machine and in
// every version, which std::uniform_int_distribution does not promise. For simulations, tests and
// jitter; not for secrets. One thread at a time.
class Rng {
 public:
  explicit Rng(uint64_t seed) {
    for (uint64_t& word : state_) word = SplitMix64(&seed);
  }

  uint64_t Next() {
    const uint64_t result = RotateLeft(state_[1] * 5, 7) * 9;
    const uint64_t shifted = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= shifted;
    state_[3] = RotateLeft(state_[3], 45);
    return result;
  }

  // In [0, n). The high half of a product instead of a remainder: no division, and a bias below
  // n / 2^64.
  uint64_t Below(uint64_t n) {
    HYDRA_CHECK(n > 0);
    return static_cast<uint64_t>((static_cast<unsigned __int128>(Next()) * n) >> 64);
  }

  // In [low, high], both ends included.
  uint64_t Between(uint64_t low, uint64_t high) {
    HYDRA_CHECK(low <= high);
    const uint64_t width = high - low + 1;
    return width == 0 ? Next() : low + Below(width);
  }

  // True in p of a hundred cases.
  bool Percent(unsigned p) { return Below(100) < p; }

 private:
  static uint64_t SplitMix64(uint64_t* state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }

  static uint64_t RotateLeft(uint64_t v, int by) { return (v << by) | (v >> (64 - by)); }

  uint64_t state_[4];
};

}  // namespace hydra
