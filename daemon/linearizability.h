// SPDX-License-Identifier: Apache-2.0
//
// Is a history linearizable: is there one order of all operations that keeps to real time and
// explains every answer?
//
// Blocks are checked one by one, which is exact for operations on one block. Where a block saw only
// reads and writes of its own values, which is most, by intervals in n log n time (Gibbons and
// Korach, "Testing Shared Memories", 1997); where it saw deletes, compare-and-writes or mismatches,
// by a search (daemon/register_search.h). Operations on several blocks must be atomic as well:
// wherever one read saw blocks x and y, and the write it saw in x wrote y too but is not what it
// saw there, the two blocks together are searched; and so is a sample of the other pairs of blocks
// that some operation touched together, for a write that was seen in one block before it was seen
// in the other. (Mixes of three or more blocks of which every two are in order are not found.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "daemon/history.h"

namespace hydra::history {

struct CheckOptions {
  uint64_t max_steps = 2'000'000;  // per search; then it is undecided
  size_t max_pairs = 2'000;        // suspicious pairs of blocks; more are undecided
  size_t sampled_pairs = 32;       // of the others
  bool always_search = false;      // also where the intervals would do: to test both
};

struct CheckResult {
  bool ok = true;
  // If not: which blocks, why, and a few operations that cannot be explained even without the rest.
  std::string explanation;
  uint64_t operations = 0;  // with an answer
  uint64_t blocks = 0;
  uint64_t searched = 0;  // blocks
  uint64_t pairs = 0;     // searched
  // Not known to be right: too many open operations, too many steps or pairs. A run that has any
  // was not checked as it should be.
  uint64_t undecided = 0;
};

CheckResult CheckLinearizable(const History& history, const CheckOptions& options = {});

}  // namespace hydra::history
