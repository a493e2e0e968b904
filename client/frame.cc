// SPDX-License-Identifier: Apache-2.0
#include "client/frame.h"

#include <fmt/format.h>

#include "base/coding.h"
#include "base/crc32c.h"

namespace hydra {
namespace {

constexpr uint32_t kMagic = 0x31465948;  // "HYF1"
constexpr uint8_t kVersion = 1;
constexpr size_t kChecked = kFrameHeadBytes - 4;

}  // namespace

void EncodeFrameHead(FrameType type, uint64_t id, std::string_view header, uint32_t payload_bytes,
                     uint8_t* out) {
  EncodeFixed32(out, kMagic);
  out[4] = kVersion;
  out[5] = static_cast<uint8_t>(type);
  EncodeFixed16(out + 6, 0);
  EncodeFixed64(out + 8, id);
  EncodeFixed32(out + 16, static_cast<uint32_t>(header.size()));
  EncodeFixed32(out + 20, payload_bytes);
  EncodeFixed32(out + 24, Crc32c(AsBytes(header)));
  EncodeFixed32(out + 28, Crc32c(out, kChecked));
}

Result<FrameHead> DecodeFrameHead(std::span<const uint8_t> bytes, const FrameLimits& limits) {
  const uint8_t* const in = bytes.data();
  if (bytes.size() < kFrameHeadBytes || DecodeFixed32(in) != kMagic ||
      DecodeFixed32(in + kChecked) != Crc32c(in, kChecked)) {
    return Status::Corruption(
        "not a frame: the caller is no Hydra client or node, or bytes were lost");
  }
  FrameHead head;
  const uint8_t version = in[4];
  head.type = static_cast<FrameType>(in[5]);
  const uint16_t flags = DecodeFixed16(in + 6);
  head.id = DecodeFixed64(in + 8);
  head.header_bytes = DecodeFixed32(in + 16);
  head.payload_bytes = DecodeFixed32(in + 20);
  head.header_crc = DecodeFixed32(in + 24);
  if (version != kVersion || flags != 0) {
    return Status::Unsupported(
        fmt::format("a frame of version {}: this build speaks {}; upgrade it", version, kVersion));
  }
  if (head.header_bytes > limits.header_bytes || head.payload_bytes > limits.payload_bytes) {
    return Status::OutOfRange(fmt::format("a frame of {} + {} bytes: at most {} + {} are taken",
                                          head.header_bytes, head.payload_bytes,
                                          limits.header_bytes, limits.payload_bytes));
  }
  return head;
}

}  // namespace hydra
