// SPDX-License-Identifier: Apache-2.0
#include "base/metrics.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/logging.h"

namespace hydra {
namespace {

TEST(Metrics, TheSameNameAndLabelsAreTheSameSeries) {
  MetricsRegistry registry;
  Counter* const one = registry.GetCounter("writes_total", "h", {{"volume", "a"}, {"node", "1"}});
  EXPECT_EQ(registry.GetCounter("writes_total", "h", {{"node", "1"}, {"volume", "a"}}), one);
  EXPECT_NE(registry.GetCounter("writes_total", "h", {{"volume", "b"}, {"node", "1"}}), one);
  EXPECT_NE(registry.GetCounter("reads_total", "h", {{"volume", "a"}, {"node", "1"}}), one);
}

TEST(Metrics, SnapshotsShowEverythingInOrder) {
  MetricsRegistry registry;
  registry.GetGauge("queue_bytes", "waiting")->Set(-5);
  registry.GetCounter("acks_total", "acknowledged", {{"v", "b"}})->Add(2);
  registry.GetCounter("acks_total", "acknowledged", {{"v", "a"}})->Add();
  registry.GetHistogram("batch_records", "per batch", HistogramOptions::Count())->Observe(3);

  const auto families = registry.Snapshot();
  ASSERT_EQ(families.size(), 3u);
  EXPECT_EQ(families[0].name, "acks_total");
  EXPECT_EQ(families[0].help, "acknowledged");
  EXPECT_EQ(families[0].type, MetricType::kCounter);
  ASSERT_EQ(families[0].series.size(), 2u);
  EXPECT_EQ(families[0].series[0].labels, (MetricLabels{{"v", "a"}}));
  EXPECT_EQ(families[0].series[0].counter, 1u);
  EXPECT_EQ(families[0].series[1].counter, 2u);
  EXPECT_EQ(families[1].type, MetricType::kHistogram);
  EXPECT_EQ(families[1].series[0].histogram.count, 1u);
  EXPECT_EQ(families[1].series[0].histogram.sum, 3.0);
  EXPECT_EQ(families[2].series[0].gauge, -5);
}

TEST(Metrics, CollectorsAddWhatIsThereNow) {
  MetricsRegistry registry;
  registry.GetGauge("queue_bytes", "waiting")->Set(1);
  std::vector<std::string> present = {"a", "b"};
  const size_t number = registry.AddCollector([&](std::vector<MetricFamilySnapshot>* families) {
    MetricFamilySnapshot family{"session_commands", "help", MetricType::kCounter, {}};
    for (const std::string& name : present) {
      family.series.push_back({{{"session", name}}, 7, 0, {}});
    }
    families->push_back(std::move(family));
  });
  EXPECT_EQ(registry.Snapshot().at(1).series.size(), 2u);
  present.pop_back();
  const auto families = registry.Snapshot();
  ASSERT_EQ(families.size(), 2u);
  ASSERT_EQ(families[1].series.size(), 1u);
  EXPECT_EQ(families[1].series[0].labels, (MetricLabels{{"session", "a"}}));
  registry.RemoveCollector(number);
  EXPECT_EQ(registry.Snapshot().size(), 1u);
}

TEST(MetricsDeathTest, OneNameHasOneTypeAndOneSetOfBuckets) {
  MetricsRegistry registry;
  registry.GetCounter("x", "h");
  EXPECT_DEATH(registry.GetGauge("x", "h"), "check failed");
  registry.GetHistogram("y", "h", HistogramOptions::Bytes());
  EXPECT_DEATH(registry.GetHistogram("y", "h", HistogramOptions::Count()), "check failed");
}

TEST(Metrics, SeriesBeyondTheLimitShareOneThatIsNotShown) {
  std::vector<std::string> warnings;
  SetLogSink([&](LogLevel, std::string_view line) { warnings.emplace_back(line); });
  MetricsRegistry registry;
  Counter* const first = registry.GetCounter("c", "h", {{"i", "0"}});
  for (size_t i = 1; i < kMaxMetricSeries; ++i) {
    registry.GetCounter("c", "h", {{"i", std::to_string(i)}});
  }
  EXPECT_EQ(registry.dropped_series(), 0u);
  Counter* const extra = registry.GetCounter("c", "h", {{"i", "one more"}});
  extra->Add();
  EXPECT_EQ(registry.GetCounter("c", "h", {{"i", "and another"}}), extra);
  registry.GetHistogram("late", "h", HistogramOptions::Bytes())->Observe(1);
  EXPECT_EQ(registry.GetCounter("c", "h", {{"i", "0"}}), first);
  EXPECT_EQ(registry.dropped_series(), 3u);
  EXPECT_EQ(warnings.size(), 1u);
  const auto families = registry.Snapshot();
  ASSERT_EQ(families.size(), 1u);
  EXPECT_EQ(families[0].series.size(), kMaxMetricSeries);
  SetLogSink(nullptr);
}

TEST(Histogram, BoundsAreInclusiveAndGrowByHalfAndThird) {
  Histogram histogram({4, 2, 1.0});
  EXPECT_EQ(histogram.Snapshot().bounds, (std::vector<double>{4, 6, 8, 12, 16}));
  for (const uint64_t v : {0, 4, 5, 16, 17, 1000}) histogram.Observe(v);
  const HistogramSnapshot snapshot = histogram.Snapshot();
  EXPECT_EQ(snapshot.counts, (std::vector<uint64_t>{2, 1, 0, 0, 1, 2}));
  EXPECT_EQ(snapshot.count, 6u);
  EXPECT_EQ(snapshot.sum, 1042.0);
}

TEST(Histogram, SmallCountsHaveNoDoubleBounds) {
  const auto bounds = Histogram(HistogramOptions::Count()).Snapshot().bounds;
  ASSERT_GE(bounds.size(), 4u);
  EXPECT_EQ(std::vector<double>(bounds.begin(), bounds.begin() + 4),
            (std::vector<double>{1, 2, 3, 4}));
  EXPECT_EQ(bounds.back(), 65536);
}

TEST(Histogram, QuantilesAreWithinTheirBucket) {
  Histogram histogram(HistogramOptions::Latency());
  EXPECT_EQ(histogram.Snapshot().Quantile(0.5), 0.0);
  for (uint64_t us = 1; us <= 10000; ++us) histogram.Observe(us * 1000);
  const HistogramSnapshot snapshot = histogram.Snapshot();
  for (const double q : {0.1, 0.5, 0.9, 0.99}) {
    const double truth = q * 10000e-6;
    EXPECT_LT(snapshot.Quantile(q), truth * 1.5) << q;
    EXPECT_GT(snapshot.Quantile(q), truth / 1.5) << q;
  }
  EXPECT_LE(snapshot.Quantile(0.2), snapshot.Quantile(0.3));
  histogram.Observe(3600ull * 1'000'000'000);
  EXPECT_EQ(histogram.Snapshot().Quantile(1), snapshot.bounds.back());
}

}  // namespace
}  // namespace hydra
