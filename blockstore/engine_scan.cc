// SPDX-License-Identifier: Apache-2.0
//
// Scans of the map: changes, images, digests; and statistics.
#include <algorithm>

#include <fmt/format.h>

#include "base/check.h"
#include "base/coding.h"
#include "blockstore/engine_impl.h"

namespace hydra {
namespace {

// Of the rows that a scan of changes finds: a chunk's.
constexpr size_t kMostRemembered = 256;

// Rows of changes looked at in one scan: most may be stale.
constexpr size_t kMostExamined = 8192;

uint64_t HashBlock(Lba lba, const MapRow& row) {
  uint64_t h = lba * 0x9e3779b97f4a7c15 ^ row.version * 0xc2b2ae3d27d4eb4f ^
               (uint64_t{row.reference.crc} << 8 | static_cast<uint8_t>(row.kind));
  h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9;
  h = (h ^ (h >> 27)) * 0x94d049bb133111eb;
  return h ^ (h >> 31);
}

}  // namespace

// Only the newest change of a block counts; rows of older ones are stale, and there may be many.
// What changes while it runs is as good as stale: a later scan, or the log from `as_of` on, has it.
class EngineImpl::MapScanJob final : public PinnedRead {
 public:
  MapScanJob(const MapStore* store, const BlockMap* map, ScanRequest request, Instance as_of)
      : store_(store), map_(map), request_(std::move(request)), epoch_(map->epoch()) {
    batch_.as_of = as_of;
  }

  void Run() override { status_ = request_.image ? ScanBlocks() : ScanVersions(); }

  Result<ChangeBatch> Take() {
    HYDRA_RETURN_IF_ERROR(status_);
    return std::move(batch_);
  }
  const ScanRequest& request() const { return request_; }
  // On the engine's thread: whoever lists blocks is about to read them.
  void Remember(BlockMap* map) const {
    for (const auto& [lba, row] : rows_) map->Remember(request_.group, lba, row, epoch_);
  }

 private:
  void StopAt(std::string_view key) {
    batch_.next = std::string(key);
    batch_.done = false;
  }

  Status ScanVersions() {
    const GroupId id = request_.group;
    batch_.done = true;
    const std::string from =
        request_.cursor.empty() ? ChangeKey(id, request_.since + 1, 0) : request_.cursor;
    Status bad;
    size_t examined = 0;
    HYDRA_RETURN_IF_ERROR(
        store_->Scan(from, TagPrefix(id, 'v'), [&](std::string_view key, std::string_view value) {
          const auto change = ParseMapKey(key);
          if (!change || value.size() != 1) {
            bad = Status::Corruption("malformed change row in the map");
            return false;
          }
          // Of a checkpoint that is being written: whoever goes on behind it here would miss what
          // belongs to the next.
          if (change->first > LastVersionOf(batch_.as_of)) return false;
          // Stale rows cost a look-up each, so they count as well.
          if (batch_.changes.size() >= request_.limit || ++examined > kMostExamined) {
            StopAt(key);
            return false;
          }
          bad = AddChange(static_cast<ChangeKind>(value[0]), change->first, change->second);
          return bad.ok();
        }));
    return bad;
  }

  Status AddChange(ChangeKind kind, Version version, uint64_t number) {
    Change out;
    out.lba = number;
    out.version = version;
    if (kind == ChangeKind::kExtent) {
      const auto row = store_->Get(ExtentRowKey(request_.group, number));
      if (row.status().code() == Code::kNotFound) return Status::Ok();
      HYDRA_RETURN_IF_ERROR(row.status());
      if (row->size() != sizeof(Version)) {
        return Status::Corruption("malformed row of an extent in the map");
      }
      if (DecodeFixed64(AsBytes(*row).data()) != version) return Status::Ok();
      out.whole_extent = true;
      out.kind = BlockKind::kZero;
    } else {
      HYDRA_ASSIGN_OR_RETURN(const MapRow row, map_->GetStored(request_.group, number));
      if (row.version != version) return Status::Ok();
      out.kind = row.kind;
      out.crc = row.reference.crc;
      if (batch_.changes.size() < kMostRemembered) rows_.emplace_back(number, row);
    }
    batch_.changes.push_back(out);
    return Status::Ok();
  }

  Status ScanBlocks() {
    batch_.done = true;
    const std::string prefix = TagPrefix(request_.group, 'm');
    Status bad;
    HYDRA_RETURN_IF_ERROR(store_->Scan(request_.cursor.empty() ? prefix : request_.cursor, prefix,
                                       [&](std::string_view key, std::string_view value) {
                                         if (batch_.changes.size() >= request_.limit) {
                                           StopAt(key);
                                           return false;
                                         }
                                         const auto parsed = ParseMapKey(key);
                                         auto row = ParseBlockRow(value);
                                         if (!parsed || !row.ok()) {
                                           bad = Status::Corruption("malformed row in the map");
                                           return false;
                                         }
                                         if (row->kind != BlockKind::kData) return true;
                                         batch_.changes.push_back({parsed->first, false, row->kind,
                                                                   row->version,
                                                                   row->reference.crc});
                                         return true;
                                       }));
    return bad;
  }

  const MapStore* const store_;
  const BlockMap* const map_;
  const ScanRequest request_;
  const uint64_t epoch_;
  ChangeBatch batch_;
  std::vector<std::pair<Lba, MapRow>> rows_;
  Status status_;
};

Status EngineImpl::CheckHorizon(const ScanRequest& request) {
  HYDRA_ASSIGN_OR_RETURN(const Group* group, Usable(request.group));
  const Version horizon = group->mixed_until == 0
                              ? group->horizon
                              : std::max(group->horizon, LastVersionOf(group->mixed_until));
  if (!request.image && request.since < horizon) {
    return Status::OutOfRange(fmt::format(
        "group {}: changes since version {} are no longer kept (the horizon is {}); use a whole "
        "image",
        request.group, request.since, horizon));
  }
  return Status::Ok();
}

Result<std::unique_ptr<ReadJob>> EngineImpl::PlanScan(ScanRequest request) {
  HYDRA_RETURN_IF_ERROR(CheckHorizon(request));
  const Group* group = FindGroup(request.group);
  auto job = std::make_unique<MapScanJob>(store_.get(), map_.get(), std::move(request),
                                          group->checkpointed);
  job->pin = pins_.Take();
  return std::unique_ptr<ReadJob>(std::move(job));
}

Result<ChangeBatch> EngineImpl::FinishScan(std::unique_ptr<ReadJob> job) {
  auto* scan = static_cast<MapScanJob*>(job.get());
  Unpin(scan);
  // Rows may have been swept since it was planned.
  HYDRA_RETURN_IF_ERROR(CheckHorizon(scan->request()));
  scan->Remember(map_.get());
  return scan->Take();
}

Result<ChangeBatch> EngineImpl::ScanChanges(GroupId id, Version since, const std::string& cursor,
                                            size_t limit) {
  HYDRA_ASSIGN_OR_RETURN(auto job, PlanScan({id, false, since, cursor, limit}));
  job->Run();
  return FinishScan(std::move(job));
}

Result<ChangeBatch> EngineImpl::ScanImage(GroupId id, const std::string& cursor, size_t limit) {
  HYDRA_ASSIGN_OR_RETURN(auto job, PlanScan({id, true, 0, cursor, limit}));
  job->Run();
  return FinishScan(std::move(job));
}

Result<uint64_t> EngineImpl::Digest(GroupId id) {
  HYDRA_RETURN_IF_ERROR(Usable(id).status());
  HYDRA_RETURN_IF_ERROR(Checkpoint());
  uint64_t digest = 0;
  std::string cursor;
  while (true) {
    HYDRA_ASSIGN_OR_RETURN(const ChangeBatch batch, ScanImage(id, cursor, 10'000));
    for (const Change& change : batch.changes) {
      MapRow row;
      row.version = change.version;
      row.kind = change.kind;
      row.reference.crc = change.crc;
      digest += HashBlock(change.lba, row);
    }
    if (batch.done) return digest;
    cursor = batch.next;
  }
}

EngineStats EngineImpl::Stats() const {
  EngineStats stats;
  const PhysicalVolume::Counters& counters = volume_->counters();
  stats.batches = counters.batches;
  stats.batch_bytes = counters.batch_bytes;
  stats.payload_bytes = payload_bytes_;
  stats.installed_bytes = installed_bytes_;
  stats.relocated_bytes = relocated_bytes_;
  stats.zero_fill_bytes = counters.zero_fill_bytes;
  stats.checkpoints = checkpoints_;
  stats.seals = counters.seals;
  stats.segments_freed = counters.segments_freed;
  stats.overlay_rows = map_->rows() + map_->frozen_rows();
  stats.queued_bytes = volume_->queued_bytes();
  stats.free_segments = static_cast<uint32_t>(volume_->spares());
  stats.capacity_bytes = options_.capacity_bytes;
  stats.space_bytes = uint64_t{volume_->total_segments()} * identity_.segment_bytes;
  stats.rotten_blocks = rotten_blocks_;
  stats.around_bytes = around_.read_bytes();
  stats.map_lookups = map_lookups_;
  stats.map_recalled = map_recalled_;
  stats.repaired_blocks = repaired_blocks_;
  stats.delivered_blocks = delivered_blocks_;
  for (const auto& [id, group] : groups_) stats.owed_blocks += map_->extents(id).owed_blocks();
  stats.durable_batch = durable_batch();
  stats.accounting_complete = accounting_complete_;
  for (const auto& [number, segment] : volume_->segments()) {
    stats.segments.push_back({number, segment.lane, segment.used_pages, segment.live_pages,
                              segment.open_records, volume_->IsActive(number)});
  }
  return stats;
}

}  // namespace hydra
