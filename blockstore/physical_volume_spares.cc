// SPDX-License-Identifier: Apache-2.0
//
// Files for segments to come. Each is zero-filled before its first use, because flushing into space
// that was merely allocated costs twice as much; afterwards it goes from segment to segment.
//
// It is filled piece by piece. Whoever flushes next waits for what the device has been given
// meanwhile, and that may be a client: so pieces keep pace with what is written into segments, a
// little ahead of it, unless nobody writes: then more are made than are needed. Where a record
// waits for a spare, or only the reserve is left, there is nothing to be gained by waiting, and
// long pieces follow each other at once.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/logging.h"
#include "base/sabotage.h"
#include "blockstore/physical_volume.h"

namespace hydra {
namespace {

constexpr uint64_t kPieceBytes = 256u << 10;
constexpr uint64_t kHurriedPieceBytes = 16u << 20;
constexpr uint64_t kFillPercent = 125;  // of what is written: so spares stay ahead
constexpr Nanos kIdleAfter = 50 * kMillisecond;

}  // namespace

std::string SpareName(uint64_t number) { return fmt::format("{}{:010}", kSparePrefix, number); }

class PhysicalVolume::SpareJob final : public Job {
 public:
  SpareJob(FileSystem* fs, std::string dir, uint64_t bytes, uint64_t piece,
           UnfinishedSpare spare_in)
      : spare(std::move(spare_in)), fs_(fs), dir_(std::move(dir)), bytes_(bytes), piece_(piece) {}

  void Run() override {
    status = FillPiece();
    if (status.ok() && spare.filled == bytes_) status = Finish();
    if (status.ok()) return;
    spare.file.reset();                      // its space is free again, for whoever looks
    fs_->Unlink(temporary()).IgnoreError();  // or the next start removes it
  }
  const char* name() const override { return "spare segment"; }

  UnfinishedSpare spare;
  Status status;

 private:
  std::string temporary() const { return spare.path + kTemporarySuffix; }

  Status FillPiece() {
    if (spare.file == nullptr) {
      HYDRA_ASSIGN_OR_RETURN(spare.file, OpenSegmentFile(fs_, temporary(), true));
      const Status allocated = spare.file->direct->Allocate(bytes_);
      if (HYDRA_SABOTAGE(kUseShortSpare) && allocated.code() == Code::kNoSpace) {
        spare.filled = bytes_;
        return Status::Ok();
      }
      HYDRA_RETURN_IF_ERROR(allocated);
    }
    const uint64_t end = std::min(bytes_, spare.filled + piece_);
    while (spare.filled < end) {
      const IoSlice slice{Zeroes().data(), std::min<uint64_t>(Zeroes().size(), end - spare.filled)};
      HYDRA_RETURN_IF_ERROR(
          spare.file->direct->PWriteV(spare.filled, {&slice, 1}, Durability::kBuffered));
      spare.filled += slice.length;
    }
    return Status::Ok();
  }

  Status Finish() {
    HYDRA_RETURN_IF_ERROR(spare.file->direct->Sync());
    HYDRA_RETURN_IF_ERROR(fs_->Rename(temporary(), spare.path));
    return fs_->SyncDirectory(dir_);
  }

  FileSystem* fs_;
  std::string dir_;
  uint64_t bytes_;
  uint64_t piece_;
};

// No more is saved up than the largest batch earns.
void PhysicalVolume::EarnFilling(uint64_t written_bytes) {
  const uint64_t most = uint64_t{max_batch_pages_} * kPageSize * kFillPercent / 100 + kPieceBytes;
  fill_credit_ = std::min(fill_credit_ + written_bytes * kFillPercent / 100, most);
}

// How many more are made while nobody writes: a store that has grown far will grow further.
size_t PhysicalVolume::IdleSpares() const {
  const uint64_t most = options_.idle_spare_bytes / options_.segment_bytes;
  return std::min<uint64_t>(segments_.size() / 2, most);
}

// Where the file system has little room, its room is worth more than idle spares.
bool PhysicalVolume::HasRoomForIdleSpares() const {
  if (total_segments() >= max_segments()) return false;
  const auto free = options_.fs->FreeBytes(options_.dir);
  return free.ok() && *free >= 8 * options_.idle_spare_bytes + options_.keep_free_bytes;
}

std::unique_ptr<Job> PhysicalVolume::NextSpareJob() {
  if (making_spare_) return nullptr;
  const size_t spares = spares_.size() + (wiping_ ? 1 : 0);
  const size_t wanted = options_.reserve_segments + options_.spare_segments;
  const bool needed = spare_awaited_ || spares_.size() <= options_.reserve_segments;
  // While a store is opened there is no clock yet, and nobody to wait.
  const bool idle = counters_.batches == 0 || (Idle() && now_ >= last_done_ + kIdleAfter);
  if (!idle && spares >= wanted) return nullptr;
  if (!unfinished_ && spares >= wanted &&
      (spares >= wanted + IdleSpares() || !HasRoomForIdleSpares())) {
    return nullptr;
  }
  if (!needed && !idle && fill_credit_ < kPieceBytes) return nullptr;
  if (!unfinished_) {
    if (!CanMakeSpare()) return nullptr;
    unfinished_ = UnfinishedSpare{options_.dir + "/" + SpareName(next_spare_name_++), nullptr, 0};
  }
  making_spare_ = true;
  fill_credit_ -= std::min(fill_credit_, kPieceBytes);
  auto job = std::make_unique<SpareJob>(options_.fs, options_.dir, options_.segment_bytes,
                                        needed ? kHurriedPieceBytes : kPieceBytes,
                                        std::move(*unfinished_));
  unfinished_.reset();
  return job;
}

Status PhysicalVolume::FinishSpareJob(Job* job) {
  auto* made = static_cast<SpareJob*>(job);
  making_spare_ = false;
  if (made->status.code() == Code::kNoSpace) {
    HYDRA_LOG_WARN("no room for another segment: {}", made->status.ToString());
    disk_full_ = true;
    // A quota, say: more than what was free then must be free before the next attempt.
    auto free = options_.fs->FreeBytes(options_.dir);
    refused_free_bytes_ = free.ok() ? *free : 0;
    return Status::Ok();
  }
  HYDRA_RETURN_IF_ERROR(made->status);
  UnfinishedSpare& spare = made->spare;
  if (spare.filled < options_.segment_bytes) {
    unfinished_ = std::move(spare);
    return Status::Ok();
  }
  refused_free_bytes_ = 0;
  spares_.push_back({std::move(spare.path), std::move(spare.file), true});
  spare_awaited_ = false;
  counters_.zero_fill_bytes += options_.segment_bytes;
  return Status::Ok();
}

Result<bool> PhysicalVolume::GiveBackSpare() {
  const auto clean =
      std::find_if(spares_.begin(), spares_.end(), [](const Spare& spare) { return spare.clean; });
  if (!HasSurplusSpare() || clean == spares_.end()) return false;
  HYDRA_LOG_WARN("the disk is nearly full: removing a spare segment, for the block map");
  const std::string path = std::move(clean->path);
  spares_.erase(clean);  // closed before its space is counted
  disk_full_ = true;     // so that segments are cleaned, rather than more made
  HYDRA_RETURN_IF_ERROR(options_.fs->Unlink(path));
  // Some file systems free the space only with this.
  HYDRA_RETURN_IF_ERROR(options_.fs->SyncDirectory(options_.dir));
  return true;
}

}  // namespace hydra
