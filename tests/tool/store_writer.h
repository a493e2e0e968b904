// SPDX-License-Identifier: Apache-2.0
//
// A tiny writer of stores for tests of the reader: it encodes by hand what docs/disk-format.md
// says, with no code of the engine or of the reader, and lets a test break what it wrote.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/posix_file.h"
#include "base/uuid.h"

namespace hydra::tool_test {

inline constexpr uint32_t kPage = 4096;
inline constexpr uint32_t kSegmentPages = 64;

// Block contents that differ for every seed.
std::string Block(uint64_t seed, uint32_t pages = 1);

uint64_t Version(uint64_t instance, uint64_t operation = 0);

// --- Bodies of operations and records, as bytes ----------------------------------------------

std::string NoOp();
std::string WriteOp(uint64_t lba, const std::vector<std::string>& blocks,
                    const std::string& context = "");
std::string ZeroOp(uint64_t lba, uint64_t count);
std::string UnmapOp(uint64_t lba, uint64_t count);
std::string ZeroExtentsOp(const std::vector<uint64_t>& extents);

// Rows of a chunk.
std::string DataRow(uint64_t lba, uint64_t version, const std::string& block);
std::string ExtentRow(uint64_t extent, uint64_t version);
std::string EraseRow(uint64_t lba, uint64_t count, uint64_t version);

struct BatchSpec {
  int lane = 0;
  bool seal = false;
  std::string records;
  uint32_t record_count = 0;
  std::string payload;
  uint32_t generation = 0;  // 0: the store's
  uint64_t number = 0;      // 0: the next
  // What the header says where it should not say the truth.
  int extra_payload_pages = 0;

  BatchSpec& Record(uint8_t type, const std::string& body, const std::string& payload_bytes = "",
                    uint8_t version = 1);
  BatchSpec& Accept(uint32_t group, uint64_t instance, const std::vector<std::string>& operations,
                    const std::string& payload_bytes = "", uint64_t stable = 0);
  BatchSpec& Group(uint32_t group, uint8_t action, uint8_t pages_per_block);
  BatchSpec& HardState(uint32_t group, uint64_t round, uint64_t node, const std::string& opaque);
  BatchSpec& Truncate(uint32_t group, uint64_t instance);
  BatchSpec& Relocate(uint32_t group, uint64_t lba, uint64_t version, uint32_t old_segment,
                      uint32_t old_page, const std::string& block);
  BatchSpec& Stable(uint32_t group, uint64_t instance);
  BatchSpec& InstallBegin(uint32_t group, uint8_t mode, uint64_t applied, uint64_t floor);
  BatchSpec& InstallFinish(uint32_t group, uint64_t instance, const std::string& state);
  BatchSpec& InstallAbort(uint32_t group);
  // `rows` as bytes; blocks of one page.
  BatchSpec& Chunk(uint32_t group, uint64_t as_of, uint64_t newest, uint64_t covered,
                   const std::string& cursor, const std::vector<std::string>& rows,
                   const std::string& payload_bytes = "");
};

BatchSpec InLane(int lane);

struct Written {
  uint64_t number = 0;
  uint32_t segment = 0;
  uint32_t page = 0;
  uint32_t payload_page = 0;
  uint32_t end_page = 0;
  uint32_t crc = 0;
};

// A store in a temporary directory of its own, which goes with the object.
class StoreWriter {
 public:
  StoreWriter();
  ~StoreWriter();
  StoreWriter(const StoreWriter&) = delete;
  StoreWriter& operator=(const StoreWriter&) = delete;

  const std::string& directory() const { return directory_; }
  std::string SegmentPath(uint32_t segment) const;

  // --- The stream ----------------------------------------------------------------------------
  uint32_t OpenSegment(int lane);
  Written Append(const BatchSpec& spec);
  // Goes back to before this batch, so that the next takes its number; its bytes stay.
  void Cut(const Written& batch, int lane, uint32_t chain_before);
  void NextGeneration() { ++generation_; }
  uint32_t generation() const { return generation_; }
  uint64_t next_number() const { return next_; }
  uint32_t chain() const { return chain_; }

  // --- The map -------------------------------------------------------------------------------
  void PutData(uint32_t group, uint64_t lba, uint64_t version, uint32_t segment, uint32_t page,
               const std::string& block);
  void PutKind(uint32_t group, uint64_t lba, uint64_t version, uint8_t kind);
  void PutZero(uint32_t group, uint64_t extent, uint64_t version);
  void PutPresence(uint32_t group, uint64_t extent, const std::vector<uint32_t>& blocks,
                   uint32_t bytes = 32);
  void PutMeta(uint32_t group, uint8_t pages_per_block, uint64_t applied,
               const std::string& open_entries = "", uint64_t open_count = 0, uint8_t flags = 0);
  static std::string OpenEntry(uint64_t instance, uint64_t round, uint64_t node,
                               const Written& batch, uint32_t record_offset);
  void PutIntent(uint64_t id);
  void PutDropped(uint32_t group, bool swept = false);
  void PutRow(const std::string& key, const std::string& value) { rows_[key] = value; }
  void RemoveRow(const std::string& key) { rows_.erase(key); }
  static std::string Key(uint32_t group, char tag);
  static std::string Key(uint32_t group, char tag, uint64_t number);
  // Row c as of now.
  void Checkpoint(uint64_t id = 1);
  std::string CheckpointValue(uint64_t id, uint64_t next, uint32_t chain,
                              const std::array<std::pair<uint32_t, uint32_t>, 2>& lanes) const;
  // Writes the rows so far, each in its own LevelDB batch, into a new database.
  void WriteMap(bool compact = false);

  // --- Damage --------------------------------------------------------------------------------
  void Flip(const std::string& path, uint64_t byte, uint8_t mask = 1);
  void FlipPage(uint32_t segment, uint32_t page, uint32_t byte = 100);
  void Overwrite(const std::string& path, uint64_t offset, const std::string& bytes);
  std::string ReadFile(const std::string& path) const;
  // The only file of map/ whose name ends so.
  std::string MapFile(const std::string& ending) const;

 private:
  struct Lane {
    uint32_t segment = 0;
    uint32_t page = 0;
  };

  std::string directory_;
  Uuid store_;
  uint32_t generation_ = 1;
  uint64_t next_ = 1;
  uint32_t chain_ = 0;
  uint32_t highest_segment_ = 0;
  std::array<Lane, 2> lanes_;
  std::map<std::string, std::string> rows_;
};

// Every file below the directory with its contents and time of change.
std::map<std::string, std::string> Snapshot(const std::string& directory);

// The machine's file system, except that some pages cannot be read.
class UnreadablePages : public FileSystem {
 public:
  void Break(const std::string& path, uint32_t page) { broken_[path].push_back(page); }

  Result<std::unique_ptr<File>> Open(const std::string& path, const OpenOptions& options) override;
  Status CreateDirectory(const std::string& path) override { return fs_.CreateDirectory(path); }
  Status SyncDirectory(const std::string& path) override { return fs_.SyncDirectory(path); }
  Status Rename(const std::string& from, const std::string& to) override {
    return fs_.Rename(from, to);
  }
  Status Unlink(const std::string& path) override { return fs_.Unlink(path); }
  Status RemoveDirectory(const std::string& path) override { return fs_.RemoveDirectory(path); }
  Result<std::vector<std::string>> List(const std::string& path) override { return fs_.List(path); }
  bool Exists(const std::string& path) override { return fs_.Exists(path); }
  Result<uint64_t> FreeBytes(const std::string& path) override { return fs_.FreeBytes(path); }
  Result<std::unique_ptr<FileLock>> Lock(const std::string& path) override {
    return fs_.Lock(path);
  }

 private:
  PosixFileSystem fs_;
  std::map<std::string, std::vector<uint32_t>> broken_;
};

}  // namespace hydra::tool_test
