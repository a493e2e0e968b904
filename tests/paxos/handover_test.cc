// SPDX-License-Identifier: Apache-2.0
//
// Mastership given up on purpose: to a named node, or to whoever comes.
#include <gtest/gtest.h>

#include "tests/paxos/cranked.h"
#include "tests/support/gtest_status.h"

namespace hydra::paxos::test {
namespace {

void ElectWithLease(Cluster* c) {
  c->Elect(1);
  c->Pass(100 * kMs, true);
  ASSERT_TRUE(c->operator[](1).LeaseValid(c->now(1)));
}

TEST(HandOver, GoesToTheNamedNodeWithoutWaitingForTheLease) {
  Cluster c(3);
  ElectWithLease(&c);
  const Nanos start = c.now(3);
  ASSERT_OK(c.HandOver(1, 3));
  EXPECT_EQ(c.Pending(), "1>3 TakeOver (1,1)\n");
  EXPECT_EQ(c[1].mode(), Mode::kFollower);  // from now on it serves nothing
  c.Deliver("1>3 TakeOver");
  EXPECT_EQ(c.Pending(), Lines(R"(
    3>1 Prepare (2,3) from 2 released (1,1)
    3>2 Prepare (2,3) from 2 released (1,1)
  )"));
  c.Settle();
  EXPECT_TRUE(c[3].serving());
  EXPECT_EQ(c.now(3), start);
}

TEST(HandOver, WaitsForOpenEntriesAndRefusesNewOnes) {
  Cluster c(3);
  ElectWithLease(&c);
  ASSERT_OK(c.Propose(1, "a").status());
  ASSERT_OK(c.HandOver(1, 2));
  EXPECT_FALSE(c.Has("1>2 TakeOver"));
  EXPECT_CODE(c.Propose(1, "b").status(), Code::kUnavailable);
  c.Deliver("1>3 Accept");
  c.Deliver("3>1 Accepted");
  EXPECT_TRUE(c.Has("1>2 TakeOver"));
  c.Settle();
  EXPECT_TRUE(c[2].serving());
  EXPECT_EQ(c.Log(2), "n a n");
}

TEST(HandOver, IsGivenUpAfterATime) {
  Cluster c(3);
  ElectWithLease(&c);
  ASSERT_OK(c.Propose(1, "a").status());
  c.Drop("");
  ASSERT_OK(c.HandOver(1, 2));
  EXPECT_FALSE(c[1].serving());
  c.Pass(2100 * kMs);
  EXPECT_TRUE(c[1].serving());
  EXPECT_FALSE(c.Has("1>2 TakeOver"));
  c.Settle();
  EXPECT_OK(c.Propose(1, "b").status());
}

TEST(HandOver, ToANodeThatIsDeadIsRefused) {
  Cluster c(3);
  ElectWithLease(&c);
  c.Crash(2);
  c.Pass(700 * kMs, true);
  EXPECT_CODE(c.HandOver(1, 2), Code::kFailedPrecondition);
  EXPECT_CODE(c.HandOver(1, 1), Code::kInvalidArgument);
  EXPECT_TRUE(c[1].serving());
}

TEST(HandOver, ToANodeThatDiesOnTheWayEndsInAnElection) {
  Cluster c(3);
  ElectWithLease(&c);
  ASSERT_OK(c.HandOver(1, 2));
  c.Crash(2);
  c.Pass(2 * kSecond, true);
  EXPECT_TRUE(c.Serving() == 1 || c.Serving() == 3);
}

TEST(HandOver, ALateTakeOverOfAnOldMastershipIsIgnored) {
  Cluster c(3);
  ElectWithLease(&c);
  ASSERT_OK(c.HandOver(1, 3));
  const Message late = c.Copy("1>3 TakeOver");
  c.Settle();
  ASSERT_TRUE(c[3].serving());
  ASSERT_OK(c.HandOver(3, 2));
  c.Settle();
  ASSERT_TRUE(c[2].serving());
  c.Inject(late);
  c.DeliverAll();
  EXPECT_EQ(c.Pending(), "");
  EXPECT_TRUE(c[2].serving());
}

TEST(Resign, LetsOthersElectWithoutWaitingForTheLease) {
  Cluster c(3);
  ElectWithLease(&c);
  c.Resign(1);
  EXPECT_EQ(c[1].mode(), Mode::kFollower);
  EXPECT_EQ(c.Answer(c.Read(1)), "no");
  c.Tick(1);  // the notice leaves with a heartbeat
  c.Campaign(2);
  c.Settle();
  EXPECT_TRUE(c[2].serving());
}

// Heartbeats and messages go different ways.
TEST(Resign, AnAcceptThatIsOvertakenByTheNoticeDoesNotBringTheMasterBack) {
  Cluster c(5);
  ElectWithLease(&c);
  ASSERT_OK(c.Propose(1, "a").status());
  c.Resign(1);
  c.Tick(1);
  c.DeliverAll("1>");
  c.Drop("");
  c.Campaign(2);
  c.Settle();
  EXPECT_TRUE(c[2].serving());
  EXPECT_EQ(c.Log(2), "n a n");
}

TEST(Resign, AMasterWithoutAMajorityInReachStepsDown) {
  Cluster c(3);
  ElectWithLease(&c);
  c.Cut(1);
  c.Pass(700 * kMs);
  EXPECT_EQ(c[1].mode(), Mode::kFollower);
}

}  // namespace
}  // namespace hydra::paxos::test
