// SPDX-License-Identifier: Apache-2.0
//
// LevelDB under the map: whatever subset of its unsynced writes a power loss takes, and although
// it closes a rotated log without syncing it (hazard 16), recovery ends in the right map.
#include <memory>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/support/effort.h"
#include "tests/support/gtest_status.h"
#include "tests/support/store_fixture.h"

namespace hydra::test {
namespace {

constexpr uint64_t kBlocks = 1024;  // four extents: rows enough to rotate LevelDB's log

// LevelDB's smallest write buffer: its log is rotated, and tables are written, within one
// checkpoint. Each sector that was not synced is lost, garbled or kept at random.
Store::Options MapOptions(uint64_t seed) {
  Store::Options options;
  options.disk.seed = seed;
  options.disk.lose_percent = seed % 3 == 0 ? 100 : 45;
  options.disk.garble_percent = seed % 3 == 0 ? 0 : 20;
  options.segment_bytes = 1 << 20;
  options.engine.map_write_buffer = 1;
  return options;
}

Status WriteEverything(Store* store) {
  for (Lba lba = 0; lba < kBlocks; lba += 32) {
    HYDRA_RETURN_IF_ERROR(store->Write(1, lba, 32));
    HYDRA_RETURN_IF_ERROR(store->Flush());
    HYDRA_RETURN_IF_ERROR(store->Apply(1));
  }
  return Status::Ok();
}

// Changes of every kind, another part of them each round, and a checkpoint behind each round.
Status ChangeAndCheckpoint(Store* store, unsigned rounds) {
  for (unsigned round = 0; round < rounds; ++round) {
    HYDRA_RETURN_IF_ERROR(store->Unmap(1, 100 + 50 * round, 200));
    HYDRA_RETURN_IF_ERROR(store->ZeroExtents(1, {(2 + round) % 4}));
    HYDRA_RETURN_IF_ERROR(store->Write(1, 600 - 16 * round, 16));
    for (Lba lba = 5 + round; lba < kBlocks; lba += 64) {
      HYDRA_RETURN_IF_ERROR(store->Write(1, lba, 2));
    }
    HYDRA_RETURN_IF_ERROR(store->Zero(1, 256 * round, 256));
    HYDRA_RETURN_IF_ERROR(store->Flush());
    HYDRA_RETURN_IF_ERROR(store->ApplyAll());
    HYDRA_RETURN_IF_ERROR(store->Checkpoint());
  }
  return Status::Ok();
}

void ExpectRightMap(Store* store) {
  ASSERT_OK(store->Open());
  ASSERT_EQ(store->Problems(), "");
  ASSERT_OK(store->ApplyAll());
  ASSERT_EQ(store->model().VerifyBlocks(store->engine()), "");
  ASSERT_EQ(store->VerifySettled(), "");
  ASSERT_EQ(store->Problems(), "");
}

class MapCheckpoint : public testing::TestWithParam<uint64_t> {};

// Checkpoints over rows of earlier ones; power fails at each of their I/Os in turn. LevelDB
// rotates its log and writes tables meanwhile.
TEST_P(MapCheckpoint, PowerLossAtEveryIoEndsInTheRightMap) {
  const uint64_t seed = GetParam();
  Store base(MapOptions(seed));
  base.MustStart();
  ASSERT_OK(WriteEverything(&base));
  ASSERT_OK(base.Checkpoint());
  base.Crash();
  bool finished = false;
  uint64_t n = 0;
  while (!finished) {
    ++n;
    SCOPED_TRACE(fmt::format("seed {} I/O {}", seed, n));
    std::unique_ptr<Store> store = base.Fork(seed * 1000 + n);
    ASSERT_OK(store->Open());
    store->disk().CutPowerAfter(n);
    const Status status = ChangeAndCheckpoint(store.get(), 3);
    finished = store->disk().powered();
    ASSERT_EQ(status.ok(), finished) << status.ToString();
    store->PowerLoss();
    ASSERT_NO_FATAL_FAILURE(ExpectRightMap(store.get()));
  }
  EXPECT_GT(n, 40u) << "too few I/Os for this test to mean anything";
}

INSTANTIATE_TEST_SUITE_P(Seeds, MapCheckpoint, testing::Range<uint64_t>(1, 1 + Repeat(6, 2)));

// Checkpoints one after the other, death between them: nothing relies on a log that LevelDB closed
// without syncing.
TEST(MapFaults, ManyCheckpointsWithRotatedLogs) {
  for (uint64_t seed = 1; seed <= Repeat(25, 5); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Store store(MapOptions(seed));
    store.MustStart();
    for (int round = 0; round < 4; ++round) {
      for (Lba lba = 0; lba < kBlocks; lba += 64) {
        ASSERT_OK(store.Write(1, (lba * 7 + round * 16) % kBlocks, 16));
        ASSERT_OK(store.Flush());
        ASSERT_OK(store.Apply(1));
      }
      ASSERT_OK(store.Checkpoint());
      if (round % 2 == 0) {
        ASSERT_OK(store.Unmap(1, 10u * round, 100));
      }
      ASSERT_OK(store.Settle());
      store.PowerLoss();
      ASSERT_NO_FATAL_FAILURE(ExpectRightMap(&store));
    }
  }
}

// The compactions of LevelDB itself, cut anywhere.
TEST(MapFaults, PowerLossDuringCompactionsEndsInTheRightMap) {
  for (uint64_t seed = 1; seed <= Repeat(40, 8); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Store store(MapOptions(seed));
    store.MustStart();
    store.disk().CutPowerAfter(30 + seed * 17);
    Status status;
    for (int round = 0; status.ok() && round < 6; ++round) {
      status = WriteEverything(&store);
      if (status.ok()) status = store.Checkpoint();
      if (status.ok()) status = store.RunJobs();
    }
    ASSERT_TRUE(status.ok() || !store.disk().powered()) << status.ToString();
    store.PowerLoss();
    ASSERT_NO_FATAL_FAILURE(ExpectRightMap(&store));
  }
}

}  // namespace
}  // namespace hydra::test
