// SPDX-License-Identifier: Apache-2.0
//
// apply: how fast chosen entries enter the overlay, alone and while checkpoints drain it.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/rng.h"
#include "tests/bench/store_bench_figures.h"
#include "tests/bench/store_bench_sink.h"
#include "tests/bench/store_bench_system.h"

namespace hydra::bench {

namespace {

constexpr uint32_t kBlocksPerEntry = 64;
constexpr uint64_t kAddressSpace = 16u << 20;  // blocks: 64 GiB
constexpr uint32_t kDepth = 16;                // entries of 256 KiB
constexpr uint64_t kEntriesAhead = 128;        // accepted and not yet applied: 32 MiB

Workload RandomEntries(uint64_t entries, Rng* rng) {
  Workload workload;
  workload.entries = entries;
  workload.depth = kDepth;
  workload.blocks_per_entry = kBlocksPerEntry;
  workload.next_lba = [rng] { return rng->Below(kAddressSpace); };
  return workload;
}

// Makes entries durable, some at a time, and returns how long applying them took.
Result<double> TimeApply(uint64_t entries, Rng* rng, Driver* driver) {
  double seconds = 0;
  for (uint64_t done = 0; done < entries; done += kEntriesAhead) {
    const uint64_t some = std::min(kEntriesAhead, entries - done);
    HYDRA_RETURN_IF_ERROR(driver->AcceptOnly(RandomEntries(some, rng)));
    HYDRA_ASSIGN_OR_RETURN(const RunResult run, driver->ApplyAccepted());
    seconds += run.seconds;
  }
  return seconds;
}

// Timed is Apply alone, of entries that are durable already; no checkpoint falls due.
Status MeasureOverlay(const BenchContext& context, FileSystem* sink, std::vector<Row>* rows) {
  Row row;
  row.name = "apply_overlay";
  row.what = "Apply alone, entries of 64 random single-block writes";
  row.unit = "blocks/s";
  row.bar = {Bar::Kind::kAtLeast, 500'000};
  const uint64_t entries = context.Bytes(2 * kGiB, 512 * kMiB) / kPageSize / kBlocksPerEntry;
  const std::string dir = context.dir + "/apply";
  {
    Driver::Options options = DefaultOptions(context, dir);
    options.engine.fs = sink;
    options.engine.overlay_rows =
        entries * kBlocksPerEntry * static_cast<uint64_t>(context.rounds) + 1;
    HYDRA_ASSIGN_OR_RETURN(auto driver, Driver::Create(options));
    Rng rng(5);
    for (int round = 0; round < context.rounds; ++round) {
      HYDRA_ASSIGN_OR_RETURN(const double seconds, TimeApply(entries, &rng, driver.get()));
      row.hydra.Add(static_cast<double>(entries * kBlocksPerEntry) / seconds);
      Progress("apply_overlay round {}: {:.0f} blocks/s", round + 1, row.hydra.values.back());
    }
    row.Note("blocks per round",
             fmt::format("{} over {} addresses", entries * kBlocksPerEntry, kAddressSpace));
    row.Note("checkpoints", fmt::format("{}", driver->engine().Stats().checkpoints));
  }
  RemoveAll(dir);
  row.Note("store", kSinkNote);
  rows->push_back(std::move(row));
  return Status::Ok();
}

// Everything counts: making payload, Accept, Apply, waiting for a full overlay, and the last
// checkpoint, after which no row is left in memory.
Status MeasureSustained(const BenchContext& context, FileSystem* sink, std::vector<Row>* rows) {
  Row row;
  row.name = "apply_sustained";
  row.what = "accept and apply with checkpoints draining the overlay, wall time";
  row.unit = "blocks/s";
  row.bar = {Bar::Kind::kAtLeast, 150'000};
  const uint64_t entries = context.Bytes(16 * kGiB, 4 * kGiB) / kPageSize / kBlocksPerEntry;
  const std::string dir = context.dir + "/apply";
  {
    Driver::Options options = DefaultOptions(context, dir);
    options.engine.fs = sink;
    SizeForPayload(entries * kBlocksPerEntry * kPageSize, &options);
    HYDRA_ASSIGN_OR_RETURN(auto driver, CreateWithSpares(options));
    Rng rng(6);
    const double blocks = static_cast<double>(entries * kBlocksPerEntry);
    const Nanos start = RealClock().Now();
    HYDRA_ASSIGN_OR_RETURN(const RunResult run, driver->Run(RandomEntries(entries, &rng)));
    driver->engine().RequestCheckpoint();
    HYDRA_RETURN_IF_ERROR(driver->Quiesce());
    const double seconds = static_cast<double>(RealClock().Now() - start) / kSecond;
    const EngineStats stats = driver->engine().Stats();
    if (stats.overlay_rows != 0) {
      row.Note("rows left in the overlay", fmt::format("{}", stats.overlay_rows));
    }
    row.hydra.Add(blocks / seconds);
    row.Note("blocks", fmt::format("{:.0f} over {} addresses", blocks, kAddressSpace));
    row.Note("wall",
             fmt::format("{:.2f} s, of which {:.2f} s in Apply, {:.2f} s stalled, "
                         "{:.2f} s for the last checkpoint",
                         seconds, run.apply_seconds, run.stalled_seconds, seconds - run.seconds));
    row.Note("Apply and stalls only",
             fmt::format("{:.0f} blocks/s", blocks / (run.apply_seconds + run.stalled_seconds)));
    row.Note("busy",
             fmt::format("Apply {} times, Accept {} times", run.apply_busy, run.accept_busy));
    row.Note("checkpoints", fmt::format("{}", stats.checkpoints));
    Progress("apply_sustained: {:.0f} blocks/s, {} checkpoints", blocks / seconds,
             stats.checkpoints);
  }
  RemoveAll(dir);
  row.Note("store", kSinkNote);
  rows->push_back(std::move(row));
  return Status::Ok();
}

}  // namespace

Status MeasureApply(BenchContext* context, std::vector<Row>* rows) {
  PayloadSinkFileSystem sink(context->fs);
  HYDRA_RETURN_IF_ERROR(MeasureOverlay(*context, &sink, rows));
  return MeasureSustained(*context, &sink, rows);
}

}  // namespace hydra::bench
