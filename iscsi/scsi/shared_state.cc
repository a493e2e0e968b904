// SPDX-License-Identifier: Apache-2.0
#include "iscsi/scsi/shared_state.h"

#include "base/coding.h"

namespace hydra::iscsi {
namespace {

constexpr uint8_t kSharedVersion = 1;
constexpr size_t kSharedHead = 7;

}  // namespace

std::string SharedState::Encode() const {
  std::string bytes;
  PutU8(&bytes, kSharedVersion);
  PutFixed32(&bytes, resets);
  PutFixed16(&bytes, static_cast<uint16_t>(last_reset));
  return bytes + reservations.Encode();
}

Result<SharedState> SharedState::Decode(std::string_view bytes) {
  SharedState state;
  if (bytes.empty()) return state;
  Decoder decoder(AsBytes(bytes));
  uint8_t version = 0;
  uint16_t reset = 0;
  decoder.U8(&version);
  if (version != kSharedVersion) return Status::Unsupported("shared state of a newer version");
  decoder.Fixed32(&state.resets);
  if (!decoder.Fixed16(&reset) || bytes.size() == kSharedHead) {
    return Status::Corruption("this is no shared state");
  }
  state.last_reset = static_cast<Asc>(reset);
  HYDRA_ASSIGN_OR_RETURN(state.reservations, Reservations::Decode(bytes.substr(kSharedHead)));
  return state;
}

}  // namespace hydra::iscsi
