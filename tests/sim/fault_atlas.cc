// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/fault_atlas.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "base/rng.h"

namespace hydra::sim {
namespace {

size_t Quorum(const FaultAtlas::Members& members) { return members.size() / 2 + 1; }
size_t Spare(const FaultAtlas::Members& members) { return members.size() - Quorum(members); }

FaultAtlas::Members Leaving(const FaultAtlas::Members& from, const FaultAtlas::Members& to) {
  FaultAtlas::Members gone;
  std::set_difference(from.begin(), from.end(), to.begin(), to.end(),
                      std::inserter(gone, gone.end()));
  return gone;
}

uint64_t Mix(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
  TraceHash hash;
  for (const uint64_t word : {a, b, c, d}) hash.Add(word);
  hash.Add(0);  // the last word needs a round of its own to reach all bits
  return hash.value();
}

}  // namespace

// --- Permit ------------------------------------------------------------------------------------

FaultAtlas::Permit::Permit(FaultAtlas* atlas, NodeId node)
    : atlas_(atlas), node_(node), granted_(true) {
  ++atlas->permits_[node];
}

FaultAtlas::Permit::Permit(Permit&& other) noexcept { *this = std::move(other); }

FaultAtlas::Permit& FaultAtlas::Permit::operator=(Permit&& other) noexcept {
  if (this == &other) return *this;
  GiveBack();
  atlas_ = std::exchange(other.atlas_, nullptr);
  node_ = other.node_;
  granted_ = std::exchange(other.granted_, false);
  return *this;
}

FaultAtlas::Permit::~Permit() { GiveBack(); }

void FaultAtlas::Permit::Commit() {
  HYDRA_CHECK(granted_ && atlas_ != nullptr);
  atlas_->damaged_.insert(node_);
  ++atlas_->granted_;
  GiveBack();
  granted_ = true;
}

void FaultAtlas::Permit::GiveBack() {
  granted_ = false;
  if (atlas_ == nullptr) return;
  const auto out = atlas_->permits_.find(node_);
  if (--out->second == 0) atlas_->permits_.erase(out);
  atlas_ = nullptr;
}

// --- Groups ------------------------------------------------------------------------------------

FaultAtlas::FaultAtlas(uint64_t seed)
    : FaultAtlas(seed, static_cast<Mode>(Rng(seed ^ 0x61746c6173).Below(3))) {}

void FaultAtlas::AddGroup(Group group, Members members) {
  HYDRA_CHECK(!members.empty());
  GroupState state;
  const size_t spare = Spare(members);
  switch (mode_) {
    case Mode::kNodes: break;
    case Mode::kMixed: state.rot_replicas = spare / 2; break;
    case Mode::kPayloads: state.rot_replicas = spare; break;
  }
  state.rot_candidates = members;
  state.in_force.push_back(std::move(members));
  HYDRA_CHECK(groups_.emplace(group, std::move(state)).second);
}

void FaultAtlas::DropGroup(Group group) { HYDRA_CHECK(groups_.erase(group) == 1); }

bool FaultAtlas::BeginChange(Group id, const Members& members) {
  GroupState& group = groups_.at(id);
  const Members& present = group.in_force.front();
  if (group.in_force.size() > 1 || members.empty()) return false;
  if (members == present) return true;
  Members lacking = Lacking(group, present);
  const Members leaving = Leaving(present, members);
  HYDRA_CHECK(leaving.size() + Leaving(members, present).size() == 1);
  lacking.insert(leaving.begin(), leaving.end());
  if (lacking.size() + group.rot_replicas >= Quorum(present)) {
    ++refused_;
    return false;
  }
  // What is damaged may be lost yet: the new members must be able to go on without.
  const auto lost = std::count_if(members.begin(), members.end(),
                                  [this](const NodeId node) { return damaged(node); });
  if (!calm_ && static_cast<size_t>(lost) > Spare(members)) {
    ++refused_;
    return false;
  }
  // Whoever joins has to catch up first.
  for (const NodeId joining : Leaving(members, present)) group.behind.insert(joining);
  group.in_force.push_back(members);
  return true;
}

void FaultAtlas::ConfigChosen(Group id, const Members& members, const Members& complete) {
  GroupState& group = groups_.at(id);
  const auto& known = group.in_force;
  HYDRA_CHECK(std::find(known.begin(), known.end(), members) != known.end());
  group.in_force.assign(1, Members(members));
  group.behind = Leaving(members, complete);
}

void FaultAtlas::CaughtUp(Group id, NodeId node) { groups_.at(id).behind.erase(node); }

bool FaultAtlas::changing(Group id) const { return groups_.at(id).in_force.size() > 1; }

// --- Damage --------------------------------------------------------------------------------------

FaultAtlas::Permit FaultAtlas::Ask(NodeId node) {
  // What may be lost already cannot be lost again.
  if (damaged(node)) return Permit(this, node);
  for (const auto& [id, group] : groups_) {
    for (const Members& members : group.in_force) {
      if (!members.contains(node)) continue;
      Members lacking = Lacking(group, members);
      lacking.insert(node);
      if (lacking.size() + group.rot_replicas > Spare(members)) {
        ++refused_;
        return Permit();
      }
    }
  }
  return Permit(this, node);
}

bool FaultAtlas::MayRotPayload(NodeId node, Group id, uint64_t instance) const {
  const GroupState& group = groups_.at(id);
  if (!group.rot_candidates.contains(node)) return false;
  // The r candidates with the lowest lots.
  const uint64_t range = instance / kRotRange;
  const uint64_t lot = Mix(seed_, id, range, node);
  size_t before = 0;
  for (const NodeId other : group.rot_candidates) {
    const uint64_t theirs = Mix(seed_, id, range, other);
    if (theirs < lot || (theirs == lot && other < node)) ++before;
  }
  return before < group.rot_replicas;
}

void FaultAtlas::Repaired(NodeId node) { HYDRA_CHECK(damaged_.erase(node) == 1); }

FaultAtlas::Members FaultAtlas::Lacking(const GroupState& group, const Members& members) const {
  Members lacking;
  for (const NodeId node : members) {
    if (damaged(node) || group.behind.contains(node)) lacking.insert(node);
  }
  return lacking;
}

std::string FaultAtlas::Describe() const {
  static constexpr const char* kModes[] = {"nodes", "mixed", "payloads"};
  std::string text = fmt::format("faults on {}; damaged: {}\n", kModes[static_cast<int>(mode_)],
                                 fmt::join(damaged_, ","));
  for (const auto& [id, group] : groups_) {
    text += fmt::format("  group {}: voters {}, behind {}, payloads may rot on {}\n", id,
                        fmt::join(group.in_force.back(), ","), fmt::join(group.behind, ","),
                        group.rot_replicas);
  }
  return text;
}

}  // namespace hydra::sim
