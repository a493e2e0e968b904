// SPDX-License-Identifier: Apache-2.0
//
// The disk does not give back what the map has stored. Applying never asks for it. Whatever does
// ask fails, poisons nothing, and works again when the disk does: reads and scans, the count of
// what is live after a start, checkpoints.
#include <memory>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "daemon/store_reader_verify.h"
#include "tests/support/effort.h"
#include "tests/support/gtest_status.h"
#include "tests/support/store_fixture.h"

namespace hydra::test {
namespace {

constexpr uint64_t kStoredBlocks = 1024;  // four extents
const std::string kMapFiles = std::string(kStoreDirectory) + "/map/";

// Nothing of the map is remembered: who asks for a row reads the disk.
Store::Options ForgetfulOptions() {
  Store::Options options;
  options.segment_bytes = 1 << 20;
  options.engine.map_cache = 0;
  options.engine.map_cached_rows = 0;
  return options;
}

// Blocks whose rows are in LevelDB's tables.
void StartWithStoredBlocks(Store* store, uint64_t blocks = kStoredBlocks) {
  store->MustStart();
  for (Lba lba = 0; lba < blocks; lba += 32) {
    ASSERT_OK(store->Write(1, lba, 32));
    ASSERT_OK(store->Flush());
    ASSERT_OK(store->Apply(1));
  }
  ASSERT_OK(store->Close());
  ASSERT_OK(store->Open());
  ASSERT_OK(store->RunJobs());
  ASSERT_TRUE((*store)->Stats().accounting_complete);
}

void ExpectWell(Store* store) {
  EXPECT_TRUE((*store)->poisoned().ok()) << (*store)->poisoned().ToString();
  EXPECT_EQ(store->VerifySettled(), "");
  EXPECT_EQ(store->Problems(), "");
}

// --- Applying ---------------------------------------------------------------------------------

TEST(MapReads, ApplyReadsNeitherTheMapNorBlocks) {
  Store store(ForgetfulOptions());
  ASSERT_NO_FATAL_FAILURE(StartWithStoredBlocks(&store));
  store.set_patient(false);
  store.disk().FailAll(IoKind::kRead, kStoreDirectory);
  ASSERT_FALSE(store->Read(1, 300, 1).ok()) << "nothing is tested";
  const auto take = [&](const Status& queued) {
    ASSERT_OK(queued);
    ASSERT_OK(store.Flush());
    ASSERT_OK(store.Apply(1));
  };
  take(store.Write(1, 0, 8));
  take(store.Unmap(1, 100, 50));
  take(store.Zero(1, 200, 50));
  take(store.ZeroExtents(1, {2}));
  take(store.Propose(1, {WriteOp(250, 12), UnmapOp(255, 2), ZeroOp(600, 3), OpaqueOp("x")}));
  // And before it is durable.
  ASSERT_OK(store.Write(1, 700, 8));
  ASSERT_OK(store.Apply(1));
  ASSERT_OK(store.Flush());
  store.disk().FailAll(IoKind::kRead, "");
  ExpectWell(&store);
}

// --- Reads and scans ----------------------------------------------------------------------------

TEST(MapReads, AReadOrAScanThatFailsPoisonsNothing) {
  Store store(ForgetfulOptions());
  ASSERT_NO_FATAL_FAILURE(StartWithStoredBlocks(&store));
  store.disk().FailAll(IoKind::kRead, kMapFiles);
  EXPECT_CODE(store->Read(1, 0, 8).status(), Code::kIoError);
  EXPECT_CODE(store->ScanImage(1, "", 100).status(), Code::kIoError);
  EXPECT_CODE(store->ScanChanges(1, 0, "", 100).status(), Code::kIoError);
  EXPECT_CODE(store->Locate(1, 0).status(), Code::kIoError);
  auto read = store->PlanRead(1, 0, 8);
  ASSERT_OK(read.status());
  (*read)->Run();
  DamagedRead damaged;
  EXPECT_CODE(store->FinishRead(std::move(*read), &damaged).status(), Code::kIoError);
  EXPECT_TRUE(damaged.blocks.empty()) << "not the blocks are rotten";
  // What is in the overlay needs no map.
  ASSERT_OK(store.Write(1, 4, 4));
  ASSERT_OK(store.Flush());
  ASSERT_OK(store.Apply(1));
  EXPECT_OK(store->Read(1, 4, 4).status());
  store.disk().FailAll(IoKind::kRead, "");
  ExpectWell(&store);
}

// --- What is live -------------------------------------------------------------------------------

// After a start on a full store, with writes waiting for space to be reclaimed.
void StartFull(Store* store) {
  store->MustStart();
  Status status;
  for (Lba lba = 0; status.ok() && lba < 8192; lba += 8) {
    status = store->Write(1, lba, 8);
    if (status.ok()) status = store->Settle();
  }
  ASSERT_EQ(status.code(), Code::kNoSpace) << status.ToString();
  ASSERT_OK(store->Checkpoint());
  store->Crash();
  ASSERT_OK(store->Open());
  store->set_patient(false);
  store->disk().FailAll(IoKind::kRead, kMapFiles);
  ASSERT_OK(store->RunJobs());
  EXPECT_FALSE((*store)->Stats().accounting_complete);
  EXPECT_CODE(store->Write(1, 0, 8), Code::kBusy);
}

Store::Options FullOptions() {
  Store::Options options = ForgetfulOptions();
  options.engine.capacity_bytes = 12 * options.segment_bytes;
  return options;
}

void Wait(Store* store, Nanos time) {
  store->clock().Advance(time);
  ASSERT_OK(store->RunJobs());  // a batch asked for tells the time
  ASSERT_OK(store->RunJobs());
}

TEST(MapReads, WhatIsLiveIsCountedAgainWhenTheDiskReadsAgain) {
  Store store(FullOptions());
  ASSERT_NO_FATAL_FAILURE(StartFull(&store));
  for (int i = 0; i < 4; ++i) ASSERT_NO_FATAL_FAILURE(Wait(&store, 2 * kSecond));
  EXPECT_CODE(store.Write(1, 0, 8), Code::kBusy);
  store.disk().FailAll(IoKind::kRead, "");
  // Not before its time: a disk that is in trouble is left alone for a while.
  ASSERT_OK(store.RunJobs());
  EXPECT_FALSE(store->Stats().accounting_complete);
  ASSERT_NO_FATAL_FAILURE(Wait(&store, 60 * kSecond));
  ASSERT_NO_FATAL_FAILURE(Wait(&store, 0));
  EXPECT_TRUE(store->Stats().accounting_complete);
  EXPECT_CODE(store.Write(1, 0, 8), Code::kNoSpace);  // it is full
  store.set_patient(true);
  for (Lba lba = 0; lba < 2000; lba += 200) {
    ASSERT_OK(store.Unmap(1, lba, 200));
    ASSERT_OK(store.Settle());
  }
  ASSERT_OK(store.Checkpoint());
  ASSERT_OK(store.RunJobs());
  ASSERT_OK(store.Write(1, 0, 8));
  ExpectWell(&store);
}

TEST(MapReads, AStoreThatCannotCountWhatIsLiveSaysSoInTheEnd) {
  Store store(FullOptions());
  ASSERT_NO_FATAL_FAILURE(StartFull(&store));
  for (int i = 0; i < 20; ++i) ASSERT_NO_FATAL_FAILURE(Wait(&store, 60 * kSecond));
  const Status refused = store.Write(1, 0, 8);
  EXPECT_CODE(refused, Code::kNoSpace);
  EXPECT_NE(refused.message().find("the block map cannot be read"), std::string::npos)
      << refused.ToString();
  EXPECT_NE(refused.message().find("injected"), std::string::npos) << refused.ToString();
  EXPECT_FALSE(store->TakesPayload(8 * kPageSize)) << "a master would go on proposing";
  EXPECT_TRUE(store->PayloadRoom().known);
  EXPECT_CODE(store->Purge({}).status(), Code::kCorruption);
  EXPECT_TRUE(store->poisoned().ok());
  store.disk().FailAll(IoKind::kRead, "");
  EXPECT_EQ(store.model().VerifyBlocks(store.engine()), "");
  // A restart counts again.
  store.set_patient(true);
  store.Crash();
  ASSERT_OK(store.Open());
  ASSERT_OK(store.RunJobs());
  EXPECT_TRUE(store->Stats().accounting_complete);
  EXPECT_EQ(store.Problems(), "");
}

// --- Checkpoints --------------------------------------------------------------------------------

// To zero an extent that has rows, a checkpoint looks for them.
Status ChangeSomething(Store* store) {
  HYDRA_RETURN_IF_ERROR(store->ZeroExtents(1, {1}));
  HYDRA_RETURN_IF_ERROR(store->Write(1, 300, 4));
  HYDRA_RETURN_IF_ERROR(store->Unmap(1, 5, 20));
  HYDRA_RETURN_IF_ERROR(store->Flush());
  return store->ApplyAll();
}

TEST(MapReads, ACheckpointThatCannotReadIsPutOff) {
  Store store(ForgetfulOptions());
  ASSERT_NO_FATAL_FAILURE(StartWithStoredBlocks(&store));
  ASSERT_OK(ChangeSomething(&store));
  store.disk().FailAll(IoKind::kRead, kMapFiles);
  const uint64_t before = store->Stats().checkpoints;
  EXPECT_CODE(store->Checkpoint(), Code::kIoError);
  EXPECT_TRUE(store->poisoned().ok());
  // Writes go on, and the second generation takes them.
  ASSERT_OK(store.Write(1, 310, 4));
  ASSERT_OK(store.Flush());
  ASSERT_OK(store.Apply(1));
  EXPECT_OK(store->Read(1, 300, 14).status());
  ASSERT_NO_FATAL_FAILURE(Wait(&store, 2 * kSecond));
  ASSERT_NO_FATAL_FAILURE(Wait(&store, 2 * kSecond));
  EXPECT_EQ(store->Stats().checkpoints, before);
  EXPECT_CODE(store->Close(), Code::kIoError);
  store.disk().FailAll(IoKind::kRead, "");
  ASSERT_NO_FATAL_FAILURE(Wait(&store, 60 * kSecond));
  EXPECT_EQ(store->Stats().checkpoints, before + 1);
  ExpectWell(&store);
  ASSERT_OK(store.Close());
}

TEST(MapReads, ACheckpointThatWasPutOffIsFollowedByOneOfEverything) {
  Store store(ForgetfulOptions());
  ASSERT_NO_FATAL_FAILURE(StartWithStoredBlocks(&store));
  ASSERT_OK(ChangeSomething(&store));
  store.disk().FailAll(IoKind::kRead, kMapFiles);
  EXPECT_CODE(store->Checkpoint(), Code::kIoError);
  ASSERT_OK(store.Write(1, 310, 4));
  ASSERT_OK(store.Flush());
  ASSERT_OK(store.Apply(1));
  store.disk().FailAll(IoKind::kRead, "");
  const Instance applied = store->Info(1)->applied;
  ASSERT_OK(store.Checkpoint());
  EXPECT_EQ(store->Info(1)->state_at, applied);
  ExpectWell(&store);
}

TEST(MapReads, ACheckpointThatCannotReadForAMinuteStopsTheEngine) {
  Store store(ForgetfulOptions());
  ASSERT_NO_FATAL_FAILURE(StartWithStoredBlocks(&store));
  ASSERT_OK(ChangeSomething(&store));
  store.disk().FailAll(IoKind::kRead, kMapFiles);
  EXPECT_CODE(store->Checkpoint(), Code::kIoError);
  Status stopped;
  Nanos waited = 0;
  for (; waited < 600 * kSecond && stopped.ok(); waited += kSecond) {
    store.clock().Advance(kSecond);
    stopped = store.RunJobs();
    if (stopped.ok()) stopped = store.RunJobs();
  }
  EXPECT_GE(waited, 50 * kSecond);
  EXPECT_LE(waited, 75 * kSecond);
  EXPECT_CODE(stopped, Code::kPoisoned);
  EXPECT_NE(stopped.message().find("could not read its map"), std::string::npos)
      << stopped.ToString();
  EXPECT_EQ(stopped.message().find("write"), std::string::npos) << stopped.ToString();
  store.Crash();
  const std::unique_ptr<Store> again = store.Fork(1);  // on a disk that reads
  ASSERT_OK(again->Open());
  ExpectWell(again.get());
}

// What was room enough when the checkpoint was begun may be somebody else's by now.
TEST(MapReads, ACheckpointThatWasPutOffWaitsForRoom) {
  Store store(ForgetfulOptions());
  ASSERT_NO_FATAL_FAILURE(StartWithStoredBlocks(&store));
  ASSERT_OK(ChangeSomething(&store));
  store.disk().FailAll(IoKind::kRead, kMapFiles);
  EXPECT_CODE(store->Checkpoint(), Code::kIoError);
  store.disk().FailAll(IoKind::kRead, "");
  store.disk().SetCapacity(store.disk().used_bytes());
  for (int i = 0; i < 10; ++i) {
    store.clock().Advance(10 * kSecond);
    EXPECT_OK(store.RunJobs());
  }
  store.disk().SetCapacity(1ull << 40);
  store.clock().Advance(60 * kSecond);
  EXPECT_OK(store.RunJobs());
  EXPECT_OK(store->Checkpoint());
  ExpectWell(&store);
}

// Deletions that nobody asks about any more are swept by checkpoints, which look up what each
// change row speaks of. Whichever of its reads fails, the next one sweeps as if none had, and so
// does one after a power loss, to which it looks like a checkpoint that was cut short.
TEST(MapReads, AnyReadOfACheckpointMayFail) {
  Store::Options options = ForgetfulOptions();
  options.engine.change_retention = 2;
  Store base(options);
  ASSERT_NO_FATAL_FAILURE(StartWithStoredBlocks(&base, 768));
  ASSERT_OK(base.Unmap(1, 5, 20));
  ASSERT_OK(base.ZeroExtents(1, {1}));
  for (int i = 0; i < 4; ++i) ASSERT_OK(base.Write(1, 100, 1));
  ASSERT_OK(base.Settle());
  ASSERT_OK(base.Checkpoint());  // makes the horizon durable: the next one sweeps up to it
  base.Crash();
  uint64_t rows = 0;
  uint64_t n = 0;  // none fails
  for (;; n += kSanitized && n > 2 ? 5 : 1) {
    SCOPED_TRACE(fmt::format("read {}", n));
    const std::unique_ptr<Store> store = base.Fork(n);
    ASSERT_OK(store->Open());
    ASSERT_OK(store->RunJobs());
    ASSERT_OK(store->Write(1, 101, 1));
    ASSERT_OK(store->ZeroExtents(1, {2}));
    ASSERT_OK(store->Settle());
    if (n > 0) store->disk().FailNth(IoKind::kRead, n);
    const Status status = (*store)->Checkpoint();
    if (n > 0 && status.ok()) break;  // it reads no more than that
    EXPECT_EQ(status.code(), n > 0 ? Code::kIoError : Code::kOk) << status.ToString();
    ASSERT_OK(store->Write(1, 102, 1));
    ASSERT_OK(store->Settle());
    if (n % 2 == 1) {
      store->PowerLoss();
      ASSERT_OK(store->Open());
      ASSERT_OK(store->ApplyAll());
    }
    ASSERT_NO_FATAL_FAILURE(ExpectWell(store.get()));
    ASSERT_OK(store->Close());
    const auto report = store_reader::VerifyStore(&store->disk(), kStoreDirectory, {});
    ASSERT_OK(report.status());
    EXPECT_TRUE(report->clean());
    if (n == 0) rows = report->map_rows;
    EXPECT_EQ(report->map_rows, rows) << "something was not swept";
  }
  EXPECT_GT(n, 10u) << "nothing was tested";
}

}  // namespace
}  // namespace hydra::test
