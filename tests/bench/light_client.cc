// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <random>

#include "tests/bench/light.h"

namespace hydra::light {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kVolumeBlocks = uint64_t{1} << 20;

// A request that can be sent again and again; its tag is its place in the client's list.
struct Slot {
  std::vector<uint8_t> message;
  Clock::time_point sent;
};

}  // namespace

ClientFigures RunClient(const Descriptor& leader, unsigned depth, double seconds) {
  std::mt19937_64 random(1);
  std::vector<Slot> slots(depth);
  for (Slot& slot : slots) {
    slot.message.resize(sizeof(Request) + kBlockBytes);
    for (uint8_t& byte : slot.message) byte = static_cast<uint8_t>(random());
  }
  uint64_t writes = 0;
  const auto send = [&](uint64_t tag) {
    Slot& slot = slots[tag];
    const Request request{tag, random() % kVolumeBlocks};
    std::memcpy(slot.message.data(), &request, sizeof(request));
    ++writes;  // in the block, so that no two are the same
    std::memcpy(slot.message.data() + sizeof(request), &writes, sizeof(writes));
    slot.sent = Clock::now();
    if (!SendAll(leader, slot.message.data(), slot.message.size())) Stop("the leader is gone");
  };

  uint64_t ready = 1;
  if (!ReadAll(leader, &ready, sizeof(ready)) || ready != 0) Stop("the leader did not start");
  ClientFigures figures;
  const double cpu_before = CpuSeconds();
  const auto begin = Clock::now();
  const auto end =
      begin + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  for (unsigned tag = 0; tag < depth; ++tag) send(tag);
  unsigned under_way = depth;
  std::vector<uint64_t> tags(depth);
  auto now = begin;
  while (under_way > 0) {
    const ssize_t got = read(leader.get(), tags.data(), tags.size() * sizeof(uint64_t));
    if (got <= 0 || got % sizeof(uint64_t) != 0) Stop("the leader is gone");
    now = Clock::now();
    for (size_t i = 0; i < static_cast<size_t>(got) / sizeof(uint64_t); ++i) {
      const std::chrono::duration<float, std::micro> took = now - slots[tags[i]].sent;
      figures.latency_us.push_back(took.count());
      --under_way;
      if (now >= end) continue;
      send(tags[i]);
      ++under_way;
    }
  }
  figures.seconds = std::chrono::duration<double>(now - begin).count();
  figures.cpu_seconds = CpuSeconds() - cpu_before;
  return figures;
}

}  // namespace hydra::light
