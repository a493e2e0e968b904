// SPDX-License-Identifier: Apache-2.0
//
// Reading entries of the log elsewhere, while the engine goes on.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/gtest_status.h"
#include "tests/support/store_fixture.h"

namespace hydra::test {
namespace {

Store::Options Small() {
  Store::Options options;
  options.segment_bytes = 256 * 1024;
  options.engine.capacity_bytes = 12 * options.segment_bytes;
  options.engine.reserve_segments = 4;
  return options;
}

class LogReadTest : public testing::Test {
 protected:
  LogReadTest() : store_(Small()) {
    store_.MustStart();
    EXPECT_OK(store_.CreateGroup(2, 1));
  }

  // Three batches; in each three entries of group 1, and one of another group between them.
  void WriteNine() {
    for (Lba lba = 0; lba < 9; ++lba) {
      ASSERT_OK(store_.Write(1, lba * 10, 1 + lba % 3));
      if (lba % 3 == 1) {
        ASSERT_OK(store_.Write(2, lba));
      }
      if (lba % 3 == 2) {
        ASSERT_OK(store_.Settle());
      }
    }
  }
  std::unique_ptr<ReadJob> Plan(Instance from, Instance to, size_t max_bytes = SIZE_MAX,
                                std::function<bool(const AcceptRecord&)> wanted = nullptr) {
    auto job = store_->PlanLogRead({1, from, to, max_bytes, std::move(wanted)});
    EXPECT_OK(job.status());
    return std::move(*job);
  }
  std::vector<LogEntry> Read(std::unique_ptr<ReadJob> job) {
    job->Run();
    auto entries = store_->FinishLogRead(std::move(job));
    EXPECT_OK(entries.status());
    return entries.ok() ? std::move(*entries) : std::vector<LogEntry>();
  }
  static std::string Bytes(const Payload& payload) {
    std::string bytes;
    for (const BufferSlice& slice : payload) {
      bytes.append(reinterpret_cast<const char*>(slice.data()), slice.length);
    }
    return bytes;
  }

  Store store_;
};

TEST_F(LogReadTest, ManyEntriesAreWhatTheyAreOneByOne) {
  WriteNine();
  const std::vector<LogEntry> entries = Read(Plan(2, 9));
  ASSERT_EQ(entries.size(), 8u);
  for (size_t i = 0; i < entries.size(); ++i) {
    const auto alone = store_->ReadLogEntry(1, 2 + i);
    ASSERT_OK(alone.status());
    EXPECT_EQ(entries[i].record.instance, 2 + i);
    EXPECT_EQ(entries[i].record.ballot, alone->record.ballot);
    EXPECT_EQ(Bytes(entries[i].payload), Bytes(alone->payload));
    EXPECT_FALSE(entries[i].payload.empty());
  }
}

TEST_F(LogReadTest, EndsWhereTheLogOrTheLimitDoes) {
  WriteNine();
  EXPECT_EQ(Read(Plan(8, 20)).size(), 2u);
  EXPECT_EQ(Read(Plan(10, 20)).size(), 0u);
  EXPECT_EQ(Read(Plan(1, 9, 6 * kPageSize)).size(), 3u);
  EXPECT_EQ(Read(Plan(3, 9, 1)).size(), 1u) << "one is always allowed";
  EXPECT_FALSE(store_->PlanLogRead({77, 1, 1, SIZE_MAX, nullptr}).ok());
}

TEST_F(LogReadTest, PayloadThatIsNotWantedIsNeitherReadNorCounted) {
  WriteNine();
  const auto odd = [](const AcceptRecord& record) { return record.instance % 2 == 1; };
  const std::vector<LogEntry> entries = Read(Plan(1, 9, 4 * kPageSize, odd));
  ASSERT_EQ(entries.size(), 4u) << "1 page of instance 1, 3 of instance 3";
  EXPECT_EQ(Bytes(entries[2].payload), Bytes(store_->ReadLogEntry(1, 3)->payload));
  EXPECT_TRUE(entries[1].payload.empty());
  EXPECT_TRUE(entries[3].payload.empty());
}

TEST_F(LogReadTest, ARottenEntryEndsItAndIsKnownFromThenOn) {
  WriteNine();
  std::unique_ptr<ReadJob> job = Plan(1, 9);
  size_t faulty = 0;
  bool flipped = false;
  for (const FoundBatch& batch : store_.Batches()) {
    if (batch.header.payload_pages != 7 || flipped) continue;
    store_.disk().FlipBit(batch.path, batch.payload_offset() + 2 * kPageSize, 3);
    flipped = true;
  }
  ASSERT_TRUE(flipped);
  const size_t read = Read(std::move(job)).size();
  EXPECT_LT(read, 9u);
  for (const LogEntryInfo& info : store_->LogEntries(1, 1, 9)) {
    faulty += info.faulty;
    EXPECT_EQ(info.faulty, info.instance == read + 1);
  }
  EXPECT_EQ(faulty, 1u);
  // What is not wanted does not have to be whole.
  EXPECT_EQ(Read(Plan(1, 9, SIZE_MAX, [](const AcceptRecord&) { return false; })).size(), 9u);
}

TEST_F(LogReadTest, ASegmentIsNotRecycledUnderIt) {
  WriteNine();
  const std::string before = Bytes(store_->ReadLogEntry(1, 5)->payload);
  const uint64_t freed = store_->Stats().segments_freed;
  std::unique_ptr<ReadJob> job = Plan(5, 5);
  std::unique_ptr<ReadJob> dropped = Plan(5, 5);
  // Everything in its segment dies, and the log goes with it.
  for (int i = 0; i < 60; ++i) {
    ASSERT_OK(store_.Write(1, i % 3 * 10, 3));
    ASSERT_OK(store_.Settle());
  }
  ASSERT_OK(store_.Unmap(1, 0, 100));
  ASSERT_OK(store_.Unmap(2, 0, 100));
  ASSERT_OK(store_.Settle());
  ASSERT_OK(store_.Checkpoint());
  ASSERT_OK(store_.RunJobs());
  EXPECT_EQ(store_->Stats().segments_freed, freed);
  const std::vector<LogEntry> entries = Read(std::move(job));
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(Bytes(entries[0].payload), before);
  EXPECT_EQ(store_->Stats().segments_freed, freed);
  store_->DropRead(std::move(dropped));
  ASSERT_OK(store_.RunJobs());
  EXPECT_GT(store_->Stats().segments_freed, freed);
  EXPECT_EQ(store_.Problems(), "");
}

}  // namespace
}  // namespace hydra::test
