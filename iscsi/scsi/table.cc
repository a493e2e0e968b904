// SPDX-License-Identifier: Apache-2.0
//
// Every command there is, and what happens before its handler.
#include <algorithm>

#include "iscsi/scsi/command.h"
#include "iscsi/scsi/handlers.h"
#include "iscsi/scsi/unit.h"

namespace hydra::iscsi {
namespace {

using Usage = std::vector<uint8_t>;

constexpr uint8_t kTestUnitReady = 0x00;
constexpr int kMaxAttempts = 1000;  // of a command that others overtake
constexpr uint8_t kRequestSense = 0x03;
constexpr uint8_t kInquiry = 0x12;
constexpr uint8_t kReportLuns = 0xa0;
constexpr uint8_t kSanitize = 0x48;
constexpr uint8_t kBlockErase = 0x02;
constexpr uint8_t kExitFailureMode = 0x1f;
constexpr uint8_t kDpoFua = 0x18;
constexpr uint8_t kDpoByteCheck = 0x16;
constexpr uint8_t kGroup = 0x3f;

// CDBs with address and length where most have them; `flags` are the bits of byte 1.
Usage Cdb10(uint8_t opcode, uint8_t flags) {
  return {opcode, flags, 0xff, 0xff, 0xff, 0xff, kGroup, 0xff, 0xff, 0};
}
Usage Cdb12(uint8_t opcode, uint8_t flags) {
  return {opcode, flags, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, kGroup, 0};
}
Usage Cdb16(uint8_t opcode, uint8_t flags) {
  return {opcode, flags, 0xff, 0xff, 0xff, 0xff, 0xff,   0xff,
          0xff,   0xff,  0xff, 0xff, 0xff, 0xff, kGroup, 0};
}
// MAINTENANCE IN: `flags` is byte 2.
Usage Maintenance(uint8_t action, uint8_t flags, uint8_t more = 0) {
  return {0xa3, action, flags, more, more, more, 0xff, 0xff, 0xff, 0xff, 0, 0};
}

std::vector<CommandRow> MakeTable() {
  constexpr Access kA = Access::kAlways;
  constexpr Access kR = Access::kReads;
  constexpr Access kC = Access::kControls;
  constexpr Access kW = Access::kWrites;
  constexpr Access kU = Access::kUnlessSpc2;
  std::vector<CommandRow> rows = {
      {0x00, -1, "TEST UNIT READY", kU, {0x00, 0, 0, 0, 0, 0}, TestUnitReady, nullptr},
      {0x03, -1, "REQUEST SENSE", kA, {0x03, 0x01, 0, 0, 0xff, 0}, RequestSense, nullptr},
      {0x08, -1, "READ(6)", kR, {0x08, 0x1f, 0xff, 0xff, 0xff, 0}, nullptr, Read},
      {0x0a, -1, "WRITE(6)", kW, {0x0a, 0x1f, 0xff, 0xff, 0xff, 0}, nullptr, Write},
      {0x12, -1, "INQUIRY", kA, {0x12, 0x01, 0xff, 0xff, 0xff, 0}, Inquiry, nullptr},
      {0x15, -1, "MODE SELECT(6)", kC, {0x15, 0x11, 0, 0, 0xff, 0}, ModeSelect, nullptr},
      {0x16, -1, "RESERVE(6)", kU, {0x16, 0, 0, 0, 0, 0}, nullptr, Reserve},
      {0x17, -1, "RELEASE(6)", kA, {0x17, 0, 0, 0, 0, 0}, nullptr, Release},
      {0x1a, -1, "MODE SENSE(6)", kR, {0x1a, 0x08, 0xff, 0xff, 0xff, 0}, ModeSense, nullptr},
      {0x1b, -1, "START STOP UNIT", kC, {0x1b, 0x01, 0, 0x0f, 0xf7, 0}, StartStopUnit, nullptr},
      {0x25,
       -1,
       "READ CAPACITY(10)",
       kU,
       {0x25, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0x01, 0},
       ReadCapacity10,
       nullptr},
      {0x28, -1, "READ(10)", kR, Cdb10(0x28, kDpoFua), nullptr, Read},
      {0x2a, -1, "WRITE(10)", kW, Cdb10(0x2a, kDpoFua), nullptr, Write},
      {0x2e, -1, "WRITE AND VERIFY(10)", kW, Cdb10(0x2e, kDpoByteCheck), nullptr, WriteAndVerify},
      {0x2f, -1, "VERIFY(10)", kR, Cdb10(0x2f, kDpoByteCheck), nullptr, Verify},
      {0x34, -1, "PRE-FETCH(10)", kR, Cdb10(0x34, 0x02), nullptr, PreFetch},
      {0x35, -1, "SYNCHRONIZE CACHE(10)", kC, Cdb10(0x35, 0x06), nullptr, SynchronizeCache},
      {0x37,
       -1,
       "READ DEFECT DATA(10)",
       kR,
       {0x37, 0, 0x1f, 0, 0, 0, 0, 0xff, 0xff, 0},
       ReadDefectData10,
       nullptr},
      {0x41, -1, "WRITE SAME(10)", kW, Cdb10(0x41, 0x08), nullptr, WriteSame},
      {0x42, -1, "UNMAP", kW, {0x42, 0, 0, 0, 0, 0, kGroup, 0xff, 0xff, 0}, nullptr, Unmap},
      {kSanitize,
       kBlockErase,
       "SANITIZE",
       kW,
       {kSanitize, 0xa0 | kBlockErase, 0, 0, 0, 0, 0, 0xff, 0xff, 0},
       nullptr,
       SanitizeErase},
      {kSanitize,
       kExitFailureMode,
       "SANITIZE",
       kW,
       {kSanitize, 0x80 | kExitFailureMode, 0, 0, 0, 0, 0, 0xff, 0xff, 0},
       nullptr,
       SanitizeExitFailure},
      {0x55,
       -1,
       "MODE SELECT(10)",
       kC,
       {0x55, 0x11, 0, 0, 0, 0, 0, 0xff, 0xff, 0},
       ModeSelect,
       nullptr},
      {0x56, -1, "RESERVE(10)", kU, {0x56, 0, 0, 0, 0, 0, 0, 0, 0, 0}, nullptr, Reserve},
      {0x57, -1, "RELEASE(10)", kA, {0x57, 0, 0, 0, 0, 0, 0, 0, 0, 0}, nullptr, Release},
      {0x5a,
       -1,
       "MODE SENSE(10)",
       kR,
       {0x5a, 0x18, 0xff, 0xff, 0, 0, 0, 0xff, 0xff, 0},
       ModeSense,
       nullptr},
      {0x88, -1, "READ(16)", kR, Cdb16(0x88, kDpoFua), nullptr, Read},
      {0x89,
       -1,
       "COMPARE AND WRITE",
       kW,
       {0x89, kDpoFua, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0xff, kGroup, 0},
       nullptr,
       CompareAndWrite},
      {0x8a, -1, "WRITE(16)", kW, Cdb16(0x8a, kDpoFua), nullptr, Write},
      {0x8b, -1, "ORWRITE(16)", kW, Cdb16(0x8b, kDpoFua), nullptr, OrWrite},
      {0x8e, -1, "WRITE AND VERIFY(16)", kW, Cdb16(0x8e, kDpoByteCheck), nullptr, WriteAndVerify},
      {0x8f, -1, "VERIFY(16)", kR, Cdb16(0x8f, kDpoByteCheck), nullptr, Verify},
      {0x90, -1, "PRE-FETCH(16)", kR, Cdb16(0x90, 0x02), nullptr, PreFetch},
      {0x91, -1, "SYNCHRONIZE CACHE(16)", kC, Cdb16(0x91, 0x06), nullptr, SynchronizeCache},
      {0x93, -1, "WRITE SAME(16)", kW, Cdb16(0x93, 0x09), nullptr, WriteSame},
      {0x9c, -1, "WRITE ATOMIC(16)", kW, Cdb16(0x9c, kDpoFua), nullptr, WriteAtomic},
      {0x9e, 0x10, "READ CAPACITY(16)", kU, Cdb16(0x9e, 0x10), ReadCapacity16, nullptr},
      {0x9e, 0x12, "GET LBA STATUS", kR, Cdb16(0x9e, 0x12), nullptr, GetLbaStatus},
      {0xa0,
       -1,
       "REPORT LUNS",
       kA,
       {0xa0, 0, 0xff, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0},
       ReportLuns,
       nullptr},
      {0xa3, 0x0a, "REPORT TARGET PORT GROUPS", kA, Maintenance(0x2a, 0), ReportPortGroups,
       nullptr},
      {0xa3, 0x0c, "REPORT SUPPORTED OPERATION CODES", kA, Maintenance(0x0c, 0x87, 0xff),
       ReportOpcodes, nullptr},
      {0xa3, 0x0d, "REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS", kA, Maintenance(0x0d, 0x80),
       ReportTaskFunctions, nullptr},
      {0xa8, -1, "READ(12)", kR, Cdb12(0xa8, kDpoFua), nullptr, Read},
      {0xaa, -1, "WRITE(12)", kW, Cdb12(0xaa, kDpoFua), nullptr, Write},
      {0xae, -1, "WRITE AND VERIFY(12)", kW, Cdb12(0xae, kDpoByteCheck), nullptr, WriteAndVerify},
      {0xaf, -1, "VERIFY(12)", kR, Cdb12(0xaf, kDpoByteCheck), nullptr, Verify},
      {0xb7,
       -1,
       "READ DEFECT DATA(12)",
       kR,
       {0xb7, 0x1f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0},
       ReadDefectData12,
       nullptr},
  };
  for (uint8_t action = 0; action <= 3; ++action) {
    rows.push_back({0x5e,
                    action,
                    "PERSISTENT RESERVE IN",
                    kU,
                    {0x5e, action, 0, 0, 0, 0, 0, 0xff, 0xff, 0},
                    nullptr,
                    PersistentReserveIn});
  }
  for (uint8_t action = 0; action <= 7; ++action) {
    rows.push_back({0x5f,
                    action,
                    "PERSISTENT RESERVE OUT",
                    kU,
                    {0x5f, action, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff, 0},
                    nullptr,
                    PersistentReserveOut});
  }
  const auto copy = [](uint8_t opcode, uint8_t action, uint8_t list) {
    return Usage{opcode, action, list, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0};
  };
  rows.push_back({0x83, 0, "EXTENDED COPY", kW, copy(0x83, 0, 0), nullptr, ExtendedCopy});
  rows.push_back({0x84, 0, "RECEIVE COPY RESULTS", kR, copy(0x84, 0, 0xff), CopyStatus, nullptr});
  rows.push_back(
      {0x84, 3, "RECEIVE COPY RESULTS", kR, copy(0x84, 3, 0xff), CopyParameters, nullptr});
  std::stable_sort(rows.begin(), rows.end(),
                   [](const CommandRow& a, const CommandRow& b) { return a.opcode < b.opcode; });
  return rows;
}

// A bit that means nothing here is set. The last byte is the control byte, of which NACA counts.
std::optional<Response> CheckCdb(const Command& command, const CommandRow& row) {
  const size_t last = row.usage.size() - 1;
  for (size_t i = 1; i <= last; ++i) {
    uint8_t known = row.usage[i];
    if (i == 1 && row.service_action >= 0) known |= 0x1f;
    if (i == last) known = static_cast<uint8_t>(~0x04);
    const uint8_t unknown = static_cast<uint8_t>(command.cdb[i] & ~known);
    if (unknown != 0) {
      uint8_t bit = 7;
      while ((unknown >> bit & 1) == 0) --bit;
      return Response::BadCdb(static_cast<uint16_t>(i), bit);
    }
  }
  return std::nullopt;
}

bool Conflicts(const Command& command, const CommandRow& row) {
  const std::string& owner = command.unit->reserved_by();
  if (!owner.empty() && owner != command.nexus->id() && row.access != Access::kAlways) return true;
  const Access access = row.access == Access::kControls ? Access::kWrites : row.access;
  return command.unit->reservations().Conflicts(command.nexus->id(), access);
}

bool MeetsSanitize(const Command& command, const CommandRow& row) {
  return row.access != Access::kAlways &&
         command.unit->sanitize().phase != SanitizeState::Phase::kNone;
}

// What has to be true before the handler is asked.
std::optional<Response> Before(Command& command, const CommandRow& row) {
  if (command.nexus->expelled) return Response::Status(ScsiStatus::kTaskAborted);
  const bool about_target =
      row.opcode == kInquiry || row.opcode == kReportLuns || row.opcode == kRequestSense;
  if (command.lun != 0 && !about_target) {
    return Response::Check(SenseKey::kIllegalRequest, Asc::kLogicalUnitNotSupported);
  }
  if (!about_target && !command.nexus->attentions.empty()) {
    const Asc asc = command.nexus->attentions.front();
    command.nexus->attentions.pop_front();
    return Response::Check(SenseKey::kUnitAttention, asc);
  }
  if (!about_target && Conflicts(command, row)) {
    return Response::Status(ScsiStatus::kReservationConflict);
  }
  if (auto refused = CheckCdb(command, row)) return refused;
  // One that failed may be repeated, or its failure be left behind.
  const bool repairs =
      row.opcode == kSanitize && command.unit->sanitize().phase == SanitizeState::Phase::kFailed;
  if (command.lun == 0 && row.access != Access::kAlways && !repairs) {
    command.unit->ContinueSanitize();
    if (auto refused = SanitizeRefusal(command)) return refused;
  }
  if (row.access == Access::kWrites && command.unit->write_protected) {
    return Response::Check(SenseKey::kDataProtect, Asc::kSoftwareWriteProtected);
  }
  return std::nullopt;
}

}  // namespace

const std::vector<CommandRow>& CommandTable() {
  static const std::vector<CommandRow>* const kTable = new std::vector<CommandRow>(MakeTable());
  return *kTable;
}

const CommandRow* FindCommand(uint8_t opcode, int service_action, bool* known) {
  *known = false;
  for (const CommandRow& row : CommandTable()) {
    if (row.opcode != opcode) continue;
    *known = true;
    if (row.service_action == service_action) return &row;
  }
  return nullptr;
}

int ServiceActionOf(const std::array<uint8_t, 32>& cdb) {
  switch (cdb[0]) {
    case kSanitize:
    case 0x5e:
    case 0x5f:
    case 0x83:
    case 0x84:
    case 0x9e:
    case 0xa3: return cdb[1] & 0x1f;
    default: return -1;
  }
}

Task<Response> Execute(Command& command) {
  bool known = false;
  const CommandRow* row = FindCommand(command.opcode(), ServiceActionOf(command.cdb), &known);
  if (row == nullptr) {
    if (known) co_return Response::BadCdb(1, 4);
    co_return Response::Check(SenseKey::kIllegalRequest, Asc::kInvalidOpcode);
  }
  // Whoever asks whether the unit is ready hears what other portals have done to it, and whether
  // this one reaches the cluster. And nobody is refused for what may be over elsewhere, nor goes on
  // with that.
  const bool asks = row->opcode == kTestUnitReady;
  if (command.lun == 0 && (asks || Conflicts(command, *row) || MeetsSanitize(command, *row))) {
    LogicalUnit* unit = command.unit;
    const hydra::Status refreshed = co_await Await<hydra::Status>([unit, asks](auto done) {
      asks ? unit->CheckReady(std::move(done)) : unit->RefreshShared(std::move(done));
    });
    if (!refreshed.ok()) co_return DiskFailure(refreshed, 0);
  }
  if (command.lun == 0 && row->access != Access::kAlways && command.unit->sanitize_lingers()) {
    const hydra::Status fenced = co_await command.unit->FenceSanitize();
    if (!fenced.ok()) co_return DiskFailure(fenced, 0);
  }
  if (command.late && command.lun == 0) {
    if (auto refused = co_await Renew(command, true)) co_return *refused;
  }
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    if (auto refused = Before(command, *row)) co_return *refused;
    if (row->now != nullptr) co_return row->now(command);
    Response response = co_await row->later(command);
    if (!response.overtaken) co_return response;
    if (auto refused = co_await Renew(command, response.fenced)) co_return *refused;
    // A reset through another portal ended all that was under way then.
    if (command.unit->resets() != command.resets) {
      const Asc asc = command.unit->last_reset();
      std::erase(command.nexus->attentions, asc);
      co_return Response::Check(SenseKey::kUnitAttention, asc);
    }
  }
  co_return Response::Status(ScsiStatus::kTaskSetFull);
}

// In this order: whoever still waits after what is known now was taken has not gone on elsewhere
// before that.
Task<std::optional<Response>> Renew(Command& command, bool access) {
  LogicalUnit* unit = command.unit;
  if (access) {
    const hydra::Status refreshed =
        co_await Await<hydra::Status>([unit](auto done) { unit->RefreshShared(std::move(done)); });
    if (!refreshed.ok()) co_return DiskFailure(refreshed, 0);
    command.epoch = unit->epoch();
  }
  command.arrived = unit->disk()->Arrive(command.epoch);
  if (!command.still_waits) co_return std::nullopt;
  const bool waits = co_await Await<bool>([&](auto done) { command.still_waits(std::move(done)); });
  if (waits) co_return std::nullopt;
  co_return Response::Status(ScsiStatus::kTaskAborted);
}

// --- Response ---

Response Response::Check(SenseKey key, Asc asc) {
  Response response;
  response.status = ScsiStatus::kCheckCondition;
  response.sense.key = key;
  response.sense.asc = asc;
  return response;
}

Response Response::BadCdb(uint16_t byte, uint8_t bit) {
  Response response = Check(SenseKey::kIllegalRequest, Asc::kInvalidFieldInCdb);
  response.sense.field = Sense::Field{true, byte, bit};
  return response;
}

Response Response::BadParameter(uint16_t byte, uint8_t bit) {
  Response response = Check(SenseKey::kIllegalRequest, Asc::kInvalidFieldInParameters);
  response.sense.field = Sense::Field{false, byte, bit};
  return response;
}

Response Response::Status(ScsiStatus status) {
  Response response;
  response.status = status;
  return response;
}

Response Response::Data(std::vector<uint8_t> bytes, size_t allocation) {
  Response response;
  if (bytes.size() > allocation) bytes.resize(allocation);
  response.in = std::move(bytes);
  return response;
}

}  // namespace hydra::iscsi
