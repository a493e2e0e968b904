// SPDX-License-Identifier: Apache-2.0
//
// RESERVE, RELEASE, PERSISTENT RESERVE IN and OUT.
#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "iscsi/pdu.h"
#include "iscsi/scsi/handlers.h"
#include "iscsi/scsi/unit.h"

namespace hydra::iscsi {
namespace {

constexpr size_t kParameterBytes = 24;
constexpr size_t kMoveHeadBytes = 24;
constexpr uint8_t kPreemptAndAbort = 5;

// TransportID of an initiator port (SPC-4, 7.6.4.6): format 1, "name,i,0x<isid>".
std::vector<uint8_t> TransportId(const std::string& nexus) {
  const std::string port = nexus.substr(0, nexus.rfind(",t,"));
  const size_t name = std::max<size_t>(port.size() + 1, 20);
  std::vector<uint8_t> bytes(4 + name + Padding(name));
  bytes[0] = 0x45;
  Put16(&bytes[2], static_cast<uint16_t>(bytes.size() - 4));
  std::copy(port.begin(), port.end(), bytes.begin() + 4);
  return bytes;
}

uint16_t PortalOf(const std::string& nexus) {
  const size_t at = nexus.rfind(",t,0x");
  if (at == std::string::npos) return 0;
  return static_cast<uint16_t>(std::stoul(nexus.substr(at + 5), nullptr, 16));
}

Response ReadKeys(const Reservations& state, uint16_t allocation) {
  std::vector<uint8_t> data(8);
  Put32(&data[0], state.generation());
  for (const auto& registration : state.registrations()) {
    data.resize(data.size() + 8);
    Put64(&data[data.size() - 8], registration.key);
  }
  Put32(&data[4], static_cast<uint32_t>(data.size() - 8));
  return Response::Data(std::move(data), allocation);
}

Response ReadReservation(const Reservations& state, uint16_t allocation) {
  std::vector<uint8_t> data(state.type() ? 24 : 8);
  Put32(&data[0], state.generation());
  if (state.type()) {
    Put32(&data[4], 16);
    Put64(&data[8], state.holder_key());
    data[21] = static_cast<uint8_t>(*state.type());
  }
  return Response::Data(std::move(data), allocation);
}

Response ReportCapabilities(uint16_t allocation) {
  // Types: all six. Everything persists through power loss, asked for or not; nothing registers
  // several ports at once.
  return Response::Data({0, 8, 0x01, 0x81, 0xea, 0x01, 0, 0}, allocation);
}

Response ReadFullStatus(const Reservations& state, uint16_t allocation) {
  std::vector<uint8_t> data(8);
  Put32(&data[0], state.generation());
  for (const auto& registration : state.registrations()) {
    const size_t at = data.size();
    data.resize(at + 24);
    Put64(&data[at], registration.key);
    if (state.Holds(registration.nexus)) {
      data[at + 12] = 0x01;  // R_HOLDER
      data[at + 13] = static_cast<uint8_t>(*state.type());
    }
    Put16(&data[at + 18], PortalOf(registration.nexus));
    const std::vector<uint8_t> transport = TransportId(registration.nexus);
    Put32(&data[at + 20], static_cast<uint32_t>(transport.size()));
    data.insert(data.end(), transport.begin(), transport.end());
  }
  Put32(&data[4], static_cast<uint32_t>(data.size() - 8));
  return Response::Data(std::move(data), allocation);
}

Reservations::Outcome Refused(Response response) {
  Reservations::Outcome outcome;
  outcome.response = std::move(response);
  return outcome;
}

// Parameter list of REGISTER AND MOVE: keys, flags in byte 17, port, length, TransportID.
Reservations::Outcome RegisterAndMove(const Command& command, uint64_t key, uint64_t new_key,
                                      Reservations* state) {
  const std::span<const uint8_t> list = command.out;
  if (list.size() < kMoveHeadBytes + 8) return Refused(Response::ParameterLength());
  const bool unregister = (list[17] & 0x02) != 0;
  const uint16_t port = Get16(&list[18]);
  const size_t length = Get32(&list[20]);
  const bool known_format = (list[24] & 0xcf) == 0x45;
  if ((list[17] & 0x01) != 0 || length != list.size() - kMoveHeadBytes || !known_format) {
    return Refused(Response::BadParameter((list[17] & 0x01) != 0 ? 17 : 24));
  }
  std::string name(reinterpret_cast<const char*>(&list[28]), list.size() - 28);
  name.resize(std::min(name.size(), name.find('\0')));
  return state->Move(command.nexus->id(), key, new_key, fmt::format("{},t,0x{:04x}", name, port),
                     unregister);
}

Reservations::Outcome Act(const Command& command, Reservations* state) {
  const uint8_t type = command.cdb[2] & 0x0f;
  const uint64_t key = Get64(&command.out[0]);
  const uint64_t other = Get64(&command.out[8]);
  const std::string nexus = command.nexus->id();
  switch (command.cdb[1] & 0x1f) {
    case 0: return state->Register(nexus, key, other, false);
    case 1: return state->Reserve(nexus, key, type);
    case 2: return state->Release(nexus, key, type);
    case 3: return state->Clear(nexus, key);
    case 4:
    case kPreemptAndAbort: return state->Preempt(nexus, key, other, type);
    case 6: return state->Register(nexus, key, other, true);
    default: return RegisterAndMove(command, key, other, state);
  }
}

}  // namespace

// A release of what one has not reserved does nothing, and that is all right.
Task<Response> ChangeReserved(Command& command, bool reserve) {
  Response response;
  const auto change = [&](SharedState* shared) {
    const std::string nexus = command.nexus->id();
    const bool others = !shared->reserved_by.empty() && shared->reserved_by != nexus;
    if (command.arrived && command.epoch != command.unit->epoch()) {
      response = DiskFailure(hydra::Status::Fenced("access was changed"), 0);
    } else if (!shared->reservations.registrations().empty() || (reserve && others)) {
      response = Response::Status(ScsiStatus::kReservationConflict);
    } else if (!others) {
      shared->reserved_by = reserve ? nexus : std::string();
    }
    return response.good();
  };
  Task<hydra::Status> changing = command.unit->ChangeShared(change);
  const hydra::Status changed = co_await changing;
  if (!changed.ok()) co_return DiskFailure(changed, 0);
  co_return response;
}

Task<Response> Reserve(Command& command) { return ChangeReserved(command, true); }
Task<Response> Release(Command& command) { return ChangeReserved(command, false); }

Task<Response> PersistentReserveIn(Command& command) {
  // As it is now, and true everywhere: who sees that another is gone relies on it.
  const auto nothing = [](SharedState*) { return true; };
  Task<hydra::Status> looking = command.unit->ChangeShared(nothing);
  const hydra::Status looked = co_await looking;
  if (!looked.ok()) co_return DiskFailure(looked, 0);
  const Reservations& state = command.unit->reservations();
  const uint16_t allocation = Get16(&command.cdb[7]);
  switch (command.cdb[1] & 0x1f) {
    case 0: co_return ReadKeys(state, allocation);
    case 1: co_return ReadReservation(state, allocation);
    case 2: co_return ReportCapabilities(allocation);
    default: co_return ReadFullStatus(state, allocation);
  }
}

Task<Response> PersistentReserveOut(Command& command) {
  const uint8_t action = command.cdb[1] & 0x1f;
  const uint8_t type = command.cdb[2] & 0x0f;
  const bool typed = action == 1 || action == 2 || action == 4 || action == kPreemptAndAbort;
  if (typed && (command.cdb[2] & 0xf0) != 0) co_return Response::BadCdb(2, 7);  // of the whole unit
  if (typed && !Reservations::ValidType(type)) co_return Response::BadCdb(2, 3);
  const uint32_t length = Get32(&command.cdb[5]);
  const bool right_length = action == 7 ? length > kParameterBytes : length == kParameterBytes;
  if (!right_length || command.out.size() < length) co_return Response::ParameterLength();
  command.out = command.out.first(length);
  // SPEC_I_PT, ALL_TG_PT: not supported, as REPORT CAPABILITIES says. APTPL makes no difference.
  if (action != 7 && (command.out[20] & 0x0c) != 0) co_return Response::BadParameter(20);

  LogicalUnit* unit = command.unit;
  Reservations::Outcome outcome;
  const auto act = [&](SharedState* shared) {
    // What others did since the command arrived may be the initiator's own, on another path.
    if (command.arrived && command.epoch != unit->epoch()) {
      outcome = Refused(DiskFailure(hydra::Status::Fenced("access was changed"), 0));
    } else {
      outcome = Act(command, &shared->reservations);
    }
    return outcome.response.good();
  };
  Task<hydra::Status> change = unit->ChangeShared(act);
  const hydra::Status changed = co_await change;
  if (changed.code() == Code::kNoSpace) {
    co_return Response::Check(SenseKey::kIllegalRequest, Asc::kInsufficientRegistrationResources);
  }
  if (!changed.ok()) co_return DiskFailure(changed, 0);
  for (const auto& [id, asc] : outcome.attentions) unit->AttentionTo(id, asc);
  outcome.preempted.erase(command.nexus->id());
  if (action == kPreemptAndAbort && outcome.response.good() && !outcome.preempted.empty()) {
    const std::set<std::string>* ids = &outcome.preempted;
    co_await Await<bool>([unit, ids](auto done) {
      unit->AbortTasks(ids, [done = std::move(done)] { done(true); });
    });
  }
  if (outcome.response.good()) outcome.response.Moves(length);
  co_return outcome.response;
}

}  // namespace hydra::iscsi
