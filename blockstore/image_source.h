// SPDX-License-Identifier: Apache-2.0
//
// The sender's side of an install (blockstore/install.h): builds chunks from a running engine, one
// per call, from nothing but the request. The cursor that a chunk carries is the next request's, so
// the sender keeps no state and the receiver may go on after a crash, or with another peer.
//
// What a chunk's `as_of` means for the receiver: an image leads to the lowest `as_of` of its chunks
// (with one sender: the first one's), a delta to that of its last chunk. It is the sender's last
// checkpoint; RequestCheckpoint makes it a newer one. Rows are in key order for an image, in the
// order of versions for a delta, which therefore also picks up what changes while it is sent.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "blockstore/batch_format.h"
#include "blockstore/engine.h"
#include "blockstore/install.h"

namespace hydra {

struct ImageRequest {
  GroupId group = 0;
  InstallMode mode = InstallMode::kImage;
  // The receiver has applied everything up to this version, LastVersionOf(applied), and has the
  // blocks to show for it: a delta starts behind it, an image leaves out payload up to it.
  Version base = 0;
  std::string cursor;                     // of the chunk before; empty: the first
  uint32_t max_pages = kMaxPayloadPages;  // of payload; one block is always allowed
  size_t max_rows = kMaxChunkRows;
};

struct ImagePiece {
  ImageChunk chunk;  // the last one if its cursor is empty
  Payload payload;
  // The state of the layers above at chunk.as_of; empty if the engine has none of that instance.
  std::string state;
};

// Reads the map and the blocks: the engine's owner calls it, and it may wait for the disk.
// kOutOfRange: a delta from a base behind the horizon; send an image. kFailedPrecondition: the
// engine is itself installing this group. kCorruption: a block is rotten here; ask another peer.
Result<ImagePiece> BuildImageChunk(Engine* engine, const ImageRequest& request);

}  // namespace hydra
