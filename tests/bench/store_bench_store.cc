// SPDX-License-Identifier: Apache-2.0
//
// Figures about a store full of data: recovery, read_qd1 and memory. All but the recovery without
// a checkpoint share one store (BuildMappedStore).
#include <algorithm>
#include <filesystem>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/rng.h"
#include "tests/bench/store_bench_figures.h"
#include "tests/bench/store_bench_fio.h"
#include "tests/bench/store_bench_system.h"

namespace hydra::bench {

namespace {

struct OpenResult {
  double seconds = 0;
  RecoveryReport report;
  uint64_t cached_before = 0;
  uint64_t read_bytes = 0;
};

// Opens the store with nothing of it in the page cache. `close` leaves it cleanly closed again;
// otherwise it is left as a killed process leaves it.
Result<OpenResult> TimeOpen(const BenchContext& context, const std::string& dir, bool close) {
  HYDRA_RETURN_IF_ERROR(DropCaches(dir));
  OpenResult result;
  HYDRA_ASSIGN_OR_RETURN(result.cached_before, CachedBytes(dir));
  HYDRA_ASSIGN_OR_RETURN(const IoCounters before, SelfIo());
  const Driver::Options options = DefaultOptions(context, dir);
  const Nanos start = RealClock().Now();
  HYDRA_ASSIGN_OR_RETURN(auto engine, Engine::Open(options.engine));
  result.seconds = static_cast<double>(RealClock().Now() - start) / kSecond;
  HYDRA_ASSIGN_OR_RETURN(const IoCounters after, SelfIo());
  result.read_bytes = (after - before).read_bytes;
  result.report = engine->recovery();
  if (close) HYDRA_RETURN_IF_ERROR(engine->Close());
  return result;
}

void NoteOpen(const OpenResult& open, uint64_t blocks, Row* row) {
  row->Note("written",
            fmt::format("{:.2f} GiB at depth 64", static_cast<double>(blocks * kPageSize) / kGiB));
  row->Note("page cache", fmt::format("dropped; {} KiB of the store's files were left in it",
                                      open.cached_before / kKiB));
  row->Note("read from the device", fmt::format("{} MiB", open.read_bytes / kMiB));
  row->Note("replayed", fmt::format("{} batches, {} records, {} entries applied",
                                    open.report.batches, open.report.records, open.report.applied));
}

// Everything applied, nothing checkpointed: spares are made first, then no job runs at all.
Status BuildStoreWithoutCheckpoint(const BenchContext& context, const std::string& dir,
                                   uint64_t blocks, Row* row) {
  Driver::Options options = DefaultOptions(context, dir);
  options.run_jobs = false;
  options.engine.overlay_rows = blocks + 1;
  SizeForPayload(blocks * kPageSize, &options);
  HYDRA_ASSIGN_OR_RETURN(auto driver, CreateWithSpares(options));
  const uint64_t checkpoints = driver->engine().Stats().checkpoints;
  ScatteredLbas lbas(blocks);
  Workload workload;
  workload.entries = blocks;
  workload.depth = 64;
  workload.next_lba = [&] { return lbas.Next(); };
  HYDRA_ASSIGN_OR_RETURN(const RunResult run, driver->Run(workload));
  row->Note("checkpoints while writing",
            fmt::format("{}", driver->engine().Stats().checkpoints - checkpoints));
  Progress("recovery: written without a checkpoint in {:.1f} s", run.seconds);
  return Status::Ok();
}

Status MeasureReplay(const BenchContext& context, std::vector<Row>* rows) {
  Row row;
  row.name = "recovery_replay";
  row.what = "Engine::Open after a kill, no checkpoint at all";
  row.unit = "s";
  row.bar = {Bar::Kind::kAtMost, 30};
  const uint64_t blocks = MappedStoreBlocks(context);
  const std::string dir = context.dir + "/replay";
  HYDRA_RETURN_IF_ERROR(BuildStoreWithoutCheckpoint(context, dir, blocks, &row));
  uint64_t batches = 0;
  for (int round = 0; round < context.rounds; ++round) {
    HYDRA_ASSIGN_OR_RETURN(const OpenResult open, TimeOpen(context, dir, /*close=*/false));
    Progress("recovery_replay round {}: {:.2f} s, {}", round + 1, open.seconds,
             open.report.ToString());
    // Recovery may leave a checkpoint behind; only rounds that had to replay it all count.
    if (round == 0) {
      batches = open.report.batches;
      NoteOpen(open, blocks, &row);
      if (open.report.applied < blocks * 9 / 10) {
        return Status::FailedPrecondition("recovery replayed too little: " +
                                          open.report.ToString());
      }
    } else if (open.report.batches < batches) {
      break;
    }
    row.hydra.Add(open.seconds);
  }
  RemoveAll(dir);
  rows->push_back(std::move(row));
  return Status::Ok();
}

Status MeasureCleanOpen(BenchContext* context, std::vector<Row>* rows) {
  HYDRA_RETURN_IF_ERROR(BuildMappedStore(context));
  Row row;
  row.name = "recovery_clean";
  row.what = "Engine::Open after a clean close";
  row.unit = "s";
  row.bar = {Bar::Kind::kAtMost, 1};
  for (int round = 0; round < context->rounds; ++round) {
    HYDRA_ASSIGN_OR_RETURN(const OpenResult open,
                           TimeOpen(*context, context->mapped_store, /*close=*/true));
    if (round == 0) NoteOpen(open, MappedStoreBlocks(*context), &row);
    row.hydra.Add(open.seconds);
    Progress("recovery_clean round {}: {:.3f} s", round + 1, open.seconds);
  }
  rows->push_back(std::move(row));
  return Status::Ok();
}

Result<std::vector<std::string>> UsedSegments(const std::string& directory) {
  std::vector<std::string> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    if (entry.path().extension() == ".seg") files.push_back(entry.path());
  }
  if (error || files.empty()) return Status::NotFound("no segment in " + directory);
  return files;
}

// Brings all map rows into LevelDB's and the kernel's caches.
Status WarmMap(Engine* engine, uint64_t blocks) {
  std::string cursor;
  uint64_t seen = 0;
  for (;;) {
    HYDRA_ASSIGN_OR_RETURN(const ChangeBatch batch,
                           engine->ScanImage(Driver::kGroup, cursor, 4096));
    seen += batch.changes.size();
    if (batch.done) break;
    cursor = batch.next;
    HYDRA_RETURN_IF_ERROR(CheckInterrupted());
  }
  if (seen == blocks) return Status::Ok();
  return Status::Corruption(fmt::format("{} blocks are mapped instead of {}", seen, blocks));
}

Result<double> TimeReads(Engine* engine, uint64_t blocks, uint64_t reads, Rng* rng) {
  const Nanos start = RealClock().Now();
  for (uint64_t i = 0; i < reads; ++i) {
    const Lba lba = rng->Below(blocks);
    HYDRA_ASSIGN_OR_RETURN(const ReadResult read, engine->Read(Driver::kGroup, lba, 1));
    if (!PayloadMaker::Wrote(read.data.data(), lba)) {
      return Status::Corruption(fmt::format("block {} holds something else", lba));
    }
    if (i % 1024 == 0) HYDRA_RETURN_IF_ERROR(CheckInterrupted());
  }
  return static_cast<double>(RealClock().Now() - start) / kSecond;
}

}  // namespace

Status MeasureRecovery(BenchContext* context, std::vector<Row>* rows) {
  std::vector<Row> replay;  // measured first: its store goes before the shared one is built
  HYDRA_RETURN_IF_ERROR(MeasureReplay(*context, &replay));
  HYDRA_RETURN_IF_ERROR(MeasureCleanOpen(context, rows));
  rows->insert(rows->end(), replay.begin(), replay.end());
  return Status::Ok();
}

Status MeasureRead(BenchContext* context, std::vector<Row>* rows) {
  HYDRA_RETURN_IF_ERROR(BuildMappedStore(context));
  Row row;
  row.name = "read_qd1";
  row.what = "random 4 KiB read by logical block, hot map, depth 1 / fio direct randread";
  row.unit = "IOPS";
  row.bar = {Bar::Kind::kAtLeast, 0.75};
  const uint64_t blocks = MappedStoreBlocks(*context);
  const uint64_t reads = context->Count(30'000, 6'000);
  const std::string segments = context->mapped_store + "/segments";
  // The same files: others might lie in a faster place, or in a cache below this machine.
  HYDRA_ASSIGN_OR_RETURN(const std::vector<std::string> files, UsedSegments(segments));
  {
    const Driver::Options options = DefaultOptions(*context, context->mapped_store);
    HYDRA_ASSIGN_OR_RETURN(auto engine, Engine::Open(options.engine));
    HYDRA_RETURN_IF_ERROR(WarmMap(engine.get(), blocks));
    Rng rng(4);
    uint64_t device_reads = 0;
    for (int round = 0; round < context->rounds; ++round) {
      HYDRA_RETURN_IF_ERROR(DropCaches(segments));
      HYDRA_ASSIGN_OR_RETURN(const IoCounters before, SelfIo());
      HYDRA_ASSIGN_OR_RETURN(const double seconds, TimeReads(engine.get(), blocks, reads, &rng));
      HYDRA_ASSIGN_OR_RETURN(const IoCounters after, SelfIo());
      device_reads += (after - before).read_bytes;
      HYDRA_ASSIGN_OR_RETURN(const FioResult fio, FioRandomRead(files, reads));
      row.hydra.Add(static_cast<double>(reads) / seconds);
      row.fio.Add(fio.iops);
      Progress("read_qd1 round {}: hydra {:.0f}, fio {:.0f} IOPS", round + 1,
               row.hydra.values.back(), fio.iops);
    }
    row.Note("data set",
             fmt::format("{} MiB; fio reads the same files", blocks * kPageSize / kMiB));
    row.Note("page cache", "segment files dropped before each round; map rows warmed by a scan");
    row.Note("read from the device per block",
             fmt::format("{:.0f} bytes", static_cast<double>(device_reads) /
                                             static_cast<double>(reads * context->rounds)));
    HYDRA_RETURN_IF_ERROR(engine->Close());
  }
  rows->push_back(std::move(row));
  return Status::Ok();
}

Status MeasureMemory(BenchContext* context, std::vector<Row>* rows) {
  HYDRA_RETURN_IF_ERROR(BuildMappedStore(context));
  const uint64_t blocks = MappedStoreBlocks(*context);
  Progress("memory: a fresh process reads and writes the mapped store");
  HYDRA_ASSIGN_OR_RETURN(
      const std::string output,
      RunChild({context->self, "--child-memory", context->mapped_store, "--child-blocks",
                fmt::format("{}", blocks), "--child-operations",
                fmt::format("{}", context->Count(100'000, 30'000))}));
  const auto child = nlohmann::json::parse(output, nullptr, /*allow_exceptions=*/false);
  if (child.is_discarded() || !child.contains("peak_rss")) {
    return Status::IoError("the memory child printed something else: " + output.substr(0, 200));
  }
  const auto mib = [&](const char* key) {
    return static_cast<double>(child.value(key, uint64_t{0})) / kMiB;
  };
  Row row;
  row.name = "memory";
  row.what = fmt::format("highest resident set with {:.2f} GiB of blocks mapped",
                         static_cast<double>(blocks * kPageSize) / kGiB);
  row.unit = "MiB";
  row.bar = {Bar::Kind::kAtMost, 150};
  row.hydra.Add(mib("peak_rss"));
  row.Note("VmRSS", fmt::format("{:.1f} MiB opened, {:.1f} after reads, {:.1f} after writes",
                                mib("opened_rss"), mib("reads_rss"), mib("writes_rss")));
  row.Note("RssAnon", fmt::format("{:.1f} MiB opened, {:.1f} after reads, {:.1f} after writes, "
                                  "{:.1f} highest seen",
                                  mib("opened_anon"), mib("reads_anon"), mib("writes_anon"),
                                  mib("peak_anon")));
  row.Note("load", fmt::format("{} random reads at depth 1, {} random overwrites at depth 64",
                               child.value("reads", 0), child.value("writes", 0)));
  row.Note("before opening", fmt::format("{:.1f} MiB", mib("start_rss")));
  rows->push_back(std::move(row));
  return Status::Ok();
}

Status RunMemoryChild(FileSystem* fs, const std::string& store_dir, uint64_t blocks,
                      uint64_t operations) {
  nlohmann::json out;
  uint64_t peak_anon = 0;
  const auto look = [&](const char* when) -> Status {
    HYDRA_ASSIGN_OR_RETURN(const MemoryUse use, SelfMemory());
    peak_anon = std::max(peak_anon, use.rss_anon);
    if (when == nullptr) return Status::Ok();
    out[std::string(when) + "_rss"] = use.vm_rss;
    out[std::string(when) + "_anon"] = use.rss_anon;
    out["peak_rss"] = use.vm_hwm;
    return Status::Ok();
  };
  HYDRA_RETURN_IF_ERROR(look("start"));
  BenchContext context;
  context.fs = fs;
  HYDRA_ASSIGN_OR_RETURN(auto driver, Driver::Open(DefaultOptions(context, store_dir)));
  HYDRA_RETURN_IF_ERROR(look("opened"));
  Rng rng(8);
  HYDRA_ASSIGN_OR_RETURN(const double read_seconds,
                         TimeReads(&driver->engine(), blocks, operations, &rng));
  HYDRA_RETURN_IF_ERROR(look("reads"));
  Workload workload;
  workload.entries = operations;
  workload.depth = 64;
  workload.next_lba = [&] { return rng.Below(blocks); };
  workload.tick = [&] { return look(nullptr); };
  HYDRA_ASSIGN_OR_RETURN(const RunResult run, driver->Run(workload));
  HYDRA_RETURN_IF_ERROR(driver->Quiesce());
  HYDRA_RETURN_IF_ERROR(look("writes"));
  out["peak_anon"] = peak_anon;
  out["reads"] = operations;
  out["writes"] = operations;
  out["read_seconds"] = read_seconds;
  out["write_seconds"] = run.seconds;
  fmt::print("{}\n", out.dump());
  return driver->Close();
}

}  // namespace hydra::bench
