// SPDX-License-Identifier: Apache-2.0
//
// Persistent reservations (SPC-4, 5.13) as a pure state: who is registered with which key, and what
// is reserved. Each action says who has to be told what. Nexuses are known by their ids, so the
// state outlives them, and is the same for all paths to a disk: it is kept as bytes, and an action
// is applied to a copy, which then takes its place.
//
// The bytes, little-endian; none at all stand for the state in the beginning:
//
//   u8 version (1), u32 generation, u8 type (0: nothing is reserved), u16 holder, u16 count, then
//   count registrations in the order they were made: u64 key (not 0), u8 length, the nexus's id
//
// `holder` is the number of a registration, from 0 on; 0xffff if there is no reservation, or if all
// registrants hold it. One state has one encoding.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "iscsi/scsi/command.h"
#include "iscsi/scsi/sense.h"

namespace hydra::iscsi {

enum class ReservationType : uint8_t {
  kWriteExclusive = 1,
  kExclusiveAccess = 3,
  kWriteExclusiveRegistrants = 5,
  kExclusiveAccessRegistrants = 6,
  kWriteExclusiveAll = 7,
  kExclusiveAccessAll = 8,
};

class Reservations {
 public:
  static constexpr size_t kMaxRegistrations = 256;
  // An iSCSI name has at most 223 bytes; what makes it a nexus's id, 26 more.
  static constexpr size_t kMaxNexusBytes = 255;

  struct Registration {
    std::string nexus;
    uint64_t key = 0;
    bool operator==(const Registration&) const = default;
  };
  struct Outcome {
    Response response;
    std::vector<std::pair<std::string, Asc>> attentions;  // nexus, what to tell it
    std::set<std::string> preempted;                      // whose tasks PREEMPT AND ABORT ends
  };

  std::string Encode() const;
  // kCorruption: these bytes are of no state; kUnsupported: of a newer version.
  static Result<Reservations> Decode(std::string_view bytes);
  bool operator==(const Reservations&) const = default;

  // Whether someone may do less than `before`.
  bool Narrows(const Reservations& before) const;
  // What a nexus has to be told that was not the one to change `before` into this; kNone: nothing.
  Asc NewsFor(const std::string& nexus, const Reservations& before) const;

  // Whether another's reservation forbids it.
  bool Conflicts(const std::string& nexus, Access access) const;

  // The service actions of PERSISTENT RESERVE OUT.
  Outcome Register(const std::string& nexus, uint64_t key, uint64_t new_key, bool ignore_key);
  Outcome Reserve(const std::string& nexus, uint64_t key, uint8_t type);
  Outcome Release(const std::string& nexus, uint64_t key, uint8_t type);
  Outcome Clear(const std::string& nexus, uint64_t key);
  Outcome Preempt(const std::string& nexus, uint64_t key, uint64_t victim, uint8_t type);
  Outcome Move(const std::string& nexus, uint64_t key, uint64_t new_key, const std::string& to,
               bool unregister);

  static bool ValidType(uint8_t type);
  const std::vector<Registration>& registrations() const { return registrations_; }
  uint32_t generation() const { return generation_; }
  std::optional<ReservationType> type() const { return type_; }
  // As READ RESERVATION shows it: 0 if all registrants hold it.
  uint64_t holder_key() const;
  bool Holds(const std::string& nexus) const;

 private:
  const Registration* Find(const std::string& nexus) const;
  bool Matches(const std::string& nexus, uint64_t key) const;
  bool AllHold() const;  // the reservation is of all registrants
  void Remove(const std::string& nexus);
  void Drop(const std::string& except, Asc asc, Outcome* outcome);
  void TellOthers(const std::string& nexus, Asc asc, Outcome* outcome) const;

  std::vector<Registration> registrations_;
  std::optional<ReservationType> type_;
  std::string holder_;  // empty if all registrants hold it
  uint32_t generation_ = 0;
};

}  // namespace hydra::iscsi
