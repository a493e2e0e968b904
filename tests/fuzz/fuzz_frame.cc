// SPDX-License-Identifier: Apache-2.0
//
// Fuzzes what arrives on a socket: a frame's head, its header, and the messages that a header may
// be. The first byte says which message; the rest is a frame, or, with the top bit, a message
// without one.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/check.h"
#include "base/crc32c.h"
#include "client/frame.h"
#include "client/protocol.pb.h"

namespace {

using namespace hydra;  // NOLINT: a program of its own

template <typename Message>
void Parse(const std::string& bytes) {
  Message message;
  if (!message.ParseFromString(bytes)) return;
  Message again;
  HYDRA_CHECK(again.ParseFromString(message.SerializeAsString()));
  HYDRA_CHECK(again.SerializeAsString() == message.SerializeAsString());
}

void ParseAs(uint8_t kind, const std::string& bytes) {
  switch (kind % 6) {
    case 0: return Parse<rpc::Request>(bytes);
    case 1: return Parse<rpc::Reply>(bytes);
    case 2: return Parse<rpc::Catalogue>(bytes);
    case 3: return Parse<rpc::Hello>(bytes);
    case 4: return Parse<rpc::Welcome>(bytes);
    default: return Parse<rpc::Goodbye>(bytes);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const uint8_t kind = data[0];
  const std::span<const uint8_t> bytes(data + 1, size - 1);
  if ((kind & 0x80) != 0) {
    ParseAs(kind & 0x7f, {bytes.begin(), bytes.end()});
    return 0;
  }
  const FrameLimits limits = {.header_bytes = 4096, .payload_bytes = 65536};
  const Result<FrameHead> head =
      DecodeFrameHead(bytes.first(std::min(bytes.size(), kFrameHeadBytes)), limits);
  if (!head.ok()) return 0;
  HYDRA_CHECK(bytes.size() >= kFrameHeadBytes);
  HYDRA_CHECK(head->header_bytes <= limits.header_bytes);
  HYDRA_CHECK(head->payload_bytes <= limits.payload_bytes);
  if (bytes.size() - kFrameHeadBytes < head->header_bytes) return 0;
  const auto header = bytes.subspan(kFrameHeadBytes, head->header_bytes);
  if (Crc32c(header) != head->header_crc) return 0;
  const std::string text(header.begin(), header.end());
  // What was understood encodes to the same bytes.
  uint8_t again[kFrameHeadBytes];
  EncodeFrameHead(head->type, head->id, text, head->payload_bytes, again);
  HYDRA_CHECK(std::equal(again, again + kFrameHeadBytes, bytes.begin()));
  ParseAs(kind, text);
  return 0;
}
