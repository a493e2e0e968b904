// SPDX-License-Identifier: Apache-2.0
//
// What nodes say to each other as frames: a paxos::Message in the header, followed there by what
// describes its bodies (entries without payload, pieces of images), and all their payload behind
// it. Payload is never copied: it leaves from the buffers it arrived in.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "client/frame.h"
#include "daemon/node_core.h"

namespace hydra {

// What a node takes from its peers in one frame.
inline constexpr FrameLimits kPeerFrameLimits = {.header_bytes = 4u << 20,
                                                 .payload_bytes = 16u << 20};

struct PeerFrame {
  FrameType type = FrameType::kPeer;
  std::string header;
  std::vector<BufferSlice> payload;
  uint32_t payload_bytes = 0;
};

PeerFrame EncodePeerMessage(const PeerMessage& message);

// Trusts nothing. kCorruption: not what a correct peer sends.
Result<PeerMessage> DecodePeerMessage(const Frame& frame);

}  // namespace hydra
