// SPDX-License-Identifier: Apache-2.0
//
// The figures of store-bench. Each is a function that measures, in the scratch directory of the
// run, and appends one Row per bar. A figure that cannot be measured fails; one that misses its
// bar does not.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/status.h"
#include "tests/bench/store_bench_driver.h"

namespace hydra::bench {

// One value per round.
struct Samples {
  std::vector<double> values;

  void Add(double value) { values.push_back(value); }
  bool empty() const { return values.empty(); }
  double Median() const;
  double Min() const;
  double Max() const;
};

struct Bar {
  enum class Kind { kAtLeast, kAtMost };
  Kind kind = Kind::kAtLeast;
  double limit = 0;

  bool Met(double value) const { return kind == Kind::kAtLeast ? value >= limit : value <= limit; }
};

// A line of the table. With a yardstick the judged value is the ratio of the two medians, else
// Hydra's median.
struct Row {
  std::string name;
  std::string what;
  std::string unit;
  Bar bar;
  Samples hydra;
  Samples fio;
  std::vector<std::pair<std::string, std::string>> notes;

  double Value() const { return fio.empty() ? hydra.Median() : hydra.Median() / fio.Median(); }
  bool Met() const { return bar.Met(Value()); }
  void Note(std::string key, std::string value) {
    notes.emplace_back(std::move(key), std::move(value));
  }
};

struct BenchContext {
  FileSystem* fs = nullptr;
  std::string dir;   // scratch directory of this run
  std::string self;  // this program, to run itself as a child
  bool quick = false;
  double scale = 1;
  int rounds = 3;
  // Where the figures that share the mapped store find it; empty until one has built it.
  std::string mapped_store;

  // One of two sizes, scaled and rounded to whole MiB.
  uint64_t Bytes(uint64_t full, uint64_t quick_bytes) const;
  uint64_t Count(uint64_t full, uint64_t quick_count) const { return quick ? quick_count : full; }
};

using FigureFunction = Status (*)(BenchContext*, std::vector<Row>*);

Status MeasureAppendDepth1(BenchContext* context, std::vector<Row>* rows);
Status MeasureAppendDepth64(BenchContext* context, std::vector<Row>* rows);
Status MeasureDeviceBytes(BenchContext* context, std::vector<Row>* rows);
Status MeasureRead(BenchContext* context, std::vector<Row>* rows);
Status MeasureApply(BenchContext* context, std::vector<Row>* rows);
Status MeasureRecovery(BenchContext* context, std::vector<Row>* rows);
Status MeasureVacuum(BenchContext* context, std::vector<Row>* rows);
Status MeasureMemory(BenchContext* context, std::vector<Row>* rows);

// The other side of MeasureMemory, in a process of its own: reads and overwrites `operations`
// random blocks each of a store that maps `blocks`, and prints what it used as JSON.
Status RunMemoryChild(FileSystem* fs, const std::string& store_dir, uint64_t blocks,
                      uint64_t operations);

// A map of so many blocks, all in memory or in the page cache.
struct MapSize {
  uint64_t blocks = 0;
  double grown_per_second = 0;        // blocks, in order of their addresses
  double lookup_us = 0;               // of a random block
  double overwritten_per_second = 0;  // random blocks, with all checkpoints
  double lookup_again_us = 0;         // after that
  uint64_t resident_bytes = 0;        // of this process, without the page cache
  uint64_t map_bytes = 0;             // on disk
};
// One store that grows to each of the sizes, which ascend.
Result<std::vector<MapSize>> MeasureMapScale(const BenchContext& context,
                                             const std::vector<uint64_t>& sizes);

// --- Shared by the figures --------------------------------------------------------------------

// Options of an engine as a daemon would set them.
Driver::Options DefaultOptions(const BenchContext& context, const std::string& store_dir);

// Bounds the store so that `payload_bytes` fit and everything else is made beforehand: Create,
// then RunJobsHere, and the file of each segment to come is zero-filled. A store in steady state
// recycles its files; a figure about writing does not measure the making of new ones. Vacuum is
// left off.
void SizeForPayload(uint64_t payload_bytes, Driver::Options* options);
Result<std::unique_ptr<Driver>> CreateWithSpares(const Driver::Options& options);

// Visits all of [0, n) once in n calls, scattered, always in the same order.
class ScatteredLbas {
 public:
  explicit ScatteredLbas(uint64_t n);
  Lba Next() { return At(index_++); }
  Lba At(uint64_t index) const;

 private:
  uint64_t n_;
  uint64_t step_;
  uint64_t index_ = 0;
};

// The store of 10 GiB (smaller with --quick) of mapped blocks, written at depth 64 with
// checkpoints as they fell due, cleanly closed. Built by the first caller.
Status BuildMappedStore(BenchContext* context);
uint64_t MappedStoreBlocks(const BenchContext& context);

}  // namespace hydra::bench
