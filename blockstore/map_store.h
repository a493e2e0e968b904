// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "base/file.h"
#include "base/status.h"

namespace leveldb {
class Cache;
class DB;
class FilterPolicy;
class Snapshot;
class WriteBatch;
}  // namespace leveldb

namespace hydra {

class LevelDbEnv;

// The LevelDB of a node, behind Hydra's statuses. Reads may come from any thread; writes come
// from the checkpoint job alone, each synced: LevelDB closes a rotated log without syncing it, so
// a later synced write would prove nothing about an earlier unsynced one.
class MapStore {
 public:
  struct Options {
    FileSystem* fs = nullptr;
    std::string dir;
    bool inline_compactions = false;
    size_t write_buffer = 0;
    size_t cache = 0;
    bool create = false;
    std::function<void()> make_room;  // LevelDbEnv::SetMakeRoom
  };
  static Result<std::unique_ptr<MapStore>> Open(const Options& options);
  ~MapStore();

  // The rows as they are now, until released; the store releases what is left when it closes. One
  // thread takes and releases all.
  const leveldb::Snapshot* TakeSnapshot();
  void ReleaseSnapshot(const leveldb::Snapshot* snapshot);

  // As of then; null: now. kNotFound if there is no such row.
  Result<std::string> Get(std::string_view key, const leveldb::Snapshot* snapshot = nullptr) const;
  Status Write(leveldb::WriteBatch* batch);

  // Calls `visit(key, value)` for the rows from `from` on that start with `prefix`, in key order,
  // until it returns false. Sees the rows as of the call.
  Status Scan(std::string_view from, std::string_view prefix,
              const std::function<bool(std::string_view, std::string_view)>& visit) const;

  // Makes a table of what LevelDB holds in memory, so that the next open has no log to replay. Only
  // that: if it fails, the log is still there. Nothing to be done where compactions run inline.
  void Settle();

 private:
  MapStore();

  bool inline_compactions_ = false;
  std::unique_ptr<LevelDbEnv> env_;
  std::unique_ptr<leveldb::Cache> cache_;
  std::unique_ptr<const leveldb::FilterPolicy> filter_;
  std::unique_ptr<leveldb::DB> db_;
  std::set<const leveldb::Snapshot*> snapshots_;
};

}  // namespace hydra
