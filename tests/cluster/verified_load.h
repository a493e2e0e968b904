// SPDX-License-Identifier: Apache-2.0
//
// Clients that write numbered blocks, and know of each which write was acknowledged last: whatever
// the nodes go through meanwhile, the block must hold that one, or one that was sent after it and
// whose outcome nobody knows.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/cluster/fixture.h"

namespace hydra::cluster_test {

class VerifiedLoad {
 public:
  // Each thread has a client and `blocks` blocks of the volume of its own.
  VerifiedLoad(const TestCluster& cluster, const std::string& volume, unsigned threads,
               uint64_t blocks);
  ~VerifiedLoad();

  uint64_t acknowledged() const { return acknowledged_; }
  // Until so many more writes were acknowledged. False: not in that time.
  bool WaitFor(uint64_t more, milliseconds patience);
  // Ends the writers; what went wrong meanwhile, one line each. At most 20.
  std::vector<std::string> Stop();
  // Reads every block through a new client and compares; what is wrong, one line each.
  std::vector<std::string> Verify();

  static constexpr size_t kBlock = 4096;

 private:
  struct Writer {
    Writer(Volume opened, uint64_t begin_, uint64_t blocks)
        : volume(std::move(opened)), begin(begin_), last(blocks), unknown(blocks) {}
    Volume volume;
    const uint64_t begin;
    std::vector<uint64_t> last;  // acknowledged; 0: none
    std::vector<std::vector<uint64_t>> unknown;
    std::vector<std::string> errors;
    std::thread thread;
  };

  void Write(Writer* writer, uint64_t seed);
  std::string Compare(const Writer& writer, uint64_t block, std::span<const uint8_t> bytes) const;

  const TestCluster& cluster_;
  const std::string volume_;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> acknowledged_{0};
  std::vector<std::unique_ptr<Writer>> writers_;
};

}  // namespace hydra::cluster_test
