// SPDX-License-Identifier: Apache-2.0
//
// What of base/ and of the store's small parts many threads use at once.
#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/buffer.h"
#include "base/logging.h"
#include "base/metrics.h"
#include "base/rng.h"
#include "blockstore/segment_table.h"

namespace hydra {
namespace {

TEST(BufferPool, NeverSharesMemoryBetweenThreadsNorExceedsItsLimit) {
  constexpr size_t kLimit = 64 * kPageSize;
  BufferPool pool(kLimit);
  std::atomic<size_t> total{0};
  std::atomic<bool> broken{false};
  const auto work = [&](uint8_t id) {
    Rng rng(id);
    std::vector<Buffer> held;
    for (int i = 0; i < 5000; ++i) {
      if (rng.Percent(60)) {
        auto buffer = pool.Get(rng.Between(1, 9 * kPageSize));
        if (!buffer.ok()) continue;
        if ((total += buffer->size()) > kLimit) broken = true;
        buffer->data()[0] = id;
        buffer->data()[buffer->size() - 1] = id;
        held.push_back(std::move(buffer).value());
      } else if (!held.empty()) {
        const Buffer last = held.back();
        if (last.data()[0] != id || last.data()[last.size() - 1] != id) broken = true;
        total -= last.size();
        held.pop_back();
      }
    }
    for (const Buffer& buffer : held) total -= buffer.size();
  };
  std::vector<std::thread> threads;
  for (uint8_t id = 1; id <= 4; ++id) threads.emplace_back(work, id);
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(broken);
  EXPECT_EQ(pool.used_bytes(), 0u);
}

TEST(Metrics, IncrementsFromManyThreadsAllCount) {
  MetricsRegistry registry;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      Counter* const counter = registry.GetCounter("c", "h");
      Histogram* const histogram = registry.GetHistogram("h", "h", HistogramOptions::Latency());
      for (uint64_t i = 0; i < 10000; ++i) {
        counter->Add();
        histogram->Observe(i);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(registry.GetCounter("c", "h")->value(), 40000u);
  EXPECT_EQ(registry.Snapshot()[1].series[0].histogram.count, 40000u);
}

TEST(Logging, EachLineOfEachThreadArrivesOnce) {
  constexpr int kThreads = 4;
  constexpr int kLines = 500;
  std::vector<std::string> lines;  // the sink is called by one thread at a time
  SetLogSink([&](LogLevel, std::string_view line) { lines.emplace_back(line); });
  SetLogLevel(LogLevel::kInfo);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < kLines; ++i) {
        HYDRA_LOG_INFO("thread {} line {}", t, i);
        HYDRA_LOG_DEBUG("only while the level is lower");
      }
    });
  }
  for (int i = 0; i < 100; ++i) SetLogLevel(i % 2 == 0 ? LogLevel::kDebug : LogLevel::kInfo);
  for (std::thread& thread : threads) thread.join();
  SetLogLevel(LogLevel::kInfo);
  SetLogSink(nullptr);
  std::erase(lines, "only while the level is lower");
  std::sort(lines.begin(), lines.end());
  EXPECT_EQ(lines.size(), size_t{kThreads * kLines});
  EXPECT_EQ(std::unique(lines.begin(), lines.end()), lines.end());
}

TEST(NewestSegmentTable, ReadersSeeWholeTablesNeverOlderOnes) {
  constexpr SegmentNumber kTables = 300;
  NewestSegmentTable newest;
  std::atomic<bool> broken{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      size_t seen = 0;
      while (seen < kTables) {
        const SegmentTableRef table = newest.Get();
        if (table->size() < seen) broken = true;
        if (!table->empty() && table->rbegin()->first != table->size()) broken = true;
        seen = table->size();
      }
    });
  }
  for (SegmentNumber number = 1; number <= kTables; ++number) {
    auto table = std::make_shared<SegmentTable>(*newest.Get());
    table->emplace(number, std::make_shared<SegmentFile>());
    newest.Set(std::move(table));
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(broken);
}

}  // namespace
}  // namespace hydra
