// SPDX-License-Identifier: Apache-2.0
#include "blockstore/block_map.h"

#include "base/check.h"

namespace hydra {
namespace {

// What one generation says about a block: its own row or the zeroing of its extent, whichever is
// newer; null if it says nothing.
const MapRow* FindIn(const Generation& generation, const BlockKey& block, const BlockKey& extent,
                     MapRow* scratch) {
  const auto row = generation.rows.find(block);
  const auto zeroed = generation.zeroed.find(extent);
  if (zeroed != generation.zeroed.end() &&
      (row == generation.rows.end() || row->second.version < zeroed->second)) {
    scratch->version = zeroed->second;
    scratch->kind = BlockKind::kZero;
    return scratch;
  }
  return row == generation.rows.end() ? nullptr : &row->second;
}

}  // namespace

BlockMap::BlockMap(MapStore* store, PhysicalVolume* volume, size_t cached_rows)
    : store_(store),
      volume_(volume),
      active_(std::make_unique<Generation>()),
      cache_(cached_rows) {}

Status BlockMap::LoadGroup(GroupId group, uint32_t block_pages) {
  AddGroup(group, block_pages);
  ExtentTable& extents = groups_.at(group).extents;
  Status bad;
  const std::string prefix = TagPrefix(group, 'p');
  HYDRA_RETURN_IF_ERROR(
      store_->Scan(prefix, prefix, [&](std::string_view key, std::string_view value) {
        const auto parsed = ParseMapKey(key);
        if (!parsed) {
          bad = Status::Corruption("malformed presence row in the map");
          return false;
        }
        extents.LoadPresence(parsed->first, value);
        return true;
      }));
  return bad;
}

void BlockMap::AddGroup(GroupId group, uint32_t block_pages) {
  groups_.try_emplace(group, GroupMap{block_pages, ExtentTable(block_pages, &slots_)});
}

void BlockMap::DropGroup(GroupId group) {
  const auto found = groups_.find(group);
  if (found == groups_.end()) return;
  found->second.extents.ForEachKnown(
      [&](SegmentNumber segment) { Released(found->second, segment); });
  groups_.erase(found);
  cache_.Clear();  // of all groups: this is rare
  ++epoch_;
  erase_if(active_->rows, [group](const auto& row) { return row.first.group == group; });
  erase_if(active_->zeroed, [group](const auto& row) { return row.first.group == group; });
}

void BlockMap::Released(const GroupMap& group, SegmentNumber segment) {
  if (segment != 0) volume_->AddLive(segment, -static_cast<int64_t>(group.block_pages));
}

void BlockMap::Write(GroupId group, Lba lba, Version version, const Reference& reference) {
  GroupMap& map = groups_.at(group);
  const MapRow row{version, reference, BlockKind::kData, false};
  active_->rows[{group, lba}] = row;
  cache_.Update(group, lba, row);
  Released(map, map.extents.SetData(lba, reference.segment));
  volume_->AddLive(reference.segment, map.block_pages);
}

void BlockMap::Erase(GroupId group, Lba lba, BlockKind kind, Version version) {
  GroupMap& map = groups_.at(group);
  active_->rows[{group, lba}] = MapRow{version, {}, kind, false};
  cache_.Erase(group, lba);
  Released(map, map.extents.Clear(lba));
}

void BlockMap::ZeroExtent(GroupId group, Extent extent, Version version) {
  GroupMap& map = groups_.at(group);
  const uint32_t blocks = map.extents.blocks_per_extent();
  for (uint32_t i = 0; i < blocks; ++i) {
    const auto row = active_->rows.find({group, extent * blocks + i});
    cache_.Erase(group, extent * blocks + i);
    // A deletion may be newer, if an install brought it.
    if (row != active_->rows.end() && row->second.version < version) active_->rows.erase(row);
  }
  active_->zeroed[{group, extent}] = version;
  map.extents.ClearExtent(extent, [&](SegmentNumber segment) { Released(map, segment); });
}

Result<bool> BlockMap::Relocate(const RelocateRecord& record, const Reference& copy, bool checked) {
  const auto found = groups_.find(record.group);
  if (found == groups_.end()) return false;
  GroupMap& map = found->second;
  MapRow row;
  const Where where = Find(record.group, record.lba, &row);
  if (where == Where::kHole) return false;
  if (where == Where::kStored) {
    if (checked) {
      // The block's data lies in the old segment, so it is the row that was copied: nothing was
      // applied since that lies there.
      if (map.extents.SegmentOf(record.lba) != record.old_reference.segment) return false;
      row = MapRow{record.version, record.old_reference, BlockKind::kData, false};
    } else {
      HYDRA_ASSIGN_OR_RETURN(row, GetStored(record.group, record.lba));
    }
  }
  if (row.kind != BlockKind::kData || row.version != record.version) return false;
  // Replay may find the payload of a bare block in an entry where nothing was found when the block
  // was taken in, or the other way round: rot decides what an entry is good for, and a later build
  // may understand more. So where one of them is owed, the copy counts for what it is.
  const Reference& old = record.old_reference;
  const bool either_owed = row.reference.owed() || old.owed();
  if (either_owed ? row.reference.crc != old.crc : row.reference != old) return false;
  const BlockKey key{record.group, record.lba};
  const auto active = active_->rows.find(key);
  const bool moved = active == active_->rows.end() || active->second.moved;
  active_->rows[key] = MapRow{record.version, copy, BlockKind::kData, moved};
  cache_.Update(record.group, record.lba, active_->rows[key]);
  Released(map, map.extents.SetData(record.lba, copy.segment));
  volume_->AddLive(copy.segment, map.block_pages);
  return true;
}

BlockMap::Where BlockMap::Find(GroupId group, Lba lba, MapRow* row) const {
  const ExtentTable& extents = groups_.at(group).extents;
  const BlockKey block{group, lba};
  const BlockKey extent{group, lba / extents.blocks_per_extent()};
  MapRow scratch;
  const MapRow* found = FindIn(*active_, block, extent, &scratch);
  if (found == nullptr && frozen_) found = FindIn(*frozen_, block, extent, &scratch);
  if (found != nullptr) {
    if (found->kind != BlockKind::kData) return Where::kHole;
    *row = *found;
    return Where::kRow;
  }
  return extents.IsData(lba) ? Where::kStored : Where::kHole;
}

Result<MapRow> BlockMap::GetStored(GroupId group, Lba lba,
                                   const leveldb::Snapshot* snapshot) const {
  auto value = store_->Get(BlockRowKey(group, lba), snapshot);
  if (value.status().code() == Code::kNotFound) return MapRow{};
  if (!value.ok()) return value.status();
  return ParseBlockRow(*value);
}

// A change since the plan is still in the overlay, or the epoch is another: only Thaw drops changes
// from it.
void BlockMap::Remember(GroupId group, Lba lba, const MapRow& row, uint64_t epoch) {
  if (epoch != epoch_ || row.kind != BlockKind::kData || !groups_.contains(group)) return;
  MapRow overlaid;
  if (Find(group, lba, &overlaid) == Where::kStored) cache_.Put(group, lba, row);
}

Result<MapRow> BlockMap::Lookup(GroupId group, Lba lba) const {
  MapRow row;
  switch (Find(group, lba, &row)) {
    case Where::kHole: return MapRow{};
    case Where::kRow: return row;
    case Where::kStored: break;
  }
  return GetStored(group, lba);
}

Result<Version> BlockMap::ZeroedAt(GroupId group, Extent extent) const {
  const BlockKey key{group, extent};
  for (const Generation* generation :
       {const_cast<const Generation*>(active_.get()), frozen_.get()}) {
    if (generation == nullptr) continue;
    const auto found = generation->zeroed.find(key);
    if (found != generation->zeroed.end()) return found->second;
  }
  auto value = store_->Get(ExtentRowKey(group, extent));
  if (value.status().code() == Code::kNotFound) return Version{0};
  if (!value.ok()) return value.status();
  return ParseExtentRow(*value);
}

Result<MapRow> BlockMap::Newest(GroupId group, Lba lba) const {
  const BlockKey block{group, lba};
  const BlockKey extent{group, lba / groups_.at(group).extents.blocks_per_extent()};
  MapRow scratch;
  const MapRow* found = FindIn(*active_, block, extent, &scratch);
  if (found == nullptr && frozen_) found = FindIn(*frozen_, block, extent, &scratch);
  if (found != nullptr) return *found;
  HYDRA_ASSIGN_OR_RETURN(MapRow row, GetStored(group, lba));
  // A checkpoint was cut between its rows and its presence, and rot keeps replay from writing both
  // again. Nobody can read such a row.
  if (row.kind == BlockKind::kData && !groups_.at(group).extents.IsData(lba)) row = MapRow{};
  HYDRA_ASSIGN_OR_RETURN(const Version zeroed, ZeroedAt(group, extent.number));
  if (zeroed > row.version) row = MapRow{zeroed, {}, BlockKind::kZero, false};
  return row;
}

Version BlockMap::OverlayVersion(GroupId group, Lba lba) const {
  const BlockKey block{group, lba};
  const BlockKey extent{group, lba / groups_.at(group).extents.blocks_per_extent()};
  MapRow scratch;
  const MapRow* found = FindIn(*active_, block, extent, &scratch);
  if (found == nullptr && frozen_) found = FindIn(*frozen_, block, extent, &scratch);
  return found == nullptr ? 0 : found->version;
}

std::vector<BlockKey> BlockMap::OverlayBlocks() const {
  std::vector<BlockKey> blocks;
  blocks.reserve(active_->rows.size() + (frozen_ ? frozen_->rows.size() : 0));
  for (const auto& [key, row] : active_->rows) blocks.push_back(key);
  if (!frozen_) return blocks;
  for (const auto& [key, row] : frozen_->rows) {
    if (!active_->rows.contains(key)) blocks.push_back(key);
  }
  return blocks;
}

FrozenMap BlockMap::Freeze() {
  HYDRA_CHECK(!frozen_);
  FrozenMap frozen;
  for (auto& [group, map] : groups_) {
    for (auto& [extent, bitmap] : map.extents.TakeDirty()) {
      frozen.presence.emplace_back(BlockKey{group, extent}, std::move(bitmap));
    }
  }
  const size_t size = active_->rows.size();
  frozen_ = std::move(active_);
  active_ = std::make_unique<Generation>();
  // The next generation will grow as large: growing step by step would rehash on the apply path.
  active_->rows.reserve(size);
  frozen.generation = frozen_;
  return frozen;
}

void BlockMap::Thaw() {
  frozen_.reset();
  ++epoch_;
}

void BlockMap::LoadSegment(GroupId group, Lba lba, SegmentNumber segment) {
  const auto found = groups_.find(group);
  if (found == groups_.end()) return;
  if (found->second.extents.LoadSegment(lba, segment)) {
    volume_->AddLive(segment, found->second.block_pages);
  }
}

}  // namespace hydra
