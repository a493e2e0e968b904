// SPDX-License-Identifier: Apache-2.0
//
// What a large map costs: a store grows to so many mapped blocks, and at each size blocks are
// looked up and overwritten at random.
#include <functional>
#include <utility>

#include <fmt/format.h>

#include "base/rng.h"
#include "tests/bench/store_bench_figures.h"
#include "tests/bench/store_bench_sink.h"
#include "tests/bench/store_bench_system.h"

namespace hydra::bench {
namespace {

constexpr uint32_t kBlocksPerEntry = 64;
constexpr uint32_t kDepth = 16;
constexpr uint64_t kLookups = 200'000;
constexpr uint64_t kOverwrites = 2'000'000;

Status Write(uint64_t blocks, std::function<Lba()> next_lba, Driver* driver) {
  Workload workload;
  workload.entries = blocks / kBlocksPerEntry;
  workload.depth = kDepth;
  workload.blocks_per_entry = kBlocksPerEntry;
  workload.next_lba = std::move(next_lba);
  workload.tick = CheckInterrupted;
  HYDRA_RETURN_IF_ERROR(driver->Run(workload).status());
  driver->engine().RequestCheckpoint();
  return driver->Quiesce();
}

double SecondsSince(Nanos start) {
  return static_cast<double>(RealClock().Now() - start) / kSecond;
}

// Microseconds for each.
Result<double> TimeLookups(uint64_t blocks, Rng* rng, Engine* engine) {
  const Nanos start = RealClock().Now();
  for (uint64_t i = 0; i < kLookups; ++i) {
    HYDRA_RETURN_IF_ERROR(engine->Locate(Driver::kGroup, rng->Below(blocks)).status());
  }
  return SecondsSince(start) * 1e6 / kLookups;
}

}  // namespace

Result<std::vector<MapSize>> MeasureMapScale(const BenchContext& context,
                                             const std::vector<uint64_t>& sizes) {
  PayloadSinkFileSystem sink(context.fs);
  Driver::Options options = DefaultOptions(context, context.dir + "/scale");
  options.engine.fs = &sink;
  HYDRA_ASSIGN_OR_RETURN(auto driver, Driver::Create(options));
  Rng rng(7);
  std::vector<MapSize> results;
  uint64_t mapped = 0;
  for (const uint64_t size : sizes) {
    MapSize result;
    const Nanos start = RealClock().Now();
    const uint64_t before = mapped;
    HYDRA_RETURN_IF_ERROR(Write(
        size - mapped, [&mapped] { return mapped++; }, driver.get()));
    result.blocks = mapped;
    result.grown_per_second = static_cast<double>(mapped - before) / SecondsSince(start);
    HYDRA_ASSIGN_OR_RETURN(result.lookup_us, TimeLookups(mapped, &rng, &driver->engine()));
    const Nanos overwriting = RealClock().Now();
    HYDRA_RETURN_IF_ERROR(Write(
        kOverwrites, [&rng, mapped] { return rng.Below(mapped); }, driver.get()));
    result.overwritten_per_second = kOverwrites / SecondsSince(overwriting);
    HYDRA_ASSIGN_OR_RETURN(result.lookup_again_us, TimeLookups(mapped, &rng, &driver->engine()));
    HYDRA_ASSIGN_OR_RETURN(const MemoryUse memory, SelfMemory());
    result.resident_bytes = memory.rss_anon;
    result.map_bytes = DiskUsage(options.engine.dir + "/map");
    Progress(
        "{} blocks: grown at {:.0f} blocks/s, look-up {:.2f} us ({:.2f} after overwriting), "
        "overwritten at {:.0f} blocks/s, {} MiB of memory, map of {} MiB",
        mapped, result.grown_per_second, result.lookup_us, result.lookup_again_us,
        result.overwritten_per_second, result.resident_bytes / kMiB, result.map_bytes / kMiB);
    results.push_back(result);
  }
  driver.reset();
  RemoveAll(options.engine.dir);
  return results;
}

}  // namespace hydra::bench
