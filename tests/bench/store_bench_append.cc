// SPDX-License-Identifier: Apache-2.0
//
// append_qd1 and append_qd64: durable appends beside fio's synced overwrites, and device_bytes:
// what a payload byte costs on the device.
#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "base/rng.h"
#include "tests/bench/store_bench_figures.h"
#include "tests/bench/store_bench_fio.h"
#include "tests/bench/store_bench_system.h"

namespace hydra::bench {

namespace {

constexpr uint64_t kAddressSpaceFactor = 2;  // addresses per block written

// Random blocks of an address space twice as large as what is written.
Workload RandomWrites(uint64_t entries, uint32_t depth, Rng* rng) {
  Workload workload;
  workload.entries = entries;
  workload.depth = depth;
  const uint64_t space = std::max<uint64_t>(entries * kAddressSpaceFactor, 1 << 16);
  workload.next_lba = [rng, space] { return rng->Below(space); };
  return workload;
}

// A store into which `bytes` of payload fit without a checkpoint falling due: the map stays in the
// overlay, every segment file was zero-filled beforehand, no job runs.
Result<std::unique_ptr<Driver>> CreateForAppends(const BenchContext& context,
                                                 const std::string& dir, uint64_t bytes) {
  Driver::Options options = DefaultOptions(context, dir);
  options.segment_bytes = context.quick ? 64 * kMiB : 256 * kMiB;
  options.run_jobs = false;
  options.engine.overlay_rows = bytes / kPageSize + 1;
  SizeForPayload(bytes, &options);
  return CreateWithSpares(options);
}

// Interleaved rounds: Hydra in each of its write modes, fio, and again.
struct Duel {
  std::vector<WriteMode> modes;
  uint64_t entries = 0;  // per round and mode
  uint32_t depth = 1;
  uint64_t fio_block = 0;
  uint64_t fio_bytes = 0;  // per round
  bool count_bytes = false;

  uint64_t PayloadBytes(const BenchContext& context) const {
    return entries * kPageSize * modes.size() * static_cast<uint64_t>(context.rounds);
  }
};

// What one write mode reached, a value per round.
struct ModeSamples {
  Samples rate;          // making payload not counted: that is the clients' work
  Samples rate_in_all;   // making payload counted, where nothing was written meanwhile
  Samples beside_write;  // seconds per batch outside Batch::Write
};

// The mode with the best median stands for Hydra: what a daemon could reach is what is asked. All
// are noted, because the best of several is a little lucky.
void PickBestMode(const Duel& duel, const std::vector<ModeSamples>& by_mode, Row* row) {
  size_t best = 0;
  for (size_t i = 0; i < by_mode.size(); ++i) {
    const ModeSamples& mode = by_mode[i];
    if (mode.rate.Median() > by_mode[best].rate.Median()) best = i;
    row->Note(WriteModeName(duel.modes[i]),
              fmt::format("{:.0f} {} ({:.0f}..{:.0f}), {:.0f} with the making of payload counted, "
                          "{:.1f} us per batch outside Batch::Write",
                          mode.rate.Median(), row->unit, mode.rate.Min(), mode.rate.Max(),
                          mode.rate_in_all.Median(), mode.beside_write.Median() * 1e6));
  }
  row->hydra = by_mode[best].rate;
  row->Note("write mode", WriteModeName(duel.modes[best]));
  row->Note("answered", "when durable; each entry is also applied, within the measured time");
}

Status RunDuel(const BenchContext& context, const Duel& duel, Driver* driver, Row* row) {
  const std::string file = context.dir + "/fio-append";
  HYDRA_RETURN_IF_ERROR(LayOutFile(file, duel.fio_bytes));
  Rng rng(duel.depth);
  std::vector<ModeSamples> by_mode(duel.modes.size());
  const double work = static_cast<double>(duel.entries) * (duel.count_bytes ? kPageSize / 1e6 : 1);
  for (int round = 0; round < context.rounds; ++round) {
    for (size_t i = 0; i < duel.modes.size(); ++i) {
      driver->set_mode(duel.modes[i]);
      Workload workload = RandomWrites(duel.entries, duel.depth, &rng);
      workload.answer_when_durable = true;
      HYDRA_ASSIGN_OR_RETURN(const RunResult run, driver->Run(workload));
      HYDRA_RETURN_IF_ERROR(driver->Quiesce());
      const double seconds = run.seconds - run.payload_seconds;
      by_mode[i].rate.Add(work / seconds);
      by_mode[i].rate_in_all.Add(work / run.seconds);
      by_mode[i].beside_write.Add((seconds - run.write_seconds) / static_cast<double>(run.batches));
      Progress("{} round {}: hydra {:.0f} {} ({})", row->name, round + 1, work / seconds, row->unit,
               WriteModeName(duel.modes[i]));
    }
    HYDRA_ASSIGN_OR_RETURN(const FioResult fio,
                           FioSequentialDsync(file, duel.fio_bytes, duel.fio_block));
    row->fio.Add(duel.count_bytes ? fio.bytes_per_second / 1e6 : fio.iops);
    Progress("{} round {}: fio {:.0f} {}", row->name, round + 1, row->fio.values.back(), row->unit);
  }
  PickBestMode(duel, by_mode, row);
  RemoveAll(file);
  return Status::Ok();
}

struct DeviceBytes {
  double ratio = 0;
  uint64_t zero_fill_before = 0;
  uint64_t zero_fill_during = 0;
  uint64_t cancelled = 0;
  uint64_t map_bytes = 0;  // device bytes that were not batches
  EngineStats stats;
};

// Writes `bytes` of random 4 KiB blocks at `depth` and compares with what /proc/self/io counted.
// With the map: checkpoints run as they fall due, and the last one after the end, so that every
// row that was applied has also been paid for; closing waits for LevelDB's compaction.
Result<DeviceBytes> MeasureOneDeviceBytes(const BenchContext& context, uint64_t bytes,
                                          uint32_t depth, bool with_map) {
  const std::string dir = context.dir + "/device-bytes";
  const uint64_t blocks = bytes / kPageSize;
  Driver::Options options = DefaultOptions(context, dir);
  if (context.quick) options.segment_bytes = 64 * kMiB;
  options.run_jobs = with_map;
  if (with_map) {
    // A smaller run keeps the number of checkpoints of the full one (4 GiB).
    const size_t scaled = options.engine.overlay_rows * blocks / (4 * kGiB / kPageSize);
    options.engine.overlay_rows = std::min(options.engine.overlay_rows, scaled);
  } else {
    options.engine.overlay_rows = blocks + 1;
  }
  SizeForPayload(bytes, &options);
  DeviceBytes result;
  {
    HYDRA_ASSIGN_OR_RETURN(auto driver, CreateWithSpares(options));
    Rng rng(depth);
    const EngineStats before = driver->engine().Stats();
    HYDRA_ASSIGN_OR_RETURN(const IoCounters io_before, SelfIo());
    HYDRA_ASSIGN_OR_RETURN(const RunResult run, driver->Run(RandomWrites(blocks, depth, &rng)));
    if (with_map) HYDRA_RETURN_IF_ERROR(driver->Close());
    result.stats = driver->engine().Stats();
    if (with_map) driver.reset();
    HYDRA_ASSIGN_OR_RETURN(const IoCounters io_after, SelfIo());
    const IoCounters io = io_after - io_before;
    const uint64_t batch_bytes = result.stats.batch_bytes - before.batch_bytes;
    result.ratio = static_cast<double>(io.write_bytes) / static_cast<double>(bytes);
    result.zero_fill_before = before.zero_fill_bytes;
    result.zero_fill_during = result.stats.zero_fill_bytes - before.zero_fill_bytes;
    result.cancelled = io.cancelled_write_bytes;
    result.map_bytes = io.write_bytes - std::min(io.write_bytes, batch_bytes);
    Progress("device_bytes depth {} {} map: {:.3f} in {:.1f} s ({:.0f} MB/s of payload)", depth,
             with_map ? "with" : "without", result.ratio, run.seconds,
             static_cast<double>(bytes) / run.seconds / 1e6);
  }
  RemoveAll(dir);
  return result;
}

}  // namespace

Status MeasureAppendDepth1(BenchContext* context, std::vector<Row>* rows) {
  Row row;
  row.name = "append_qd1";
  row.what = "durable 4 KiB append, depth 1 / fio 8 KiB sequential overwrite, dsync";
  row.unit = "IOPS";
  row.bar = {Bar::Kind::kAtLeast, 0.85};
  Duel duel;
  duel.modes = {WriteMode::kInline};
  duel.entries = context->Count(16'000, 4'000);
  duel.fio_block = 8 * kKiB;
  duel.fio_bytes = duel.entries * duel.fio_block;
  const std::string dir = context->dir + "/append";
  {
    // At depth 1 there is a header page with each block.
    const uint64_t bytes = 2 * duel.PayloadBytes(*context);
    HYDRA_ASSIGN_OR_RETURN(auto driver, CreateForAppends(*context, dir, bytes));
    HYDRA_RETURN_IF_ERROR(RunDuel(*context, duel, driver.get(), &row));
  }
  RemoveAll(dir);
  rows->push_back(std::move(row));
  return Status::Ok();
}

Status MeasureAppendDepth64(BenchContext* context, std::vector<Row>* rows) {
  Row row;
  row.name = "append_qd64";
  row.what = "durable 4 KiB append, depth 64, payload / fio 256 KiB sequential overwrite, dsync";
  row.unit = "MB/s";
  row.bar = {Bar::Kind::kAtLeast, 0.75};
  Duel duel;
  duel.modes = {WriteMode::kInline, WriteMode::kWriter};
  duel.fio_bytes = context->Bytes(512 * kMiB, 128 * kMiB);
  duel.entries = duel.fio_bytes / kPageSize;
  duel.depth = 64;
  duel.fio_block = 256 * kKiB;
  duel.count_bytes = true;
  const std::string dir = context->dir + "/append";
  {
    HYDRA_ASSIGN_OR_RETURN(auto driver,
                           CreateForAppends(*context, dir, duel.PayloadBytes(*context)));
    HYDRA_RETURN_IF_ERROR(RunDuel(*context, duel, driver.get(), &row));
  }
  RemoveAll(dir);
  rows->push_back(std::move(row));
  return Status::Ok();
}

Status MeasureDeviceBytes(BenchContext* context, std::vector<Row>* rows) {
  struct Case {
    uint32_t depth;
    bool with_map;
    double limit;
  };
  const uint64_t bytes = context->Bytes(4 * kGiB, 256 * kMiB);
  for (const Case& c :
       {Case{16, false, 1.15}, Case{16, true, 1.40}, Case{64, false, 1.06}, Case{64, true, 1.30}}) {
    HYDRA_ASSIGN_OR_RETURN(const DeviceBytes measured,
                           MeasureOneDeviceBytes(*context, bytes, c.depth, c.with_map));
    Row row;
    row.name = fmt::format("device_bytes_qd{}{}", c.depth, c.with_map ? "_map" : "");
    row.what = fmt::format("device bytes per payload byte, random 4 KiB, depth {}, {} the map",
                           c.depth, c.with_map ? "with" : "without");
    row.unit = "x";
    row.bar = {Bar::Kind::kAtMost, c.limit};
    row.hydra.Add(measured.ratio);
    row.Note("payload", fmt::format("{} MiB over {} MiB of addresses", bytes / kMiB,
                                    kAddressSpaceFactor * bytes / kMiB));
    row.Note("batches", fmt::format("{} MiB in {}", measured.stats.batch_bytes / kMiB,
                                    measured.stats.batches));
    row.Note("not batches", fmt::format("{} MiB", measured.map_bytes / kMiB));
    row.Note("checkpoints", fmt::format("{}", measured.stats.checkpoints));
    row.Note("zero-fill",
             fmt::format("{} MiB before, {} MiB in the measured time (counted)",
                         measured.zero_fill_before / kMiB, measured.zero_fill_during / kMiB));
    row.Note("cancelled (counted)", fmt::format("{} MiB", measured.cancelled / kMiB));
    rows->push_back(std::move(row));
  }
  return Status::Ok();
}

}  // namespace hydra::bench
