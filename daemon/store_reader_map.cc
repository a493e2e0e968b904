// SPDX-License-Identifier: Apache-2.0
#include "daemon/store_reader_map.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>
#include <leveldb/db.h>
#include <leveldb/iterator.h>
#include <leveldb/options.h>

#include "base/coding.h"
#include "base/crc32c.h"

namespace hydra::store_reader {

// --- Rows ------------------------------------------------------------------------------------

namespace {

constexpr uint8_t kRowVersion = 1;
constexpr uint8_t kMetaWithInstall = 2;

Status BadRow(std::string_view what) { return Status::Corruption(std::string(what)); }

// Bytes behind the tag; -1 for a tag that does not exist.
int KeyTail(uint32_t group, char tag) {
  if (group == kNodeGroup) {
    if (tag == 'c' || tag == 'i') return 0;
    return tag == 'd' ? 4 : -1;
  }
  switch (tag) {
    case 'M': return 0;
    case 'm':
    case 'z':
    case 'p': return 8;
    case 'v': return 16;
    default: return -1;
  }
}

}  // namespace

Result<MapKey> ParseMapKey(std::string_view key) {
  MapKey parsed;
  uint8_t tag = 0;
  Decoder in(AsBytes(key));
  in.Big32(&parsed.group);
  if (!in.U8(&tag)) return BadRow("a key shorter than five bytes");
  parsed.tag = static_cast<char>(tag);
  if (parsed.group != kNodeGroup && parsed.tag == 's') return parsed;  // reserved
  const int tail = KeyTail(parsed.group, parsed.tag);
  if (tail < 0) return Status::Unsupported(fmt::format("unknown tag 0x{:02x}", tag));
  if (in.remaining() != static_cast<size_t>(tail)) return BadRow("a key of the wrong length");
  if (tail == 4) {
    uint32_t group = 0;
    in.Big32(&group);
    parsed.first = group;
  }
  if (tail >= 8) in.Big64(&parsed.first);
  if (tail == 16) in.Big64(&parsed.second);
  return parsed;
}

std::string MapKeyPrefix(uint32_t group, char tag) {
  std::string key;
  PutBig32(&key, group);
  key.push_back(tag);
  return key;
}

std::string ExtentKey(uint32_t group, char tag, uint64_t extent) {
  std::string key = MapKeyPrefix(group, tag);
  PutBig64(&key, extent);
  return key;
}

Result<BlockRow> ParseBlockRow(std::string_view value) {
  BlockRow row;
  uint8_t kind = 0;
  Decoder in(AsBytes(value));
  in.U8(&kind);
  if (!in.Fixed64(&row.version)) return BadRow("a block row that is too short");
  if (kind < 1 || kind > 3) return BadRow("a block row of unknown kind");
  row.kind = static_cast<BlockKind>(kind);
  if (row.kind == BlockKind::kData) {
    in.Fixed32(&row.segment);
    in.Fixed32(&row.page);
    in.Fixed32(&row.crc);
  }
  if (!in.ok() || in.remaining() != 0) return BadRow("a block row of the wrong length");
  return row;
}

Result<bool> ParseDroppedRow(std::string_view value) {
  if (value.size() != 1 || static_cast<uint8_t>(value[0]) > 1) return BadRow("neither 0 nor 1");
  return value[0] == 1;
}

Result<uint64_t> ParseExtentRow(std::string_view value) {
  if (value.size() != 8) return BadRow("an extent row of the wrong length");
  return DecodeFixed64(AsBytes(value).data());
}

Result<BlockKind> ParseVersionRow(std::string_view value) {
  if (value.size() != 1 || value[0] < 1 || value[0] > 4) return BadRow("a malformed version row");
  return static_cast<BlockKind>(value[0]);
}

namespace {

// What a meta row of version 2 ends with.
bool ReadInstallState(Decoder* in, MetaRow* row) {
  uint8_t flags = 0;
  if (!in->Varint64(&row->mixed_until) || !in->U8(&row->install_mode) || row->install_mode > 2) {
    return false;
  }
  if (row->install_mode == 0) return true;
  if (!in->U8(&flags) || flags > 7) return false;
  row->install_complete = (flags & 1) != 0;
  row->install_dirty = (flags & 2) != 0;
  row->install_restart = (flags & 4) != 0;
  in->Varint64(&row->install_floor);
  in->Varint64(&row->install_as_of);
  in->Varint64(&row->install_covered);
  return ReadString(in, &row->install_cursor);
}

}  // namespace

Result<MetaRow> ParseMetaRow(std::string_view value) {
  MetaRow row;
  uint8_t version = 0;
  uint8_t flags = 0;
  uint64_t open = 0;
  Decoder in(AsBytes(value));
  in.U8(&version);
  in.U8(&row.pages_per_block);
  if (!in.U8(&flags)) return BadRow("a meta row that is cut short");
  if (version != kRowVersion && version != kMetaWithInstall) {
    return Status::Unsupported("a meta row of unknown version");
  }
  if (row.pages_per_block == 0 || row.pages_per_block > kMaxPagesPerBlock) {
    return BadRow("a meta row whose pages per block are out of range");
  }
  row.suspect = (flags & 1) != 0;
  row.halted = (flags & 2) != 0;
  in.Varint64(&row.applied);
  in.Varint64(&row.truncated);
  in.Varint64(&row.round);
  in.Varint64(&row.node);
  if (!ReadString(&in, &row.hard_state) || !in.Varint64(&row.horizon) ||
      !ReadString(&in, &row.state) || !in.Varint64(&open) || open > in.remaining() / 7) {
    return BadRow("a meta row that is cut short");
  }
  row.open.resize(open);  // an entry has at least seven bytes
  for (OpenEntry& entry : row.open) {
    in.Varint64(&entry.instance);
    in.Varint64(&entry.round);
    in.Varint64(&entry.node);
    uint8_t entry_flags = 0;
    in.U8(&entry_flags);
    entry.faulty = (entry_flags & 1) != 0;
    in.Varint32(&entry.segment);
    in.Varint32(&entry.batch_page);
    in.Varint32(&entry.record_offset);
  }
  if (version == kMetaWithInstall && !ReadInstallState(&in, &row)) {
    return BadRow("a meta row whose install makes no sense");
  }
  if (!in.ok() || in.remaining() != 0) return BadRow("a meta row of the wrong length");
  return row;
}

Result<CheckpointRow> ParseCheckpointRow(std::string_view value) {
  CheckpointRow row;
  uint8_t version = 0;
  uint8_t clean = 0;
  Decoder in(AsBytes(value));
  if (!in.U8(&version)) return BadRow("an empty checkpoint row");
  if (version != kRowVersion) return Status::Unsupported("a checkpoint row of unknown version");
  in.Varint64(&row.id);
  in.Varint64(&row.next_batch);
  in.Fixed32(&row.chain);
  in.Varint64(&row.generation);
  in.Varint64(&row.highest_segment);
  for (LaneCursor& lane : row.lanes) {
    in.Varint32(&lane.segment);
    in.Varint32(&lane.page);
  }
  if (!in.U8(&clean) || in.remaining() != 0) return BadRow("a checkpoint row of the wrong length");
  if (clean > 1) return BadRow("a checkpoint row whose clean flag is neither 0 nor 1");
  if (row.next_batch == 0) return BadRow("a checkpoint row whose next batch is 0");
  row.clean = clean == 1;
  return row;
}

Result<IntentRow> ParseIntentRow(std::string_view value) {
  IntentRow row;
  uint8_t version = 0;
  uint64_t n = 0;
  Decoder in(AsBytes(value));
  if (!in.U8(&version)) return BadRow("an empty intent row");
  if (version != kRowVersion) return Status::Unsupported("an intent row of unknown version");
  in.Varint64(&row.id);
  if (!in.Varint64(&n) || n > in.remaining() / 2) return BadRow("an intent row that is cut short");
  row.groups.resize(n);
  for (IntentGroup& group : row.groups) {
    in.Varint32(&group.group);
    in.Varint64(&group.applied);
  }
  if (!in.ok() || in.remaining() != 0) return BadRow("an intent row of the wrong length");
  return row;
}

// --- LevelDB's own log -----------------------------------------------------------------------

namespace {

// As LevelDB's doc/log_format.md has it.
constexpr size_t kLogBlock = 32768;
constexpr size_t kLogHead = 7;
constexpr uint8_t kLogFull = 1;
constexpr uint8_t kLogFirst = 2;
constexpr uint8_t kLogLast = 4;

// Bytes of the valid fragment at the start of `block`, 0 if there is none.
size_t ValidFragment(ByteSpan block, uint8_t* type) {
  if (block.size() < kLogHead) return 0;
  const size_t length = DecodeFixed16(block.data() + 4);
  *type = block[6];
  if (*type < kLogFull || *type > kLogLast || length > block.size() - kLogHead) return 0;
  const uint32_t crc = Crc32c(block.subspan(6, length + 1));
  const uint32_t masked = ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
  return masked == DecodeFixed32(block.data()) ? kLogHead + length : 0;
}

// True if a record starts anywhere in `rest`, whose first byte is `at` bytes into the file.
bool RecordStartsIn(ByteSpan rest, uint64_t at) {
  for (size_t i = 0; i < rest.size(); ++i) {
    const size_t to_block_end = kLogBlock - (at + i) % kLogBlock;
    uint8_t type = 0;
    const ByteSpan block = rest.subspan(i, std::min(to_block_end, rest.size() - i));
    if (ValidFragment(block, &type) > 0 && (type == kLogFull || type == kLogFirst)) return true;
  }
  return false;
}

}  // namespace

std::optional<LogDamage> CheckLevelDbLog(ByteSpan log) {
  uint64_t offset = 0;
  while (offset < log.size()) {
    const size_t to_block_end = kLogBlock - offset % kLogBlock;
    if (to_block_end < kLogHead) {  // the block's trailer
      offset += to_block_end;
      continue;
    }
    uint8_t type = 0;
    const ByteSpan block = log.subspan(offset, std::min<size_t>(to_block_end, log.size() - offset));
    const size_t fragment = ValidFragment(block, &type);
    if (fragment == 0) {
      return LogDamage{offset, RecordStartsIn(log.subspan(offset + 1), offset + 1)};
    }
    offset += fragment;
  }
  return std::nullopt;
}

// --- The database ----------------------------------------------------------------------------

namespace {

constexpr size_t kCopyBytes = 1 << 20;
// LevelDB rotates its log at the size of the write buffer; a longer file is not looked into.
constexpr uint64_t kMaxLogBytes = 256 << 20;

bool IsDatabaseFile(std::string_view name) {
  return name == "CURRENT" || name.starts_with("MANIFEST-") || name.ends_with(".log") ||
         name.ends_with(".ldb") || name.ends_with(".sst");
}

Status CopyFile(FileSystem* fs, const std::string& from, const std::string& to) {
  OpenOptions options;
  options.read_only = true;
  HYDRA_ASSIGN_OR_RETURN(auto file, fs->Open(from, options));
  std::ofstream out(to, std::ios::binary | std::ios::trunc);
  std::vector<uint8_t> buffer(kCopyBytes);
  for (uint64_t offset = 0;;) {
    HYDRA_ASSIGN_OR_RETURN(const size_t n, file->PRead(offset, buffer));
    out.write(reinterpret_cast<const char*>(buffer.data()), static_cast<std::streamsize>(n));
    offset += n;
    if (n < buffer.size()) break;
  }
  out.close();
  if (!out) return Status::IoError("cannot write " + to + ": is the temporary directory full?");
  return Status::Ok();
}

Result<std::string> MakeTemporaryDirectory(const std::string& parent) {
  std::error_code error;
  std::filesystem::path base = parent;
  if (parent.empty()) base = std::filesystem::temp_directory_path(error);
  std::string pattern = (base / "store-tool-XXXXXX").string();
  if (error || mkdtemp(pattern.data()) == nullptr) {
    return Status::IoError(fmt::format("cannot make a temporary directory {}: {}", pattern,
                                       error ? error.message() : std::strerror(errno)));
  }
  return pattern;
}

Status FromLevelDb(const leveldb::Status& status) {
  if (status.ok()) return Status::Ok();
  if (status.IsNotFound()) return Status::NotFound(status.ToString());
  return Status::Corruption("LevelDB: " + status.ToString());
}

}  // namespace

Result<std::unique_ptr<StoreMap>> StoreMap::CopyAndOpen(FileSystem* fs,
                                                        const std::string& map_directory,
                                                        const std::string& temporary_parent) {
  std::unique_ptr<StoreMap> map(new StoreMap);
  HYDRA_ASSIGN_OR_RETURN(map->directory_, MakeTemporaryDirectory(temporary_parent));
  HYDRA_RETURN_IF_ERROR(map->Copy(fs, map_directory));
  HYDRA_RETURN_IF_ERROR(map->CheckLogs());
  leveldb::Options options;
  options.create_if_missing = false;
  // With paranoid checks LevelDB refuses a log with a torn tail, which power loss may leave.
  options.paranoid_checks = map->torn_logs_.empty() && map->rotten_logs_.empty();
  leveldb::DB* db = nullptr;
  const leveldb::Status opened = leveldb::DB::Open(options, map->directory_, &db);
  map->db_.reset(db);
  if (!opened.ok()) return Status::Corruption("LevelDB refuses the map: " + opened.ToString());
  return map;
}

StoreMap::~StoreMap() {
  db_.reset();
  std::error_code ignored;  // nothing useful can be done about a temporary file that stays
  if (!directory_.empty()) std::filesystem::remove_all(directory_, ignored);
}

Status StoreMap::Copy(FileSystem* fs, const std::string& map_directory) {
  if (!fs->Exists(map_directory + "/CURRENT")) {
    return Status::NotFound("there is no block map (map/CURRENT)");
  }
  HYDRA_ASSIGN_OR_RETURN(const auto names, fs->List(map_directory));
  for (const std::string& name : names) {
    if (!IsDatabaseFile(name)) continue;
    HYDRA_RETURN_IF_ERROR(CopyFile(fs, map_directory + "/" + name, directory_ + "/" + name)
                              .WithContext("copying the map"));
    if (name.ends_with(".log")) logs_.push_back(name);
  }
  return Status::Ok();
}

Status StoreMap::CheckLogs() {
  for (const std::string& name : logs_) {
    const std::string path = directory_ + "/" + name;
    std::error_code error;
    const uintmax_t bytes = std::filesystem::file_size(path, error);
    if (!error && bytes > kMaxLogBytes) continue;
    std::string log(error ? 0 : bytes, '\0');
    std::ifstream in(path, std::ios::binary);
    in.read(log.data(), static_cast<std::streamsize>(log.size()));
    if (error || !in) return Status::IoError("cannot read back " + path);
    const auto damage = CheckLevelDbLog(AsBytes(log));
    if (!damage.has_value()) continue;
    auto& list = damage->rot ? rotten_logs_ : torn_logs_;
    list.push_back(fmt::format("map/{} at byte {}", name, damage->offset));
  }
  return Status::Ok();
}

std::unique_ptr<leveldb::Iterator> StoreMap::NewIterator() const {
  leveldb::ReadOptions options;
  options.verify_checksums = true;
  options.fill_cache = false;
  return std::unique_ptr<leveldb::Iterator>(db_->NewIterator(options));
}

Result<std::string> StoreMap::Get(std::string_view key) const {
  leveldb::ReadOptions options;
  options.verify_checksums = true;
  std::string value;
  const leveldb::Status got = db_->Get(options, leveldb::Slice(key.data(), key.size()), &value);
  if (!got.ok()) return FromLevelDb(got);
  return value;
}

Result<std::optional<CheckpointRow>> StoreMap::Checkpoint() const {
  auto value = Get(MapKeyPrefix(kNodeGroup, 'c'));
  if (value.status().code() == Code::kNotFound) return std::optional<CheckpointRow>();
  if (!value.ok()) return value.status();
  HYDRA_ASSIGN_OR_RETURN(CheckpointRow row, ParseCheckpointRow(*value));
  return std::optional<CheckpointRow>(row);
}

Result<std::optional<IntentRow>> StoreMap::Intent() const {
  auto value = Get(MapKeyPrefix(kNodeGroup, 'i'));
  if (value.status().code() == Code::kNotFound) return std::optional<IntentRow>();
  if (!value.ok()) return value.status();
  HYDRA_ASSIGN_OR_RETURN(IntentRow row, ParseIntentRow(*value));
  return std::optional<IntentRow>(std::move(row));
}

}  // namespace hydra::store_reader
