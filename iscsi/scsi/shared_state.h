// SPDX-License-Identifier: Apache-2.0
//
// What all portals of the cluster have to know of a unit. A Disk keeps it, as bytes, which are
// changed by compare and swap (LoadAccess, ChangeAccess).
//
//   u8 version (1), u32 resets, u16 last reset, u8 length, who reserved it, then the reservations
//   (reservations.h)
//
// Version 2, which is written only while a SANITIZE is under way or has failed, has u8 phase, u8
// may exit, u64 key behind the version. A portal that does not know it refuses the unit, as it
// should. None at all stand for the state in the beginning.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "iscsi/scsi/reservations.h"
#include "iscsi/scsi/sense.h"

namespace hydra::iscsi {

// Of SANITIZE, which outlives the portal that it came through.
struct SanitizeState {
  enum class Phase : uint8_t { kNone = 0, kUnderWay = 1, kFailed = 2 };
  Phase phase = Phase::kNone;
  bool may_exit = false;  // AUSE: EXIT FAILURE MODE is allowed if it fails
  uint64_t key = 0;       // of this one: the epoch in which it began

  bool operator==(const SanitizeState&) const = default;
};

struct SharedState {
  Reservations reservations;
  SanitizeState sanitize;
  // LUN and target resets so far, and what the last one is called.
  uint32_t resets = 0;
  Asc last_reset = Asc::kNone;
  std::string reserved_by;  // by RESERVE(6) or (10): the nexus's id; empty: nobody

  bool operator==(const SharedState&) const = default;

  std::string Encode() const;
  // kCorruption: these bytes are of no state; kUnsupported: of a newer version.
  static Result<SharedState> Decode(std::string_view bytes);

  // Whether something that was allowed `before`, or was begun then, is not to happen any more.
  bool Narrows(const SharedState& before) const {
    const bool sanitizes =
        sanitize.phase == SanitizeState::Phase::kUnderWay && sanitize.key != before.sanitize.key;
    return sanitizes || resets != before.resets || reservations.Narrows(before.reservations) ||
           (!reserved_by.empty() && reserved_by != before.reserved_by);
  }
};

}  // namespace hydra::iscsi
