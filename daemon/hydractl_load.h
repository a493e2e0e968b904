// SPDX-License-Identifier: Apache-2.0
//
// Load on a volume, measured and, if wanted, verified: what `hydractl bench` does.
//
// Verification. Every block that is written holds its place and a number that counts up, expanded
// over all its bytes, so a block says which write it comes from. No two writes of a block are under
// way at the same time. After a write was acknowledged the block must hold it until a later one of
// the same block is sent; a write that failed without a known outcome may or may not be there.
// Reads during the load are held against that, and after it everything that was ever written is
// read again.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/rng.h"
#include "base/status.h"
#include "client/hydra.h"

namespace hydra::ctl {

// Buckets of 1/32 of a power of two: a quantile is within 3 % of the true one.
class LatencyHistogram {
 public:
  void Add(uint64_t nanoseconds);
  void Merge(const LatencyHistogram& other);
  uint64_t count() const { return count_; }
  uint64_t min() const { return count_ == 0 ? 0 : min_; }
  uint64_t max() const { return max_; }
  double mean() const;
  uint64_t Quantile(double q) const;  // in nanoseconds

 private:
  static constexpr unsigned kSubBits = 5;
  static constexpr size_t kBuckets = (64 - kSubBits + 1) << kSubBits;
  static size_t Bucket(uint64_t value);

  std::vector<uint64_t> counts_ = std::vector<uint64_t>(kBuckets);
  uint64_t count_ = 0;
  uint64_t sum_ = 0;
  uint64_t min_ = UINT64_MAX;
  uint64_t max_ = 0;
};

// Where random requests go: so many percent of them to so many percent of the blocks, and the
// others to the other blocks. Zero percent of the blocks: no such preference.
struct Skew {
  unsigned requests = 0;
  unsigned blocks = 0;
};

// Chooses blocks of [0, blocks). Those that are preferred lie scattered over the range, so that all
// shards have their share of them.
class BlockChooser {
 public:
  BlockChooser(uint64_t blocks, const Skew& skew);
  uint64_t Next(Rng* rng) const;

 private:
  uint64_t At(uint64_t index) const;  // a permutation

  uint64_t blocks_;
  uint64_t preferred_;
  unsigned requests_;
  uint64_t step_;
};

struct LoadOptions {
  bool random = true;
  unsigned read_percent = 0;  // 100: only reads
  uint64_t block_bytes = 4096;
  unsigned depth = 64;  // per job
  unsigned jobs = 1;    // each with connections of its own, on its own part of the range
  std::chrono::milliseconds runtime{10'000};
  uint64_t operations = 0;  // per job, at most; 0: until the time is up
  uint64_t offset = 0;
  uint64_t size = 0;   // 0: to the end of the volume
  uint64_t seed = 0;   // 0: another every time
  Skew skew;           // of random requests
  bool local = false;  // reads
  bool verify = false;
  bool continue_on_error = false;
};

struct LoadSide {
  uint64_t operations = 0;
  LatencyHistogram latency;
};

struct LoadReport {
  LoadSide reads;
  LoadSide writes;
  double seconds = 0;
  uint64_t errors = 0;
  Status first_error;
  uint64_t verified = 0;  // blocks
  uint64_t wrong = 0;
  std::string first_wrong;
};

// Fills `block`, of any multiple of 512 bytes, as write `number` of the block at `offset`.
void StampBlock(uint64_t seed, uint64_t offset, uint64_t number, std::span<uint8_t> block);
bool BlockIs(uint64_t seed, uint64_t offset, uint64_t number, std::span<const uint8_t> block);

// `volumes` has one entry per job, opened through clusters of their own. Fails where the options
// make no sense; what goes wrong with the load is in the report.
Result<LoadReport> RunLoad(const std::vector<Volume>& volumes, const LoadOptions& options);

}  // namespace hydra::ctl
