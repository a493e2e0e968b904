// SPDX-License-Identifier: Apache-2.0
//
// The yardstick: fio on the same file system in the same run, one job at depth 1, direct,
// ioengine=psync, on a file that was fully written beforehand.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace hydra::bench {

struct FioResult {
  double iops = 0;
  double bytes_per_second = 0;
};

// Overwrites `file` from its start once, in blocks of `block_bytes`, each with O_DSYNC.
Result<FioResult> FioSequentialDsync(const std::string& file, uint64_t file_bytes,
                                     uint64_t block_bytes);

// `reads` random 4 KiB reads of `file`.
// From files of equal length, in no order; they are not changed.
Result<FioResult> FioRandomRead(const std::vector<std::string>& files, uint64_t reads);

}  // namespace hydra::bench
