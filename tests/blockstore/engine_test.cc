// SPDX-License-Identifier: Apache-2.0
//
// What the engine promises the layers above, one promise per test. Crashes, rot and bad input have
// files of their own.
#include <set>

#include <gtest/gtest.h>

#include "tests/support/effort.h"
#include "tests/support/gtest_status.h"
#include "tests/support/store_fixture.h"

namespace hydra::test {
namespace {

class EngineTest : public testing::Test {
 protected:
  explicit EngineTest(const Store::Options& options = Store::Options()) : store_(options) {
    store_.MustStart();
  }

  void TearDown() override { EXPECT_EQ(store_.Problems(), ""); }

  void WriteAndApply(Lba lba, uint64_t count = 1) {
    ASSERT_OK(store_.Write(1, lba, count));
    ASSERT_OK(store_.Flush());
    ASSERT_OK(store_.Apply(1));
  }

  GroupInfo Info(GroupId group = 1) { return *store_->Info(group); }

  Store store_;
};

// --- Applying before the local flush ----------------------------------------------------------

TEST_F(EngineTest, AnEntryAppliedBeforeItIsDurableIsReadFromItsBuffer) {
  ASSERT_OK(store_.Write(1, 7, 2));
  ASSERT_OK(store_->Apply(1, 1, kFirstBallot));
  store_.model().Applied(1, 1);
  EXPECT_EQ(Info().applied, 1u);
  EXPECT_EQ(Info().stable, 0u);
  EXPECT_EQ(store_.VerifyAll(), "");
  ASSERT_OK(store_.Flush());
  EXPECT_EQ(Info().stable, 1u);
  EXPECT_EQ(store_.VerifyAll(), "");
}

TEST_F(EngineTest, AWaitingZeroHidesTheDataBelowIt) {
  WriteAndApply(7);
  ASSERT_OK(store_.Zero(1, 7));
  ASSERT_OK(store_->Apply(1, 2, kFirstBallot));
  store_.model().Applied(1, 2);
  EXPECT_EQ(store_.VerifyAll(), "");
  EXPECT_EQ(store_->Read(1, 7, 1)->blocks[0].kind, BlockKind::kUnmapped);
}

TEST_F(EngineTest, TheMapKnowsWhatIsApplied) {
  const auto kinds = [&] {
    std::string text;
    const auto map = store_->ReadMap(1, 6, 5);
    for (const BlockKind kind : *map) {
      text += kind == BlockKind::kData ? 'd' : '.';
    }
    return text;
  };
  EXPECT_EQ(kinds(), ".....");
  ASSERT_OK(store_.Write(1, 7, 2));
  EXPECT_EQ(kinds(), ".....") << "accepted is not applied";
  ASSERT_OK(store_->Apply(1, 1, kFirstBallot));
  store_.model().Applied(1, 1);
  EXPECT_EQ(kinds(), ".dd..") << "before it is durable";
  ASSERT_OK(store_.Flush());
  EXPECT_EQ(kinds(), ".dd..");
  ASSERT_OK(store_.Zero(1, 7));
  ASSERT_OK(store_->Apply(1, 2, kFirstBallot));
  store_.model().Applied(1, 2);
  EXPECT_EQ(kinds(), "..d..") << "a waiting zero";
  ASSERT_OK(store_.Flush());
  ASSERT_OK(store_.Checkpoint());
  EXPECT_EQ(kinds(), "..d..");
  EXPECT_CODE(store_->ReadMap(1, 0, 0).status(), Code::kInvalidArgument);
  EXPECT_CODE(store_->ReadMap(1, 0, kExtentPages + 1).status(), Code::kInvalidArgument);
  EXPECT_CODE(store_->ReadMap(9, 0, 1).status(), Code::kNotFound);
}

// One of the blocks is looked up in LevelDB, where a checkpoint has put the new one meanwhile.
TEST_F(EngineTest, AReadSeesAllOrNothingOfAWriteThatIsCheckpointedBeforeItRuns) {
  WriteAndApply(7, 2);
  ASSERT_OK(store_.Checkpoint());
  for (const Lba in_overlay : {Lba{7}, Lba{8}}) {
    WriteAndApply(in_overlay);
    auto read = store_->PlanRead(1, 7, 2);
    ASSERT_OK(read.status());
    auto dropped = store_->PlanRead(1, 7, 2);
    ASSERT_OK(dropped.status());
    const GroupModel before = store_.model().group(1);
    WriteAndApply(7, 2);
    ASSERT_OK(store_.Checkpoint());
    (*read)->Run();
    const auto result = store_->FinishRead(std::move(*read));
    ASSERT_OK(result.status());
    EXPECT_EQ(StoreModel::CompareRead(before, 7, *result), "");
    store_->DropRead(std::move(*dropped));
  }
}

TEST_F(EngineTest, ACheckpointCoversOnlyWhatIsDurableHere) {
  WriteAndApply(1);
  ASSERT_OK(store_.RunJobs());
  ASSERT_OK(store_.Write(1, 2));
  ASSERT_OK(store_->Apply(1, 2, kFirstBallot));
  store_.model().Applied(1, 2);
  store_->RequestCheckpoint();
  EXPECT_EQ(store_->NextJob(), nullptr) << "began with an applied entry that is not durable";
  // Meanwhile nothing more is applied ahead of the disk ...
  store_.set_patient(false);
  ASSERT_OK(store_.Write(1, 3));
  EXPECT_CODE(store_->Apply(1, 3, kFirstBallot), Code::kBusy);
  // ... and one flush later it begins.
  Batch* batch = store_->NextBatch(0);
  ASSERT_NE(batch, nullptr);
  ASSERT_OK(store_.WriteBatch(batch));
  auto job = store_->NextJob();
  ASSERT_NE(job, nullptr);
  EXPECT_STREQ(job->name(), "checkpoint");
  job->Run();
  store_->FinishJob(std::move(job));
  store_.set_patient(true);
  ASSERT_OK(store_.Settle());
  EXPECT_EQ(store_.VerifySettled(), "");
}

// --- Batches and seals ------------------------------------------------------------------------

TEST_F(EngineTest, WhatArrivesDuringAWriteFormsTheNextBatch) {
  ASSERT_OK(store_.Flush());
  const uint64_t before = store_->Stats().batches;
  ASSERT_OK(store_.Write(1, 1));
  Batch* batch = store_->NextBatch(0);
  ASSERT_NE(batch, nullptr);
  for (Lba lba = 2; lba < 34; ++lba) ASSERT_OK(store_.Write(1, lba));
  EXPECT_EQ(store_->NextBatch(0), nullptr) << "two batches in flight";
  ASSERT_OK(store_.WriteBatch(batch));
  batch = store_->NextBatch(0);
  ASSERT_NE(batch, nullptr);
  EXPECT_EQ(batch->bytes(), (32 + 1) * kPageSize) << "32 blocks behind one header page";
  ASSERT_OK(store_.WriteBatch(batch));
  EXPECT_EQ(store_->Stats().batches, before + 2);
}

TEST_F(EngineTest, TheStreamIsSealedOnceAfterTenIdleMilliseconds) {
  ASSERT_OK(store_.Write(1, 1));
  ASSERT_OK(store_.Flush());
  const Nanos done = store_.clock().Now();
  const uint64_t seals = store_->Stats().seals;
  ASSERT_TRUE(store_->NextDeadline().has_value());
  EXPECT_EQ(*store_->NextDeadline(), done + 10 * kMillisecond);
  EXPECT_EQ(store_->NextBatch(done + 10 * kMillisecond - 1), nullptr);
  Batch* seal = store_->NextBatch(done + 10 * kMillisecond);
  ASSERT_NE(seal, nullptr);
  EXPECT_EQ(seal->bytes(), kPageSize);
  ASSERT_OK(store_.WriteBatch(seal));
  EXPECT_EQ(store_->Stats().seals, seals + 1);
  EXPECT_FALSE(store_->NextDeadline().has_value());
  EXPECT_EQ(store_->NextBatch(done + kSecond), nullptr) << "sealed twice";
}

TEST_F(EngineTest, ASealLetsARestartApplyWithoutAsking) {
  for (Lba lba = 0; lba < 5; ++lba) WriteAndApply(lba);
  Batch* seal = store_->NextBatch(store_.clock().Now() + kSecond);
  ASSERT_NE(seal, nullptr);
  ASSERT_OK(store_.WriteBatch(seal));
  store_.Crash();
  ASSERT_OK(store_.Open());
  EXPECT_EQ(Info().applied, 5u);
}

// --- Fairness ---------------------------------------------------------------------------------

// Each group has a flow of its own in the queue: a volume with much to write does not hold up the
// small write of another.
TEST(EngineFairness, AGroupWithOneBlockDoesNotWaitForAGroupWithMany) {
  constexpr Instance kEntries = 10;
  constexpr uint64_t kBlocks = 128;  // two entries to a batch
  Store::Options options;
  options.segment_bytes = 16 << 20;
  Store store(options);
  store.MustStart();
  ASSERT_OK(store.CreateGroup(2, 1));
  ASSERT_OK(store.Flush());
  store.set_patient(false);  // or it would write them one by one
  for (Instance i = 0; i < kEntries; ++i) ASSERT_OK(store.Write(1, i * kBlocks, kBlocks));
  ASSERT_OK(store.Write(2, 0));
  unsigned batches = 0;
  while (store->Info(2)->last == 0) {
    Batch* batch = store->NextBatch(store.clock().Now());
    ASSERT_NE(batch, nullptr);
    ASSERT_OK(store.WriteBatch(batch));
    ++batches;
  }
  EXPECT_LE(batches, 2u);
  EXPECT_LT(store->Info(1)->last, kEntries);
  ASSERT_OK(store.Settle());
  EXPECT_EQ(store.VerifyAll() + store.Problems(), "");
}

// --- Segments ---------------------------------------------------------------------------------

class SegmentTest : public EngineTest {
 protected:
  static Store::Options Small() {
    Store::Options options;
    options.segment_bytes = 256 * 1024;
    options.engine.capacity_bytes = 12 * options.segment_bytes;
    options.engine.reserve_segments = 4;
    return options;
  }
  SegmentTest() : EngineTest(Small()) {}

  // Overwrites a few blocks until `freed` segments have been recycled.
  void Churn(uint64_t freed) {
    const uint64_t goal = store_->Stats().segments_freed + freed;
    for (int i = 0; i < 20'000 && store_->Stats().segments_freed < goal; ++i) {
      WriteAndApply(static_cast<Lba>(i % 40));
      ASSERT_OK(store_.RunJobs());
    }
    ASSERT_GE(store_->Stats().segments_freed, goal);
  }

  std::set<SegmentNumber> Numbers() {
    std::set<SegmentNumber> numbers;
    for (const SegmentStats& segment : store_->Stats().segments) numbers.insert(segment.segment);
    return numbers;
  }

  // Those with entries that are not applied.
  std::set<SegmentNumber> OpenSegments() {
    std::set<SegmentNumber> numbers;
    for (const SegmentStats& segment : store_->Stats().segments) {
      if (segment.open_records > 0) numbers.insert(segment.segment);
    }
    return numbers;
  }
};

TEST_F(SegmentTest, NumbersAreNeverUsedAgain) {
  std::set<SegmentNumber> seen;
  SegmentNumber highest = 0;
  for (int round = 0; round < 6; ++round) {
    Churn(4);
    for (SegmentNumber number : Numbers()) {
      if (seen.contains(number)) continue;
      EXPECT_GT(number, highest) << "a number came back";
      seen.insert(number);
    }
    highest = *seen.rbegin();
    if (round % 2 == 0) {
      ASSERT_OK(store_.Close());
    }
    if (round % 2 == 1) store_.PowerLoss();
    ASSERT_OK(store_.Open());
    ASSERT_OK(store_.Settle());
  }
  EXPECT_LE(store_->Stats().space_bytes, store_.options().engine.capacity_bytes);
}

TEST_F(SegmentTest, ASegmentIsNotRecycledUnderAReader) {
  WriteAndApply(1);
  const SegmentNumber first = *Numbers().begin();
  auto read = store_->PlanRead(1, 1, 1);
  ASSERT_TRUE(read.ok());
  const GroupModel before = store_.model().group(1);
  // The block is overwritten, and everything else in its segment dies too.
  // (A reader holds up everything that is freed after it began, so not too much.)
  for (int i = 0; i < 100; ++i) WriteAndApply(static_cast<Lba>(i % 10));
  ASSERT_OK(store_.Checkpoint());
  ASSERT_OK(store_.RunJobs());
  EXPECT_TRUE(Numbers().contains(first));
  (*read)->Run();
  auto result = store_->FinishRead(std::move(*read));
  ASSERT_OK(result.status());
  EXPECT_EQ(StoreModel::CompareRead(before, 1, *result), "");
  ASSERT_OK(store_.RunJobs());
  EXPECT_FALSE(Numbers().contains(first)) << "never freed";
}

TEST_F(SegmentTest, VacuumNeverBringsBackWhatWasOverwrittenMeanwhile) {
  // Cold blocks, in the same segments as hot ones that die: vacuum must move the cold ones.
  for (Lba cold = 100; cold < 160; ++cold) {
    WriteAndApply(cold);
    for (Lba hot = 0; hot < 3; ++hot) WriteAndApply(hot);
  }
  // From now on overwrite a cold block between every two steps of the vacuum.
  uint64_t moved = 0;
  for (int i = 0; i < 600; ++i) {
    auto job = store_->NextJob();
    if (job != nullptr) job->Run();
    for (const Lba lba : {100 + static_cast<Lba>(i % 60), static_cast<Lba>(i % 3)}) {
      const Status written = store_.Write(1, lba);
      if (written.code() == Code::kBusy) continue;  // this very job is to make room
      ASSERT_OK(written);
      while (Batch* batch = store_->NextBatch(0)) ASSERT_OK(store_.WriteBatch(batch));
      ASSERT_OK(store_.Apply(1));
    }
    if (job != nullptr) store_->FinishJob(std::move(job));
    if (!kSanitized || i % 8 == 0) {
      ASSERT_EQ(store_.VerifyAll(), "") << "step " << i;
    }
    moved = store_->Stats().relocated_bytes;
  }
  EXPECT_GT(moved, 0u);
  ASSERT_OK(store_.Settle());
  EXPECT_EQ(store_.VerifySettled(), "");
}

TEST_F(SegmentTest, VacuumKeepsEntriesThatAreNotYetApplied) {
  ASSERT_OK(store_.CreateGroup(2, 1));
  ASSERT_OK(store_.Write(2, 5, 4));  // accepted, never applied
  ASSERT_OK(store_.Flush());
  const std::set<SegmentNumber> before = OpenSegments();
  ASSERT_EQ(before.size(), 1u);
  // Blocks that stay, in every segment: nothing is freed by itself.
  for (Lba cold = 100; cold < 160; ++cold) {
    WriteAndApply(cold);
    for (Lba hot = 0; hot < 3; ++hot) WriteAndApply(hot);
  }
  Churn(12);
  EXPECT_FALSE(Numbers().contains(*before.begin())) << "its segment was not freed";
  const std::set<SegmentNumber> after = OpenSegments();
  ASSERT_EQ(after.size(), 1u);
  EXPECT_GT(*after.begin(), *before.begin()) << "it was not moved";
  auto entry = store_->ReadLogEntry(2, 1);
  ASSERT_OK(entry.status());
  store_.PowerLoss();
  ASSERT_OK(store_.Open());
  ASSERT_OK(store_->ReadLogEntry(2, 1).status());
  ASSERT_OK(store_.ApplyAll());
  EXPECT_EQ(store_.VerifyAll(), "");
}

// --- Changes and images -----------------------------------------------------------------------

TEST_F(EngineTest, ChangesSinceAVersionListEachBlockOnceWithItsNewestVersion) {
  WriteAndApply(1, 3);
  WriteAndApply(2);
  ASSERT_OK(store_.Unmap(1, 3));
  ASSERT_OK(store_.ZeroExtents(1, {4}));
  ASSERT_OK(store_.Settle());
  ASSERT_OK(store_.Checkpoint());
  auto all = store_->ScanChanges(1, 0, "", 100);
  ASSERT_OK(all.status());
  ASSERT_EQ(all->changes.size(), 4u);
  EXPECT_EQ(all->as_of, 4u);
  EXPECT_EQ(all->changes[0].lba, 1u);
  EXPECT_EQ(all->changes[1].lba, 2u);
  EXPECT_EQ(all->changes[1].version, MakeVersion(2, 0));
  EXPECT_EQ(all->changes[2].lba, 3u);
  EXPECT_EQ(all->changes[2].kind, BlockKind::kUnmapped);
  EXPECT_TRUE(all->changes[3].whole_extent);
  auto newer = store_->ScanChanges(1, MakeVersion(2, 0), "", 100);
  ASSERT_OK(newer.status());
  EXPECT_EQ(newer->changes.size(), 2u);
}

TEST_F(EngineTest, ScansGoOnFromTheirCursor) {
  for (Lba lba = 0; lba < 50; ++lba) ASSERT_OK(store_.Write(1, lba));
  ASSERT_OK(store_.Settle());
  ASSERT_OK(store_.Checkpoint());
  for (const bool image : {false, true}) {
    std::vector<Lba> seen;
    std::string cursor;
    for (int rounds = 0; rounds < 100; ++rounds) {
      auto batch = image ? store_->ScanImage(1, cursor, 7) : store_->ScanChanges(1, 0, cursor, 7);
      ASSERT_OK(batch.status());
      for (const Change& change : batch->changes) seen.push_back(change.lba);
      if (batch->done) break;
      cursor = batch->next;
    }
    ASSERT_EQ(seen.size(), 50u);
    for (Lba lba = 0; lba < 50; ++lba) EXPECT_EQ(seen[lba], lba);
  }
}

TEST(EngineRetention, ChangesBehindTheHorizonAreRefusedAndSwept) {
  Store::Options options;
  options.engine.change_retention = 10;
  Store store(options);
  store.MustStart();
  for (Lba lba = 0; lba < 20; ++lba) ASSERT_OK(store.Write(1, lba));
  ASSERT_OK(store.Unmap(1, 0, 5));
  ASSERT_OK(store.Settle());
  ASSERT_OK(store.Checkpoint());
  for (Lba lba = 20; lba < 40; ++lba) ASSERT_OK(store.Write(1, lba));
  ASSERT_OK(store.Settle());
  ASSERT_OK(store.Checkpoint());
  ASSERT_OK(store.Checkpoint());
  const GroupInfo info = *store->Info(1);
  EXPECT_EQ(VersionInstance(info.horizon), info.applied - 10);
  EXPECT_CODE(store->ScanChanges(1, MakeVersion(3, 0), "", 100).status(), Code::kOutOfRange);
  auto recent = store->ScanChanges(1, info.horizon, "", 100);
  ASSERT_OK(recent.status());
  EXPECT_EQ(recent->changes.size(), 10u);
  auto image = store->ScanImage(1, "", 1000);
  ASSERT_OK(image.status());
  EXPECT_EQ(image->changes.size(), 35u);
  EXPECT_EQ(store.VerifyAll(), "");
  ASSERT_OK(store.Close());
  ASSERT_OK(store.Open());
  EXPECT_EQ(store->Info(1)->horizon, info.horizon);
}

TEST_F(EngineTest, OneBlockWrittenOverAndOverIsCheckpointedToo) {
  Store::Options options;
  options.engine.checkpoint_batches = 50;
  Store store(options);
  store.MustStart();
  const uint64_t before = store->Stats().checkpoints;
  for (int i = 0; i < 260; ++i) {
    ASSERT_OK(store.Write(1, 7));
    ASSERT_OK(store.Settle());
  }
  const uint64_t made = store->Stats().checkpoints - before;
  EXPECT_TRUE(made >= 4 && made <= 20) << made;
  EXPECT_EQ(store.VerifyAll(), "");
}

TEST_F(EngineTest, EqualHistoriesHaveEqualDigestsWhateverTheDiskDid) {
  Store::Options options;
  options.segment_bytes = 256 * 1024;
  options.engine.overlay_rows = 8;
  Store other(options);
  other.MustStart();
  for (int i = 0; i < 200; ++i) {
    const Lba lba = static_cast<Lba>(i * 37 % 90);
    for (Store* store : {&store_, &other}) {
      ASSERT_OK(i % 11 == 0 ? store->Unmap(1, lba) : store->Write(1, lba));
      if (i % 9 == 0) {
        ASSERT_OK(store->Settle());
      }
    }
    if (i == 100) {
      ASSERT_OK(other.Close());
      ASSERT_OK(other.Open());
    }
  }
  ASSERT_OK(store_.Settle());
  ASSERT_OK(other.Settle());
  auto a = store_->Digest(1);
  auto b = other->Digest(1);
  ASSERT_OK(a.status());
  ASSERT_OK(b.status());
  EXPECT_EQ(*a, *b);
  ASSERT_OK(other.Unmap(1, 1));
  ASSERT_OK(other.Settle());
  EXPECT_NE(*other->Digest(1), *a);
}

TEST_F(EngineTest, NewestVersionKnowsTheOverlayAndSaysWhenItDoesNot) {
  WriteAndApply(1);
  WriteAndApply(2);
  bool known = false;
  EXPECT_EQ(store_->NewestVersion(1, 1, 0, &known), MakeVersion(1, 0));
  EXPECT_TRUE(known);
  ASSERT_OK(store_.Checkpoint());
  (void)store_->NewestVersion(1, 1, 1, &known);
  EXPECT_FALSE(known) << "instance 2 is in the map only; nobody may claim to know since 1";
  ASSERT_OK(store_.Write(1, 1));
  ASSERT_OK(store_->Apply(1, 3, kFirstBallot));
  store_.model().Applied(1, 3);
  EXPECT_EQ(store_->NewestVersion(1, 1, 2, &known), MakeVersion(3, 0));
  EXPECT_TRUE(known);
}

// --- Groups -----------------------------------------------------------------------------------

TEST_F(EngineTest, ManyGroupsShareOneStreamAndNothingElse) {
  for (GroupId group = 2; group <= 40; ++group) ASSERT_OK(store_.CreateGroup(group, 1));
  for (int round = 0; round < 3; ++round) {
    for (GroupId group = 1; group <= 40; ++group) {
      ASSERT_OK(store_.Write(group, group % 7));
      ASSERT_OK(store_.SaveHardState(group, {static_cast<uint64_t>(round) + 1, group},
                                     std::to_string(group)));
      if (group % 3 == 0) {
        ASSERT_OK(store_.Flush());
      }
      if (group % 5 == 0) {
        ASSERT_OK(store_.ApplyAll());
      }
    }
    ASSERT_OK(store_.Flush());
    if (round == 1) {
      ASSERT_OK(store_.Checkpoint());
    }
    store_.PowerLoss();
    ASSERT_OK(store_.Open());
    ASSERT_OK(store_.ApplyAll());
    EXPECT_EQ(store_.VerifyAll(), "");
  }
}

TEST_F(EngineTest, ADroppedGroupLeavesNothingBehindAndItsIdIsGone) {
  ASSERT_OK(store_.CreateGroup(2, 2));
  for (Lba lba = 0; lba < 30; ++lba) ASSERT_OK(store_.Write(2, lba));
  ASSERT_OK(store_.Settle());
  ASSERT_OK(store_.Checkpoint());
  ASSERT_OK(store_.DropGroup(2));
  ASSERT_OK(store_.Settle());
  ASSERT_OK(store_.Checkpoint());
  ASSERT_OK(store_.Checkpoint());
  EXPECT_CODE(store_->Info(2).status(), Code::kNotFound);
  for (const SegmentStats& segment : store_->Stats().segments) EXPECT_EQ(segment.live_pages, 0u);
  EXPECT_CODE(store_.CreateGroup(2, 1), Code::kFailedPrecondition);
  ASSERT_OK(store_.Close());
  ASSERT_OK(store_.Open());
  EXPECT_CODE(store_->Info(2).status(), Code::kNotFound);
  EXPECT_CODE(store_.CreateGroup(2, 1), Code::kFailedPrecondition);
}

TEST_F(EngineTest, StateOfTheLayersAboveComesBackWithTheInstanceItBelongsTo) {
  store_->SetStateSource([&](GroupId group) { return LayerState(group, Info(group).applied); });
  for (Lba lba = 0; lba < 5; ++lba) WriteAndApply(lba);
  ASSERT_OK(store_.Checkpoint());
  for (Lba lba = 5; lba < 8; ++lba) WriteAndApply(lba);
  store_.PowerLoss();
  ASSERT_OK(store_.Open());
  const GroupInfo info = Info();
  EXPECT_EQ(info.state_at, 5u);
  EXPECT_EQ(info.state, LayerState(1, 5));
  // What came after it is in the log, for the layers above to apply again.
  EXPECT_EQ(store_->LogEntries(1, 6, 8).size(), 3u);
}

TEST_F(EngineTest, AFullOverlayPushesBackUntilACheckpointIsWritten) {
  Store::Options options;
  options.engine.overlay_rows = 10;
  Store store(options);
  store.MustStart();
  store.set_patient(false);
  Status status;
  Instance applied = 0;
  for (Lba lba = 0; lba < 100 && status.ok(); ++lba) {
    ASSERT_OK(store.Write(1, lba));
    ASSERT_OK(store.Flush());
    status = store->Apply(1, applied + 1, kFirstBallot);
    if (status.ok()) store.model().Applied(1, ++applied);
  }
  EXPECT_CODE(status, Code::kBusy);
  EXPECT_EQ(applied, 20u);
  ASSERT_OK(store.RunJobs());
  ASSERT_OK(store->Apply(1, applied + 1, kFirstBallot));
  store.model().Applied(1, applied + 1);
  EXPECT_EQ(store.VerifyAll(), "");
}

}  // namespace
}  // namespace hydra::test
