// SPDX-License-Identifier: Apache-2.0
//
// The two messages that every write takes, Accept and Accepted, as the very bytes that protobuf
// makes of them (paxos.proto), without an object for each of their parts: those were a sixth of
// what a node did for a small write.
//
// Protobuf stays the judge. What is not in the form that is written here (fields in order, none
// unknown, no configuration) is left to it, and what is, means the same to both; tests and
// fuzz_paxos_wire hold them to that.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "paxos/message.h"

namespace hydra::paxos {

// False, and nothing is appended: not one of the two, or with a configuration among its entries.
bool EncodeWriteMessage(const Message& message, std::string* bytes, std::vector<Body>* bodies);

// Nothing: this is for protobuf to decode, or to refuse.
std::optional<Message> DecodeWriteMessage(std::string_view bytes, std::span<const Body> bodies);

}  // namespace hydra::paxos
