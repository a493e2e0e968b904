// SPDX-License-Identifier: Apache-2.0
#include "daemon/member_plan.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/probe.h"
#include "paxos/replica.h"

namespace hydra {
namespace {

using paxos::Config;
using paxos::Member;
using paxos::MemberId;
using paxos::Role;
using Kind = MemberStep::Kind;

class Planner {
 public:
  Planner(const std::vector<Member>& wanted, const MembersView& view)
      : wanted_(wanted), view_(view) {}

  MemberStep Next() {
    if (Same()) return {};
    if (view_.changing) return Wait("a change of members is being chosen");
    for (const auto rule : {&Planner::KnowsLess, &Planner::Exchange, &Planner::DropUseless,
                            &Planner::AddMissing, &Planner::Promote, &Planner::Demote}) {
      if (std::optional<MemberStep> step = (this->*rule)()) return *step;
    }
    return waits_for_.empty() ? MemberStep{} : Wait(waits_for_);
  }

 private:
  static MemberStep Wait(std::string why) { return {Kind::kWait, {}, {}, std::move(why)}; }

  bool Same() const {
    return wanted_.size() == view_.config.members().size() &&
           std::all_of(wanted_.begin(), wanted_.end(), [this](const Member& member) {
             const int at = view_.config.IndexOf(member.id);
             return at >= 0 && view_.config.members()[static_cast<size_t>(at)] == member;
           });
  }
  const Member* Wanted(NodeId node) const {
    for (const Member& member : wanted_) {
      if (member.id.node == node) return &member;
    }
    return nullptr;
  }
  bool Alive(NodeId node) const { return view_.alive.contains(node); }

  // The change, unless too few of those who vote then answer. (Whoever votes has to be asked.)
  MemberStep Change(std::vector<Member> members, const std::string& what) const {
    const Config next(0, members);
    size_t answer = 0;
    for (const Member& member : members) {
      if (member.role == Role::kVoter && Alive(member.id.node)) ++answer;
    }
    if (next.voters() == 0 || answer < next.majority()) {
      return Wait(
          fmt::format("{}: only {} of the {} that would vote answer", what, answer, next.voters()));
    }
    return {Kind::kChange, std::move(members), {}, what};
  }

  // Whoever votes may alone have what others are still to get.
  bool MayGo(const MemberId& id) {
    size_t others = 0;
    size_t near = 0;
    for (const Member& member : view_.config.members()) {
      if (member.role != Role::kVoter || member.id == id) continue;
      ++others;
      near += view_.behind.contains(member.id) ? 0 : 1;
    }
    const Member* member = view_.config.FindNode(id.node);
    if (member == nullptr || member->role != Role::kVoter || 2 * near > others) return true;
    HYDRA_PROBE("members: a voter waits for others before it goes");
    waits_for_ = fmt::format("node {} goes when the others have all blocks: {} of {} do", id.node,
                             near, others);
    return false;
  }

  // To one that will stay, and has all blocks if one has.
  MemberStep HandOver() const {
    const Member* best = nullptr;
    for (const Member& member : view_.config.members()) {
      const Member* wanted = Wanted(member.id.node);
      if (member.id.node == view_.self.node || member.role != Role::kVoter) continue;
      if (wanted == nullptr || wanted->id != member.id || wanted->role != Role::kVoter) continue;
      if (!Alive(member.id.node)) continue;
      if (best == nullptr || view_.behind.contains(member.id) < view_.behind.contains(best->id)) {
        best = &member;
      }
    }
    if (best == nullptr) return Wait("the master is to leave, and nobody who stays can take over");
    HYDRA_PROBE("members: a master that is to leave hands over");
    return {Kind::kHandOver, {}, best->id, "the master leaves"};
  }

  std::optional<MemberStep> KnowsLess() {
    for (const Member& member : view_.config.members()) {
      const Member* wanted = Wanted(member.id.node);
      if (wanted != nullptr && wanted->id.incarnation < member.id.incarnation) {
        return Wait("the catalogue here is older than the group's members");
      }
    }
    return std::nullopt;
  }

  std::optional<MemberStep> Exchange() {
    for (const Member& member : view_.config.members()) {
      const Member* wanted = Wanted(member.id.node);
      if (wanted == nullptr || wanted->id == member.id) continue;
      if (member.id.node == view_.self.node) return HandOver();
      if (!MayGo(member.id)) continue;
      std::vector<Member> members = view_.config.members();
      for (Member& m : members) {
        if (m.id == member.id) m = {wanted->id, Role::kLearner};
      }
      return Change(std::move(members), fmt::format("node {} gets a new place", member.id.node));
    }
    return std::nullopt;
  }

  std::vector<Member> Without(const MemberId& id) const {
    std::vector<Member> members = view_.config.members();
    std::erase_if(members, [&](const Member& member) { return member.id == id; });
    return members;
  }

  std::optional<MemberStep> DropUseless() {
    for (const Member& member : view_.config.members()) {
      if (Wanted(member.id.node) != nullptr || member.id.node == view_.self.node) continue;
      if (member.role == Role::kVoter && !view_.gone.contains(member.id.node)) continue;
      if (!MayGo(member.id)) continue;
      return Change(Without(member.id), fmt::format("node {} leaves", member.id.node));
    }
    return std::nullopt;
  }

  std::optional<MemberStep> AddMissing() {
    std::vector<Member> members = view_.config.members();
    const size_t before = members.size();
    std::string names;
    for (const Member& member : wanted_) {
      if (view_.config.FindNode(member.id.node) != nullptr) continue;
      if (!Alive(member.id.node)) {
        waits_for_ = fmt::format("node {} does not answer", member.id.node);
        continue;
      }
      if (members.size() == paxos::kMaxMembers) break;
      members.push_back({member.id, Role::kLearner});
      names += fmt::format("{}{}", names.empty() ? "" : ", ", member.id.node);
    }
    if (members.size() == before) return std::nullopt;
    return Change(std::move(members), fmt::format("node {} becomes a learner", names));
  }

  std::optional<MemberStep> Promote() {
    for (const Member& member : wanted_) {
      if (member.role != Role::kVoter || view_.config.IsVoter(member.id)) continue;
      if (view_.config.IndexOf(member.id) < 0) continue;
      if (!Alive(member.id.node)) {
        waits_for_ = fmt::format("node {} does not answer", member.id.node);
        continue;
      }
      if (!view_.near.contains(member.id)) {
        waits_for_ = fmt::format("node {} catches up", member.id.node);
        continue;
      }
      std::vector<Member> members = view_.config.members();
      for (Member& m : members) {
        if (m.id == member.id) m.role = Role::kVoter;
      }
      return Change(std::move(members), fmt::format("node {} becomes a voter", member.id.node));
    }
    return std::nullopt;
  }

  // Only when all who should vote do: fewer voters are no step towards more safety.
  std::optional<MemberStep> Demote() {
    for (const Member& member : wanted_) {
      if (member.role == Role::kVoter && !view_.config.IsVoter(member.id)) return std::nullopt;
    }
    bool self = false;
    const Member* next = nullptr;
    for (const Member& member : view_.config.members()) {
      const Member* wanted = Wanted(member.id.node);
      const bool stays = wanted != nullptr && wanted->role == Role::kVoter;
      if (member.role != Role::kVoter || stays) continue;
      if (member.id.node == view_.self.node) {
        self = true;
      } else if (next == nullptr || (Alive(next->id.node) && !Alive(member.id.node))) {
        next = &member;
      }
    }
    if (next != nullptr) {
      if (!MayGo(next->id)) return std::nullopt;
      std::vector<Member> members = Without(next->id);
      if (Wanted(next->id.node) != nullptr) members.push_back({next->id, Role::kLearner});
      return Change(std::move(members), fmt::format("node {} stops voting", next->id.node));
    }
    if (self) return HandOver();
    return std::nullopt;
  }

  const std::vector<Member>& wanted_;
  const MembersView& view_;
  std::string waits_for_;
};

}  // namespace

std::set<MemberId> NearLearners(const paxos::Replica& master) {
  std::set<MemberId> near;
  for (const Member& member : master.config().members()) {
    if (member.role == Role::kLearner && master.PeerIsWhole(member.id)) near.insert(member.id);
  }
  return near;
}

MemberStep NextMemberStep(const std::vector<Member>& wanted, const MembersView& view) {
  return Planner(wanted, view).Next();
}

MembersView ViewOf(const paxos::Replica& master, std::set<NodeId> alive, std::set<NodeId> gone) {
  MembersView view;
  view.self = master.options().self;
  view.config = master.config();
  view.changing = master.changing_members();
  view.alive = std::move(alive);
  view.gone = std::move(gone);
  view.near = NearLearners(master);
  for (const Member& member : view.config.members()) {
    const bool behind = member.role == Role::kVoter && !master.PeerIsWhole(member.id);
    if (behind) view.behind.insert(member.id);
  }
  return view;
}

bool IsCatchingUp(const std::vector<Member>& wanted, const Config& config) {
  return std::any_of(wanted.begin(), wanted.end(), [&](const Member& member) {
    return member.role == Role::kVoter && config.IndexOf(member.id) >= 0 &&
           !config.IsVoter(member.id);
  });
}

}  // namespace hydra
