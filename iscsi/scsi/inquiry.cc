// SPDX-License-Identifier: Apache-2.0
//
// INQUIRY: what this is, and its vital product data.
#include <algorithm>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "iscsi/pdu.h"
#include "iscsi/scsi/handlers.h"
#include "iscsi/scsi/unit.h"

namespace hydra::iscsi {
namespace {

constexpr uint64_t kOptimalTransferBytes = 1 << 20;

void PutText(std::string_view text, size_t width, uint8_t* to) {
  std::fill_n(to, width, ' ');
  std::copy_n(text.begin(), std::min(text.size(), width), to);
}

std::string Serial(Disk* disk) {
  std::string serial;
  for (const uint8_t byte : disk->identity().id) serial += fmt::format("{:02x}", byte);
  return serial;
}

std::vector<uint8_t> Standard(const Command& command) {
  std::vector<uint8_t> data(96);
  if (command.lun != 0) data[0] = 0x7f;  // no such unit, and no device could be there
  data[2] = 6;                           // SPC-4
  data[3] = 0x12;                        // HISUP, response data format 2
  data[4] = static_cast<uint8_t>(data.size() - 5);
  data[5] = 0x18;  // TPGS: implicit; 3PC: EXTENDED COPY
  const auto& groups = command.unit->options().portal_groups;
  if (groups && groups().size() > 1) data[6] = 0x10;  // MULTIP
  data[7] = 0x02;                                     // CMDQUE
  PutText("HYDRA", 8, &data[8]);
  PutText("VIRTUAL-DISK", 16, &data[16]);
  PutText("0001", 4, &data[32]);
  Put16(&data[58], 0x00a0);  // SAM-5
  Put16(&data[60], 0x0960);  // iSCSI
  Put16(&data[62], 0x0460);  // SPC-4
  Put16(&data[64], 0x04c0);  // SBC-3
  return data;
}

// --- Vital product data: each returns what follows the four bytes of header. ---

using Page = std::vector<uint8_t> (*)(const Command&);

std::vector<uint8_t> SerialPage(const Command& command) {
  const std::string serial = Serial(command.unit->disk());
  return {serial.begin(), serial.end()};
}

enum Association : uint8_t { kUnit = 0, kPort = 1, kDevice = 2 };
enum CodeSet : uint8_t { kBinary = 1, kAscii = 2, kUtf8 = 3 };

void Designate(Association association, uint8_t type, CodeSet codes, std::vector<uint8_t> value,
               std::vector<uint8_t>* page) {
  // Names of SCSI are ended by a NUL and padded to a multiple of four.
  if (type == 8) value.resize(value.size() + 4 - value.size() % 4);
  constexpr uint8_t kIscsi = 5;
  const bool port = association != kUnit;
  page->push_back(static_cast<uint8_t>((port ? kIscsi << 4 : 0) | codes));
  page->push_back(static_cast<uint8_t>((port ? 0x80 : 0) | association << 4 | type));
  page->push_back(0);
  page->push_back(static_cast<uint8_t>(value.size()));
  page->insert(page->end(), value.begin(), value.end());
}

std::vector<uint8_t> Bytes(std::string_view text) { return {text.begin(), text.end()}; }

std::vector<uint8_t> IdentificationPage(const Command& command) {
  const LogicalUnit& unit = *command.unit;
  const DiskIdentity& identity = command.unit->disk()->identity();
  const std::string& target = unit.options().target_name;
  const uint16_t group = command.nexus->portal_group;
  std::vector<uint8_t> page;
  // NAA 3: locally assigned, 60 bits.
  std::vector<uint8_t> naa(identity.id.begin(), identity.id.begin() + 8);
  for (size_t i = 0; i < naa.size(); ++i) naa[i] ^= identity.id[i + 8];
  naa[0] = static_cast<uint8_t>(0x30 | (naa[0] & 0x0f));
  Designate(kUnit, 3, kBinary, naa, &page);
  Designate(kUnit, 1, kAscii, Bytes("HYDRA   " + Serial(command.unit->disk())), &page);
  Designate(kUnit, 8, kUtf8, Bytes(target + ",L,0x0000000000000000"), &page);
  std::vector<uint8_t> number(4);
  Put16(&number[2], group);
  Designate(kPort, 4, kBinary, number, &page);  // relative target port
  Designate(kPort, 5, kBinary, number, &page);  // target port group
  Designate(kPort, 8, kUtf8, Bytes(fmt::format("{},t,0x{:04x}", target, group)), &page);
  Designate(kDevice, 8, kUtf8, Bytes(target), &page);
  return page;
}

std::vector<uint8_t> ExtendedPage(const Command&) {
  std::vector<uint8_t> page(60);
  page[1] = 0x07;  // HEADSUP, ORDSUP, SIMPSUP
  page[3] = 0x01;  // LUICLR
  return page;
}

// Mode page policy: what can be set of the control page (mode.cc) holds for the port it was set
// through, until that portal is started anew; all others are the same for everyone.
std::vector<uint8_t> ModePolicyPage(const Command&) {
  constexpr uint8_t kShared = 0;
  constexpr uint8_t kPerPort = 1;
  return {0x0a, 0x00, kPerPort, 0, 0x3f, 0xff, kShared, 0};
}

std::vector<uint8_t> BlockLimitsPage(const Command& command) {
  LogicalUnit& unit = *command.unit;
  const uint32_t block = unit.block();
  std::vector<uint8_t> bytes(0x40);
  uint8_t* page = bytes.data();  // from its header on, so that offsets are those of SBC-3
  page[5] = LogicalUnit::kMaxCompareBlocks;
  Put16(page + 6, static_cast<uint16_t>(unit.blocks_per_physical()));
  Put32(page + 8, static_cast<uint32_t>(LogicalUnit::kMaxTransferBytes / block));
  Put32(page + 12, static_cast<uint32_t>(kOptimalTransferBytes / block));
  Put32(page + 20, LogicalUnit::kMaxUnmapBlocks);
  Put32(page + 24, LogicalUnit::kMaxUnmapRanges);
  // Of larger ones it is not said. QEMU (7.2) would ask for the status of 2 GiB less 512 bytes
  // before it reads, and break off over that by itself; who is not told goes by the physical
  // blocks.
  if (block == 512) {
    Put32(page + 28, unit.blocks_per_physical());
    Put32(page + 32, 0x80000000);  // UGAVALID, alignment 0
  }
  Put64(page + 36, LogicalUnit::kMaxSameBlocks);
  // WRITE ATOMIC: at most, alignment, granularity.
  Put32(page + 44, LogicalUnit::kMaxAtomicBlocks);
  Put32(page + 48, unit.blocks_per_physical());
  Put32(page + 52, unit.blocks_per_physical());
  return {bytes.begin() + 4, bytes.end()};
}

std::vector<uint8_t> CharacteristicsPage(const Command&) {
  std::vector<uint8_t> page(60);
  Put16(&page[0], 1);  // does not rotate
  page[3] = 0x40;      // WABEREQ: what SANITIZE erased can be read
  return page;
}

std::vector<uint8_t> ProvisioningPage(const Command&) {
  // LBPU, LBPWS, LBPWS10, LBPRZ; thin.
  return {0, 0xe4, 2, 0};
}

struct VitalPage {
  uint8_t code;
  Page make;
};
std::vector<uint8_t> ListPage(const Command&);
constexpr VitalPage kVitalPages[] = {{0x00, ListPage},
                                     {0x80, SerialPage},
                                     {0x83, IdentificationPage},
                                     {0x86, ExtendedPage},
                                     {0x87, ModePolicyPage},
                                     {0xb0, BlockLimitsPage},
                                     {0xb1, CharacteristicsPage},
                                     {0xb2, ProvisioningPage}};

std::vector<uint8_t> ListPage(const Command&) {
  std::vector<uint8_t> codes;
  for (const VitalPage& row : kVitalPages) codes.push_back(row.code);
  return codes;
}

}  // namespace

Response Inquiry(Command& command) {
  const bool vital = (command.cdb[1] & 1) != 0;
  const uint8_t code = command.cdb[2];
  const uint16_t allocation = Get16(&command.cdb[3]);
  if (!vital) {
    if (code != 0) return Response::BadCdb(2);
    return Response::Data(Standard(command), allocation);
  }
  for (const VitalPage& row : kVitalPages) {
    if (row.code != code || command.lun != 0) continue;
    std::vector<uint8_t> data(4);
    const std::vector<uint8_t> page = row.make(command);
    data[1] = code;
    Put16(&data[2], static_cast<uint16_t>(page.size()));
    data.insert(data.end(), page.begin(), page.end());
    return Response::Data(std::move(data), allocation);
  }
  return Response::BadCdb(2);
}

}  // namespace hydra::iscsi
