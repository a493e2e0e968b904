// SPDX-License-Identifier: Apache-2.0
//
// What travels when a replica is brought up to date from a peer's map instead of its log: an image
// (everything) or a delta (what changed since a version), in chunks. blockstore/image_source.h
// builds chunks, Engine::Install* takes them in. Plain values; the bytes between nodes belong to
// the layers above.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "blockstore/types.h"

namespace hydra {

enum class InstallMode : uint8_t {
  kNone = 0,
  kImage = 1,  // ranges of blocks, whole: what a chunk does not list is gone
  kDelta = 2,  // changes after a version: only what is listed changes
};

// Behind the last block that an entry can write (ranges end below 2^64).
inline constexpr Lba kEndOfBlocks = std::numeric_limits<Lba>::max();

// The newest version that an entry up to `instance` can have written.
inline constexpr Version LastVersionOf(Instance instance) { return MakeVersion(instance, 0xffff); }

// Limits of one chunk, besides a batch's payload (256 pages): what the receiver looks up in its
// map, and writes into one record.
inline constexpr size_t kMaxChunkRows = 1024;
inline constexpr size_t kMaxChunkExtents = 64;
inline constexpr size_t kMaxCursorBytes = 64;
// The state of the layers above that an install brings along: one batch's payload.
inline constexpr size_t kMaxInstalledState = 1u << 20;

// The newest change of a block, or of a whole extent.
struct ImageRow {
  uint64_t number = 0;        // lba; extent number if whole_extent
  bool whole_extent = false;  // kZero only
  BlockKind kind = BlockKind::kData;
  Version version = 0;
  uint32_t crc = 0;   // data: of the block's bytes
  bool same = false;  // data whose payload was left out: the receiver has this version already
  bool bare = false;  // ... : the receiver asked for rows alone, and fetches the payload later

  friend bool operator==(const ImageRow&, const ImageRow&) = default;
};

inline bool HasPayload(const ImageRow& row) {
  return row.kind == BlockKind::kData && !row.same && !row.bare;
}

struct ImageChunk {
  InstallMode mode = InstallMode::kImage;
  uint32_t block_pages = 1;
  Lba from = 0;       // image: the chunk covers blocks [from, to)
  Lba to = 0;         // ... kEndOfBlocks in the last one
  Version since = 0;  // delta: what changed after this version
  // Image: in this range; delta: with this and the earlier chunks: no change up to instance
  // `as_of` is missing, except where the sender's block changed again, up to instance `newest`
  // (earlier builds sent those as they were then: rows may be newer than `as_of`).
  Instance as_of = 0;
  Instance newest = 0;
  std::vector<ImageRow> rows;  // whole extents first; then blocks; each strictly ascending
  std::string cursor;          // where the next chunk starts; empty: this was the last
};

// How far an install has come. Durable, like everything in GroupInfo.
struct InstallProgress {
  InstallMode mode = InstallMode::kNone;
  Instance floor = 0;     // what InstallBegin was told: the instance to reach is not lower
  Instance as_of = 0;     // InstallFinish may go up to here (0 before the first chunk)
  Lba covered = 0;        // image: where the next chunk has to start
  std::string cursor;     // of the last chunk: ask for the next one with it
  bool complete = false;  // the last chunk is in
  // Chunks were taken in, of this or an earlier attempt: the blocks are no longer those of
  // `applied`, and only a finished install makes them whole again.
  bool dirty = false;
  // The attempt is void (aborted, or part of it lost to rot): InstallBegin has to start over.
  bool restart = false;

  bool active() const { return mode != InstallMode::kNone; }
  friend bool operator==(const InstallProgress&, const InstallProgress&) = default;
};

// Nothing of an attempt counts any more, except that it has changed blocks.
inline void VoidInstall(InstallProgress* install) {
  InstallProgress none;
  none.mode = install->active() ? install->mode : InstallMode::kImage;
  none.floor = install->floor;
  none.dirty = install->dirty;
  none.restart = true;
  *install = none;
}

}  // namespace hydra
