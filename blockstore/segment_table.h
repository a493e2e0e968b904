// SPDX-License-Identifier: Apache-2.0
//
// Open segment files, and reading blocks out of them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>

#include "base/buffer.h"
#include "base/file.h"
#include "base/status.h"
#include "blockstore/types.h"

namespace hydra {

// A segment's two descriptors: writes go past the page cache, ordinary reads through it. The
// inode, and so both descriptors, outlive renames. Shared by the volume and by readers.
struct SegmentFile {
  std::unique_ptr<File> direct;
  std::unique_ptr<File> cached;
};

// Which file holds which segment. Readers on other threads hold a snapshot; the volume replaces
// the whole table when a segment is opened or freed, which is rare.
using SegmentTable = std::map<SegmentNumber, std::shared_ptr<SegmentFile>>;
using SegmentTableRef = std::shared_ptr<const SegmentTable>;

// The newest table, for readers that look up a row in LevelDB first: the row may be newer than the
// read's plan and point into a segment that was opened since.
class NewestSegmentTable {
 public:
  SegmentTableRef Get() const {
    const std::lock_guard lock(mutex_);
    return table_;
  }
  void Set(SegmentTableRef table) {
    const std::lock_guard lock(mutex_);
    table_ = std::move(table);
  }

 private:
  mutable std::mutex mutex_;
  SegmentTableRef table_ = std::make_shared<SegmentTable>();  // guarded by mutex_
};

Result<std::shared_ptr<SegmentFile>> OpenSegmentFile(FileSystem* fs, const std::string& path,
                                                     bool create);

// What files are filled and wiped with: a MiB that nobody writes to, cleared once in the life of
// the process and in few pieces for the device. Any thread.
const Buffer& Zeroes();

// "0000000007.seg"
std::string SegmentFileName(SegmentNumber number);
// 0 if `name` is not that of a segment.
SegmentNumber ParseSegmentFileName(const std::string& name);

// Reads the block at `reference` into `out` (page-aligned, one block) and checks its CRC. A
// mismatch is read again past the page cache before it is called rot (kCorruption). A segment
// that is not in the table is kCorruption too: the map points into nothing. Any thread.
Status ReadBlock(const SegmentTable& table, const Reference& reference, std::span<uint8_t> out);

// Reads whole pages past the page cache; kCorruption where the file ends early.
Status ReadPagesDirect(const SegmentTable& table, SegmentNumber segment, uint32_t page,
                       std::span<uint8_t> out);

}  // namespace hydra
