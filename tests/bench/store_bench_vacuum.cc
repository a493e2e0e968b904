// SPDX-License-Identifier: Apache-2.0
//
// vacuum: what it costs to keep overwriting a store that is 70 % full, and whether it stays within
// its limit.
#include <algorithm>
#include <functional>

#include <fmt/format.h>

#include "base/rng.h"
#include "tests/bench/store_bench_figures.h"
#include "tests/bench/store_bench_system.h"

namespace hydra::bench {

namespace {

constexpr double kLiveShare = 0.70;
constexpr uint32_t kWritesAhead = 64;
constexpr unsigned kHotWritePercent = 90;
constexpr uint64_t kHotBlocksPerTen = 1;

struct Pattern {
  const char* name;
  const char* what;
  double limit;
  bool skewed;
};

// 90 % of the writes go to 10 % of the blocks, which lie scattered over the volume.
Lba NextOverwrite(const Pattern& pattern, const ScatteredLbas& lbas, uint64_t blocks, Rng* rng) {
  if (!pattern.skewed) return rng->Below(blocks);
  const uint64_t hot = blocks * kHotBlocksPerTen / 10;
  if (rng->Percent(kHotWritePercent)) return lbas.At(rng->Below(hot));
  return lbas.At(hot + rng->Below(blocks - hot));
}

struct VacuumRun {
  uint64_t capacity = 0;
  uint64_t blocks = 0;
  std::unique_ptr<Driver> driver;
  uint64_t peak_stats = 0;
  uint64_t peak_disk = 0;
  RunResult total;
};

// Writes `entries` blocks and keeps an eye on the space taken.
Status WriteBlocks(uint64_t entries, const std::string& segments, std::function<Lba()> next,
                   VacuumRun* run) {
  Workload workload;
  workload.entries = entries;
  workload.depth = kWritesAhead;
  workload.next_lba = std::move(next);
  workload.tick = [&] {
    run->peak_stats = std::max(run->peak_stats, run->driver->engine().Stats().space_bytes);
    run->peak_disk = std::max(run->peak_disk, DiskUsage(segments));
    return Status::Ok();
  };
  HYDRA_ASSIGN_OR_RETURN(const RunResult result, run->driver->Run(workload));
  run->total.seconds += result.seconds;
  run->total.stalled_seconds += result.stalled_seconds;
  run->total.accept_busy += result.accept_busy;
  run->total.accept_no_space += result.accept_no_space;
  run->total.apply_busy += result.apply_busy;
  return Status::Ok();
}

void NoteMeasured(const VacuumRun& run, uint64_t payload, const IoCounters& io,
                  const EngineStats& before, const EngineStats& after, Row* row) {
  const auto mib = [](uint64_t bytes) { return bytes / kMiB; };
  row->Note("store",
            fmt::format("limit {} MiB, {} MiB live, {} segments in use at the end",
                        mib(run.capacity), mib(run.blocks * kPageSize), after.segments.size()));
  row->Note("measured",
            fmt::format("{} MiB of payload in {:.1f} s ({:.0f} MB/s)", mib(payload),
                        run.total.seconds, static_cast<double>(payload) / run.total.seconds / 1e6));
  const uint64_t batches = after.batch_bytes - before.batch_bytes;
  row->Note("written", fmt::format("{} MiB in all: {} MiB in batches, of which {} MiB relocated "
                                   "payload; {} MiB beside them; {} MiB zero-fill",
                                   mib(io.write_bytes), mib(batches),
                                   mib(after.relocated_bytes - before.relocated_bytes),
                                   mib(io.write_bytes - std::min(io.write_bytes, batches)),
                                   mib(after.zero_fill_bytes - before.zero_fill_bytes)));
  row->Note("waits", fmt::format("{} x no space, {} x queue busy, {} x overlay busy, {:.1f} s",
                                 run.total.accept_no_space, run.total.accept_busy,
                                 run.total.apply_busy, run.total.stalled_seconds));
  row->Note("segments freed", fmt::format("{}", after.segments_freed - before.segments_freed));
  row->Note("checkpoints", fmt::format("{}", after.checkpoints - before.checkpoints));
}

Status MeasurePattern(const BenchContext& context, const Pattern& pattern, double* peak_share,
                      std::vector<Row>* rows) {
  const std::string dir = context.dir + "/vacuum";
  const std::string segments = dir + "/segments";
  Driver::Options options = DefaultOptions(context, dir);
  // 96 segments either way: reserve and open segments are the same share of the store.
  options.segment_bytes = context.quick ? 10 * kMiB : 64 * kMiB;
  VacuumRun run;
  run.capacity =
      context.Bytes(6 * kGiB, 960 * kMiB) / options.segment_bytes * options.segment_bytes;
  options.engine.capacity_bytes = run.capacity;
  run.blocks = static_cast<uint64_t>(kLiveShare * static_cast<double>(run.capacity)) / kPageSize;
  HYDRA_ASSIGN_OR_RETURN(run.driver, Driver::Create(options));

  Rng rng(7);
  ScatteredLbas lbas(run.blocks);
  const auto overwrite = [&] { return NextOverwrite(pattern, lbas, run.blocks, &rng); };
  Progress("{}: filling", pattern.name);
  HYDRA_RETURN_IF_ERROR(WriteBlocks(
      run.blocks, segments, [&] { return lbas.Next(); }, &run));
  Progress("{}: overwriting twice", pattern.name);
  HYDRA_RETURN_IF_ERROR(WriteBlocks(2 * run.blocks, segments, overwrite, &run));

  run.total = RunResult();
  const uint64_t entries = run.capacity * 3 / 2 / kPageSize;
  const EngineStats before = run.driver->engine().Stats();
  HYDRA_ASSIGN_OR_RETURN(const IoCounters io_before, SelfIo());
  HYDRA_RETURN_IF_ERROR(WriteBlocks(entries, segments, overwrite, &run));
  HYDRA_ASSIGN_OR_RETURN(const IoCounters io_after, SelfIo());
  const IoCounters io = io_after - io_before;

  Row row;
  row.name = pattern.name;
  row.what = pattern.what;
  row.unit = "x";
  row.bar = {Bar::Kind::kAtMost, pattern.limit};
  const uint64_t payload = entries * kPageSize;
  row.hydra.Add(static_cast<double>(io.write_bytes) / static_cast<double>(payload));
  NoteMeasured(run, payload, io, before, run.driver->engine().Stats(), &row);
  const uint64_t peak = std::max(run.peak_stats, run.peak_disk);
  row.Note("peak space", fmt::format("{} MiB by the engine, {} MiB on disk", run.peak_stats / kMiB,
                                     run.peak_disk / kMiB));
  *peak_share =
      std::max(*peak_share, static_cast<double>(peak) / static_cast<double>(run.capacity));
  Progress("{}: {:.2f}", pattern.name, row.Value());
  rows->push_back(std::move(row));
  run.driver.reset();
  RemoveAll(dir);
  return Status::Ok();
}

}  // namespace

Status MeasureVacuum(BenchContext* context, std::vector<Row>* rows) {
  constexpr Pattern kPatterns[] = {
      {"vacuum_uniform", "total bytes written per payload byte, 70 % live, uniform overwrite", 2.7,
       false},
      {"vacuum_skew", "total bytes written per payload byte, 70 % live, 90/10 skew", 1.9, true},
  };
  double peak_share = 0;
  for (const Pattern& pattern : kPatterns) {
    HYDRA_RETURN_IF_ERROR(MeasurePattern(*context, pattern, &peak_share, rows));
  }
  Row row;
  row.name = "vacuum_space";
  row.what = "highest space taken by segments and spares, of the limit set";
  row.unit = "x";
  row.bar = {Bar::Kind::kAtMost, 1.0};
  row.hydra.Add(peak_share);
  row.Note("sampled", "every 100 ms: the engine's own number and the files' blocks on disk");
  rows->push_back(std::move(row));
  return Status::Ok();
}

}  // namespace hydra::bench
