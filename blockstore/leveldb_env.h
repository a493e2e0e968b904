// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <leveldb/env.h>
#include <leveldb/status.h>

#include "base/file.h"
#include "base/status.h"

namespace hydra {

// What one LevelDB database may touch of the world: its files, by a hydra::FileSystem, and where
// its compactions run. The same code runs on the real disk and on SimDisk, and makes up for what
// LevelDB leaves undone:
//
//  * Names. A file's first Sync() also syncs its directory; so do a rename and a new directory.
//    LevelDB itself does it for a MANIFEST only: a synced log could have no name after a power
//    loss, and CURRENT could name a MANIFEST that is gone.
//  * Failures. After the first failed change (last_error()), and after a failed read of recovery,
//    every later change fails with the same error, removals included. LevelDB itself goes on in
//    places: it ignores an unreadable log, tries again to create one, and removes the MANIFEST
//    that CURRENT already names when only the sync after the rename failed. What is left to do is
//    to close the database and to open it again with a new Env. Only a write or a new file that
//    found no space is tried once more, if the owner has made some (SetMakeRoom); a sync never.
//  * Torn tails. LevelDB skips whatever is bad in a log, and refuses a MANIFEST whose last record
//    is torn. Here, both are looked at when recovery opens them: a bad last record that was never
//    acknowledged is cut; anything else that is bad is rot, and opening fails with kCorruption.
//    What proves rot: a valid record behind the bad one; for a log, records in a later log; for a
//    MANIFEST, that the log it needs has been removed already. (A last record that rots before
//    anything follows it cannot be told from a torn one.)
//  * Absence. A missing table is kCorruption. LevelDB would call it NotFound, and so the key.
//
// What it cannot make up for: LevelDB closes a full log without syncing it, so a later sync=true
// write proves nothing about earlier ones without. EVERY write must have sync=true; the judgement
// of tails relies on it too. reuse_logs has no effect (it would append behind a torn tail), and
// paranoid_checks can and should be on, because it never sees a torn tail.
//
// kThread: compactions run on LevelDB's own background thread. Any thread may call anything.
//
// kInline: there is no thread. Schedule() only queues, and the owner calls RunQueued() after
// DB::Open, after every Write, after reads (which may schedule a compaction too) and before it
// deletes the DB; so the order of all I/O is the same in every run. One thread at a time. Why this
// cannot deadlock: LevelDB waits for background work in four places.
//  * A write waits while its memtable is full and either the one before is not flushed or level 0
//    has 12 files. One write makes at most one memtable full, and RunQueued() returns when nothing
//    is left to do: no memtable to flush, and fewer than 4 files in level 0. If that work failed,
//    the write fails instead of waiting.
//  * ~DBImpl waits for scheduled work, of which RunQueued() left none. A failed DB::Open deletes
//    its DBImpl before it schedules anything; recovery and RepairDB write their tables themselves,
//    however many.
//  * CompactRange waits for its own work: it must not be called in this mode.
//  * Writers wait for each other, which takes two threads.
class LevelDbEnv final : public leveldb::Env {
 public:
  enum class Compactions { kThread, kInline };

  // `fs` outlives the Env, and the Env its database.
  LevelDbEnv(FileSystem* fs, Compactions compactions);
  ~LevelDbEnv() override;

  // kInline: runs what is scheduled, and what that schedules. Otherwise does nothing, so that an
  // owner need not ask which mode it has.
  void RunQueued();

  // For when there is no space, on whatever thread needs it; what did is repeated once then.
  void SetMakeRoom(std::function<void()> make_room) { make_room_ = std::move(make_room); }

  // Bytes handed to the file layer, by all files: the numerator of write amplification.
  uint64_t bytes_written() const { return bytes_written_.load(std::memory_order_relaxed); }

  // The failure that stopped the Env; OK if none did. LevelDB has one code for all of them.
  Status last_error() const;

  // LevelDB's status as ours. An I/O error is kNoSpace if that is what stopped the Env.
  Status FromLevelDb(const leveldb::Status& status) const;
  static leveldb::Status ToLevelDb(const Status& status, const std::string& path);

  // leveldb::Env
  leveldb::Status NewSequentialFile(const std::string& path,
                                    leveldb::SequentialFile** result) override;
  leveldb::Status NewRandomAccessFile(const std::string& path,
                                      leveldb::RandomAccessFile** result) override;
  leveldb::Status NewWritableFile(const std::string& path, leveldb::WritableFile** result) override;
  leveldb::Status NewAppendableFile(const std::string& path,
                                    leveldb::WritableFile** result) override;
  bool FileExists(const std::string& path) override;
  leveldb::Status GetChildren(const std::string& dir, std::vector<std::string>* result) override;
  leveldb::Status RemoveFile(const std::string& path) override;
  leveldb::Status CreateDir(const std::string& dir) override;
  leveldb::Status RemoveDir(const std::string& dir) override;
  leveldb::Status GetFileSize(const std::string& path, uint64_t* size) override;
  leveldb::Status RenameFile(const std::string& from, const std::string& to) override;
  leveldb::Status LockFile(const std::string& path, leveldb::FileLock** lock) override;
  leveldb::Status UnlockFile(leveldb::FileLock* lock) override;
  void Schedule(void (*function)(void*), void* argument) override;
  void StartThread(void (*function)(void*), void* argument) override;
  leveldb::Status GetTestDirectory(std::string* path) override;
  leveldb::Status NewLogger(const std::string& path, leveldb::Logger** result) override;
  uint64_t NowMicros() override;
  void SleepForMicroseconds(int micros) override;

 private:
  class Readable;
  class Writable;

  // Stops the Env for the sake of `status` unless it is OK or answers a question ("not found").
  Status Keep(Status status);
  // Does `change`, unless the Env is stopped.
  template <typename Function>
  Status Change(Function change);
  // Likewise, and again if room can be made for it. Doing a part of it twice must do no harm.
  template <typename Function>
  Status ChangeWithRoom(Function change);
  leveldb::Status OpenForWriting(const std::string& path, bool truncate,
                                 leveldb::WritableFile** result);

  FileSystem* const fs_;
  const Compactions compactions_;
  std::function<void()> make_room_;
  std::atomic<uint64_t> bytes_written_{0};
  std::atomic<uint64_t> ticks_{0};  // kInline: what NowMicros() counts, instead of time

  mutable std::mutex mutex_;
  Status last_error_;                                    // guarded by mutex_
  std::deque<std::pair<void (*)(void*), void*>> queue_;  // guarded by mutex_
};

}  // namespace hydra
