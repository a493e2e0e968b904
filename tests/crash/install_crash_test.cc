// SPDX-License-Identifier: Apache-2.0
//
// An install, ended by power loss at each of its I/Os in turn, and resumed; and again while it is
// being resumed. However often it dies, the replica never forgets that it was installing, and ends
// up equal to its source. With bare rows: what was delivered stays, and what it had accepted itself
// is never owed.
#include <memory>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/support/install_driver.h"

namespace hydra::test {
namespace {

Store::Options InstallOptions(uint64_t seed) {
  Store::Options options;
  options.disk.seed = seed;
  options.segment_bytes = 256 * 1024;
  options.engine.capacity_bytes = 16 * options.segment_bytes;
  return options;
}

Status Put(Store* store, std::vector<Operation> operations) {
  HYDRA_RETURN_IF_ERROR(store->Propose(1, std::move(operations)));
  return store->Settle();
}

// Seven instances up to its checkpoint and two behind it, so that some blocks are newer than what
// the install leads to.
std::unique_ptr<Store> MakeSource() {
  auto source = std::make_unique<Store>(Store::Options());
  source->MustStart();
  const auto must = [](const Status& status) { ASSERT_TRUE(status.ok()) << status.ToString(); };
  must(Put(source.get(), {WriteOp(0, 12), WriteOp(300, 6), WriteOp(600, 4)}));
  must(Put(source.get(), {WriteOp(4, 3)}));
  must(Put(source.get(), {UnmapOp(2, 4), WriteOp(20, 6)}));
  must(Put(source.get(), {ZeroExtentsOp({2}), ZeroOp(10, 2)}));
  must(Put(source.get(), {WriteOp(601, 1), WriteOp(301, 2)}));
  must(Put(source.get(), {OpaqueOp("session"), WriteOp(40, 5)}));
  must(Put(source.get(), {UnmapOp(303, 1)}));
  must(source->Checkpoint());
  must(Put(source.get(), {WriteOp(21, 2), UnmapOp(40, 1)}));
  must(Put(source.get(), {WriteOp(22, 1), ZeroOp(0, 1)}));
  return source;
}

struct Way {
  InstallMode mode;
  bool bare = false;
};

// A replica that has applied two of them, with a second group beside it. It has accepted the fifth
// and the sixth before and behind its checkpoint: the blocks that it may find there.
std::unique_ptr<Store> MakeTarget(Store* source, uint64_t seed, Way way) {
  auto target = std::make_unique<Store>(InstallOptions(seed));
  target->MustStart();
  EXPECT_TRUE(target->CreateGroup(2, 2).ok());
  EXPECT_TRUE(target->Flush().ok());
  EXPECT_TRUE(Follow(source, target.get(), 1, 2).ok());
  const auto accept = [&](Instance instance) {
    const Proposal* value = source->model().group(1).chosen[instance - 1];
    EXPECT_TRUE(target->Accept(1, instance, kFirstBallot, value).ok());
    EXPECT_TRUE(target->Flush().ok());
  };
  if (way.bare) accept(5);
  EXPECT_TRUE(target->Checkpoint().ok());
  if (way.bare) accept(6);
  return target;
}

InstallDriver::Options In(Way way) {
  InstallDriver::Options options;
  options.mode = way.mode;
  options.bare = way.bare;
  options.max_pages = 5;
  options.max_rows = 7;
  return options;
}

bool Finished(Store* source, Store* target) {
  const GroupInfo info = *(*target)->Info(1);
  return !info.installing && info.applied >= (*source)->Info(1)->state_at;
}

// The install, with life going on around it; up to the end or the first failure.
Status Live(Store* source, Store* target, Way way) {
  InstallDriver driver(source, target, 1, In(way));
  for (int round = 1; !Finished(source, target); ++round) {
    HYDRA_RETURN_IF_ERROR(driver.QueueNext());
    if (round % 2 == 0) HYDRA_RETURN_IF_ERROR(target->Write(2, round % 5, 2));
    HYDRA_RETURN_IF_ERROR(target->Flush());
    if (round == 3) HYDRA_RETURN_IF_ERROR(target->Checkpoint());
    if (round == 4) {
      HYDRA_RETURN_IF_ERROR(target->Accept(1, 9, kFirstBallot, source->model().group(1).chosen[8]));
    }
    if (round % 3 == 0) HYDRA_RETURN_IF_ERROR(target->ApplyAll());
    if (!way.bare || round % 4 != 3) continue;
    const Status delivered = driver.QueueDelivery(2);
    if (delivered.code() != Code::kNotFound) HYDRA_RETURN_IF_ERROR(delivered);
  }
  // A part of what was taken in before death may not be counted yet.
  if (way.bare) HYDRA_RETURN_IF_ERROR(target->RunJobs());
  HYDRA_RETURN_IF_ERROR(driver.DeliverAll());
  target->model().Learned(1, source->model().group(1));
  HYDRA_RETURN_IF_ERROR(target->Settle());
  return target->Checkpoint();
}

// Opens it, goes on to the end and compares (with the source's twin: a digest takes a checkpoint,
// and the source is to stay as it is).
std::string BothSurvive(Store* source, Store* target, Way way) {
  static const std::unique_ptr<Store> kTwin = MakeSource();
  Status status = target->Open();
  if (!status.ok()) return "open: " + status.ToString();
  if (!target->Problems().empty()) return target->Problems();
  status = Live(source, target, way);
  if (!status.ok()) return "going on: " + status.ToString();
  if ((*target)->MayOwe(1)) return "blocks are owed in the end";
  return target->Problems() + Differences(kTwin.get(), target, 1) + target->VerifySettled();
}

class InstallCrash : public testing::TestWithParam<Way> {};

TEST_P(InstallCrash, PowerCutAfterEverySingleIoIsResumed) {
  const std::unique_ptr<Store> source = MakeSource();
  const std::unique_ptr<Store> begun = MakeTarget(source.get(), 1, GetParam());
  begun->PowerLoss();
  std::unique_ptr<Store> whole = begun->Fork(1);
  ASSERT_TRUE(whole->Open().ok());
  const uint64_t before = whole->disk().io_count();
  const Status lived = Live(source.get(), whole.get(), GetParam());
  ASSERT_TRUE(lived.ok()) << lived.ToString();
  const uint64_t ios = whole->disk().io_count() - before;
  ASSERT_EQ(whole->VerifySettled(), "");
  ASSERT_GT(ios, 20u);
  for (uint64_t n = 1; n <= ios; ++n) {
    SCOPED_TRACE(fmt::format("power cut at I/O {} of {}", n, ios));
    std::unique_ptr<Store> store = begun->Fork(n * 1000);
    ASSERT_TRUE(store->Open().ok());
    store->disk().CutPowerAfter(n);
    (void)Live(source.get(), store.get(), GetParam());
    ASSERT_FALSE(store->disk().powered());
    store->PowerLoss();
    // It dies once more, somewhere in recovery or soon after.
    store->disk().CutPowerAfter(n % 13 + 1);
    if (store->Open().ok()) (void)Live(source.get(), store.get(), GetParam());
    if (store->disk().powered()) store->disk().CutPowerAfter(0);
    ASSERT_EQ(store->Problems(), "");
    store->PowerLoss();
    ASSERT_EQ(BothSurvive(source.get(), store.get(), GetParam()), "");
  }
}

INSTANTIATE_TEST_SUITE_P(Crash, InstallCrash,
                         testing::Values(Way{InstallMode::kImage}, Way{InstallMode::kDelta}));
INSTANTIATE_TEST_SUITE_P(CrashBare, InstallCrash,
                         testing::Values(Way{InstallMode::kImage, true},
                                         Way{InstallMode::kDelta, true}));

// A record nobody heard of is whole or not there; a checkpoint cut short repeats what it holds.
TEST(Crash, AnInstallSurvivesProcessDeathAfterEveryRecord) {
  const std::unique_ptr<Store> source = MakeSource();
  for (const Way way : {Way{InstallMode::kImage}, Way{InstallMode::kDelta},
                        Way{InstallMode::kImage, true}, Way{InstallMode::kDelta, true}}) {
    for (int records = 1; records < 20; ++records) {
      SCOPED_TRACE(fmt::format("{} records", records));
      const std::unique_ptr<Store> target = MakeTarget(source.get(), records, way);
      InstallDriver driver(source.get(), target.get(), 1, In(way));
      for (int i = 0; i < records && !Finished(source.get(), target.get()); ++i) {
        ASSERT_TRUE(driver.QueueNext().ok());
        Batch* batch = (*target)->NextBatch(target->clock().Now());
        ASSERT_NE(batch, nullptr);
        ASSERT_TRUE(batch->Write().ok());
        if (i + 1 < records) target->Complete(batch, Status::Ok());
      }
      target->Crash();
      ASSERT_TRUE(target->Open().ok());
      ASSERT_EQ(target->Problems(), "");
      target->PowerLoss();
      ASSERT_EQ(BothSurvive(source.get(), target.get(), way), "");
    }
  }
}

}  // namespace
}  // namespace hydra::test
