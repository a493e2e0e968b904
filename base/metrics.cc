// SPDX-License-Identifier: Apache-2.0
#include "base/metrics.h"

#include <algorithm>

#include "base/check.h"
#include "base/logging.h"

namespace hydra {

namespace {

std::vector<uint64_t> MakeBounds(const HistogramOptions& options) {
  HYDRA_CHECK(options.first > 0 && options.doublings > 0 && options.doublings < 62);
  std::vector<uint64_t> bounds;
  for (unsigned i = 0; i < options.doublings; ++i) {
    const uint64_t bound = options.first << i;
    HYDRA_CHECK(bound >> i == options.first);
    bounds.push_back(bound);
    if (bound > 1) bounds.push_back(bound + bound / 2);
  }
  bounds.push_back(options.first << options.doublings);
  HYDRA_CHECK(std::is_sorted(bounds.begin(), bounds.end()));
  return bounds;
}

}  // namespace

double HistogramSnapshot::Quantile(double q) const {
  if (count == 0) return 0;
  const double rank = std::clamp(q, 0.0, 1.0) * static_cast<double>(count);
  double below = 0;
  for (size_t i = 0; i < bounds.size(); ++i) {
    const double here = static_cast<double>(counts[i]);
    if (here > 0 && below + here >= rank) {
      const double low = i == 0 ? 0 : bounds[i - 1];
      return low + (bounds[i] - low) * (rank - below) / here;
    }
    below += here;
  }
  return bounds.back();
}

Histogram::Histogram(const HistogramOptions& options)
    : options_(options), bounds_(MakeBounds(options)), counts_(bounds_.size() + 1) {}

void Histogram::Observe(uint64_t value) {
  const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  counts_[static_cast<size_t>(bucket)].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
}

HistogramSnapshot Histogram::Snapshot() const {
  HistogramSnapshot snapshot;
  for (const uint64_t bound : bounds_) {
    snapshot.bounds.push_back(static_cast<double>(bound) * options_.scale);
  }
  for (const auto& bucket : counts_) {
    snapshot.counts.push_back(bucket.load(std::memory_order_relaxed));
    snapshot.count += snapshot.counts.back();
  }
  snapshot.sum = static_cast<double>(sum_.load(std::memory_order_relaxed)) * options_.scale;
  return snapshot;
}

struct MetricsRegistry::Series {
  explicit Series(const HistogramOptions* options) {
    if (options != nullptr) histogram = std::make_unique<Histogram>(*options);
  }
  Counter counter;
  Gauge gauge;
  std::unique_ptr<Histogram> histogram;
};

struct MetricsRegistry::Family {
  std::string help;
  MetricType type;
  HistogramOptions options;
  std::map<MetricLabels, std::unique_ptr<Series>> series;
};

MetricsRegistry::MetricsRegistry() = default;
MetricsRegistry::~MetricsRegistry() = default;

MetricsRegistry::Series* MetricsRegistry::FindOrAdd(MetricType type, const std::string& name,
                                                    const std::string& help, MetricLabels labels,
                                                    const HistogramOptions& options) {
  HYDRA_CHECK(!name.empty());
  std::sort(labels.begin(), labels.end());
  const HistogramOptions* buckets = type == MetricType::kHistogram ? &options : nullptr;

  std::lock_guard<std::mutex> lock(mutex_);
  std::unique_ptr<Family>& family = families_[name];
  if (family == nullptr) family.reset(new Family{help, type, options, {}});
  HYDRA_CHECK(family->type == type);
  HYDRA_CHECK(family->options == options);

  if (auto found = family->series.find(labels); found != family->series.end()) {
    return found->second.get();
  }
  if (series_count_ == kMaxMetricSeries) {
    if (dropped_series_++ == 0) {
      HYDRA_LOG_WARN("more than {} metric series; {} and later new ones are not shown",
                     kMaxMetricSeries, name);
    }
    std::unique_ptr<Series>& shared = overflow_[name];
    if (shared == nullptr) shared = std::make_unique<Series>(buckets);
    return shared.get();
  }
  ++series_count_;
  auto added = family->series.emplace(std::move(labels), std::make_unique<Series>(buckets));
  return added.first->second.get();
}

Counter* MetricsRegistry::GetCounter(const std::string& name, const std::string& help,
                                     MetricLabels labels) {
  return &FindOrAdd(MetricType::kCounter, name, help, std::move(labels), {})->counter;
}

Gauge* MetricsRegistry::GetGauge(const std::string& name, const std::string& help,
                                 MetricLabels labels) {
  return &FindOrAdd(MetricType::kGauge, name, help, std::move(labels), {})->gauge;
}

Histogram* MetricsRegistry::GetHistogram(const std::string& name, const std::string& help,
                                         const HistogramOptions& options, MetricLabels labels) {
  return FindOrAdd(MetricType::kHistogram, name, help, std::move(labels), options)->histogram.get();
}

size_t MetricsRegistry::AddCollector(Collect collect) {
  std::lock_guard<std::mutex> lock(collect_mutex_);
  collectors_[next_collector_] = std::move(collect);
  return next_collector_++;
}

void MetricsRegistry::RemoveCollector(size_t number) {
  std::lock_guard<std::mutex> lock(collect_mutex_);
  collectors_.erase(number);
}

std::vector<MetricFamilySnapshot> MetricsRegistry::Snapshot() const {
  std::vector<MetricFamilySnapshot> families = SnapshotOwn();
  std::lock_guard<std::mutex> lock(collect_mutex_);
  for (const auto& [number, collect] : collectors_) collect(&families);
  return families;
}

std::vector<MetricFamilySnapshot> MetricsRegistry::SnapshotOwn() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<MetricFamilySnapshot> families;
  for (const auto& [name, family] : families_) {
    if (family->series.empty()) continue;
    MetricFamilySnapshot& out = families.emplace_back();
    out.name = name;
    out.help = family->help;
    out.type = family->type;
    for (const auto& [labels, series] : family->series) {
      SeriesSnapshot& one = out.series.emplace_back();
      one.labels = labels;
      one.counter = series->counter.value();
      one.gauge = series->gauge.value();
      if (series->histogram != nullptr) one.histogram = series->histogram->Snapshot();
    }
  }
  return families;
}

size_t MetricsRegistry::dropped_series() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return dropped_series_;
}

}  // namespace hydra
