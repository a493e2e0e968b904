// SPDX-License-Identifier: Apache-2.0
//
// Changes of members, through the log, one at a time.
#include <gtest/gtest.h>

#include "tests/paxos/cranked.h"
#include "tests/support/gtest_status.h"

namespace hydra::paxos::test {
namespace {

Cluster::Options Spare(int nodes, int voters) {
  Cluster::Options options;
  options.nodes = nodes;
  options.voters = voters;
  return options;
}

void ElectAndWait(Cluster* c) {
  c->Elect(1);
  c->Pass(100 * kMs, true);
}

TEST(Members, ALearnerIsAddedCatchesUpAndIsPromoted) {
  Cluster c(Spare(4, 3));
  ElectAndWait(&c);
  for (const char* entry : {"a", "b"}) ASSERT_OK(c.Propose(1, entry).status());
  c.Settle();
  ASSERT_OK(c.Reconfigure(1, {c.Voter(1), c.Voter(2), c.Voter(3), c.Learner(4)}));
  c.Settle();
  EXPECT_EQ(c[1].config().voters(), 3u);
  EXPECT_FALSE(c[4].IsVoter());
  c.Pass(kSecond, true);
  EXPECT_EQ(c.Log(4), "n a b {1 2 3 4l} n");
  EXPECT_EQ(c[1].PeerApplied(c.Id(4)), 5u);
  ASSERT_OK(c.Reconfigure(1, {c.Voter(1), c.Voter(2), c.Voter(3), c.Voter(4)}));
  c.Settle();
  c.Pass(100 * kMs, true);
  EXPECT_EQ(c[4].config().voters(), 4u);
  EXPECT_TRUE(c[4].IsVoter());
}

TEST(Members, ALearnersAcceptanceDoesNotCount) {
  Cluster c(Spare(4, 3));
  ElectAndWait(&c);
  ASSERT_OK(c.Reconfigure(1, {c.Voter(1), c.Voter(2), c.Voter(3), c.Learner(4)}));
  c.Settle();
  c.Pass(kSecond, true);
  const Instance before = c[1].commit();
  ASSERT_OK(c.Propose(1, "a").status());
  c.Deliver("1>4 Accept");
  c.Deliver("4>1 Accepted");
  EXPECT_EQ(c[1].commit(), before);
}

TEST(Members, ALearnerThatIsFarBehindIsNotPromoted) {
  Cluster::Options options = Spare(4, 3);
  options.replica.window_instances = 4;
  Cluster c(options);
  ElectAndWait(&c);
  ASSERT_OK(c.Reconfigure(1, {c.Voter(1), c.Voter(2), c.Voter(3), c.Learner(4)}));
  c.Settle();
  c.Pass(kSecond, true);
  c.Cut(4);
  for (int i = 0; i < 10; ++i) {
    ASSERT_OK(c.Propose(1, "e" + std::to_string(i)).status());
    c.Settle();
  }
  EXPECT_CODE(c.Reconfigure(1, {c.Voter(1), c.Voter(2), c.Voter(3), c.Voter(4)}),
              Code::kFailedPrecondition);
}

TEST(Members, ALearnerThatWasNeverHeardOfIsNotPromoted) {
  Cluster c(Spare(4, 3));
  ElectAndWait(&c);
  c.Cut(4);
  ASSERT_OK(c.Reconfigure(1, {c.Voter(1), c.Voter(2), c.Voter(3), c.Learner(4)}));
  c.Settle();
  c.Pass(kSecond, true);
  EXPECT_CODE(c.Reconfigure(1, {c.Voter(1), c.Voter(2), c.Voter(3), c.Voter(4)}),
              Code::kFailedPrecondition);
  c.Heal(4);
  c.Pass(kSecond, true);
  EXPECT_OK(c.Reconfigure(1, {c.Voter(1), c.Voter(2), c.Voter(3), c.Voter(4)}));
}

// It says so with its next message, and is asked until it is not so any more.
void SetOwes(Cluster* c, int node, bool owes) {
  (*c)[node].SetOwes(owes);
  if (owes) {
    EXPECT_OK(c->Propose(1, "owes").status());
  }
  c->Settle();
  c->Pass(kSecond, true);
}

TEST(Members, ALearnerThatIsOwedBlocksIsNotPromoted) {
  Cluster c(Spare(4, 3));
  ElectAndWait(&c);
  c[4].SetOwes(true);
  ASSERT_OK(c.Reconfigure(1, {c.Voter(1), c.Voter(2), c.Voter(3), c.Learner(4)}));
  c.Settle();
  c.Pass(kSecond, true);
  EXPECT_EQ(c[1].PeerApplied(c.Id(4)), c[1].commit());
  const std::vector<Member> promoted = {c.Voter(1), c.Voter(2), c.Voter(3), c.Voter(4)};
  EXPECT_CODE(c.Reconfigure(1, promoted), Code::kFailedPrecondition);
  SetOwes(&c, 4, false);
  EXPECT_OK(c.Reconfigure(1, promoted));
}

TEST(Members, NoVoterGoesBeforeAMajorityOfTheOthersHasAllBlocks) {
  Cluster c(3);
  ElectAndWait(&c);
  SetOwes(&c, 2, true);
  EXPECT_FALSE(c[1].PeerIsWhole(c.Id(2)));
  EXPECT_TRUE(c[1].PeerIsWhole(c.Id(3)));
  // What 2 is owed may be on 1 and 3 alone: without 3 one copy would be left.
  EXPECT_CODE(c.Reconfigure(1, {c.Voter(1), c.Voter(2)}), Code::kFailedPrecondition);
  SetOwes(&c, 2, false);
  EXPECT_TRUE(c[1].PeerIsWhole(c.Id(2)));
  EXPECT_OK(c.Reconfigure(1, {c.Voter(1), c.Voter(2)}));
}

TEST(Members, WhoIsOwedBlocksMayGoItself) {
  Cluster c(3);
  ElectAndWait(&c);
  SetOwes(&c, 2, true);
  EXPECT_OK(c.Reconfigure(1, {c.Voter(1), c.Voter(3)}));
}

TEST(Members, AMasterThatIsOwedBlocksLetsNobodyGoThatMayHaveThem) {
  Cluster c(3);
  ElectAndWait(&c);
  c[1].SetOwes(true);
  EXPECT_CODE(c.Reconfigure(1, {c.Voter(1), c.Voter(2)}), Code::kFailedPrecondition);
  c[1].SetOwes(false);
  EXPECT_OK(c.Reconfigure(1, {c.Voter(1), c.Voter(2)}));
}

TEST(Members, AVoterThatIsAwayDoesNotCountAsWhole) {
  Cluster::Options options = Spare(3, 3);
  options.replica.window_instances = 4;
  Cluster c(options);
  ElectAndWait(&c);
  c.Cut(3);
  for (int i = 0; i < 10; ++i) {
    ASSERT_OK(c.Propose(1, "e" + std::to_string(i)).status());
    c.Settle();
  }
  EXPECT_CODE(c.Reconfigure(1, {c.Voter(1), c.Voter(3)}), Code::kFailedPrecondition);
  EXPECT_OK(c.Reconfigure(1, {c.Voter(1), c.Voter(2)}));
}

TEST(Members, AnIncarnationThatWasReplacedDoesNotComeBack) {
  Cluster c(3);
  ElectAndWait(&c);
  ASSERT_OK(c.Reconfigure(1, {c.Voter(1), c.Voter(2), {{3, 2}, Role::kLearner}}));
  c.Settle();
  EXPECT_CODE(c.Reconfigure(1, {c.Voter(1), c.Voter(2), {{3, 1}, Role::kLearner}}),
              Code::kInvalidArgument);
}

// It was created for a place that had been given to its successor by then.
TEST(Members, AReplicaThatNobodySpeaksToLearnsOfItsSuccessor) {
  Cluster c(Spare(4, 3));
  ElectAndWait(&c);
  c.Cut(4);
  ASSERT_OK(c.Reconfigure(1, {c.Voter(1), c.Voter(2), c.Voter(3), {{4, 2}, Role::kLearner}}));
  c.Settle();
  EXPECT_EQ(c[4].config().FindNode(4), nullptr);
  c.Heal(4);
  c.Pass(2 * kSecond, true);
  ASSERT_NE(c[4].config().FindNode(4), nullptr);
  EXPECT_EQ(c[4].config().FindNode(4)->id.incarnation, 2u);
}

TEST(Members, OneChangeAtATimeOfOneVoter) {
  Cluster c(Spare(5, 3));
  ElectAndWait(&c);
  EXPECT_CODE(c.Reconfigure(1, {c.Voter(1)}), Code::kInvalidArgument);
  EXPECT_CODE(c.Reconfigure(1, {c.Learner(1)}), Code::kInvalidArgument);
  EXPECT_CODE(c.Reconfigure(1, {c.Voter(1), c.Voter(2), c.Voter(2)}), Code::kInvalidArgument);
  EXPECT_CODE(c.Reconfigure(2, {c.Voter(1), c.Voter(2)}), Code::kUnavailable);
  ASSERT_OK(c.Reconfigure(1, {c.Voter(1), c.Voter(2), c.Voter(3), c.Learner(4)}));
  EXPECT_CODE(c.Reconfigure(1, {c.Voter(1), c.Voter(2)}), Code::kBusy);
  c.Settle();
  EXPECT_OK(c.Reconfigure(1, {c.Voter(1), c.Voter(2), c.Learner(4)}));
}

TEST(Members, AConfigurationIsABarrier) {
  Cluster c(Spare(4, 3));
  ElectAndWait(&c);
  ASSERT_OK(c.Propose(1, "a").status());
  c.Drop("1>3");
  ASSERT_OK(c.Reconfigure(1, {c.Voter(1), c.Voter(2), c.Voter(3), c.Learner(4)}));
  EXPECT_EQ(c.Pending(), "1>2 Accept (1,1) commit 1: 2\n");  // a first
  EXPECT_CODE(c.Propose(1, "b").status(), Code::kBusy);
  c.Deliver("1>2 Accept");
  c.Deliver("2>1 Accepted");
  EXPECT_EQ(c.Pending(), Lines(R"(
    1>2 Accept (1,1) commit 2: 3c
    1>3 Accept (1,1) commit 2: 3c
    1>4 Accept (1,1) commit 2: 3c
  )"));
  EXPECT_CODE(c.Propose(1, "b").status(), Code::kBusy);  // nothing above it
  c.Deliver("1>2 Accept");
  c.Deliver("2>1 Accepted");
  EXPECT_OK(c.Propose(1, "b").status());
  EXPECT_CODE(c.Reconfigure(1, {c.Voter(1), c.Voter(2)}), Code::kBusy);  // not settled yet
  c.Settle();
  EXPECT_EQ(c.Log(1), "n a {1 2 3 4l} n b");
  EXPECT_TRUE(c[1].settled());
}

// Master 1 has proposed to make node 4 a voter, and died; only node 2 knows.
void LeaveConfigOpen(Cluster* c) {
  ElectAndWait(c);
  ASSERT_OK(c->Reconfigure(1, {c->Voter(1), c->Voter(2), c->Voter(3), c->Learner(4)}));
  c->Settle();
  c->Pass(kSecond, true);
  ASSERT_OK(c->Reconfigure(1, {c->Voter(1), c->Voter(2), c->Voter(3), c->Voter(4)}));
  c->Deliver("1>2 Accept");
  c->Crash(1);
  c->Drop("");
  c->Idle(kSecond);
}

TEST(Members, ACandidateThatFindsAnOpenConfigurationNeedsItsMajorityToo) {
  Cluster c(Spare(4, 3));
  LeaveConfigOpen(&c);
  c.Cut(4);
  c.Campaign(2);
  c.Settle();
  EXPECT_EQ(c[2].mode(), Mode::kPreparing);  // 2 and 3 are a majority of the old one alone
  c.Heal(4);
  c.Pass(210 * kMs);
  EXPECT_TRUE(c.Has("2>4 Prepare"));
  c.Settle();
  EXPECT_TRUE(c[2].serving());
  EXPECT_EQ(c[2].config().voters(), 4u);
  EXPECT_EQ(c.Log(2), "n {1 2 3 4l} n {1 2 3 4} n");
}

TEST(Members, ACandidateThatLearnsOfAnOpenConfigurationFromAPromiseNeedsItsMajorityToo) {
  Cluster c(Spare(4, 3));
  LeaveConfigOpen(&c);
  c.Cut(4);
  c.Campaign(3);
  c.Settle();
  EXPECT_EQ(c[3].mode(), Mode::kPreparing);
  c.Heal(4);
  c.Pass(210 * kMs);
  c.Settle();
  EXPECT_TRUE(c[3].serving());
  EXPECT_EQ(c[3].config().voters(), 4u);
}

// Only who proposed a configuration and saw it chosen goes on above it in the same ballot.
TEST(Members, AnEntryAboveAnOpenConfigurationProvesItChosen) {
  Cluster c(Spare(4, 3));
  ElectAndWait(&c);
  ASSERT_OK(c.Reconfigure(1, {c.Voter(1), c.Voter(2), c.Voter(3), c.Learner(4)}));
  c.Settle();
  c.Pass(kSecond, true);
  ASSERT_OK(c.Reconfigure(1, {c.Voter(2), c.Voter(1), c.Learner(4)}));  // without node 3
  c.Deliver("1>2 Accept (1,1) commit 3: 4c");
  c.Deliver("2>1 Accepted");
  ASSERT_EQ(c[1].config().voters(), 2u);
  ASSERT_OK(c.Propose(1, "a").status());
  // Node 2 takes what is above, but has not heard that the configuration is chosen.
  Message first = c.Copy("1>2 Accept (1,1) commit 4: 5");
  Message second = c.Copy("1>2 Accept (1,1) commit 4: 6");
  for (Message* message : {&first, &second}) {
    Accept accept = std::get<Accept>(message->body);
    accept.commit = 3;
    message->body = accept;
  }
  c.Drop("");
  c.Inject(first);
  c.Inject(second);
  c.DeliverAll();
  c.Restart(1);
  c.Drop("");
  c.Idle(kSecond);
  ASSERT_EQ(c[2].commit(), 3u);
  c.Campaign(2);
  for (int i = 0; i < 10 && c[2].mode() != Mode::kMaster; ++i) c.DeliverAll();
  ASSERT_EQ(c[2].mode(), Mode::kMaster);
  EXPECT_EQ(c[2].commit(), 4u);
  EXPECT_TRUE(c.Has("2>1 Accept (2,2) commit 4: 5n 6 7n")) << c.Pending();
  EXPECT_CODE(c.Propose(2, "z").status(), Code::kUnavailable);
  c.Settle();
  EXPECT_EQ(c.Log(2), "n {1 2 3 4l} n {1 2 4l} n a n");
  EXPECT_TRUE(c[2].serving());
}

// Two voters became three. Then all lose power, and one of the first two its disk.
void GrowToThree(Cluster* c) {
  ElectAndWait(c);
  ASSERT_OK(c->Propose(1, "a").status());
  ASSERT_OK(c->Reconfigure(1, {c->Voter(1), c->Voter(2), c->Learner(3)}));
  c->Settle();
  c->Pass(kSecond, true);
  ASSERT_OK(c->Reconfigure(1, {c->Voter(1), c->Voter(2), c->Voter(3)}));
}

void LosePowerAndNodeOne(Cluster* c) {
  c->Crash(1);
  c->Drop("");
  c->Restart(2);
  c->Restart(3);
  c->Idle(kSecond);
}

// With the pre-votes of an open configuration alone a candidate waits whether anybody objects.
void CampaignAboveAll(Cluster* c, int node) {
  c->Campaign(node);
  c->Settle();
  c->PassAt(node, 600 * kMs);
  c->Settle();
}

TEST(Members, ASettledConfigurationSurvivesAPowerLossOfAllAndTheLossOfAMinority) {
  Cluster c(Spare(3, 2));
  GrowToThree(&c);
  c.Settle();
  c.Pass(100 * kMs, true);
  ASSERT_TRUE(c[1].settled());
  LosePowerAndNodeOne(&c);
  ASSERT_EQ(c[2].config().voters(), 2u);  // what it knows as chosen
  CampaignAboveAll(&c, 2);
  EXPECT_TRUE(c[2].serving());
  EXPECT_EQ(c.Log(2), "n a {1 2 3l} n {1 2 3} n n");
  ASSERT_OK(c.Propose(2, "b").status());
  c.Settle();
  c.Pass(100 * kMs, true);
  EXPECT_EQ(c.Log(3), c.Log(2));
}

TEST(Members, AnOpenConfigurationThatIsNotProvenNeedsBothMajorities) {
  Cluster c(Spare(3, 2));
  GrowToThree(&c);
  c.Deliver("1>2 Accept");
  c.Deliver("1>3 Accept");  // all have it, and nobody can know
  LosePowerAndNodeOne(&c);
  c.Campaign(2);
  c.Settle();
  EXPECT_FALSE(c[2].serving());
  c.Pass(5 * kSecond, true);
  EXPECT_EQ(c.Serving(), 0);
  c.Restart(1);
  c.Pass(5 * kSecond, true);
  EXPECT_NE(c.Serving(), 0);
  EXPECT_EQ(c[2].config().voters(), 3u);
}

// The candidate has only the configuration; the entry that proves it is with its peer.
TEST(Members, AProvenConfigurationIsLearnedFromAPromise) {
  Cluster c(Spare(3, 2));
  GrowToThree(&c);
  c.DeliverAll("1>2 Accept");
  c.DeliverAll("1>3 Accept");
  c.DeliverAll("2>1 Accepted");
  c.Drop("1>2");
  ASSERT_TRUE(c.Has("1>3 Accept (1,1) commit 5: 6")) << c.Pending();
  c.Deliver("1>3 Accept");
  LosePowerAndNodeOne(&c);
  ASSERT_EQ(c[2].last(), 5u);
  ASSERT_EQ(c[3].last(), 6u);
  CampaignAboveAll(&c, 2);
  EXPECT_TRUE(c[2].serving());
  EXPECT_EQ(c.Log(2), "n a {1 2 3l} n {1 2 3} n n");
}

// The master died as soon as the configuration was chosen; the next one knew that, and went on in
// its own ballot.
TEST(Members, AConfigurationIsProvenByTheMastershipThatBeganWithIt) {
  Cluster c(Spare(3, 2));
  GrowToThree(&c);
  c.DeliverAll("1>2 Accept");
  c.DeliverAll("1>3 Accept");
  c.DeliverAll("2>1 Accepted");
  c.Drop("1>3");
  Message told = c.Copy("1>2 Accept (1,1) commit 5: 6");
  c.Drop("");
  c.Inject({told.group, told.from, told.to, told.boot, Beat{{1, 1}, 5, 0}});
  c.DeliverAll();
  c.Drop("");
  ASSERT_EQ(c[2].config().voters(), 3u);
  c.Crash(1);
  c.Idle(kSecond);
  c.Campaign(2);
  c.Settle();
  ASSERT_TRUE(c[2].serving());
  LosePowerAndNodeOne(&c);
  ASSERT_EQ(c[2].config().voters(), 2u);
  CampaignAboveAll(&c, 2);
  EXPECT_TRUE(c[2].serving());
}

TEST(Members, ARemovedNodeLearnsItsRemoval) {
  Cluster c(4);
  ElectAndWait(&c);
  ASSERT_OK(c.Reconfigure(1, {c.Voter(1), c.Voter(2), c.Voter(3)}));
  c.Settle();
  EXPECT_TRUE(c.removed(4));
  EXPECT_EQ(c[4].config().IndexOf(c.Id(4)), -1);
  c.Campaign(4);
  EXPECT_EQ(c.Pending(), "");
}

TEST(Members, ARemovedNodeThatDoesNotKnowItIsRefusedAndToldWhenItAsks) {
  Cluster c(4);
  ElectAndWait(&c);
  c.Cut(4);
  ASSERT_OK(c.Reconfigure(1, {c.Voter(1), c.Voter(2), c.Voter(3)}));
  c.Settle();
  c.Pass(kSecond, true);
  EXPECT_FALSE(c.removed(4));
  c.Heal(4);
  c.Drop("");
  const Ballot ballot = c[1].ballot();
  c.Inject({7, c.Id(4), c.Id(2), 1, PreVote{{50, 4}, 0}});
  c.Inject({7, c.Id(4), c.Id(3), 1, Prepare{{50, 4}, 1, 0, {}}});
  c.DeliverAll();
  EXPECT_EQ(c.Pending(), Lines(R"(
    2>4 Reject (50,4): not a member; promised (1,1)
    3>4 Reject (50,4): not a member; promised (1,1)
  )"));
  c.Settle();
  EXPECT_TRUE(c.removed(4));
  EXPECT_EQ(c[1].ballot(), ballot);
  EXPECT_TRUE(c[1].serving());
}

TEST(Members, ACandidateThatLearnsOfItsRemovalGivesUp) {
  Cluster c(4);
  ElectAndWait(&c);
  c.Cut(4);
  ASSERT_OK(c.Reconfigure(1, {c.Voter(1), c.Voter(2), c.Voter(3)}));
  c.DeliverAll("1>");
  c.DeliverAll("2>1 Accepted");
  c.DeliverAll("3>1 Accepted");
  c.Drop("");  // chosen, and node 1 alone knows
  ASSERT_EQ(c[1].config().voters(), 3u);
  ASSERT_EQ(c[2].config().voters(), 4u);
  c.Heal(4);
  c.Inject({7, c.Id(4), c.Id(1), 1, CatchUp{2, {{}}}});
  c.DeliverAll();
  const Message late = c.Copy("1>4 CatchUpReply commit 2 2");
  c.Crash(1);
  c.Drop("");
  c.Idle(kSecond);
  c.Campaign(4);
  c.DeliverAll();
  c.DeliverAll();
  c.DeliverAll();
  ASSERT_TRUE(c.Has("2>4 Promise")) << c.Pending();
  c.Inject(late);
  c.Deliver("1>4 CatchUpReply");
  EXPECT_TRUE(c.removed(4));
  EXPECT_EQ(c[4].mode(), Mode::kFollower);
  c.Settle();
  EXPECT_EQ(c[4].mode(), Mode::kFollower);
}

TEST(Members, TheMasterCanRemoveItself) {
  Cluster c(4);
  ElectAndWait(&c);
  ASSERT_OK(c.Reconfigure(1, {c.Voter(2), c.Voter(3), c.Voter(4)}));
  c.Settle();
  EXPECT_EQ(c[1].mode(), Mode::kFollower);
  EXPECT_TRUE(c.removed(1));
  c.Pass(2 * kSecond, true);
  const int master = c.Serving();
  ASSERT_GT(master, 1);
  ASSERT_OK(c.Propose(master, "a").status());
  c.Settle();
}

TEST(Members, AGroupGrowsFromOneToThreeAndShrinksAgain) {
  Cluster c(Spare(3, 1));
  ElectAndWait(&c);
  ASSERT_OK(c.Reconfigure(1, {c.Voter(1), c.Learner(2), c.Learner(3)}));
  c.Pass(kSecond, true);
  ASSERT_OK(c.Reconfigure(1, {c.Voter(1), c.Voter(2), c.Learner(3)}));
  c.Pass(kSecond, true);
  ASSERT_OK(c.Reconfigure(1, {c.Voter(1), c.Voter(2), c.Voter(3)}));
  c.Pass(kSecond, true);
  EXPECT_EQ(c[3].config().voters(), 3u);
  ASSERT_OK(c.Propose(1, "a").status());
  c.Settle();
  ASSERT_OK(c.Reconfigure(1, {c.Voter(1), c.Voter(3)}));
  c.Pass(kSecond, true);
  ASSERT_OK(c.Reconfigure(1, {c.Voter(1)}));
  c.Pass(kSecond, true);
  EXPECT_TRUE(c[1].serving());
  ASSERT_OK(c.Propose(1, "b").status());
  c.Settle();
  EXPECT_TRUE(c.Log(1).ends_with("{1} n b")) << c.Log(1);
}

TEST(Members, AReplacedNodeComesBackUnderANewIncarnation) {
  Cluster c(3);
  ElectAndWait(&c);
  ASSERT_OK(c.Propose(1, "a").status());
  c.Settle();
  c.Pass(100 * kMs, true);
  c.Wipe(3, 2);
  ASSERT_OK(c.Reconfigure(1, {c.Voter(1), c.Voter(2), c.Learner(3)}));  // the new one learns
  c.Restart(3);
  c.Pass(kSecond, true);
  EXPECT_EQ(c.Log(3), "n a {1 2 3l} n");
  ASSERT_OK(c.Reconfigure(1, {c.Voter(1), c.Voter(2), c.Voter(3)}));
  c.Pass(kSecond, true);
  EXPECT_TRUE(c[3].IsVoter());
}

}  // namespace
}  // namespace hydra::paxos::test
