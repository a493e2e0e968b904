// SPDX-License-Identifier: Apache-2.0
//
// One operation of one group, as the router takes and answers it. Internal: what programs use is
// client/hydra.h.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/ids.h"
#include "base/status.h"

namespace hydra {

// The fields mean what they mean in rpc::Io (client/protocol.proto). A range lies within one
// extent, unless `extents` lists whole ones.
struct GroupRequest {
  enum class Kind : uint8_t {
    kRead = 0,
    kWrite = 1,
    kZero = 2,
    kUnmap = 3,
    kCompareAndWrite = 4,
    kWritePart = 5,
    kComparePart = 6,
    kFence = 255,  // rpc::Fence with `epoch`, and nothing else
  };
  Kind kind = Kind::kRead;
  GroupId group = 0;
  uint64_t lba = 0;
  uint64_t count = 0;
  uint32_t block_bytes = 4096;    // reads: what the checksums are of
  std::vector<uint64_t> extents;  // kZero, kUnmap
  uint32_t part_offset = 0;
  uint32_t part_bytes = 0;
  // What is written. The memory must not change until the answer; whole pages.
  std::vector<BufferSlice> payload;
  std::vector<uint32_t> crcs;  // made where the data entered

  uint64_t seen = 0;      // 0: not checked
  uint64_t epoch = 0;     // of access rights; 0: not checked
  bool local = false;     // reads: whatever the replica has applied
  bool map_only = false;  // reads: only how the blocks are mapped
  uint64_t request = 0;   // for logs
  std::chrono::milliseconds timeout{30'000};

  bool is_read() const { return kind == Kind::kRead; }
  bool is_mutation() const { return kind != Kind::kRead && kind != Kind::kFence; }
  uint32_t payload_bytes() const {
    size_t bytes = 0;
    for (const BufferSlice& slice : payload) bytes += slice.length;
    return static_cast<uint32_t>(bytes);
  }
};

enum class GroupAnswer : uint8_t {
  kDone,
  kMiscompare,  // executed as that
  kStale,       // a newer write than `seen` stands; not executed
  kFenced,      // access rights were narrowed since `epoch`; not executed
  kCancelled,   // never executed
  kFailed,      // `status` says why
};

// How a block is mapped: the bytes of GroupReply::kinds.
enum class ReadKind : uint8_t { kData = 1, kZero = 2, kUnmapped = 3 };

struct GroupReply {
  GroupAnswer answer = GroupAnswer::kFailed;
  // OK for kDone and kMiscompare. For a mutation, kAborted alone leaves open whether it happened;
  // any other failure says that it did not, and will not.
  Status status;
  uint64_t commit = 0;   // of the group, if it was said: a good `seen`
  uint64_t version = 0;  // that it wrote
  NodeId node = 0;       // who answered

  // Reads; checked against their checksums. Of the map only the kinds are there.
  std::string kinds;               // one per block, a ReadKind
  std::vector<uint32_t> crcs;      // one per block
  std::vector<uint64_t> versions;  // one per block
  Buffer payload;                  // the blocks of kind kData, in order
};

using GroupDone = std::function<void(GroupReply reply)>;

}  // namespace hydra
