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
#include <memory>
#include <string>
#include <vector>

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
  std::string cursor;  // of the chunk before; empty: the first
  // Rows alone: no payload. The receiver knows at once what every block has to be, and fetches what
  // it does not have in its own time.
  bool bare = false;
  uint32_t max_pages = kMaxPayloadPages;  // of payload; one block is always allowed
  size_t max_rows = kMaxChunkRows;
};

struct ImagePiece {
  ImageChunk chunk;  // the last one if its cursor is empty
  Payload payload;
  // The state of the layers above at chunk.as_of; empty if the engine has none of that instance.
  std::string state;
};

// One chunk in the making: run what PlanList has, wherever; the same for PlanReads, if it has any;
// Finish. The engine's owner calls all of it.
class ImageBuilder {
 public:
  ImageBuilder(Engine* engine, const ImageRequest& request);

  // kOutOfRange: a delta from a base behind the horizon; send an image. kFailedPrecondition: the
  // engine is itself installing this group.
  Result<std::unique_ptr<ReadJob>> PlanList();
  // With the list. None: there is nothing to read.
  Result<std::unique_ptr<ReadJob>> PlanReads(std::unique_ptr<ReadJob> list);
  // With the blocks. kCorruption: one is rotten here; ask another peer.
  Result<ImagePiece> Finish(std::unique_ptr<ReadJob> reads);

  InstallMode mode() const { return request_.mode; }
  // When it is listed.
  Instance as_of() const { return chunk_.as_of; }
  bool is_first() const { return request_.cursor.empty(); }
  bool is_last() const { return chunk_.cursor.empty(); }

 private:
  struct Run {  // neighbours that are read together
    size_t first = 0;
    size_t count = 0;
  };

  Status TakeBlocks(const ChangeBatch& batch);
  Status TakeChanges(const ChangeBatch& batch);
  size_t RowsToScan() const;
  bool AddRow(const ImageRow& row);
  void MakeRuns();
  void KeepBlock(ImageRow row, const ReadResult& read, size_t b);

  Engine* const engine_;
  const ImageRequest request_;
  uint32_t block_pages_ = 1;
  uint64_t blocks_ = 0;  // to be read, at most
  size_t rows_ = 0;
  std::string state_;  // of the last checkpoint, when the list was planned
  Instance state_at_ = 0;
  uint64_t reads_ = 0;
  size_t extents_ = 0;
  std::vector<ImageRow> listed_;
  std::vector<Run> runs_;
  ImageChunk chunk_;
  ImagePiece piece_;
};

// All of it at once: it may wait for the disk.
Result<ImagePiece> BuildImageChunk(Engine* engine, const ImageRequest& request);

}  // namespace hydra
