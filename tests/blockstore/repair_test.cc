// SPDX-License-Identifier: Apache-2.0
//
// A rotten block is replaced by a good copy: durably, once, and never in the place of anything
// newer.
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/crc32c.h"
#include "base/rng.h"
#include "blockstore/segment_table.h"
#include "tests/support/gtest_status.h"
#include "tests/support/store_fixture.h"

namespace hydra::test {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint64_t kRepairToken = 1ull << 40;
constexpr uint64_t kBlocks = 8;

class RepairTest : public testing::Test {
 protected:
  static Store::Options Small() {
    Store::Options options;
    options.segment_bytes = 256 * 1024;
    return options;
  }
  explicit RepairTest() : store_(std::make_unique<Store>(Small())) {
    store_->MustStart();
    for (Lba lba = 0; lba < kBlocks; ++lba) EXPECT_OK(WriteBlock(lba));
  }

  Status WriteBlock(Lba lba, uint64_t count = 1) {
    HYDRA_RETURN_IF_ERROR(store_->Write(1, lba, count));
    HYDRA_RETURN_IF_ERROR(store_->Flush());
    return store_->Apply(1);
  }

  // Flips a bit of every copy of the block that is on disk; returns the newest copy's good bytes.
  Buffer Rot(Lba lba) {
    Buffer good;
    for (const std::string& path : store_->SegmentPaths()) {
      const std::string file = store_->ReadFile(path);
      for (size_t at = 0; at < file.size(); at += kPageSize) {
        const auto* page = reinterpret_cast<const uint8_t*>(file.data()) + at;
        if (!DescribeBlock({page, kPageSize}).starts_with(fmt::format("group 1 block {} ", lba))) {
          continue;
        }
        good = Buffer::Allocate(kPageSize);
        std::copy_n(page, kPageSize, good.data());
        store_->disk().FlipBit(path, at + 1000, 3);
      }
    }
    EXPECT_GT(good.size(), 0u) << "no copy of block " << lba;
    return good;
  }
  // What a read says is rotten.
  std::vector<Damage> Damaged(Lba lba, uint64_t count = 1) {
    auto job = (*store_)->PlanRead(1, lba, count);
    EXPECT_OK(job.status());
    (*job)->Run();
    DamagedRead damaged;
    const auto read = (*store_)->FinishRead(std::move(*job), &damaged);
    EXPECT_EQ(read.ok(), damaged.blocks.empty());
    return damaged.blocks;
  }
  Status Repair(const Damage& damage, const Buffer& good) {
    return (*store_)->Repair(damage, {{good, 0, good.size()}}, kRepairToken);
  }
  // With what had been applied before. (Open would complain of the rotten entry in the log.)
  void Reopen() {
    ASSERT_OK(store_->OpenUnchecked());
    const Instance applied = (*store_)->Info(1)->applied;
    for (Instance i = applied + 1; i <= store_->model().group(1).applied; ++i) {
      ASSERT_OK((*store_)->Apply(1, i, kFirstBallot));
    }
  }
  // The blocks and the map are right. (The log may keep a rotten entry until it is truncated.)
  std::string CheckBlocks() {
    Status status = store_->Settle();
    if (status.ok()) status = store_->Checkpoint();
    if (status.ok()) status = store_->RunJobs();
    if (!status.ok()) return status.ToString();
    return store_->model().VerifyBlocks(store_->engine()) +
           store_->model().VerifyScans(store_->engine(), 1) +
           store_->model().VerifyAccounting(store_->engine());
  }
  // Writes what is queued. True if a repair completed.
  bool WriteOut() {
    bool repaired = false;
    while (Batch* batch = (*store_)->NextBatch(store_->clock().Now())) {
      std::vector<Completion> completions;
      (*store_)->BatchDone(batch, batch->Write(), store_->clock().Now(), &completions);
      for (const Completion& completion : completions) {
        if (completion.token == kRepairToken) {
          repaired = true;
        } else {
          store_->Fail(store_->model().Completed(completion.token));
        }
      }
    }
    return repaired;
  }
  void RunCheckpointJob() {
    (*store_)->RequestCheckpoint();
    const uint64_t before = (*store_)->Stats().checkpoints;
    for (int i = 0; i < 100 && (*store_)->Stats().checkpoints == before; ++i) {
      auto job = (*store_)->NextJob();
      ASSERT_NE(job, nullptr);
      job->Run();
      (*store_)->FinishJob(std::move(job));
    }
    ASSERT_GT((*store_)->Stats().checkpoints, before);
  }
  std::vector<Damage> ScrubRound(uint64_t budget = 64 * 1024) {
    std::vector<Damage> found;
    for (int i = 0; i < 10'000; ++i) {
      const auto done = (*store_)->Scrub(budget, &found);
      EXPECT_OK(done.status());
      if (!done.ok() || *done) return found;
    }
    ADD_FAILURE() << "a scrub without end";
    return found;
  }

  std::unique_ptr<Store> store_;
};

TEST_F(RepairTest, ARottenBlockIsRepairedForGood) {
  const Buffer good = Rot(3);
  const std::vector<Damage> damage = Damaged(0, kBlocks);
  ASSERT_THAT(damage, SizeIs(1));
  EXPECT_EQ(damage[0].lba, 3u);
  EXPECT_EQ(damage[0].crc, Crc32c(good.span()));
  ASSERT_OK(Repair(damage[0], good));
  EXPECT_THAT(Damaged(3), SizeIs(1)) << "not before it is durable";
  EXPECT_TRUE(WriteOut());
  EXPECT_THAT(Damaged(0, kBlocks), IsEmpty());
  EXPECT_EQ((*store_)->Stats().repaired_blocks, 1u);
  store_->PowerLoss();
  Reopen();
  EXPECT_EQ(CheckBlocks(), "");
  store_->PowerLoss();
  Reopen();
  EXPECT_EQ(CheckBlocks() + store_->Problems(), "");
  EXPECT_THAT(ScrubRound(), IsEmpty());
}

TEST_F(RepairTest, ADamagedReadHasTheOtherBlocks) {
  Rot(2);
  Rot(5);
  auto job = (*store_)->PlanRead(1, 0, kBlocks);
  ASSERT_OK(job.status());
  (*job)->Run();
  DamagedRead damaged;
  ASSERT_EQ((*store_)->FinishRead(std::move(*job), &damaged).status().code(), Code::kCorruption);
  ASSERT_THAT(damaged.blocks, SizeIs(2));
  for (Lba lba = 0; lba < kBlocks; ++lba) {
    const auto block = damaged.rest.data.span().subspan(lba * kPageSize, kPageSize);
    const bool rotten = lba == 2 || lba == 5;
    EXPECT_EQ(Crc32c(block) == damaged.rest.blocks[lba].crc, !rotten) << lba;
    if (rotten) {
      EXPECT_EQ(DescribeBlock(block), "zeroes");
    }
  }
  EXPECT_THAT((*store_)->TakeDamage(), IsEmpty()) << "told already";
  EXPECT_EQ((*store_)->Read(1, 2, 1).status().code(), Code::kCorruption);
  EXPECT_THAT((*store_)->TakeDamage(), SizeIs(1)) << "nobody was told";
  EXPECT_THAT((*store_)->TakeDamage(), IsEmpty());
}

TEST_F(RepairTest, OnlyTheVeryBlockIsTaken) {
  const Buffer good = Rot(3);
  const Damage damage = Damaged(3).at(0);
  Buffer other = Buffer::Allocate(kPageSize);
  EXPECT_EQ(Repair(damage, other).code(), Code::kInvalidArgument);
  EXPECT_EQ(Repair(damage, Buffer::Allocate(2 * kPageSize)).code(), Code::kInvalidArgument);
  Damage elsewhere = damage;
  elsewhere.lba = 4;
  EXPECT_EQ(Repair(elsewhere, good).code(), Code::kFailedPrecondition);
  elsewhere = damage;
  elsewhere.group = 9;
  EXPECT_EQ(Repair(elsewhere, good).code(), Code::kNotFound);
  elsewhere = damage;
  elsewhere.version += 1;
  EXPECT_EQ(Repair(elsewhere, good).code(), Code::kFailedPrecondition);
  ASSERT_OK(Repair(damage, good));
  ASSERT_TRUE(WriteOut());
  EXPECT_EQ(Repair(damage, good).code(), Code::kFailedPrecondition) << "repaired already";
}

TEST_F(RepairTest, TwoRepairsOfABlockAreOne) {
  const Buffer good = Rot(3);
  const Damage damage = Damaged(3).at(0);
  ASSERT_OK(Repair(damage, good));
  ASSERT_OK(Repair(damage, good));
  WriteOut();
  EXPECT_EQ((*store_)->Stats().repaired_blocks, 1u);
  EXPECT_EQ(CheckBlocks(), "");
}

// --- Races ------------------------------------------------------------------------------------

// Whatever happens to the block between finding and repairing it, also if all of it is in LevelDB
// by then and lies in the same segment.
class RepairRace : public RepairTest, public testing::WithParamInterface<std::tuple<int, bool>> {};
TEST_P(RepairRace, LeavesWhatIsNewerAlone) {
  const auto [how, checkpoint] = GetParam();
  const Buffer good = Rot(3);
  const Damage damage = Damaged(3).at(0);
  ASSERT_OK(Repair(damage, good));
  switch (how) {
    case 0: ASSERT_OK(store_->Write(1, 3)); break;
    case 1: ASSERT_OK(store_->Unmap(1, 3)); break;
    case 2: ASSERT_OK(store_->Zero(1, 3)); break;
    case 3: ASSERT_OK(store_->ZeroExtents(1, {0})); break;
    default: FAIL();
  }
  // The entry goes first: the repair is background work.
  Batch* batch = (*store_)->NextBatch(store_->clock().Now());
  ASSERT_NE(batch, nullptr);
  ASSERT_OK(store_->WriteBatch(batch));
  ASSERT_OK(store_->Apply(1));
  if (checkpoint) RunCheckpointJob();
  EXPECT_TRUE(WriteOut());
  EXPECT_EQ((*store_)->Stats().repaired_blocks, 0u);
  EXPECT_EQ(store_->model().VerifyBlocks(store_->engine()), "");
  EXPECT_EQ(Repair(damage, good).code(), Code::kFailedPrecondition);
  store_->Crash();
  Reopen();
  EXPECT_EQ(CheckBlocks() + store_->Problems(), "");
}
INSTANTIATE_TEST_SUITE_P(Repair, RepairRace,
                         testing::Combine(testing::Range(0, 4), testing::Bool()));

TEST_F(RepairTest, AGroupDroppedMeanwhileStaysDropped) {
  const Buffer good = Rot(3);
  const Damage damage = Damaged(3).at(0);
  ASSERT_OK(Repair(damage, good));
  ASSERT_OK(store_->DropGroup(1));
  WriteOut();
  EXPECT_EQ(Repair(damage, good).code(), Code::kNotFound);
  store_->Crash();
  ASSERT_OK(store_->Open());
  EXPECT_EQ(store_->Problems(), "");
}

// --- Vacuum -----------------------------------------------------------------------------------

// A segment that holds a rotten block cannot be cleaned; once it is repaired, it is free.
TEST(RepairVacuum, GetsPastASegmentWhoseRottenBlocksAreRepaired) {
  Store::Options options;
  options.segment_bytes = 256 * 1024;
  options.engine.capacity_bytes = 14 * options.segment_bytes;
  Store store(options);
  store.MustStart();
  // So much that lives that cleaning has to copy; block 7 is written once, in the first segment.
  Rng rng(5);
  ASSERT_OK(store.Write(1, 7, 1));
  ASSERT_OK(store.Settle());
  const std::string first = store.SegmentPaths().front();
  Buffer good = Buffer::Allocate(kPageSize);
  const std::string file = store.ReadFile(first);
  for (size_t at = 0; at < file.size(); at += kPageSize) {
    const auto* page = reinterpret_cast<const uint8_t*>(file.data()) + at;
    if (!DescribeBlock({page, kPageSize}).starts_with("group 1 block 7 ")) continue;
    std::copy_n(page, kPageSize, good.data());
    store.disk().FlipBit(first, at, 1);
  }
  std::vector<Damage> damage;
  for (int round = 0; round < 4000 && damage.empty(); ++round) {
    ASSERT_OK(store.Write(1, 100 + rng.Below(250), 1));
    ASSERT_OK(store.Settle());
    damage = store->TakeDamage();
  }
  ASSERT_THAT(damage, SizeIs(1)) << "vacuum never met it";
  EXPECT_EQ(damage[0].lba, 7u);
  const auto exists = [&] {
    for (const SegmentStats& segment : store->Stats().segments) {
      if (segment.segment == damage[0].segment) return true;
    }
    return false;
  };
  ASSERT_OK(store.Checkpoint());
  EXPECT_TRUE(exists()) << "a block that is not copied keeps its segment";
  ASSERT_OK(store->Repair(damage[0], {{good, 0, kPageSize}}, 0));
  std::vector<Completion> completions;
  ASSERT_OK(store->Drain(&completions));
  ASSERT_OK(store.Checkpoint());
  EXPECT_FALSE(exists());
  EXPECT_EQ(store.model().VerifyBlocks(store.engine()) + store.Problems(), "");
}

// --- Crashes ----------------------------------------------------------------------------------

// Power fails in every I/O of a repair and the checkpoint behind it. What completed is repaired;
// what did not is rotten still, or repaired; nothing else is harmed.
TEST_F(RepairTest, PowerCutAtEveryIoOfARepair) {
  const Buffer good = Rot(3);
  store_->Crash();
  const std::unique_ptr<Store> dead = std::move(store_);
  bool finished = false;
  uint64_t n = 1;
  for (; !finished && n < 1000; ++n) {
    store_ = dead->Fork(n);
    ASSERT_OK(store_->OpenUnchecked());
    const Damage damage = Damaged(3).at(0);
    store_->disk().CutPowerAfter(n);
    ASSERT_OK(Repair(damage, good));
    const bool completed = WriteOut();
    if (store_->disk().powered()) (void)store_->Checkpoint();
    finished = store_->disk().powered();
    store_->PowerLoss();
    ASSERT_OK(store_->OpenUnchecked()) << "power cut at I/O " << n;
    const std::vector<Damage> left = Damaged(0, kBlocks);
    if (completed) {
      ASSERT_THAT(left, IsEmpty()) << "power cut at I/O " << n;
    }
    if (!left.empty()) {
      ASSERT_THAT(left, SizeIs(1));
      ASSERT_EQ(left[0], damage);
      ASSERT_OK(Repair(left[0], good));
      ASSERT_TRUE(WriteOut());
    }
    ASSERT_THAT(Damaged(0, kBlocks), IsEmpty());
    ASSERT_THAT(ScrubRound(), IsEmpty());
  }
  EXPECT_TRUE(finished);
  EXPECT_GT(n, 3u);
}

// --- Scrub ------------------------------------------------------------------------------------

TEST_F(RepairTest, ScrubSeesTheOverlayAndTheCheckpointAlike) {
  ASSERT_OK(store_->Checkpoint());
  Rot(1);                     // in LevelDB
  ASSERT_OK(WriteBlock(20));  // in the overlay alone
  Rot(20);
  for (const uint64_t budget : {uint64_t{1}, uint64_t{1} << 20}) {
    const std::vector<Damage> found = ScrubRound(budget);
    std::set<Lba> lbas;
    for (const Damage& damage : found) lbas.insert(damage.lba);
    EXPECT_EQ(lbas, (std::set<Lba>{1, 20})) << "budget " << budget;
    EXPECT_THAT(found, SizeIs(2));
  }
}

TEST_F(RepairTest, ScrubReadsOpenEntriesInPieces) {
  for (Lba lba = 30; lba < 60; ++lba) ASSERT_OK(store_->Write(1, lba));
  ASSERT_OK(store_->Flush());
  Rot(35);
  Rot(55);
  std::vector<Damage> found;
  uint64_t most = 0;
  for (bool end = false; !end;) {
    auto job = (*store_)->PlanScrub(4 * kPageSize);
    ASSERT_OK(job.status());
    (*job)->Run();
    const auto piece = (*store_)->FinishScrub(std::move(*job));
    ASSERT_OK(piece.status());
    most = std::max(most, piece->bytes);
    found.insert(found.end(), piece->found.begin(), piece->found.end());
    end = piece->end;
  }
  EXPECT_LE(most, 8 * kPageSize);
  ASSERT_THAT(found, SizeIs(2));
  for (const Damage& damage : found) EXPECT_EQ(damage.what, Damage::What::kRecordPayload);
}

TEST_F(RepairTest, AnEntryAppliedWhileItIsScrubbedIsReportedAsItsBlocks) {
  ASSERT_OK(store_->Write(1, 30, 4));
  ASSERT_OK(store_->Flush());
  Rot(32);
  std::vector<Damage> found;
  for (bool end = false; !end;) {
    auto job = (*store_)->PlanScrub(1 << 20);
    ASSERT_OK(job.status());
    (*job)->Run();
    ASSERT_OK(store_->ApplyAll());
    const auto piece = (*store_)->FinishScrub(std::move(*job));
    ASSERT_OK(piece.status());
    found.insert(found.end(), piece->found.begin(), piece->found.end());
    end = piece->end;
    if (!found.empty()) break;
  }
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].what, Damage::What::kBlock);
  EXPECT_EQ(found[0].lba, 32u);
}

TEST_F(RepairTest, ScrubDoesNotReportWhatIsDeadByThen) {
  ASSERT_OK(store_->Checkpoint());
  Rot(3);
  auto job = (*store_)->PlanScrub(1 << 20);
  ASSERT_OK(job.status());
  EXPECT_EQ((*store_)->PlanScrub(1).status().code(), Code::kBusy) << "one piece at a time";
  (*job)->Run();
  ASSERT_OK(WriteBlock(3));
  const auto piece = (*store_)->FinishScrub(std::move(*job));
  ASSERT_OK(piece.status());
  EXPECT_THAT(piece->found, IsEmpty());
}

// --- Restart ----------------------------------------------------------------------------------

TEST_F(RepairTest, ARestartKnowsThatTheFirstOfSeveralOpenEntriesIsRotten) {
  const Instance first = store_->model().group(1).last() + 1;
  for (Lba lba = 30; lba < 34; ++lba) {
    ASSERT_OK(store_->Write(1, lba));
    ASSERT_OK(store_->Flush());
  }
  ASSERT_OK(store_->Checkpoint());
  ASSERT_OK(store_->Write(1, 34));
  ASSERT_OK(store_->Flush());
  ASSERT_OK(store_->Write(1, 35));
  ASSERT_OK(store_->Flush());
  store_->Crash();
  Rot(30);  // before the checkpoint
  Rot(34);  // replayed, and not the last batch
  ASSERT_OK(store_->OpenUnchecked());
  EXPECT_EQ((*store_)->recovery().faulty, 2u);
  std::set<Instance> faulty;
  for (const LogEntryInfo& entry : (*store_)->LogEntries(1, first, kMaxInstance)) {
    if (entry.faulty) faulty.insert(entry.instance);
  }
  EXPECT_EQ(faulty, (std::set<Instance>{first, first + 4}));
  EXPECT_EQ((*store_)->Apply(1, first, kFirstBallot).code(), Code::kCorruption);
  // Fetched from a peer and accepted again, it is whole.
  ASSERT_OK(store_->Accept(1, first, kFirstBallot, store_->model().group(1).Newest(first)->value));
  ASSERT_OK(store_->Flush());
  EXPECT_OK((*store_)->Apply(1, first, kFirstBallot));
}

// --- Sectors that cannot be read ----------------------------------------------------------------

// The disk says that it cannot give an accepted entry back, instead of giving back something else.
class UnreadableEntry : public RepairTest, public testing::WithParamInterface<int> {};
TEST_P(UnreadableEntry, IsAsFaultyAsOneWhoseSumIsWrong) {
  ASSERT_OK(WriteBlock(30));
  ASSERT_OK(store_->Write(1, 31));
  ASSERT_OK(store_->Flush());
  const Instance open = (*store_)->Info(1)->applied + 1;
  const auto faulty = [&] {
    const auto entries = (*store_)->LogEntries(1, open, open);
    return entries.size() == 1 && entries[0].faulty;
  };
  ASSERT_FALSE(faulty());
  store_->disk().FailAll(IoKind::kRead, "/segments/");
  switch (GetParam()) {
    case 0: {
      bool told = false;
      for (const Damage& damage : ScrubRound()) {
        told = told || (damage.what == Damage::What::kRecordPayload && damage.instance == open);
      }
      EXPECT_TRUE(told);
      break;
    }
    case 1: {
      auto job = (*store_)->PlanLogRead({1, open, open, SIZE_MAX, nullptr});
      ASSERT_OK(job.status());
      (*job)->Run();
      const auto entries = (*store_)->FinishLogRead(std::move(*job));
      ASSERT_OK(entries.status());
      EXPECT_THAT(*entries, IsEmpty());
      EXPECT_THAT((*store_)->TakeDamage(), SizeIs(1));
      break;
    }
    case 2:
      EXPECT_CODE((*store_)->ReadLogEntry(1, open).status(), Code::kIoError);
      EXPECT_THAT((*store_)->TakeDamage(), SizeIs(1));
      break;
    case 3: EXPECT_CODE((*store_)->ReadLogRecord(1, open).status(), Code::kIoError); break;
    default: FAIL();
  }
  EXPECT_TRUE(faulty());
  store_->disk().FailAll(IoKind::kRead, "");
}
INSTANTIATE_TEST_SUITE_P(Repair, UnreadableEntry, testing::Range(0, 4));

}  // namespace
}  // namespace hydra::test
