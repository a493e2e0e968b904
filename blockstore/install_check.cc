// SPDX-License-Identifier: Apache-2.0
#include "blockstore/install_check.h"

#include <fmt/format.h>

namespace hydra {
namespace {

Status CheckRow(const ImageChunk& chunk, const ImageRow& row) {
  const uint64_t blocks = kExtentPages / chunk.block_pages;
  if (row.version == 0 || row.version > LastVersionOf(chunk.newest)) {
    return BadChunk(fmt::format("with version {} of {}, beyond its newest instance {}", row.version,
                                row.number, chunk.newest));
  }
  if (row.kind != BlockKind::kData && row.kind != BlockKind::kZero &&
      row.kind != BlockKind::kUnmapped) {
    return BadChunk("with a row of unknown kind");
  }
  if ((row.whole_extent && row.kind != BlockKind::kZero) || (row.same && row.bare) ||
      ((row.same || row.bare) && row.kind != BlockKind::kData)) {
    return BadChunk(fmt::format("whose row of {} contradicts itself", row.number));
  }
  // Only up to its instance does a queued chunk keep open entries as they are.
  if (row.bare && row.version > LastVersionOf(chunk.as_of)) {
    return BadChunk(
        fmt::format("without the payload of {}, which is newer than its instance", row.number));
  }
  if (row.number >= (row.whole_extent ? kEndOfBlocks / blocks : kEndOfBlocks)) {
    return BadChunk("with a block past 2^64");
  }
  if (chunk.mode == InstallMode::kDelta) {
    if (row.version > chunk.since) return Status::Ok();
    return BadChunk(
        fmt::format("with a change of {} that is not after {}", row.number, chunk.since));
  }
  const Lba first = row.whole_extent ? row.number * blocks : row.number;
  const Lba end = row.whole_extent ? first + blocks : first + 1;
  if (first >= chunk.from && end <= chunk.to) return Status::Ok();
  return BadChunk(
      fmt::format("with block {} outside of its range [{}, {})", first, chunk.from, chunk.to));
}

}  // namespace

Status BadChunk(const std::string& what) { return Status::InvalidArgument("a chunk " + what); }

Status ValidateChunk(const ImageChunk& chunk) {
  if (chunk.rows.size() > kMaxChunkRows) {
    return BadChunk(fmt::format("of {} rows; at most {}", chunk.rows.size(), kMaxChunkRows));
  }
  if (chunk.cursor.size() > kMaxCursorBytes) {
    return BadChunk(
        fmt::format("with a cursor of {} bytes; at most {}", chunk.cursor.size(), kMaxCursorBytes));
  }
  // As of nothing it would say that there are no blocks, to a replica that may have some.
  if (chunk.as_of == 0) return BadChunk("of a state in which nothing is applied");
  if (chunk.as_of > chunk.newest || chunk.newest > kMaxInstance) {
    return BadChunk(fmt::format("as of instance {} with rows up to {}", chunk.as_of, chunk.newest));
  }
  if (chunk.mode == InstallMode::kImage) {
    if (chunk.from >= chunk.to) return BadChunk("whose range is empty");
    if (chunk.cursor.empty() != (chunk.to == kEndOfBlocks)) {
      return BadChunk("whose cursor and range do not agree on whether it is the last");
    }
  } else if (chunk.from != 0 || chunk.to != 0) {
    return BadChunk("of a delta with a range");
  }
  size_t extents = 0;
  for (size_t i = 0; i < chunk.rows.size(); ++i) {
    const ImageRow& row = chunk.rows[i];
    HYDRA_RETURN_IF_ERROR(CheckRow(chunk, row));
    extents += row.whole_extent ? 1 : 0;
    if (i == 0) continue;
    const ImageRow& before = chunk.rows[i - 1];
    if (row.whole_extent == before.whole_extent ? row.number <= before.number : row.whole_extent) {
      return BadChunk("whose rows do not ascend, extents before blocks");
    }
  }
  if (extents > kMaxChunkExtents) {
    return BadChunk(fmt::format("of {} whole extents; at most {}", extents, kMaxChunkExtents));
  }
  return Status::Ok();
}

}  // namespace hydra
