// SPDX-License-Identifier: Apache-2.0
//
// A campaign runs many seeds and adds up what they did. Seeds run in child processes, so that one
// that crashes, fails a check or hangs is a failure of that seed with its evidence, and the others
// go on.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "tests/sim/run.h"

namespace hydra::sim {

struct SeedRange {
  uint64_t first = 1;
  uint64_t last = 1;
};
// "7..19", both ends included.
Result<SeedRange> ParseSeedRange(const std::string& text);

struct CampaignOptions {
  SeedRange seeds;
  Nanos wall_time = 0;  // start no further seed after this; 0: no limit
  unsigned jobs = 1;
  unsigned max_failures = 1;             // then stop
  Nanos seed_wall_time = 600 * kSecond;  // a seed that takes longer hangs
  bool twice = false;  // run each seed a second time: the trace hash must be the same
  RunOptions run;      // seed and trace are filled in
  std::function<void(uint64_t seeds_done)> progress;  // now and then
};

struct SeedFailure {
  uint64_t seed = 0;
  std::string text;
  std::string knobs;
};

struct CampaignResult {
  uint64_t seeds = 0;  // run to their end
  std::vector<SeedFailure> failures;
  Nanos simulated = 0;
  Nanos wall = 0;
  uint64_t operations_checked = 0;
  uint64_t undecided = 0;
  std::map<std::string, uint64_t> faults;
  // (name, file:line) -> times passed; all probes of the program, of seeds that ran to their end.
  std::map<std::pair<std::string, std::string>, uint64_t> probes;

  bool ok() const { return failures.empty(); }
  uint64_t faults_injected() const;
  uint64_t probes_reached() const;
  void Add(const RunResult& result);
};

using RunFunction = std::function<RunResult(const RunOptions&)>;
CampaignResult RunCampaign(const CampaignOptions& options, const RunFunction& run);

}  // namespace hydra::sim
