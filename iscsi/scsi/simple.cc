// SPDX-License-Identifier: Apache-2.0
//
// TEST UNIT READY, REQUEST SENSE, START STOP UNIT, READ DEFECT DATA.
#include "iscsi/pdu.h"
#include "iscsi/scsi/handlers.h"
#include "iscsi/scsi/unit.h"

namespace hydra::iscsi {

Response TestUnitReady(Command&) { return Response::Good(); }

// Sense data goes with the status it belongs to; what can be waiting are unit attentions, and how
// far a SANITIZE is.
Response RequestSense(Command& command) {
  Sense sense;
  if (command.lun != 0) {
    sense.key = SenseKey::kIllegalRequest;
    sense.asc = Asc::kLogicalUnitNotSupported;
  } else if (!command.nexus->attentions.empty()) {
    sense.key = SenseKey::kUnitAttention;
    sense.asc = command.nexus->attentions.front();
    command.nexus->attentions.pop_front();
  } else if (const auto refusal = SanitizeRefusal(command)) {
    sense = refusal->sense;
  }
  const bool descriptors = (command.cdb[1] & 1) != 0;
  return Response::Data(EncodeSense(sense, descriptors), command.cdb[4]);
}

// There is nothing to spin up, power down or eject.
Response StartStopUnit(Command& command) {
  const bool load_or_eject = (command.cdb[4] & 0x02) != 0;
  if (load_or_eject && (command.cdb[4] & 0xf0) == 0) return Response::BadCdb(4, 1);
  return Response::Good();
}

// There are none: the list is empty, in whatever format was asked for.
Response ReadDefectData10(Command& command) {
  std::vector<uint8_t> data(4);
  data[1] = command.cdb[2] & 0x1f;
  return Response::Data(std::move(data), Get16(&command.cdb[7]));
}

Response ReadDefectData12(Command& command) {
  std::vector<uint8_t> data(8);
  data[1] = command.cdb[1] & 0x1f;
  return Response::Data(std::move(data), Get32(&command.cdb[6]));
}

}  // namespace hydra::iscsi
