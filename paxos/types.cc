// SPDX-License-Identifier: Apache-2.0
#include "paxos/types.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace hydra::paxos {

Config::Config(Instance instance, std::vector<Member> members)
    : instance_(instance), members_(std::move(members)) {
  HYDRA_CHECK(members_.size() <= kMaxMembers);
  std::sort(members_.begin(), members_.end(),
            [](const Member& a, const Member& b) { return a.id < b.id; });
  for (size_t i = 0; i < members_.size(); ++i) {
    HYDRA_CHECK(i == 0 || members_[i - 1].id.node != members_[i].id.node);
    if (members_[i].role != Role::kVoter) continue;
    ++voters_;
    voter_mask_ |= 1u << i;
  }
}

int Config::IndexOf(const MemberId& id) const {
  for (size_t i = 0; i < members_.size(); ++i) {
    if (members_[i].id == id) return static_cast<int>(i);
  }
  return -1;
}

const Member* Config::FindNode(NodeId node) const {
  for (const Member& member : members_) {
    if (member.id.node == node) return &member;
  }
  return nullptr;
}

bool Config::IsVoter(const MemberId& id) const {
  const int index = IndexOf(id);
  return index >= 0 && members_[index].role == Role::kVoter;
}

bool Config::IsMajority(uint32_t bits) const {
  return static_cast<size_t>(std::popcount(bits & voter_mask_)) >= majority();
}

bool Config::MeetsEveryMajority(uint32_t bits) const {
  return static_cast<size_t>(std::popcount(bits & voter_mask_)) + majority() > voters_;
}

EntryMeta FenceEntry(const Ballot& ballot, Instance config) {
  EntryMeta meta;
  meta.fence = ballot;
  meta.fence_config = config;
  // Never 0, which is that of a no-op without one, and in practice no command's.
  meta.digest =
      ((ballot.round * 0x9e3779b97f4a7c15 + ballot.node) * 0x9e3779b97f4a7c15 + config) | 1;
  return meta;
}

}  // namespace hydra::paxos
