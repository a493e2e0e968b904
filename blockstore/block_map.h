// SPDX-License-Identifier: Apache-2.0
//
// The block map: an overlay in memory over LevelDB.
//
// Applying an entry changes only the overlay (and the extent tables), so it never waits for
// LevelDB. A checkpoint freezes the overlay, writes the frozen generation to LevelDB in the
// background, and drops it; meanwhile a second generation takes new changes. The overlay holds only
// changes whose records are durable in the local stream.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <boost/unordered/unordered_flat_map.hpp>

#include "blockstore/extent_table.h"
#include "blockstore/map_schema.h"
#include "blockstore/map_store.h"
#include "blockstore/physical_volume.h"
#include "blockstore/row_cache.h"
#include "blockstore/types.h"

namespace hydra {

// A block or, in Generation::zeroed, an extent.
struct BlockKey {
  GroupId group = 0;
  uint64_t number = 0;
  friend auto operator<=>(const BlockKey&, const BlockKey&) = default;
};

struct BlockKeyHash {
  using is_avalanching = void;
  size_t operator()(const BlockKey& key) const {
    uint64_t h = (key.number + 0x9e3779b97f4a7c15 * (uint64_t{key.group} + 1));
    h = (h ^ (h >> 32)) * 0xd6e8feb86659fd93;
    h = (h ^ (h >> 32)) * 0xd6e8feb86659fd93;
    return h ^ (h >> 32);
  }
};

// The changes between two checkpoints.
struct Generation {
  boost::unordered_flat_map<BlockKey, MapRow, BlockKeyHash> rows;
  boost::unordered_flat_map<BlockKey, Version, BlockKeyHash> zeroed;  // whole extents

  size_t size() const { return rows.size() + zeroed.size(); }
};

// What a checkpoint writes besides group metas.
struct FrozenMap {
  std::shared_ptr<const Generation> generation;
  std::vector<std::pair<BlockKey, std::string>> presence;  // by extent; empty = no data left
};

// One thread, except GetStored.
class BlockMap {
 public:
  // `cached_rows`: of LevelDB's that Recall has, at most.
  BlockMap(MapStore* store, PhysicalVolume* volume, size_t cached_rows);

  // Loads the presence rows of a known group.
  Status LoadGroup(GroupId group, uint32_t block_pages);
  void AddGroup(GroupId group, uint32_t block_pages);
  void DropGroup(GroupId group);
  const ExtentTable& extents(GroupId group) const { return groups_.at(group).extents; }
  bool HasGroup(GroupId group) const { return groups_.contains(group); }

  // --- Changes, in the order of versions within a group ---------------------------------------
  void Write(GroupId group, Lba lba, Version version, const Reference& reference);
  void Erase(GroupId group, Lba lba, BlockKind kind, Version version);
  void ZeroExtent(GroupId group, Extent extent, Version version);

  // Points a block at its copy, if it still is the block that was copied (of an owed one: of this
  // version and sum). `checked`: the caller
  // compared the row when it copied, and no entry that lies in the old segment was applied since;
  // then the extent table alone decides and LevelDB is not asked.
  Result<bool> Relocate(const RelocateRecord& record, const Reference& copy, bool checked);

  // --- Look-ups -------------------------------------------------------------------------------
  enum class Where { kHole, kRow, kStored };
  // kRow fills in *row (always data); kStored: ask GetStored.
  Where Find(GroupId group, Lba lba, MapRow* row) const;
  // LevelDB's row, now or as of a snapshot; an unmapped one if there is none. Any thread.
  Result<MapRow> GetStored(GroupId group, Lba lba,
                           const leveldb::Snapshot* snapshot = nullptr) const;
  // LevelDB's row of a block of which Find says kStored, if it was remembered: then it is what
  // GetStored would find. For reads; whatever changes the map asks the map itself.
  bool Recall(GroupId group, Lba lba, MapRow* row) const { return cache_.Get(group, lba, row); }
  // Remembers what GetStored found for a read that was planned at `epoch()`, unless the block or
  // LevelDB's rows have changed since.
  void Remember(GroupId group, Lba lba, const MapRow& row, uint64_t epoch);
  // Changes whenever rows of LevelDB may be others than before.
  uint64_t epoch() const { return epoch_; }
  // Find and GetStored together.
  Result<MapRow> Lookup(GroupId group, Lba lba) const;
  // The newest change of a block, of any kind, as far as it is known: version 0 if it never was
  // written or its deletion was swept. Data only where Find says so. May ask LevelDB.
  Result<MapRow> Newest(GroupId group, Lba lba) const;
  // When the whole extent was zeroed last; 0: never, or swept. May ask LevelDB.
  Result<Version> ZeroedAt(GroupId group, Extent extent) const;
  // The blocks that the overlay has rows of, those of deletions included, in no order.
  std::vector<BlockKey> OverlayBlocks() const;
  // The newest version of a block in the overlay, of any kind; 0 if it has none.
  Version OverlayVersion(GroupId group, Lba lba) const;

  // --- Checkpoints ----------------------------------------------------------------------------
  size_t rows() const { return active_->size(); }
  size_t frozen_rows() const { return frozen_ ? frozen_->size() : 0; }
  FrozenMap Freeze();
  void Thaw();  // the frozen generation is in LevelDB

  // Tells the segment of a block's stored row, found by scanning LevelDB after a restart.
  void LoadSegment(GroupId group, Lba lba, SegmentNumber segment);
  void ReleaseSegment(SegmentNumber segment) { slots_.Release(segment); }

 private:
  struct GroupMap {
    uint32_t block_pages;
    ExtentTable extents;
  };

  void Released(const GroupMap& group, SegmentNumber segment);

  MapStore* store_;
  PhysicalVolume* volume_;
  SegmentSlots slots_;
  std::map<GroupId, GroupMap> groups_;
  std::unique_ptr<Generation> active_;
  std::shared_ptr<const Generation> frozen_;
  RowCache cache_;
  uint64_t epoch_ = 0;
};

}  // namespace hydra
