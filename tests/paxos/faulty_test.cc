// SPDX-License-Identifier: Apache-2.0
//
// Entries lost to rot: faulty, not absent.
#include <gtest/gtest.h>

#include "tests/paxos/cranked.h"
#include "tests/support/gtest_status.h"

namespace hydra::paxos::test {
namespace {

// Master 1 and `holders` have accepted "a" at 2; nobody has learnt that it is chosen.
void AcceptAt(Cluster* c, const std::vector<int>& holders) {
  c->Elect(1);
  c->Pass(30 * kMs, true);
  for (int i = 1; i <= c->size(); ++i) c->Checkpoint(i);
  ASSERT_OK(c->Propose(1, "a").status());
  for (const int i : holders) c->Deliver("1>" + std::to_string(i) + " Accept");
  c->Crash(1);
  c->Drop("");
  c->Idle(kSecond);
}

void RotAndRestart(Cluster* c, int node) {
  c->Crash(node);
  c->Rot(node, 2);
  c->Restart(node);
  c->Idle(kSecond);
}

TEST(Faulty, AnEntryIsNeverDenied) {
  Cluster c(3);
  AcceptAt(&c, {2});
  RotAndRestart(&c, 2);
  c.Inject({7, c.Id(3), c.Id(2), 1, Prepare{{5, 3}, 1, 0, {}}});
  c.DeliverAll();
  EXPECT_EQ(c.Pending(), "2>3 Promise (5,3) commit 1 2@(1,1)!\n");
}

TEST(Faulty, ANewMasterWaitsForAGoodCopyOfWhatMayHaveBeenChosen) {
  Cluster c(3);
  AcceptAt(&c, {2});
  RotAndRestart(&c, 2);
  c.Campaign(3);
  c.Settle();
  EXPECT_EQ(c[3].mode(), Mode::kRecovering);  // 1 and 2 may have chosen it
  c.Restart(1);
  c.Idle(400 * kMs);
  c.Tick(3);
  EXPECT_TRUE(c.Has("3>1 Prepare")) << c.Pending();
  c.Settle();
  EXPECT_TRUE(c[3].serving());
  EXPECT_EQ(c.Log(3), "n a n");
  EXPECT_EQ(c.Log(2), "n");
  c.Pass(100 * kMs, true);
  EXPECT_EQ(c.Log(2), "n a n");  // repaired by the new acceptance
}

TEST(Faulty, TheCandidatesOwnFaultyEntryIsNotForgottenEither) {
  Cluster c(3);
  AcceptAt(&c, {2});
  RotAndRestart(&c, 2);
  c.Campaign(2);
  c.Settle();
  EXPECT_EQ(c[2].mode(), Mode::kRecovering);
  c.Restart(1);
  c.Idle(400 * kMs);
  c.Tick(2);
  c.Settle();
  EXPECT_EQ(c.Log(2), "n a n");
}

TEST(Faulty, AnEntryThatAMajorityCertainlyDidNotAcceptIsGivenUp) {
  Cluster c(5);
  AcceptAt(&c, {2});
  RotAndRestart(&c, 2);
  c.Cut(5);
  c.Campaign(3);
  c.Settle();
  EXPECT_EQ(c[3].mode(), Mode::kRecovering);  // 1, 2 and 5 may have chosen it
  c.Heal(5);
  c.Idle(210 * kMs);
  c.Tick(3);
  c.Settle();
  EXPECT_TRUE(c[3].serving());  // 3, 4 and 5 did not
  EXPECT_EQ(c.Log(3), "n n n");
}

// A later ballot replaced one of the copies that had chosen the value. That copy proves nothing
// against the ballot below.
TEST(Faulty, ACopyOfALaterBallotIsNoProofThatTheEarlierOneWasNotAccepted) {
  Cluster c(5);
  AcceptAt(&c, {2, 3});  // chosen in (1,1): 1, 2, 3
  c.Campaign(2);
  c.DeliverAll("2>3");
  c.DeliverAll("2>4");
  c.DeliverAll("3>2");
  c.DeliverAll("4>2");
  c.DeliverAll("2>3");
  c.DeliverAll("2>4");
  c.DeliverAll("3>2");
  c.DeliverAll("4>2");
  ASSERT_EQ(c[2].mode(), Mode::kMaster);  // node 2 holds it in (2,2) now, the others did not hear
  c.Drop("");
  c.Crash(2);
  c.Crash(3);
  c.Rot(2, 2);
  c.Rot(3, 2);
  c.Restart(2);
  c.Restart(3);
  c.Idle(kSecond);
  c.Campaign(4);
  c.Settle();
  EXPECT_EQ(c[4].mode(), Mode::kRecovering);
  c.Restart(1);
  c.Idle(400 * kMs);
  c.Tick(4);
  c.Settle();
  EXPECT_TRUE(c[4].serving());
  EXPECT_EQ(c.Log(4), "n a n n");
}

TEST(Faulty, AnEntryIsRepairedByCatchingUp) {
  Cluster c(3);
  AcceptAt(&c, {2, 3});
  RotAndRestart(&c, 2);
  c.Cut(2);
  c.Restart(1);
  c.Idle(400 * kMs);
  c.Elect(3);
  EXPECT_EQ(c.Log(3), "n a n");
  c.Heal(2);
  c.Pass(kSecond, true);
  EXPECT_TRUE(c.Log(2).starts_with("n a n")) << c.Log(2);
}

TEST(Faulty, AnEntryIsRepairedByTheSameBallotsAccept) {
  Cluster c(3);
  c.Elect(1);
  c.Pass(30 * kMs, true);
  for (int i = 1; i <= 3; ++i) c.Checkpoint(i);
  ASSERT_OK(c.Propose(1, "a").status());
  c.Deliver("1>2 Accept");
  c.Drop("");
  RotAndRestart(&c, 2);
  for (int i = 1; i <= 3; ++i) c.Tick(i);
  c.Pass(10 * kMs);
  c.DeliverAll("1>2 Accept (1,1) commit 1: 2");
  c.DeliverAll("2>1 Accepted");
  EXPECT_EQ(c.Log(1), "n a");
}

TEST(Faulty, ACommitDoesNotChooseAFaultyEntry) {
  Cluster c(3);
  c.Elect(1);
  c.Pass(30 * kMs, true);
  for (int i = 1; i <= 3; ++i) c.Checkpoint(i);
  ASSERT_OK(c.Propose(1, "a").status());
  c.Settle();
  c.Drop("");
  RotAndRestart(&c, 2);
  c.Inject({7, c.Id(1), c.Id(2), 1, Beat{{1, 1}, 2, 0}});
  c.DeliverAll();
  EXPECT_EQ(c.Log(2), "n");
  c.Pass(kSecond, true);
  EXPECT_TRUE(c.Log(2).starts_with("n a")) << c.Log(2);
}

TEST(Faulty, ASuspectReplicaDoesNotVoteButLearns) {
  Cluster c(3);
  c.Elect(1);
  c.Pass(30 * kMs, true);
  c.Crash(3);
  c.MakeSuspect(3);
  c.Restart(3);
  c.Idle(400 * kMs);
  c.Tick(1);
  c.Tick(2);
  c.Tick(3);
  c.Drop("");
  c.Inject({7, c.Id(2), c.Id(3), 1, PreVote{{5, 2}, 0}});
  c.Inject({7, c.Id(2), c.Id(3), 1, Prepare{{5, 2}, 1, 0, {}}});
  c.Inject({7, c.Id(1), c.Id(3), 1, Beat{{1, 1}, 1, 3}});
  c.DeliverAll();
  EXPECT_EQ(c.Pending(), "");
  c.Cut(2);
  ASSERT_OK(c.Propose(1, "a").status());
  c.Settle();
  EXPECT_EQ(c.Log(1), "n");  // 1 and 3 are no majority
  c.Heal(2);
  c.Pass(kSecond, true);
  EXPECT_EQ(c.Log(1), "n a");
  EXPECT_EQ(c.Log(3), "n a");
  c.Campaign(3);
  EXPECT_EQ(c.Pending(), "");
}

}  // namespace
}  // namespace hydra::paxos::test
