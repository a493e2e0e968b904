// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>

#include "base/file.h"
#include "base/status.h"

namespace hydra::store_reader {

struct DumpOptions {
  bool json = false;  // one JSON object per line
  bool records = false;
  bool map = false;
  std::optional<uint32_t> segment;  // only this one
  std::optional<uint32_t> group;    // only its records and rows
  std::string temporary_parent;     // for the copy of the map
};

// Prints what is in the store, line by line and in bounded memory. Damage is printed in its place
// and makes the answer kCorruption; judging it is verify's work.
Status Dump(FileSystem* fs, const std::string& directory, const DumpOptions& options,
            std::ostream& out);

}  // namespace hydra::store_reader
