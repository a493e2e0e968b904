// SPDX-License-Identifier: Apache-2.0
//
// Bringing a replica up to date from a peer's blocks: what travels, and what it leads to. What is
// refused is in install_refusals_test.cc, crashes in tests/crash/install_crash_test.cc.
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/crc32c.h"
#include "tests/blockstore/install_fixture.h"

namespace hydra::test {
namespace {

constexpr Ballot kSecondBallot{2, 1};

TEST_F(InstallTest, AnImageMakesAnEmptyReplicaEqual) {
  AtSource({WriteOp(0, 20), WriteOp(300, 3)});
  AtSource({UnmapOp(5, 3), ZeroOp(10, 2)});
  AtSource({WriteOp(9000, 2), ZeroExtentsOp({1})});
  AtSource({WriteOp(301, 1), WriteOp(6, 1)});
  InstallDriver driver = Driver();
  ASSERT_OK(driver.Run());
  const GroupInfo info = Info();
  EXPECT_FALSE(info.installing);
  EXPECT_EQ(info.applied, 4u);
  EXPECT_EQ(info.stable, 4u);
  EXPECT_EQ(info.truncated, 4u);
  EXPECT_EQ(info.last, 4u);
  EXPECT_EQ(info.mixed_until, 0u);
  EXPECT_EQ(info.state, LayerState(1, 4));
  EXPECT_EQ(info.state_at, 4u);
  EXPECT_GE(info.horizon, LastVersionOf(4)) << "it does not know what was deleted before";
  EXPECT_GT(driver.counts().chunks, 2u);
  EXPECT_EQ(driver.counts().payload_pages, info.data_blocks);
  ExpectEqualReplicas();
  target_.PowerLoss();
  ASSERT_OK(target_.Open());
  ExpectEqualReplicas();
}

TEST_F(InstallTest, AnImageOfNothingEmptiesAReplica) {
  constexpr Lba kLast = kEndOfBlocks - 1;
  AtSource({WriteOp(0, 30), WriteOp(700, 5), WriteOp(100'000, 1), WriteOp(kLast, 1)});
  ASSERT_OK(Follow(&source_, &target_, 1, 1));
  ASSERT_OK(target_.Checkpoint());
  AtSource({UnmapOp(0, 30), ZeroExtentsOp({2}), UnmapOp(100'000, 1), UnmapOp(kLast, 1)});
  InstallDriver driver = Driver();
  ASSERT_OK(driver.Run());
  EXPECT_EQ(driver.counts().chunks, 1u);
  EXPECT_EQ(driver.counts().rows, 0u);
  EXPECT_EQ(Info().data_blocks, 0u);
  ExpectEqualReplicas();
}

TEST_F(InstallTest, ADeltaCarriesOnlyWhatChangedAndDeletionsToo) {
  AtSource({WriteOp(0, 100)});
  AtSource({WriteOp(512, 4)});
  ASSERT_OK(Follow(&source_, &target_, 1, 2));
  AtSource({WriteOp(3, 2), UnmapOp(50, 1)});
  AtSource({ZeroOp(60, 1), ZeroExtentsOp({2})});
  AtSource({WriteOp(513, 1), WriteOp(4, 1)});
  InstallDriver driver = Driver(Delta());
  ASSERT_OK(driver.Run());
  EXPECT_EQ(driver.counts().payload_pages, 3u);  // 3, 4, 513
  EXPECT_EQ(driver.counts().rows, 6u);           // and 50, 60, extent 2
  EXPECT_EQ(Info().applied, 5u);
  EXPECT_GE(Info().horizon, LastVersionOf(5)) << "blocks may have come and gone elsewhere";
  ExpectEqualReplicas();
}

TEST_F(InstallTest, AnInstalledReplicaCanServeOthersInTurn) {
  AtSource({WriteOp(0, 20)});
  ASSERT_OK(Follow(&source_, &target_, 1, 1));
  Store third({});
  third.MustStart();
  ASSERT_OK(Follow(&source_, &third, 1, 1));
  AtSource({WriteOp(3, 2), UnmapOp(7, 2), ZeroExtentsOp({4})});
  ASSERT_OK(Driver(Delta()).Run());
  ASSERT_OK(target_.Settle());
  EXPECT_CODE(InstallDriver(&target_, &third, 1, Delta()).Run(), Code::kOutOfRange);
  InstallDriver onwards(&target_, &third, 1, {});
  ASSERT_OK(onwards.Run());
  EXPECT_EQ(onwards.counts().payload_pages, 2u);
  EXPECT_EQ(Differences(&source_, &third, 1), "");
  EXPECT_EQ(third.Problems(), "");
}

TEST_F(InstallTest, PayloadIsLeftOutWhereTheReceiverHasTheVersion) {
  AtSource({WriteOp(0, 40)});
  ASSERT_OK(Follow(&source_, &target_, 1, 1));
  ASSERT_OK(target_.Checkpoint());
  AtSource({WriteOp(7, 2)});
  InstallDriver driver = Driver();
  ASSERT_OK(driver.Run());
  EXPECT_EQ(driver.counts().rows, 40u);
  EXPECT_EQ(driver.counts().same, 38u);
  EXPECT_EQ(driver.counts().payload_pages, 2u);
  ExpectEqualReplicas();
}

TEST_F(InstallTest, PayloadThatIsHereAlreadyIsNotWrittenAgain) {
  AtSource({WriteOp(0, 40)});
  ASSERT_OK(Follow(&source_, &target_, 1, 1));
  InstallDriver::Options all;
  all.ignore_base = true;
  InstallDriver driver = Driver(all);
  ASSERT_OK(driver.Run());
  EXPECT_EQ(driver.counts().payload_pages, 40u);
  EXPECT_EQ(target_->Stats().installed_bytes, 0u);
  ExpectEqualReplicas();
}

TEST_F(InstallTest, AReplicaThatLacksAVersionAsksForItsPayload) {
  AtSource({WriteOp(0, 4)});
  ASSERT_OK(target_.InstallBegin(1, InstallMode::kImage, 1));
  ASSERT_OK(target_.Flush());
  ImageRequest request;
  request.group = 1;
  request.base = LastVersionOf(1);
  const ImagePiece piece = *BuildImageChunk(source_.engine(), request);
  EXPECT_CODE(target_->InstallChunk(1, piece.chunk, piece.payload, 99), Code::kFailedPrecondition);
  EXPECT_FALSE(Info().install.dirty);
}

// The first source had deleted it since, so it was not sent; the second, which is behind that,
// takes it for granted.
TEST_F(InstallTest, ABlockThatAnEarlierSourceHadDeletedIsNotMissedByASecondInstall) {
  AtSource({WriteOp(0, 8)});
  Store third(Store::Options{});
  third.MustStart();
  ASSERT_OK(Follow(&source_, &third, 1, 1));
  ASSERT_OK(source_.Propose(1, {WriteOp(100, 1)}));
  ASSERT_OK(source_.Settle());
  ASSERT_OK(Follow(&source_, &third, 1, 2));
  ASSERT_OK(third.Checkpoint());
  ASSERT_OK(source_.Propose(1, {UnmapOp(3, 1)}));
  ASSERT_OK(source_.Settle());
  ASSERT_OK(Driver().Run());
  ASSERT_EQ(Info().applied, 1u);
  ASSERT_EQ(Info().mixed_until, 3u);
  InstallDriver second(&third, &target_, 1, {});
  ASSERT_OK(second.Run());
  EXPECT_EQ(second.counts().same, 8u);
  EXPECT_EQ(Info().applied, 2u);
  EXPECT_EQ(Info().mixed_until, 3u) << "it serves nobody yet";
  ASSERT_OK(Follow(&source_, &target_, 1, 3));
  EXPECT_EQ(Info().mixed_until, 0u);
  ExpectEqualReplicas();
  EXPECT_EQ(third.Problems(), "");
}

TEST_F(InstallTest, RowsNewerThanTheInstanceAreNotUndoneByReplay) {
  AtSource({WriteOp(0, 8), WriteOp(300, 2)});
  for (int i = 0; i < 4; ++i) {  // instances 2 to 5, not checkpointed: newer than `as_of`
    ASSERT_OK(source_.Propose(1, {WriteOp(2, 2)}));
    ASSERT_OK(source_.Settle());
  }
  ASSERT_OK(Driver(Newer()).Run());
  ASSERT_EQ(Info().applied, 1u);
  EXPECT_EQ(Info().mixed_until, 5u);
  const ReadResult before = *target_->Read(1, 2, 1);
  EXPECT_EQ(VersionInstance(before.blocks[0].version), 5u);
  for (Instance i = 2; i <= 5; ++i) {
    ASSERT_OK(Follow(&source_, &target_, 1, i));
    const ReadResult now = *target_->Read(1, 2, 1);
    EXPECT_EQ(now.blocks[0].version, before.blocks[0].version) << "after " << i;
    EXPECT_EQ(Info().mixed_until, i < 5 ? 5u : 0u);
    if (i == 3) {  // the same after a restart: the change index knows which rows are ahead
      ASSERT_OK(target_.Checkpoint());
      target_.PowerLoss();
      ASSERT_OK(target_.Open());
    }
  }
  ExpectEqualReplicas();
}

// An extent zeroed between the instance and a newer block in it: the block stays, the rest goes.
TEST_F(InstallTest, ZeroingAnExtentSparesTheBlocksThatAreNewer) {
  AtSource({WriteOp(256, 10)});
  ASSERT_OK(source_.ZeroExtents(1, {1}));
  ASSERT_OK(source_.Write(1, 258, 1));
  ASSERT_OK(source_.Settle());
  ASSERT_OK(Driver(Newer()).Run());
  ASSERT_EQ(Info().applied, 1u);
  ASSERT_OK(target_.Checkpoint());
  ASSERT_OK(Follow(&source_, &target_, 1, 2));
  EXPECT_EQ(VersionInstance(target_->Read(1, 258, 1)->blocks[0].version), 3u);
  EXPECT_EQ(target_->Read(1, 257, 1)->blocks[0].kind, BlockKind::kUnmapped);
  ASSERT_OK(Follow(&source_, &target_, 1, 3));
  EXPECT_EQ(Differences(&source_, &target_, 1), "");
}

// One chunk may hold an extent's zeroing and blocks of it, older and newer, in any order of
// versions.
TEST_F(InstallTest, WithinAChunkTheNewerRowWins) {
  ASSERT_OK(target_.InstallBegin(1, InstallMode::kDelta, 9));
  ASSERT_OK(target_.Flush());
  const Buffer data = Buffer::Allocate(2 * kPageSize);
  const uint32_t crc = Crc32c(data.data(), kPageSize);
  ImageChunk chunk;
  chunk.mode = InstallMode::kDelta;
  chunk.as_of = chunk.newest = 9;
  chunk.rows = {{1, true, BlockKind::kZero, MakeVersion(5, 0), 0, false},
                {260, false, BlockKind::kData, MakeVersion(4, 0), crc, false},
                {261, false, BlockKind::kData, MakeVersion(6, 0), crc, false}};
  ASSERT_OK(target_.InstallChunk(1, chunk, {BufferSlice{data, 0, data.size()}}));
  ASSERT_OK(target_.Flush());
  EXPECT_EQ(target_->Read(1, 260, 1)->blocks[0].kind, BlockKind::kUnmapped);
  EXPECT_EQ(target_->Read(1, 261, 1)->blocks[0].version, MakeVersion(6, 0));
  EXPECT_EQ(Info().data_blocks, 1u);
}

TEST_F(InstallTest, BlocksThatChangeWhileTheyTravelEndUpRight) {
  for (const InstallMode mode : {InstallMode::kImage, InstallMode::kDelta}) {
    SCOPED_TRACE(mode == InstallMode::kImage ? "image" : "delta");
    Store target({});
    target.MustStart();
    for (Lba lba = 0; lba < 60; lba += 10) AtSource({WriteOp(lba, 10)});
    InstallDriver::Options options;
    options.mode = mode;
    InstallDriver driver(&source_, &target, 1, options);
    uint64_t round = 0;
    while (!target->Info(1)->install.complete) {
      ASSERT_OK(driver.QueueNext());
      ASSERT_OK(target.Flush());
      if (++round > 6) continue;
      ASSERT_OK(source_.Propose(1, {WriteOp(round * 7, 3), UnmapOp(round * 9, 2)}));
      if (round == 2) {
        ASSERT_OK(source_.ZeroExtents(1, {0}));
      }
      ASSERT_OK(source_.Settle());
      if (round % 2 == 0) {
        ASSERT_OK(source_.Checkpoint());
      }
    }
    ASSERT_OK(driver.RunAndCatchUp());
    EXPECT_EQ(Differences(&source_, &target, 1), "");
    EXPECT_EQ(target.VerifySettled(), "");
    EXPECT_EQ(target.Problems(), "");
  }
}

// A checkpoint that is being written has rows in the map that are not part of the last one.
TEST_F(InstallTest, ADeltaDoesNotGoPastTheCheckpointItComesFrom) {
  AtSource({WriteOp(0, 10)});
  ASSERT_OK(source_.Checkpoint());
  ASSERT_OK(source_.Propose(1, {WriteOp(0, 10)}));
  ASSERT_OK(source_.Settle());
  source_->RequestCheckpoint();
  std::unique_ptr<Job> checkpoint = source_->NextJob();
  ASSERT_NE(checkpoint, nullptr);
  checkpoint->Run();
  InstallDriver driver = Driver(Delta());
  for (int step = 0; step < 2; ++step) {  // begin, and the first chunk
    ASSERT_OK(driver.QueueNext());
    ASSERT_OK(target_.Flush());
  }
  source_->FinishJob(std::move(checkpoint));
  ASSERT_OK(source_.Settle());
  ASSERT_OK(driver.RunAndCatchUp());
  ExpectEqualReplicas();
}

// --- While it is under way -------------------------------------------------------------------

TEST_F(InstallTest, NothingIsAppliedButTheReplicaVotes) {
  AtSource({WriteOp(0, 4)});
  AtSource({WriteOp(2, 4)});
  const GroupModel& group = source_.model().group(1);
  ASSERT_OK(target_.Accept(1, 1, kFirstBallot, group.chosen[0]));
  InstallDriver driver = Driver();
  ASSERT_OK(driver.Begin());
  EXPECT_CODE(target_->Apply(1, 1, kFirstBallot), Code::kFailedPrecondition);
  ASSERT_OK(target_.Flush());
  EXPECT_TRUE(Info().installing);
  EXPECT_CODE(target_->Apply(1, 1, kFirstBallot), Code::kFailedPrecondition);
  EXPECT_CODE(target_->InstallFinish(1, 2, "", 99), Code::kFailedPrecondition);
  ASSERT_OK(driver.QueueChunk());
  EXPECT_CODE(target_->InstallAbort(1, 99), Code::kBusy);
  ASSERT_OK(source_.Write(1, 20, 2));
  ASSERT_OK(source_.Settle());
  ASSERT_OK(target_.Accept(1, 3, kSecondBallot, group.chosen[2]));
  ASSERT_OK(target_.SaveHardState(1, kSecondBallot, "promise"));
  ASSERT_OK(target_.Flush());
  EXPECT_EQ(Info().applied, 0u);
  EXPECT_EQ(Info().last, 3u);
  EXPECT_EQ(Info().promised, kSecondBallot);
  ASSERT_OK(driver.Run());
  EXPECT_EQ(Info().applied, 2u);
  EXPECT_EQ(Info().truncated, 2u);
  EXPECT_CODE(target_->ReadLogEntry(1, 1).status(), Code::kNotFound);
  ASSERT_OK(target_->ReadLogEntry(1, 3).status());
  ASSERT_OK(target_->Apply(1, 3, kSecondBallot));
  target_.model().Applied(1, 3);
  ExpectEqualReplicas();
}

TEST_F(InstallTest, EntriesFarAheadAreAcceptedBehindTheFloorAndNowhereElse) {
  AtSource({WriteOp(0, 4)});
  ASSERT_OK(target_.InstallBegin(1, InstallMode::kImage, 10'000'000));
  ASSERT_OK(target_.Flush());
  const Proposal* value = target_.model().NewProposal(target_.model().group(1), {WriteOp(7, 1)});
  ASSERT_OK(target_.Accept(1, 3, kFirstBallot, value));
  ASSERT_OK(target_.Accept(1, 10'000'001, kFirstBallot, value));
  ASSERT_OK(target_.Accept(1, 10'000'000 + kMaxOpenInstances, kFirstBallot, value));
  for (const Instance refused : {Instance{9'000'000}, 10'000'001 + kMaxOpenInstances}) {
    EXPECT_CODE(target_->Accept(1, refused, kFirstBallot, value->entry, value->MakePayload(), 99),
                Code::kFailedPrecondition);
  }
  ASSERT_OK(target_.Flush());
  for (const bool checkpoint : {false, true}) {
    if (checkpoint) {
      ASSERT_OK(target_.Checkpoint());
    }
    target_.PowerLoss();
    ASSERT_OK(target_.Open());
    EXPECT_EQ(Info().last, 10'000'000 + kMaxOpenInstances);
    EXPECT_FALSE(Info().suspect);
    EXPECT_EQ(target_->LogEntries(1, 1, kMaxInstance).size(), 3u);
  }
}

TEST_F(InstallTest, NewestVersionIsNotKnownForWhatWasInstalled) {
  AtSource({WriteOp(0, 4)});
  ASSERT_OK(source_.Write(1, 1, 1));
  ASSERT_OK(source_.Settle());
  InstallDriver driver = Driver();
  ASSERT_OK(driver.Begin());
  ASSERT_OK(target_.Flush());
  bool known = true;
  (void)target_->NewestVersion(1, 0, 5, &known);
  EXPECT_FALSE(known) << "while it is being installed";
  ASSERT_OK(driver.QueueChunk());
  ASSERT_OK(target_.Flush());
  ASSERT_OK(target_.Checkpoint());  // the rows leave the overlay at applied = 0
  ASSERT_OK(driver.Run());
  for (Instance seen = 0; seen <= 3; ++seen) {
    (void)target_->NewestVersion(1, 1, seen, &known);
    EXPECT_EQ(known, seen >= 2) << seen;
  }
}

TEST_F(InstallTest, TheGivenStateStandsUntilTheLayersAboveHaveTakenOver) {
  AtSource({WriteOp(0, 4)});
  InstallDriver driver = Driver();
  while (!Info().install.complete) {
    ASSERT_OK(driver.QueueNext());
    ASSERT_OK(target_.Flush());
  }
  target_.model().Learned(1, source_.model().group(1));
  const std::string state(300'000, 's');  // larger than a batch's header
  const uint64_t token = target_.NextToken();
  ASSERT_OK(target_->InstallFinish(1, 1, state, token));
  target_.model().InstallQueued(1, false, 1, token);
  ASSERT_OK(target_.Flush());
  EXPECT_EQ(Info().state, state);
  ASSERT_OK(target_->Checkpoint());
  EXPECT_EQ(Info().state, state) << "a checkpoint asked the layers above too early";
  target_.PowerLoss();
  ASSERT_OK(target_.OpenUnchecked());
  EXPECT_EQ(Info().state, state);
  EXPECT_EQ(Info().state_at, 1u);
}

TEST_F(InstallTest, OtherGroupsWriteAndSpaceIsReclaimedMeanwhile) {
  Store::Options small;
  small.segment_bytes = 256 * 1024;
  small.engine.capacity_bytes = 14 * small.segment_bytes;
  Store target(small);
  target.MustStart();
  ASSERT_OK(target.CreateGroup(2, 2));
  for (Lba lba = 0; lba < 120; lba += 8) AtSource({WriteOp(lba, 8)});
  InstallDriver::Options options;
  options.max_pages = 4;
  InstallDriver driver(&source_, &target, 1, options);
  ASSERT_OK(driver.Begin());
  ASSERT_OK(target.Flush());
  int round = 0;
  while (!target->Info(1)->install.complete) {
    ASSERT_OK(driver.QueueChunk());
    for (int i = 0; i < 3; ++i) {
      ASSERT_OK(target.Write(2, (round * 3 + i) % 8 * 4, 4));
    }
    ASSERT_OK(target.Flush());
    while (target.Apply(2).ok()) {
    }
    ASSERT_OK(target.RunJobs());
    if (++round % 8 == 0) {
      ASSERT_OK(target.Checkpoint());
    }
  }
  EXPECT_GT(target->Stats().segments_freed, 0u);
  EXPECT_GT(target->Stats().relocated_bytes, 0u);
  ASSERT_OK(driver.RunAndCatchUp());
  EXPECT_EQ(Differences(&source_, &target, 1), "");
  EXPECT_EQ(target.VerifySettled(), "");
  EXPECT_EQ(target.Problems(), "");
}

// --- Giving up and starting over -------------------------------------------------------------

TEST_F(InstallTest, AbortBeforeTheFirstChunkGoesBackToNormal) {
  AtSource({WriteOp(0, 4)});
  ASSERT_OK(Driver().Begin());
  ASSERT_OK(target_.Flush());
  ASSERT_OK(target_.InstallAbort(1));
  ASSERT_OK(target_.Flush());
  EXPECT_FALSE(Info().installing);
  EXPECT_CODE(target_->InstallAbort(1, 99), Code::kFailedPrecondition);
  ASSERT_OK(Follow(&source_, &target_, 1, 1));
  ExpectEqualReplicas();
}

TEST_F(InstallTest, AbortAfterAChunkStaysInstallingUntilASecondInstallIsFinished) {
  AtSource({WriteOp(0, 30)});
  InstallDriver driver = Driver();
  ASSERT_OK(driver.Begin());
  ASSERT_OK(target_.Flush());
  ASSERT_OK(driver.QueueChunk());
  ASSERT_OK(target_.Flush());
  ASSERT_OK(target_.InstallAbort(1));
  ASSERT_OK(target_.Flush());
  target_.PowerLoss();
  ASSERT_OK(target_.Open());
  EXPECT_TRUE(Info().installing);
  EXPECT_TRUE(Info().install.restart);
  EXPECT_EQ(Info().install.cursor, "");
  EXPECT_CODE(driver.QueueChunk(), Code::kFailedPrecondition);
  EXPECT_CODE(target_->Apply(1, 1, kFirstBallot), Code::kFailedPrecondition);
  // Deleted at the source meanwhile; the second install is of the other kind.
  AtSource({UnmapOp(2, 3)});
  ASSERT_OK(Driver(Delta()).Run());
  ExpectEqualReplicas();
}

TEST_F(InstallTest, WhatAnEarlierAttemptBroughtNewerThanTheImageStays) {
  AtSource({WriteOp(0, 4)});
  std::unique_ptr<Store> old_source = source_.Fork(7);
  ASSERT_OK(old_source->Open());
  AtSource({WriteOp(50, 1)});
  InstallDriver first = Driver();  // from a source that has applied 2 ...
  ASSERT_OK(target_.InstallBegin(1, InstallMode::kImage, 1));
  ASSERT_OK(target_.Flush());
  ASSERT_OK(first.QueueChunk());
  ASSERT_OK(target_.Flush());
  // ... then an image from one that has applied 1, and does not list block 50.
  InstallDriver second(old_source.get(), &target_, 1, {});
  ASSERT_OK(second.Begin());
  ASSERT_OK(target_.Flush());
  ASSERT_OK(second.Run());
  EXPECT_EQ(Info().applied, 1u);
  EXPECT_EQ(Info().mixed_until, 2u);
  EXPECT_EQ(VersionInstance(target_->Read(1, 50, 1)->blocks[0].version), 2u);
  ASSERT_OK(Follow(&source_, &target_, 1, 2));
  ExpectEqualReplicas();
}

TEST_F(InstallTest, ARestartGoesOnBehindTheCursor) {
  AtSource({WriteOp(0, 60)});
  uint64_t chunks = 0;
  for (int life = 0; life < 20 && Info().applied == 0; ++life) {
    InstallDriver driver = Driver();
    for (int i = 0; i < 2 && !Info().install.complete; ++i) {
      ASSERT_OK(driver.QueueNext());
      ASSERT_OK(target_.Flush());
    }
    chunks += driver.counts().chunks;
    if (Info().install.complete) {
      ASSERT_OK(driver.Run());
    }
    if (life % 3 == 1) {
      ASSERT_OK(target_.Checkpoint());
    }
    target_.PowerLoss();
    ASSERT_OK(target_.Open());
  }
  EXPECT_EQ(chunks, 8u) << "chunks were sent twice, or left out";
  ExpectEqualReplicas();
}

// --- Rot -------------------------------------------------------------------------------------

// The batch that holds the target's last written record, before any seal.
FoundBatch LastBatch(Store* store) {
  FoundBatch last;
  for (const FoundBatch& batch : store->Batches()) {
    if (!batch.header.seal) last = batch;
  }
  return last;
}

TEST_F(InstallTest, AGapInTheStreamVoidsTheAttempt) {
  AtSource({WriteOp(0, 60)});
  InstallDriver driver = Driver();
  for (int i = 0; i < 3; ++i) {
    ASSERT_OK(driver.QueueNext());
    ASSERT_OK(target_.Flush());
  }
  const FoundBatch lost = LastBatch(&target_);
  while (Info().applied == 0) {
    ASSERT_OK(driver.QueueNext());
    ASSERT_OK(target_.Flush());
  }
  target_.Crash();
  target_.disk().FlipBit(lost.path, lost.offset() + 70, 2);
  ASSERT_OK(target_.OpenUnchecked());
  EXPECT_TRUE(Info().suspect);
  EXPECT_TRUE(Info().installing) << "a finish was believed although a chunk is lost";
  EXPECT_TRUE(Info().install.restart);
  EXPECT_EQ(Info().applied, 0u);
}

TEST_F(InstallTest, ARottenStateIsNeverTakenForAFinish) {
  AtSource({WriteOp(0, 6)});
  ASSERT_OK(Driver().Run());
  const FoundBatch finish = LastBatch(&target_);
  ASSERT_EQ(finish.header.payload_pages, 1u);
  target_.clock().Advance(kSecond);
  ASSERT_OK(target_.Flush());  // sealed: what is damaged from now on is rot, not a tear
  target_.Crash();
  target_.disk().FlipBit(finish.path, finish.payload_offset() + 5, 1);
  ASSERT_OK(target_.OpenUnchecked());
  EXPECT_TRUE(Info().installing);
  EXPECT_TRUE(Info().install.restart);
  EXPECT_EQ(Info().applied, 0u);
}

// An entry that was accepted here and never chosen is replaced by what the install brings. If its
// finish is lost, a later record's word of what is applied must not bring that entry back.
TEST_F(InstallTest, ARottenFinishLeavesNoEntryThatWasNotChosen) {
  AtSource({WriteOp(0, 6)});
  const GroupModel& group = target_.model().group(1);
  ASSERT_OK(
      target_.Accept(1, 1, kFirstBallot, target_.model().NewProposal(group, {WriteOp(0, 1)})));
  ASSERT_OK(target_.Flush());
  ASSERT_OK(Driver().Run());
  const FoundBatch finish = LastBatch(&target_);
  ASSERT_EQ(finish.header.payload_pages, 1u);
  ASSERT_OK(
      target_.Accept(1, 2, kFirstBallot, target_.model().NewProposal(group, {WriteOp(9, 1)})));
  ASSERT_OK(target_.Flush());
  target_.Crash();
  target_.disk().FlipBit(finish.path, finish.payload_offset() + 5, 1);
  ASSERT_OK(target_.OpenUnchecked());
  EXPECT_TRUE(Info().install.restart);
  EXPECT_EQ(Info().applied, 0u) << "applied a value that was not chosen";
}

TEST_F(InstallTest, ARecordIsReadThoughItsPayloadIsRotten) {
  AtSource({WriteOp(3, 2), UnmapOp(9, 1)});
  const FoundBatch batch = [&] {
    for (const FoundBatch& found : source_.Batches()) {
      if (found.header.payload_pages == 2) return found;
    }
    return FoundBatch();
  }();
  source_.disk().FlipBit(batch.path, batch.payload_offset() + 100, 0);
  EXPECT_CODE(source_->ReadLogEntry(1, 1).status(), Code::kCorruption);
  const Result<AcceptRecord> record = source_->ReadLogRecord(1, 1);
  ASSERT_OK(record.status());
  EXPECT_EQ(record->ballot, kFirstBallot);
  EXPECT_EQ(record->entry, source_.model().group(1).chosen[0]->entry);
  EXPECT_CODE(source_->ReadLogRecord(1, 2).status(), Code::kNotFound);
  EXPECT_CODE(source_->ReadLogRecord(7, 1).status(), Code::kNotFound);
  source_.disk().FlipBit(batch.path, batch.offset() + 100, 0);
  EXPECT_CODE(source_->ReadLogRecord(1, 1).status(), Code::kCorruption);
}

}  // namespace
}  // namespace hydra::test
