// SPDX-License-Identifier: Apache-2.0
//
// A volume of the cluster as a disk.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/uuid.h"
#include "client/hydra.h"
#include "iscsi/disk.h"

namespace hydra::iscsi {

// The same for the same volume on every node.
DiskIdentity IdentityOf(const Uuid& cluster, uint32_t volume, const std::string& name);

AccessRules RulesOf(const TargetInfo& target);

// The volume's data, under a guard or not. Used on the thread of the io_context, where operations
// end.
class VolumeIo : public DiskIo {
 public:
  VolumeIo(boost::asio::io_context* io, Volume volume) : io_(io), volume_(std::move(volume)) {}

  void Read(uint64_t offset, std::span<uint8_t> data, Done done) override;
  void Write(uint64_t offset, std::span<const uint8_t> data, Done done) override;
  void WriteZeroes(uint64_t offset, uint64_t length, Done done) override;
  void Unmap(uint64_t offset, uint64_t length, Done done) override;
  void CompareAndWrite(uint64_t offset, std::span<const uint8_t> expected,
                       std::span<const uint8_t> desired,
                       std::function<void(Result<bool>)> done) override;

 private:
  boost::asio::io_context* io_;
  Volume volume_;
};

// Used on the thread of its io_context, where its operations end.
class VolumeDisk : public Disk {
 public:
  VolumeDisk(boost::asio::io_context* io, Volume volume, DiskIdentity identity);
  ~VolumeDisk() override;

  const DiskIdentity& identity() const override { return identity_; }
  uint64_t size() const override { return volume_.size(); }
  uint32_t block_bytes() const override { return volume_.block_bytes(); }
  uint32_t atomic_bytes() const override;

  std::shared_ptr<DiskIo> Arrive(uint64_t epoch) override;
  void Read(uint64_t offset, std::span<uint8_t> data, Done done) override {
    plain_.Read(offset, data, std::move(done));
  }
  void Write(uint64_t offset, std::span<const uint8_t> data, Done done) override {
    plain_.Write(offset, data, std::move(done));
  }
  void WriteZeroes(uint64_t offset, uint64_t length, Done done) override {
    plain_.WriteZeroes(offset, length, std::move(done));
  }
  void Unmap(uint64_t offset, uint64_t length, Done done) override {
    plain_.Unmap(offset, length, std::move(done));
  }
  void CompareAndWrite(uint64_t offset, std::span<const uint8_t> expected,
                       std::span<const uint8_t> desired,
                       std::function<void(Result<bool>)> done) override {
    plain_.CompareAndWrite(offset, expected, desired, std::move(done));
  }
  void GetMap(uint64_t offset, uint64_t length,
              std::function<void(Result<std::vector<MappedRange>>)> done) override;
  void Sanitize(uint64_t key, uint64_t epoch, std::function<void(double)> progress,
                Done done) override;
  void Flush(Done done) override;
  void WatchSize(std::function<void()> changed) override;
  void LoadAccess(std::function<void(Result<DiskAccess>)> done) override;
  void ChangeAccess(uint64_t expected, std::string state, bool narrows,
                    std::function<void(Result<uint64_t>)> done) override;
  void Fence(uint64_t epoch, Done done) override;
  void WatchAccess(std::function<void()> changed) override;

 private:
  struct Watching;
  std::function<void(uint64_t)> Begin(std::function<void()> changed, Watching* watching);

  boost::asio::io_context* io_;
  Volume volume_;
  DiskIdentity identity_;
  VolumeIo plain_;
  // Shared with the watch, which may call once more when it is gone.
  struct Watching {
    std::shared_ptr<std::function<void()>> call;
    std::optional<Volume::Watch> watch;
  };
  Watching size_;
  Watching access_;
};

}  // namespace hydra::iscsi
