// SPDX-License-Identifier: Apache-2.0
#include "blockstore/checkpoint.h"

#include <algorithm>

#include <leveldb/write_batch.h>

#include "base/coding.h"
#include "base/sabotage.h"

namespace hydra {
namespace {

// LevelDB copies a batch into its log and its memtable, and syncs it, while others wait: for the
// lock, and for the device.
constexpr size_t kBatchBytes = 256u << 10;

const char kSweeping[] = {0};
const char kSwept[] = {1};

}  // namespace

CheckpointJob::CheckpointJob(MapStore* store, Input input)
    : store_(store), input_(std::move(input)), batch_(std::make_unique<leveldb::WriteBatch>()) {}

CheckpointJob::~CheckpointJob() = default;

void CheckpointJob::Run() {
  batch_->Clear();
  swept_groups_.clear();
  swept_rows_ = 0;
  read_failed_ = false;
  status_ = Write();
}

Status CheckpointJob::OfRead(Status status) {
  read_failed_ = !status.ok();
  return status;
}

Status CheckpointJob::Write() {
  if (HYDRA_SABOTAGE(kAppliedNotAtomic)) {
    WriteMetas();
    HYDRA_RETURN_IF_ERROR(Flush());
  }
  HYDRA_RETURN_IF_ERROR(WriteIntent());
  HYDRA_RETURN_IF_ERROR(WriteRows());
  HYDRA_RETURN_IF_ERROR(WriteChanges());
  HYDRA_RETURN_IF_ERROR(Flush());  // presence only after the rows it speaks of
  HYDRA_RETURN_IF_ERROR(WritePresence());
  HYDRA_RETURN_IF_ERROR(SweepChanges());
  HYDRA_RETURN_IF_ERROR(SweepDropped());
  HYDRA_RETURN_IF_ERROR(Flush());
  return WriteFinal();
}

Status CheckpointJob::Flush() {
  if (batch_->ApproximateSize() <= leveldb::WriteBatch().ApproximateSize()) return Status::Ok();
  HYDRA_RETURN_IF_ERROR(store_->Write(batch_.get()));
  batch_->Clear();
  return Status::Ok();
}

Status CheckpointJob::FlushIfLarge() {
  return batch_->ApproximateSize() >= kBatchBytes ? Flush() : Status::Ok();
}

Status CheckpointJob::WriteIntent() {
  if (input_.map.generation->size() == 0) return Status::Ok();
  IntentRow intent;
  intent.id = input_.row.id;
  for (const auto& [group, meta] : input_.metas) intent.applied.emplace_back(group, meta.applied);
  batch_->Put(IntentKey(), EncodeIntentRow(intent));
  return Flush();
}

Status CheckpointJob::WriteRows() {
  const Generation& generation = *input_.map.generation;
  // Zeroed extents first: their old rows go before rows of later writes come.
  std::vector<std::pair<BlockKey, Version>> zeroed(generation.zeroed.begin(),
                                                   generation.zeroed.end());
  std::sort(zeroed.begin(), zeroed.end());
  for (const auto& [key, version] : zeroed) {
    if (!input_.metas.contains(key.group)) continue;  // dropped meanwhile
    HYDRA_RETURN_IF_ERROR(DeleteZeroed(key.group, key.number, version));
    std::string value;
    PutFixed64(&value, version);
    batch_->Put(ExtentRowKey(key.group, key.number), value);
    HYDRA_RETURN_IF_ERROR(FlushIfLarge());
  }

  // With their keys: to look at a row for each comparison would mostly miss the cache.
  std::vector<std::pair<BlockKey, const MapRow*>> rows;
  rows.reserve(generation.rows.size());
  for (const auto& [key, row] : generation.rows) rows.emplace_back(key, &row);
  std::sort(rows.begin(), rows.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  std::string value;
  for (const auto& [key, row] : rows) {
    if (!input_.metas.contains(key.group)) continue;
    value.clear();
    PutBlockRow(&value, *row);
    batch_->Put(BlockRowKey(key.group, key.number), value);
    HYDRA_RETURN_IF_ERROR(FlushIfLarge());
  }
  return Status::Ok();
}

Status CheckpointJob::DeleteZeroed(GroupId group, Extent extent, Version version) {
  const uint64_t blocks = input_.blocks_per_extent.at(group);
  const Lba end = (extent + 1) * blocks;
  return OfRead(store_->Scan(BlockRowKey(group, extent * blocks), TagPrefix(group, 'm'),
                             [&](std::string_view key, std::string_view value) {
                               const auto parsed = ParseMapKey(key);
                               if (!parsed || parsed->first >= end) return false;
                               auto row = ParseBlockRow(value);
                               if (row.ok() && row->version < version) {
                                 batch_->Delete(leveldb::Slice(key.data(), key.size()));
                               }
                               return true;
                             }));
}

Status CheckpointJob::WriteChanges() {
  struct Change {
    GroupId group;
    Version version;
    uint64_t number;
    ChangeKind kind;
    auto operator<=>(const Change&) const = default;
  };
  std::vector<Change> changes;
  changes.reserve(input_.map.generation->size());
  for (const auto& [key, row] : input_.map.generation->rows) {
    if (!row.moved) {
      changes.push_back({key.group, row.version, key.number, static_cast<ChangeKind>(row.kind)});
    }
  }
  for (const auto& [key, version] : input_.map.generation->zeroed) {
    changes.push_back({key.group, version, key.number, ChangeKind::kExtent});
  }
  std::sort(changes.begin(), changes.end());
  for (const Change& change : changes) {
    if (!input_.metas.contains(change.group)) continue;
    const char kind = static_cast<char>(change.kind);
    batch_->Put(ChangeKey(change.group, change.version, change.number), leveldb::Slice(&kind, 1));
    HYDRA_RETURN_IF_ERROR(FlushIfLarge());
  }
  return Status::Ok();
}

Status CheckpointJob::WritePresence() {
  for (const auto& [key, bitmap] : input_.map.presence) {
    if (!input_.metas.contains(key.group)) continue;
    if (bitmap.empty()) {
      batch_->Delete(PresenceKey(key.group, key.number));
    } else {
      batch_->Put(PresenceKey(key.group, key.number), bitmap);
    }
    HYDRA_RETURN_IF_ERROR(FlushIfLarge());
  }
  return Status::Ok();
}

Status CheckpointJob::SweepChanges() {
  for (const auto& entry : input_.sweep) {
    const Version horizon = entry.second;
    if (swept_rows_ >= input_.sweep_limit) break;
    const std::string prefix = TagPrefix(entry.first, 'v');
    Status status;
    const Status scanned =
        store_->Scan(prefix, prefix, [&](std::string_view key, std::string_view value) {
          const auto change = ParseMapKey(key);
          if (!change || value.size() != 1) {
            status = OfRead(Status::Corruption("malformed change row in the map"));
            return false;
          }
          if (change->first > horizon || swept_rows_ >= input_.sweep_limit) return false;
          ++swept_rows_;
          status = SweepChange(key, static_cast<ChangeKind>(value[0]), *change);
          return status.ok();
        });
    HYDRA_RETURN_IF_ERROR(status);  // first: it may be a write's
    HYDRA_RETURN_IF_ERROR(OfRead(scanned));
  }
  return Status::Ok();
}

// Removes a change row, and with it the tombstone that existed only for its sake. Whether there is
// one has to be known: without its change row, nothing would ever lead to it again.
Status CheckpointJob::SweepChange(std::string_view key, ChangeKind kind, const MapKey& change) {
  batch_->Delete(leveldb::Slice(key.data(), key.size()));
  if (kind == ChangeKind::kExtent) {
    const std::string extent = ExtentRowKey(change.group, change.second);
    auto value = store_->Get(extent);
    HYDRA_RETURN_IF_ERROR(
        OfRead(value.status().code() == Code::kNotFound ? Status::Ok() : value.status()));
    if (value.ok() && value->size() == sizeof(Version) &&
        DecodeFixed64(AsBytes(*value).data()) == change.first) {
      batch_->Delete(extent);
    }
  } else if (kind != ChangeKind::kData) {
    const std::string block = BlockRowKey(change.group, change.second);
    auto value = store_->Get(block);
    HYDRA_RETURN_IF_ERROR(
        OfRead(value.status().code() == Code::kNotFound ? Status::Ok() : value.status()));
    if (value.ok()) {
      const auto row = ParseBlockRow(*value);
      HYDRA_RETURN_IF_ERROR(OfRead(row.status()));
      if (row->version == change.first && row->kind != BlockKind::kData) batch_->Delete(block);
    }
  }
  return FlushIfLarge();
}

Status CheckpointJob::SweepDropped() {
  for (GroupId group : input_.dropped_before) {
    const std::string prefix = GroupPrefix(group);
    bool done = true;
    Status status;
    const Status scanned =
        store_->Scan(prefix, prefix, [&](std::string_view key, std::string_view) {
          if (swept_rows_ >= input_.sweep_limit) {
            done = false;
            return false;
          }
          ++swept_rows_;
          batch_->Delete(leveldb::Slice(key.data(), key.size()));
          status = FlushIfLarge();
          return status.ok();
        });
    HYDRA_RETURN_IF_ERROR(status);  // first: it is a write's
    HYDRA_RETURN_IF_ERROR(OfRead(scanned));
    if (done) {
      batch_->Put(DroppedKey(group), leveldb::Slice(kSwept, 1));
      swept_groups_.push_back(group);
    }
  }
  return Status::Ok();
}

void CheckpointJob::WriteMetas() {
  for (const auto& [group, meta] : input_.metas) {
    batch_->Put(GroupMetaKey(group), EncodeGroupMeta(meta));
  }
}

Status CheckpointJob::WriteFinal() {
  WriteMetas();
  for (GroupId group : input_.dropped_now) {
    batch_->Delete(GroupMetaKey(group));
    batch_->Put(DroppedKey(group), leveldb::Slice(kSweeping, 1));
  }
  batch_->Put(CheckpointKey(), EncodeCheckpointRow(input_.row));
  return Flush();
}

}  // namespace hydra
