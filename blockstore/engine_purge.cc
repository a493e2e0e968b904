// SPDX-License-Identifier: Apache-2.0
//
// Leaving nothing behind: a forced vacuum of everything that may hold payload of no use, after
// which the files are overwritten (docs/architecture.md, "Sanitizing").
#include <fmt/format.h>

#include "base/logging.h"
#include "blockstore/engine_impl.h"

namespace hydra {
namespace {

// A peer's copy of a rotten block comes at once, or after some asking; in the end, after 50 s,
// there is none.
constexpr Nanos kFirstMendPause = 100 * kMillisecond;
constexpr unsigned kMendTries = 9;

}  // namespace

using Phase = PurgeState::Phase;

Result<uint64_t> EngineImpl::Purge(const std::vector<GroupId>& groups) {
  HYDRA_RETURN_IF_ERROR(poisoned_);
  if (!accounting_failed_.ok()) {
    return Status::Corruption("the map cannot be read whole, so no segment can be emptied");
  }
  for (const GroupId id : groups) {
    HYDRA_ASSIGN_OR_RETURN(const Group* group, Usable(id));
    if (group->live.empty() && group->waiting.empty() && !group->installing()) continue;
    return Status::Busy(fmt::format("group {} has entries that are not applied yet", id));
  }
  // What is queued now may carry payload that is dead already, or be what makes some of it dead.
  purge_.barrier = queued_;
  purge_.awaited = pending_.size() - free_cookies_.size();
  switch (purge_.phase) {
    case Phase::kIdle:
      purge_.current = ++purge_.last;
      purge_.phase = Phase::kPreparing;
      break;
    case Phase::kPreparing: break;  // it will cover what is dead by now as well
    case Phase::kEmptying:
      if (purge_.last == purge_.current) ++purge_.last;  // follows it
      break;
  }
  return purge_.last;
}

Result<PurgeInfo> EngineImpl::PurgeProgress(uint64_t purge) const {
  HYDRA_RETURN_IF_ERROR(poisoned_);
  if (purge == 0 || purge > purge_.last) return Status::NotFound("no such purge was asked for");
  PurgeInfo info;
  // One that was done before another failed may be told of that: it is asked for again, no more.
  if (purge <= purge_.failed) {
    info.failed = purge_.failure;
    return info;
  }
  info.done = purge <= purge_.completed;
  if (purge == purge_.current && purging()) {
    info.all = purge_.all;
    info.left = purge_.segments.size() + volume_->dirty_spares();
  }
  return info;
}

void EngineImpl::AdvancePurge() {
  if (purge_.phase == Phase::kPreparing) {
    if (!accounting_failed_.ok()) {
      return EndPurge(Status::Corruption("the map cannot be read whole, so nothing can be moved"));
    }
    const bool busy = vacuum_.victim != 0 || vacuum_.job_running || purge_.awaited > 0;
    // What is written from then on needs clean segments at once.
    if (accounting_complete_ && !busy && volume_->clean_spares() >= kLanes) BeginEmptying();
  }
  if (!purging()) return;
  LeaveSegments();
  // The one that was being opened when it began is a segment a little later.
  std::erase_if(purge_.segments, [this](SegmentNumber number) {
    return volume_->Find(number) == nullptr && number != volume_->opening_segment();
  });
  if (!purge_.segments.empty() || volume_->dirty_spares() > 0) return;
  EndPurge(Status::Ok());
  if (purge_.phase == Phase::kPreparing) AdvancePurge();  // the one that follows
}

void EngineImpl::BeginEmptying() {
  const std::vector<SegmentNumber> holding = volume_->BeginPurge();
  purge_.segments = {holding.begin(), holding.end()};
  purge_.all = purge_.segments.size() + volume_->dirty_spares();
  purge_.phase = Phase::kEmptying;
  for (bool& queued : purge_.record_queued) queued = false;
}

// A segment that a lane ends in cannot be freed: the lane goes on in another as soon as there is
// something to write. A word about the last checkpoint will do.
void EngineImpl::LeaveSegments() {
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    if (!volume_->IsClosing(lane) || purge_.record_queued[lane]) continue;
    const Urgency urgency = lane == kLogLane ? Urgency::kHardState : Urgency::kBackground;
    std::string record = Encode(CheckpointRecord{checkpoint_id_, replay_from_});
    if (!volume_->CheckRoom(urgency, record.size(), 0).ok()) continue;
    PendingRecord pending;
    pending.type = RecordType::kCheckpoint;
    pending.report = false;
    pending.group = kNodeGroup;
    Queue(urgency, std::move(pending), std::move(record), {});
    purge_.record_queued[lane] = true;
  }
}

void EngineImpl::EndPurge(Status failure) {
  volume_->EndPurge();
  purge_.segments.clear();
  purge_.stuck.clear();
  purge_.completed = purge_.current;
  if (!failure.ok()) {
    HYDRA_LOG_ERROR("purge: {}", failure.ToString());
    purge_.failed = purge_.current;
    purge_.failure = std::move(failure);
  }
  purge_.phase = Phase::kIdle;
  if (purge_.last > purge_.current) {
    purge_.phase = Phase::kPreparing;
    purge_.current = purge_.last;
  }
}

SegmentNumber EngineImpl::PickPurgeVictim() const {
  if (!purging()) return 0;
  for (const SegmentNumber number : purge_.segments) {
    const Segment* segment = volume_->Find(number);
    if (segment == nullptr || segment->condemned || volume_->IsActive(number)) continue;
    if (segment->live_pages == 0 && segment->open_records == 0) continue;
    if (volume_->position().next_batch < segment->retry_after) continue;
    const auto stuck = purge_.stuck.find(number);
    if (stuck != purge_.stuck.end() && now_ < stuck->second.next) continue;
    return number;
  }
  return 0;
}

// Entries that could not be moved are tried again when something else has happened; blocks that
// could not be, after pauses, because they may be mended.
void EngineImpl::PurgeVictimDone(SegmentNumber number, Segment* segment) {
  if (!purge_.segments.contains(number)) return;
  const uint64_t next_batch = volume_->position().next_batch;
  segment->retry_after = next_batch + 1;
  if (segment->open_records > 0 || segment->live_pages == 0) return;
  PurgeState::Stuck& stuck = purge_.stuck[number];
  if (stuck.tries < kMendTries) {
    segment->retry_after = next_batch;
    stuck.next = now_ + (kFirstMendPause << stuck.tries++);
    return;
  }
  const std::string what = fmt::format("segment {} cannot be emptied", number);
  EndPurge(vacuum_.failed.ok()
               ? Status::Corruption(fmt::format(
                     "{}: {} pages in it are rotten; mend or discard those blocks, and try again",
                     what, segment->live_pages))
               : vacuum_.failed.WithContext(what));
}

}  // namespace hydra
