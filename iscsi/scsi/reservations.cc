// SPDX-License-Identifier: Apache-2.0
#include "iscsi/scsi/reservations.h"

#include <algorithm>

#include "base/check.h"
#include "base/coding.h"

namespace hydra::iscsi {
namespace {

using Outcome = Reservations::Outcome;

constexpr uint8_t kVersion = 1;
constexpr uint16_t kNobody = 0xffff;

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

// --- As bytes -----------------------------------------------------------------------------------

std::string Reservations::Encode() const {
  const bool one_holds = type_ && !AllHold();
  uint16_t holder = kNobody;
  std::string registered;
  for (size_t i = 0; i < registrations_.size(); ++i) {
    const Registration& registration = registrations_[i];
    HYDRA_CHECK(registration.key != 0 && registration.nexus.size() <= kMaxNexusBytes);
    if (one_holds && registration.nexus == holder_) holder = static_cast<uint16_t>(i);
    PutFixed64(&registered, registration.key);
    PutU8(&registered, static_cast<uint8_t>(registration.nexus.size()));
    registered += registration.nexus;
  }
  HYDRA_CHECK(one_holds == (holder != kNobody));
  std::string bytes;
  PutU8(&bytes, kVersion);
  PutFixed32(&bytes, generation_);
  PutU8(&bytes, type_ ? static_cast<uint8_t>(*type_) : 0);
  PutFixed16(&bytes, holder);
  PutFixed16(&bytes, static_cast<uint16_t>(registrations_.size()));
  return bytes + registered;
}

Result<Reservations> Reservations::Decode(std::string_view bytes) {
  Reservations state;
  if (bytes.empty()) return state;
  const hydra::Status wrong = hydra::Status::Corruption("these are no reservations");
  Decoder decoder(AsBytes(bytes));
  uint8_t version = 0;
  uint8_t type = 0;
  uint16_t holder = 0;
  uint16_t count = 0;
  if (decoder.U8(&version) && version != kVersion) {
    return hydra::Status::Unsupported("reservations of a newer version");
  }
  decoder.Fixed32(&state.generation_);
  decoder.U8(&type);
  decoder.Fixed16(&holder);
  if (!decoder.Fixed16(&count) || count > kMaxRegistrations) return wrong;
  for (uint16_t i = 0; i < count; ++i) {
    Registration registration;
    uint8_t length = 0;
    std::span<const uint8_t> nexus;
    decoder.Fixed64(&registration.key);
    decoder.U8(&length);
    if (!decoder.Bytes(length, &nexus) || length == 0 || registration.key == 0) return wrong;
    registration.nexus.assign(nexus.begin(), nexus.end());
    if (state.Find(registration.nexus) != nullptr) return wrong;
    state.registrations_.push_back(std::move(registration));
  }
  if (decoder.remaining() != 0 || (type != 0 && !ValidType(type))) return wrong;
  if (type != 0) state.type_ = static_cast<ReservationType>(type);
  const bool one_holds = state.type_ && !state.AllHold();
  if (one_holds ? holder >= count : holder != kNobody) return wrong;
  if (state.AllHold() && count == 0) return wrong;
  if (one_holds) state.holder_ = state.registrations_[holder].nexus;
  return state;
}

// --- From one state to another ------------------------------------------------------------------

bool Reservations::Narrows(const Reservations& before) const {
  const auto less = [&](const std::string& nexus) {
    for (const Access access : {Access::kReads, Access::kWrites}) {
      if (Conflicts(nexus, access) && !before.Conflicts(nexus, access)) return true;
    }
    return false;
  };
  if (less("")) return true;  // who is not registered
  const auto less_for = [&](const Registration& registration) { return less(registration.nexus); };
  return std::any_of(registrations_.begin(), registrations_.end(), less_for) ||
         std::any_of(before.registrations_.begin(), before.registrations_.end(), less_for);
}

Asc Reservations::NewsFor(const std::string& nexus, const Reservations& before) const {
  if (before.Find(nexus) == nullptr) return Asc::kNone;
  if (Find(nexus) == nullptr) {
    // CLEAR removes all; whoever preempts stays.
    return registrations_.empty() ? Asc::kReservationsPreempted : Asc::kRegistrationsPreempted;
  }
  if (!before.type_ || before.type_ == type_) return Asc::kNone;
  // Released, or, by preemption, of another type now.
  return type_ || IsRegistrants(*before.type_) ? Asc::kReservationsReleased : Asc::kNone;
}

// --- Actions ------------------------------------------------------------------------------------

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
  if (!AllHold()) holder_ = nexus;
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
    holder_ = AllHold() ? std::string() : nexus;
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
  if (to.size() > kMaxNexusBytes) {
    outcome.response = Response::BadParameter(24);
    return outcome;
  }
  if (Find(to) == nullptr && !unregister && registrations_.size() == kMaxRegistrations) {
    outcome.response =
        Response::Check(SenseKey::kIllegalRequest, Asc::kInsufficientRegistrationResources);
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
