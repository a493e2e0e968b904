// SPDX-License-Identifier: Apache-2.0
//
// SimDisk: a file system in memory that behaves like the worst disk that keeps its promises, and,
// when told to, like one that does not. The same seed and the same calls give the same bytes.
//
// What it keeps (see base/file.h for the promise): every file has durable sectors (512 bytes) and
// the newer ones written since the last sync; every directory has durable entries and a list of
// changes made since its last sync.
//
// Power loss (PowerLoss(), or by itself during the n-th I/O, see CutPowerAfter): each unsynced
// sector is independently lost, kept, or garbled; of each directory's unsynced changes a random
// prefix is kept, as a journalling file system does; an unsynced length is kept or lost. The
// write that power loss interrupts is torn the same way even if it was kDsync. After a power loss
// every call fails with kIoError until Restart(); files opened before stay dead for ever.
// Crash() is the death of the process alone: unsynced data stays, and can still be lost later.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/file.h"

namespace hydra {

// Creating a directory counts as kOpen, removing one as kUnlink.
enum class IoKind : unsigned {
  kRead,
  kWrite,
  kSync,
  kSyncDirectory,
  kOpen,
  kRename,
  kUnlink,
  kAllocate,
  kTruncate,
};
inline constexpr unsigned kIoKinds = 9;

class SimDisk final : public FileSystem {
 public:
  static constexpr size_t kSectorSize = 512;

  struct Options {
    uint64_t seed = 1;
    uint64_t capacity = 1ull << 40;  // bytes of file contents, rounded up to pages
    unsigned lose_percent = 40;      // of unsynced sectors, on power loss
    unsigned garble_percent = 20;    // the rest is kept
    bool supports_direct = true;     // false: opening with direct fails, as on tmpfs
    ManualClock* clock = nullptr;    // advanced by `latency` per call, where given
    Nanos latency = 0;
  };
  explicit SimDisk(const Options& options);
  ~SimDisk() override;
  SimDisk(const SimDisk&) = delete;
  SimDisk& operator=(const SimDisk&) = delete;

  // FileSystem
  Result<std::unique_ptr<File>> Open(const std::string& path, const OpenOptions& options) override;
  Status CreateDirectory(const std::string& path) override;
  Status SyncDirectory(const std::string& path) override;
  Status Rename(const std::string& from, const std::string& to) override;
  Status Unlink(const std::string& path) override;
  Status RemoveDirectory(const std::string& path) override;
  Result<std::vector<std::string>> List(const std::string& path) override;
  bool Exists(const std::string& path) override;
  Result<uint64_t> FreeBytes(const std::string& path) override;
  Result<std::unique_ptr<FileLock>> Lock(const std::string& path) override;

  // --- Faults -------------------------------------------------------------------------------
  // Calls that change the disk (write, sync, sync directory, create, rename, unlink, allocate,
  // truncate) since construction. Reads do not count.
  uint64_t io_count() const;

  // Power fails during the n-th changing call from now on (1 = the next one): that call takes
  // effect partly and fails, and so does everything after it. 0 takes an earlier order back.
  void CutPowerAfter(uint64_t n);
  void PowerLoss();  // now, between calls
  bool powered() const;
  void Restart();  // power is back; locks are gone; what survived is what is durable
  void Crash();    // process death: open files and locks die, unsynced data stays

  // The n-th call of this kind from now on (1 = the next) fails with kIoError, having done
  // nothing (or, for writes, having torn at a random sector). Later calls work again, but no later
  // sync makes durable what a failed sync or kDsync write should have, unless it is written again:
  // whoever trusts them has HAZARD 13.
  void FailNth(IoKind kind, uint64_t n);
  // How many changing calls on paths containing `part` have failed by order of FailNth or FailAll.
  uint64_t failed_calls(const std::string& part) const;
  // Every call of this kind on a path containing `part` fails until cleared with part = "".
  void FailAll(IoKind kind, const std::string& part);

  void FlipBit(const std::string& path, uint64_t byte, unsigned bit);  // at rest
  // The n-th write from now on claims success but goes nowhere / elsewhere: to `offset` of the
  // same file. The file grows as if it had arrived.
  void DropNthWrite(uint64_t n);
  void MisdirectNthWrite(uint64_t n, uint64_t offset);
  // Space freed by a removal or shrink can be used at once; a power loss that undoes it may leave
  // more in use than there is, and then nothing grows until something is removed.
  void SetCapacity(uint64_t bytes);
  uint64_t used_bytes() const;

  // Syncs of paths containing `part` (files or directories) claim success and do nothing, and
  // kDsync writes are as good as buffered ones: a lying disk. "" clears.
  void IgnoreSyncs(const std::string& part);

  // --- For tests ----------------------------------------------------------------------------
  // An independent copy of everything, durable and not, powered, without faults, open files or
  // clock. Shares unchanged pages with the original, so it is cheap.
  std::unique_ptr<SimDisk> Clone(uint64_t seed) const;
  // Bytes of payload written so far (after tearing), for amplification checks.
  uint64_t bytes_written() const;

 private:
  class Impl;
  class Handle;
  class HeldLock;
  std::shared_ptr<Impl> impl_;  // shared with open files, which may outlive the disk
};

}  // namespace hydra
