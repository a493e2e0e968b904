// SPDX-License-Identifier: Apache-2.0
//
// The file layer: the only way Hydra touches a disk. Two implementations: PosixFileSystem
// (base/posix_file.h) and SimDisk (base/sim_disk.h), a deterministic disk that can lose power,
// tear, rot, fill up and fail. Paths are plain strings with '/' between parts; "." and ".." are
// not used.
//
// Durability, which is all that matters here:
//  * bytes: durable after a PWriteV with Durability::kDsync returned OK, or after Sync() of the
//    same file returned OK (any descriptor of the file will do);
//  * names: a created, renamed or removed entry is durable after SyncDirectory() of its parent;
//  * after any failed write or sync the contents of what was being written are unknown, and a
//    later successful sync proves nothing. Nobody retries.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace hydra {

struct IoSlice {
  const uint8_t* data;
  size_t length;
};

enum class Durability {
  kBuffered,  // durable after a later Sync()
  kDsync,     // durable when the call returns
};

struct OpenOptions {
  bool create = false;     // create if missing
  bool exclusive = false;  // with create: fail with kAlreadyExists if there
  bool truncate = false;   // to zero length
  bool read_only = false;
  bool direct = false;  // bypass the page cache; offsets, lengths and memory are page-aligned
  bool random = false;  // reads come in no order: the system is not to read ahead
};

// While it lives, reads of its thread do not wait for a disk: what is not in memory fails with
// kBusy. For files that bypass the page cache everything is so.
class NoWaitReads {
 public:
  NoWaitReads();
  ~NoWaitReads();
  NoWaitReads(const NoWaitReads&) = delete;
  NoWaitReads& operator=(const NoWaitReads&) = delete;

  static bool on();
};

// An open file. Different threads may read at the same time and one may write meanwhile; two
// writers need their own agreement.
class File {
 public:
  virtual ~File() = default;

  // Reads up to out.size() bytes at `offset` and returns how many: fewer only at the end of the
  // file.
  virtual Result<size_t> PRead(uint64_t offset, std::span<uint8_t> out) = 0;

  // Writes all slices, one after the other, from `offset` on.
  virtual Status PWriteV(uint64_t offset, std::span<const IoSlice> slices,
                         Durability durability) = 0;

  // Makes everything written to this file durable (fdatasync), the length included.
  virtual Status Sync() = 0;

  // Reserves disk space for [0, length) without changing what is read there.
  virtual Status Allocate(uint64_t length) = 0;

  virtual Status Truncate(uint64_t length) = 0;
  virtual Result<uint64_t> Size() = 0;

  // Forgets cached pages of the file (best effort; a recycled segment must not be read stale).
  virtual void DropCache() = 0;

  // These bytes will be asked for soon: a hint, which waits for nothing.
  virtual void WillRead(uint64_t /*offset*/, uint64_t /*length*/) {}

  // The device may begin to write these bytes, so that a later Sync has less to do: a hint, which
  // makes nothing durable. What fails, fails in Sync.
  virtual void StartWriting(uint64_t /*offset*/, uint64_t /*length*/) {}

  // PRead that fails with kCorruption, naming `what`, when the file ends before out.size() bytes.
  Status ReadExactly(uint64_t offset, std::span<uint8_t> out, const std::string& what);
};

// Held while a process uses a directory; releases the lock when destroyed.
class FileLock {
 public:
  virtual ~FileLock() = default;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  virtual Result<std::unique_ptr<File>> Open(const std::string& path,
                                             const OpenOptions& options) = 0;
  virtual Status CreateDirectory(const std::string& path) = 0;  // kAlreadyExists if there
  virtual Status SyncDirectory(const std::string& path) = 0;
  virtual Status Rename(const std::string& from, const std::string& to) = 0;  // replaces `to`
  virtual Status Unlink(const std::string& path) = 0;
  virtual Status RemoveDirectory(const std::string& path) = 0;  // must be empty
  // Names (not paths) of a directory's entries, sorted.
  virtual Result<std::vector<std::string>> List(const std::string& path) = 0;
  virtual bool Exists(const std::string& path) = 0;
  virtual Result<uint64_t> FreeBytes(const std::string& path) = 0;  // left for this process
  // Exclusive between processes and within one; kBusy if somebody holds it. Creates the file.
  virtual Result<std::unique_ptr<FileLock>> Lock(const std::string& path) = 0;

  // Reads a whole small file; kOutOfRange if longer than `limit`.
  Result<std::string> ReadSmallFile(const std::string& path, size_t limit);

  // Replaces `directory/name` durably and atomically: temporary file, sync, rename, directory
  // sync. After a crash the file holds the old or the new contents, whole.
  Status ReplaceFile(const std::string& directory, const std::string& name,
                     const std::string& contents);
};

}  // namespace hydra
