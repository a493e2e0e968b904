// SPDX-License-Identifier: Apache-2.0
//
// What stores the blocks of a logical unit. The SCSI layer knows no more of it than this, so it
// works the same on a volume of the cluster and on a piece of memory.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "iscsi/access.h"

namespace hydra::iscsi {

// For ever the same for the same disk, whoever serves it.
struct DiskIdentity {
  std::array<uint8_t, 16> id{};
  std::string name;
};

struct MappedRange {
  uint64_t length = 0;  // bytes
  bool mapped = false;  // false: takes no space and reads as zeroes
};

// Who may use the disk, as all paths to it see it.
struct DiskAccess {
  uint64_t epoch = 0;          // grows with every change
  std::string state;           // what it means is for the SCSI layer to say; empty in the beginning
  AccessRules rules{};         // what an operator says
  uint64_t chap_revision = 0;  // of the target's own accounts; 0: it never had any
};

// Offsets and lengths are in bytes, multiples of 512, and within the size. Memory that is passed in
// stays valid until the operation ends. Operations end exactly once, each in its own time, on the
// thread that started them; a change that ended well is durable, so there is no cache. What a
// failure means:
//
//   kAborted       it may or may not have happened
//   kUnavailable   not now; nothing happened
//   kBusy          too much at once; nothing happened
//   kNoSpace       nothing happened
//   kCorruption    the data is lost
//   kOutOfRange    the disk is smaller than it was
//   kNotFound      there is no such disk any more
//   kStale         someone changed the same blocks since the command arrived; nothing happened
//   kFenced        access was changed since then; nothing happened
class DiskIo {
 public:
  using Done = std::function<void(Status)>;

  virtual ~DiskIo() = default;

  virtual void Read(uint64_t offset, std::span<uint8_t> data, Done done) = 0;
  virtual void Write(uint64_t offset, std::span<const uint8_t> data, Done done) = 0;
  // Reads as zeroes afterwards.
  virtual void WriteZeroes(uint64_t offset, uint64_t length, Done done) = 0;
  // The same, and gives back the space where it can.
  virtual void Unmap(uint64_t offset, uint64_t length, Done done) = 0;
  // Atomically, within one multiple of atomic_bytes. False: the disk holds something else than
  // `expected`.
  virtual void CompareAndWrite(uint64_t offset, std::span<const uint8_t> expected,
                               std::span<const uint8_t> desired,
                               std::function<void(Result<bool>)> done) = 0;
};

class Disk : public DiskIo {
 public:
  virtual const DiskIdentity& identity() const = 0;
  virtual uint64_t size() const = 0;
  virtual uint32_t block_bytes() const = 0;   // what is written without being read first
  virtual uint32_t atomic_bytes() const = 0;  // no atomic operation crosses a multiple of this

  // The disk for a command that arrives now and is checked against access of that epoch. The same
  // blocks may be changed through other paths meanwhile, also by the same initiator, if it has
  // given up this one: then the command comes too late, and fails with kStale or kFenced.
  virtual std::shared_ptr<DiskIo> Arrive(uint64_t epoch) = 0;

  // What the range consists of, from its beginning; may cover less of it, but something.
  virtual void GetMap(uint64_t offset, uint64_t length,
                      std::function<void(Result<std::vector<MappedRange>>)> done) = 0;
  // Gives everything back, and makes what was there unreadable wherever it was kept. Nobody writes
  // meanwhile: what was begun before `epoch` has been fenced off. `key`: of several who ask with
  // the same, also through other paths and after a failure, each goes on where the others are.
  // `progress` is called now and then, with 0 to 1. kFenced: access was changed since that epoch;
  // what is written under a later one is not touched.
  virtual void Sanitize(uint64_t key, uint64_t epoch, std::function<void(double)> progress,
                        Done done) = 0;
  // Ends when everything that ended before is durable.
  virtual void Flush(Done done) = 0;

  // Called when the size has changed. One at a time; empty to stop.
  virtual void WatchSize(std::function<void()> changed) = 0;

  // As it is now, whoever changed it.
  virtual void LoadAccess(std::function<void(Result<DiskAccess>)> done) = 0;
  // Replaces the state if the epoch is still `expected`, and says the new epoch;
  // kFailedPrecondition: it is another, load again. `narrows`: some may do less from now on. Then
  // it ends only when nothing that was begun under an older epoch can change the disk any more.
  virtual void ChangeAccess(uint64_t expected, std::string state, bool narrows,
                            std::function<void(Result<uint64_t>)> done) = 0;
  // Ends when nothing that was begun under an older epoch can change the disk any more.
  virtual void Fence(uint64_t epoch, Done done) = 0;
  // Called when the epoch has changed, soon after. One at a time; empty to stop.
  virtual void WatchAccess(std::function<void()> changed) = 0;
};

}  // namespace hydra::iscsi
