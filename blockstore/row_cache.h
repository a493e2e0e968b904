// SPDX-License-Identifier: Apache-2.0
//
// Map rows of blocks that were read, so that the next read need not ask LevelDB.
//
// Every row here is the newest one of its block: whatever changes a block changes or drops its row
// in the same call. What a look-up found is taken in only if nothing can have changed since it was
// planned (BlockMap::Remember). So a row from here is as good as one from the overlay.
//
// A table of fixed size, two places for each row; the older of two makes room. It is not there
// before the first row: a replica that nobody reads from needs none.
#pragma once

#include <bit>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/check.h"
#include "blockstore/map_schema.h"
#include "blockstore/types.h"

namespace hydra {

// One thread.
class RowCache {
 public:
  // At most so many rows of 32 bytes; 0: none.
  explicit RowCache(size_t rows) : sets_(rows < 2 ? 0 : std::bit_floor(rows / 2)) {}

  bool Get(GroupId group, Lba lba, MapRow* row) const {
    const Entry* entry = Find(group, lba);
    if (entry == nullptr) return false;
    *row = {entry->version, {entry->segment, entry->page, entry->crc}, BlockKind::kData, false};
    return true;
  }

  void Put(GroupId group, Lba lba, const MapRow& row) {
    HYDRA_CHECK(row.kind == BlockKind::kData && row.version != 0);
    if (sets_ == 0) return;
    if (table_.empty()) table_.resize(sets_);
    if (Update(group, lba, row)) return;
    Set& set = table_[Index(group, lba)];
    set.older = set.newer;
    set.newer = Make(group, lba, row);
  }

  // If it is here.
  bool Update(GroupId group, Lba lba, const MapRow& row) {
    Entry* entry = Find(group, lba);
    if (entry == nullptr) return false;
    *entry = Make(group, lba, row);
    return true;
  }

  void Erase(GroupId group, Lba lba) {
    Entry* entry = Find(group, lba);
    if (entry != nullptr) *entry = {};
  }

  void Clear() { table_ = {}; }
  bool empty() const { return table_.empty(); }

 private:
  struct Entry {
    Lba lba = 0;
    Version version = 0;  // 0: nothing here
    GroupId group = 0;
    SegmentNumber segment = 0;
    uint32_t page = 0;
    uint32_t crc = 0;
  };
  static_assert(sizeof(Entry) == 32);
  struct alignas(64) Set {  // a line of the processor's cache
    Entry newer;
    Entry older;
  };

  static Entry Make(GroupId group, Lba lba, const MapRow& row) {
    return {lba, row.version, group, row.reference.segment, row.reference.page, row.reference.crc};
  }

  size_t Index(GroupId group, Lba lba) const {
    uint64_t h = (lba + 0x9e3779b97f4a7c15 * (uint64_t{group} + 1)) * 0xd6e8feb86659fd93;
    h = (h ^ (h >> 32)) * 0xd6e8feb86659fd93;
    return (h ^ (h >> 32)) & (sets_ - 1);
  }

  const Entry* Find(GroupId group, Lba lba) const {
    if (table_.empty()) return nullptr;
    const Set& set = table_[Index(group, lba)];
    for (const Entry* entry : {&set.newer, &set.older}) {
      if (entry->version != 0 && entry->lba == lba && entry->group == group) return entry;
    }
    return nullptr;
  }
  Entry* Find(GroupId group, Lba lba) {
    return const_cast<Entry*>(std::as_const(*this).Find(group, lba));
  }

  const size_t sets_;
  std::vector<Set> table_;
};

}  // namespace hydra
