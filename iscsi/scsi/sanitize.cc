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
  uint64_t key = 0;
  const hydra::Status begun = co_await unit->BeginSanitize(may_exit, &key);
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
  bool allowed = true;
  const hydra::Status changed =
      co_await unit->ChangeShared([allowed = &allowed](SharedState* shared) {
        const bool failed = shared->sanitize.phase == Phase::kFailed;
        *allowed = !failed || shared->sanitize.may_exit;
        if (failed && *allowed) shared->sanitize = {};
        return true;
      });
  if (!changed.ok()) co_return DiskFailure(changed, 0);
  if (!allowed) co_return Response::BadCdb(1, 4);
  co_return Response::Good();
}

}  // namespace hydra::iscsi
