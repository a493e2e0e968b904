// SPDX-License-Identifier: Apache-2.0
//
// Requests of clients as they come off the wire, made into what a shard takes, and back. Trusts
// nothing that came from outside.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "client/frame.h"
#include "client/protocol.pb.h"
#include "daemon/shard.h"

namespace hydra {

inline constexpr uint32_t kMaxIoPages = 256;  // of one request: an extent

// What a node takes from clients in one frame: an extent to compare with and one to write.
inline constexpr FrameLimits kClientFrameLimits = {.header_bytes = 64u << 10,
                                                   .payload_bytes = 2 * kMaxIoPages * kPageSize};

// `block_pages` is the group's. The request's id is left 0.
Result<ShardRequest> ToShardRequest(const rpc::Io& io, const Frame& frame, uint32_t block_pages);
ShardRequest ToShardRequest(const rpc::OpenSession& open);
ShardRequest ToShardRequest(const rpc::KeepAlive& keep);
ShardRequest ToShardRequest(const rpc::CloseSession& close);
ShardRequest ToShardRequest(const rpc::Fence& fence);

// Fills in what a shard answered; payload that goes with it is appended to `payload`.
void FillReply(const ShardReply& from, rpc::Reply* to, std::vector<BufferSlice>* payload);

}  // namespace hydra
