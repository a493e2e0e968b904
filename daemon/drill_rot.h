// SPDX-License-Identifier: Apache-2.0
//
// Rot on demand: a node that was started with --drill flips bits of live blocks on its own disk, so
// that `hydractl drill run bit-rot` can see them found and mended. Over HTTP, from this machine
// only:
//
//   POST /drill/rot   {"blocks": {"5": [0, 17], "6": [3]}}   blocks of groups 5 and 6
//   GET  /drill/rot   what became of the blocks of the last POST
//
// One bit of each block is flipped where the map says that its newest copy lies, behind the
// engine's back. Nothing but the named blocks is touched: those that hold no data here, or are not
// here at all, are left out. As this runs on the engine's thread, the place cannot be freed and
// used again meanwhile.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/rng.h"
#include "base/status.h"
#include "blockstore/engine.h"

namespace hydra {

// Owned by the node, used on its thread. Unlike other faults these do not end by themselves: it is
// up to the cluster to mend them.
class DrillRot {
 public:
  static constexpr size_t kMostBlocks = 512;  // of one POST

  // Under which number the store has a group; none: there is no replica of it here.
  using StoreGroup = std::function<std::optional<GroupId>(GroupId)>;

  // `dir` is that of the store.
  DrillRot(FileSystem* fs, Engine* engine, std::string dir, StoreGroup store_group, uint64_t seed)
      : fs_(fs),
        engine_(engine),
        dir_(std::move(dir)),
        store_group_(std::move(store_group)),
        rng_(seed) {}

  // Takes the body of a POST. kInvalidArgument: what is wrong with it; nothing was damaged then.
  Status Damage(const std::string& json);
  // As JSON: {"asked", "damaged", "rotten", "repaired", "overwritten", "still": ["group 5 block
  // 17"]}. Of those that were damaged, some are still rotten; some have a good copy of the same
  // version; and some hold something newer, or nothing any more. Asking finds no rot.
  Result<std::string> Describe();

 private:
  Status Flip(const hydra::Damage& block, uint32_t block_pages);
  Result<bool> SameVersion(const hydra::Damage& block);

  FileSystem* const fs_;
  Engine* const engine_;
  const std::string dir_;
  const StoreGroup store_group_;
  Rng rng_;
  size_t asked_ = 0;
  std::vector<std::pair<GroupId, hydra::Damage>> damaged_;  // of the last POST, with their groups
};

}  // namespace hydra
