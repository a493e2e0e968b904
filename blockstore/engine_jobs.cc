// SPDX-License-Identifier: Apache-2.0
//
// Background work: what to do next, and folding in what was done.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/logging.h"
#include "base/sabotage.h"
#include "blockstore/engine_impl.h"

namespace hydra {
namespace {

constexpr size_t kAccountingRows = 50'000;
// Rows swept per checkpoint: more than one checkpoint adds, so that sweeping catches up.
constexpr size_t kSweepFactor = 2;
constexpr size_t kMinSweep = 10'000;
// LevelDB writes a row about four times while it sinks to the bottom.
constexpr uint64_t kBytesPerRow = 400;
constexpr uint64_t kCheckpointMargin = 8u << 20;
constexpr size_t kCheckpointForSegments = 4;
// Reads of the map that fail are tried again, each time after twice the pause: for 51 s and 63 s.
constexpr Nanos kFirstAccountingPause = 100 * kMillisecond;
constexpr unsigned kAccountingTries = 10;
constexpr Nanos kFirstCheckpointPause = kSecond;
constexpr unsigned kCheckpointTries = 7;

}  // namespace

// After a restart the extent tables know which blocks hold data, but not where. This reads the
// map's rows piece by piece; blocks that were touched since are skipped when it is folded in.
class EngineImpl::AccountingJob final : public Job {
 public:
  AccountingJob(const MapStore* store, std::string from) : store_(store), next(std::move(from)) {}

  void Run() override {
    size_t count = 0;
    Status malformed;
    done = true;
    status = store_->Scan(next, "", [&](std::string_view key, std::string_view value) {
      if (count++ == kAccountingRows) {
        next = std::string(key);
        done = false;
        return false;
      }
      const auto parsed = ParseMapKey(key);
      if (!parsed || parsed->tag != 'm') {
        // Rows of other kinds lie between: jump to the next group's blocks.
        if (parsed && parsed->tag > 'm' && parsed->group < kNodeGroup - 1) {
          next = TagPrefix(parsed->group + 1, 'M');
          done = false;
          return false;
        }
        return !parsed || parsed->group != kNodeGroup;
      }
      auto row = ParseBlockRow(value);
      if (!row.ok()) {
        malformed = row.status();
        return false;
      }
      if (row->kind == BlockKind::kData) {
        rows.push_back({parsed->group, parsed->first, row->reference.segment});
      }
      return true;
    });
    if (status.ok()) status = malformed;
  }
  const char* name() const override { return "accounting"; }

 private:
  const MapStore* store_;

 public:
  struct Row {
    GroupId group;
    Lba lba;
    SegmentNumber segment;
  };
  std::string next;
  std::vector<Row> rows;
  bool done = false;
  Status status;
};

std::unique_ptr<Job> EngineImpl::NextJob() {
  if (!poisoned_.ok()) return nullptr;
  FreeCondemned();
  if (!poisoned_.ok()) return nullptr;
  if (purge_.phase != PurgeState::Phase::kIdle) {
    AdvancePurge();
    if (auto job = volume_->NextWipeJob()) return job;
  }
  if (volume_->spares() <= options_.reserve_segments) {
    if (auto job = volume_->NextSpareJob()) return job;
  }
  draining_ = false;
  if (WantsCheckpoint()) {
    if (auto job = BeginCheckpoint(false)) return job;
    if (draining_) return nullptr;  // what else there is to do must not be in its way then
    // Only wiped files are given back: nobody could wipe them afterwards.
    if (checkpoint_refused_ && volume_->HasSurplusSpare()) {
      if (auto job = volume_->NextWipeJob()) return job;
    }
  }
  const bool cleaning = vacuum_.victim != 0;
  if (auto job = NextVacuumJob()) return job;
  if (cleaning && vacuum_.victim == 0) return NextJob();  // a victim is done: what next?
  if (auto job = volume_->NextSpareJob()) return job;
  if (!accounting_complete_ && !accounting_running_ && accounting_failed_.ok() &&
      now_ >= accounting_from_) {
    accounting_running_ = true;
    return std::make_unique<AccountingJob>(store_.get(), accounting_cursor_);
  }
  return nullptr;
}

void EngineImpl::FinishJob(std::unique_ptr<Job> job) {
  if (auto* checkpoint = dynamic_cast<CheckpointJob*>(job.get())) {
    checkpoint_running_ = false;
    if (checkpoint->status().ok()) {
      FinishCheckpoint(checkpoint);
    } else if (checkpoint->read_failed()) {
      (void)job.release();
      PutOffCheckpoint(std::unique_ptr<CheckpointJob>(checkpoint));
    } else {
      (void)Poison(checkpoint->status());
    }
  } else if (auto* accounting = dynamic_cast<AccountingJob*>(job.get())) {
    FinishAccounting(accounting);
  } else if (auto* scan = dynamic_cast<VacuumScanJob*>(job.get())) {
    FinishVacuumScan(scan);
  } else if (auto* read = dynamic_cast<VacuumReadJob*>(job.get())) {
    FinishVacuumRead(read);
  } else {
    Status made;
    if (!volume_->FinishWipeJob(job.get(), &made)) made = volume_->FinishSpareJob(job.get());
    if (!made.ok()) (void)Poison(made);
  }
}

void EngineImpl::FinishAccounting(AccountingJob* job) {
  accounting_running_ = false;
  if (!job->status.ok()) {
    // Reads and writes go on; only freeing space does not.
    if (++accounting_tries_ < kAccountingTries) {
      HYDRA_LOG_WARN("what is live cannot be counted yet: {}", job->status.ToString());
      accounting_from_ = now_ + (kFirstAccountingPause << (accounting_tries_ - 1));
      return;
    }
    HYDRA_LOG_ERROR("the map cannot be read whole, so no space can be freed: {}",
                    job->status.ToString());
    accounting_failed_ = job->status;
    volume_->SetAccountingFailed(job->status);
    return;
  }
  accounting_tries_ = 0;
  for (const auto& row : job->rows) map_->LoadSegment(row.group, row.lba, row.segment);
  accounting_cursor_ = std::move(job->next);
  if (job->done) {
    accounting_complete_ = true;
    volume_->SetAccountingComplete();
  }
}

// --- Checkpoints ------------------------------------------------------------------------------

bool EngineImpl::WantsCheckpoint() const {
  if (checkpoint_running_) return false;
  if (put_off_checkpoint_ != nullptr) return now_ >= checkpoint_from_;
  if (checkpoint_requested_ || map_->rows() >= options_.overlay_rows) return true;
  if (durable_batch() >= replay_from_ + options_.checkpoint_batches) return true;
  if (!accounting_complete_ || (!volume_->WantsVacuum(0) && !purging())) return false;
  // Cleaned segments become free with the next checkpoint.
  const size_t freeable = FreeableSegments();
  const bool emptied = purging() && vacuum_.victim == 0 && PickPurgeVictim() == 0;
  return freeable >= kCheckpointForSegments ||
         (freeable > 0 && (emptied || volume_->spares() <= options_.reserve_segments));
}

uint64_t EngineImpl::CheckpointBytes(uint64_t rows) {
  return rows * kBytesPerRow + kCheckpointMargin;
}

bool EngineImpl::CheckpointFits() {
  auto fits = [this] {
    auto free = options_.fs->FreeBytes(options_.dir);
    return free.ok() && *free >= CheckpointBytes(map_->rows() + map_->frozen_rows());
  };
  if (fits()) {
    if (ballast_released_) EnsureBallast();
    checkpoint_refused_ = false;
    return true;
  }
  ReleaseBallast();
  // Then segments give way: cleaning makes do with fewer, and LevelDB cannot.
  while (!fits()) {
    auto given = volume_->GiveBackSpare();
    if (!given.ok()) (void)Poison(given.status());
    if (!given.ok() || !*given) break;
  }
  if (fits()) {
    checkpoint_refused_ = false;
    return poisoned_.ok();
  }
  // It is tried again all the time.
  if (!std::exchange(checkpoint_refused_, true)) {
    HYDRA_LOG_WARN("no room for a checkpoint: free some space on this disk");
  }
  return false;
}

std::unique_ptr<Job> EngineImpl::BeginCheckpoint(bool clean) {
  HYDRA_CHECK(!checkpoint_running_);
  if (put_off_checkpoint_ != nullptr) {
    if (!CheckpointFits()) return nullptr;  // it may be that there was room a minute ago
    checkpoint_running_ = true;
    return std::move(put_off_checkpoint_);
  }
  draining_ = true;
  for (const auto& [id, group] : groups_) {
    if (!group.waiting.empty()) return nullptr;  // soon: its record is queued or in flight
  }
  if (!CheckpointFits()) {
    draining_ = false;
    return nullptr;
  }
  draining_ = false;
  checkpoint_requested_ = false;
  checkpoint_running_ = true;

  CheckpointJob::Input input;
  input.row.id = ++checkpoint_id_;
  input.row.position = volume_->position();
  input.row.highest_segment = volume_->highest_segment();
  input.row.clean = clean;
  for (auto& [id, group] : groups_) {
    input.metas.emplace(id, MetaOf(&group));
    if (group.durable_horizon > 0) input.sweep.emplace(id, group.durable_horizon);
    input.blocks_per_extent.emplace(id, kExtentPages / group.block_pages);
  }
  if (HYDRA_SABOTAGE(kSharedGroupCheckpoint)) {
    Instance shared = 0;
    for (const auto& [id, meta] : input.metas) shared = std::max(shared, meta.applied);
    for (auto& [id, meta] : input.metas) meta.applied = shared;
  }
  input.sweep_limit = kSweepFactor * map_->rows() + kMinSweep;
  input.map = map_->Freeze();
  input.dropped_now = std::move(dropped_now_);
  dropped_now_.clear();
  input.dropped_before = dropped_before_;
  if (accounting_complete_) {
    for (const auto& [number, segment] : volume_->segments()) {
      if (IsFreeable(number, segment)) input.freeable.push_back(number);
    }
  }
  return std::make_unique<CheckpointJob>(store_.get(), std::move(input));
}

// The map could not be read. What the checkpoint froze stays frozen, and it is run again as it is:
// to recovery it looks like one that was cut short.
void EngineImpl::PutOffCheckpoint(std::unique_ptr<CheckpointJob> job) {
  if (now_ >= checkpoint_from_) {  // else somebody did not wait for the next try
    if (++checkpoint_tries_ >= kCheckpointTries) {
      (void)Poison(job->status(), "it could not read its map for a checkpoint");
      return;
    }
    checkpoint_from_ = now_ + (kFirstCheckpointPause << (checkpoint_tries_ - 1));
  }
  HYDRA_LOG_WARN("a checkpoint is put off: {}", job->status().ToString());
  put_off_checkpoint_ = std::move(job);
}

void EngineImpl::FinishCheckpoint(CheckpointJob* job) {
  const CheckpointJob::Input& input = job->input();
  map_->Thaw();
  ++checkpoints_;
  checkpoint_tries_ = 0;
  checkpoint_from_ = 0;
  replay_from_ = input.row.position.next_batch;
  for (const auto& [id, meta] : input.metas) {
    if (Group* group = FindGroup(id)) {
      group->checkpointed = meta.applied;
      group->durable_horizon = meta.horizon;
      if (group->next_state_at >= group->state_at) {
        group->state = std::move(group->next_state);
        group->state_at = group->next_state_at;
      }
    }
  }
  for (GroupId swept : job->swept_groups()) std::erase(dropped_before_, swept);
  dropped_before_.insert(dropped_before_.end(), input.dropped_now.begin(), input.dropped_now.end());

  const uint64_t epoch = pins_.Retire();
  for (SegmentNumber number : input.freeable) {
    Segment* segment = volume_->Find(number);
    HYDRA_CHECK(segment != nullptr && segment->live_pages == 0 && segment->open_records == 0);
    segment->condemned = true;
    condemned_.push_back({number, epoch});
    TrimLogs(number);
  }
  FreeCondemned();

  PendingRecord pending;
  pending.type = RecordType::kCheckpoint;
  pending.report = false;
  pending.group = kNodeGroup;
  std::string record = Encode(CheckpointRecord{input.row.id, input.row.position.next_batch});
  if (!input.row.clean && volume_->CheckRoom(Urgency::kHardState, record.size(), 0).ok()) {
    Queue(Urgency::kHardState, std::move(pending), std::move(record), {});
  }
}

// Entries in a segment that goes away can no longer be shipped to peers.
void EngineImpl::TrimLogs(SegmentNumber segment) {
  if (HYDRA_SABOTAGE(kLogOutlivesSegment)) return;
  for (auto& [id, group] : groups_) {
    group.log.Truncate(group.log.HighestIn(segment, group.stable));
  }
}

void EngineImpl::FreeCondemned() {
  if (condemned_.empty() || !poisoned_.ok()) return;
  std::erase_if(condemned_, [this](const Condemned& condemned) {
    if (!poisoned_.ok() || !pins_.DrainedUpTo(condemned.epoch)) return false;
    map_->ReleaseSegment(condemned.segment);
    const Status freed = volume_->Free(condemned.segment);
    if (!freed.ok()) (void)Poison(freed);
    return true;
  });
}

Status EngineImpl::Checkpoint() {
  HYDRA_RETURN_IF_ERROR(poisoned_);
  if (checkpoint_running_) return Status::Busy("a checkpoint is being written");
  HYDRA_RETURN_IF_ERROR(Drain(nullptr));
  return CheckpointNow(false);
}

// One that was put off comes first; it does not cover what was applied since.
Status EngineImpl::CheckpointNow(bool clean) {
  for (bool covers = false; !covers;) {
    covers = put_off_checkpoint_ == nullptr;
    auto job = BeginCheckpoint(clean);
    if (job == nullptr) return Status::NoSpace("no room on the disk for a checkpoint");
    job->Run();
    const Status status = static_cast<CheckpointJob*>(job.get())->status();
    FinishJob(std::move(job));
    HYDRA_RETURN_IF_ERROR(poisoned_);
    HYDRA_RETURN_IF_ERROR(status);
  }
  return Status::Ok();
}

Status EngineImpl::Drain(std::vector<Completion>* completions) {
  if (completions == nullptr) completions = &held_;
  bool moved = true;
  while (moved && poisoned_.ok()) {
    moved = false;
    // Asking for a job may queue records, so a batch is asked for after it.
    if (auto job = NextJob()) {
      job->Run();
      FinishJob(std::move(job));
      moved = true;
    }
    if (Batch* batch = NextBatch(0)) {
      BatchDone(batch, batch->Write(), 0, completions);
      moved = true;
    }
  }
  HYDRA_RETURN_IF_ERROR(poisoned_);
  if (volume_->in_flight()) return Status::Busy("a batch is in flight; finish it first");
  if (!volume_->Idle()) {
    return Status::NoSpace("records are queued, but there is no segment to write them to");
  }
  return Status::Ok();
}

}  // namespace hydra
