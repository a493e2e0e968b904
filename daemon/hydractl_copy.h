// SPDX-License-Identifier: Apache-2.0
//
// Copying between a file (or a pipe) and a volume. Zeroes travel neither way: what is zero in a
// file is zeroed in the volume without being written, what is zero in a volume becomes a hole of
// the file.
#pragma once

#include <cstdint>
#include <functional>

#include "base/status.h"
#include "client/hydra.h"

namespace hydra::ctl {

struct CopyOptions {
  uint64_t offset = 0;  // in the volume; a multiple of its block size
  uint64_t length = 0;  // 0: to the end of the input, or of the volume
  unsigned depth = 8;   // requests of up to 1 MiB under way
  // Called now and then: how far it is, of how much (0: nobody knows).
  std::function<void(uint64_t done, uint64_t all)> progress;
};

struct CopyReport {
  uint64_t bytes = 0;    // that were copied
  uint64_t data = 0;     // ... of them not zero
  uint64_t padding = 0;  // zeroes added to fill the last block
};

// From a descriptor that is open for reading. kOutOfRange: it does not fit.
Result<CopyReport> Import(Volume volume, int file, const CopyOptions& options);

// To a descriptor that is open for writing.
Result<CopyReport> Export(Volume volume, int file, const CopyOptions& options);

}  // namespace hydra::ctl
