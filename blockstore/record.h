// SPDX-License-Identifier: Apache-2.0
//
// Log records and their bytes (docs/disk-format.md, section 5). Encoding trusts its input;
// decoding trusts nothing.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "blockstore/install.h"
#include "blockstore/types.h"

namespace hydra {

enum class RecordType : uint8_t {
  kAccept = 1,
  kHardState = 2,
  kTruncate = 3,
  kCheckpoint = 4,
  kRelocate = 5,
  kGroup = 6,
  kStable = 7,
  kInstall = 8,
  kChunk = 9,
};

inline constexpr size_t kRecordHeadBytes = 8;

struct AcceptRecord {
  GroupId group = 0;
  Instance instance = 0;
  Ballot ballot;
  Instance stable = 0;
  Entry entry;
  // False if an operation has a kind or version that this build does not know. `entry` then ends
  // before it: the record is kept and shipped as bytes, but never applied.
  bool understood = true;
};

struct HardStateRecord {
  GroupId group = 0;
  Ballot promised;
  std::string opaque;
};

struct TruncateRecord {
  GroupId group = 0;
  Instance instance = 0;
};

struct CheckpointRecord {
  uint64_t id = 0;
  uint64_t replay_from = 0;
};

struct RelocateRecord {
  GroupId group = 0;
  Lba lba = 0;
  Version version = 0;
  Reference old_reference;  // its crc is the block's
  uint32_t block_pages = 1;
};

enum class GroupAction : uint8_t { kCreate = 1, kDrop = 2 };

struct GroupRecord {
  GroupId group = 0;
  GroupAction action = GroupAction::kCreate;
  uint32_t block_pages = 1;
};

struct StableRecord {
  std::vector<std::pair<GroupId, Instance>> groups;
};

enum class InstallAction : uint8_t { kBegin = 1, kFinish = 2, kAbort = 3 };

// The start or the end of an install.
struct InstallRecord {
  GroupId group = 0;
  InstallAction action = InstallAction::kBegin;
  InstallMode mode = InstallMode::kImage;  // begin
  Instance instance = 0;                   // begin: applied, and stable, here; finish: from now on
  Instance floor = 0;                      // begin
  uint32_t state_bytes = 0;                // finish: bytes of the layers' state, the payload
  uint32_t state_crc = 0;                  // ... of whole pages, zeroes behind the state included
};

// What a chunk of an install changes here, decided when it was queued: older rows and rows that
// are the same are not in it.
struct ChunkRow {
  enum class Kind : uint8_t {
    kData = 1,      // the next block of the payload
    kZero = 2,      //
    kUnmapped = 3,  //
    kExtent = 4,    // the whole extent is zero
    kErase = 5,     // every block of a range that is data, and not newer, is unmapped
    kBare = 6,      // data without payload: the open entry's that wrote it, if there is; else owed
  };
  Kind kind = Kind::kData;
  uint64_t number = 0;  // lba, or extent
  uint64_t count = 0;   // erase: blocks
  Version version = 0;
  uint32_t crc = 0;  // data, bare

  friend bool operator==(const ChunkRow&, const ChunkRow&) = default;
};

struct ChunkRecord {
  GroupId group = 0;
  Instance as_of = 0;
  Instance newest = 0;
  Lba covered = 0;
  std::string cursor;
  bool last = false;
  uint32_t block_pages = 1;
  std::vector<ChunkRow> rows;  // applied in this order
};

std::string Encode(const AcceptRecord& record);
std::string EncodeAccept(GroupId group, Instance instance, const Ballot& ballot, Instance stable,
                         const Entry& entry);
std::string Encode(const HardStateRecord& record);
std::string Encode(const TruncateRecord& record);
std::string Encode(const CheckpointRecord& record);
std::string Encode(const RelocateRecord& record);
std::string Encode(const GroupRecord& record);
std::string Encode(const StableRecord& record);
std::string Encode(const InstallRecord& record);
std::string Encode(const ChunkRecord& record);

// A record as it lies in a batch header: decoded head, body not looked at.
struct RecordView {
  uint8_t type = 0;
  uint8_t version = 0;
  uint16_t payload_pages = 0;
  uint32_t offset = 0;  // of the head, from the start of the batch
  std::span<const uint8_t> body;
};

// Splits the record area of a batch. Fails with kCorruption unless `bytes` is exactly `count`
// records whose payload adds up to `payload_pages`. `offset` is that of `bytes` within the batch.
Result<std::vector<RecordView>> SplitRecords(std::span<const uint8_t> bytes, uint32_t count,
                                             uint32_t payload_pages, uint32_t offset);

// kUnsupported: of a version that this build does not know. kCorruption: no record that any build
// writes.
Result<AcceptRecord> DecodeAccept(const RecordView& view);
Result<HardStateRecord> DecodeHardState(const RecordView& view);
Result<TruncateRecord> DecodeTruncate(const RecordView& view);
Result<CheckpointRecord> DecodeCheckpoint(const RecordView& view);
Result<RelocateRecord> DecodeRelocate(const RecordView& view);
Result<GroupRecord> DecodeGroup(const RecordView& view);
Result<StableRecord> DecodeStable(const RecordView& view);
Result<InstallRecord> DecodeInstall(const RecordView& view);
Result<ChunkRecord> DecodeChunk(const RecordView& view);

// Whether an entry may be appended to a group with blocks of `block_pages`: kinds, counts, ranges
// within 2^64, limits. Says what is wrong.
Status ValidateEntry(const Entry& entry, uint32_t block_pages);
// The same of operations that may become one.
Status ValidateOperations(std::span<const Operation> operations, uint32_t block_pages);

}  // namespace hydra
