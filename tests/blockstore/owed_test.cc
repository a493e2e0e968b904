// SPDX-License-Identifier: Apache-2.0
//
// Owed blocks: an install of bare rows says what every block has to be, and the payload comes
// later. Crashes at every step are in tests/crash/install_crash_test.cc.
#include <algorithm>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/store_reader_dump.h"
#include "daemon/store_reader_verify.h"
#include "tests/blockstore/install_fixture.h"

namespace hydra::test {
namespace {

using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr uint64_t kOwedToken = 1ull << 40;

InstallDriver::Options Bare(InstallMode mode = InstallMode::kDelta) {
  InstallDriver::Options options;
  options.mode = mode;
  options.bare = true;
  return options;
}

class OwedTest : public InstallTest {
 protected:
  // Blocks 0 to 9 are here in version 1; blocks 3 to 6 are another at the source, and 8 is gone.
  void SetUp() override {
    AtSource({WriteOp(0, 10)});
    ASSERT_OK(Follow(&source_, &target_, 1, 1));
    AtSource({WriteOp(3, 4), UnmapOp(8, 1)});
  }
  void InstallBare() { ASSERT_OK(Driver(Bare()).Run()); }
  void Deliver() { ASSERT_OK(Driver(Bare()).DeliverAll()); }

  std::vector<BlockName> Owed() { return *target_->OwedBlocks(1, 0, 1000); }
  std::vector<Lba> OwedLbas() {
    std::vector<Lba> lbas;
    for (const BlockName& block : Owed()) lbas.push_back(block.lba);
    return lbas;
  }
  // The source's bytes of these blocks, as they are now.
  Payload AtSourceNow(const std::vector<BlockName>& blocks) {
    Payload payload;
    for (const BlockName& block : blocks) {
      const ReadResult read = *source_->Read(1, block.lba, 1);
      payload.push_back({read.data, 0, read.data.size()});
    }
    return payload;
  }
  // More is chosen, and this replica is in step with it.
  void ApplyHere(std::vector<Operation> operations) {
    AtSource(std::move(operations));
    ASSERT_OK(Follow(&source_, &target_, 1, source_->Info(1)->applied));
  }
  // The entry that the source has at an instance, accepted here and not applied.
  void AcceptHere(Instance instance) {
    const Proposal* value = source_.model().group(1).chosen[instance - 1];
    ASSERT_OK(target_.Accept(1, instance, kFirstBallot, value));
    ASSERT_OK(target_.Flush());
  }
  void Reopen() {
    target_.PowerLoss();
    ASSERT_OK(target_.Open());
  }
  // Moves everything to other segments.
  void VacuumAll() {
    const auto purge = target_->Purge({});
    ASSERT_OK(purge.status());
    ASSERT_OK(target_.RunJobs());
    ASSERT_TRUE(target_->PurgeProgress(*purge)->done);
  }
};

// --- What an install of bare rows leaves -----------------------------------------------------

TEST_F(OwedTest, ABareDeltaMakesItsBlocksKnownAtOnceAndOwed) {
  InstallDriver driver = Driver(Bare());
  ASSERT_OK(driver.Run());
  EXPECT_EQ(driver.counts().payload_pages, 0u);
  EXPECT_EQ(Info().applied, 2u);
  EXPECT_FALSE(Info().installing);
  EXPECT_EQ(Info().data_blocks, 9u);
  EXPECT_EQ(Info().owed_blocks, 4u);
  EXPECT_EQ(target_->OwedCount(1), 4u);
  EXPECT_EQ(target_->Stats().owed_blocks, 4u);
  EXPECT_TRUE(target_->MayOwe(1));
  EXPECT_EQ(target_->Stats().installed_bytes, 0u);
  const ReadResult there = *source_->Read(1, 3, 4);
  const std::vector<BlockName> owed = Owed();
  ASSERT_EQ(owed.size(), 4u);
  for (size_t i = 0; i < owed.size(); ++i) {
    EXPECT_EQ(owed[i], (BlockName{3 + i, there.blocks[i].version, there.blocks[i].crc}));
  }
  EXPECT_THAT(*target_->OwedBlocks(1, 5, 1), ElementsAre(owed[2]));
  EXPECT_THAT(*target_->OwedBlocks(1, 7, 1000), IsEmpty());
  ExpectEqualReplicas();
}

TEST_F(OwedTest, ABareImageOwesWhatIsNewAndKeepsWhatIsHere) {
  InstallDriver driver = Driver(Bare(InstallMode::kImage));
  ASSERT_OK(driver.Run());
  EXPECT_EQ(driver.counts().payload_pages, 0u);
  EXPECT_EQ(driver.counts().same, 5u);
  EXPECT_THAT(OwedLbas(), ElementsAre(3, 4, 5, 6));
  ExpectEqualReplicas();
}

TEST_F(OwedTest, AReadNamesExactlyTheBlocksThatAreOwed) {
  InstallBare();
  auto job = target_->PlanRead(1, 0, 10).value();
  job->Run();
  DamagedRead damaged;
  EXPECT_CODE(target_->FinishRead(std::move(job), &damaged).status(), Code::kCorruption);
  const std::vector<BlockName> owed = Owed();
  ASSERT_EQ(damaged.blocks.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(damaged.blocks[i].owed());
    EXPECT_EQ(damaged.blocks[i].lba, owed[i].lba);
    EXPECT_EQ(damaged.blocks[i].version, owed[i].version);
    EXPECT_EQ(damaged.blocks[i].crc, owed[i].crc);
  }
  EXPECT_EQ(StoreModel::CompareRead(target_.model().group(1), 0, damaged.rest, {Lba{3}, 4, 5, 6}),
            "");
  EXPECT_CODE(target_->Read(1, 3, 1).status(), Code::kCorruption);
  EXPECT_EQ(target_->ReadMap(1, 3, 1)->front(), BlockKind::kData);
  EXPECT_CODE(target_->Locate(1, 3).status(), Code::kNotFound);
  EXPECT_EQ(target_->Stats().rotten_blocks, 0u) << "it never was here";
  EXPECT_THAT(target_->TakeDamage(), IsEmpty());
}

TEST_F(OwedTest, OfManyReadsEachHasWhatIsHere) {
  InstallBare();
  auto job = target_->PlanReads(1, {{0, 3}, {2, 3}, {5, 1}, {9, 1}}).value();
  job->Run();
  const std::vector<DamagedRead> reads = target_->FinishPartialReads(std::move(job));
  ASSERT_EQ(reads.size(), 4u);
  const std::vector<size_t> damaged = {0, 2, 1, 0};
  const std::vector<size_t> blocks = {3, 3, 1, 1};
  for (size_t i = 0; i < reads.size(); ++i) {
    EXPECT_EQ(reads[i].blocks.size(), damaged[i]) << i;
    EXPECT_EQ(reads[i].rest.blocks.size(), blocks[i]) << i;
  }
  EXPECT_EQ(StoreModel::CompareRead(target_.model().group(1), 2, reads[1].rest, {Lba{3}, 4}), "");
  EXPECT_EQ(target_->Stats().rotten_blocks, 0u);
}

TEST_F(OwedTest, NothingIsReadAroundWhatIsNotHere) {
  InstallBare();
  for (int i = 0; i < 4; ++i) {
    auto job = target_->PlanRead(1, 3, 4).value();
    EXPECT_FALSE(job->TryRun());
    job->Run();
    EXPECT_CODE(target_->FinishRead(std::move(job)).status(), Code::kCorruption);
  }
  EXPECT_EQ(target_->Stats().around_bytes, 0u);
}

TEST_F(OwedTest, OwedBlocksAreCountedAfterARestart) {
  InstallBare();
  Reopen();
  EXPECT_EQ(target_->OwedCount(1), 4u) << "replayed";
  ASSERT_OK(target_.Checkpoint());
  Reopen();
  EXPECT_TRUE(target_->MayOwe(1)) << "nobody knows yet";
  ASSERT_OK(target_.RunJobs());
  EXPECT_EQ(target_->OwedCount(1), 4u);
  EXPECT_THAT(OwedLbas(), ElementsAre(3, 4, 5, 6));
  Deliver();
  Reopen();
  ASSERT_OK(target_.RunJobs());
  EXPECT_FALSE(target_->MayOwe(1));
  EXPECT_EQ(target_.VerifySettled(), "");
}

TEST_F(OwedTest, OwedBlocksSurviveVacuumCheckpointScrubAndPowerLoss) {
  InstallBare();
  for (int round = 0; round < 3; ++round) {
    VacuumAll();
    ASSERT_OK(target_.Checkpoint());
    std::vector<Damage> found;
    for (bool done = false; !done;) done = *target_->Scrub(1 << 20, &found);
    EXPECT_THAT(found, IsEmpty());
    EXPECT_THAT(OwedLbas(), ElementsAre(3, 4, 5, 6));
    ExpectEqualReplicas();
    Reopen();
    ASSERT_OK(target_.RunJobs());
  }
  EXPECT_GT(target_->Stats().segments.size(), 0u);
  Deliver();
  EXPECT_EQ(target_->OwedCount(1), 0u);
  ExpectEqualReplicas();
}

TEST_F(OwedTest, WhatIsWrittenDeletedOrZeroedIsOwedNoMore) {
  InstallBare();
  ApplyHere({WriteOp(3, 1)});
  EXPECT_THAT(OwedLbas(), ElementsAre(4, 5, 6));
  ApplyHere({UnmapOp(4, 1)});
  ApplyHere({ZeroOp(5, 1)});
  EXPECT_THAT(OwedLbas(), ElementsAre(6));
  EXPECT_EQ(target_.VerifySettled(), "");
  ApplyHere({ZeroExtentsOp({0})});
  EXPECT_EQ(target_->OwedCount(1), 0u);
  EXPECT_EQ(Info().data_blocks, 0u);
  ExpectEqualReplicas();
}

TEST_F(OwedTest, AnInstallMovesThemOnLikeAnyOthers) {
  InstallBare();
  AtSource({WriteOp(3, 1), UnmapOp(4, 1), WriteOp(20, 1)});
  ASSERT_OK(Driver(Bare(InstallMode::kImage)).Run());
  EXPECT_THAT(OwedLbas(), ElementsAre(3, 5, 6, 20));
  AtSource({ZeroExtentsOp({0}), WriteOp(3, 1)});
  ASSERT_OK(Driver(Bare(InstallMode::kImage)).Run());
  EXPECT_THAT(OwedLbas(), ElementsAre(3));
  ExpectEqualReplicas();
}

TEST_F(OwedTest, ADroppedGroupOwesNothing) {
  InstallBare();
  ASSERT_OK(target_.DropGroup(1));
  ASSERT_OK(target_.Flush());
  EXPECT_EQ(target_->OwedCount(1), 0u);
  EXPECT_EQ(target_->Stats().owed_blocks, 0u);
  EXPECT_EQ(target_.VerifySettled(), "");
}

TEST_F(OwedTest, AnAbortedInstallGoesOnOwingUntilAnotherIsFinished) {
  AtSource({WriteOp(40, 20)});
  InstallDriver driver(&source_, &target_, 1, [] {
    InstallDriver::Options options = Bare();
    options.max_rows = 5;
    return options;
  }());
  ASSERT_OK(driver.QueueNext());
  ASSERT_OK(target_.Flush());
  ASSERT_OK(driver.QueueNext());
  ASSERT_OK(target_.Flush());
  EXPECT_THAT(OwedLbas(), ElementsAre(3, 4, 5, 6));
  ASSERT_OK(target_.InstallAbort(1));
  ASSERT_OK(target_.Flush());
  EXPECT_EQ(target_->OwedCount(1), 4u);
  Deliver();  // as good now as later
  EXPECT_EQ(target_->OwedCount(1), 0u);
  ASSERT_OK(Driver(Bare(InstallMode::kImage)).Run());
  EXPECT_EQ(target_->OwedCount(1), 20u) << "what was delivered stays";
  ExpectEqualReplicas();
}

// --- Payload ---------------------------------------------------------------------------------

TEST_F(OwedTest, DeliveredBlocksAreThereForGood) {
  for (const bool checkpoint : {false, true}) {
    SCOPED_TRACE(checkpoint);
    InstallBare();
    const std::vector<BlockName> owed = Owed();
    ASSERT_EQ(owed.size(), 4u);
    ASSERT_OK(target_.Deliver(1, owed, AtSourceNow(owed)));
    EXPECT_EQ(target_->OwedCount(1), 4u) << "it is not durable yet";
    ASSERT_OK(target_.Flush());
    EXPECT_EQ(target_->OwedCount(1), 0u);
    EXPECT_EQ(target_->Stats().delivered_blocks, 4u);
    EXPECT_EQ(target_->Stats().repaired_blocks, 0u);
    EXPECT_OK(target_->Read(1, 0, 10).status());
    if (checkpoint) {
      ASSERT_OK(target_.Checkpoint());
    }
    Reopen();
    EXPECT_OK(target_->Read(1, 0, 10).status());
    ASSERT_OK(target_.RunJobs());
    EXPECT_EQ(target_->OwedCount(1), 0u);
    ExpectEqualReplicas();
    AtSource({WriteOp(3, 4)});
  }
}

TEST_F(OwedTest, ARepairDeliversToo) {
  InstallBare();
  auto job = target_->PlanRead(1, 5, 1).value();
  job->Run();
  DamagedRead damaged;
  EXPECT_CODE(target_->FinishRead(std::move(job), &damaged).status(), Code::kCorruption);
  const ReadResult good = *source_->Read(1, 5, 1);
  ASSERT_OK(target_->Repair(damaged.blocks.at(0), {{good.data, 0, good.data.size()}}, kOwedToken));
  std::vector<Completion> completions;
  ASSERT_OK(target_->Drain(&completions));
  EXPECT_THAT(OwedLbas(), ElementsAre(3, 4, 6));
  EXPECT_EQ(target_->Stats().delivered_blocks, 1u);
  ExpectEqualReplicas();
}

TEST_F(OwedTest, DeliverRefusesWhatIsNotTheBlock) {
  InstallBare();
  const std::vector<BlockName> owed = Owed();
  const Payload good = AtSourceNow(owed);
  const auto refused = [&](std::vector<BlockName> blocks, const Payload& payload, Code code) {
    EXPECT_CODE(target_->Deliver(1, blocks, payload, kOwedToken), code);
    EXPECT_EQ(target_->Stats().queued_bytes, 0u);
  };
  Payload swapped = good;
  std::swap(swapped[0], swapped[1]);
  refused(owed, swapped, Code::kInvalidArgument);
  Payload shorter = good;
  shorter.pop_back();
  refused(owed, shorter, Code::kInvalidArgument);
  Payload longer = good;
  longer.push_back(good[0]);
  refused(owed, longer, Code::kInvalidArgument);
  refused({}, {}, Code::kFailedPrecondition);
  BlockName other = owed[0];
  other.version = MakeVersion(7, 0);
  refused({other}, {good[0]}, Code::kFailedPrecondition);
  other = owed[0];
  other.lba = 9;
  refused({other}, {good[0]}, Code::kFailedPrecondition);
  EXPECT_CODE(target_->Deliver(99, owed, good, kOwedToken), Code::kNotFound);
  EXPECT_EQ(target_->OwedCount(1), 4u);
}

TEST_F(OwedTest, DeliverLeavesOutWhatIsOwedNoMore) {
  InstallBare();
  const std::vector<BlockName> owed = Owed();
  const Payload payload = AtSourceNow(owed);
  ApplyHere({WriteOp(4, 1), UnmapOp(5, 1)});
  ASSERT_OK(target_.Deliver(1, owed, payload));
  ASSERT_OK(target_.Flush());
  EXPECT_EQ(target_->Stats().delivered_blocks, 2u);
  EXPECT_EQ(target_->OwedCount(1), 0u);
  ExpectEqualReplicas();
  EXPECT_CODE(target_->Deliver(1, owed, payload, kOwedToken), Code::kFailedPrecondition);
}

TEST_F(OwedTest, AWriteThatOvertakesADeliveryStays) {
  InstallBare();
  const std::vector<BlockName> owed = Owed();
  const Payload payload = AtSourceNow(owed);
  AtSource({WriteOp(4, 1), UnmapOp(5, 1)});
  target_.model().Learned(1, source_.model().group(1));
  ASSERT_OK(target_.Deliver(1, owed, payload));
  ASSERT_OK(target_.Apply(1));  // accepts it first
  ASSERT_OK(target_.Flush());
  EXPECT_EQ(target_->OwedCount(1), 0u);
  ExpectEqualReplicas();
  Reopen();
  ExpectEqualReplicas();
}

TEST_F(OwedTest, TheSameDeliveryTwiceIsAsGoodAsOnce) {
  InstallBare();
  const std::vector<BlockName> owed = Owed();
  ASSERT_OK(target_.Deliver(1, owed, AtSourceNow(owed)));
  ASSERT_OK(target_.Deliver(1, owed, AtSourceNow(owed)));
  ASSERT_OK(target_.Flush());
  EXPECT_EQ(target_->OwedCount(1), 0u);
  ExpectEqualReplicas();
  Reopen();
  ExpectEqualReplicas();
}

TEST_F(OwedTest, ADeliveryMayBeLargerThanTheRoomThereIs) {
  Store::Options small;
  small.segment_bytes = 256 * 1024;
  Store target(small);
  target.MustStart();
  AtSource({WriteOp(100, 60)});
  InstallDriver driver(&source_, &target, 1, Bare(InstallMode::kImage));
  ASSERT_OK(driver.Run());
  ASSERT_OK(target.RunJobs());
  const std::vector<BlockName> owed = *target->OwedBlocks(1, 100, 60);
  ASSERT_EQ(owed.size(), 60u);
  ASSERT_OK(target.Deliver(1, owed, AtSourceNow(owed)));
  ASSERT_OK(target.Flush());
  EXPECT_GT(target->Stats().delivered_blocks, 1u) << "as many as there was room for";
  ASSERT_OK(driver.DeliverAll());
  EXPECT_EQ(target->OwedCount(1), 0u);
  EXPECT_EQ(Differences(&source_, &target, 1), "");
  EXPECT_EQ(target.VerifySettled() + target.Problems(), "");
}

// Vacuum needs it, to get any further.
TEST_F(OwedTest, DeliveriesLeaveVacuumItsReserve) {
  Store::Options small;
  small.segment_bytes = 256 * 1024;
  small.engine.capacity_bytes = 8 * small.segment_bytes;
  Store target(small);
  target.MustStart();
  for (Lba lba = 0; lba < 600; lba += 20) AtSource({WriteOp(lba, 20)});
  InstallDriver driver(&source_, &target, 1, Bare(InstallMode::kImage));
  ASSERT_OK(driver.Run());
  const Status full = driver.DeliverAll();
  EXPECT_TRUE(full.code() == Code::kNoSpace || full.code() == Code::kBusy) << full.ToString();
  EXPECT_GT(target->Stats().delivered_blocks, 100u);
  EXPECT_GE(target->Stats().free_segments, 1u);
  AtSource({UnmapOp(0, 250)});
  AtSource({UnmapOp(250, 250)});
  ASSERT_OK(Follow(&source_, &target, 1, source_->Info(1)->applied));
  ASSERT_OK(target.Settle());
  ASSERT_OK(driver.DeliverAll());
  EXPECT_EQ(target->OwedCount(1), 0u);
  EXPECT_EQ(target.VerifySettled() + target.Problems(), "");
}

TEST_F(OwedTest, ASecondInstallMayBringThePayload) {
  InstallBare();
  InstallDriver::Options all;
  all.ignore_base = true;
  ASSERT_OK(Driver(all).Run());
  EXPECT_EQ(target_->OwedCount(1), 0u);
  EXPECT_EQ(target_->Stats().installed_bytes, 4 * kPageSize) << "and nothing that was here";
  ExpectEqualReplicas();
  Reopen();
  ExpectEqualReplicas();
}

// --- Open entries ----------------------------------------------------------------------------

TEST_F(OwedTest, WhatAnOpenEntryHasIsNotOwed) {
  AcceptHere(2);
  ASSERT_OK(Driver(Bare()).Run());
  EXPECT_EQ(Info().applied, 2u);
  EXPECT_EQ(target_->OwedCount(1), 0u);
  EXPECT_OK(target_->Read(1, 0, 10).status());
  EXPECT_EQ(target_->Stats().installed_bytes, 0u);
  ExpectEqualReplicas();
}

TEST_F(OwedTest, ThePayloadOfAnOpenEntryOutlivesTheEntry) {
  for (const bool checkpoint : {false, true}) {
    SCOPED_TRACE(checkpoint);
    AcceptHere(source_->Info(1)->applied);
    if (checkpoint) {
      ASSERT_OK(target_.Checkpoint());  // the entry is found where its row says
      Reopen();
    }
    ASSERT_OK(Driver(Bare()).Run());
    Reopen();
    EXPECT_EQ(target_->OwedCount(1), 0u) << "replayed";
    ExpectEqualReplicas();
    VacuumAll();
    EXPECT_GT(target_->Stats().relocated_bytes, 0u);
    ExpectEqualReplicas();
    ASSERT_OK(target_.Checkpoint());
    Reopen();
    ASSERT_OK(target_.RunJobs());
    EXPECT_EQ(target_->OwedCount(1), 0u);
    ExpectEqualReplicas();
    AtSource({WriteOp(5, 3), WriteOp(90, 2)});
  }
}

// What was accepted here is not what was chosen.
TEST_F(OwedTest, AnotherValueAtThatInstanceIsNotTakenForIt) {
  const Proposal* other = target_.model().NewProposal(target_.model().group(1), {WriteOp(3, 4)});
  ASSERT_OK(target_.Accept(1, 2, kFirstBallot, other));
  ASSERT_OK(target_.Flush());
  InstallBare();
  EXPECT_THAT(OwedLbas(), ElementsAre(3, 4, 5, 6));
  Deliver();
  ExpectEqualReplicas();
}

TEST_F(OwedTest, ARecordOfAHigherBallotWaitsForTheChunk) {
  constexpr Ballot kHigher{2, 1};
  AcceptHere(2);
  InstallDriver driver = Driver(Bare());
  ASSERT_OK(driver.Begin());
  ASSERT_OK(target_.Flush());
  ASSERT_OK(driver.QueueChunk());
  target_.set_patient(false);
  const Proposal* chosen = source_.model().group(1).chosen[1];
  EXPECT_CODE(target_.Accept(1, 2, kHigher, chosen), Code::kBusy);
  const Proposal* next = target_.model().NewProposal(target_.model().group(1), {WriteOp(30, 1)});
  EXPECT_OK(target_.Accept(1, 3, kHigher, next)) << "it leads to 2";
  ASSERT_OK(target_.Flush());
  EXPECT_EQ(target_->OwedCount(1), 0u);
  ASSERT_OK(target_.Accept(1, 2, kHigher, chosen));
  ASSERT_OK(target_.Flush());
  Reopen();
  EXPECT_EQ(target_->OwedCount(1), 0u) << "as of the chunk, not of now";
  target_.set_patient(true);
  ASSERT_OK(driver.Run());
  EXPECT_EQ(target_->OwedCount(1), 0u);
}

TEST_F(OwedTest, ABareRowIsNotNewerThanItsInstance) {
  ASSERT_OK(target_.InstallBegin(1, InstallMode::kDelta, 2));
  ASSERT_OK(target_.Flush());
  const ImagePiece good = *Driver(Bare()).Build();
  const auto refused = [&](const char* what, const auto& spoil) {
    ImageChunk bad = good.chunk;
    spoil(&bad);
    EXPECT_CODE(target_->InstallChunk(1, bad, {}, kOwedToken), Code::kInvalidArgument) << what;
  };
  refused("newer", [](ImageChunk* chunk) {
    chunk->newest = 5;
    chunk->rows[0].version = MakeVersion(3, 0);
  });
  refused("no data", [](ImageChunk* chunk) { chunk->rows[0].kind = BlockKind::kZero; });
  refused("here already", [](ImageChunk* chunk) { chunk->rows[0].same = true; });
  EXPECT_OK(target_.InstallChunk(1, good.chunk, {}));
  ASSERT_OK(target_.Flush());
}

// The checkpoint's rows are in LevelDB, but it is not valid yet.
TEST_F(OwedTest, ABareImageLeavesWhatIsNewerThanItsInstanceToTheLog) {
  ASSERT_OK(source_.Propose(1, {WriteOp(4, 1), WriteOp(50, 2)}));
  ASSERT_OK(source_.Settle());
  source_->RequestCheckpoint();
  auto job = source_->NextJob();
  ASSERT_NE(job, nullptr);
  ASSERT_STREQ(job->name(), "checkpoint");
  job->Run();
  InstallDriver driver = Driver(Bare(InstallMode::kImage));
  const ImagePiece piece = *driver.Build();
  EXPECT_EQ(piece.chunk.as_of, 2u);
  for (const ImageRow& row : piece.chunk.rows) {
    EXPECT_LE(VersionInstance(row.version), 2u) << row.number;
  }
  ASSERT_OK(driver.Run());
  source_->FinishJob(std::move(job));
  target_.model().Learned(1, source_.model().group(1));
  ASSERT_OK(target_.Settle());
  EXPECT_THAT(OwedLbas(), ElementsAre(3, 5, 6));
  Deliver();
  ExpectEqualReplicas();
}

// --- Others ----------------------------------------------------------------------------------

TEST_F(OwedTest, AReplicaThatOwesServesRowsButNotTheirPayload) {
  InstallBare();
  ASSERT_OK(target_.Checkpoint());
  Store third(Store::Options{});
  third.MustStart();
  EXPECT_CODE(InstallDriver(&target_, &third, 1, {}).Run(), Code::kCorruption);
  EXPECT_THAT(target_->TakeDamage(), IsEmpty());
  InstallDriver onwards(&target_, &third, 1, Bare(InstallMode::kImage));
  ASSERT_OK(onwards.Run());
  EXPECT_EQ(third->OwedCount(1), 9u);
  EXPECT_EQ(Differences(&source_, &third, 1), "");
  Deliver();
  ASSERT_OK(onwards.DeliverAll());
  EXPECT_EQ(third->OwedCount(1), 0u);
  EXPECT_EQ(third.VerifySettled() + third.Problems(), "");
}

TEST_F(OwedTest, TheInspectorCountsThemAndFindsNoDamage) {
  InstallBare();
  const auto inspect = [&] {
    auto report = store_reader::VerifyStore(&target_.disk(), kStoreDirectory, {});
    EXPECT_OK(report.status());
    EXPECT_TRUE(report->clean()) << report->findings.front().what;
    EXPECT_THAT(report->notes, Not(Contains(HasSubstr("unknown"))));
    return std::move(*report);
  };
  EXPECT_EQ(inspect().owed_blocks, 0u) << "the chunk is behind the checkpoint";
  ASSERT_OK(target_.Checkpoint());
  const auto report = inspect();
  EXPECT_EQ(report.owed_blocks, 4u);
  EXPECT_EQ(report.live_blocks, 9u);
  EXPECT_THAT(report.notes, Contains(HasSubstr("still owe the payload of 4 blocks")));
  Deliver();
  ASSERT_OK(target_.Checkpoint());
  EXPECT_EQ(inspect().owed_blocks, 0u);
}

TEST_F(OwedTest, TheInspectorDumpsThemAsOwed) {
  InstallBare();
  ASSERT_OK(target_.Deliver(1, {Owed()[1]}, AtSourceNow({Owed()[1]})));
  ASSERT_OK(target_.Flush());
  ASSERT_OK(target_.Checkpoint());
  store_reader::DumpOptions options;
  options.records = true;
  options.map = true;
  std::ostringstream out;
  ASSERT_OK(store_reader::Dump(&target_.disk(), kStoreDirectory, options, out));
  EXPECT_THAT(out.str(), HasSubstr("\"kind\":\"bare\",\"lba\":3,\"version\":\"2.0\",\"crc\""));
  EXPECT_THAT(out.str(), HasSubstr("type=relocate"));
  EXPECT_THAT(out.str(), ContainsRegex("lba=3 kind=data version=2.0 owed=true crc"));
  EXPECT_THAT(out.str(), ContainsRegex("lba=4 kind=data version=2.0 segment=[0-9]+ page"));
  EXPECT_THAT(out.str(), Not(HasSubstr("4294967295")));
}

// --- Rot -------------------------------------------------------------------------------------

// The entry was known to be rotten when the chunk came, so the block was owed. Replay reads headers
// alone, and finds the entry.
TEST_F(OwedTest, ADeliveryCountsThoughReplayFindsARottenEntry) {
  AcceptHere(2);
  ASSERT_OK(target_.Checkpoint());
  target_.PowerLoss();
  for (const std::string& path : target_.SegmentPaths()) {
    const std::string file = target_.ReadFile(path);
    for (size_t at = 0; at < file.size(); at += kPageSize) {
      const auto* page = reinterpret_cast<const uint8_t*>(file.data()) + at;
      if (!DescribeBlock({page, kPageSize}).starts_with("group 1 block 4 author 2")) continue;
      target_.disk().FlipBit(path, at + 1000, 3);
    }
  }
  ASSERT_OK(target_.OpenUnchecked());
  ASSERT_EQ(target_->recovery().faulty, 1u);
  InstallBare();
  ASSERT_EQ(target_->OwedCount(1), 4u);
  Deliver();
  ASSERT_OK(target_->Read(1, 0, 10).status());
  target_.PowerLoss();
  ASSERT_OK(target_.OpenUnchecked());
  EXPECT_OK(target_->Read(1, 0, 10).status());
  EXPECT_EQ(target_.VerifySettled(), "");
}

}  // namespace
}  // namespace hydra::test
