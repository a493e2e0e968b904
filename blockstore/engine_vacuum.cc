// SPDX-License-Identifier: Apache-2.0
//
// Cleaning: choosing a victim and driving its relocation (blockstore/vacuum.h).
#include <algorithm>
#include <limits>
#include <unordered_set>

#include "base/check.h"
#include "base/logging.h"
#include "base/sabotage.h"
#include "blockstore/engine_impl.h"

namespace hydra {
namespace {

// A victim that could not be emptied (rot, entries in flight) is left alone for so many batches.
constexpr uint64_t kRetryBatches = 4096;

}  // namespace

// Whether the next checkpoint holds no reference into a segment: nothing in it is live or open, no
// batch will be written to it, and replay will not start in it.
bool EngineImpl::IsFreeable(SegmentNumber number, const Segment& segment) const {
  const auto& lanes = volume_->position().lanes;
  return segment.live_pages == 0 && segment.open_records == 0 && !segment.condemned &&
         !volume_->IsActive(number) && number != lanes[kLogLane].segment &&
         number != lanes[kRelocationLane].segment && number != vacuum_.victim;
}

size_t EngineImpl::FreeableSegments() const {
  size_t count = 0;
  for (const auto& [number, segment] : volume_->segments()) {
    count += IsFreeable(number, segment) ? 1 : 0;
  }
  return count;
}

// Cost/benefit: free space gained times how long it stays free, over the cost of reading the
// segment and writing its live part. How long: since the segment was opened. What survived that
// long in it tends to survive longer, and of what was written lately more will be dead for the
// waiting. (The age of the blocks themselves, handed on from victim to copy, is worse for both even
// and skewed overwriting: copies of old blocks look ripe at once and are copied again while still
// full.)
SegmentNumber EngineImpl::PickVictim() const {
  SegmentNumber best = 0;
  double best_score = 0;
  for (const auto& [number, segment] : volume_->segments()) {
    if (segment.condemned || segment.unreadable || volume_->IsActive(number)) continue;
    if (segment.live_pages == 0 && segment.open_records == 0) continue;
    if (volume_->position().next_batch < segment.retry_after) continue;
    if (purge_.stuck.contains(number)) continue;  // the purge tries it again
    const uint32_t pages = volume_->segment_pages();
    // An open record takes a header page with it.
    const uint32_t held = segment.live_pages + segment.open_pages + segment.open_records;
    if (held > volume_->DensePages()) continue;
    const double full = static_cast<double>(held) / pages;
    const auto age = static_cast<double>(volume_->position().next_batch - segment.first_batch + 1);
    const double score = (1 - full) * age / (1 + full);
    if (score > best_score) {
      best_score = score;
      best = number;
    }
  }
  return best;
}

std::unique_ptr<Job> EngineImpl::NextVacuumJob() {
  VacuumState& v = vacuum_;
  if (v.job_running || !accounting_complete_ || !poisoned_.ok()) return nullptr;
  if (v.victim == 0) {
    SegmentNumber victim = PickPurgeVictim();
    if (victim == 0) {
      // (Segments are counted only where it matters: this is asked often.)
      if (!vacuum_enabled_ || !volume_->WantsVacuum(condemned_.size()) ||
          !volume_->WantsVacuum(condemned_.size() + FreeableSegments())) {
        return nullptr;
      }
      // A purge waits for the one before to be done, unless it could not go on itself.
      const bool preparing = purge_.phase == PurgeState::Phase::kPreparing;
      if (preparing && volume_->spares() >= kLanes) return nullptr;
      victim = PickVictim();
    }
    v = {};
    v.victim = victim;
    if (v.victim == 0) return nullptr;
    v.job_running = true;
    return std::make_unique<VacuumScanJob>(identity_.store, volume_->table(),
                                           volume_->segment_pages(), v.victim);
  }
  if (!v.copies.empty()) QueueRelocations();
  // One window is read while another is being written; more would only wait in the queue.
  if (!v.copies.empty() || v.outstanding > volume_->max_payload_pages()) return nullptr;
  if (map_->rows() > 2 * options_.overlay_rows) return nullptr;
  // Entries that are not applied yet go first: once none is left here, whatever is applied from now
  // on lies elsewhere, and a row that points here cannot be replaced by another that does.
  if (!v.moved_entries) MoveOpenEntries();
  const Segment& segment = *volume_->Find(v.victim);
  if (segment.open_records > 0) {
    if (v.moved_entries && v.outstanding == 0) EndVacuum();
    return nullptr;
  }
  std::vector<Candidate> window;
  while (window.empty() && v.next < v.candidates.size()) {
    std::vector<Candidate> all = NextWindow(&v, volume_->max_payload_pages() / 2);
    for (Candidate& candidate : all) {
      // Most of a victim is dead, which the extent table knows without a look-up.
      if (!map_->HasGroup(candidate.group) ||
          map_->extents(candidate.group).SegmentOf(candidate.lba) != v.victim) {
        continue;
      }
      MapRow row;
      const auto where = map_->Find(candidate.group, candidate.lba, &row);
      if (where == BlockMap::Where::kHole) continue;
      candidate.in_overlay = where == BlockMap::Where::kRow;
      if (candidate.in_overlay &&
          (row.version != candidate.version || row.reference != candidate.reference)) {
        continue;
      }
      window.push_back(candidate);
    }
  }
  if (!window.empty()) {
    v.job_running = true;
    return std::make_unique<VacuumReadJob>(map_.get(), volume_->table(), std::move(window));
  }
  if (v.outstanding > 0) return nullptr;
  if (!v.listed && v.failed.ok() && segment.live_pages > v.rotten_pages) {
    v.failed = ListVictim();
    if (v.failed.ok()) return v.listed ? NextVacuumJob() : nullptr;
  }
  EndVacuum();
  return nullptr;
}

// The blocks in the victim that the scan did not find, from the map: the header that told of them
// is rotten. In pieces, because all blocks of the store have to be looked at for it. What was
// listed and is gone meanwhile is seen when its window is read.
Status EngineImpl::ListVictim() {
  constexpr size_t kExtentsAtATime = 256;
  constexpr size_t kRowsAtATime = 1024;
  VacuumState& v = vacuum_;
  size_t rows = 0;
  for (size_t i = 0; i < kExtentsAtATime && rows < kRowsAtATime; ++i) {
    while (v.extents.empty()) {
      const auto next = v.next_group ? groups_.lower_bound(*v.next_group) : groups_.begin();
      if (next == groups_.end()) {
        ListingDone();
        return Status::Ok();
      }
      v.listing = next->first;
      v.next_group = next->first + 1;
      v.extents = map_->extents(v.listing).ExtentsIn(0, std::numeric_limits<Lba>::max());
    }
    const Extent extent = v.extents.back();
    v.extents.pop_back();
    const auto group = groups_.find(v.listing);
    if (group == groups_.end() || !map_->HasGroup(v.listing)) continue;  // dropped meanwhile
    const ExtentTable& extents = map_->extents(v.listing);
    const uint64_t blocks = extents.blocks_per_extent();
    for (Lba lba = extent * blocks; lba < (extent + 1) * blocks; ++lba) {
      if (extents.SegmentOf(lba) != v.victim) continue;
      ++rows;
      HYDRA_ASSIGN_OR_RETURN(const MapRow row, map_->Lookup(v.listing, lba));
      if (row.kind != BlockKind::kData || row.reference.segment != v.victim) continue;
      v.unfound.push_back(
          {v.listing, lba, row.version, row.reference, group->second.block_pages, false});
    }
  }
  return Status::Ok();
}

// (What the scan found and is still there is rotten itself, and reported.)
void EngineImpl::ListingDone() {
  VacuumState& v = vacuum_;
  std::unordered_set<uint32_t> found;
  for (const Candidate& candidate : v.candidates) found.insert(candidate.reference.page);
  std::erase_if(v.unfound, [&](const Candidate& c) { return found.contains(c.reference.page); });
  // Windows are read in the order of pages.
  std::sort(v.unfound.begin(), v.unfound.end(), [](const Candidate& a, const Candidate& b) {
    return a.reference.page < b.reference.page;
  });
  v.candidates = std::move(v.unfound);
  v.next = 0;
  v.listed = true;
}

void EngineImpl::FinishVacuumScan(VacuumScanJob* job) {
  vacuum_.job_running = false;
  vacuum_.candidates = std::move(job->candidates);
  if (job->rotten) {
    HYDRA_LOG_WARN("vacuum: a batch header in segment {} is rotten", job->victim());
  }
}

void EngineImpl::FinishVacuumRead(VacuumReadJob* job) {
  vacuum_.job_running = false;
  if (!job->status.ok()) {
    HYDRA_LOG_WARN("vacuum: {}", job->status.ToString());
    vacuum_.next = vacuum_.candidates.size();
    vacuum_.failed = job->status;
    return;
  }
  for (const Candidate& candidate : job->rotten) {
    ++rotten_blocks_;
    vacuum_.rotten_pages += candidate.block_pages;
    HYDRA_LOG_ERROR("group {} block {}: rotten in segment {}; it stays there until repaired",
                    candidate.group, candidate.lba, candidate.reference.segment);
    NoteDamage({Damage::What::kBlock, candidate.group, candidate.lba,
                VersionInstance(candidate.version), candidate.reference.segment,
                candidate.reference.page, candidate.version, candidate.reference.crc});
  }
  vacuum_.copies = std::move(job->copies);
  QueueRelocations();
}

void EngineImpl::QueueRelocations() {
  VacuumState& v = vacuum_;
  size_t queued = 0;
  for (VacuumReadJob::Copy& copy : v.copies) {
    const Candidate& c = copy.candidate;
    PendingRecord pending;
    pending.type = RecordType::kRelocate;
    pending.group = c.group;
    pending.report = false;
    pending.relocate = {c.group, c.lba, c.version, c.reference, c.block_pages};
    std::string record = Encode(pending.relocate);
    if (!volume_->CheckRoom(Urgency::kBackground, record.size(), c.block_pages).ok()) break;
    relocated_bytes_ += copy.data.length;
    Queue(Urgency::kBackground, std::move(pending), std::move(record), {copy.data});
    ++v.outstanding;
    ++queued;
  }
  v.copies.erase(v.copies.begin(), v.copies.begin() + static_cast<ptrdiff_t>(queued));
}

// Records of entries that are not applied yet are part of the log, not of the map: append them
// again, unchanged.
void EngineImpl::MoveOpenEntries() {
  for (auto& [id, group] : groups_) {
    for (const auto& [instance, entry] : group.live) {
      const LogIndex::Slot* slot = group.log.Find(instance);
      if (slot == nullptr || slot->segment != vacuum_.victim) continue;
      // A newer record of the instance is on its way; it makes this one superfluous.
      if (!entry->durable || entry->ballot != slot->ballot || entry->faulty) continue;
      // What this build cannot read whole it must not write again.
      if (!entry->understood || entry->moving) continue;
      auto read = ReadRecord(&group, instance, *slot, true);
      if (!read.ok()) {
        HYDRA_LOG_ERROR("vacuum: {}", read.status().ToString());
        NoteDamage(
            {Damage::What::kRecordPayload, id, 0, instance, slot->segment, slot->batch_page, 0, 0});
        continue;
      }
      read->record.stable = group.stable;
      std::string record = Encode(read->record);
      if (!volume_->CheckRoom(Urgency::kBackground, record.size(), entry->pages()).ok()) {
        return;  // again, when there is room
      }
      PendingRecord pending;
      pending.type = RecordType::kAccept;
      pending.group = id;
      pending.report = false;
      pending.entry = entry;
      pending.moved = true;
      entry->moving = true;
      Queue(Urgency::kBackground, std::move(pending), std::move(record), std::move(read->payload));
      ++vacuum_.outstanding;
    }
  }
  vacuum_.moved_entries = true;
}

void EngineImpl::EndVacuum() {
  Segment* segment = volume_->Find(vacuum_.victim);
  segment->retry_after = volume_->position().next_batch + kRetryBatches;
  if (HYDRA_SABOTAGE(kReuseSegmentEarly) && segment->live_pages == 0 &&
      segment->open_records == 0) {
    segment->condemned = true;
    condemned_.push_back({vacuum_.victim, pins_.Retire()});
    TrimLogs(vacuum_.victim);
  }
  PurgeVictimDone(vacuum_.victim, segment);
  vacuum_ = {};
}

}  // namespace hydra
