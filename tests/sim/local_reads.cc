// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/local_reads.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/check.h"

namespace hydra::sim {
namespace {

constexpr unsigned kOperationBits = 16;

std::string VersionText(uint64_t version) {
  return fmt::format("{}.{}", version >> kOperationBits, version & ((1u << kOperationBits) - 1));
}

}  // namespace

void LocalReads::Chosen(Group group, uint64_t instance, const std::vector<Effect>& effects) {
  uint64_t& last = chosen_[group];
  HYDRA_CHECK(instance > last);
  last = instance;
  for (const Effect& effect : effects) {
    HYDRA_CHECK(effect.version >> kOperationBits == instance);
    HYDRA_CHECK(versions_[effect.block].emplace(effect.version, effect.value).second);
  }
}

uint64_t LocalReads::chosen(Group group) const {
  const auto found = chosen_.find(group);
  return found == chosen_.end() ? 0 : found->second;
}

std::string LocalReads::Observe(const Observation& read) {
  ++observations_;
  const auto problem = [&](const std::string& what) {
    return fmt::format("local read at replica {}, session {}, group {}: {}", read.replica,
                       read.session, read.group, what);
  };
  if (read.as_of.has_value()) {
    if (*read.as_of > chosen_[read.group]) {
      return problem(fmt::format("as of instance {}, but only {} are chosen", *read.as_of,
                                 chosen_[read.group]));
    }
    uint64_t& before = seen_as_of_[{read.replica, read.session, read.group}];
    if (*read.as_of < before) {
      return problem(fmt::format("as of instance {}, after one as of {}", *read.as_of, before));
    }
    before = *read.as_of;
  }
  for (const Seen& seen : read.blocks) {
    std::string what = CheckBlock(read, seen);
    if (what.empty() && read.as_of.has_value()) what = CheckAsOf(read, seen);
    if (!what.empty()) return problem(fmt::format("block {}: {}", seen.block, what));
  }
  return "";
}

std::string LocalReads::CheckBlock(const Observation& read, const Seen& seen) {
  const std::map<Version, Value>& versions = versions_[seen.block];
  Version& before = seen_version_[{read.replica, read.session, seen.block}];
  if (seen.version != 0) {
    const auto chosen = versions.find(seen.version);
    if (chosen == versions.end()) {
      return fmt::format("version {} is not chosen", VersionText(seen.version));
    }
    if (chosen->second != seen.value) {
      return fmt::format("version {} is {}, not {}", VersionText(seen.version), chosen->second,
                         seen.value);
    }
    if (seen.version < before) {
      return fmt::format("version {} after version {}", VersionText(seen.version),
                         VersionText(before));
    }
    before = seen.version;
    return "";
  }
  if (seen.value != kAbsent) return fmt::format("{} without a version", seen.value);
  // Absent, we do not know since when: the earliest time it can be, not before what was seen.
  if (before == 0) return "";
  for (auto it = versions.find(before); it != versions.end(); ++it) {
    if (it->second != kAbsent) continue;
    before = it->first;
    return "";
  }
  return fmt::format("absent after version {}, and not deleted since", VersionText(before));
}

// Exactly what an ideal replica would show that has applied this much, or anything up to `until`.
std::string LocalReads::CheckAsOf(const Observation& read, const Seen& seen) const {
  const std::map<Version, Value>& versions = versions_.at(seen.block);
  const auto above = versions.lower_bound((*read.as_of + 1) << kOperationBits);
  const Value value = above == versions.begin() ? kAbsent : std::prev(above)->second;
  const Version version = above == versions.begin() ? 0 : std::prev(above)->first;
  const auto matches = [&](Version version, Value value) {
    return seen.value == value && (seen.version == 0 || seen.version == version);
  };
  if (matches(version, value)) return "";
  for (auto it = above; it != versions.end() && it->first >> kOperationBits <= read.until; ++it) {
    if (matches(it->first, it->second)) return "";
  }
  return fmt::format("{} (version {}) as of instance {}, which left {} (version {})", seen.value,
                     VersionText(seen.version), *read.as_of, value, VersionText(version));
}

}  // namespace hydra::sim
