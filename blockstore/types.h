// SPDX-License-Identifier: Apache-2.0
//
// The words of the block store (docs/disk-format.md has their bytes).
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include <boost/container/small_vector.hpp>

#include "base/buffer.h"
#include "base/ids.h"

namespace hydra {

using Lba = uint64_t;            // logical block number within the volume
using Extent = uint64_t;         // lba / blocks per extent
using SegmentNumber = uint32_t;  // 0 = none

inline constexpr GroupId kNodeGroup = 0xFFFFFFFF;  // node-wide rows; never a real group

inline constexpr uint32_t kExtentPages = 256;   // 1 MiB
inline constexpr uint32_t kMaxBlockPages = 16;  // 64 KiB
inline constexpr uint32_t kMaxOpsPerEntry = 4096;
inline constexpr uint32_t kMaxExtentsPerEntry = 4096;
// Accepted instances above the applied one, per group: bounds the memory a gap can cost.
inline constexpr uint64_t kMaxOpenInstances = 65'536;
inline constexpr Instance kMaxInstance = (1ull << 48) - 1;  // what a Version has room for

// (instance, operation index) that wrote a block; totally ordered within a group. 0 = never.
using Version = uint64_t;
inline constexpr Version MakeVersion(Instance instance, uint32_t operation) {
  return instance << 16 | operation;
}
inline constexpr Instance VersionInstance(Version v) { return v >> 16; }

enum class BlockKind : uint8_t {
  kData = 1,      // payload at a reference
  kZero = 2,      // written as zeroes
  kUnmapped = 3,  // deleted
};

// No segment ever gets this number: the payload is not in this replica yet, only what it has to be.
// An install brought the row, and peers still owe the bytes (docs/architecture.md, "Owed blocks").
inline constexpr SegmentNumber kOwedSegment = 0xFFFFFFFF;

// Where a block's payload lies in this replica.
struct Reference {
  SegmentNumber segment = 0;
  uint32_t page = 0;
  uint32_t crc = 0;

  bool owed() const { return segment == kOwedSegment; }
  friend bool operator==(const Reference&, const Reference&) = default;
};

// What a block is, wherever a copy of it lies.
struct BlockName {
  Lba lba = 0;
  Version version = 0;
  uint32_t crc = 0;
  friend bool operator==(const BlockName&, const BlockName&) = default;
};

enum class OpKind : uint8_t {
  kNoop = 0,
  kWrite = 1,
  kZero = 2,
  kUnmap = 3,
  kZeroExtents = 4,
  kOpaque = 5,
};

// One operation of an entry. Which fields count depends on `kind`.
struct Operation {
  OpKind kind = OpKind::kNoop;
  uint8_t version = 1;
  Lba lba = 0;                                       // write, zero, unmap
  uint64_t count = 0;                                // write, zero, unmap: blocks
  uint32_t block_pages = 1;                          // write
  boost::container::small_vector<uint32_t, 2> crcs;  // write: one per block, nearly always of one
  std::vector<Extent> extents;                       // zero extents, strictly ascending
  std::string context;                               // owned by the layers above

  uint32_t PayloadPages() const {
    return kind == OpKind::kWrite ? static_cast<uint32_t>(count) * block_pages : 0;
  }
  friend bool operator==(const Operation&, const Operation&) = default;
};

// What one instance of a group holds.
struct Entry {
  std::vector<Operation> operations;

  uint32_t PayloadPages() const {
    uint32_t pages = 0;
    for (const Operation& op : operations) pages += op.PayloadPages();
    return pages;
  }
  friend bool operator==(const Entry&, const Entry&) = default;
};

// Payload of an entry: slices whose lengths are whole pages, in the order of the write operations.
// Nearly always one slice, so one is stored in place.
using Payload = boost::container::small_vector<BufferSlice, 1>;

// Where a record and its payload ended up.
struct Placement {
  SegmentNumber segment = 0;
  uint32_t batch_page = 0;     // first header page of the batch
  uint32_t record_offset = 0;  // bytes from the start of the batch
  uint32_t payload_page = 0;   // first payload page of the record, within the segment
};

}  // namespace hydra
