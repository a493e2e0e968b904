// SPDX-License-Identifier: Apache-2.0
//
// Where bits flip. Most of a store is never read again before it is vacuumed; what a restart reads
// are the newest batches, so that is where rot does harm.
//
// The last durable batch is spared: without a durable successor, rot cannot be told from a tear
// (docs/disk-format.md, section 7), and no promise is made about it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/rng.h"
#include "base/sim_disk.h"
#include "base/uuid.h"
#include "blockstore/types.h"

namespace hydra::sim {

struct RotTarget {
  SimDisk* disk = nullptr;
  std::string segments;  // the directory
  Uuid store;
  uint64_t durable_batch = 0;  // the last one
};

// Flips bits anywhere in a segment, a new one rather than an old one. False: nothing to flip.
bool RotAnywhere(const RotTarget& target, Rng* rng);

// Flips bits in a few blocks, of those last written rather, that `may` rot: of this group, written
// by this instance, wherever they lie. False: nothing to flip.
bool RotBlocks(const RotTarget& target, const std::function<bool(GroupId, Instance)>& may,
               Rng* rng);

// Flips a bit in the header or payload of one of the last batches. False: nothing to flip.
bool RotNewest(const RotTarget& target, Rng* rng);

}  // namespace hydra::sim
