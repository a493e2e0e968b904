// SPDX-License-Identifier: Apache-2.0
#include "daemon/recovery_estimate.h"

#include <algorithm>

namespace hydra::ctl {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

uint64_t PerSecond(uint64_t amount, milliseconds time) {
  return amount * 1000 / static_cast<uint64_t>(std::max<int64_t>(1, time.count()));
}

// None: never, at this pace.
std::optional<seconds> TimeFor(uint64_t amount, uint64_t per_second) {
  if (amount == 0) return seconds(0);
  if (per_second == 0) return std::nullopt;
  return seconds((amount + per_second - 1) / per_second);
}

}  // namespace

std::map<uint32_t, NodeRecovery> EstimateRecovery(const RecoveryLook& before,
                                                  const RecoveryLook& now, milliseconds between) {
  std::map<uint32_t, NodeRecovery> nodes;
  std::map<uint32_t, uint64_t> bytes_gained;
  std::map<uint32_t, uint64_t> entries_gained;
  std::map<uint32_t, uint64_t> owed_gained;
  for (const auto& [key, replica] : now) {
    const auto [node, group] = key;
    const bool behind = replica.applied < replica.expected;
    const bool owed = !replica.installing && replica.owed_bytes > 0;
    if (!replica.installing && !behind && !owed) continue;
    NodeRecovery& sum = nodes[node];
    const auto found = before.find(key);
    if (replica.installing) {
      ++sum.installing;
      sum.have_bytes += std::min(replica.have_bytes, replica.of_bytes);
      sum.of_bytes += replica.of_bytes;
    } else if (behind) {
      ++sum.behind;
      sum.entries += replica.expected - replica.applied;
    }
    if (owed) {
      ++sum.owed;
      sum.owed_bytes += replica.owed_bytes;
    }
    if (found == before.end()) continue;
    const ReplicaProgress& was = found->second;
    if (replica.have_bytes > was.have_bytes && replica.installing) {
      bytes_gained[node] += replica.have_bytes - was.have_bytes;
    }
    if (owed && was.owed_bytes > replica.owed_bytes) {
      owed_gained[node] += was.owed_bytes - replica.owed_bytes;
    }
    if (replica.applied > was.applied && !replica.installing) {
      entries_gained[node] += replica.applied - was.applied;
    }
  }
  for (auto& [node, sum] : nodes) {
    sum.bytes_per_second = PerSecond(bytes_gained[node], between);
    sum.entries_per_second = PerSecond(entries_gained[node], between);
    sum.owed_per_second = PerSecond(owed_gained[node], between);
    const auto owed = TimeFor(sum.owed_bytes, sum.owed_per_second);
    const auto blocks = TimeFor(sum.of_bytes - sum.have_bytes, sum.bytes_per_second);
    const auto entries = TimeFor(sum.entries, sum.entries_per_second);
    // All blocks are there, and it is not at an end: it replaces those that changed.
    const bool unknown = sum.installing > 0 && sum.of_bytes == sum.have_bytes;
    if (blocks && entries && owed && !unknown) sum.left = std::max({*blocks, *entries, *owed});
  }
  return nodes;
}

}  // namespace hydra::ctl
