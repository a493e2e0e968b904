// SPDX-License-Identifier: Apache-2.0
//
// LevelDbEnv on a healthy disk: compactions inline and on a thread, files, translations.
#include <stdlib.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <leveldb/db.h>
#include <leveldb/write_batch.h>

#include "base/logging.h"
#include "base/posix_file.h"
#include "base/rng.h"
#include "base/sim_disk.h"
#include "blockstore/leveldb_env.h"
#include "tests/blockstore/leveldb_env_fixture.h"

namespace hydra {
namespace {

using Compactions = LevelDbEnv::Compactions;

// --- Compactions without a thread ------------------------------------------------------------

// Returns the bytes given to LevelDB.
uint64_t WriteALot(uint64_t bytes) {
  SimDisk disk(Seeded(1));
  TestDatabase database(&disk);
  EXPECT_TRUE(database.Open().ok());
  Rng rng(1);
  std::string value(2000, 'v');
  uint64_t given = 0;
  while (given < bytes) {
    leveldb::WriteBatch batch;
    for (int i = 0; i < 8; ++i) {
      batch.Put("key" + std::to_string(rng.Below(bytes / 4000)), value);
      given += value.size();
    }
    EXPECT_TRUE(database.Write(&batch).ok());
    if (testing::Test::HasFailure()) return 0;
  }
  std::string files;
  EXPECT_TRUE(database.db->GetProperty("leveldb.num-files-at-level0", &files));
  EXPECT_LT(std::stoi(files), 4);
  EXPECT_EQ(database.env.bytes_written(), disk.bytes_written());
  EXPECT_GT(database.env.bytes_written(), 2 * given);  // once in the log, once in a table
  return given;
}

TEST(LevelDbEnvInline, ManyMemtablesNeverWait) { EXPECT_GE(WriteALot(16u << 20), 16u << 20); }

TEST(SoakLevelDbEnvInline, ThousandsOfMemtablesNeverWait) {
  EXPECT_GE(WriteALot(128u << 20), 128u << 20);
}

TEST(LevelDbEnvInline, RecoveryIntoManyLevelZeroTablesDoesNotWait) {
  SimDisk disk(Seeded(1));
  LevelDbScript script(1200, 1);
  TestDatabase database(&disk);
  leveldb::Options large = SmallOptions();
  large.write_buffer_size = 64u << 20;
  ASSERT_TRUE(database.Open(large).ok());
  for (size_t i = 0; i < script.size(); ++i) ASSERT_TRUE(database.Write(script.batch(i)).ok());
  database.Close();
  ASSERT_GT(SizeOf(&disk, Files(&disk, "", ".log").back()), 40 * (64u << 10));  // far more than 12
  ASSERT_TRUE(database.Open().ok());
  for (size_t i = 0; i < script.size(); ++i) ASSERT_TRUE(database.Write(script.batch(i)).ok());
  EXPECT_EQ(database.All(), script.after(script.size()));
}

TEST(LevelDbEnvInline, CompactionScheduledByReadsIsRun) {
  SimDisk disk(Seeded(1));
  TestDatabase database(&disk);
  ASSERT_TRUE(database.Open().ok());
  // Two tables, one above the other: a look-up of "c" costs the upper one a seek each time.
  for (const std::string keys : {"ace", "ae", "z"}) {
    leveldb::WriteBatch batch;
    for (const char key : keys) batch.Put(std::string(1, key), std::string(40'000, 'v'));
    ASSERT_TRUE(database.Write(&batch).ok());
  }
  const uint64_t before = disk.io_count();
  std::string value;
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE(database.Get("c", &value).ok());
  }
  EXPECT_GT(disk.io_count(), before);
}

TEST(LevelDbEnvInline, FailedOpenDoesNotWait) {
  SimDisk disk(Seeded(1));
  TestDatabase database(&disk);
  leveldb::Options options = SmallOptions();
  options.create_if_missing = false;
  const leveldb::Status missing = database.Open(options);
  EXPECT_EQ(database.env.FromLevelDb(missing).code(), Code::kInvalidArgument);
  ASSERT_TRUE(database.Open().ok());
  TestDatabase second(&disk);
  EXPECT_EQ(second.env.FromLevelDb(second.Open()).code(), Code::kIoError);  // locked
  EXPECT_TRUE(second.env.last_error().ok());
  database.Close();
  EXPECT_TRUE(second.Open().ok());
}

TEST(LevelDbEnvInline, RepairDoesNotWait) {
  SimDisk disk(Seeded(1));
  LevelDbScript script(120, 1);
  TestDatabase database(&disk);
  ASSERT_EQ(script.Run(&database), script.size());
  database.Close();
  ASSERT_TRUE(disk.Unlink("/map/CURRENT").ok());
  for (const auto& manifest : Files(&disk, "MANIFEST-", ""))
    ASSERT_TRUE(disk.Unlink(manifest).ok());
  leveldb::Options options = SmallOptions();
  options.env = &database.env;
  ASSERT_TRUE(leveldb::RepairDB(kMapDir, options).ok());
  EXPECT_FALSE(Files(&disk, "lost", "").empty());
  ASSERT_TRUE(database.Open().ok());
  EXPECT_EQ(database.All(), script.after(script.size()));
}

TEST(LevelDbEnvInline, SameRunGivesTheSameIo) {
  struct Trace {
    uint64_t io_count, written;
    std::map<std::string, std::string> files;
    bool operator==(const Trace&) const = default;
  };
  const auto run = [] {
    SimDisk disk(Seeded(7));
    LevelDbScript script(300, 7);
    {
      TestDatabase database(&disk);
      EXPECT_EQ(script.Run(&database), script.size());
      EXPECT_EQ(database.All(), script.after(script.size()));
      EXPECT_EQ(database.env.bytes_written(), disk.bytes_written());
    }
    disk.PowerLoss();
    disk.Restart();
    script.ExpectSurvived(&disk, script.size(), "");
    Trace trace{disk.io_count(), disk.bytes_written(), {}};
    for (const std::string& path : Files(&disk, "", "")) {
      trace.files[path] = disk.ReadSmallFile(path, 64u << 20).value();
    }
    return trace;
  };
  const Trace first = run();
  EXPECT_GT(first.io_count, 600u);
  EXPECT_TRUE(first == run());
}

// --- The rest --------------------------------------------------------------------------------

TEST(LevelDbEnvThread, WorksOnRealFilesWithSeveralWriters) {
  std::string dir = testing::TempDir() + "leveldb_env_XXXXXX";
  ASSERT_NE(::mkdtemp(dir.data()), nullptr);
  constexpr int kWriters = 4;
  constexpr int kRows = 150;
  PosixFileSystem fs;
  for (int open = 0; open < 2; ++open) {
    TestDatabase database(&fs, Compactions::kThread);
    ASSERT_TRUE(database.Open(SmallOptions(), dir + "/map").ok());
    std::vector<std::thread> writers;
    writers.reserve(kWriters);
    for (int w = 0; w < kWriters; ++w) {
      writers.emplace_back([&database, w] {
        for (int i = 0; i < kRows; ++i) {
          const std::string key = std::to_string(w) + "-" + std::to_string(i);
          EXPECT_TRUE(database.Put(key, std::string(3000, 'v')).ok());
          std::string value;
          EXPECT_TRUE(database.Get(key, &value).ok());
        }
      });
    }
    for (std::thread& writer : writers) writer.join();
    database.db->CompactRange(nullptr, nullptr);
    EXPECT_EQ(database.All().size(), static_cast<size_t>(kWriters * kRows));
    EXPECT_GT(database.env.bytes_written(), 2u * kWriters * kRows * 3000);
    EXPECT_TRUE(database.env.last_error().ok());
  }
  std::filesystem::remove_all(dir);
}

TEST(LevelDbEnv, AppendsAreBufferedUntilTheyAreLargeOrFlushed) {
  SimDisk disk(Seeded(1));
  LevelDbEnv env(&disk, Compactions::kInline);
  leveldb::WritableFile* file = nullptr;
  ASSERT_TRUE(env.NewWritableFile("/file", &file).ok());
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(file->Append("0123456789").ok());
  EXPECT_EQ(SizeOf(&disk, "/file"), 0u);
  ASSERT_TRUE(file->Append(std::string(60'000, 'x')).ok());
  EXPECT_EQ(SizeOf(&disk, "/file"), 70'000u);
  ASSERT_TRUE(file->Append("y").ok());
  ASSERT_TRUE(file->Flush().ok());
  EXPECT_EQ(SizeOf(&disk, "/file"), 70'001u);
  ASSERT_TRUE(file->Append("z").ok());
  delete file;  // as LevelDB does with a full log
  ASSERT_TRUE(env.NewAppendableFile("/file", &file).ok());
  ASSERT_TRUE(file->Append("!").ok());
  ASSERT_TRUE(file->Sync().ok());
  ASSERT_TRUE(file->Close().ok());
  delete file;
  disk.PowerLoss();
  disk.Restart();
  const std::string contents = disk.ReadSmallFile("/file", 1u << 20).value();
  EXPECT_EQ(contents.size(), 70'003u);
  EXPECT_EQ(contents.substr(9'998, 4), "89xx");
  EXPECT_EQ(contents.substr(69'999), "xyz!");
  EXPECT_EQ(env.bytes_written(), 70'003u);
}

TEST(LevelDbEnv, TranslatesCodesBothWays) {
  SimDisk disk(Seeded(1));
  const LevelDbEnv env(&disk, Compactions::kInline);
  const auto there_and_back = [&env](Code code) {
    return env.FromLevelDb(LevelDbEnv::ToLevelDb(Status(code, "why"), "path")).code();
  };
  EXPECT_TRUE(LevelDbEnv::ToLevelDb(Status::Ok(), "path").ok());
  for (const Code code : {Code::kNotFound, Code::kCorruption, Code::kInvalidArgument,
                          Code::kUnsupported, Code::kIoError}) {
    EXPECT_EQ(there_and_back(code), code);
  }
  EXPECT_EQ(there_and_back(Code::kBusy), Code::kIoError);
  EXPECT_EQ(LevelDbEnv::ToLevelDb(Status::Corruption("why"), "path").ToString(),
            "Corruption: path: why");
}

TEST(LevelDbEnv, InfoLogGoesToTheDebugLog) {
  std::vector<std::string> lines;
  SetLogSink([&lines](LogLevel, std::string_view line) { lines.emplace_back(line); });
  SetLogLevel(LogLevel::kDebug);
  SimDisk disk(Seeded(1));
  TestDatabase database(&disk);
  EXPECT_TRUE(database.Open().ok());
  SetLogLevel(LogLevel::kInfo);
  SetLogSink({});
  ASSERT_FALSE(lines.empty());
  EXPECT_NE(lines[0].find("leveldb: Creating DB /map"), std::string::npos) << lines[0];
  EXPECT_TRUE(Files(&disk, "LOG", "").empty());
}

}  // namespace
}  // namespace hydra
