// SPDX-License-Identifier: Apache-2.0
//
// LevelDB on LevelDbEnv when the disk fails: power loss, torn tails, rot, failing calls. How the
// Env runs when nothing fails is in leveldb_env_modes_test.cc.
#include "blockstore/leveldb_env.h"

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <leveldb/db.h>

#include "base/coding.h"
#include "base/rng.h"
#include "base/sim_disk.h"
#include "tests/blockstore/leveldb_env_fixture.h"
#include "tests/support/gtest_status.h"

namespace hydra {
namespace {

void AppendTo(SimDisk* disk, const std::string& path, const std::string& bytes) {
  const std::unique_ptr<File> file = disk->Open(path, {}).value();
  const IoSlice slice{AsBytes(bytes).data(), bytes.size()};
  ASSERT_TRUE(file->PWriteV(file->Size().value(), {&slice, 1}, Durability::kBuffered).ok());
}

// --- Power loss ------------------------------------------------------------------------------

class LevelDbEnvCrash : public testing::TestWithParam<uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Seeds, LevelDbEnvCrash, testing::Values(1, 2, 3));

TEST_P(LevelDbEnvCrash, SyncedBatchesSurvivePowerLossAtEveryIo) {
  LevelDbScript script(120, GetParam());
  uint64_t calls = 0;
  {
    SimDisk disk(Seeded(1));
    TestDatabase database(&disk);
    ASSERT_EQ(script.Run(&database), script.size());
    calls = disk.io_count();
    std::string tables;
    ASSERT_TRUE(database.db->GetProperty("leveldb.stats", &tables));
    ASSERT_NE(tables.find("\n  1 "), std::string::npos) << "no compaction:\n" << tables;
  }
  for (uint64_t n = 1; n <= calls; ++n) {
    SimDisk disk(Seeded(n * 1000 + GetParam()));
    size_t acked = 0;
    {
      TestDatabase database(&disk);
      disk.CutPowerAfter(n);
      acked = script.Run(&database);
      ASSERT_FALSE(disk.powered());
    }
    disk.Restart();
    script.ExpectSurvived(&disk, acked, "power lost at call " + std::to_string(n));
    // Recovery wrote it all anew: it must be as durable as it was.
    disk.PowerLoss();
    disk.Restart();
    script.ExpectSurvived(&disk, acked, "again, after call " + std::to_string(n));
    if (HasFailure()) return;
  }
}

TEST_P(LevelDbEnvCrash, PowerLossDuringRecoveryLosesNothing) {
  LevelDbScript script(60, GetParam());
  Rng rng(GetParam());
  for (int round = 0; round < 300; ++round) {
    SimDisk disk(Seeded(rng.Next()));
    size_t acked = 0;
    {
      TestDatabase database(&disk);
      disk.CutPowerAfter(rng.Between(1, 250));
      acked = script.Run(&database);
    }
    for (int again = 0; again < 3; ++again) {
      if (disk.powered()) disk.PowerLoss();
      disk.Restart();
      disk.CutPowerAfter(rng.Between(1, 25));
      TestDatabase database(&disk);
      database.Open().ok();  // or not
    }
    if (disk.powered()) disk.PowerLoss();
    disk.Restart();
    script.ExpectSurvived(&disk, acked, "round " + std::to_string(round));
    if (HasFailure()) return;
  }
}

// Flushes and compactions run while logs are written, in orders that kInline never has.
TEST_P(LevelDbEnvCrash, SyncedBatchesSurvivePowerLossBesideAThread) {
  LevelDbScript script(120, GetParam());
  Rng rng(GetParam());
  for (int round = 0; round < 150; ++round) {
    SimDisk disk(Seeded(rng.Next()));
    size_t acked = 0;
    {
      TestDatabase database(&disk, LevelDbEnv::Compactions::kThread);
      disk.CutPowerAfter(rng.Between(1, 450));
      acked = script.Run(&database);
    }
    if (disk.powered()) disk.PowerLoss();
    disk.Restart();
    script.ExpectSurvived(&disk, acked, "round " + std::to_string(round));
    if (HasFailure()) return;
  }
}

// Why every batch of a checkpoint is synced (HAZARD 16).
TEST(LevelDbEnvHazard, UnsyncedWriteIsLostAlthoughALaterSyncedOneSurvives) {
  int lost = 0;
  int noticed = 0;
  for (uint64_t seed = 1; seed <= 64; ++seed) {
    for (const bool sync : {false, true}) {
      SimDisk disk(Seeded(seed));
      {
        TestDatabase database(&disk);
        ASSERT_TRUE(database.Open().ok());
        ASSERT_TRUE(database.Put("early", std::string(70'000, 'e'), sync).ok());  // fills a log
        leveldb::WriteOptions synced;
        synced.sync = true;
        ASSERT_TRUE(database.db->Put(synced, "late", "l").ok());  // goes to the next one
        ASSERT_EQ(Files(&disk, "", ".log").size(), 2u);
        disk.PowerLoss();
      }
      disk.Restart();
      TestDatabase database(&disk);
      const leveldb::Status status = database.Open();
      if (sync) {
        ASSERT_TRUE(status.ok()) << status.ToString();
        EXPECT_EQ(database.All().size(), 2u) << "seed " << seed;
      } else if (status.ok()) {
        const Contents found = database.All();
        EXPECT_TRUE(found.contains("late")) << "seed " << seed;
        lost += !found.contains("early");
      } else {
        EXPECT_TRUE(status.IsCorruption()) << status.ToString();
        ++noticed;
      }
    }
  }
  EXPECT_GT(lost, 0);     // the log came back empty
  EXPECT_GT(noticed, 0);  // it came back with holes, and a later log proves it was once whole
}

TEST(LevelDbEnvHazard, CurrentNamesAWholeManifestAfterEveryOpen) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SimDisk disk(Seeded(seed));
    for (int open = 0; open < 4; ++open) {
      {
        TestDatabase database(&disk);
        ASSERT_TRUE(database.Open().ok());
      }
      const std::string current = disk.ReadSmallFile("/map/CURRENT", 100).value();
      disk.PowerLoss();
      disk.Restart();
      ASSERT_EQ(disk.ReadSmallFile("/map/CURRENT", 100).value(), current) << "seed " << seed;
      ASSERT_TRUE(disk.Exists("/map/" + current.substr(0, current.size() - 1)));
    }
  }
}

// --- Torn tails and rot ----------------------------------------------------------------------

TEST(LevelDbEnvTail, EveryFlippedBitOfALogIsFoundOrCutsOnlyTheLastRecord) {
  SimDisk original(Seeded(1));
  {
    TestDatabase database(&original);
    ASSERT_TRUE(database.Open().ok());
    for (const char* key : {"a", "b", "c"}) ASSERT_TRUE(database.Put(key, "value").ok());
  }
  const std::string log = Files(&original, "", ".log").at(0);
  const uint64_t size = SizeOf(&original, log);
  for (uint64_t byte = 0; byte < size; ++byte) {
    const std::unique_ptr<SimDisk> disk = original.Clone(byte);
    disk->FlipBit(log, byte, byte % 8);
    TestDatabase database(disk.get());
    leveldb::Options options = SmallOptions();
    options.paranoid_checks = byte % 2 == 0;  // must not matter
    const leveldb::Status status = database.Open(options);
    if (byte < size / 3 * 2) {
      EXPECT_TRUE(status.IsCorruption()) << "byte " << byte << ": " << status.ToString();
      EXPECT_EQ(database.env.last_error().code(), Code::kCorruption);
    } else {
      ASSERT_TRUE(status.ok()) << "byte " << byte << ": " << status.ToString();
      EXPECT_EQ(database.All(), (Contents{{"a", "value"}, {"b", "value"}})) << "byte " << byte;
    }
  }
}

// LevelDB alone refuses such a MANIFEST, and the database with it.
TEST(LevelDbEnvTail, TornRecordsBehindLogAndManifestAreCut) {
  for (const char* start : {"MANIFEST-", "0"}) {
    SimDisk disk(Seeded(1));
    LevelDbScript script(40, 1);
    {
      TestDatabase database(&disk);
      ASSERT_EQ(script.Run(&database), script.size());
    }
    const std::string file = Files(&disk, start, start[0] == '0' ? ".log" : "").back();
    AppendTo(&disk, file, "\x11\x22\x33\x44\x08\x01\x01" + std::string(300, 'x'));
    script.ExpectSurvived(&disk, script.size(), file);
  }
}

TEST(LevelDbEnvTail, RotInAManifestIsCorruptionAlsoInItsLastRecord) {
  SimDisk original(Seeded(1));
  {
    TestDatabase database(&original);
    ASSERT_TRUE(database.Open().ok());
    // One flush, and its log removed: without the MANIFEST's last record, its rows are nowhere.
    ASSERT_TRUE(database.Put("a", std::string(70'000, 'a')).ok());
    ASSERT_TRUE(database.Put("b", "b").ok());
    ASSERT_EQ(Files(&original, "", ".log").size(), 1u);
  }
  const std::string manifest = Files(&original, "MANIFEST-", "").back();
  for (uint64_t byte = 0; byte < SizeOf(&original, manifest); ++byte) {
    const std::unique_ptr<SimDisk> disk = original.Clone(byte);
    disk->FlipBit(manifest, byte, byte % 8);
    TestDatabase database(disk.get());
    const leveldb::Status status = database.Open();
    EXPECT_TRUE(status.IsCorruption()) << "byte " << byte << ": " << status.ToString();
  }
}

TEST(LevelDbEnvTail, LogsAreNeverAppendedTo) {
  SimDisk disk(Seeded(1));
  leveldb::Options options = SmallOptions();
  options.reuse_logs = true;
  Contents expected;
  for (int i = 0; i < 10; ++i) {
    {
      TestDatabase database(&disk);
      ASSERT_TRUE(database.Open(options).ok());
      ASSERT_EQ(database.All(), expected);
      const std::string key = "key" + std::to_string(i);
      ASSERT_TRUE(database.Put(key, "value").ok());
      expected[key] = "value";
    }
    AppendTo(&disk, Files(&disk, "", ".log").back(), "torn");
  }
}

TEST(LevelDbEnvTail, MissingTableIsCorruptionAndNotAnAbsentKey) {
  SimDisk disk(Seeded(1));
  TestDatabase database(&disk);
  ASSERT_TRUE(database.Open().ok());
  ASSERT_TRUE(database.Put("key", std::string(70'000, 'v')).ok());
  ASSERT_TRUE(database.Put("other", "o").ok());  // flushes the first
  database.Close();
  ASSERT_TRUE(database.Open().ok());
  for (const std::string& table : Files(&disk, "", ".ldb")) ASSERT_TRUE(disk.Unlink(table).ok());
  std::string value;
  const leveldb::Status status = database.Get("key", &value);
  EXPECT_TRUE(status.IsCorruption()) << status.ToString();
}

// --- Failing calls ---------------------------------------------------------------------------

// Runs the script with the n-th call of a kind failing. False if nothing failed visibly.
bool RunWithFailure(LevelDbScript* script, IoKind kind, uint64_t n) {
  const std::string what =
      "kind " + std::to_string(static_cast<unsigned>(kind)) + ", call " + std::to_string(n);
  SimDisk disk(Seeded(n));
  size_t acked = 0;
  {
    TestDatabase database(&disk);
    disk.FailNth(kind, n);
    acked = script->Run(&database);
    if (acked < script->size() && database.db != nullptr) {
      for (int i = 0; i < 3; ++i) {
        EXPECT_FALSE(database.Put("later", "write").ok()) << what;
      }
    }
    if (acked < script->size() && kind != IoKind::kRead && kind != IoKind::kOpen) {
      EXPECT_EQ(database.env.last_error().code(), Code::kIoError) << what;
    }
  }
  // The process is restarted, or the machine is.
  const std::unique_ptr<SimDisk> restarted = disk.Clone(n);
  script->ExpectSurvived(restarted.get(), acked, what + ", then restarted");
  const std::unique_ptr<SimDisk> unplugged = disk.Clone(n);
  unplugged->PowerLoss();
  unplugged->Restart();
  script->ExpectSurvived(unplugged.get(), acked, what + ", then power lost");
  return acked < script->size();
}

TEST(LevelDbEnvFailure, EveryFailedChangeStopsTheDatabaseAndLosesNothingAcknowledged) {
  LevelDbScript script(60, 1);
  for (const IoKind kind : {IoKind::kWrite, IoKind::kSync, IoKind::kSyncDirectory, IoKind::kOpen,
                            IoKind::kRename, IoKind::kRead}) {
    uint64_t n = 1;
    while (RunWithFailure(&script, kind, n) && !HasFailure()) ++n;
    EXPECT_GT(n, 1u) << "kind " << static_cast<unsigned>(kind);
    if (HasFailure()) return;
  }
}

TEST(LevelDbEnvFailure, FailedRemovalIsHarmless) {
  LevelDbScript script(60, 1);
  for (uint64_t n = 1; n <= 10; ++n) EXPECT_FALSE(RunWithFailure(&script, IoKind::kUnlink, n));
}

// LevelDB alone takes a log that it cannot read for one that ends there, and then removes it.
TEST(LevelDbEnvFailure, FailedReadDuringRecoveryFailsTheOpenAndLosesNothing) {
  LevelDbScript script(60, 1);
  SimDisk original(Seeded(1));
  {
    TestDatabase database(&original);
    ASSERT_EQ(script.Run(&database), script.size());
  }
  int failed = 0;
  for (const IoKind kind : {IoKind::kRead, IoKind::kOpen}) {
    for (uint64_t n = 1; n <= 20; ++n) {
      for (const bool paranoid : {false, true}) {  // must not matter
        const std::unique_ptr<SimDisk> disk = original.Clone(n);
        disk->FailNth(kind, n);
        {
          TestDatabase database(disk.get());
          leveldb::Options options = SmallOptions();
          options.paranoid_checks = paranoid;
          failed += !database.Open(options).ok();
        }
        script.ExpectSurvived(disk->Clone(n).get(), script.size(), "call " + std::to_string(n));
      }
    }
  }
  EXPECT_GT(failed, 20);
}

// Wherever the space runs out, in a log or in a compaction.
TEST(LevelDbEnvFailure, WhatFindsNoSpaceIsRepeatedWhenItsOwnerMakesRoom) {
  int made = 0;
  for (uint64_t room = 12; room < 400; room += 12) {
    LevelDbScript script(120, 1);
    SimDisk disk(Seeded(room));
    TestDatabase database(&disk);
    ASSERT_TRUE(database.Open().ok());
    disk.SetCapacity(disk.used_bytes() + (room << 10));
    database.env.SetMakeRoom([&] {
      ++made;
      disk.SetCapacity(1ull << 40);
    });
    for (size_t i = 0; i < script.size(); ++i) {
      ASSERT_TRUE(database.Write(script.batch(i)).ok()) << room;
    }
    EXPECT_OK(database.env.last_error());
    database.Close();
    script.ExpectSurvived(&disk, script.size(), "room " + std::to_string(room));
  }
  EXPECT_GT(made, 10);
}

TEST(LevelDbEnvFailure, WhatFindsNoSpaceAgainHasFailed) {
  SimDisk disk(Seeded(1));
  TestDatabase database(&disk);
  ASSERT_TRUE(database.Open().ok());
  int asked = 0;
  database.env.SetMakeRoom([&] { ++asked; });
  disk.SetCapacity(disk.used_bytes());
  EXPECT_FALSE(database.Put("key", std::string(200'000, 'v')).ok()) << "there is no room after all";
  EXPECT_EQ(asked, 1) << "once for each write";
  EXPECT_EQ(database.env.last_error().code(), Code::kNoSpace);
}

TEST(LevelDbEnvFailure, FullDiskIsToldApartAndRecoversWhenSpaceIsFreed) {
  for (uint64_t room = 0; room < 400; room += 12) {
    LevelDbScript script(120, 1);
    SimDisk disk(Seeded(room));
    disk.SetCapacity(room << 10);
    size_t acked = 0;
    {
      TestDatabase database(&disk);
      const leveldb::Status opened = database.Open();
      leveldb::Status status = opened;
      while (status.ok() && acked < script.size()) {
        status = database.Write(script.batch(acked));
        acked += status.ok();
      }
      if (!status.ok()) {
        EXPECT_EQ(database.env.last_error().code(), Code::kNoSpace);
        EXPECT_EQ(database.env.FromLevelDb(status).code(), Code::kNoSpace) << status.ToString();
      }
      disk.SetCapacity(1ull << 40);
      // Freed space does not revive what has failed.
      EXPECT_EQ(opened.ok() && database.Put("later", "write").ok(), status.ok());
    }
    script.ExpectSurvived(&disk, acked, "room " + std::to_string(room));
  }
}

TEST(LevelDbEnvFailure, FileFailsForEverAfterItsFirstFailure) {
  SimDisk disk(Seeded(1));
  LevelDbEnv env(&disk, LevelDbEnv::Compactions::kInline);
  leveldb::WritableFile* raw = nullptr;
  ASSERT_TRUE(env.NewWritableFile("/file", &raw).ok());
  const std::unique_ptr<leveldb::WritableFile> file(raw);
  ASSERT_TRUE(file->Append("first").ok());
  disk.FailNth(IoKind::kSync, 1);
  const leveldb::Status failed = file->Sync();
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(file->Sync().ToString(), failed.ToString());
  EXPECT_EQ(file->Flush().ToString(), failed.ToString());
  EXPECT_EQ(file->Append("second").ToString(), failed.ToString());
  EXPECT_EQ(file->Append(std::string(100'000, 'x')).ToString(), failed.ToString());
  EXPECT_EQ(file->Close().ToString(), failed.ToString());
  EXPECT_EQ(SizeOf(&disk, "/file"), 5u);
}

}  // namespace
}  // namespace hydra
