// SPDX-License-Identifier: Apache-2.0
//
// What the tests of LevelDbEnv share: a database that is used as its owner must use it, and a
// script of batches with the contents that the database must have after each.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>
#include <leveldb/db.h>
#include <leveldb/write_batch.h>

#include "base/logging.h"
#include "base/rng.h"
#include "base/sim_disk.h"
#include "blockstore/leveldb_env.h"

namespace hydra {

using Contents = std::map<std::string, std::string>;

inline constexpr char kMapDir[] = "/map";

// LevelDB's smallest memtable, so that a few dozen batches rotate logs, write tables and compact.
inline leveldb::Options SmallOptions() {
  leveldb::Options options;
  options.create_if_missing = true;
  options.paranoid_checks = true;
  options.compression = leveldb::kNoCompression;
  options.write_buffer_size = 64u << 10;
  return options;
}

// A database and its Env, used as an owner must: RunQueued() after everything.
class TestDatabase {
 public:
  explicit TestDatabase(FileSystem* fs,
                        LevelDbEnv::Compactions mode = LevelDbEnv::Compactions::kInline)
      : env(fs, mode) {}
  ~TestDatabase() { Close(); }

  leveldb::Status Open(leveldb::Options options = SmallOptions(),
                       const std::string& dir = kMapDir) {
    options.env = &env;
    leveldb::Status status = leveldb::DB::Open(options, dir, &db);
    env.RunQueued();
    return status;
  }

  leveldb::Status Write(leveldb::WriteBatch* batch, bool sync = true) {
    leveldb::WriteOptions options;
    options.sync = sync;
    leveldb::Status status = db->Write(options, batch);
    env.RunQueued();
    return status;
  }

  leveldb::Status Put(const std::string& key, const std::string& value, bool sync = true) {
    leveldb::WriteBatch batch;
    batch.Put(key, value);
    return Write(&batch, sync);
  }

  leveldb::Status Get(const std::string& key, std::string* value) {
    leveldb::Status status = db->Get(leveldb::ReadOptions(), key, value);
    env.RunQueued();
    return status;
  }

  Contents All() {
    Contents all;
    leveldb::ReadOptions options;
    options.verify_checksums = true;
    const std::unique_ptr<leveldb::Iterator> it(db->NewIterator(options));
    for (it->SeekToFirst(); it->Valid(); it->Next()) {
      all[it->key().ToString()] = it->value().ToString();
    }
    EXPECT_TRUE(it->status().ok()) << it->status().ToString();
    env.RunQueued();
    return all;
  }

  void Close() {
    env.RunQueued();
    delete db;
    db = nullptr;
  }

  LevelDbEnv env;
  leveldb::DB* db = nullptr;
};

// Batches that overwrite and delete each other's keys, so that half a batch, a lost one and a
// revived one all show.
class LevelDbScript {
 public:
  LevelDbScript(size_t batches, uint64_t seed) : rng_(seed), states_(1) {
    SetLogLevel(LogLevel::kError);  // recovery reports every tail that it cuts
    for (size_t i = 0; i < batches; ++i) Add();
  }
  ~LevelDbScript() { SetLogLevel(LogLevel::kInfo); }

  size_t size() const { return batches_.size(); }
  leveldb::WriteBatch* batch(size_t i) { return &batches_[i]; }
  const Contents& after(size_t batches) const { return states_[std::min(batches, size())]; }

  // Opens a database and writes until something fails. Returns the number of acknowledged batches.
  size_t Run(TestDatabase* database) {
    if (!database->Open().ok()) return 0;
    for (size_t i = 0; i < size(); ++i) {
      if (!database->Write(batch(i)).ok()) return i;
    }
    return size();
  }

  // The database holds the acknowledged batches; the next may be there, but then as a whole.
  void ExpectSurvived(SimDisk* disk, size_t acked, const std::string& what) const {
    TestDatabase database(disk);
    const leveldb::Status status = database.Open();
    ASSERT_TRUE(status.ok()) << what << ": " << status.ToString();
    const Contents found = database.All();
    EXPECT_TRUE(found == after(acked) || found == after(acked + 1)) << what << ", acked " << acked;
  }

 private:
  void Add() {
    leveldb::WriteBatch batch;
    Contents state = states_.back();
    for (int i = 0; i < 3; ++i) {
      const std::string key = "key" + std::to_string(rng_.Below(24));
      if (rng_.Percent(15)) {
        batch.Delete(key);
        state.erase(key);
        continue;
      }
      // Some span several blocks of a log.
      const uint64_t longest = rng_.Percent(4) ? 80'000 : 4000;
      std::string value(rng_.Between(1, longest), '\0');
      for (char& c : value) c = static_cast<char>(rng_.Next());
      batch.Put(key, value);
      state[key] = value;
    }
    batches_.push_back(batch);
    states_.push_back(std::move(state));
  }

  Rng rng_;
  std::vector<leveldb::WriteBatch> batches_;
  std::vector<Contents> states_;
};

inline SimDisk::Options Seeded(uint64_t seed) {
  SimDisk::Options options;
  options.seed = seed;
  return options;
}

// Paths below kMapDir whose name starts and ends so, in order.
inline std::vector<std::string> Files(SimDisk* disk, std::string_view start, std::string_view end) {
  std::vector<std::string> found;
  const std::vector<std::string> names = disk->List(kMapDir).value();
  for (const std::string& name : names) {
    if (name.starts_with(start) && name.ends_with(end)) found.push_back(kMapDir + ("/" + name));
  }
  return found;
}

inline uint64_t SizeOf(SimDisk* disk, const std::string& path) {
  return disk->Open(path, {.read_only = true}).value()->Size().value();
}

}  // namespace hydra
