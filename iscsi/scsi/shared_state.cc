// SPDX-License-Identifier: Apache-2.0
#include "iscsi/scsi/shared_state.h"

#include "base/check.h"
#include "base/coding.h"

namespace hydra::iscsi {
namespace {

constexpr uint8_t kSharedVersion = 1;
constexpr uint8_t kSanitizeVersion = 2;

}  // namespace

std::string SharedState::Encode() const {
  std::string bytes;
  const bool sanitizes = sanitize.phase != SanitizeState::Phase::kNone;
  PutU8(&bytes, sanitizes ? kSanitizeVersion : kSharedVersion);
  if (sanitizes) {
    PutU8(&bytes, static_cast<uint8_t>(sanitize.phase));
    PutU8(&bytes, sanitize.may_exit ? 1 : 0);
    PutFixed64(&bytes, sanitize.key);
  }
  PutFixed32(&bytes, resets);
  PutFixed16(&bytes, static_cast<uint16_t>(last_reset));
  HYDRA_CHECK(reserved_by.size() <= Reservations::kMaxNexusBytes);
  PutU8(&bytes, static_cast<uint8_t>(reserved_by.size()));
  bytes += reserved_by;
  return bytes + reservations.Encode();
}

Result<SharedState> SharedState::Decode(std::string_view bytes) {
  SharedState state;
  if (bytes.empty()) return state;
  Decoder decoder(AsBytes(bytes));
  uint8_t version = 0;
  uint16_t reset = 0;
  decoder.U8(&version);
  if (version != kSharedVersion && version != kSanitizeVersion) {
    return Status::Unsupported("shared state of a newer version");
  }
  if (version == kSanitizeVersion) {
    uint8_t phase = 0;
    uint8_t may_exit = 0;
    decoder.U8(&phase);
    decoder.U8(&may_exit);
    decoder.Fixed64(&state.sanitize.key);
    if (phase < 1 || phase > 2 || may_exit > 1) {
      return Status::Corruption("this is no state of a SANITIZE");
    }
    state.sanitize.phase = static_cast<SanitizeState::Phase>(phase);
    state.sanitize.may_exit = may_exit != 0;
  }
  decoder.Fixed32(&state.resets);
  decoder.Fixed16(&reset);
  uint8_t length = 0;
  std::span<const uint8_t> holder;
  decoder.U8(&length);
  if (!decoder.Bytes(length, &holder) || decoder.remaining() == 0) {
    return Status::Corruption("this is no shared state");
  }
  state.last_reset = static_cast<Asc>(reset);
  state.reserved_by.assign(holder.begin(), holder.end());
  HYDRA_ASSIGN_OR_RETURN(state.reservations,
                         Reservations::Decode(bytes.substr(bytes.size() - decoder.remaining())));
  return state;
}

}  // namespace hydra::iscsi
