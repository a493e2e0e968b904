// SPDX-License-Identifier: Apache-2.0
//
// One simulated life of a cluster: everything that hydra-sim does with a seed.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/sabotage.h"
#include "tests/sim/trace.h"

namespace hydra::sim {

struct RunOptions {
  uint64_t seed = 1;
  unsigned nodes = 0;                // 0: drawn from the seed
  std::optional<Sabotage> sabotage;  // switched on for the run
  // Every event as text, if set. Changes nothing else.
  Trace::Sink trace;
};

struct RunResult {
  bool ok = true;
  std::string failure;  // what was violated, and the evidence
  std::string knobs;    // what the seed drew, in a line
  uint64_t trace_hash = 0;
  Nanos simulated = 0;
  uint64_t operations_checked = 0;
  uint64_t undecided = 0;                  // searches given up
  std::map<std::string, uint64_t> faults;  // injected, by kind

  uint64_t faults_injected() const {
    uint64_t sum = 0;
    for (const auto& [kind, count] : faults) sum += count;
    return sum;
  }
};

// The same options give the same result, byte for byte. Probes (base/probe.h) count on.
RunResult RunSeed(const RunOptions& options);

}  // namespace hydra::sim
