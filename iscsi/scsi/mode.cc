// SPDX-License-Identifier: Apache-2.0
//
// MODE SENSE and MODE SELECT. Two bits can be changed, both of the control page: SWP (software
// write protect) and D_SENSE (descriptor sense data). They are not saved.
#include <algorithm>

#include "iscsi/pdu.h"
#include "iscsi/scsi/handlers.h"
#include "iscsi/scsi/unit.h"

namespace hydra::iscsi {
namespace {

constexpr uint8_t kControl = 0x0a;
constexpr uint8_t kAllPages = 0x3f;
constexpr uint8_t kAllSubpages = 0xff;
constexpr uint8_t kDSense = 0x04;  // byte 2 of the control page
constexpr uint8_t kSwp = 0x08;     // byte 4

enum PageControl { kCurrent = 0, kChangeable = 1, kDefault = 2, kSaved = 3 };

std::vector<uint8_t> RecoveryPage(const LogicalUnit&, int) {
  return {0x01, 10, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0};  // AWRE, ARRE
}

std::vector<uint8_t> DisconnectPage(const LogicalUnit&, int) {
  std::vector<uint8_t> page(16);
  page[0] = 0x02;
  page[1] = 14;
  return page;
}

// No write cache (WCE 0): a write that was answered is durable.
std::vector<uint8_t> CachingPage(const LogicalUnit&, int) {
  std::vector<uint8_t> page(20);
  page[0] = 0x08;
  page[1] = 18;
  return page;
}

std::vector<uint8_t> ControlPage(const LogicalUnit& unit, int control) {
  std::vector<uint8_t> page(12);
  page[0] = kControl;
  page[1] = 10;
  if (control == kChangeable) {
    page[2] = kDSense;
    page[4] = kSwp;
    return page;
  }
  page[2] = 0x20;           // TST: one task set per nexus
  page[3] = 0x10;           // commands may be reordered; QERR 0
  Put16(&page[8], 0xffff);  // busy timeout: no limit
  if (control != kCurrent) return page;
  if (unit.descriptor_sense) page[2] |= kDSense;
  if (unit.write_protected) page[4] |= kSwp;
  return page;
}

std::vector<uint8_t> ExceptionsPage(const LogicalUnit&, int) {
  std::vector<uint8_t> page(12);
  page[0] = 0x1c;
  page[1] = 10;
  return page;
}

struct ModePage {
  uint8_t code;
  std::vector<uint8_t> (*make)(const LogicalUnit&, int control);
};
constexpr ModePage kModePages[] = {{0x01, RecoveryPage},
                                   {0x02, DisconnectPage},
                                   {0x08, CachingPage},
                                   {kControl, ControlPage},
                                   {0x1c, ExceptionsPage}};

// Only what can be changed is shown as such.
std::vector<uint8_t> MakePage(const ModePage& row, const LogicalUnit& unit, int control) {
  std::vector<uint8_t> page = row.make(unit, control);
  if (control == kChangeable && row.code != kControl) std::fill(page.begin() + 2, page.end(), 0);
  return page;
}

std::vector<uint8_t> BlockDescriptor(LogicalUnit& unit, bool wide) {
  std::vector<uint8_t> bytes(wide ? 16 : 8);
  if (wide) {
    Put64(&bytes[0], unit.blocks());
    Put32(&bytes[12], unit.block());
  } else {
    Put32(&bytes[0], static_cast<uint32_t>(std::min<uint64_t>(unit.blocks(), UINT32_MAX)));
    Put24(&bytes[5], unit.block());
  }
  return bytes;
}

}  // namespace

Response ModeSense(Command& command) {
  const bool six = command.opcode() == 0x1a;
  LogicalUnit& unit = *command.unit;
  const int control = command.cdb[2] >> 6;
  const uint8_t code = command.cdb[2] & 0x3f;
  const uint8_t subpage = command.cdb[3];
  if (control == kSaved)
    return Response::Check(SenseKey::kIllegalRequest, Asc::kSavingNotSupported);
  if (subpage != 0 && subpage != kAllSubpages) return Response::BadCdb(3);
  std::vector<uint8_t> pages;
  for (const ModePage& row : kModePages) {
    if (row.code != code && code != kAllPages) continue;
    const std::vector<uint8_t> page = MakePage(row, unit, control);
    pages.insert(pages.end(), page.begin(), page.end());
  }
  if (pages.empty()) return Response::BadCdb(2, 5);
  const bool no_descriptor = (command.cdb[1] & 0x08) != 0;
  const bool wide = !six && (command.cdb[1] & 0x10) != 0;
  const std::vector<uint8_t> blocks =
      no_descriptor ? std::vector<uint8_t>() : BlockDescriptor(unit, wide);

  std::vector<uint8_t> data(six ? 4 : 8);
  const uint8_t specific =
      static_cast<uint8_t>(0x10 | (unit.write_protected ? 0x80 : 0));  // DPOFUA
  const size_t length = data.size() + blocks.size() + pages.size();
  if (six) {
    data[0] = static_cast<uint8_t>(length - 1);
    data[2] = specific;
    data[3] = static_cast<uint8_t>(blocks.size());
  } else {
    Put16(&data[0], static_cast<uint16_t>(length - 2));
    data[3] = specific;
    data[4] = wide && !no_descriptor ? 1 : 0;
    Put16(&data[6], static_cast<uint16_t>(blocks.size()));
  }
  data.insert(data.end(), blocks.begin(), blocks.end());
  data.insert(data.end(), pages.begin(), pages.end());
  return Response::Data(std::move(data), six ? command.cdb[4] : Get16(&command.cdb[7]));
}

namespace {

// One page of a MODE SELECT: everything but the changeable bits has to be as it is.
std::optional<Response> SelectPage(LogicalUnit& unit, std::span<const uint8_t> page, uint16_t at,
                                   bool* changed) {
  const auto row =
      std::find_if(std::begin(kModePages), std::end(kModePages),
                   [&](const ModePage& known) { return known.code == (page[0] & 0x3f); });
  if (row == std::end(kModePages) || (page[0] & 0xc0) != 0) return Response::BadParameter(at);
  const std::vector<uint8_t> now = MakePage(*row, unit, kCurrent);
  const std::vector<uint8_t> may = MakePage(*row, unit, kChangeable);
  if (page.size() != now.size()) return Response::BadParameter(static_cast<uint16_t>(at + 1));
  for (size_t i = 2; i < page.size(); ++i) {
    if (((page[i] ^ now[i]) & ~may[i]) != 0) {
      return Response::BadParameter(static_cast<uint16_t>(at + i));
    }
  }
  if (row->code != kControl) return std::nullopt;
  const bool protect = (page[4] & kSwp) != 0;
  const bool descriptors = (page[2] & kDSense) != 0;
  *changed = *changed || protect != unit.write_protected || descriptors != unit.descriptor_sense;
  unit.write_protected = protect;
  unit.descriptor_sense = descriptors;
  return std::nullopt;
}

}  // namespace

Response ModeSelect(Command& command) {
  const bool six = command.opcode() == 0x15;
  if ((command.cdb[1] & 0x01) != 0) return Response::BadCdb(1, 0);  // SP: save
  if ((command.cdb[1] & 0x10) == 0) return Response::BadCdb(1, 4);  // PF
  const size_t length = six ? command.cdb[4] : Get16(&command.cdb[7]);
  if (length == 0) return Response::Good();
  const size_t head = six ? 4 : 8;
  if (command.out.size() < length || length < head) return Response::ParameterLength();
  const std::span<const uint8_t> list = command.out.first(length);
  const size_t descriptors = six ? list[3] : Get16(&list[6]);
  if (head + descriptors > length) return Response::ParameterLength();
  if (descriptors != 0) {
    const bool wide = !six && (list[4] & 1) != 0;
    const std::vector<uint8_t> now = BlockDescriptor(*command.unit, wide);
    if (descriptors != now.size()) return Response::BadParameter(six ? 3 : 6);
    // The number of blocks may be left to us; their length cannot be changed.
    const size_t at = wide ? 12 : 5;
    if (!std::equal(now.begin() + static_cast<ptrdiff_t>(at), now.end(), &list[head + at])) {
      return Response::BadParameter(static_cast<uint16_t>(head + at));
    }
  }
  bool changed = false;
  for (size_t at = head + descriptors; at < length;) {
    if (length - at < 2 || length - at < 2u + list[at + 1]) return Response::ParameterLength();
    const size_t page = 2u + list[at + 1];
    if (auto refused = SelectPage(*command.unit, list.subspan(at, page), static_cast<uint16_t>(at),
                                  &changed)) {
      return *refused;
    }
    at += page;
  }
  if (changed) command.unit->Attention(Asc::kModeParametersChanged, command.nexus);
  return Response::Good().Moves(length);
}

}  // namespace hydra::iscsi
