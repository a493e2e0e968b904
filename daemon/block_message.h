// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "base/buffer.h"
#include "blockstore/types.h"
#include "paxos/types.h"

namespace hydra {

// A replica asks another for a copy of a block that it found rotten, and the answer. No matter of
// consensus: version and CRC together say that a copy is the block, wherever it comes from.
struct BlockMessage {
  GroupId group = 0;
  NodeId from = 0;
  NodeId to = 0;
  bool answer = false;
  bool found = false;  // of an answer; then `data` is the block
  Lba lba = 0;
  Version version = 0;
  uint32_t crc = 0;
  BufferSlice data;
};

// Likewise for blocks that the asker never had: many at once, whenever it suits the one that is
// asked. The answer has those that are there.
struct OwedMessage {
  static constexpr size_t kMostBlocks = 256;

  GroupId group = 0;
  NodeId from = 0;
  NodeId to = 0;
  bool answer = false;
  uint64_t request = 0;  // an answer has its question's
  std::vector<BlockName> blocks;
  Payload payload;  // of an answer: theirs
};

}  // namespace hydra
