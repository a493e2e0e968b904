// SPDX-License-Identifier: Apache-2.0
//
// Batches as they lie on disk, found by their headers, and changed in place: what a newer or a
// broken writer would have left.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/uuid.h"
#include "blockstore/batch_format.h"
#include "blockstore/record.h"

namespace hydra::test {

// A batch found on disk by its header, whatever the checkpoint says.
struct FoundBatch {
  std::string path;  // of its segment
  BatchHeader header;
  uint64_t offset() const { return header.page * kPageSize; }
  uint64_t payload_offset() const { return (header.page + header.header_pages) * kPageSize; }
  uint64_t end() const { return (header.page + header.pages()) * kPageSize; }
};

std::string ReadWholeFile(FileSystem* fs, const std::string& path);
void WriteWholeFile(FileSystem* fs, const std::string& path, const std::string& contents);

// The segment files of the store in `directory`.
std::vector<std::string> SegmentPaths(FileSystem* fs, const std::string& directory);
// All valid batches in all of them, by number.
std::vector<FoundBatch> FindBatches(FileSystem* fs, const std::string& directory,
                                    const Uuid& store);

// Where a batch's records of this type begin, from the start of the batch.
std::vector<uint64_t> RecordsIn(FileSystem* fs, const FoundBatch& batch, RecordType type);

// Changes bytes of a batch's header, `offset` from its start, and makes its CRC right again. To
// batches that follow it is an impostor then: their chain says otherwise.
void ForgeHeader(FileSystem* fs, const Uuid& store, const FoundBatch& batch, uint64_t offset,
                 std::span<const uint8_t> bytes);
// The same, and makes the chain of what follows right as well.
void ForgeInChain(FileSystem* fs, const std::string& directory, const Uuid& store,
                  const FoundBatch& batch, uint64_t offset, std::span<const uint8_t> bytes);

}  // namespace hydra::test
