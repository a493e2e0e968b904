// SPDX-License-Identifier: Apache-2.0
//
// Fuzzes what comes from peers. The first byte says what the rest is: 0 a heartbeat, else a message
// followed by so many bodies less one. What is understood must encode to the same thing again, and
// a lease table must survive it.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "paxos/lease_table.h"
#include "paxos/message.h"
#include "paxos/wire.h"
#include "paxos/write_wire.h"

namespace {

using namespace hydra;         // NOLINT: a program of its own
using namespace hydra::paxos;  // NOLINT

void FuzzHeartbeat(std::string_view bytes) {
  const Result<Heartbeat> decoded = DecodeHeartbeat(bytes);
  if (!decoded.ok()) return;
  std::string again;
  EncodeHeartbeat(*decoded, &again);
  HYDRA_CHECK(DecodeHeartbeat(again).ok());

  LeaseTable::Options options;
  options.node = 1;
  options.boot = 1;
  LeaseTable table(options);
  table.SetPeers({2, 3}, kSecond);
  std::vector<Heartbeat> out;
  std::vector<std::pair<NodeId, Notice>> notices;
  table.Tick(kSecond, &out);
  for (int i = 0; i < 2; ++i) table.Step(*decoded, 2 * kSecond, &out, &notices);
}

std::string Bytes(const Message& message) {
  std::string bytes;
  std::vector<Body> bodies;
  EncodeByProtobuf(message, &bytes, &bodies);
  return bytes;
}

void FuzzMessage(std::string_view bytes, size_t count) {
  const std::vector<Body> bodies(count, std::make_shared<const int>(1));
  const Result<Message> decoded = DecodeMessage(bytes, bodies);
  if (const auto read = DecodeWriteMessage(bytes, bodies)) {  // means the same to protobuf
    const Result<Message> by_protobuf = DecodeByProtobuf(bytes, bodies);
    HYDRA_CHECK(by_protobuf.ok() && Bytes(*by_protobuf) == Bytes(*read));
  }
  if (!decoded.ok()) return;
  HYDRA_CHECK(!Describe(*decoded).empty());
  std::string again;
  std::vector<Body> bodies_again;
  EncodeMessage(*decoded, &again, &bodies_again);
  HYDRA_CHECK(bodies_again == bodies && again == Bytes(*decoded));
  const Result<Message> twice = DecodeMessage(again, bodies_again);
  HYDRA_CHECK(twice.ok() && Describe(*twice) == Describe(*decoded));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] == 0) {
    FuzzHeartbeat(bytes);
  } else {
    FuzzMessage(bytes, data[0] - 1u);
  }
  return 0;
}
