// SPDX-License-Identifier: Apache-2.0
//
// From the members that a group has to those that it should have, one safe step at a time. The
// master of the group takes the steps; whoever is master next goes on from what is chosen by then,
// so nothing of it has to be remembered.
//
// Pure: a function of what is wanted and of what the master sees.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "base/ids.h"
#include "paxos/types.h"

namespace hydra {

namespace paxos {
class Replica;
}

// A group as its master sees it.
struct MembersView {
  paxos::MemberId self;              // the master
  paxos::Config config;              // newest chosen
  bool changing = false;             // a change is on its way, or not settled
  std::set<NodeId> alive;            // nodes that answer, this one included
  std::set<NodeId> gone;             // ... that have not for so long that they hardly will
  std::set<paxos::MemberId> near;    // learners that have what the master has, or nearly
  std::set<paxos::MemberId> behind;  // voters that have not, or lack blocks
};

struct MemberStep {
  enum class Kind {
    kDone,      // the members are those that are wanted
    kWait,      // for what `why` says
    kChange,    // propose `members`
    kHandOver,  // to `to`, who then goes on
  };
  Kind kind = Kind::kDone;
  std::vector<paxos::Member> members = {};
  paxos::MemberId to = {};
  std::string why = {};
};

// The rules, in this order:
//   1. Nothing while a change is under way, and nothing against a later incarnation than is wanted:
//      then this master knows less than the group.
//   2. A replica whose place goes to a new incarnation of its node is exchanged for that, as a
//      learner, at once: its disk is lost.
//   3. Who is not wanted and does not vote, or has not answered for long, leaves at once. (Not who
//      is silent for a moment: with him the group would lose a copy that it has.)
//   4. Who is wanted and answers is added as a learner, and votes when it is near.
//   5. Who is wanted no more, or only as a learner, stops voting when all who should vote do; first
//      those who do not answer.
// No step leaves fewer voters that answer than a majority, and none takes a voter away while a
// majority of the others is behind; what does not have to wait for that is done meanwhile. A master
// that is to leave hands over first.
MemberStep NextMemberStep(const std::vector<paxos::Member>& wanted, const MembersView& view);

// Learners that could vote at once, as Replica::ProposeConfig judges it.
std::set<paxos::MemberId> NearLearners(const paxos::Replica& master);
// What the master of a group sees. `alive`: nodes that answer it, itself included.
MembersView ViewOf(const paxos::Replica& master, std::set<NodeId> alive, std::set<NodeId> gone);

// Whether a group has learners that shall vote: those catch up, and only so many groups should at a
// time.
bool IsCatchingUp(const std::vector<paxos::Member>& wanted, const paxos::Config& config);

}  // namespace hydra
