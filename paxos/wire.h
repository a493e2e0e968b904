// SPDX-License-Identifier: Apache-2.0
//
// Messages and heartbeats as bytes (paxos.proto). Bodies are out of band: encoding lists them in
// order, decoding takes them in the same order. What a body's bytes are is the owner's business.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "paxos/lease_table.h"
#include "paxos/message.h"

namespace hydra::paxos {

// Limits of what is decoded, and with it of what is allocated. A promise lists at most the
// window and the backlog of a replica, about 6,000 entries of some 40 bytes.
inline constexpr size_t kMaxWireBytes = 2u << 20;
inline constexpr size_t kMaxWireElements = 32'768;  // of the list in a message
inline constexpr size_t kMaxWireCursor = 4096;

// Appends to `bytes`, and to `bodies` what has to follow them.
void EncodeMessage(const Message& message, std::string* bytes, std::vector<Body>* bodies);

// kCorruption: not a message, or not one that a correct peer sends. Whatever passes is safe to
// Step: lists are ordered, configurations are whole, every kind is known.
Result<Message> DecodeMessage(std::string_view bytes, std::span<const Body> bodies);

// The same, without the short cut for the messages of a write (write_wire.h).
void EncodeByProtobuf(const Message& message, std::string* bytes, std::vector<Body>* bodies);
Result<Message> DecodeByProtobuf(std::string_view bytes, std::span<const Body> bodies);

void EncodeHeartbeat(const Heartbeat& heartbeat, std::string* bytes);
Result<Heartbeat> DecodeHeartbeat(std::string_view bytes);

}  // namespace hydra::paxos
