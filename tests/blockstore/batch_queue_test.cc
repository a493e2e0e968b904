// SPDX-License-Identifier: Apache-2.0
#include "blockstore/batch_queue.h"

#include <map>

#include <gtest/gtest.h>

namespace hydra {
namespace {

constexpr BatchBudget kWholeBatch{.pages = 272, .header_pages = 16, .payload_pages = 256};

QueuedRecord Record(uint64_t cookie, uint32_t pages = 1) {
  return {std::string(32, 'r'), {}, pages, cookie};
}

std::vector<uint64_t> Cookies(const std::vector<QueuedRecord>& records) {
  std::vector<uint64_t> cookies;
  for (const QueuedRecord& record : records) cookies.push_back(record.cookie);
  return cookies;
}

TEST(BatchQueue, HardStateGoesBeforeWhatWaitedLonger) {
  BatchQueue queue;
  queue.Push(Urgency::kLog, 1, Record(1));
  queue.Push(Urgency::kHardState, 1, Record(2, 0));
  EXPECT_EQ(Cookies(queue.Fill(false, kWholeBatch)), (std::vector<uint64_t>{2, 1}));
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(queue.bytes(), 0u);
}

TEST(BatchQueue, KeepsTheOrderWithinAFlow) {
  BatchQueue queue;
  for (uint64_t i = 1; i <= 300; ++i) queue.Push(Urgency::kLog, i % 3, Record(i));
  std::map<uint64_t, uint64_t> last;
  while (!queue.empty()) {
    for (uint64_t cookie : Cookies(queue.Fill(false, kWholeBatch))) {
      EXPECT_GT(cookie, last[cookie % 3]);
      last[cookie % 3] = cookie;
    }
  }
}

TEST(BatchQueue, AFlowOfLargeWritesDoesNotStarveSmallOnes) {
  BatchQueue queue;
  for (uint64_t i = 0; i < 10; ++i) queue.Push(Urgency::kLog, 1, Record(1000 + i, 128));
  for (uint64_t i = 0; i < 64; ++i) queue.Push(Urgency::kLog, 2, Record(i + 1, 1));
  // All 64 small writes together are half of one large one: they are through before the third.
  size_t small = 0;
  size_t large = 0;
  while (small < 64) {
    const auto batch = queue.Fill(false, kWholeBatch);
    ASSERT_FALSE(batch.empty());
    for (uint64_t cookie : Cookies(batch)) ++(cookie >= 1000 ? large : small);
  }
  EXPECT_LE(large, 2u);
}

TEST(BatchQueue, AThousandFlowsEachGetATurn) {
  BatchQueue queue;
  for (uint64_t i = 1; i <= 1000; ++i) {
    for (int n = 0; n < 20; ++n) queue.Push(Urgency::kLog, static_cast<uint32_t>(i), Record(i));
  }
  std::map<uint64_t, int> taken;
  for (int round = 0; round < 20'000 && taken.size() < 1000; ++round) {
    for (uint64_t cookie : Cookies(queue.Fill(false, kWholeBatch))) ++taken[cookie];
  }
  ASSERT_EQ(taken.size(), 1000u);
  // Nobody got more than one turn's worth before everybody had one.
  for (const auto& [flow, count] : taken) EXPECT_LE(count, 20);
}

TEST(BatchQueue, NeverExceedsTheBudget) {
  BatchQueue queue;
  const BatchBudget budget{.pages = 20, .header_pages = 2, .payload_pages = 18};
  for (uint64_t i = 1; i <= 200; ++i) {
    queue.Push(Urgency::kLog, i % 5, Record(i, static_cast<uint32_t>(i % 7)));
  }
  while (!queue.empty()) {
    size_t bytes = 64;
    uint32_t pages = 0;
    const auto batch = queue.Fill(false, budget);
    ASSERT_FALSE(batch.empty());
    for (const QueuedRecord& record : batch) {
      bytes += record.bytes.size();
      pages += record.payload_pages;
    }
    EXPECT_LE(pages, 18u);
    EXPECT_LE((bytes + kPageSize - 1) / kPageSize + pages, 20u);
  }
}

TEST(BatchQueue, SaysNothingRatherThanSkipTheFirstInLine) {
  BatchQueue queue;
  queue.Push(Urgency::kLog, 1, Record(1, 100));
  queue.Push(Urgency::kLog, 1, Record(2, 1));
  const BatchBudget small{.pages = 50, .header_pages = 16, .payload_pages = 256};
  EXPECT_TRUE(queue.Fill(false, small).empty());
  EXPECT_EQ(queue.records(), 2u);
  EXPECT_EQ(Cookies(queue.Fill(false, kWholeBatch)), (std::vector<uint64_t>{1, 2}));
}

}  // namespace
}  // namespace hydra
