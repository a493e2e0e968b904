// SPDX-License-Identifier: Apache-2.0
//
// Counters, gauges and histograms. A component asks the registry for its series once, keeps the
// pointers, and increments them from any thread without a lock. Rendering (Prometheus, JSON) works
// on a Snapshot() and lives elsewhere.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace hydra {

// More series than this are not kept: labels such as a volume's name come from users, and the
// registry must not grow with them without end.
inline constexpr size_t kMaxMetricSeries = 16384;

class Counter {
 public:
  void Add(uint64_t n = 1) { value_.fetch_add(n, std::memory_order_relaxed); }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

class Gauge {
 public:
  void Set(int64_t v) { value_.store(v, std::memory_order_relaxed); }
  void Add(int64_t n) { value_.fetch_add(n, std::memory_order_relaxed); }
  int64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> value_{0};
};

// Upper bounds are first, 1.5 first, 2 first, 3 first, 4 first ... up to first * 2^doublings, so an
// estimated quantile is within a factor of 1.5 of the true one. Values are whole numbers of a
// small unit, so that the sum is one atomic addition; `scale` turns them into the unit that is
// shown.
struct HistogramOptions {
  uint64_t first = 1;
  unsigned doublings = 20;
  double scale = 1.0;

  // Observed in nanoseconds, shown in seconds: 16 us to 17 s.
  static HistogramOptions Latency() { return {1 << 14, 20, 1e-9}; }
  // 512 bytes to 16 MiB.
  static HistogramOptions Bytes() { return {512, 15, 1.0}; }
  // 1 to 65,536.
  static HistogramOptions Count() { return {1, 16, 1.0}; }

  friend bool operator==(const HistogramOptions&, const HistogramOptions&) = default;
};

struct HistogramSnapshot {
  std::vector<double> bounds;    // upper, inclusive, ascending, scaled
  std::vector<uint64_t> counts;  // one per bound, then one for what is above; not cumulative
  uint64_t count = 0;            // sum of counts
  double sum = 0;                // scaled

  // The estimated value below which a share `q` (0 to 1) of the observations lies, interpolated
  // inside its bucket; 0 without observations, the last bound for what is above it.
  double Quantile(double q) const;
};

class Histogram {
 public:
  explicit Histogram(const HistogramOptions& options);

  void Observe(uint64_t value);
  HistogramSnapshot Snapshot() const;
  const HistogramOptions& options() const { return options_; }

 private:
  const HistogramOptions options_;
  std::vector<uint64_t> bounds_;
  std::vector<std::atomic<uint64_t>> counts_;
  std::atomic<uint64_t> sum_{0};
};

enum class MetricType { kCounter, kGauge, kHistogram };

using MetricLabels = std::vector<std::pair<std::string, std::string>>;

struct SeriesSnapshot {
  MetricLabels labels;  // sorted
  // The one that fits the family's type is set.
  uint64_t counter = 0;
  int64_t gauge = 0;
  HistogramSnapshot histogram;
};

struct MetricFamilySnapshot {
  std::string name;
  std::string help;
  MetricType type = MetricType::kCounter;
  std::vector<SeriesSnapshot> series;  // ordered by labels
};

// Owns all series; the pointers it hands out are valid as long as it is. Asking again for the same
// name and labels (in any order) returns the same object. The same name with another type, or as
// a histogram with other buckets, is a programming error and aborts. Thread-safe.
//
// Beyond kMaxMetricSeries a new series is a shared one that no snapshot shows, and
// dropped_series() counts the request.
class MetricsRegistry {
 public:
  MetricsRegistry();
  ~MetricsRegistry();
  MetricsRegistry(const MetricsRegistry&) = delete;
  MetricsRegistry& operator=(const MetricsRegistry&) = delete;

  Counter* GetCounter(const std::string& name, const std::string& help, MetricLabels labels = {});
  Gauge* GetGauge(const std::string& name, const std::string& help, MetricLabels labels = {});
  Histogram* GetHistogram(const std::string& name, const std::string& help,
                          const HistogramOptions& options, MetricLabels labels = {});

  // For series that come and go: `collect` adds families, of names that are not used here, to every
  // snapshot, on the thread that takes it. Returns a number to remove it by; when that has
  // returned it is not called any more.
  using Collect = std::function<void(std::vector<MetricFamilySnapshot>* families)>;
  size_t AddCollector(Collect collect);
  void RemoveCollector(size_t number);

  // Families ordered by name, then those of collectors. Each value is read atomically, the whole is
  // not.
  std::vector<MetricFamilySnapshot> Snapshot() const;
  size_t dropped_series() const;

 private:
  struct Series;
  struct Family;

  std::vector<MetricFamilySnapshot> SnapshotOwn() const;
  Series* FindOrAdd(MetricType type, const std::string& name, const std::string& help,
                    MetricLabels labels, const HistogramOptions& options);

  mutable std::mutex mutex_;
  // All guarded by mutex_; the values inside a Series are atomic.
  std::map<std::string, std::unique_ptr<Family>> families_;
  std::map<std::string, std::unique_ptr<Series>> overflow_;  // by family: buckets may differ
  size_t series_count_ = 0;
  size_t dropped_series_ = 0;

  mutable std::mutex collect_mutex_;
  std::map<size_t, Collect> collectors_;  // guarded by collect_mutex_, also while they run
  size_t next_collector_ = 1;             // likewise
};

}  // namespace hydra
