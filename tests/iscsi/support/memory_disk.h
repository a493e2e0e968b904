// SPDX-License-Identifier: Apache-2.0
//
// A disk in memory, for tests of the layers above it. Operations end at once, or, once Hold() was
// called, when Release() says so: how a test gets a command caught in mid-air.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "iscsi/disk.h"

namespace hydra::iscsi {

// What several paths to the same disk share of it.
struct MemoryAccess {
  std::map<uint64_t, std::vector<uint8_t>> blocks;  // mapped ones
  DiskAccess now;
  std::map<const Disk*, std::function<void()>> watchers;
  uint64_t narrowed = 0;            // how often
  uint64_t fenced = 0;              // up to which epoch
  std::function<void()> interfere;  // called once, just before a change
};

class MemoryDisk : public Disk {
 public:
  MemoryDisk(uint64_t bytes, std::string name, uint32_t block_bytes = 4096,
             std::shared_ptr<MemoryAccess> access = std::make_shared<MemoryAccess>());

  const DiskIdentity& identity() const override { return identity_; }
  uint64_t size() const override { return size_; }
  uint32_t block_bytes() const override { return block_bytes_; }
  uint32_t atomic_bytes() const override { return 1 << 20; }

  std::shared_ptr<DiskIo> Arrive(uint64_t epoch) override;
  void Read(uint64_t offset, std::span<uint8_t> data, Done done) override;
  void Write(uint64_t offset, std::span<const uint8_t> data, Done done) override;
  void WriteZeroes(uint64_t offset, uint64_t length, Done done) override;
  void Unmap(uint64_t offset, uint64_t length, Done done) override;
  void CompareAndWrite(uint64_t offset, std::span<const uint8_t> expected,
                       std::span<const uint8_t> desired,
                       std::function<void(Result<bool>)> done) override;
  void GetMap(uint64_t offset, uint64_t length,
              std::function<void(Result<std::vector<MappedRange>>)> done) override;
  void Sanitize(uint64_t key, uint64_t epoch, std::function<void(double)> progress,
                Done done) override;
  void Flush(Done done) override;
  void WatchSize(std::function<void()> changed) override { changed_ = std::move(changed); }
  void LoadAccess(std::function<void(Result<DiskAccess>)> done) override;
  void ChangeAccess(uint64_t expected, std::string state, bool narrows,
                    std::function<void(Result<uint64_t>)> done) override;
  void Fence(uint64_t epoch, Done done) override;
  void WatchAccess(std::function<void()> changed) override;

  // --- For tests ---
  void Resize(uint64_t bytes);
  void FailWith(Status status) { failure_ = std::move(status); }  // everything, until it is OK
  // What the physical block holds is lost until it is written whole.
  void Rot(uint64_t offset) { rotten_.insert(offset / block_bytes_); }
  // So many reads fail as if something in them were rotten; then all is well.
  void RotForReads(unsigned reads) { rotten_reads_ = reads; }
  // So many changes by commands that have arrived already fail with kStale.
  void Overtake(unsigned changes) { overtaken_ = changes; }
  const std::vector<uint64_t>& reads() const { return reads_; }  // bytes of each
  void Hold() { holding_ = true; }
  void Pass() { holding_ = false; }  // what comes now; what is held already stays
  void Release();                    // everything held, in order; and nothing is held any more
  void ReleaseOne();
  size_t held() const { return held_.size(); }
  std::vector<uint8_t> Contents(uint64_t offset, uint64_t length);
  uint64_t flushes() const { return flushes_; }
  // The next one is half done at once, and ends when it is released.
  void HoldSanitize() { hold_sanitize_ = true; }
  // The next one has done nothing until its erasing is released.
  void HoldErase() { hold_erase_ = true; }
  void ReleaseErase() { std::exchange(erase_, {})(); }
  void MoveSanitize(double part) { sanitize_progress_(part); }
  void ReleaseSanitize(Status how = Status::Ok());
  // Keys of the sanitizings that began here.
  const std::vector<uint64_t>& sanitized() const { return sanitized_; }
  const std::shared_ptr<MemoryAccess>& access() const { return access_; }

 private:
  void Run(std::function<void()> operation);
  bool Rotten(uint64_t offset, uint64_t length) const;
  void Erase(uint64_t epoch, const std::function<void(double)>& progress, const Done& done);
  void CopyIn(uint64_t offset, std::span<const uint8_t> data);
  void CopyOut(uint64_t offset, std::span<uint8_t> data) const;

  DiskIdentity identity_;
  uint64_t size_;
  uint32_t block_bytes_;
  std::function<void()> changed_;
  Status failure_;
  std::set<uint64_t> rotten_;  // physical blocks
  unsigned rotten_reads_ = 0;
  std::vector<uint64_t> reads_;
  bool holding_ = false;
  std::deque<std::function<void()>> held_;
  uint64_t flushes_ = 0;
  std::vector<uint64_t> sanitized_;
  bool hold_sanitize_ = false;
  bool hold_erase_ = false;
  std::function<void()> erase_;
  std::function<void(double)> sanitize_progress_;
  Done sanitize_done_;
  std::shared_ptr<MemoryAccess> access_;
  unsigned overtaken_ = 0;

  class Arrived;
};

}  // namespace hydra::iscsi
