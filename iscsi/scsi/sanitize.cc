// SPDX-License-Identifier: Apache-2.0
//
// SANITIZE (SBC-4): BLOCK ERASE and EXIT FAILURE MODE. There is no OVERWRITE, which would fill a
// thin disk, and no CRYPTO ERASE without encryption.
#include "iscsi/pdu.h"
#include "iscsi/scsi/handlers.h"
#include "iscsi/scsi/unit.h"

namespace hydra::iscsi {

using Phase = SanitizeState::Phase;

std::optional<Response> SanitizeRefusal(const Command& command) {
  LogicalUnit* unit = command.unit;
  if (unit == nullptr || unit->sanitize().phase == Phase::kNone) return std::nullopt;
  if (unit->sanitize().phase == Phase::kFailed) {
    return Response::Check(SenseKey::kMediumError, Asc::kSanitizeFailed);
  }
  Response response = Response::Check(SenseKey::kNotReady, Asc::kSanitizeInProgress);
  response.sense.progress = unit->sanitize_progress();
  return response;
}

// Once it is under way it ends by itself, whatever becomes of the command, the session or the
// portal.
Task<Response> SanitizeErase(Command& command) {
  if (Get16(&command.cdb[7]) != 0) co_return Response::BadCdb(7);
  const bool immediate = (command.cdb[1] & 0x80) != 0;
  const bool may_exit = (command.cdb[1] & 0x20) != 0;
  LogicalUnit* unit = command.unit;
  std::optional<uint64_t> epoch;
  if (command.arrived) epoch = command.epoch;
  uint64_t key = 0;
  Task<hydra::Status> beginning = unit->BeginSanitize(epoch, may_exit, &key);
  const hydra::Status begun = co_await beginning;
  if (!begun.ok()) co_return DiskFailure(begun, 0);
  if (key == 0) co_return *SanitizeRefusal(command);  // another was faster
  if (immediate) co_return Response::Good();
  while (unit->sanitizing() == key) {
    if (command.aborted && command.aborted()) co_return Response::Good();  // nobody hears it
    co_await Await<bool>([unit](auto moved) { unit->WhenSanitizeMoves(std::move(moved)); });
  }
  // It failed, or is still under way, although not here; or another follows it.
  if (auto refusal = SanitizeRefusal(command)) co_return *refusal;
  co_return Response::Good();
}

Task<Response> SanitizeExitFailure(Command& command) {
  if (Get16(&command.cdb[7]) != 0) co_return Response::BadCdb(7);
  LogicalUnit* unit = command.unit;
  Response response;
  const auto leave = [&](SharedState* shared) {
    if (command.arrived && command.epoch != unit->epoch()) {
      response = DiskFailure(hydra::Status::Fenced("access was changed"), 0);
    } else if (shared->sanitize.phase == Phase::kFailed && !shared->sanitize.may_exit) {
      response = Response::BadCdb(1, 4);
    } else if (shared->sanitize.phase == Phase::kFailed) {
      shared->sanitize = {};
    }
    return response.good();
  };
  Task<hydra::Status> changing = unit->ChangeShared(leave);
  const hydra::Status changed = co_await changing;
  if (!changed.ok()) co_return DiskFailure(changed, 0);
  co_return response;
}

}  // namespace hydra::iscsi
