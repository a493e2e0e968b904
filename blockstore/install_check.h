// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "base/status.h"
#include "blockstore/install.h"

namespace hydra {

// kInvalidArgument: "a chunk " and what is wrong with it.
Status BadChunk(const std::string& what);

// What can be said of a peer's chunk without the receiver's state: limits, kinds, order, ranges,
// versions. `block_pages` is the receiver's already.
Status ValidateChunk(const ImageChunk& chunk);

}  // namespace hydra
