// SPDX-License-Identifier: Apache-2.0
//
// What vacuum must not do while the rest of the engine goes on between its steps. Each test is a
// course of events that a random life once met.
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/support/gtest_status.h"
#include "tests/support/store_fixture.h"

namespace hydra::test {
namespace {

constexpr uint64_t kSegmentBytes = 256 * 1024;

Store::Options TightOptions(uint32_t segments) {
  Store::Options options;
  options.segment_bytes = kSegmentBytes;
  options.engine.capacity_bytes = segments * kSegmentBytes;
  return options;
}

// Runs jobs, and the batches before each, up to and including the first one of this name. False if
// there is none.
bool RunUpTo(Store* store, const std::string& name) {
  for (int round = 0; round < 1000; ++round) {
    std::unique_ptr<Job> job = (*store)->NextJob();
    if (job == nullptr) {
      Batch* batch = (*store)->NextBatch(store->clock().Now());
      if (batch == nullptr) return false;
      EXPECT_OK(store->WriteBatch(batch));
      continue;
    }
    const bool found = job->name() == name;
    job->Run();
    (*store)->FinishJob(std::move(job));
    if (found) return true;
  }
  return false;
}

// A store that is about to clean its first segment: it holds block 0 of group 1, that block's next
// version (instance 2, accepted but not applied) and dead blocks of group 2; all others are full.
void PrepareVictim(Store* store) {
  store->MustStart();
  (*store)->RequestVacuum(false);
  ASSERT_OK(store->Write(1, 0));
  ASSERT_OK(store->Settle());
  ASSERT_OK(store->Checkpoint());
  ASSERT_OK(store->Write(1, 0));
  ASSERT_OK(store->CreateGroup(2, 1));
  for (int i = 0; i < 6; ++i) ASSERT_OK(store->Write(2, 0, 8));
  for (Lba lba = 0; lba < 320; lba += 8) {
    if (!store->Write(2, 100 + lba, 8).ok()) break;  // full
    ASSERT_OK(store->Flush());
    while (store->Apply(2).ok()) {
    }
  }
  ASSERT_OK(store->Flush());
  ASSERT_EQ(store->model().group(1).applied, 1u);
  (*store)->RequestVacuum(true);
}

// The old version is being moved; the next one, in the same segment, is applied and checkpointed
// before the move is durable. The map then points into the victim again, but at other data.
TEST(VacuumRace, AMovedBlockNeverBringsBackAnOlderVersion) {
  Store store(TightOptions(9));
  ASSERT_NO_FATAL_FAILURE(PrepareVictim(&store));
  ASSERT_TRUE(RunUpTo(&store, "vacuum read")) << "nothing to clean";
  ASSERT_OK(store.Apply(1));  // instance 2
  store->RequestCheckpoint();
  ASSERT_TRUE(RunUpTo(&store, "checkpoint"));
  ASSERT_OK(store.RunJobs());
  EXPECT_EQ(store.model().VerifyBlocks(store.engine()), "");
  store.PowerLoss();
  ASSERT_OK(store.Open());
  EXPECT_EQ(store.Problems(), "");
}

// An unapplied entry is being moved; it is accepted again in a higher ballot, and that record
// overtakes the moved one. The later record in the stream is then the one that lost.
TEST(VacuumRace, AMovedEntryNeverReplacesAHigherBallot) {
  Store store(TightOptions(9));
  ASSERT_NO_FATAL_FAILURE(PrepareVictim(&store));
  ASSERT_TRUE(RunUpTo(&store, "vacuum scan")) << "nothing to clean";
  if (std::unique_ptr<Job> job = store->NextJob()) {  // asking is enough to queue open entries
    job->Run();
    store->FinishJob(std::move(job));
  }
  store.set_patient(false);
  ASSERT_OK(store.Accept(1, 2, {7, 1},
                         store.model().NewProposal(store.model().group(1), {UnmapOp(0, 1)})));
  ASSERT_OK(store.Flush());
  ASSERT_OK(store.RunJobs());
  EXPECT_EQ(store.model().VerifyLog(store.engine(), 1), "");
  store.Crash();
  ASSERT_OK(store.Open());
  EXPECT_EQ(store.Problems(), "");
  const AcceptState* newest = store.model().group(1).Newest(2);  // Open made a new model
  ASSERT_NE(newest, nullptr);
  EXPECT_EQ(newest->ballot.round, 7u);
  ASSERT_OK(store.Apply(1));
  EXPECT_EQ(store.model().VerifyBlocks(store.engine()), "");
}

// ... and if rot takes the record in the higher ballot, the moved one behind it proves nothing: a
// later word of what is applied speaks of the one that is lost.
TEST(VacuumRace, AMovedEntryBehindAGapIsNotTakenForTheChosenOne) {
  constexpr Ballot kChosen{7, 1};
  Store store(TightOptions(9));
  ASSERT_NO_FATAL_FAILURE(PrepareVictim(&store));
  store.Crash();
  ASSERT_OK(store.Open());  // so that vacuum has no credit, and clients go first
  ASSERT_TRUE(RunUpTo(&store, "vacuum scan")) << "nothing to clean";
  if (std::unique_ptr<Job> job = store->NextJob()) {
    job->Run();
    store->FinishJob(std::move(job));
  }
  store.set_patient(false);
  const GroupModel& group = store.model().group(1);
  const uint64_t before = store->Stats().durable_batch;
  ASSERT_OK(store.Accept(1, 2, kChosen, store.model().NewProposal(group, {UnmapOp(0, 1)})));
  ASSERT_OK(store.Flush());
  FoundBatch lost;
  bool moved_later = false;
  for (const FoundBatch& batch : store.Batches()) {
    if (batch.header.number <= before || batch.header.seal) continue;
    if (batch.header.lane == kLogLane) lost = batch;
    moved_later = moved_later || (batch.header.lane == kRelocationLane && !lost.path.empty());
  }
  ASSERT_FALSE(lost.path.empty());
  ASSERT_TRUE(moved_later) << "nothing was tested";
  ASSERT_OK(store->Apply(1, 2, kChosen));
  store.clock().Advance(kSecond);
  ASSERT_OK(store.Flush());  // a seal says what is applied
  store.Crash();
  store.disk().FlipBit(lost.path, lost.offset() + 100, 3);
  ASSERT_OK(store.OpenUnchecked());
  EXPECT_GT(store->recovery().gaps, 0u);
  EXPECT_EQ(store->Info(1)->applied, 1u) << "applied the value of a ballot that was not chosen";
}

// Entries that are accepted but cannot be applied (a gap before them) fill the store. Carrying them
// around gains nothing: vacuum comes to rest, the refusal is kNoSpace and not "try again", and the
// entry that closes the gap still finds room, as do promises.
TEST(VacuumRace, AStoreFullOfUnappliedEntriesCanStillCloseTheGap) {
  for (const uint64_t pages : {2, 16}) {
    SCOPED_TRACE(fmt::format("{} pages per entry", pages));
    Store::Options options = TightOptions(15);
    options.engine.reserve_segments = 4;
    options.engine.spare_segments = 3;
    Store store(options);
    store.MustStart();
    store.set_patient(false);
    const GroupModel& group = store.model().group(1);
    Status status;
    Instance instance = 2;
    for (int tries = 0; status.code() != Code::kNoSpace && tries < 400; ++tries) {
      status = store.Accept(1, instance, kFirstBallot,
                            store.model().NewProposal(group, {WriteOp(instance * 64, pages)}));
      if (status.ok()) ++instance;
      ASSERT_OK(store.RunJobs());
    }
    EXPECT_CODE(status, Code::kNoSpace);
    const uint64_t written = store->Stats().batch_bytes;
    for (int round = 0; round < 10; ++round) ASSERT_OK(store.RunJobs());
    EXPECT_EQ(store->Stats().batch_bytes, written) << "carried around for nothing";

    store.set_patient(true);
    ASSERT_OK(store.SaveHardState(1, {9, 1}, "still here"));
    ASSERT_OK(store.Accept(1, 1, kFirstBallot, store.model().NewProposal(group, {Operation()})));
    ASSERT_OK(store.Flush());
    EXPECT_EQ(store.VerifySettled(), "");
    EXPECT_EQ(store.Problems(), "");
  }
}

// What was accepted can be written, however vacuum and checkpoints interleave with it: a store that
// took a record must never end up with no segment to put it into.
TEST(VacuumRace, AcceptedRecordsAlwaysFindASegment) {
  Store::Options options = TightOptions(9);
  Store store(options);
  store.MustStart();
  store.set_patient(false);
  uint64_t turn = 0;
  for (int step = 0; step < 4000; ++step) {
    SCOPED_TRACE(fmt::format("step {}", step));
    const Status status = store.Write(1, turn * 8 % 160, 8);
    turn += status.ok();
    ASSERT_TRUE(status.ok() || status.code() == Code::kBusy || status.code() == Code::kNoSpace)
        << status.ToString();
    if (step % 3 != 0) (void)store.Apply(1);  // often before it is durable
    if (std::unique_ptr<Job> job = store->NextJob()) {
      job->Run();
      store->FinishJob(std::move(job));
    }
    if (step % 2 == 0) continue;
    if (Batch* batch = store->NextBatch(store.clock().Now())) {
      ASSERT_OK(store.WriteBatch(batch));
    }
  }
  ASSERT_OK(store.Flush()) << "queued for ever";
  EXPECT_GT(turn, 500u) << "hardly anything could be written";
  store.set_patient(true);
  EXPECT_EQ(store.VerifySettled(), "");
  EXPECT_EQ(store.Problems(), "");
}

}  // namespace
}  // namespace hydra::test
