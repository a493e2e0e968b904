// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>

#include "blockstore/types.h"

namespace hydra {

enum class SeenVerdict : uint8_t {
  kAllowed,
  kStale,       // one of the blocks has a newer version, applied or pending, than the sender knew
  kBelowFloor,  // what the sender knew is too long ago to tell; to be treated as stale
};

// What the master of a group has given a place in the log but not applied yet, by block: the
// pending half of "the newest version of a block". With it a write that was long under way is
// refused if a newer one has overtaken it on another path, even one that nobody was answered yet;
// and an operation that depends on what blocks hold knows which instance to wait for.
//
// A mutation is noted at the moment when its place is fixed: when it joins the entry that will get
// `instance`, not when that entry is sent, else two operations of one entry would not see each
// other. A new master notes the open instances that it proposes again, too. Notes come in the order
// of instances; apply is in order, so Applied covers everything up to its instance.
//
// Kept as disjoint stretches of blocks, each with its newest pending instance, beside the list of
// notes in order. A call costs a search and a walk over the stretches within its range, whatever
// their length: a whole extent is as cheap as a block. Not replicated. One thread.
class WriteOrder {
 public:
  // Ranges noted and not yet applied. A full record is a reason to answer BUSY; 40 MiB at worst.
  static constexpr size_t kMaxPending = 256 * 1024;

  // To be asked before a mutation joins an entry, for all its ranges.
  bool HasRoom(size_t ranges) const { return ranges <= kMaxPending - notes_.size(); }
  // `count` >= 1, the range ends within 2^64, there is room, and `instance` is not below the last.
  void NotePending(Instance instance, Lba lba, uint64_t count);
  // Everything up to `instance` has been applied.
  void Applied(Instance instance);
  // Mastership is lost.
  void Clear();

  // The highest pending instance that touches the range; 0 if none. An operation that holds the
  // range lock (nothing newer can join then) waits until this one has been applied.
  Instance Newest(Lba lba, uint64_t count) const;
  bool HasUnapplied(Lba lba, uint64_t count) const { return Newest(lba, count) != 0; }

  // Whether a mutation of the range may be proposed by someone who knew the state at `seen`.
  // `newest_applied(lba, count, seen, &known)` returns the newest applied Version in the range, or
  // anything not above `seen` if it is not above it, and says in `known` whether it reaches back to
  // `seen`. It is asked at most once.
  template <typename NewestApplied>
  SeenVerdict CheckSeen(Lba lba, uint64_t count, Instance seen,
                        NewestApplied&& newest_applied) const {
    if (Newest(lba, count) > seen) return SeenVerdict::kStale;
    bool known = false;
    const Version applied = newest_applied(lba, count, seen, &known);
    if (VersionInstance(applied) > seen) return SeenVerdict::kStale;
    return known ? SeenVerdict::kAllowed : SeenVerdict::kBelowFloor;
  }

  size_t pending() const { return notes_.size(); }  // ranges

 private:
  struct Note {
    Instance instance = 0;
    Lba begin = 0;
    Lba end = 0;
  };
  struct Stretch {
    Lba end = 0;
    Instance newest = 0;
  };
  using Stretches = std::map<Lba, Stretch>;  // by first block

  // The first stretch that ends behind `lba`.
  Stretches::const_iterator FirstBehind(Lba lba) const;
  void CutAt(Lba lba);

  std::deque<Note> notes_;
  Stretches stretches_;
};

}  // namespace hydra
