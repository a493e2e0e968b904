// SPDX-License-Identifier: Apache-2.0
//
// Keys and rows of the map (docs/disk-format.md, section 6). Encoding trusts, decoding does not.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "blockstore/install.h"
#include "blockstore/stream_scan.h"
#include "blockstore/types.h"

namespace hydra {

// A block's row: what the newest change of the block was, and where its payload lies.
struct MapRow {
  Version version = 0;
  Reference reference;  // kData only
  BlockKind kind = BlockKind::kUnmapped;
  bool moved = false;  // in memory only: vacuum made this row; the change index has it already
};

std::string BlockRowKey(GroupId group, Lba lba);
std::string ExtentRowKey(GroupId group, Extent extent);
std::string PresenceKey(GroupId group, Extent extent);
std::string GroupMetaKey(GroupId group);
std::string CheckpointKey();
std::string IntentKey();
std::string DroppedKey(GroupId group);
std::string TagPrefix(GroupId group, char tag);
std::string GroupPrefix(GroupId group);

enum class ChangeKind : uint8_t { kData = 1, kZero = 2, kUnmapped = 3, kExtent = 4 };
std::string ChangeKey(GroupId group, Version version, uint64_t lba_or_extent);

// A key taken apart; nullopt if it is none of ours.
struct MapKey {
  GroupId group = 0;
  char tag = 0;
  uint64_t first = 0;   // lba, extent, version, or (dropped) group
  uint64_t second = 0;  // change rows: lba or extent
};
std::optional<MapKey> ParseMapKey(std::string_view key);

void PutBlockRow(std::string* value, const MapRow& row);
Result<MapRow> ParseBlockRow(std::string_view value);
Result<Version> ParseExtentRow(std::string_view value);

// An accepted entry above `applied`, and where its record lies.
struct OpenEntry {
  Instance instance = 0;
  Ballot ballot;
  bool faulty = false;
  Placement placement;  // payload_page is not stored; the record knows
};

struct GroupMeta {
  uint32_t block_pages = 1;
  bool suspect = false;
  bool halted = false;
  Instance applied = 0;
  Instance truncated = 0;
  Ballot promised;
  std::string opaque;
  Version horizon = 0;
  std::string state;
  std::vector<OpenEntry> open;
  InstallProgress install;
  Instance mixed_until = 0;
};
std::string EncodeGroupMeta(const GroupMeta& meta);
Result<GroupMeta> ParseGroupMeta(std::string_view value);

struct CheckpointRow {
  uint64_t id = 0;
  StreamPosition position;
  SegmentNumber highest_segment = 0;
  bool clean = false;
};
std::string EncodeCheckpointRow(const CheckpointRow& row);
Result<CheckpointRow> ParseCheckpointRow(std::string_view value);

struct IntentRow {
  uint64_t id = 0;
  std::vector<std::pair<GroupId, Instance>> applied;
};
std::string EncodeIntentRow(const IntentRow& row);
Result<IntentRow> ParseIntentRow(std::string_view value);

}  // namespace hydra
