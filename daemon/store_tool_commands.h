// SPDX-License-Identifier: Apache-2.0
//
// Looking at a data directory and never changing it: what `store-tool` and `hydractl debug` do.
// Both print to standard output and say on standard error, after the program's name, what went
// wrong.
#pragma once

#include <string>

#include "daemon/store_reader_dump.h"

namespace hydra::store_tool {

enum class Outcome {
  kClean,  // nothing wrong; a torn tail is nothing wrong: power loss leaves it, the engine cuts it
  kDamage,
  kUnusable,  // no store, in use, or cannot be read
};

struct Options {
  std::string directory;
  bool json = false;
  bool force = false;            // look although a process uses the store
  std::string temporary_parent;  // where to put the copy of the map; empty: beside the others
  store_reader::DumpOptions dump;
};

Outcome Verify(const std::string& program, const Options& options);
Outcome Dump(const std::string& program, const Options& options);

}  // namespace hydra::store_tool
