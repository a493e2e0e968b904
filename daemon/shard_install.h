// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <optional>
#include <string>

#include "blockstore/image_source.h"
#include "blockstore/install.h"
#include "daemon/shard.h"

namespace hydra {

// Between replicas a cursor says first which kind of install it belongs to.
inline std::string InstallCursor(InstallMode mode, const std::string& cursor) {
  return static_cast<char>(mode) + cursor;
}

// What travels as the body of an InstallChunk.
struct InstallBody {
  ImagePiece piece;
};

// A replica taking in a peer's state: one step at a time, each durable before the next.
struct Shard::InstallWork {
  enum class Step : uint8_t { kIdle, kBegin, kChunk, kFinish };
  Step queued = Step::kIdle;  // to be handed to the engine
  Step out = Step::kIdle;     // handed to it, not durable yet
  std::shared_ptr<const InstallBody> body;
  // State of the layers above that the install may end with, and its instance.
  std::string state;
  Instance state_at = 0;
};

}  // namespace hydra
