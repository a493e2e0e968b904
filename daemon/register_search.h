// SPDX-License-Identifier: Apache-2.0
//
// The search behind the linearizability checker: can the operations on one or two registers be put
// into an order that explains every answer and keeps to real time?
//
// It walks through invocations and returns in their order and keeps the set of all situations the
// registers may be in: what they hold, and which of the open operations have taken effect. An
// operation takes effect no later than it returns, so at each return the situations in which it has
// not are replaced by all those reachable from them in which it has ("just-in-time linearization").
// No situation left: no order exists. What keeps the sets small:
//  * an open read that agrees with what the registers hold may as well happen at once;
//  * a value is not overwritten before everybody who was to find it has: it is written only once;
//  * values that nobody asks for, or will any more, are all alike, and a write of such a value may
//    as well happen just before another write that hides it;
//  * unknown writes that nobody needs are left out; the others, once invoked, are alike if they do
//    the same, so only how many took effect matters, and the fewer the better; they wait for
//    somebody who cannot do without them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "daemon/history.h"

namespace hydra::history {

// An operation as the registers in question see it.
struct RegisterOp {
  static constexpr size_t kRegisters = 2;

  size_t id = 0;         // of the Op
  uint8_t needs = 0;     // bit i: takes effect only if register i holds need[i]
  uint8_t sets = 0;      // bit i: leaves register i with set[i]
  bool differs = false;  // a mismatch: needs that not all registers in `needs` hold need[i]
  bool certain = true;   // it took effect; else it may, or may not
  std::array<Value, kRegisters> need{};
  std::array<Value, kRegisters> set{};
  uint64_t invoked = 0;
  uint64_t returned = Op::kNever;
};

// How the history looks to these registers (one or two different blocks). Refused operations and
// reads without an answer are left out.
std::vector<RegisterOp> Project(const std::vector<const Op*>& ops,
                                const std::vector<Block>& blocks);

struct SearchResult {
  enum class Verdict { kLinearizable, kViolation, kUndecided };
  Verdict verdict = Verdict::kLinearizable;
  size_t stuck = 0;  // kViolation: the Op at whose return nothing was left
  uint64_t steps = 0;
};

// Gives up after about `max_steps`. All registers are kAbsent at first.
SearchResult SearchOrder(const std::vector<RegisterOp>& ops, uint64_t max_steps);

// The ids of a small part of `ops`, a violation, that is a violation in itself.
std::vector<size_t> Minimize(const std::vector<RegisterOp>& ops, uint64_t max_steps);

}  // namespace hydra::history
