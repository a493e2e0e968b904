// SPDX-License-Identifier: Apache-2.0
//
// The block map (section 6): decoding of its rows, and opening it without touching it. LevelDB
// writes into whatever it opens, so the database is copied into a temporary directory first.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/status.h"
#include "daemon/store_reader.h"

namespace leveldb {
class DB;
class Iterator;
}  // namespace leveldb

namespace hydra::store_reader {

// --- Rows ------------------------------------------------------------------------------------

// Key of a row. `tag` is 'm', 'z', 'v', 'p', 's' or 'M'; with the node group 'c', 'i' or 'd'.
struct MapKey {
  uint32_t group = 0;
  char tag = 0;
  uint64_t first = 0;   // m: lba; z, p: extent; v: version; d: the dropped group
  uint64_t second = 0;  // v: lba, or extent number
};

Result<MapKey> ParseMapKey(std::string_view key);
std::string MapKeyPrefix(uint32_t group, char tag);
std::string ExtentKey(uint32_t group, char tag, uint64_t extent);

enum class BlockKind : uint8_t { kData = 1, kZero = 2, kUnmapped = 3, kExtent = 4 };

struct BlockRow {
  BlockKind kind = BlockKind::kZero;
  uint64_t version = 0;
  uint32_t segment = 0;  // these three for data only
  uint32_t page = 0;
  uint32_t crc = 0;
};

struct OpenEntry {
  uint64_t instance = 0;
  uint64_t round = 0;
  uint64_t node = 0;
  bool faulty = false;
  uint32_t segment = 0;
  uint32_t batch_page = 0;
  uint32_t record_offset = 0;
};

struct MetaRow {
  uint8_t pages_per_block = 0;
  bool suspect = false;
  bool halted = false;
  uint64_t applied = 0;
  uint64_t truncated = 0;
  uint64_t round = 0;
  uint64_t node = 0;
  std::string hard_state;
  uint64_t horizon = 0;
  std::string state;
  std::vector<OpenEntry> open;
  // From row version 2 on.
  uint64_t mixed_until = 0;
  uint8_t install_mode = 0;  // 0 none, 1 image, 2 delta; the rest only if it is not 0
  bool install_complete = false;
  bool install_dirty = false;
  bool install_restart = false;
  uint64_t install_floor = 0;
  uint64_t install_as_of = 0;
  uint64_t install_covered = 0;
  std::string install_cursor;
};

struct LaneCursor {
  uint32_t segment = 0;  // 0: none open
  uint32_t page = 0;
};

struct CheckpointRow {
  uint64_t id = 0;
  uint64_t next_batch = 0;
  uint32_t chain = 0;
  uint64_t generation = 0;
  uint64_t highest_segment = 0;
  std::array<LaneCursor, kLanes> lanes;
  bool clean = false;
};

struct IntentGroup {
  uint32_t group = 0;
  uint64_t applied = 0;
};

struct IntentRow {
  uint64_t id = 0;
  std::vector<IntentGroup> groups;
};

Result<BlockRow> ParseBlockRow(std::string_view value);
Result<uint64_t> ParseExtentRow(std::string_view value);  // of tag 'z': the version
Result<bool> ParseDroppedRow(std::string_view value);     // of tag 'd': its rows are swept
Result<BlockKind> ParseVersionRow(std::string_view value);
Result<MetaRow> ParseMetaRow(std::string_view value);
Result<CheckpointRow> ParseCheckpointRow(std::string_view value);
Result<IntentRow> ParseIntentRow(std::string_view value);

// Blocks of an extent, and bytes of its presence bitmap. `pages_per_block` is 1 to 16.
inline uint32_t BlocksPerExtent(uint32_t pages_per_block) { return kExtentPages / pages_per_block; }
inline uint32_t PresenceBytes(uint32_t pages_per_block) {
  return (BlocksPerExtent(pages_per_block) + 7) / 8;
}

// --- LevelDB's own log -----------------------------------------------------------------------

// Where a LevelDB log file stops making sense. Power loss leaves such a place in the record that
// was being written, and nothing behind it; a record that starts behind it proves rot, for each
// batch is synced before the next is written.
struct LogDamage {
  uint64_t offset = 0;
  bool rot = false;  // otherwise a torn tail
};

std::optional<LogDamage> CheckLevelDbLog(ByteSpan log);

// --- The database ----------------------------------------------------------------------------

// A private copy of map/, opened; gone with the object. One thread at a time.
class StoreMap {
 public:
  // `map_directory` is read through `fs`; the copy lies in a new directory below
  // `temporary_parent` (of the machine, not of `fs`; "" = the usual place). kNotFound if there is
  // no map; kCorruption if LevelDB refuses to open it.
  static Result<std::unique_ptr<StoreMap>> CopyAndOpen(FileSystem* fs,
                                                       const std::string& map_directory,
                                                       const std::string& temporary_parent);
  ~StoreMap();
  StoreMap(const StoreMap&) = delete;
  StoreMap& operator=(const StoreMap&) = delete;

  // LevelDB verifies the checksum of all it reads. Must not outlive the map.
  std::unique_ptr<leveldb::Iterator> NewIterator() const;
  // kNotFound if there is no such row.
  Result<std::string> Get(std::string_view key) const;

  // The node rows; nullopt where there is none.
  Result<std::optional<CheckpointRow>> Checkpoint() const;
  Result<std::optional<IntentRow>> Intent() const;

  // What LevelDB drops from its logs when it opens the copy, as it would from the original.
  const std::vector<std::string>& torn_logs() const { return torn_logs_; }
  const std::vector<std::string>& rotten_logs() const { return rotten_logs_; }

 private:
  StoreMap() = default;
  Status Copy(FileSystem* fs, const std::string& map_directory);
  Status CheckLogs();

  std::string directory_;          // the temporary one; "" until made
  std::vector<std::string> logs_;  // names of its log files
  std::unique_ptr<leveldb::DB> db_;
  std::vector<std::string> torn_logs_;
  std::vector<std::string> rotten_logs_;
};

}  // namespace hydra::store_reader
