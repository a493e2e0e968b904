// SPDX-License-Identifier: Apache-2.0
//
// Rows that reads remember: never another than the map's.
#include "blockstore/row_cache.h"

#include <deque>
#include <map>
#include <memory>
#include <utility>

#include <gtest/gtest.h>

#include "base/rng.h"
#include "tests/support/gtest_status.h"
#include "tests/support/store_fixture.h"

namespace hydra::test {
namespace {

MapRow DataRow(Version version) {
  return {version, {static_cast<SegmentNumber>(version % 7 + 1), 5, 9}, BlockKind::kData, false};
}

TEST(RowCache, HasTheNewestRowOrNone) {
  Rng rng(11);
  RowCache cache(64);
  std::map<std::pair<GroupId, Lba>, Version> newest;
  uint64_t hits = 0;
  for (Version version = 1; version < 50'000; ++version) {
    const auto group = static_cast<GroupId>(1 + rng.Below(2));
    const Lba lba = rng.Below(100);
    const uint64_t what = rng.Below(100);
    if (what < 30) {
      cache.Put(group, lba, DataRow(version));
      newest[{group, lba}] = version;
    } else if (what < 50) {
      cache.Update(group, lba, DataRow(version));
      newest[{group, lba}] = version;
    } else if (what < 60) {
      cache.Erase(group, lba);
      newest.erase({group, lba});
    }
    MapRow row;
    const Lba asked = rng.Below(100);
    if (!cache.Get(group, asked, &row)) continue;
    ++hits;
    const auto found = newest.find({group, asked});
    ASSERT_NE(found, newest.end());
    ASSERT_EQ(row.version, found->second);
    ASSERT_EQ(row.reference, DataRow(row.version).reference);
    ASSERT_EQ(row.kind, BlockKind::kData);
  }
  EXPECT_GT(hits, 1'000u);
}

TEST(RowCache, OfNoRowsHasNone) {
  RowCache cache(0);
  cache.Put(1, 1, DataRow(1));
  MapRow row;
  EXPECT_FALSE(cache.Get(1, 1, &row));
}

// Random work on a small store whose reads and background jobs stay out for a while: planned, run
// and finished with anything in between.
class RememberedRows : public testing::TestWithParam<size_t> {
 protected:
  static constexpr uint64_t kBlocks = 600;  // of each group: more than two extents
  static constexpr uint64_t kLongest = 5;

  struct HeldRead {
    std::unique_ptr<ReadJob> job;
    GroupId group;
    Lba lba;
    Instance since;
    std::map<Lba, BlockState> then;
    bool run = false;
  };

  RememberedRows() : store_(MakeOptions()) {
    store_.MustStart();
    EXPECT_OK(store_.CreateGroup(2, 2));
    EXPECT_OK(store_.Settle());
  }

  static Store::Options MakeOptions() {
    Store::Options options;
    options.engine.map_cached_rows = GetParam();
    options.engine.capacity_bytes = 14u << 20;
    options.engine.overlay_rows = 300;  // many checkpoints
    return options;
  }

  void Change(GroupId group) {
    const Lba lba = rng_.Below(kBlocks - kLongest);
    const uint64_t count = 1 + rng_.Below(kLongest);
    const uint64_t what = rng_.Below(100);
    if (what < 80) {
      Status written = store_.Write(group, lba, count);
      if (written.code() == Code::kBusy) {  // for what is held back here
        Rest();
        written = store_.Write(group, lba, count);
      }
      ASSERT_OK(written);
    }
    if (what >= 80 && what < 88) {
      ASSERT_OK(store_.Unmap(group, lba, count));
    }
    if (what >= 88 && what < 97) {
      ASSERT_OK(store_.Zero(group, lba, count));
    }
    if (what >= 97) {
      ASSERT_OK(store_.ZeroExtents(group, {rng_.Below(2)}));
    }
    // Not always at once: entries wait for their flush as well.
    if (rng_.Percent(70)) {
      ASSERT_OK(store_.Flush());
    }
    if (rng_.Percent(80)) {
      ASSERT_OK(store_.ApplyAll());
    }
  }

  void Plan(GroupId group) {
    const Lba lba = rng_.Below(kBlocks - kLongest);
    const uint64_t count = 1 + rng_.Below(kLongest);
    auto planned = store_->PlanRead(group, lba, count);
    ASSERT_OK(planned.status());
    const GroupModel& model = store_.model().group(group);
    reads_.push_back({std::move(*planned),
                      group,
                      lba,
                      model.applied,
                      {model.blocks.lower_bound(lba), model.blocks.lower_bound(lba + count)}});
  }

  void GoOn(HeldRead* read) {
    if (!read->run) {
      read->job->Run();
      read->run = true;
      return;
    }
    const auto result = store_->FinishRead(std::move(read->job));
    ASSERT_OK(result.status());
    EXPECT_EQ(StoreModel::CompareReadSince(store_.model().group(read->group), read->since,
                                           std::move(read->then), read->lba, *result),
              "");
    std::swap(*read, reads_.back());
    reads_.pop_back();
  }

  void Work() {
    if (job_ == nullptr) {
      if (rng_.Percent(30)) store_->RequestCheckpoint();
      job_ = store_->NextJob();
      job_run_ = false;
    } else if (!job_run_) {
      job_->Run();
      job_run_ = true;
    } else {
      store_->FinishJob(std::move(job_));
    }
  }

  void Rest() {
    while (!reads_.empty()) GoOn(&reads_.back());
    while (job_ != nullptr) Work();
    ASSERT_OK(store_.Settle());
  }

  Store store_;
  Rng rng_{GetParam() + 1};
  std::deque<HeldRead> reads_;
  std::unique_ptr<Job> job_;
  bool job_run_ = false;
};

TEST_P(RememberedRows, AreTheMaps) {
  uint64_t recalled = 0;
  uint64_t moved = 0;
  for (int step = 0; step < 6'000; ++step) {
    const auto group = static_cast<GroupId>(1 + rng_.Below(2));
    const uint64_t what = rng_.Below(100);
    if (what < 25) Change(group);
    if (what >= 25 && what < 55 && reads_.size() < 12) Plan(group);
    if (what >= 55 && what < 80 && !reads_.empty()) GoOn(&reads_[rng_.Below(reads_.size())]);
    if (what >= 80) Work();
    if (step % 20 == 0) {
      ASSERT_EQ(store_.model().VerifyBlocks(store_.engine()), "") << step;
    }
    if (step % 1'500 == 1'499) {
      Rest();
      recalled += store_->Stats().map_recalled;
      moved += store_->Stats().relocated_bytes;
      ASSERT_EQ(store_.VerifySettled(), "");
      store_.PowerLoss();
      ASSERT_OK(store_.Open());
    }
    ASSERT_EQ(store_.Problems(), "");
    ASSERT_FALSE(HasFailure()) << step;
  }
  EXPECT_EQ(recalled > 0, GetParam() > 0);
  EXPECT_GT(moved, 0u);
}

TEST_P(RememberedRows, GoWithTheirGroup) {
  ASSERT_OK(store_.Write(1, 0, 3));
  ASSERT_OK(store_.Settle());
  ASSERT_OK(store_.Checkpoint());
  for (int i = 0; i < 2; ++i) ASSERT_EQ(store_.VerifyAll(), "");
  EXPECT_EQ(store_->Stats().map_recalled > 0, GetParam() > 0);
  ASSERT_OK(store_.Write(2, 0, 3));
  ASSERT_OK(store_.Settle());
  ASSERT_OK(store_.DropGroup(1));
  ASSERT_OK(store_.Settle());
  EXPECT_EQ(store_.VerifyAll(), "");
}

INSTANTIATE_TEST_SUITE_P(Sizes, RememberedRows, testing::Values(0, 32, 8192));

}  // namespace
}  // namespace hydra::test
