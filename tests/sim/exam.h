// SPDX-License-Identifier: Apache-2.0
//
// The exam of the simulator (docs/consensus.md, section 12): with each sabotage of base/sabotage.h
// switched on, one at a time, some seed must fail. It counts only if it passes without the
// sabotage, and if the complaint fits: a stale read found by chance while something else hangs
// teaches nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/sabotage.h"
#include "tests/sim/campaign.h"

namespace hydra::sim {

// Whether `failure` is what this bug leads to.
bool Fits(Sabotage sabotage, const std::string& failure);

struct ExamRow {
  Sabotage sabotage{};
  uint64_t limit = 0;  // seeds
  uint64_t seeds = 0;  // it took, or all that there were
  std::optional<uint64_t> caught_by;
  std::string failure;                 // of that seed
  std::vector<uint64_t> fails_anyway;  // seeds that fail without the sabotage as well
  std::vector<uint64_t> unfitting;     // seeds that fail with a complaint that does not fit
  double wall_seconds = 0;
};

struct ExamOptions {
  std::vector<Sabotage> sabotages;
  std::optional<SeedRange> seeds;  // otherwise each has its own
  unsigned jobs = 1;               // sabotages beside each other
  RunOptions run;
  std::function<void(const ExamRow&)> on_row;  // as soon as it is known, in a child process
};

// In the order of `sabotages`.
std::vector<ExamRow> TakeExam(const ExamOptions& options);

}  // namespace hydra::sim
