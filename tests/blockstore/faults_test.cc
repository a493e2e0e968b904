// SPDX-License-Identifier: Apache-2.0
//
// A disk that returns errors, lies about where a write went, or fills up. A failed write or flush
// ends the engine: every later call fails, nothing is tried again, and what was acknowledged is
// there after a reopen. Failed reads and a full disk end nothing.
#include <memory>
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

Store::Options SmallOptions(uint64_t seed) {
  Store::Options options;
  options.disk.seed = seed;
  options.segment_bytes = 256 * 1024;
  options.engine.capacity_bytes = 16 * options.segment_bytes;
  return options;
}

// So few segments that a short life needs vacuum.
Store::Options LifeOptions(uint64_t seed) {
  Store::Options options = SmallOptions(seed);
  options.engine.capacity_bytes = 5 * options.segment_bytes;
  return options;
}

// Writes, a segment switch, a checkpoint, deletes, a vacuum, a truncation.
Status ShortLife(Store* store) {
  HYDRA_RETURN_IF_ERROR(store->CreateGroup(1, 1));
  HYDRA_RETURN_IF_ERROR(store->CreateGroup(2, 2));
  HYDRA_RETURN_IF_ERROR(store->SaveHardState(1, {3, 1}, "promise"));
  for (Lba lba = 0; lba < 96; lba += 8) {
    HYDRA_RETURN_IF_ERROR(store->Write(1, lba, 8));
    HYDRA_RETURN_IF_ERROR(store->Flush());
  }
  HYDRA_RETURN_IF_ERROR(store->Write(2, 0, 4));
  HYDRA_RETURN_IF_ERROR(store->Settle());
  HYDRA_RETURN_IF_ERROR(store->Checkpoint());
  HYDRA_RETURN_IF_ERROR(store->Unmap(1, 0, 40));  // leaves its segment nearly empty
  HYDRA_RETURN_IF_ERROR(store->Write(1, 70, 8));
  HYDRA_RETURN_IF_ERROR(store->Settle());
  HYDRA_RETURN_IF_ERROR(store->Checkpoint());
  HYDRA_RETURN_IF_ERROR(store->Truncate(1, 5));
  store->clock().Advance(kSecond);
  HYDRA_RETURN_IF_ERROR(store->Flush());
  return store->RunJobs();
}

// Every call that could do anything fails as poisoned, and the disk is left alone.
void ExpectDead(Store* store) {
  const uint64_t ios = store->disk().io_count();
  Engine* engine = store->engine();
  const auto dead = [](const Status& status) { return status.code() == Code::kPoisoned; };
  Entry entry;
  entry.operations.push_back(UnmapOp(0, 1));
  EXPECT_TRUE(dead(engine->CreateGroup(9, 1, 900)));
  EXPECT_TRUE(dead(engine->DropGroup(1, 901)));
  EXPECT_TRUE(dead(engine->Accept(1, 500, {9, 1}, entry, {}, 902)));
  EXPECT_TRUE(dead(engine->SaveHardState(1, {9, 1}, "x", 903)));
  EXPECT_TRUE(dead(engine->TruncateLog(1, 1, 904)));
  EXPECT_TRUE(dead(engine->Apply(1, store->model().Has(1) ? store->model().group(1).applied + 1 : 1,
                                 kFirstBallot)));
  EXPECT_TRUE(dead(engine->Read(1, 0, 1).status()));
  EXPECT_TRUE(dead(engine->PlanRead(1, 0, 1).status()));
  EXPECT_TRUE(dead(engine->ReadLogEntry(1, 1).status()));
  EXPECT_TRUE(dead(engine->Readmit(1)));
  EXPECT_TRUE(dead(engine->InstallBegin(1, InstallMode::kImage, 500, 905)));
  EXPECT_TRUE(dead(engine->InstallChunk(1, {}, {}, 906)));
  EXPECT_TRUE(dead(engine->InstallFinish(1, 500, "", 907)));
  EXPECT_TRUE(dead(engine->InstallAbort(1, 908)));
  EXPECT_TRUE(dead(engine->Repair({}, {}, 909)));
  EXPECT_TRUE(dead(engine->Purge({1}).status()));
  EXPECT_TRUE(dead(engine->PurgeProgress(1).status()));
  EXPECT_TRUE(dead(engine->PlanReads(1, {{0, 1}}).status()));
  EXPECT_TRUE(dead(engine->ReadMap(1, 0, 1).status()));
  EXPECT_TRUE(dead(engine->ReadLogRecord(1, 1).status()));
  LogReadRequest log;
  log.group = 1;
  EXPECT_TRUE(dead(engine->PlanLogRead(std::move(log)).status()));
  ScanRequest scan;
  scan.group = 1;
  EXPECT_TRUE(dead(engine->PlanScan(scan).status()));
  EXPECT_TRUE(dead(engine->PlanScrub(1).status()));
  EXPECT_TRUE(dead(engine->Locate(1, 0).status()));
  EXPECT_TRUE(dead(engine->IsStillThere({}).status()));
  EXPECT_TRUE(dead(engine->ScanImage(1, "", 1).status()));
  EXPECT_TRUE(dead(engine->ScanChanges(1, 0, "", 1).status()));
  EXPECT_TRUE(dead(engine->Digest(1).status()));
  EXPECT_TRUE(dead(engine->Checkpoint()));
  std::vector<Completion> completions;
  EXPECT_TRUE(dead(engine->Drain(&completions)));
  std::vector<Damage> damage;
  EXPECT_TRUE(dead(engine->Scrub(1, &damage).status()));
  EXPECT_EQ(engine->NextBatch(store->clock().Now() + kSecond), nullptr);
  EXPECT_EQ(engine->NextJob(), nullptr);
  EXPECT_TRUE(dead(engine->Close()));
  EXPECT_TRUE(completions.empty());
  EXPECT_FALSE(engine->poisoned().message().empty());
  EXPECT_EQ(store->disk().io_count(), ios) << "something was written after the failure";
}

// What the acknowledged part of an interrupted life looks like after a reopen. Goes on with a copy
// of the disk, on which no fault is waiting.
void ExpectAllBack(Store* dead, bool power_loss) {
  if (power_loss) {
    dead->PowerLoss();
  } else {
    dead->Crash();
  }
  const std::unique_ptr<Store> store = dead->Fork(1);
  ASSERT_OK(store->Open());
  ASSERT_EQ(store->Problems(), "");
  ASSERT_OK(store->ApplyAll());
  ASSERT_EQ(store->VerifySettled(), "");
  ASSERT_EQ(store->Problems(), "");
}

struct Injection {
  IoKind kind;
  const char* name;
  bool always_fatal;  // otherwise the engine may also do without the call
};

class FailedCall : public testing::TestWithParam<Injection> {};

TEST_P(FailedCall, AtEveryPointOfALifeLosesNothingAndIsNotRetried) {
  const auto [kind, name, always_fatal] = GetParam();
  constexpr unsigned kEnough = 20;  // calls in a row without effect: the life makes no more
  unsigned without_effect = 0;
  for (uint64_t n = 1; without_effect < kEnough; ++n) {
    SCOPED_TRACE(fmt::format("{} number {}", name, n));
    Store store(LifeOptions(n));
    ASSERT_OK(store.Create());
    ASSERT_OK(store.Open());
    store.disk().FailNth(kind, n);
    const Status status = ShortLife(&store);
    ASSERT_EQ(store.Problems(), "");
    if (!store->poisoned().ok()) {
      EXPECT_FALSE(always_fatal && without_effect > 0) << "an earlier failure was swallowed";
      without_effect = 0;
      ASSERT_FALSE(status.ok()) << "the caller was not told";
      ExpectDead(&store);
    } else {
      ++without_effect;
      EXPECT_TRUE(status.ok()) << "failed without being poisoned: " << status.ToString();
    }
    ASSERT_NO_FATAL_FAILURE(ExpectAllBack(&store, n % 2 == 0));
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Faults, FailedCall,
                         testing::Values(Injection{IoKind::kWrite, "write", true},
                                         Injection{IoKind::kSync, "sync", true},
                                         Injection{IoKind::kSyncDirectory, "directory sync", true},
                                         Injection{IoKind::kRename, "rename", true},
                                         Injection{IoKind::kOpen, "open", false},
                                         Injection{IoKind::kUnlink, "unlink", false},
                                         Injection{IoKind::kAllocate, "allocate", false},
                                         Injection{IoKind::kTruncate, "truncate", false}),
                         [](const testing::TestParamInfo<Injection>& info) {
                           std::string name = info.param.name;
                           std::erase(name, ' ');
                           return name;
                         });

TEST(Faults, TheLifeThatTheyStrikeHasAVacuum) {
  Store store(LifeOptions(1));
  ASSERT_OK(store.Create());
  ASSERT_OK(store.Open());
  ASSERT_OK(ShortLife(&store));
  EXPECT_GT(store->Stats().relocated_bytes, 0u);
  EXPECT_GT(store->Stats().segments_freed, 0u);
  EXPECT_GT(store->Stats().checkpoints, 0u);
  EXPECT_EQ(store.VerifySettled(), "");
}

TEST(Faults, AFailedCallWhileOpeningLosesNothing) {
  Store whole(LifeOptions(1));
  ASSERT_OK(whole.Create());
  ASSERT_OK(whole.Open());
  ASSERT_OK(ShortLife(&whole));
  whole.Crash();
  // Not reads: an unreadable header counts as rot (rot_test.cc).
  for (const IoKind kind : {IoKind::kWrite, IoKind::kSync, IoKind::kSyncDirectory, IoKind::kOpen,
                            IoKind::kRename, IoKind::kUnlink, IoKind::kAllocate}) {
    for (uint64_t n = 1; n <= 40; n += kSanitized ? 4 : 1) {
      SCOPED_TRACE(fmt::format("call {} of kind {}", n, static_cast<unsigned>(kind)));
      std::unique_ptr<Store> store = whole.Fork(n);
      store->disk().FailNth(kind, n);
      const Status opened = store->OpenUnchecked();
      EXPECT_TRUE(opened.ok() || !opened.message().empty());
      ASSERT_NO_FATAL_FAILURE(ExpectAllBack(store.get(), n % 2 == 0));
    }
  }
}

TEST(Faults, AFailedReadPoisonsNothing) {
  Store store(SmallOptions(1));
  store.MustStart();
  ASSERT_OK(store.Write(1, 0, 8));
  ASSERT_OK(store.Settle());
  ASSERT_OK(store.Checkpoint());
  store.disk().FailAll(IoKind::kRead, "/segments/");
  const Result<ReadResult> read = store->Read(1, 0, 8);
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.status().code(), Code::kIoError) << read.status().ToString();
  store.disk().FailAll(IoKind::kRead, "");
  EXPECT_TRUE(store->poisoned().ok());
  EXPECT_EQ(store.VerifySettled(), "");
  ASSERT_OK(store.Write(1, 4, 8));
  EXPECT_EQ(store.VerifySettled(), "");
}

// --- Writes that go astray -------------------------------------------------------------------

// A write that is lost or lands elsewhere although the disk said it was done. That cannot be
// survived; it must be noticed, at the latest when the block is read.
void ExpectNoticed(bool misdirected) {
  for (uint64_t n = 1; n <= 8; ++n) {
    for (const bool reopen : {false, true}) {
      SCOPED_TRACE(fmt::format("batch {} {}", n, reopen ? "reopened" : "running"));
      Store store(SmallOptions(n));
      store.MustStart();
      ASSERT_OK(store.Checkpoint());
      if (misdirected) {
        store.disk().MisdirectNthWrite(n, (40 + n) * kPageSize);
      } else {
        store.disk().DropNthWrite(n);
      }
      for (Lba lba = 0; lba < 8; ++lba) {
        ASSERT_OK(store.Write(1, lba));
        ASSERT_OK(store.Flush());
        ASSERT_OK(store.Apply(1));
      }
      GroupModel group = store.model().group(1);
      bool noticed = false;
      if (reopen) {
        store.clock().Advance(kSecond);
        ASSERT_OK(store.Flush());  // the seal
        store.Crash();
        const Status opened = store.OpenUnchecked();
        if (!opened.ok()) continue;
        const Result<GroupInfo> info = store->Info(1);
        ASSERT_TRUE(info.ok());
        noticed = info->suspect && store->recovery().gaps > 0;
        EXPECT_FALSE(store->recovery().torn);
        ASSERT_LE(info->applied, 8u);
        group.blocks = StoreModel::Replay(group, info->applied);
        for (Instance i = info->applied + 1; i <= 8; ++i) {
          const Result<LogEntry> entry = store->ReadLogEntry(1, i);
          if (!entry.ok()) continue;
          EXPECT_EQ(StoreModel::CompareEntry(group, i, *group.Newest(i), *entry), "");
        }
      }
      for (Lba lba = 0; lba < 8; ++lba) {
        const Result<ReadResult> read = store->Read(1, lba, 1);
        if (read.ok()) {
          EXPECT_EQ(StoreModel::CompareRead(group, lba, *read), "");
        } else {
          EXPECT_EQ(read.status().code(), Code::kCorruption) << read.status().ToString();
          noticed = true;
        }
      }
      EXPECT_TRUE(noticed);
    }
  }
}

TEST(Faults, ADroppedWriteIsNoticed) { ExpectNoticed(false); }
TEST(Faults, AMisdirectedWriteIsNoticed) { ExpectNoticed(true); }

// A torn batch was cut; the write that should have taken its place went nowhere, and the batch
// behind it arrived. What stands there has a valid header with the right number, but is not the
// batch that its successor follows: the chain tells.
TEST(Faults, ADroppedWriteOverATornBatchIsNoticed) {
  unsigned torn = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Store store(SmallOptions(seed));
    store.MustStart();
    ASSERT_OK(store.Write(1, 0, 8));
    store.disk().CutPowerAfter(1);
    ASSERT_FALSE(store.Flush().ok());
    store.PowerLoss();
    ASSERT_OK(store.Open());
    if (!store->recovery().torn) continue;  // its header did not survive: another test's business
    ++torn;
    store.disk().DropNthWrite(1);
    ASSERT_OK(store.Write(1, 8, 8));
    ASSERT_OK(store.Flush());
    ASSERT_OK(store.Write(1, 16, 8));
    ASSERT_OK(store.Flush());
    store.Crash();
    const Status opened = store.OpenUnchecked();
    if (!opened.ok()) continue;
    EXPECT_GT(store->recovery().gaps, 0u);
    EXPECT_TRUE(store->Info(1)->suspect);
    const Result<LogEntry> lost = store->ReadLogEntry(1, 1);
    EXPECT_FALSE(lost.ok()) << "the torn entry is back";
  }
  EXPECT_GT(torn, 3u);
}

// --- A full store ----------------------------------------------------------------------------

// Writes 8 blocks at a time until the store refuses; returns how many blocks went in.
uint64_t Fill(Store* store, Lba first, uint64_t limit) {
  for (uint64_t done = 0; done < limit; done += 8) {
    Status status = store->Write(1, first + done, 8);
    if (status.ok()) status = store->Settle();
    if (status.code() == Code::kNoSpace) return done;
    EXPECT_TRUE(status.ok()) << status.ToString();
    if (!status.ok()) return done;
  }
  return limit;
}

TEST(FullStore, RefusesWritesAndWorksAgainAfterDeleting) {
  Store::Options options = SmallOptions(1);
  options.segment_bytes = 1 << 20;
  options.engine.capacity_bytes = 12 * options.segment_bytes;
  Store store(options);
  store.MustStart();
  constexpr uint64_t kLimit = 4096;
  uint64_t first_round = 0;
  for (int round = 0; round < 3; ++round) {
    SCOPED_TRACE(fmt::format("round {}", round));
    const uint64_t blocks = Fill(&store, 0, kLimit);
    ASSERT_LT(blocks, kLimit) << "the store never got full";
    ASSERT_GT(blocks, 100u);
    if (round == 0) first_round = blocks;
    EXPECT_GE(blocks, first_round * 8 / 10) << "space was lost";
    EXPECT_LE(store->Stats().space_bytes, options.engine.capacity_bytes);

    // Reading goes on; the refusal says why.
    EXPECT_EQ(store.model().VerifyBlocks(store.engine()), "");
    const Status refused = store.Write(1, 0, 8);
    EXPECT_EQ(refused.code(), Code::kNoSpace);
    EXPECT_FALSE(store->TakesPayload(8 * kPageSize));
    EXPECT_FALSE(refused.message().empty());
    // So do promises and deletes.
    ASSERT_OK(store.SaveHardState(1, {10u + round, 1}, "still here"));
    ASSERT_OK(store.Flush());
    for (Lba lba = 0; lba < blocks; lba += 200) {
      ASSERT_OK(store.Unmap(1, lba, std::min<uint64_t>(200, blocks - lba)));
      ASSERT_OK(store.Settle());
    }
    ASSERT_OK(store.Checkpoint());
    ASSERT_OK(store.RunJobs());
    EXPECT_TRUE(store->TakesPayload(8 * kPageSize));
    ASSERT_OK(store.Write(1, 0, 8));
    ASSERT_OK(store.Settle());
    EXPECT_EQ(store.VerifySettled(), "");
    EXPECT_EQ(store.Problems(), "");
  }
}

// By such a group volumes are deleted: when others are refused for good, it still changes its few
// blocks as often as it likes, and the room that it takes for that is reclaimed.
TEST(FullStore, AGroupThatMayUseTheReserveGoesOnChangingItsBlocks) {
  Store::Options options = SmallOptions(1);
  options.segment_bytes = 1 << 20;
  options.engine.capacity_bytes = 14 * options.segment_bytes;
  options.engine.reserve_segments = 4;  // as elsewhere than in these tests
  Store store(options);
  store.MustStart();
  ASSERT_OK(store.CreateGroup(5, 1));
  store->LetUseReserve(5);
  ASSERT_LT(Fill(&store, 0, 4096), 4096u);
  const uint64_t segments = options.engine.capacity_bytes / options.segment_bytes;
  const uint64_t pages = segments * options.segment_bytes / kPageSize;
  for (uint64_t written = 0; written < 2 * pages; written += 8) {
    Status status = store.Write(5, 0, 8);
    if (status.code() == Code::kNoSpace) {  // until what it overwrote is reclaimed
      ASSERT_OK(store.Checkpoint());
      ASSERT_OK(store.RunJobs());
      status = store.Write(5, 0, 8);
    }
    ASSERT_OK(status) << written;
    ASSERT_OK(store.Settle());
  }
  EXPECT_CODE(store.Write(1, 0, 8), Code::kNoSpace);
  EXPECT_LE(store->Stats().space_bytes, options.engine.capacity_bytes);
  EXPECT_EQ(store.VerifySettled(), "");
  EXPECT_EQ(store.Problems(), "");
}

TEST(FullStore, SurvivesPowerLossWhileFull) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    Store::Options options = SmallOptions(seed);
    options.engine.capacity_bytes = 10 * options.segment_bytes;
    Store store(options);
    store.MustStart();
    Fill(&store, 0, 4096);
    store.PowerLoss();
    ASSERT_OK(store.Open());
    ASSERT_EQ(store.Problems(), "");
    ASSERT_OK(store.ApplyAll());
    ASSERT_OK(store.Unmap(1, 0, 200));
    ASSERT_OK(store.Settle());
    ASSERT_OK(store.Checkpoint());
    ASSERT_OK(store.RunJobs());
    ASSERT_OK(store.Write(1, 0, 8));
    ASSERT_EQ(store.VerifySettled(), "");
    ASSERT_EQ(store.Problems(), "");
  }
}

// The same with overwriting instead of deleting: at 60 % live data vacuum keeps up for ever.
TEST(FullStore, VacuumKeepsUpWithOverwriting) {
  Store::Options options = SmallOptions(1);
  options.engine.capacity_bytes = 16 * options.segment_bytes;
  Store store(options);
  store.MustStart();
  const uint64_t live = 16 * 64 * 5 / 10 / 8 * 8;
  for (int round = 0; round < 6; ++round) {
    for (uint64_t b = 0; b < live; b += 8) {
      ASSERT_OK(store.Write(1, (b * 5) % live, 8));
      ASSERT_OK(store.Settle());
    }
  }
  EXPECT_GT(store->Stats().segments_freed, 16u);
  EXPECT_LE(store->Stats().space_bytes, options.engine.capacity_bytes);
  EXPECT_EQ(store.VerifySettled(), "");
  EXPECT_EQ(store.Problems(), "");
}

// The file system itself fills up, at whatever step: a clear answer, and nothing is lost. The
// engine may stop for good if LevelDB cannot write; it then comes back once there is space.
TEST(FullDisk, AtEveryLevelLosesNothing) {
  Store whole(LifeOptions(1));
  ASSERT_OK(whole.Create());
  ASSERT_OK(whole.Open());
  const uint64_t empty = whole.disk().used_bytes();
  ASSERT_OK(ShortLife(&whole));
  const uint64_t most = whole.disk().used_bytes() + (1 << 20);
  for (uint64_t level = empty; level < most; level += 24 * 1024) {
    SCOPED_TRACE(fmt::format("capacity {}", level));
    Store store(LifeOptions(level));
    ASSERT_OK(store.Create());
    ASSERT_OK(store.Open());
    store.disk().SetCapacity(level);
    const Status status = ShortLife(&store);
    if (!status.ok()) {
      EXPECT_TRUE(status.code() == Code::kNoSpace || status.code() == Code::kPoisoned ||
                  status.code() == Code::kUnavailable || status.code() == Code::kBusy)
          << status.ToString();
    }
    ASSERT_EQ(store.Problems(), "");
    if (store->poisoned().ok()) {
      ASSERT_EQ(store.model().VerifyBlocks(store.engine()), "");
    }
    store.disk().SetCapacity(1ull << 40);
    if (store->poisoned().ok()) {
      // No restart needed.
      ASSERT_OK(store.RunJobs());
      ASSERT_EQ(store.VerifySettled(), "");
    }
    ASSERT_NO_FATAL_FAILURE(ExpectAllBack(&store, level % 2 == 0));
  }
}

// With no limit of its own, a store whose segments may take all of a small disk.
Store::Options GreedyOptions() {
  Store::Options options;
  options.disk.capacity = 40u << 20;
  options.engine.overlay_rows = 2000;
  options.engine.ballast_bytes = 1u << 20;
  return options;
}

const std::string kBallastPath = std::string(kStoreDirectory) + "/BALLAST";

// Segments fill the disk; then the map grows, by deletions that take no payload. Spares give way.
TEST(FullDisk, SegmentsGiveRoomBackToAMapThatGrows) {
  constexpr uint64_t kWritten = 30;  // blocks in an entry
  constexpr uint64_t kUnmapped = 250;
  constexpr int kEntries = 160;
  constexpr uint64_t kLeft = 8u << 20;  // with the ballast: a little more than a checkpoint needs
  Store store(GreedyOptions());
  store.MustStart();
  uint64_t space = 0;
  for (int still = 0; still < 20; ++still) {
    ASSERT_OK(store.Write(1, 0, kWritten));
    ASSERT_OK(store.Settle());
    if (store->Stats().space_bytes != space) still = 0;
    space = store->Stats().space_bytes;
  }
  store.disk().SetCapacity(store.disk().used_bytes() + kLeft);  // others fill the disk, too
  for (int i = 0; i < kEntries; ++i) {
    SCOPED_TRACE(i);
    ASSERT_OK(store.Unmap(1, 1000 + static_cast<Lba>(i) * kUnmapped, kUnmapped));
    ASSERT_OK(store.Settle());
  }
  EXPECT_LT(store->Stats().space_bytes, space) << "nothing was tested";
  ASSERT_OK(store.Write(1, 0, kWritten));
  ASSERT_OK(store.Settle());
  EXPECT_EQ(store.VerifyAll(), "");
  store.Crash();
  ASSERT_OK(store.Open());
  EXPECT_EQ(store.VerifyAll(), "");
  EXPECT_EQ(store.Problems(), "");
}

TEST(FullDisk, TheBallastLetsTheMapBeOpened) {
  Store store(GreedyOptions());
  store.MustStart();
  ASSERT_OK(store.Write(1, 0, 4));
  ASSERT_OK(store.Settle());
  ASSERT_TRUE(store.disk().Exists(kBallastPath));
  store.Crash();
  store.disk().SetCapacity(store.disk().used_bytes());
  ASSERT_OK(store.Open());
  EXPECT_FALSE(store.disk().Exists(kBallastPath));
  EXPECT_EQ(store.VerifyAll(), "");
  EXPECT_EQ(store.Problems(), "");
}

// Another program takes the space between the look whether a checkpoint fits and its writes, or a
// compaction's.
TEST(FullDisk, TheBallastGivesWayToAMapThatIsBeingWritten) {
  Store::Options options = GreedyOptions();
  options.engine.inline_map = true;
  Store store(options);
  store.MustStart();
  ASSERT_OK(store.Write(1, 0, 4));
  ASSERT_OK(store.Flush());
  store->RequestCheckpoint();
  std::unique_ptr<Job> job;
  while (job == nullptr || std::string_view(job->name()) != "checkpoint") {
    if (job != nullptr) {
      job->Run();
      store->FinishJob(std::move(job));
    }
    job = store->NextJob();
    ASSERT_NE(job, nullptr);
  }
  ASSERT_TRUE(store.disk().Exists(kBallastPath));
  store.disk().SetCapacity(store.disk().used_bytes());
  const uint64_t before = store->Stats().checkpoints;
  job->Run();
  store->FinishJob(std::move(job));
  EXPECT_EQ(store->Stats().checkpoints, before + 1);
  EXPECT_FALSE(store.disk().Exists(kBallastPath));
  store.disk().SetCapacity(40u << 20);
  EXPECT_OK(store->Checkpoint());
  EXPECT_EQ(store.VerifyAll(), "");
  store.Crash();
  ASSERT_OK(store.Open());
  EXPECT_EQ(store.VerifyAll(), "");
}

TEST(FullDisk, ABallastThatWasCutShortIsMadeWhole) {
  Store store(GreedyOptions());
  store.MustStart();
  store.Crash();
  const uint64_t used = store.disk().used_bytes();
  ASSERT_OK(store.disk().Unlink(kBallastPath));
  store.WriteFile(kBallastPath, "a part");
  ASSERT_LT(store.disk().used_bytes(), used);
  ASSERT_OK(store.Open());
  EXPECT_GE(store.disk().used_bytes(), used);
}

}  // namespace
}  // namespace hydra::test
