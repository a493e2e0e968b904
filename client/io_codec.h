// SPDX-License-Identifier: Apache-2.0
//
// The messages of every read and write, an rpc::Request that is an rpc::Io and the rpc::Reply to
// it, as bytes and back. The bytes are protobuf's own, whoever made them; but protobuf is prepared
// for any message, and what that costs is much of what a small write costs. Here the common fields
// are read and written one after the other, and everything else is left to protobuf.
#pragma once

#include <string>
#include <string_view>

#include "client/protocol.pb.h"

namespace hydra {

// The bytes of an rpc::Request that is `io`.
std::string EncodeIo(const rpc::Io& io);

// False: these are not the bytes of a common rpc::Io, and protobuf may know what they are. `io` has
// any contents then.
bool DecodeIo(std::string_view request, rpc::Io* io);

std::string EncodeReply(const rpc::Reply& reply);

// False: they are not the bytes of any reply.
bool DecodeReply(std::string_view bytes, rpc::Reply* reply);

// What DecodeReply does first. False, as of DecodeIo: protobuf may know what they are.
bool DecodeCommonReply(std::string_view bytes, rpc::Reply* reply);

}  // namespace hydra
