// SPDX-License-Identifier: Apache-2.0
#include "tests/iscsi/support/memory_disk.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include "base/check.h"

namespace hydra::iscsi {

MemoryDisk::MemoryDisk(uint64_t bytes, std::string name, uint32_t block_bytes,
                       std::shared_ptr<MemoryAccess> access)
    : size_(bytes), block_bytes_(block_bytes), access_(std::move(access)) {
  identity_.name = std::move(name);
  const size_t hash = std::hash<std::string>()(identity_.name);
  std::memcpy(identity_.id.data(), &hash, sizeof(hash));
}

void MemoryDisk::Run(std::function<void()> operation) {
  if (holding_) {
    held_.push_back(std::move(operation));
  } else {
    operation();
  }
}

bool MemoryDisk::Rotten(uint64_t offset, uint64_t length) const {
  const auto next = rotten_.lower_bound(offset / block_bytes_);
  return next != rotten_.end() && *next * block_bytes_ < offset + length;
}

void MemoryDisk::Release() {
  holding_ = false;
  while (!held_.empty()) ReleaseOne();
}

void MemoryDisk::ReleaseOne() {
  const std::function<void()> next = std::move(held_.front());
  held_.pop_front();
  next();
}

void MemoryDisk::Resize(uint64_t bytes) {
  size_ = bytes;
  if (changed_) changed_();
}

void MemoryDisk::CopyIn(uint64_t offset, std::span<const uint8_t> data) {
  HYDRA_CHECK(offset % 512 == 0 && data.size() % 512 == 0 && offset + data.size() <= size_);
  for (size_t done = 0; done < data.size();) {
    const uint64_t block = (offset + done) / block_bytes_;
    const size_t within = static_cast<size_t>((offset + done) % block_bytes_);
    const size_t length = std::min<size_t>(data.size() - done, block_bytes_ - within);
    std::vector<uint8_t>& bytes = access_->blocks[block];
    bytes.resize(block_bytes_);
    std::memcpy(bytes.data() + within, data.data() + done, length);
    done += length;
  }
}

void MemoryDisk::CopyOut(uint64_t offset, std::span<uint8_t> data) const {
  HYDRA_CHECK(offset % 512 == 0 && data.size() % 512 == 0 && offset + data.size() <= size_);
  for (size_t done = 0; done < data.size();) {
    const uint64_t block = (offset + done) / block_bytes_;
    const size_t within = static_cast<size_t>((offset + done) % block_bytes_);
    const size_t length = std::min<size_t>(data.size() - done, block_bytes_ - within);
    const auto found = access_->blocks.find(block);
    if (found == access_->blocks.end()) {
      std::memset(data.data() + done, 0, length);
    } else {
      std::memcpy(data.data() + done, found->second.data() + within, length);
    }
    done += length;
  }
}

std::vector<uint8_t> MemoryDisk::Contents(uint64_t offset, uint64_t length) {
  std::vector<uint8_t> data(length);
  CopyOut(offset, data);
  return data;
}

// What a command sees that arrived at some epoch.
class MemoryDisk::Arrived : public DiskIo {
 public:
  Arrived(MemoryDisk* disk, uint64_t epoch) : disk_(disk), epoch_(epoch) {}

  void Read(uint64_t offset, std::span<uint8_t> data, Done done) override {
    if (epoch_ != disk_->access_->now.epoch) return done(Status::Fenced("access was changed"));
    disk_->Read(offset, data, std::move(done));
  }
  void Write(uint64_t offset, std::span<const uint8_t> data, Done done) override {
    if (Status late = Late(); !late.ok()) return done(late);
    disk_->Write(offset, data, std::move(done));
  }
  void WriteZeroes(uint64_t offset, uint64_t length, Done done) override {
    if (Status late = Late(); !late.ok()) return done(late);
    disk_->WriteZeroes(offset, length, std::move(done));
  }
  void Unmap(uint64_t offset, uint64_t length, Done done) override {
    if (Status late = Late(); !late.ok()) return done(late);
    disk_->Unmap(offset, length, std::move(done));
  }
  void CompareAndWrite(uint64_t offset, std::span<const uint8_t> expected,
                       std::span<const uint8_t> desired,
                       std::function<void(Result<bool>)> done) override {
    if (Status late = Late(); !late.ok()) return done(late);
    disk_->CompareAndWrite(offset, expected, desired, std::move(done));
  }

 private:
  Status Late() {
    if (epoch_ != disk_->access_->now.epoch) return Status::Fenced("access was changed");
    if (disk_->overtaken_ == 0) return Status::Ok();
    --disk_->overtaken_;
    return Status::Stale("someone was faster");
  }

  MemoryDisk* const disk_;
  const uint64_t epoch_;
};

std::shared_ptr<DiskIo> MemoryDisk::Arrive(uint64_t epoch) {
  return std::make_shared<Arrived>(this, epoch);
}

void MemoryDisk::Read(uint64_t offset, std::span<uint8_t> data, Done done) {
  Run([this, offset, data, done = std::move(done)] {
    reads_.push_back(data.size());
    const bool once = rotten_reads_ > 0 && rotten_reads_-- > 0;
    if (failure_.ok() && (once || Rotten(offset, data.size()))) {
      std::memset(data.data(), 0xbd, data.size());
      return done(Status::Corruption("rot"));
    }
    if (failure_.ok()) CopyOut(offset, data);
    done(failure_);
  });
}

void MemoryDisk::Write(uint64_t offset, std::span<const uint8_t> data, Done done) {
  Run([this, offset, data, done = std::move(done)] {
    // Of blocks that are written in part, the rest is read.
    const uint64_t end = offset + data.size();
    const bool lost = (offset % block_bytes_ != 0 && Rotten(offset, 1)) ||
                      (end % block_bytes_ != 0 && Rotten(end - 1, 1));
    if (failure_.ok() && lost) return done(Status::Corruption("rot"));
    if (failure_.ok()) {
      CopyIn(offset, data);
      rotten_.erase(rotten_.lower_bound(offset / block_bytes_),
                    rotten_.lower_bound((end + block_bytes_ - 1) / block_bytes_));
    }
    done(failure_);
  });
}

void MemoryDisk::WriteZeroes(uint64_t offset, uint64_t length, Done done) {
  Run([this, offset, length, done = std::move(done)] {
    if (failure_.ok()) CopyIn(offset, std::vector<uint8_t>(length));
    done(failure_);
  });
}

void MemoryDisk::Unmap(uint64_t offset, uint64_t length, Done done) {
  Run([this, offset, length, done = std::move(done)] {
    if (!failure_.ok()) return done(failure_);
    const uint64_t end = offset + length;
    const uint64_t first = (offset + block_bytes_ - 1) / block_bytes_;
    const uint64_t last = end / block_bytes_;
    if (first > last) {
      CopyIn(offset, std::vector<uint8_t>(length));
    } else {
      const uint64_t from = std::min(end, first * block_bytes_);
      CopyIn(offset, std::vector<uint8_t>(from - offset));
      access_->blocks.erase(access_->blocks.lower_bound(first), access_->blocks.lower_bound(last));
      CopyIn(last * block_bytes_, std::vector<uint8_t>(end - last * block_bytes_));
    }
    done(Status::Ok());
  });
}

void MemoryDisk::CompareAndWrite(uint64_t offset, std::span<const uint8_t> expected,
                                 std::span<const uint8_t> desired,
                                 std::function<void(Result<bool>)> done) {
  Run([this, offset, expected, desired, done = std::move(done)] {
    if (!failure_.ok()) return done(failure_);
    if (Rotten(offset, expected.size())) return done(Status::Corruption("rot"));
    std::vector<uint8_t> now(expected.size());
    CopyOut(offset, now);
    const bool same = std::equal(now.begin(), now.end(), expected.begin());
    if (same) CopyIn(offset, desired);
    done(same);
  });
}

void MemoryDisk::GetMap(uint64_t offset, uint64_t length,
                        std::function<void(Result<std::vector<MappedRange>>)> done) {
  Run([this, offset, length, done = std::move(done)] {
    if (!failure_.ok()) return done(failure_);
    std::vector<MappedRange> ranges;
    for (uint64_t at = offset; at < offset + length;) {
      const auto next = access_->blocks.lower_bound(at / block_bytes_);
      const bool mapped = next != access_->blocks.end() && next->first == at / block_bytes_;
      const uint64_t end = mapped                          ? (at / block_bytes_ + 1) * block_bytes_
                           : next == access_->blocks.end() ? offset + length
                                                           : next->first * block_bytes_;
      const uint64_t stop = std::min(end, offset + length);
      ranges.push_back({stop - at, mapped});
      at = stop;
    }
    done(std::move(ranges));
  });
}

void MemoryDisk::Sanitize(uint64_t key, uint64_t epoch, std::function<void(double)> progress,
                          Done done) {
  sanitized_.push_back(key);
  if (std::exchange(hold_erase_, false)) {
    erase_ = [this, epoch, progress = std::move(progress), done = std::move(done)] {
      Erase(epoch, progress, done);
    };
    return;
  }
  Erase(epoch, progress, done);
}

void MemoryDisk::Erase(uint64_t epoch, const std::function<void(double)>& progress,
                       const Done& done) {
  if (epoch != access_->now.epoch) return done(Status::Fenced("access was changed"));
  access_->blocks.clear();
  progress(0.5);
  if (!std::exchange(hold_sanitize_, false)) return done(failure_);
  sanitize_progress_ = progress;
  sanitize_done_ = done;
}

void MemoryDisk::ReleaseSanitize(Status how) { std::exchange(sanitize_done_, {})(std::move(how)); }

void MemoryDisk::Flush(Done done) {
  Run([this, done = std::move(done)] {
    ++flushes_;
    done(failure_);
  });
}

void MemoryDisk::Fence(uint64_t epoch, Done done) {
  Run([this, epoch, done = std::move(done)] {
    if (failure_.ok()) access_->fenced = std::max(access_->fenced, epoch);
    done(failure_);
  });
}

void MemoryDisk::LoadAccess(std::function<void(Result<DiskAccess>)> done) {
  Run([this, done = std::move(done)] {
    if (!failure_.ok()) return done(failure_);
    done(access_->now);
  });
}

void MemoryDisk::ChangeAccess(uint64_t expected, std::string state, bool narrows,
                              std::function<void(Result<uint64_t>)> done) {
  Run([this, expected, state = std::move(state), narrows, done = std::move(done)] {
    if (!failure_.ok()) return done(failure_);
    if (access_->interfere) std::exchange(access_->interfere, {})();
    if (access_->now.epoch != expected) {
      return done(Status::FailedPrecondition("changed meanwhile"));
    }
    access_->now.epoch = expected + 1;
    access_->now.state = state;
    access_->narrowed += narrows;
    for (const auto& [disk, changed] : access_->watchers) changed();
    done(expected + 1);
  });
}

void MemoryDisk::WatchAccess(std::function<void()> changed) {
  if (changed) {
    access_->watchers[this] = std::move(changed);
  } else {
    access_->watchers.erase(this);
  }
}

}  // namespace hydra::iscsi
