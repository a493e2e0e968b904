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
#include "base/coding.h"
#include "base/crc32c.h"
#include "client/frame.h"
#include "client/io_codec.h"
#include "client/protocol.pb.h"

namespace {

using namespace hydra;  // NOLINT: a program of its own

// Whether it is one.
template <typename Message>
bool Parse(const std::string& bytes, Message* message) {
  if (!message->ParseFromString(bytes)) return false;
  Message again;
  HYDRA_CHECK(again.ParseFromString(message->SerializeAsString()));
  HYDRA_CHECK(again.SerializeAsString() == message->SerializeAsString());
  return true;
}

template <typename Message>
void Parse(const std::string& bytes) {
  Message message;
  Parse(bytes, &message);
}

// --- What the codec of reads and writes makes of them, against protobuf -------------------------

rpc::Io Encoded(const rpc::Io& io) {
  const std::string bytes = EncodeIo(io);
  rpc::Request request;
  HYDRA_CHECK(request.ParseFromString(bytes) && request.has_io());
  HYDRA_CHECK(request.SerializeAsString() == bytes);
  return request.io();
}

rpc::Reply Encoded(const rpc::Reply& reply) {
  const std::string bytes = EncodeReply(reply);
  rpc::Reply again;
  HYDRA_CHECK(again.ParseFromString(bytes) && again.SerializeAsString() == bytes);
  return again;
}

// Encoding leaves nothing out but fields that are not known. Protobuf writes those last and in the
// order in which they came: here, behind one more.
template <typename Message>
void CheckEncoding(const Message& message) {
  const std::string whole = message.SerializeAsString();
  const std::string known = Encoded(message).SerializeAsString();
  HYDRA_CHECK(whole.starts_with(known));
  std::string rest;
  PutVarint64(&rest, uint64_t{(1u << 29) - 1} << 3);
  PutVarint64(&rest, 1);
  rest += whole.substr(known.size());
  Message unknown;
  HYDRA_CHECK(unknown.ParseFromString(rest) && unknown.SerializeAsString() == rest);
}

void ParseRequest(const std::string& bytes) {
  rpc::Request request;
  const bool parsed = Parse(bytes, &request);
  rpc::Io io;
  if (DecodeIo(bytes, &io)) {
    HYDRA_CHECK(parsed && request.has_io());
    HYDRA_CHECK(io.SerializeAsString() == request.io().SerializeAsString());
  }
  if (parsed && request.has_io()) CheckEncoding(request.io());
}

void ParseReply(const std::string& bytes) {
  rpc::Reply expected;
  const bool parsed = Parse(bytes, &expected);
  rpc::Reply reply;
  HYDRA_CHECK(DecodeReply(bytes, &reply) == parsed);
  if (!parsed) return;
  HYDRA_CHECK(reply.SerializeAsString() == expected.SerializeAsString());
  CheckEncoding(reply);
}

void ParseAs(uint8_t kind, const std::string& bytes) {
  switch (kind % 6) {
    case 0: return ParseRequest(bytes);
    case 1: return ParseReply(bytes);
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
