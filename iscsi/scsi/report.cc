// SPDX-License-Identifier: Apache-2.0
//
// REPORT LUNS, REPORT SUPPORTED OPERATION CODES and TASK MANAGEMENT FUNCTIONS, REPORT TARGET PORT
// GROUPS.
#include "iscsi/pdu.h"
#include "iscsi/scsi/handlers.h"
#include "iscsi/scsi/unit.h"

namespace hydra::iscsi {
namespace {

constexpr size_t kTimeoutBytes = 12;  // a command timeouts descriptor, which says: not known

void AppendTimeouts(std::vector<uint8_t>* data) {
  const size_t at = data->size();
  data->resize(at + kTimeoutBytes);
  Put16(&(*data)[at], kTimeoutBytes - 2);
}

std::vector<uint8_t> AllOpcodes(bool timeouts) {
  std::vector<uint8_t> data(4);
  for (const CommandRow& row : CommandTable()) {
    const size_t at = data.size();
    data.resize(at + 8);
    data[at] = row.opcode;
    if (row.service_action >= 0) {
      Put16(&data[at + 2], static_cast<uint16_t>(row.service_action));
      data[at + 5] |= 0x01;  // SERVACTV
    }
    if (timeouts) data[at + 5] |= 0x02;  // CTDP
    Put16(&data[at + 6], static_cast<uint16_t>(row.usage.size()));
    if (timeouts) AppendTimeouts(&data);
  }
  Put32(&data[0], static_cast<uint32_t>(data.size() - 4));
  return data;
}

std::vector<uint8_t> OneOpcode(const CommandRow* row, bool timeouts) {
  std::vector<uint8_t> data(4);
  if (row == nullptr) {
    data[1] = 0x01;  // not supported
    return data;
  }
  data[1] = static_cast<uint8_t>(0x03 | (timeouts ? 0x80 : 0));
  Put16(&data[2], static_cast<uint16_t>(row->usage.size()));
  data.insert(data.end(), row->usage.begin(), row->usage.end());
  if (timeouts) AppendTimeouts(&data);
  return data;
}

}  // namespace

Response ReportLuns(Command& command) {
  const uint8_t select = command.cdb[2];
  const uint32_t allocation = Get32(&command.cdb[6]);
  if (select > 2) return Response::BadCdb(2);
  if (allocation < 16) return Response::BadCdb(6);
  // 1: well known units only, of which there are none.
  std::vector<uint8_t> data(select == 1 ? 8 : 16);
  Put32(&data[0], static_cast<uint32_t>(data.size() - 8));
  return Response::Data(std::move(data), allocation);
}

Response ReportOpcodes(Command& command) {
  const bool timeouts = (command.cdb[2] & 0x80) != 0;
  const unsigned what = command.cdb[2] & 7;
  const uint8_t opcode = command.cdb[3];
  const int action = Get16(&command.cdb[4]);
  const uint32_t allocation = Get32(&command.cdb[6]);
  if (what == 0) return Response::Data(AllOpcodes(timeouts), allocation);
  if (what > 3) return Response::BadCdb(2, 2);
  bool known = false;
  const CommandRow* plain = FindCommand(opcode, -1, &known);
  const bool has_actions = known && plain == nullptr;
  const CommandRow* row = has_actions ? FindCommand(opcode, action, &known) : plain;
  // 1: an operation code without, 2: one with service actions; 3 takes both.
  if (what == 1 && has_actions) return Response::BadCdb(2, 2);
  if (what == 2 && known && !has_actions) return Response::BadCdb(2, 2);
  if (what == 3 && plain != nullptr && action != 0) row = nullptr;
  return Response::Data(OneOpcode(row, timeouts), allocation);
}

Response ReportTaskFunctions(Command& command) {
  const bool extended = (command.cdb[2] & 0x80) != 0;
  std::vector<uint8_t> data(extended ? 16 : 4);
  data[0] = 0xda;  // ABORT TASK, ABORT TASK SET, CLEAR TASK SET, LUN RESET, TARGET RESET
  if (extended) data[3] = 12;
  return Response::Data(std::move(data), Get32(&command.cdb[6]));
}

// Each portal is a group of its own, named by its node. All serve alike; one whose node is down
// says so. One that waits for the cluster is worse than others, but not unavailable: Linux would
// fail everything at once that it has for such a path, also if it is the only one, and would not
// look again by itself.
Response ReportPortGroups(Command& command) {
  const bool extended = (command.cdb[1] >> 5) == 1;
  std::vector<uint8_t> data(extended ? 8 : 4);
  if (extended) data[4] = 0x10;
  std::vector<PortalGroup> groups;
  const UnitOptions& options = command.unit->options();
  if (options.portal_groups) groups = options.portal_groups();
  if (groups.empty()) groups = {{command.nexus->portal_group, true}};
  for (const PortalGroup& group : groups) {
    const size_t at = data.size();
    data.resize(at + 12);
    // Unavailable, active/non-optimized or active/optimized.
    const bool here = group.tag == command.nexus->portal_group;
    data[at] = !group.reachable && !here ? 0x03 : group.waits ? 0x01 : 0x00;
    data[at + 1] = 0x0b;  // U_SUP, AN_SUP, AO_SUP: those three
    Put16(&data[at + 2], group.tag);
    data[at + 5] = 0x02;  // changed by itself: implicit
    data[at + 7] = 1;
    Put16(&data[at + 10], group.tag);
  }
  Put32(&data[0], static_cast<uint32_t>(data.size() - 4));
  return Response::Data(std::move(data), Get32(&command.cdb[6]));
}

}  // namespace hydra::iscsi
