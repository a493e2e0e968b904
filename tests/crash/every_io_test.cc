// SPDX-License-Identifier: Apache-2.0
//
// One short life of a store that meets everything (two groups and a third that is dropped, writes,
// deletes, checkpoints, segment switches, vacuum, truncation), ended at each of its I/Os in turn.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/support/effort.h"
#include "tests/support/store_fixture.h"

namespace hydra::test {
namespace {

using ScriptStep = std::function<Status(Store*)>;

Store::Options SmallOptions(uint64_t seed) {
  Store::Options options;
  options.disk.seed = seed;
  options.segment_bytes = 256 * 1024;
  options.engine.capacity_bytes = 7 * options.segment_bytes;  // so few that it needs vacuum
  options.engine.log_entries_kept = 4;
  return options;
}

Status Overwrite(Store* store, GroupId group, Lba first, uint64_t blocks) {
  for (uint64_t b = 0; b < blocks; b += 8) {
    HYDRA_RETURN_IF_ERROR(store->Write(group, first + b, 8));
    HYDRA_RETURN_IF_ERROR(store->Flush());
    HYDRA_RETURN_IF_ERROR(store->ApplyAll());
  }
  return Status::Ok();
}

Status WriteWithoutHearingOfIt(Store* store) {
  HYDRA_RETURN_IF_ERROR(store->Write(2, 3, 2));
  Batch* batch = store->engine()->NextBatch(store->clock().Now());
  if (batch == nullptr) return Status::Ok();
  const Status written = batch->Write();
  // The next step, unless the process dies here, hears of it.
  store->Complete(batch, written);
  return written;
}

const std::vector<ScriptStep>& Script() {
  static const std::vector<ScriptStep> kSteps = {
      [](Store* s) { return s->CreateGroup(1, 1); },
      [](Store* s) { return s->CreateGroup(2, 2); },
      [](Store* s) { return s->Flush(); },
      [](Store* s) {
        return s->Propose(1, {WriteOp(0, 3), WriteOp(2, 2), OpaqueOp("session")});
      },
      [](Store* s) { return s->Write(2, 0, 2); },
      [](Store* s) {
        return s->SaveHardState(1, {2, 1}, "promise");
      },
      [](Store* s) { return s->Apply(1); },  // before it is durable
      [](Store* s) { return s->Flush(); },
      [](Store* s) { return s->ApplyAll(); },
      [](Store* s) { return s->Unmap(1, 1); },
      [](Store* s) {
        return s->Accept(1, 4, {2, 1},
                         s->model().NewProposal(s->model().group(1), {WriteOp(9, 1)}));
      },
      [](Store* s) { return s->Flush(); },
      [](Store* s) { return s->Checkpoint(); },
      [](Store* s) {
        return s->Accept(1, 3, {2, 1}, s->model().NewProposal(s->model().group(1), {Operation()}));
      },
      [](Store* s) {
        return s->Accept(1, 4, {3, 1},
                         s->model().NewProposal(s->model().group(1), {WriteOp(9, 2)}));
      },
      [](Store* s) { return s->Settle(); },
      [](Store* s) { return Overwrite(s, 1, 32, 96); },
      [](Store* s) { return Overwrite(s, 1, 32, 64); },
      [](Store* s) { return s->Checkpoint(); },
      [](Store* s) { return s->Truncate(1, 4); },
      [](Store* s) {
        s->clock().Advance(20 * kMillisecond);
        return s->Flush();
      },
      [](Store* s) { return s->CreateGroup(3, 1); },
      [](Store* s) { return s->Write(3, 0, 8); },
      [](Store* s) { return s->Settle(); },
      [](Store* s) { return s->Checkpoint(); },
      [](Store* s) { return s->DropGroup(3); },
      [](Store* s) { return s->Flush(); },
      [](Store* s) { return s->ZeroExtents(1, {0}); },
      [](Store* s) { return Overwrite(s, 2, 8, 32); },
      [](Store* s) { return Overwrite(s, 1, 32, 64); },
      [](Store* s) {
        s->engine()->RequestCheckpoint();
        return s->RunJobs();
      },
      [](Store* s) { return s->Settle(); },
      [](Store* s) { return s->Checkpoint(); },
      [](Store* s) { return s->RunJobs(); },
      WriteWithoutHearingOfIt,
      [](Store* s) { return s->Zero(1, 40, 4); },
      [](Store* s) { return s->Settle(); },
      [](Store* s) { return s->Close(); },
  };
  return kSteps;
}

// Runs the script up to the first failure or to `steps`; "" or what went wrong.
std::string RunScript(Store* store, size_t steps) {
  Status status = store->Create();
  if (status.ok()) status = store->Open();
  for (size_t i = 0; status.ok() && i < steps; ++i) status = Script()[i](store);
  if (!status.ok() && store->disk().powered()) return status.ToString();
  return store->Problems();
}

// The store opens, holds what it must, and can be used.
std::string Survives(Store* store) {
  Status status = store->Open();
  if (status.code() == Code::kNotFound || status.code() == Code::kFailedPrecondition) {
    // Only a store that was never completely created may be absent.
    if (!store->model().Usable().empty()) return "no store: " + status.ToString();
    status = store->Create();
    if (status.ok()) status = store->Open();
  }
  if (!status.ok()) return "open: " + status.ToString();
  if (!store->Problems().empty()) return store->Problems();
  const std::vector<GroupId> groups = store->model().Usable();
  if (!groups.empty()) {
    status = store->ApplyAll();
    if (status.ok()) status = store->Write(groups.front(), 200, 4);
  }
  if (!status.ok()) return "going on: " + status.ToString();
  std::string problems = store->VerifySettled() + store->Problems();
  if (!problems.empty()) return problems;
  store->PowerLoss();
  status = store->Open();
  if (!status.ok()) return "open again: " + status.ToString();
  return store->Problems() + store->VerifyAll();
}

TEST(Crash, TheLifeThatIsEndedAtEachIoHasAVacuum) {
  Store store(SmallOptions(1));
  ASSERT_EQ(RunScript(&store, Script().size() - 1), "");  // not closed yet
  EXPECT_GT(store->Stats().relocated_bytes, 0u);
  EXPECT_GT(store->Stats().segments_freed, 0u);
  EXPECT_EQ(store.VerifySettled() + store.Problems(), "");
}

class EveryIo : public testing::TestWithParam<uint64_t> {};

TEST_P(EveryIo, PowerCutAfterEverySingleIo) {
  const uint64_t seed = GetParam();
  Store whole(SmallOptions(seed));
  ASSERT_EQ(RunScript(&whole, Script().size()), "");
  const uint64_t ios = whole.disk().io_count();
  ASSERT_GT(ios, 100u);
  for (uint64_t n = 1; n <= ios; ++n) {
    Store store(SmallOptions(seed + n * 1000));
    store.disk().CutPowerAfter(n);
    ASSERT_EQ(RunScript(&store, Script().size()), "") << "power cut at I/O " << n;
    ASSERT_FALSE(store.disk().powered()) << n;
    store.PowerLoss();
    ASSERT_EQ(Survives(&store), "") << "power cut at I/O " << n << " of " << ios;
  }
}

INSTANTIATE_TEST_SUITE_P(Crash, EveryIo, testing::Range<uint64_t>(1, 1 + Repeat(3, 1)));

// What recovery showed after a crash must not vanish in a power loss right behind it.
TEST(Crash, ProcessDeathAfterEveryStepThenPowerLoss) {
  for (size_t steps = 0; steps < Script().size(); ++steps) {
    Store store(SmallOptions(steps + 1));
    ASSERT_EQ(RunScript(&store, steps), "");
    store.Crash();
    ASSERT_TRUE(store.Open().ok());
    ASSERT_EQ(store.Problems(), "") << "crash after step " << steps;
    store.PowerLoss();
    ASSERT_EQ(Survives(&store), "") << "power loss after the crash after step " << steps;
  }
}

// A batch that was written, but whose completion nobody heard of, is kept once recovery saw it.
TEST(Crash, ABatchNobodyHeardOfIsSeenWholeAndThenStays) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Store store(SmallOptions(seed));
    store.MustStart();
    ASSERT_TRUE(store.Write(1, 0, 4).ok());
    Batch* batch = store->NextBatch(store.clock().Now());
    ASSERT_NE(batch, nullptr);
    ASSERT_TRUE(batch->Write().ok());
    store.Crash();
    ASSERT_TRUE(store.Open().ok());
    ASSERT_EQ(store.model().group(1).log.size(), 1u);
    store.PowerLoss();
    ASSERT_TRUE(store.Open().ok());
    ASSERT_EQ(store.Problems(), "");
    ASSERT_EQ(store.model().group(1).log.size(), 1u);
  }
}

// The process dies in the middle of a write: the batch is in the device's volatile cache, whole,
// and recovery can read it. Before anybody is told, it must be made durable.
TEST(Crash, ABatchStillInTheCacheIsMadeDurableBeforeItIsShown) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Store::Options options = SmallOptions(seed);
    options.disk.lose_percent = 100;
    options.disk.garble_percent = 0;
    Store store(options);
    store.MustStart();
    ASSERT_TRUE(store.Write(1, 0, 4).ok());
    store.disk().IgnoreSyncs("segments");
    Batch* batch = store->NextBatch(store.clock().Now());
    ASSERT_NE(batch, nullptr);
    ASSERT_TRUE(batch->Write().ok());
    store.Crash();
    store.disk().IgnoreSyncs("");
    ASSERT_TRUE(store.Open().ok());
    ASSERT_EQ(store.model().group(1).log.size(), 1u);
    store.PowerLoss();
    ASSERT_TRUE(store.Open().ok());
    ASSERT_EQ(store.Problems(), "") << "seed " << seed;
  }
}

// Power fails again, and again, at every I/O of the recovery itself.
TEST(Crash, PowerCutAtEveryIoOfRecovery) {
  for (const size_t steps : {12, 17, 20, 28, 34}) {
    Store dead(SmallOptions(steps));
    ASSERT_EQ(RunScript(&dead, steps), "");
    dead.PowerLoss();
    bool finished = false;
    for (uint64_t n = 1; !finished; ++n) {
      std::unique_ptr<Store> store = dead.Fork(n);
      store->disk().CutPowerAfter(n);
      const Status status = store->Open();
      finished = store->disk().powered();
      ASSERT_EQ(status.ok() || !finished, true) << status.ToString();
      if (finished) store->disk().CutPowerAfter(0);
      store->PowerLoss();
      ASSERT_EQ(Survives(store.get()), "") << "step " << steps << ", I/O " << n << " of recovery";
    }
  }
}

}  // namespace
}  // namespace hydra::test
