// SPDX-License-Identifier: Apache-2.0
#include "blockstore/map_store.h"

#include <leveldb/cache.h>
#include <leveldb/db.h>
#include <leveldb/filter_policy.h>
#include <leveldb/options.h>
#include <leveldb/write_batch.h>

#include "base/check.h"
#include "base/sabotage.h"
#include "blockstore/leveldb_env.h"

namespace hydra {
namespace {

// Larger tables than LevelDB's default: fewer files to keep open and to sync.
constexpr size_t kTableBytes = 8u << 20;
// Bits per key of the filter that spares a look-up the tables without the key.
constexpr int kFilterBits = 10;

leveldb::Slice ToSlice(std::string_view s) { return {s.data(), s.size()}; }
std::string_view ToView(const leveldb::Slice& s) { return {s.data(), s.size()}; }

}  // namespace

MapStore::MapStore() = default;

MapStore::~MapStore() {
  if (env_) env_->RunQueued();
  for (const leveldb::Snapshot* snapshot : snapshots_) db_->ReleaseSnapshot(snapshot);
}

Result<std::unique_ptr<MapStore>> MapStore::Open(const Options& options) {
  std::unique_ptr<MapStore> store(new MapStore());
  store->inline_compactions_ = options.inline_compactions;
  store->env_ = std::make_unique<LevelDbEnv>(options.fs, options.inline_compactions
                                                             ? LevelDbEnv::Compactions::kInline
                                                             : LevelDbEnv::Compactions::kThread);
  store->env_->SetMakeRoom(options.make_room);
  store->cache_.reset(leveldb::NewLRUCache(options.cache));
  store->filter_.reset(leveldb::NewBloomFilterPolicy(kFilterBits));
  leveldb::Options db;
  db.env = store->env_.get();
  db.create_if_missing = options.create;
  db.error_if_exists = false;
  db.paranoid_checks = true;
  db.write_buffer_size = options.write_buffer;
  db.max_file_size = kTableBytes;
  db.block_cache = store->cache_.get();
  db.filter_policy = store->filter_.get();
  leveldb::DB* opened = nullptr;
  const leveldb::Status status = leveldb::DB::Open(db, options.dir, &opened);
  if (!status.ok()) return store->env_->FromLevelDb(status).WithContext("open the block map");
  store->db_.reset(opened);
  store->env_->RunQueued();
  return store;
}

const leveldb::Snapshot* MapStore::TakeSnapshot() {
  return *snapshots_.insert(db_->GetSnapshot()).first;
}

void MapStore::ReleaseSnapshot(const leveldb::Snapshot* snapshot) {
  HYDRA_CHECK(snapshots_.erase(snapshot) == 1);
  db_->ReleaseSnapshot(snapshot);
}

Result<std::string> MapStore::Get(std::string_view key, const leveldb::Snapshot* snapshot) const {
  std::string value;
  leveldb::ReadOptions options;
  options.verify_checksums = true;
  options.snapshot = snapshot;
  const leveldb::Status status = db_->Get(options, ToSlice(key), &value);
  env_->RunQueued();
  if (status.IsNotFound()) return Status::NotFound("no such row in the map");
  if (!status.ok()) return env_->FromLevelDb(status).WithContext("read the block map");
  return value;
}

Status MapStore::Write(leveldb::WriteBatch* batch) {
  leveldb::WriteOptions options;
  options.sync = !HYDRA_SABOTAGE(kTrustUnsyncedMap);
  const leveldb::Status status = db_->Write(options, batch);
  env_->RunQueued();
  return env_->FromLevelDb(status).WithContext("write the block map");
}

Status MapStore::Scan(std::string_view from, std::string_view prefix,
                      const std::function<bool(std::string_view, std::string_view)>& visit) const {
  leveldb::ReadOptions options;
  options.verify_checksums = true;
  options.fill_cache = false;
  std::unique_ptr<leveldb::Iterator> it(db_->NewIterator(options));
  for (it->Seek(ToSlice(from)); it->Valid() && it->key().starts_with(ToSlice(prefix)); it->Next()) {
    if (!visit(ToView(it->key()), ToView(it->value()))) break;
  }
  const leveldb::Status status = it->status();
  it.reset();
  env_->RunQueued();
  return env_->FromLevelDb(status).WithContext("scan the block map");
}

void MapStore::Settle() {
  if (inline_compactions_) return;  // it would wait here for itself
  // A range behind all keys: nothing to compact but what is in memory.
  const std::string behind(16, '\xff');
  const leveldb::Slice key = ToSlice(behind);
  db_->CompactRange(&key, &key);
}

}  // namespace hydra
