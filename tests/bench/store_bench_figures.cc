// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/store_bench_figures.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/bench/store_bench_system.h"

namespace hydra::bench {

double Samples::Median() const {
  if (values.empty()) return 0;
  std::vector<double> sorted = values;
  std::sort(sorted.begin(), sorted.end());
  const size_t half = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

double Samples::Min() const {
  return values.empty() ? 0 : *std::min_element(values.begin(), values.end());
}

double Samples::Max() const {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

uint64_t BenchContext::Bytes(uint64_t full, uint64_t quick_bytes) const {
  const double bytes = static_cast<double>(quick ? quick_bytes : full) * scale;
  return std::max<uint64_t>(16, static_cast<uint64_t>(std::llround(bytes / kMiB))) * kMiB;
}

Driver::Options DefaultOptions(const BenchContext& context, const std::string& store_dir) {
  Driver::Options options;
  options.engine.fs = context.fs;
  options.engine.dir = store_dir;
  return options;
}

void SizeForPayload(uint64_t payload_bytes, Driver::Options* options) {
  // Headers take at most one page in eight at the depths measured; two lanes are open at a time.
  const uint64_t segments = (payload_bytes + payload_bytes / 7) / options->segment_bytes + 4;
  options->engine.spare_segments = static_cast<uint32_t>(segments);
  options->engine.capacity_bytes =
      (segments + options->engine.reserve_segments) * options->segment_bytes;
}

Result<std::unique_ptr<Driver>> CreateWithSpares(const Driver::Options& options) {
  HYDRA_ASSIGN_OR_RETURN(auto driver, Driver::Create(options));
  driver->engine().RequestVacuum(false);
  HYDRA_RETURN_IF_ERROR(driver->RunJobsHere());
  return driver;
}

ScatteredLbas::ScatteredLbas(uint64_t n) : n_(n), step_(0x9E3779B1 % n | 1) {
  while (std::gcd(step_, n_) != 1) step_ += 2;
}

Lba ScatteredLbas::At(uint64_t index) const {
  return static_cast<Lba>(static_cast<unsigned __int128>(index) * step_ % n_);
}

uint64_t MappedStoreBlocks(const BenchContext& context) {
  return context.Bytes(10 * kGiB, 512 * kMiB) / kPageSize;
}

Status BuildMappedStore(BenchContext* context) {
  if (!context->mapped_store.empty()) return Status::Ok();
  const uint64_t blocks = MappedStoreBlocks(*context);
  const std::string dir = context->dir + "/mapped";
  Progress("building the mapped store: {:.1f} GiB", static_cast<double>(blocks * kPageSize) / kGiB);
  HYDRA_ASSIGN_OR_RETURN(auto driver, Driver::Create(DefaultOptions(*context, dir)));
  ScatteredLbas lbas(blocks);
  Workload workload;
  workload.entries = blocks;
  workload.depth = 64;
  workload.next_lba = [&] { return lbas.Next(); };
  HYDRA_ASSIGN_OR_RETURN(const RunResult run, driver->Run(workload));
  HYDRA_RETURN_IF_ERROR(driver->Close());
  Progress("... written in {:.1f} s, {} checkpoints", run.seconds,
           driver->engine().Stats().checkpoints);
  context->mapped_store = dir;
  return Status::Ok();
}

}  // namespace hydra::bench
