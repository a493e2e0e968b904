// SPDX-License-Identifier: Apache-2.0
//
// A reader of Hydra data directories, written from docs/disk-format.md and from nothing else: it
// shares no parsing code with the engine, so that the two check each other and the document.
// Section numbers in the comments are those of the document.
//
// This header is the pure part: bytes in, structures or a kCorruption that says why out. All
// lengths are checked before anything is allocated; no input makes these functions crash. No
// state, any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/status.h"
#include "base/uuid.h"

namespace hydra {
class Decoder;
}  // namespace hydra

namespace hydra::store_reader {

using ByteSpan = std::span<const uint8_t>;

inline constexpr uint32_t kPageBytes = 4096;
inline constexpr uint32_t kFormatVersion = 1;
inline constexpr uint32_t kLanes = 2;
inline constexpr uint32_t kMaxHeaderPages = 16;
inline constexpr uint32_t kMaxPayloadPages = 256;
inline constexpr uint32_t kMaxPagesPerBlock = 16;
inline constexpr uint32_t kExtentPages = 256;     // an extent is 1 MiB of blocks
inline constexpr uint32_t kBatchFixedBytes = 64;  // a batch header before its first record
inline constexpr uint32_t kRecordHeadBytes = 8;
inline constexpr uint32_t kNodeGroup = 0xFFFFFFFF;    // owns the map's node rows
inline constexpr uint32_t kOwedSegment = 0xFFFFFFFF;  // of a block whose payload is not here yet
inline constexpr uint64_t kMaxOperations = 1u << 16;  // a version has 16 bits for the index
inline constexpr uint64_t kMaxIdentityBytes = 4096;

// A string with its length before it; false if the bytes end within.
bool ReadString(Decoder* in, std::string* out);

// --- Section 2 -------------------------------------------------------------------------------

struct Identity {
  Uuid store;
  Uuid cluster;
  uint32_t node = 0;
  uint64_t segment_bytes = 0;

  uint32_t segment_pages() const { return static_cast<uint32_t>(segment_bytes / kPageBytes); }
};

// kUnsupported for a greater format version.
Result<Identity> ParseIdentity(std::string_view text);

// --- Section 3 -------------------------------------------------------------------------------

// 7 for "0000000007.seg"; 0, which no segment has, for every other name.
uint32_t ParseSegmentName(std::string_view name);
std::string SegmentName(uint32_t number);

// CRC of a segment header page or of all header pages of a batch, as section 3 defines it.
uint32_t SeededCrc(const Uuid& store, uint32_t segment, uint32_t page, ByteSpan header);

struct SegmentHeader {
  uint8_t lane = 0;
  uint32_t crc = 0;
  uint32_t number = 0;
  uint64_t first_batch = 0;
  uint32_t chain = 0;
};

Result<SegmentHeader> ParseSegmentHeader(ByteSpan page, const Identity& identity, uint32_t number);

// --- Section 4 -------------------------------------------------------------------------------

struct BatchHeader {
  bool seal = false;
  uint8_t lane = 0;
  uint32_t crc = 0;
  uint32_t used_bytes = 0;
  uint64_t number = 0;
  uint32_t segment = 0;
  uint32_t page = 0;
  uint32_t chain = 0;
  uint16_t header_pages = 0;
  uint16_t payload_pages = 0;
  uint32_t generation = 0;
  uint32_t records = 0;

  uint32_t payload_page() const { return page + header_pages; }
  uint32_t end_page() const { return page + header_pages + payload_pages; }
};

// How many header pages the page claims to have (1 to 16), or 0 if it is no batch's first page.
uint32_t ClaimedHeaderPages(ByteSpan page);

// The number of the batch that the page claims to start, if it claims to be at just this place:
// what is left of a torn or rotten one. Else 0.
uint64_t ClaimedNumberAt(ByteSpan page, uint32_t segment, uint32_t index);

// `header` is all header pages. "Header valid" of section 7, except for the batch number and the
// lane (compare with the segment's). An offence that the CRC covers says so: the writer is wrong.
Result<BatchHeader> ParseBatchHeader(ByteSpan header, const Identity& identity, uint32_t segment,
                                     uint32_t page);

// --- Section 5 -------------------------------------------------------------------------------

enum class OperationKind : uint8_t {
  kNoOp = 0,
  kWrite = 1,
  kZero = 2,
  kUnmap = 3,
  kZeroExtents = 4,
  kOpaque = 5,
};

struct Operation {
  uint8_t kind = 0;
  uint8_t version = 0;
  uint8_t flags = 0;
  uint64_t lba = 0;
  uint64_t count = 0;
  uint8_t pages_per_block = 0;
  std::vector<uint32_t> crcs;     // write: one per block
  std::vector<uint64_t> extents;  // zero extents: their numbers
  bool has_context = false;
  std::string context;
};

struct Accept {
  uint32_t group = 0;
  uint64_t instance = 0;
  uint64_t round = 0;
  uint64_t node = 0;
  uint64_t stable = 0;
  uint64_t operation_count = 0;
  std::vector<Operation> operations;
  // False if an operation of unknown kind or version stopped the decoding: an operation does not
  // say its length, so whatever follows it in the record stays unread.
  bool complete = true;
};

struct HardState {
  uint32_t group = 0;
  uint64_t round = 0;
  uint64_t node = 0;
  std::string opaque;
};

struct Truncate {
  uint32_t group = 0;
  uint64_t instance = 0;
};

struct CheckpointNote {
  uint64_t id = 0;
  uint64_t first_batch = 0;
};

struct Relocate {
  uint32_t group = 0;
  uint64_t lba = 0;
  uint64_t version = 0;
  uint32_t old_segment = 0;
  uint32_t old_page = 0;
  uint32_t crc = 0;
  uint8_t pages_per_block = 0;
};

struct GroupChange {
  uint32_t group = 0;
  uint8_t action = 0;  // 1 create, 2 drop
  uint8_t pages_per_block = 0;
};

struct StableMark {
  uint32_t group = 0;
  uint64_t instance = 0;
};

struct Stable {
  std::vector<StableMark> marks;
};

struct Install {
  uint32_t group = 0;
  uint8_t action = 0;     // 1 begin, 2 finish, 3 abort
  uint8_t mode = 0;       // begin: 1 image, 2 delta
  uint64_t instance = 0;  // begin: applied; finish: from now on
  uint64_t floor = 0;     // begin
  uint32_t state_bytes = 0;
  uint32_t state_crc = 0;
};

struct ChunkRow {
  uint8_t kind = 0;     // 1 data, 2 zero, 3 unmapped, 4 extent, 5 erase, 6 bare
  uint64_t number = 0;  // lba, or extent
  uint64_t count = 0;   // erase
  uint64_t version = 0;
  uint32_t crc = 0;  // data, bare
};

struct Chunk {
  uint32_t group = 0;
  uint64_t as_of = 0;
  uint64_t newest = 0;
  uint64_t covered = 0;
  std::string cursor;
  bool last = false;
  uint8_t pages_per_block = 0;
  std::vector<ChunkRow> rows;
};

struct UnknownBody {};

struct Record {
  uint8_t type = 0;
  uint8_t version = 0;
  uint16_t payload_pages = 0;
  uint32_t length = 0;
  uint32_t offset = 0;        // from the batch's start
  uint32_t payload_page = 0;  // first payload page, within the segment
  std::variant<UnknownBody, Accept, HardState, Truncate, CheckpointNote, Relocate, GroupChange,
               Stable, Install, Chunk>
      body;
};

// All records of a batch whose header was found valid. Everything here is under the header's CRC:
// a failure is not rot but a writer that broke the format.
Result<std::vector<Record>> ParseRecords(const BatchHeader& batch, ByteSpan header);

// "accept", "hard state", ...; "unknown".
std::string_view RecordName(uint8_t type);
std::string_view OperationName(uint8_t kind);
std::string_view ChunkRowName(uint8_t kind);

// A block of payload and the CRC that its record names. The state in an install's payload counts
// as one block, number 0, at the instance that it belongs to.
struct PayloadBlock {
  uint32_t group = 0;
  uint64_t lba = 0;
  uint64_t version = 0;
  uint32_t page = 0;
  uint32_t pages = 0;
  uint32_t crc = 0;
};

// The blocks that a record describes, in order; none for records without payload. Payload that
// belongs to unknown operations or records is not listed: nobody can say where its CRCs are.
std::vector<PayloadBlock> PayloadBlocks(const Record& record);

}  // namespace hydra::store_reader
