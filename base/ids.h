// SPDX-License-Identifier: Apache-2.0
//
// The numbers that the consensus core and the block store both speak of.
#pragma once

#include <compare>
#include <cstdint>

namespace hydra {

using NodeId = uint32_t;    // never reused; 0 = none
using GroupId = uint32_t;   // never reused
using Instance = uint64_t;  // a slot of a group's log, counted from 1; 0 = none

// (round, node): totally ordered; nodes break ties. {} is below every ballot in use.
struct Ballot {
  uint64_t round = 0;
  NodeId node = 0;
  friend auto operator<=>(const Ballot&, const Ballot&) = default;
};

}  // namespace hydra
