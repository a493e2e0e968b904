// SPDX-License-Identifier: Apache-2.0
//
// Frames: how everything travels between processes. 32 bytes, a header of protobuf, raw payload.
//
//   0   4  "HYF1"              16  4  bytes of header
//   4   1  version (1)         20  4  bytes of payload
//   5   1  type                24  4  CRC32C of the header
//   6   2  flags (0)           28  4  CRC32C of bytes 0 to 27
//   8   8  id                  32     header, payload
//
// Numbers are little-endian. Payload has no checksum here: it is made of blocks, and theirs are in
// the header and stay with them to the disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/buffer.h"
#include "base/status.h"

namespace hydra {

// In the bytes: append only.
enum class FrameType : uint8_t {
  kHello = 1,      // rpc::Hello
  kWelcome = 2,    // rpc::Welcome
  kProof = 3,      // rpc::Proof
  kReady = 4,      // rpc::Ready
  kGoodbye = 5,    // rpc::Goodbye
  kRequest = 6,    // rpc::Request
  kReply = 7,      // rpc::Reply
  kPeer = 8,       // a paxos::Message and its bodies (daemon/peer_wire.h)
  kHeartbeat = 9,  // a paxos::Heartbeat
  kBlock = 10,     // a BlockMessage (daemon/block_message.h)
  kReport = 11,    // rpc::GroupReport, between nodes
  kUnfit = 12,     // rpc::Unfit, between nodes
  kOwed = 13,      // an OwedMessage (daemon/block_message.h)
};

inline constexpr size_t kFrameHeadBytes = 32;

struct FrameHead {
  FrameType type = FrameType::kHello;
  uint64_t id = 0;
  uint32_t header_bytes = 0;
  uint32_t payload_bytes = 0;
  uint32_t header_crc = 0;
};

// What a receiver takes. Checked before anything is allocated.
struct FrameLimits {
  uint32_t header_bytes = 64u << 10;
  uint32_t payload_bytes = 2u << 20;
};

// Writes kFrameHeadBytes bytes; `header` is what will follow them.
void EncodeFrameHead(FrameType type, uint64_t id, std::string_view header, uint32_t payload_bytes,
                     uint8_t* out);

// `bytes` are kFrameHeadBytes. kCorruption: not a frame. kUnsupported: of a newer version.
// kOutOfRange: longer than the limits.
Result<FrameHead> DecodeFrameHead(std::span<const uint8_t> bytes, const FrameLimits& limits);

// A frame that was received, its header checked.
struct Frame {
  FrameType type = FrameType::kHello;
  uint64_t id = 0;
  std::string header;
  Buffer payload;  // at least payload_bytes long, zeroes behind them up to a whole page
  uint32_t payload_bytes = 0;
  size_t charged = 0;  // what whoever received it counts against its sender until it is answered
};

}  // namespace hydra
