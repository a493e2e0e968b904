// SPDX-License-Identifier: Apache-2.0
#include "iscsi/scsi/sense.h"

#include "iscsi/pdu.h"

namespace hydra::iscsi {
namespace {

// Sense key specific bytes, SPC-4 4.5.2.4.2.
void PutField(const Sense::Field& field, uint8_t* to) {
  to[0] = static_cast<uint8_t>(0x80 | (field.in_cdb ? 0x40 : 0));
  if (field.bit < 8) to[0] = static_cast<uint8_t>(to[0] | 0x08 | field.bit);
  Put16(to + 1, field.byte);
}

// One of the two, if there is any.
bool PutSpecific(const Sense& sense, uint8_t* to) {
  if (sense.field) {
    PutField(*sense.field, to);
  } else if (sense.progress) {
    to[0] = 0x80;
    Put16(to + 1, *sense.progress);
  }
  return sense.field || sense.progress;
}

}  // namespace

std::vector<uint8_t> EncodeSense(const Sense& sense, bool descriptors) {
  const auto code = static_cast<uint16_t>(sense.asc);
  if (!descriptors) {
    std::vector<uint8_t> bytes(18);
    bytes[0] = 0x70;
    bytes[2] = static_cast<uint8_t>(sense.key);
    if (sense.information && *sense.information <= UINT32_MAX) {
      bytes[0] |= 0x80;
      Put32(&bytes[3], static_cast<uint32_t>(*sense.information));
    }
    bytes[7] = 10;
    Put16(&bytes[12], code);
    PutSpecific(sense, &bytes[15]);
    return bytes;
  }
  std::vector<uint8_t> bytes(8);
  bytes[0] = 0x72;
  bytes[1] = static_cast<uint8_t>(sense.key);
  Put16(&bytes[2], code);
  if (sense.information) {
    const size_t at = bytes.size();
    bytes.resize(at + 12);
    bytes[at + 1] = 10;
    bytes[at + 2] = 0x80;
    Put64(&bytes[at + 4], *sense.information);
  }
  std::vector<uint8_t> specific(8);
  specific[0] = 2;
  specific[1] = 6;
  if (PutSpecific(sense, &specific[4])) {
    bytes.insert(bytes.end(), specific.begin(), specific.end());
  }
  bytes[7] = static_cast<uint8_t>(bytes.size() - 8);
  return bytes;
}

}  // namespace hydra::iscsi
