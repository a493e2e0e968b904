// SPDX-License-Identifier: Apache-2.0
#include "daemon/member_plan.h"

#include <algorithm>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hydra::member_plan_test {
namespace {

using paxos::Member;
using paxos::Role;

// "1 2 3.2 4?": voters 1 and 2 of incarnation 1, voter 3 of incarnation 2, learner 4.
std::vector<Member> Members(const std::string& text) {
  std::vector<Member> members;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    Member member;
    if (word.back() == '?') {
      member.role = Role::kLearner;
      word.pop_back();
    }
    const size_t dot = word.find('.');
    member.id.node = static_cast<NodeId>(std::stoul(word));
    member.id.incarnation =
        dot == std::string::npos ? 1 : static_cast<uint32_t>(std::stoul(word.substr(dot + 1)));
    members.push_back(member);
  }
  return members;
}

std::string Text(std::vector<Member> members) {
  std::sort(members.begin(), members.end(),
            [](const Member& a, const Member& b) { return a.id < b.id; });
  std::string text;
  for (const Member& member : members) {
    if (!text.empty()) text += ' ';
    text += std::to_string(member.id.node);
    if (member.id.incarnation != 1) text += "." + std::to_string(member.id.incarnation);
    if (member.role == Role::kLearner) text += '?';
  }
  return text;
}

struct Case {
  const char* what;
  const char* config;
  const char* wanted;
  const char* alive;
  const char* near;  // learners
  NodeId master;
  const char* step;  // "done", "wait: part of the reason", "hand over to N", or the next members
  const char* gone = "";
  const char* behind = "";  // voters
};

std::string StepText(const MemberStep& step) {
  switch (step.kind) {
    case MemberStep::Kind::kDone: return "done";
    case MemberStep::Kind::kWait: return "wait: " + step.why;
    case MemberStep::Kind::kHandOver: return "hand over to " + std::to_string(step.to.node);
    case MemberStep::Kind::kChange: return Text(step.members);
  }
  return "";
}

MembersView ViewOf(const Case& c) {
  MembersView view;
  view.config = paxos::Config(7, Members(c.config));
  view.self = view.config.FindNode(c.master)->id;
  for (const Member& member : Members(c.alive)) view.alive.insert(member.id.node);
  for (const Member& member : Members(c.gone)) view.gone.insert(member.id.node);
  for (const Member& member : Members(c.near)) view.near.insert(member.id);
  for (const Member& member : Members(c.behind)) view.behind.insert(member.id);
  return view;
}

TEST(MemberPlan, EachCaseHasItsStep) {
  const Case cases[] = {
      {"as wanted", "1 2 3", "1 2 3", "1 2 3", "", 1, "done"},
      {"as wanted, one down", "1 2 3", "1 2 3", "1 2", "", 1, "done"},

      // A lost disk.
      {"lost: its place goes to the next incarnation", "1 2 3", "1 2.2 3", "1 3", "", 1,
       "1 2.2? 3"},
      {"lost: a learner that is lost again", "1 2.2? 3", "1 2.3 3", "1 3", "", 1, "1 2.3? 3"},
      {"lost: it is not there yet", "1 2.2? 3", "1 2.2 3", "1 3", "", 1,
       "wait: node 2 does not answer"},
      {"lost: it catches up", "1 2.2? 3", "1 2.2 3", "1 2 3", "", 1, "wait: node 2 catches up"},
      {"lost: it has caught up", "1 2.2? 3", "1 2.2 3", "1 2 3", "2.2", 1, "1 2.2 3"},
      {"lost: what an older incarnation reports does not count", "1 2.2? 3", "1 2.2 3", "1 2 3",
       "2", 1, "wait: node 2 catches up"},
      {"lost: another one is down as well", "1 2 3", "1 2.2 3", "1", "", 1,
       "wait: node 2 gets a new place: only 1 of the 2"},
      {"lost, of five", "1 2 3 4 5", "1 2.2 3 4 5", "1 3 4", "", 1, "1 2.2? 3 4 5"},
      {"lost: the master itself hands over", "1 2 3", "1.2 2 3", "1 2 3", "", 1, "hand over to 2"},
      {"lost: not while another one lacks blocks", "1 2 3", "1 2.2 3", "1 3", "", 1,
       "wait: node 2 goes when the others have all blocks: 1 of 2 do", "", "3"},
      {"lost: ... unless enough others have them", "1 2 3 4 5", "1 2.2 3 4 5", "1 3 4 5", "", 1,
       "1 2.2? 3 4 5", "", "3"},
      {"lost: ... but a fourth is added meanwhile", "1 2 3", "1 2.2 3 4", "1 3 4", "", 1,
       "1 2 3 4?", "", "3"},
      {"lost: ... and votes", "1 2 3 4?", "1 2.2 3 4", "1 3 4", "4", 1, "1 2 3 4", "", "3"},
      {"lost: ... which is enough", "1 2 3 4", "1 2.2 3 4", "1 3 4", "", 1, "1 2.2? 3 4", "", "3"},
      {"lost: the master hands over to one that has all blocks", "1 2 3", "1.2 2 3", "1 2 3", "", 1,
       "hand over to 3", "", "2"},
      {"the catalogue is older than the members", "1 2.3 3", "1 2.2 3", "1 2 3", "", 1,
       "wait: the catalogue here is older"},

      // A move: the new one votes before the old one leaves.
      {"move: a learner first", "1 2 3", "1 2 4", "1 2 3 4", "", 1, "1 2 3 4?"},
      {"move: then it catches up", "1 2 3 4?", "1 2 4", "1 2 3 4", "", 1,
       "wait: node 4 catches up"},
      {"move: then it votes", "1 2 3 4?", "1 2 4", "1 2 3 4", "4", 1, "1 2 3 4"},
      {"move: then the other leaves", "1 2 3 4", "1 2 4", "1 2 3 4", "", 1, "1 2 4"},
      {"move: ... not before the others have all blocks", "1 2 3 4", "1 2 4", "1 2 3 4", "", 1,
       "wait: node 3 goes when the others have all blocks: 1 of 3 do", "", "2 4"},
      {"move: the master leaves last", "1 2 3 4", "2 3 4", "1 2 3 4", "", 1, "hand over to 2"},
      {"move: who is silent for a moment stays until the other votes", "1 2 3", "1 2 4", "1 2 4",
       "", 1, "1 2 3 4?"},
      {"move: ... and stays while that one catches up", "1 2 3 4?", "1 2 4", "1 2 4", "", 1,
       "wait: node 4 catches up"},
      {"move: ... and leaves then", "1 2 3 4", "1 2 4", "1 2 4", "", 1, "1 2 4"},
      {"move: who has not answered for long leaves first", "1 2 3", "1 2 4", "1 2 4", "", 1, "1 2",
       "3"},
      {"move: where to is down", "1 2 3", "1 2 4", "1 2 3", "", 1, "wait: node 4 does not answer"},
      {"move: given up meanwhile", "1 2 3 4?", "1 2 3", "1 2 3 4", "4", 1, "1 2 3"},
      {"move of the only replica", "1", "2", "1 2", "", 1, "1 2?"},
      {"... which votes", "1 2?", "2", "1 2", "2", 1, "1 2"},
      {"... and takes over", "1 2", "2", "1 2", "", 1, "hand over to 2"},
      {"... and is alone", "1 2", "2", "1 2", "", 2, "2"},
      {"... but not onto a node that is down", "1 2", "2", "1", "", 1,
       "wait: the master is to leave"},

      // More and fewer.
      {"3 to 5: learners together", "1 2 3", "1 2 3 4 5", "1 2 3 4 5", "", 1, "1 2 3 4? 5?"},
      {"3 to 5: votes one by one", "1 2 3 4? 5?", "1 2 3 4 5", "1 2 3 4 5", "4 5", 1, "1 2 3 4 5?"},
      {"3 to 5: who is near does not wait for who is not", "1 2 3 4? 5?", "1 2 3 4 5", "1 2 3 4 5",
       "5", 1, "1 2 3 4? 5"},
      {"5 to 3: one by one", "1 2 3 4 5", "1 2 3", "1 2 3 4 5", "", 1, "1 2 3 5"},
      {"5 to 3: who is down first", "1 2 3 4 5", "1 2 3", "1 2 3 4", "", 1, "1 2 3 4"},
      {"5 to 3: not if too few of those who stay answer", "1 2 3 4", "1 2 3", "1 4 5", "", 1,
       "wait: node 4 stops voting: only 1 of the 3"},
      {"removed without a replacement", "1 2 3", "1 2", "1 2 3", "", 1, "1 2"},
      {"never to nobody", "1 2", "2", "1", "", 1, "wait: the master is to leave"},

      // Group 0: learners stay learners.
      {"system: a new node is a learner", "1 2 3", "1 2 3 4?", "1 2 3 4", "", 1, "1 2 3 4?"},
      {"system: and stays one", "1 2 3 4?", "1 2 3 4?", "1 2 3 4", "4", 1, "done"},
      {"system: a voter that drains, when another votes", "1 2 3 4?", "1 2 3? 4", "1 2 3 4", "4", 1,
       "1 2 3 4"},
      {"system: then it is a learner", "1 2 3 4", "1 2 3? 4", "1 2 3 4", "", 1, "1 2 3? 4"},
      {"system: then it is gone", "1 2 3? 4", "1 2 4", "1 2 3 4", "", 1, "1 2 4"},
  };
  for (const Case& c : cases) {
    const std::string step = StepText(NextMemberStep(Members(c.wanted), ViewOf(c)));
    const std::string expected = c.step;
    if (expected.starts_with("wait: ")) {
      EXPECT_THAT(step, testing::StartsWith(expected)) << c.what;
    } else {
      EXPECT_EQ(step, expected) << c.what;
    }
  }
}

TEST(MemberPlan, NothingWhileAChangeIsUnderWay) {
  Case c = {"", "1 2 3", "1 2.2 3", "1 3", "", 1, ""};
  MembersView view = ViewOf(c);
  view.changing = true;
  EXPECT_EQ(NextMemberStep(Members(c.wanted), view).kind, MemberStep::Kind::kWait);
}

// Whatever is wanted of whatever there is, with everyone there: each step changes one voter at
// most, and it ends at what is wanted.
TEST(MemberPlan, EveryPairOfMembershipsIsReachedBySafeSteps) {
  const char* all[] = {"1",         "1 2",         "1 2 3",       "2 3 4",
                       "1 2.2 3",   "3 4 5",       "4 5 6",       "1 2 3 4 5",
                       "2 3 4 5 6", "1 2 3 4? 5?", "1 2? 3? 4 5", "1.2 2.2 3.2"};
  for (const char* from : all) {
    for (const char* to : all) {
      const std::vector<Member> wanted = Members(to);
      paxos::Config config(1, Members(from));
      NodeId master = config.members().front().id.node;
      // Incarnations only grow.
      const bool older = std::any_of(wanted.begin(), wanted.end(), [&](const Member& member) {
        const Member* known = config.FindNode(member.id.node);
        return known != nullptr && known->id.incarnation > member.id.incarnation;
      });
      if (older) continue;
      int steps = 0;
      while (true) {
        ASSERT_LT(++steps, 40) << from << " to " << to << " at " << Text(config.members());
        MembersView view;
        view.config = config;
        view.self = config.FindNode(master)->id;
        for (NodeId node = 1; node <= 6; ++node) view.alive.insert(node);
        for (const Member& member : config.members()) {
          if (member.role == Role::kLearner) view.near.insert(member.id);
        }
        const MemberStep step = NextMemberStep(wanted, view);
        if (step.kind == MemberStep::Kind::kDone) break;
        // Nobody is left to hand over to when all have to be exchanged at once: their disks are
        // lost, and so is the group.
        if (step.kind == MemberStep::Kind::kWait) {
          EXPECT_THAT(step.why, testing::HasSubstr("nobody who stays"));
          EXPECT_THAT(to, testing::HasSubstr(".2"));
          break;
        }
        if (step.kind == MemberStep::Kind::kHandOver) {
          ASSERT_TRUE(config.IsVoter(step.to));
          ASSERT_NE(step.to.node, master);
          master = step.to.node;
          continue;
        }
        const paxos::Config next(config.instance() + 1, step.members);
        int changed = 0;
        for (const Member& member : config.members()) {
          changed += member.role == Role::kVoter && !next.IsVoter(member.id);
        }
        for (const Member& member : next.members()) {
          changed += member.role == Role::kVoter && !config.IsVoter(member.id);
        }
        ASSERT_LE(changed, 1) << Text(config.members()) << " -> " << Text(next.members());
        ASSERT_NE(next.FindNode(master), nullptr) << "a master never removes itself";
        config = next;
      }
    }
  }
}

}  // namespace
}  // namespace hydra::member_plan_test
