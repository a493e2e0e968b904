// SPDX-License-Identifier: Apache-2.0
//
// A purge leaves nothing of what was unmapped before it in any file of segments/, whatever happens
// in between, and everything else as it was.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/support/effort.h"
#include "tests/support/gtest_status.h"
#include "tests/support/store_fixture.h"

namespace hydra::test {
namespace {

constexpr GroupId kGone = 1;   // whose blocks are unmapped
constexpr GroupId kOther = 2;  // whose blocks must stay
constexpr uint64_t kMendToken = 1ull << 40;

class PurgeTest : public testing::Test {
 protected:
  static Store::Options Small() {
    Store::Options options;
    options.segment_bytes = 256 * 1024;
    options.engine.capacity_bytes = 24 * options.segment_bytes;
    options.engine.reserve_segments = 4;
    return options;
  }
  PurgeTest() : store_(Small()) {
    store_.MustStart();
    EXPECT_OK(store_.CreateGroup(kOther, 1));
    EXPECT_OK(store_.Flush());
  }
  void TearDown() override { EXPECT_EQ(store_.Problems(), ""); }

  static void Put(Store* store, GroupId group, Lba lba, uint64_t count) {
    ASSERT_OK(store->Write(group, lba, count));
    ASSERT_OK(store->Flush());
    ASSERT_OK(store->Apply(group));
    ASSERT_OK(store->RunJobs());
  }
  // Both groups' blocks in the same segments, some overwritten, some segments recycled.
  void Fill() {
    for (int round = 0; round < 6; ++round) {
      for (Lba lba = 0; lba < 60; lba += 4) {
        Put(&store_, kGone, lba, 4);
        if (round == 0 || lba % 12 == 0) Put(&store_, kOther, lba, 3);
      }
    }
  }
  static void Erase(Store* store) {
    ASSERT_OK(store->Unmap(kGone, 0, 60));
    ASSERT_OK(store->Settle());
  }
  // Pages of that group in any file, also in those that are nobody's now.
  static size_t Left(Store* store, GroupId group) {
    const std::string directory = std::string(kStoreDirectory) + "/segments";
    const std::string author = "group " + std::to_string(group) + " ";
    size_t found = 0;
    const auto names = store->disk().List(directory);
    for (const std::string& name : *names) {
      const std::string bytes = store->ReadFile(directory + "/" + name);
      for (size_t at = 0; at + kPageSize <= bytes.size(); at += kPageSize) {
        const auto* page = reinterpret_cast<const uint8_t*>(bytes.data()) + at;
        if (DescribeBlock({page, kPageSize}).starts_with(author)) ++found;
      }
    }
    return found;
  }
  static void PurgeWhole(Store* store) {
    const Result<uint64_t> purge = (*store)->Purge({kGone});
    ASSERT_OK(purge.status());
    EXPECT_FALSE((*store)->PurgeProgress(*purge)->done);
    ASSERT_OK(store->RunJobs());
    const Result<PurgeInfo> info = (*store)->PurgeProgress(*purge);
    ASSERT_OK(info.status());
    ASSERT_OK(info->failed);
    ASSERT_TRUE(info->done) << info->left << " of " << info->all << " are left";
    EXPECT_EQ(Left(store, kGone), 0u);
    EXPECT_GT(Left(store, kOther), 0u);
    EXPECT_EQ(store->VerifyAll(), "");
  }

  // A purge of nothing, after which all spares are clean and every segment is full of what is used:
  // the next one need not wait for any of that.
  void CleanAll() {
    const Result<uint64_t> purge = store_->Purge({});
    ASSERT_OK(purge.status());
    ASSERT_OK(store_.RunJobs());
    ASSERT_TRUE(store_->PurgeProgress(*purge)->done);
  }
  // Makes the block's only copy rotten; says what it was.
  Buffer Rot(GroupId group, Lba lba) {
    Buffer good;
    const std::string author = fmt::format("group {} block {} ", group, lba);
    for (const std::string& path : store_.SegmentPaths()) {
      const std::string file = store_.ReadFile(path);
      for (size_t at = 0; at < file.size(); at += kPageSize) {
        const auto* page = reinterpret_cast<const uint8_t*>(file.data()) + at;
        if (!DescribeBlock({page, kPageSize}).starts_with(author)) continue;
        EXPECT_EQ(good.size(), 0u) << "two copies";
        good = Buffer::Allocate(kPageSize);
        std::copy_n(page, kPageSize, good.data());
        store_.disk().FlipBit(path, at + 1000, 3);
      }
    }
    EXPECT_GT(good.size(), 0u);
    return good;
  }
  // Queues a good copy for a rotten block.
  Status QueueRepair(GroupId group, Lba lba, const Buffer& good) {
    HYDRA_ASSIGN_OR_RETURN(auto job, store_->PlanRead(group, lba, 1));
    job->Run();
    DamagedRead damaged;
    EXPECT_CODE(store_->FinishRead(std::move(job), &damaged).status(), Code::kCorruption);
    if (damaged.blocks.size() != 1) return Status::NotFound("no damage");
    return store_->Repair(damaged.blocks[0], {{good, 0, good.size()}}, kMendToken);
  }
  void Write(Batch* batch) {
    std::vector<Completion> completions;
    store_->BatchDone(batch, batch->Write(), store_.clock().Now(), &completions);
    for (const Completion& completion : completions) {
      if (completion.token == kMendToken) continue;
      store_.Fail(store_.model().Completed(completion.token));
    }
  }
  // Jobs first: whatever can begin without what is queued does.
  void RunJobsThenBatches() {
    for (int round = 0; round < 10'000; ++round) {
      bool moved = false;
      while (auto job = store_->NextJob()) {
        job->Run();
        store_->FinishJob(std::move(job));
        moved = true;
      }
      if (Batch* batch = store_->NextBatch(store_.clock().Now())) {
        Write(batch);
        moved = true;
      }
      if (!moved) return;
    }
    ADD_FAILURE() << "it does not come to rest";
  }

  Store store_;
};

// As many pages are counted twice, as live and as an open entry's, as are dead.
TEST_F(PurgeTest, ASegmentThatIsCountedTwiceIsNotTakenForFull) {
  CleanAll();
  Put(&store_, kGone, 0, 1);
  ASSERT_OK(store_.Unmap(kGone, 0, 1));
  ASSERT_OK(store_.Settle());
  ASSERT_OK(store_.Write(kOther, 100, 1));
  ASSERT_OK(store_.Flush());
  const Operation& write = store_.model().group(kOther).Newest(1)->value->entry.operations[0];
  ASSERT_OK(store_.InstallBegin(kOther, InstallMode::kDelta, 1));
  ASSERT_OK(store_.Flush());
  ImageChunk chunk;
  chunk.mode = InstallMode::kDelta;
  chunk.as_of = chunk.newest = 1;
  chunk.rows = {{100, false, BlockKind::kData, MakeVersion(1, 0), write.crcs[0], false, true}};
  ASSERT_OK(store_.InstallChunk(kOther, chunk, {}));
  ASSERT_OK(store_.Flush());
  ASSERT_EQ(store_->OwedCount(kOther), 0u);
  PurgeWhole(&store_);
}

TEST_F(PurgeTest, NothingIsLeftOfWhatWasUnmapped) {
  Fill();
  Erase(&store_);
  EXPECT_GT(Left(&store_, kGone), 100u) << "there is nothing to purge";
  PurgeWhole(&store_);
  EXPECT_EQ(store_.VerifySettled(), "");
  // The store goes on, and so do its files.
  Put(&store_, kGone, 5, 3);
  store_.PowerLoss();
  ASSERT_OK(store_.Open());
  ASSERT_OK(store_.Settle());
  EXPECT_EQ(store_.VerifySettled(), "");
}

TEST_F(PurgeTest, WithoutAPurgeOldBlocksStay) {
  Fill();
  Erase(&store_);
  ASSERT_OK(store_.Checkpoint());
  ASSERT_OK(store_.Settle());
  EXPECT_GT(Left(&store_, kGone), 0u) << "then the other tests prove nothing";
}

// What spares hold is not known after a restart: all are wiped.
TEST_F(PurgeTest, FormerSegmentsAreWipedAfterARestart) {
  Fill();
  Erase(&store_);
  ASSERT_OK(store_.Checkpoint());
  ASSERT_OK(store_.Close());
  ASSERT_OK(store_.Open());
  ASSERT_OK(store_.Settle());
  PurgeWhole(&store_);
}

TEST_F(PurgeTest, WritesGoOnMeanwhile) {
  Fill();
  Erase(&store_);
  const Result<uint64_t> purge = store_->Purge({kGone});
  ASSERT_OK(purge.status());
  for (int i = 0; i < 5000 && !store_->PurgeProgress(*purge)->done; ++i) {
    ASSERT_OK(store_.Write(kOther, static_cast<Lba>(i % 90), 1));
    if (auto job = store_->NextJob()) {
      job->Run();
      store_->FinishJob(std::move(job));
    }
    ASSERT_OK(store_.Flush());
    ASSERT_OK(store_.Apply(kOther));
  }
  EXPECT_TRUE(store_->PurgeProgress(*purge)->done);
  EXPECT_EQ(Left(&store_, kGone), 0u);
  EXPECT_EQ(store_.VerifySettled(), "");
}

// Power fails during every single change that a purge makes to the disk, in turn.
TEST_F(PurgeTest, ACrashLosesNothingAndTheNextPurgeEndsIt) {
  Fill();
  Erase(&store_);
  ASSERT_OK(store_.Checkpoint());
  store_.Crash();
  uint64_t changes = 0;
  {
    const auto whole = store_.Fork(1);
    ASSERT_OK(whole->Open());
    ASSERT_OK(whole->Settle());
    const uint64_t before = whole->disk().io_count();
    PurgeWhole(whole.get());
    changes = whole->disk().io_count() - before;
    EXPECT_EQ(whole->Problems(), "");
  }
  ASSERT_GT(changes, 20u);
  const uint64_t step = std::max<uint64_t>(1, changes / Repeat(60, 12));
  for (uint64_t n = 1; n <= changes; n += step) {
    SCOPED_TRACE(n);
    const auto cut = store_.Fork(n);
    ASSERT_OK(cut->Open());
    ASSERT_OK(cut->Settle());
    const Result<uint64_t> purge = (*cut)->Purge({kGone});
    ASSERT_OK(purge.status());
    cut->disk().CutPowerAfter(n);
    cut->RunJobs().IgnoreError();
    EXPECT_FALSE(cut->disk().powered());
    cut->PowerLoss();
    ASSERT_OK(cut->Open());
    EXPECT_CODE((*cut)->PurgeProgress(*purge).status(), Code::kNotFound);
    ASSERT_OK(cut->Settle());
    PurgeWhole(cut.get());
    ASSERT_EQ(cut->VerifySettled(), "");
    ASSERT_EQ(cut->Problems(), "");
  }
}

TEST_F(PurgeTest, WaitsForEntriesWhosePayloadCouldYetBeWritten) {
  Put(&store_, kGone, 0, 4);
  ASSERT_OK(store_.Write(kGone, 0, 4));
  EXPECT_CODE(store_->Purge({kGone}).status(), Code::kBusy) << "queued";
  ASSERT_OK(store_.Flush());
  EXPECT_CODE(store_->Purge({kGone}).status(), Code::kBusy) << "accepted, not applied";
  EXPECT_OK(store_->Purge({kOther}).status());
  ASSERT_OK(store_.Apply(kGone));
  EXPECT_OK(store_->Purge({kGone}).status());
  EXPECT_CODE(store_->Purge({77}).status(), Code::kNotFound);
}

// Entries of others that are not applied are moved as they are.
TEST_F(PurgeTest, OpenEntriesOfOthersAreMoved) {
  Fill();
  Erase(&store_);
  ASSERT_OK(store_.Write(kOther, 7, 2));
  ASSERT_OK(store_.Flush());
  PurgeWhole(&store_);
  ASSERT_OK(store_.Apply(kOther));
  EXPECT_EQ(store_.VerifySettled(), "");
}

TEST_F(PurgeTest, OneThatIsAskedForTooLateForAnotherFollowsIt) {
  Fill();
  const uint64_t first = *store_->Purge({});
  EXPECT_EQ(*store_->Purge({}), first) << "it has not begun";
  for (int i = 0; i < 10'000 && store_->PurgeProgress(first)->all == 0; ++i) {
    auto job = store_->NextJob();
    ASSERT_NE(job, nullptr);
    job->Run();
    store_->FinishJob(std::move(job));
  }
  ASSERT_OK(store_.Unmap(kGone, 0, 60));
  ASSERT_OK(store_.Flush());
  ASSERT_OK(store_.Apply(kGone));
  const uint64_t second = *store_->Purge({kGone});
  EXPECT_EQ(second, first + 1);
  EXPECT_EQ(*store_->Purge({kGone}), second);
  ASSERT_OK(store_.RunJobs());
  EXPECT_TRUE(store_->PurgeProgress(first)->done);
  EXPECT_TRUE(store_->PurgeProgress(second)->done);
  EXPECT_EQ(Left(&store_, kGone), 0u);
}

// The copy that mends a block carries what the block held, whatever becomes of the block before the
// copy is written.
TEST_F(PurgeTest, WaitsForAQueuedRepair) {
  Put(&store_, kOther, 0, 4);
  Put(&store_, kGone, 0, 4);
  CleanAll();
  const Buffer good = Rot(kGone, 2);
  ASSERT_OK(store_.Unmap(kGone, 0, 60));
  ASSERT_OK(store_.Flush());
  ASSERT_OK(QueueRepair(kGone, 2, good));
  ASSERT_OK(store_.Apply(kGone));
  const Result<uint64_t> purge = store_->Purge({kGone});
  ASSERT_OK(purge.status());
  RunJobsThenBatches();
  EXPECT_TRUE(store_->PurgeProgress(*purge)->done);
  EXPECT_EQ(Left(&store_, kGone), 0u);
  EXPECT_EQ(store_.VerifyAll(), "");
}

// Where it goes there is nothing but what is used, when the purge is asked for.
TEST_F(PurgeTest, WaitsForARepairInFlight) {
  Put(&store_, kOther, 0, 4);
  Put(&store_, kGone, 0, 4);
  CleanAll();
  const Buffer other = Rot(kOther, 1);
  ASSERT_OK(QueueRepair(kOther, 1, other));
  RunJobsThenBatches();
  const Buffer good = Rot(kGone, 2);
  ASSERT_OK(store_.Unmap(kGone, 0, 60));
  ASSERT_OK(store_.Flush());
  ASSERT_OK(QueueRepair(kGone, 2, good));
  Batch* batch = store_->NextBatch(store_.clock().Now());
  ASSERT_NE(batch, nullptr);
  ASSERT_OK(store_.Apply(kGone));
  const Result<uint64_t> purge = store_->Purge({kGone});
  ASSERT_OK(purge.status());
  while (auto job = store_->NextJob()) {
    job->Run();
    store_->FinishJob(std::move(job));
  }
  Write(batch);
  RunJobsThenBatches();
  EXPECT_TRUE(store_->PurgeProgress(*purge)->done);
  EXPECT_EQ(Left(&store_, kGone), 0u);
  EXPECT_EQ(store_.VerifyAll(), "");
}

// Until the drop is durable the group's blocks count as used, and its entries are yet to be
// written.
TEST_F(PurgeTest, WaitsForADropAndForWhatWasQueuedBeforeIt) {
  Put(&store_, kOther, 0, 4);
  Put(&store_, kGone, 0, 40);
  CleanAll();
  ASSERT_OK(store_.Write(kGone, 50, 4));
  ASSERT_OK(store_.DropGroup(kGone));
  const Result<uint64_t> purge = store_->Purge({});
  ASSERT_OK(purge.status());
  RunJobsThenBatches();
  EXPECT_TRUE(store_->PurgeProgress(*purge)->done);
  EXPECT_EQ(Left(&store_, kGone), 0u);
  EXPECT_GT(Left(&store_, kOther), 0u);
  EXPECT_EQ(store_.VerifyAll(), "");
}

// Also if another asked before.
TEST_F(PurgeTest, WhoJoinsOneThatHasNotBegunLetsItWaitForMore) {
  Put(&store_, kOther, 0, 4);
  Put(&store_, kGone, 0, 40);
  CleanAll();
  const Result<uint64_t> first = store_->Purge({});
  ASSERT_OK(first.status());
  ASSERT_OK(store_.DropGroup(kGone));
  const Result<uint64_t> second = store_->Purge({});
  ASSERT_OK(second.status());
  EXPECT_EQ(*first, *second);
  RunJobsThenBatches();
  EXPECT_TRUE(store_->PurgeProgress(*second)->done);
  EXPECT_EQ(Left(&store_, kGone), 0u);
}

// Vacuum meets it and reports it; the owner has a good copy a moment later.
TEST_F(PurgeTest, WaitsForARottenLiveBlockThatIsBeingMended) {
  Put(&store_, kOther, 0, 4);
  Put(&store_, kGone, 0, 4);
  CleanAll();
  const Buffer good = Rot(kOther, 2);
  ASSERT_OK(store_.Unmap(kGone, 0, 60));
  ASSERT_OK(store_.Settle());
  const Result<uint64_t> purge = store_->Purge({kGone});
  ASSERT_OK(purge.status());
  std::vector<Damage> damage;
  for (int round = 0; round < 1000 && damage.empty(); ++round) {
    if (auto job = store_->NextJob()) {
      job->Run();
      store_->FinishJob(std::move(job));
    } else if (Batch* batch = store_->NextBatch(store_.clock().Now())) {
      Write(batch);
    }
    damage = store_->TakeDamage();
  }
  ASSERT_EQ(damage.size(), 1u);
  // As long as peers take to answer, others go on writing.
  for (Lba lba = 100; lba < 103; ++lba) {
    ASSERT_OK(store_.Write(kOther, lba));
    RunJobsThenBatches();
    ASSERT_OK(store_.Apply(kOther));
  }
  EXPECT_OK(store_->PurgeProgress(*purge)->failed);
  ASSERT_OK(store_->Repair(damage[0], {{good, 0, good.size()}}, kMendToken));
  RunJobsThenBatches();
  EXPECT_OK(store_->PurgeProgress(*purge)->failed);
  EXPECT_TRUE(store_->PurgeProgress(*purge)->done);
  EXPECT_EQ(Left(&store_, kGone), 0u);
  EXPECT_EQ(store_.VerifyAll(), "");
}

// A segment that cannot be emptied cannot be overwritten: that is said.
TEST_F(PurgeTest, FailsWhereALiveBlockStaysRotten) {
  Fill();
  Erase(&store_);
  bool flipped = false;
  for (const FoundBatch& batch : store_.Batches()) {
    if (batch.header.payload_pages == 0) continue;
    const std::string file = store_.ReadFile(batch.path);
    const auto* page = reinterpret_cast<const uint8_t*>(file.data()) + batch.payload_offset();
    // Written once, so it is live.
    if (!DescribeBlock({page, kPageSize}).starts_with("group 2 block 4 ")) continue;
    store_.disk().FlipBit(batch.path, batch.payload_offset() + 100, 3);
    flipped = true;
  }
  ASSERT_TRUE(flipped);
  const uint64_t purge = *store_->Purge({kGone});
  for (int second = 0; second < 100; ++second) {
    RunJobsThenBatches();
    store_.clock().Advance(kSecond);
  }
  EXPECT_FALSE(store_->PurgeProgress(purge)->done);
  EXPECT_CODE(store_->PurgeProgress(purge)->failed, Code::kCorruption);
  // Once the block is written anew nothing stands in the way.
  Put(&store_, kOther, 4, 1);
  PurgeWhole(&store_);
}

// One bit of a batch header: its records are lost, but the map knows the blocks behind it, and they
// are good. They are moved like any others.
TEST_F(PurgeTest, BlocksBehindARottenHeaderAreMoved) {
  ASSERT_NO_FATAL_FAILURE(Fill());
  ASSERT_OK(store_.Checkpoint());
  ASSERT_NO_FATAL_FAILURE(Erase(&store_));
  ASSERT_OK(store_.Checkpoint());
  const EngineStats stats = store_->Stats();
  std::vector<FoundBatch> rotten;
  for (const FoundBatch& batch : store_.Batches()) {
    for (const SegmentStats& segment : stats.segments) {
      if (segment.segment == batch.header.segment && !segment.active && segment.live_pages > 0) {
        rotten.push_back(batch);
      }
    }
  }
  ASSERT_FALSE(rotten.empty());
  for (const FoundBatch& batch : rotten) store_.disk().FlipBit(batch.path, batch.offset() + 100, 3);
  ASSERT_NO_FATAL_FAILURE(PurgeWhole(&store_));
}

}  // namespace
}  // namespace hydra::test
