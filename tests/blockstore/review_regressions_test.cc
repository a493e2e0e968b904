// SPDX-License-Identifier: Apache-2.0
//
// Mistakes that random tests did not reach and a careful reader did. Each test is named after what
// went wrong.
#include <gtest/gtest.h>

#include "blockstore/image_source.h"
#include "tests/support/gtest_status.h"
#include "tests/support/install_driver.h"

namespace hydra::test {
namespace {

constexpr Ballot kNextBallot{2, 1};

// The batches of the log lane that carry records, by number.
std::vector<FoundBatch> WrittenBatches(Store* store) {
  std::vector<FoundBatch> written;
  for (const FoundBatch& batch : store->Batches()) {
    if (!batch.header.seal) written.push_back(batch);
  }
  return written;
}

// Accepted in two ballots; the second, chosen one is lost to rot, and a later record says "applied
// up to here". The first ballot's value must not be taken for the chosen one.
TEST(ReviewRegression, AStableMarkBehindAGapNeverAppliesAnOlderBallot) {
  Store store({});
  store.MustStart();
  const GroupModel& group = store.model().group(1);
  const Proposal* old_value = store.model().NewProposal(group, {WriteOp(5, 1)});
  const Proposal* chosen = store.model().NewProposal(group, {WriteOp(5, 1)});
  ASSERT_OK(store.Accept(1, 1, kFirstBallot, old_value));
  ASSERT_OK(store.Flush());
  ASSERT_OK(store.Accept(1, 1, kNextBallot, chosen));
  ASSERT_OK(store.Flush());
  const FoundBatch second = WrittenBatches(&store).back();
  ASSERT_OK(store->Apply(1, 1, kNextBallot));
  ASSERT_OK(store.Accept(1, 2, kNextBallot, store.model().NewProposal(group, {WriteOp(6, 1)})));
  ASSERT_OK(store.Flush());
  store.Crash();
  store.disk().FlipBit(second.path, second.offset() + 100, 3);
  ASSERT_OK(store.OpenUnchecked());
  const GroupInfo info = *store->Info(1);
  EXPECT_TRUE(info.suspect);
  EXPECT_EQ(info.applied, 0u) << "applied the value of a ballot that was not chosen";
}

// A checkpoint is cut short, and what it was to cover is lost to rot: some blocks are newer than
// what the log can be applied to. Whoever asks must be told.
TEST(ReviewRegression, BlocksOfACheckpointThatWasCutShortAreNotTakenForOlderOnes) {
  unsigned newer = 0;
  for (uint64_t calls = 1; calls <= 40; ++calls) {
    SCOPED_TRACE(calls);
    Store::Options options;
    options.disk.seed = calls;
    Store store(options);
    store.MustStart();
    ASSERT_OK(store.Write(1, 0, 1));
    ASSERT_OK(store.Settle());
    ASSERT_OK(store.Checkpoint());
    for (int i = 0; i < 4; ++i) {
      ASSERT_OK(store.Write(1, 0, 1));
      ASSERT_OK(store.Settle());
    }
    const FoundBatch lost = WrittenBatches(&store).end()[-3];
    store.disk().CutPowerAfter(calls);
    const bool cut = !store.Checkpoint().ok();
    store.PowerLoss();
    if (!cut) break;
    store.disk().FlipBit(lost.path, lost.offset() + 40, 3);
    ASSERT_OK(store.OpenUnchecked());
    const GroupInfo info = *store->Info(1);
    const Result<ReadResult> read = store->Read(1, 0, 1);
    if (!read.ok()) continue;
    const Instance seen = VersionInstance(read->blocks[0].version);
    newer += seen > info.applied ? 1 : 0;
    EXPECT_LE(seen, std::max(info.applied, info.mixed_until));
  }
  EXPECT_GT(newer, 0u) << "nothing was tested";
}

// A whole image of group 1, past the target's model: rot has taken what that expects.
Status InstallImage(Store* source, Store* target) {
  constexpr uint64_t kToken = 1;
  ImageRequest request;
  request.group = 1;
  request.base = LastVersionOf((*target)->Info(1)->applied);
  HYDRA_ASSIGN_OR_RETURN(const ImagePiece piece, BuildImageChunk(source->engine(), request));
  const Instance as_of = piece.chunk.as_of;
  HYDRA_RETURN_IF_ERROR((*target)->InstallBegin(1, InstallMode::kImage, as_of, kToken));
  HYDRA_RETURN_IF_ERROR((*target)->Drain(nullptr));
  HYDRA_RETURN_IF_ERROR((*target)->InstallChunk(1, piece.chunk, piece.payload, kToken));
  HYDRA_RETURN_IF_ERROR((*target)->Drain(nullptr));
  HYDRA_RETURN_IF_ERROR((*target)->InstallFinish(1, as_of, "", kToken));
  return (*target)->Drain(nullptr);
}

// ... and if the cut came between its rows and the bits that say which blocks are data, an install
// must not take those rows for blocks that are here.
TEST(ReviewRegression, RowsWithoutTheirPresenceAreNotTakenForBlocksThatAreHere) {
  Store source({});
  source.MustStart();
  for (const Lba lba : {0, 50, 60}) {
    ASSERT_OK(source.Write(1, lba));
    ASSERT_OK(source.Settle());
  }
  ASSERT_OK(source.Checkpoint());
  bool cut = true;
  unsigned tested = 0;
  for (uint64_t calls = 1; cut; ++calls) {
    SCOPED_TRACE(calls);
    Store::Options options;
    options.disk.seed = calls;
    Store store(options);
    store.MustStart();
    ASSERT_OK(Follow(&source, &store, 1, 1));
    ASSERT_OK(store.Checkpoint());
    ASSERT_OK(Follow(&source, &store, 1, 2));
    const FoundBatch lost = WrittenBatches(&store).back();
    ASSERT_OK(Follow(&source, &store, 1, 3));
    store.disk().CutPowerAfter(calls);
    cut = !store.Checkpoint().ok();
    store.PowerLoss();
    if (!cut) break;
    store.disk().FlipBit(lost.path, lost.offset() + 40, 3);
    ASSERT_OK(store.OpenUnchecked());
    tested += store->Info(1)->mixed_until == 3 ? 1 : 0;
    ASSERT_OK(InstallImage(&source, &store));
    ASSERT_EQ(store->Info(1)->applied, 3u);
    for (const Lba lba : {0, 50, 60}) {
      SCOPED_TRACE(lba);
      const Result<ReadResult> expected = source->Read(1, lba, 1);
      const Result<ReadResult> read = store->Read(1, lba, 1);
      ASSERT_OK(expected.status());
      ASSERT_OK(read.status());
      EXPECT_EQ(read->blocks[0].kind, BlockKind::kData) << "reads as zeroes";
      EXPECT_EQ(read->blocks[0].version, expected->blocks[0].version);
      EXPECT_EQ(read->blocks[0].crc, expected->blocks[0].crc);
    }
  }
  EXPECT_GT(tested, 0u) << "nothing was tested";
}

// A segment is opened for batch n + 1 only when batch n is whole. Rot of n is rot then, not a tear.
TEST(ReviewRegression, TheHeaderOfANewSegmentSealsTheBatchBeforeIt) {
  for (const bool header : {true, false}) {
    SCOPED_TRACE(header ? "header" : "payload");
    Store::Options options;
    options.segment_bytes = 256 * 1024;
    options.engine.spare_segments = 6;
    Store store(options);
    store.MustStart();
    ASSERT_OK(store.Settle());
    // Fill the segment so that the next large entry needs another one.
    ASSERT_OK(store.Write(1, 0, 20));
    ASSERT_OK(store.Flush());
    ASSERT_OK(store.Write(1, 20, 20));
    ASSERT_OK(store.Flush());
    const FoundBatch last = WrittenBatches(&store).back();
    ASSERT_OK(store.Write(1, 40, 40));
    // Opening writes the header, renames and syncs the directory; the batch itself is torn.
    store.disk().CutPowerAfter(4);
    Batch* batch = store->NextBatch(0);
    ASSERT_NE(batch, nullptr);
    EXPECT_FALSE(batch->Write().ok());
    store.PowerLoss();
    store.disk().FlipBit(last.path, (header ? last.offset() : last.payload_offset()) + 77, 2);
    ASSERT_OK(store.OpenUnchecked());
    if (header) {
      EXPECT_GT(store->recovery().gaps, 0u);
      EXPECT_TRUE(store->Info(1)->suspect);
    } else {
      EXPECT_CODE(store->ReadLogEntry(1, 2).status(), Code::kCorruption);
    }
    // Whatever is acknowledged from now on stays.
    ASSERT_OK(store->SaveHardState(1, {7, 7}, "kept", 1));
    ASSERT_OK(store->Drain(nullptr));
    store.Crash();
    ASSERT_OK(store.OpenUnchecked());
    EXPECT_EQ(store->Info(1)->opaque, "kept");
  }
}

// A process dies between renaming a spare to a segment and syncing the directory. The next one must
// not build on a name that a power loss can take back.
TEST(ReviewRegression, ASegmentsNameIsDurableBeforeARecoveredStoreBuildsOnIt) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    Store::Options options;
    options.disk.seed = seed;
    Store store(options);
    ASSERT_OK(store.Create());
    ASSERT_OK(store.Open());
    ASSERT_OK(store.CreateGroup(1, 1));
    store.disk().FailNth(IoKind::kSyncDirectory, 1);
    Batch* batch = store->NextBatch(0);
    ASSERT_NE(batch, nullptr);
    EXPECT_FALSE(batch->Write().ok());
    store.Crash();
    ASSERT_OK(store.OpenUnchecked());
    ASSERT_OK(store->CreateGroup(2, 1, 77));
    ASSERT_OK(store->Drain(nullptr));
    store.PowerLoss();
    ASSERT_OK(store.OpenUnchecked());
    EXPECT_OK(store->Info(2).status());
  }
}

// Fields that an operation's kind does not use must not matter.
TEST(ReviewRegression, AWaitingNoopHidesNothing) {
  Store store({});
  store.MustStart();
  ASSERT_OK(store.Write(1, 0, 4));
  ASSERT_OK(store.Flush());
  ASSERT_OK(store.ApplyAll());
  Operation noop;
  noop.lba = 0;
  noop.count = 4;
  ASSERT_OK(store.Propose(1, {noop}));
  ASSERT_OK(store->Apply(1, 2, kFirstBallot));
  auto read = store->Read(1, 0, 4);
  ASSERT_OK(read.status());
  for (const BlockInfo& block : read->blocks) EXPECT_EQ(block.kind, BlockKind::kData);
}

TEST(ReviewRegression, ClosingWithAJobOutIsRefused) {
  Store store({});
  store.MustStart();
  ASSERT_OK(store.Settle());
  ASSERT_OK(store.Write(1, 0));
  ASSERT_OK(store.Flush());
  ASSERT_OK(store.ApplyAll());
  store->RequestCheckpoint();
  auto job = store->NextJob();
  while (job != nullptr && std::string(job->name()) != "checkpoint") {
    job->Run();
    store->FinishJob(std::move(job));
    job = store->NextJob();
  }
  ASSERT_NE(job, nullptr);
  EXPECT_CODE(store->Close(), Code::kBusy);
  job->Run();
  store->FinishJob(std::move(job));
  EXPECT_OK(store.Close());
}

TEST(ReviewRegression, NoCompletionIsSwallowedByACheckpoint) {
  Store store({});
  store.MustStart();
  ASSERT_OK(store.Flush());
  ASSERT_OK(store->SaveHardState(1, {3, 1}, "x", 4711));
  ASSERT_OK(store->Checkpoint());
  ASSERT_OK(store->SaveHardState(1, {4, 1}, "y", 4712));
  std::vector<Completion> completions;
  ASSERT_OK(store->Drain(&completions));
  ASSERT_EQ(completions.size(), 2u);
  EXPECT_EQ(completions[0].token, 4711u);
  EXPECT_EQ(completions[1].token, 4712u);
}

}  // namespace
}  // namespace hydra::test
