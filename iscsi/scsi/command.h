// SPDX-License-Identifier: Apache-2.0
//
// A SCSI command and its answer, and the table of all that there are. A handler is a small
// function; what it needs is in the Command, what it says is a Response. Handlers of one family are
// in one file.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/buffer.h"
#include "iscsi/memory_share.h"
#include "iscsi/scsi/sense.h"
#include "iscsi/task.h"

namespace hydra::iscsi {

class DiskIo;
class LogicalUnit;
struct Nexus;

enum class ScsiStatus : uint8_t {
  kGood = 0x00,
  kCheckCondition = 0x02,
  kBusy = 0x08,
  kReservationConflict = 0x18,
  kTaskSetFull = 0x28,
  kTaskAborted = 0x40,
};

struct Command {
  LogicalUnit* unit = nullptr;
  Nexus* nexus = nullptr;
  std::array<uint8_t, 32> cdb{};
  std::span<const uint8_t> out;  // what the initiator sent
  uint32_t expected_out = 0;     // what it said it would send, and receive
  uint32_t expected_in = 0;
  uint64_t lun = 0;
  BufferPool* memory = nullptr;  // for what is read
  MemoryShare* share = nullptr;  // what there is of it for the session. Null: all
  // The disk as it was when the command arrived (Disk::Arrive); null: as it is.
  std::shared_ptr<DiskIo> arrived;
  uint64_t epoch = 0;   // of access to the disk, as it was then
  uint32_t resets = 0;  // ... and how many there had been
  bool late = false;    // it may have been sent long ago
  // Asks the initiator whether it still waits for this command. Null: it does.
  std::function<void(std::function<void(bool)> done)> still_waits;
  std::function<bool()> aborted;  // nobody will hear of it. Null: never

  uint8_t opcode() const { return cdb[0]; }
  DiskIo* disk() const;
};

struct Response {
  ScsiStatus status = ScsiStatus::kGood;
  Sense sense;

  // Data for the initiator: in `in` if there is little, else the first `buffer_bytes` of `buffer`.
  // Also with a status that is not GOOD, if a command failed in the middle.
  std::vector<uint8_t> in;
  CountedBuffer buffer;
  size_t buffer_bytes = 0;

  // How many bytes the command meant to move, which the transport compares with what the initiator
  // expected. Of data for the initiator that is what there is of it, unless it says otherwise.
  uint64_t wanted = 0;
  bool wanted_known = false;

  // Others changed the same blocks since the command arrived, or (fenced) access to them: it is to
  // be done anew.
  bool overtaken = false;
  bool fenced = false;
  bool unknown = false;  // it may or may not have happened, or happen yet

  static Response Good() { return {}; }
  static Response Check(SenseKey key, Asc asc);
  static Response BadCdb(uint16_t byte, uint8_t bit = 8);  // INVALID FIELD IN CDB
  static Response BadParameter(uint16_t byte, uint8_t bit = 8);
  static Response ParameterLength() {
    return Check(SenseKey::kIllegalRequest, Asc::kParameterListLength);
  }
  static Response Status(ScsiStatus status);
  // Parameter data, cut to the allocation length.
  static Response Data(std::vector<uint8_t> bytes, size_t allocation);

  Response& Moves(uint64_t bytes) {
    wanted = bytes;
    wanted_known = true;
    return *this;
  }
  bool good() const { return status == ScsiStatus::kGood; }
};

// What a command has to do with reservations and write protection.
enum class Access : uint8_t {
  kAlways,      // works whatever is reserved (SPC-4, table 46: allowed)
  kUnlessSpc2,  // conflicts only with RESERVE of another
  kReads,       // ... and with exclusive access of others
  kControls,    // ... and with write exclusive of others
  kWrites,      // ... and is refused when write protected
};

struct CommandRow {
  uint8_t opcode;
  int service_action;  // -1: none
  std::string_view name;
  Access access;
  // Which bits of the CDB mean something, as REPORT SUPPORTED OPERATION CODES tells it; a CDB with
  // others set is refused. Its size is the length of the CDB.
  std::vector<uint8_t> usage;
  Response (*now)(Command&);  // one of the two
  Task<Response> (*later)(Command&);
};

const std::vector<CommandRow>& CommandTable();
// Null: there is none. `known` says whether there is any of that operation code.
const CommandRow* FindCommand(uint8_t opcode, int service_action, bool* known);
// Which service action a CDB names; -1 if its operation code has none.
int ServiceActionOf(const std::array<uint8_t, 32>& cdb);

// All of a command: unit attentions, reservations, protection, its CDB, its work. One that was
// overtaken is carried out anew, as if it had arrived just now, if the initiator still waits for
// it.
Task<Response> Execute(Command& command);

}  // namespace hydra::iscsi
