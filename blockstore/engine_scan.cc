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

// Rows looked at per row returned, at most, in one call.
constexpr size_t kStaleFactor = 8;

uint64_t HashBlock(Lba lba, const MapRow& row) {
  uint64_t h = lba * 0x9e3779b97f4a7c15 ^ row.version * 0xc2b2ae3d27d4eb4f ^
               (uint64_t{row.reference.crc} << 8 | static_cast<uint8_t>(row.kind));
  h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9;
  h = (h ^ (h >> 27)) * 0x94d049bb133111eb;
  return h ^ (h >> 31);
}

}  // namespace

Result<ChangeBatch> EngineImpl::ScanChanges(GroupId id, Version since, const std::string& cursor,
                                            size_t limit) {
  HYDRA_ASSIGN_OR_RETURN(Group * group, Usable(id));
  const Version horizon = group->mixed_until == 0
                              ? group->horizon
                              : std::max(group->horizon, LastVersionOf(group->mixed_until));
  if (since < horizon) {
    return Status::OutOfRange(fmt::format(
        "group {}: changes since version {} are no longer kept (the horizon is {}); use a whole "
        "image",
        id, since, horizon));
  }
  ChangeBatch batch;
  batch.as_of = group->checkpointed;
  batch.done = true;
  const std::string from = cursor.empty() ? ChangeKey(id, since + 1, 0) : cursor;
  Status bad;
  size_t examined = 0;
  HYDRA_RETURN_IF_ERROR(
      store_->Scan(from, TagPrefix(id, 'v'), [&](std::string_view key, std::string_view value) {
        const auto change = ParseMapKey(key);
        if (!change || value.size() != 1) {
          bad = Status::Corruption("malformed change row in the map");
          return false;
        }
        // Stale rows cost a look-up each, so they count as well.
        if (batch.changes.size() >= limit || ++examined > kStaleFactor * limit + 1) {
          batch.next = std::string(key);
          batch.done = false;
          return false;
        }
        Change out;
        out.lba = change->second;
        out.version = change->first;
        // Only the newest change of a block counts; rows of older ones are stale.
        if (static_cast<ChangeKind>(value[0]) == ChangeKind::kExtent) {
          auto row = store_->Get(ExtentRowKey(id, change->second));
          if (!row.ok() || row->size() != sizeof(Version) ||
              DecodeFixed64(AsBytes(*row).data()) != out.version) {
            return true;
          }
          out.whole_extent = true;
          out.kind = BlockKind::kZero;
        } else {
          auto row = map_->GetStored(id, change->second);
          if (!row.ok()) {
            bad = row.status();
            return false;
          }
          if (row->version != out.version) return true;
          out.kind = row->kind;
          out.crc = row->reference.crc;
        }
        batch.changes.push_back(out);
        return true;
      }));
  HYDRA_RETURN_IF_ERROR(bad);
  return batch;
}

Result<ChangeBatch> EngineImpl::ScanImage(GroupId id, const std::string& cursor, size_t limit) {
  HYDRA_ASSIGN_OR_RETURN(Group * group, Usable(id));
  ChangeBatch batch;
  batch.as_of = group->checkpointed;
  batch.done = true;
  const std::string prefix = TagPrefix(id, 'm');
  Status bad;
  HYDRA_RETURN_IF_ERROR(store_->Scan(
      cursor.empty() ? prefix : cursor, prefix, [&](std::string_view key, std::string_view value) {
        if (batch.changes.size() >= limit) {
          batch.next = std::string(key);
          batch.done = false;
          return false;
        }
        const auto parsed = ParseMapKey(key);
        auto row = ParseBlockRow(value);
        if (!parsed || !row.ok()) {
          bad = Status::Corruption("malformed row in the map");
          return false;
        }
        if (row->kind != BlockKind::kData) return true;
        batch.changes.push_back(
            {parsed->first, false, row->kind, row->version, row->reference.crc});
        return true;
      }));
  HYDRA_RETURN_IF_ERROR(bad);
  return batch;
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
  stats.durable_batch = durable_batch();
  stats.accounting_complete = accounting_complete_;
  for (const auto& [number, segment] : volume_->segments()) {
    stats.segments.push_back({number, segment.lane, segment.used_pages, segment.live_pages,
                              segment.open_records, volume_->IsActive(number)});
  }
  return stats;
}

}  // namespace hydra
