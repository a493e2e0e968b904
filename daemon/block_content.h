// SPDX-License-Identifier: Apache-2.0
//
// What verified workloads write into blocks: bytes made from the block's number and its value, all
// of them, so that whatever is read back says which write it came from, and a torn, misplaced or
// made-up block is none at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "daemon/history.h"

namespace hydra::history {

// A whole number of 8-byte words, at least 4. kAbsent is zeroes.
void FillBlock(Block block, Value value, std::span<uint8_t> bytes);

// The value that FillBlock put there. kCorruption if these are not the bytes of one for this block.
Result<Value> ParseBlock(Block block, std::span<const uint8_t> bytes);

}  // namespace hydra::history
