// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "blockstore/types.h"

namespace hydra {

// Exclusive locks on ranges of blocks, held by the master of a group for operations that depend on
// what the blocks hold (compare-and-write, partial blocks): from before they are read until the
// resolved operation is chosen. Between the two, nothing else may be proposed for these blocks, so
// plain writes ask too: if their range IsFree they go straight ahead; else they Acquire like the
// others, and may Release as soon as they are proposed, because then their place is fixed.
//
// Each operation acquires once, one range, and waits only for operations that came before it and
// overlap it. So there is no cycle to wait in, and nobody is overtaken: a lock is granted when the
// last earlier overlapping one is released, whatever arrives meanwhile. What is disjoint does not
// wait at all.
//
// Nothing here is replicated: a new master starts empty, and the old one fails what Clear returns.
// One thread. Each call costs at most a pass over the locks there are.
class RangeLocks {
 public:
  using Ticket = uint64_t;  // the caller's name for an operation; not used twice

  enum class Answer : uint8_t {
    kGranted,
    kQueued,  // a later Release returns the ticket
    kBusy,    // kMaxLocks are held or queued: nothing was noted, try later
  };

  static constexpr size_t kMaxLocks = 1024;  // so that a pass stays in the microseconds

  // `count` >= 1, the range ends within 2^64.
  Answer Acquire(Ticket ticket, Lba lba, uint64_t count);
  // Gives up a lock, held or queued. Returns the tickets that hold theirs from now on, in the order
  // in which they came. A ticket that is not known (any more) changes nothing.
  std::vector<Ticket> Release(Ticket ticket);
  // Mastership is lost: all tickets, held and queued, in the order in which they came.
  std::vector<Ticket> Clear();

  // No lock, held or queued, overlaps.
  bool IsFree(Lba lba, uint64_t count) const;
  bool Holds(Ticket ticket) const;
  size_t size() const { return locks_.size(); }  // held and queued

 private:
  struct Lock {
    Ticket ticket = 0;
    Lba begin = 0;
    Lba end = 0;
    uint32_t waits_for = 0;  // earlier locks that overlap; 0: held

    bool Overlaps(Lba b, Lba e) const { return begin < e && b < end; }
  };

  std::vector<Lock> locks_;  // in the order of arrival
};

}  // namespace hydra
