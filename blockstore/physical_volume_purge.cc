// SPDX-License-Identifier: Apache-2.0
//
// What a purge needs of the physical volume: leaving segments, and overwriting files.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "blockstore/physical_volume.h"

namespace hydra {

// Overwrites a spare with zeroes. Its name is made durable first: a crash must not bring the
// segment back under which a checkpoint no longer looks for anything.
class PhysicalVolume::WipeJob final : public Job {
 public:
  WipeJob(FileSystem* fs, std::string dir, uint64_t bytes, Spare spare_in)
      : spare(std::move(spare_in)), fs_(fs), dir_(std::move(dir)), bytes_(bytes) {}

  void Run() override { status = Wipe(); }
  const char* name() const override { return "wipe"; }

  Spare spare;
  Status status;

 private:
  Status Wipe() {
    HYDRA_RETURN_IF_ERROR(fs_->SyncDirectory(dir_));
    for (uint64_t offset = 0; offset < bytes_; offset += Zeroes().size()) {
      const IoSlice slice{Zeroes().data(), std::min<uint64_t>(Zeroes().size(), bytes_ - offset)};
      HYDRA_RETURN_IF_ERROR(
          spare.file->direct->PWriteV(offset, {&slice, 1}, Durability::kBuffered));
    }
    return spare.file->direct->Sync();
  }

  FileSystem* fs_;
  std::string dir_;
  uint64_t bytes_;
};

std::vector<SegmentNumber> PhysicalVolume::BeginPurge() {
  std::vector<SegmentNumber> holding;
  for (const auto& [number, segment] : segments_) {
    // Whoever refers to it may go on using what is there, where nothing else is.
    const bool all_used = segment.clean && !segment.shared && !segment.condemned &&
                          !segment.unreadable &&
                          segment.live_pages + segment.open_pages == segment.used_pages;
    if (!all_used) holding.push_back(number);
  }
  // Which of the spares that one was made of is known when it is a segment.
  if (opening_segment() != 0) holding.push_back(opening_segment());
  for (uint32_t lane = 0; lane < kLanes; ++lane) closing_[lane] = lanes_[lane].segment != 0;
  only_clean_ = true;
  return holding;
}

size_t PhysicalVolume::clean_spares() const {
  return static_cast<size_t>(std::count_if(spares_.begin(), spares_.end(),
                                           [](const Spare& spare) { return spare.clean; }));
}

std::unique_ptr<Job> PhysicalVolume::NextWipeJob() {
  if (wiping_) return nullptr;
  const auto dirty =
      std::find_if(spares_.begin(), spares_.end(), [](const Spare& spare) { return !spare.clean; });
  if (dirty == spares_.end()) return nullptr;
  wiping_ = true;
  Spare spare = std::move(*dirty);
  spares_.erase(dirty);
  return std::make_unique<WipeJob>(options_.fs, options_.dir, options_.segment_bytes,
                                   std::move(spare));
}

bool PhysicalVolume::FinishWipeJob(Job* job, Status* status) {
  auto* wipe = dynamic_cast<WipeJob*>(job);
  if (wipe == nullptr) return false;
  HYDRA_CHECK(wiping_);
  wiping_ = false;
  *status = wipe->status;
  if (!status->ok()) return true;
  wipe->spare.clean = true;
  // In front: what was made or cleaned before is used first, and wears as evenly.
  spares_.insert(spares_.begin(), std::move(wipe->spare));
  spare_awaited_ = false;
  counters_.zero_fill_bytes += options_.segment_bytes;
  return true;
}

}  // namespace hydra
