// SPDX-License-Identifier: Apache-2.0
#include "iscsi/scsi/reservations.h"

#include <algorithm>

namespace hydra::iscsi {
namespace {

using Outcome = Reservations::Outcome;

Outcome Conflict() { return {Response::Status(ScsiStatus::kReservationConflict), {}, {}}; }

bool IsAllRegistrants(ReservationType type) {
  return type == ReservationType::kWriteExclusiveAll ||
         type == ReservationType::kExclusiveAccessAll;
}

bool IsRegistrants(ReservationType type) {
  return IsAllRegistrants(type) || type == ReservationType::kWriteExclusiveRegistrants ||
         type == ReservationType::kExclusiveAccessRegistrants;
}

bool IsWriteExclusive(ReservationType type) {
  return type == ReservationType::kWriteExclusive ||
         type == ReservationType::kWriteExclusiveRegistrants ||
         type == ReservationType::kWriteExclusiveAll;
}

}  // namespace

bool Reservations::ValidType(uint8_t type) {
  return type == 1 || type == 3 || (type >= 5 && type <= 8);
}

const Reservations::Registration* Reservations::Find(const std::string& nexus) const {
  for (const Registration& registration : registrations_) {
    if (registration.nexus == nexus) return &registration;
  }
  return nullptr;
}

bool Reservations::Matches(const std::string& nexus, uint64_t key) const {
  const Registration* registration = Find(nexus);
  return registration != nullptr && registration->key == key;
}

bool Reservations::AllHold() const { return type_ && IsAllRegistrants(*type_); }

bool Reservations::Holds(const std::string& nexus) const {
  if (!type_) return false;
  return AllHold() ? Find(nexus) != nullptr : holder_ == nexus;
}

uint64_t Reservations::holder_key() const {
  if (!type_ || AllHold()) return 0;
  const Registration* holder = Find(holder_);
  return holder == nullptr ? 0 : holder->key;
}

bool Reservations::Conflicts(const std::string& nexus, Access access) const {
  if (!type_ || access == Access::kAlways || access == Access::kUnlessSpc2) return false;
  if (access == Access::kReads && IsWriteExclusive(*type_)) return false;
  if (IsRegistrants(*type_)) return Find(nexus) == nullptr;
  return holder_ != nexus;
}

void Reservations::Remove(const std::string& nexus) {
  std::erase_if(registrations_, [&](const Registration& r) { return r.nexus == nexus; });
}

void Reservations::TellOthers(const std::string& nexus, Asc asc, Outcome* outcome) const {
  for (const Registration& registration : registrations_) {
    if (registration.nexus != nexus) outcome->attentions.emplace_back(registration.nexus, asc);
  }
}

// The reservation ends; those who had a share in it learn of it.
void Reservations::Drop(const std::string& except, Asc asc, Outcome* outcome) {
  if (IsRegistrants(*type_)) TellOthers(except, asc, outcome);
  type_.reset();
  holder_.clear();
}

Outcome Reservations::Register(const std::string& nexus, uint64_t key, uint64_t new_key,
                               bool ignore_key) {
  Outcome outcome;
  const Registration* present = Find(nexus);
  if (!ignore_key && key != (present == nullptr ? 0 : present->key)) return Conflict();
  if (present == nullptr) {
    if (new_key == 0) return outcome;
    if (registrations_.size() == kMaxRegistrations) {
      outcome.response =
          Response::Check(SenseKey::kIllegalRequest, Asc::kInsufficientRegistrationResources);
      return outcome;
    }
    registrations_.push_back({nexus, new_key});
    ++generation_;
    return outcome;
  }
  ++generation_;
  if (new_key != 0) {
    for (Registration& registration : registrations_) {
      if (registration.nexus == nexus) registration.key = new_key;
    }
    return outcome;
  }
  const bool held = Holds(nexus);
  Remove(nexus);
  if (held && (!AllHold() || registrations_.empty())) {
    Drop(nexus, Asc::kReservationsReleased, &outcome);
  }
  return outcome;
}

Outcome Reservations::Reserve(const std::string& nexus, uint64_t key, uint8_t type) {
  if (!Matches(nexus, key)) return Conflict();
  const auto wanted = static_cast<ReservationType>(type);
  if (type_) {
    if (!Holds(nexus) || *type_ != wanted) return Conflict();
    return {};
  }
  type_ = wanted;
  holder_ = nexus;
  return {};
}

Outcome Reservations::Release(const std::string& nexus, uint64_t key, uint8_t type) {
  if (!Matches(nexus, key)) return Conflict();
  Outcome outcome;
  if (!Holds(nexus)) return outcome;
  if (*type_ != static_cast<ReservationType>(type)) {
    outcome.response = Response::Check(SenseKey::kIllegalRequest, Asc::kInvalidRelease);
    return outcome;
  }
  Drop(nexus, Asc::kReservationsReleased, &outcome);
  return outcome;
}

Outcome Reservations::Clear(const std::string& nexus, uint64_t key) {
  if (!Matches(nexus, key)) return Conflict();
  Outcome outcome;
  TellOthers(nexus, Asc::kReservationsPreempted, &outcome);
  registrations_.clear();
  type_.reset();
  holder_.clear();
  ++generation_;
  return outcome;
}

Outcome Reservations::Preempt(const std::string& nexus, uint64_t key, uint64_t victim,
                              uint8_t type) {
  if (!Matches(nexus, key)) return Conflict();
  Outcome outcome;
  const bool everyone = victim == 0 && AllHold();
  if (victim == 0 && !everyone) {
    outcome.response = Response::BadParameter(8);
    return outcome;
  }
  const bool takes_over = everyone || (type_ && !AllHold() && holder_key() == victim);
  bool found = everyone;
  for (const Registration& registration : registrations_) {
    if (!everyone && registration.key != victim) continue;
    found = true;
    if (registration.nexus != nexus) outcome.preempted.insert(registration.nexus);
  }
  if (!found) return Conflict();
  // Preempting oneself with another's key in mind removes nothing of one's own if it takes over.
  if (!takes_over && key == victim) {
    outcome.preempted.insert(nexus);
  }
  for (const std::string& gone : outcome.preempted) {
    if (gone != nexus) outcome.attentions.emplace_back(gone, Asc::kRegistrationsPreempted);
    Remove(gone);
  }
  ++generation_;
  if (takes_over) {
    const auto wanted = static_cast<ReservationType>(type);
    if (*type_ != wanted) TellOthers(nexus, Asc::kReservationsReleased, &outcome);
    type_ = wanted;
    holder_ = nexus;
  } else if (AllHold() && registrations_.empty()) {
    type_.reset();
  }
  return outcome;
}

Outcome Reservations::Move(const std::string& nexus, uint64_t key, uint64_t new_key,
                           const std::string& to, bool unregister) {
  if (!Matches(nexus, key) || !Holds(nexus)) return Conflict();
  Outcome outcome;
  if (AllHold()) return Conflict();
  if (new_key == 0 || to == nexus) {
    outcome.response = Response::BadParameter(8);
    return outcome;
  }
  Remove(to);
  registrations_.push_back({to, new_key});
  holder_ = to;
  if (unregister) Remove(nexus);
  ++generation_;
  return outcome;
}

}  // namespace hydra::iscsi
