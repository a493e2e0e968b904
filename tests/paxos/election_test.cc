// SPDX-License-Identifier: Apache-2.0
//
// Elections and mastership: who may become master when, what it must find out first, and how it
// gives up.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/paxos/cranked.h"
#include "tests/support/gtest_status.h"

namespace hydra::paxos::test {
namespace {

TEST(Election, FirstMasterPreparesOnceAndServesAfterItsOwnNoop) {
  Cluster c(3);
  c.Campaign(1);
  EXPECT_EQ(c.Pending(), Lines(R"(
    1>2 PreVote (1,1)
    1>3 PreVote (1,1)
  )"));
  c.DeliverAll();
  EXPECT_EQ(c.Pending(), Lines(R"(
    2>1 PreVoteReply (1,1) yes
    3>1 PreVoteReply (1,1) yes
  )"));
  c.DeliverAll();
  EXPECT_EQ(c.Pending(), Lines(R"(
    1>2 Prepare (1,1) from 1
    1>3 Prepare (1,1) from 1
  )"));
  c.DeliverAll();
  EXPECT_EQ(c.Pending(), Lines(R"(
    2>1 Promise (1,1) commit 0
    3>1 Promise (1,1) commit 0
  )"));
  c.Deliver("2>1 Promise");
  EXPECT_EQ(c[1].mode(), Mode::kMaster);
  EXPECT_FALSE(c[1].serving());
  EXPECT_CODE(c.Propose(1, "a").status(), Code::kUnavailable);
  EXPECT_EQ(c.Answer(c.Read(1)), "no");
  c.Drop("3>1 Promise");
  EXPECT_EQ(c.Pending(), Lines(R"(
    1>2 Accept (1,1) commit 0: 1n
    1>3 Accept (1,1) commit 0: 1n
  )"));
  c.Deliver("1>2 Accept");
  c.Deliver("2>1 Accepted (1,1): 1");
  EXPECT_TRUE(c[1].serving());
  EXPECT_EQ(c.Log(1), "n");
}

TEST(Election, GroupsOfOneThreeAndFiveElectAndCommit) {
  for (const int nodes : {1, 3, 5}) {
    Cluster c(nodes);
    c.Elect(1);
    for (const char* entry : {"a", "b", "c"}) ASSERT_OK(c.Propose(1, entry).status());
    c.Settle();
    c.Pass(50 * kMs, true);
    for (int i = 1; i <= nodes; ++i) EXPECT_EQ(c.Log(i), "n a b c") << i << " of " << nodes;
  }
}

TEST(Election, AGroupThatIsLeftAloneElectsSomeoneAndKeepsIt) {
  Cluster c(5);
  c.Pass(2 * kSecond, true);
  const int master = c.Serving();
  ASSERT_NE(master, 0);
  const Ballot ballot = c[master].ballot();
  c.Pass(5 * kSecond, true);
  EXPECT_EQ(c.Serving(), master);
  EXPECT_EQ(c[master].ballot(), ballot);
}

// A process that ends takes its connections along: nobody has to wait until it has been silent for
// long, but what was granted to it binds to its end.
TEST(Election, WhenTheMastersConnectionsBreakAnotherIsElectedAsItsLeaseEnds) {
  Cluster c(3);
  c.Elect(1);
  c.Pass(500 * kMs, true);
  const Nanos granted = std::max(c.leases(2).GrantedUntil(1, c.leases(1).boot()),
                                 c.leases(3).GrantedUntil(1, c.leases(1).boot()));
  c.Crash(1);
  for (const int node : {2, 3}) c.leases(node).ConnectionLost(1);
  EXPECT_FALSE(c.leases(2).Alive(1, c.now(2)));
  while (c.now(2) + 5 * kMs < granted) {
    c.Pass(5 * kMs, true);
    EXPECT_FALSE(c[2].serving() || c[3].serving()) << "a lease binds its grantors";
  }
  const ReplicaOptions defaults;
  c.Pass(defaults.election_spread + 20 * kMs, true);
  EXPECT_TRUE(c[2].serving() || c[3].serving());
}

TEST(Election, AMasterThatFallsSilentIsReplacedSoonAfterItIsTakenForDead) {
  Cluster c(3);
  c.Elect(1);
  c.Pass(500 * kMs, true);
  c.Cut(1);
  const LeaseTable::Options leases;
  const ReplicaOptions defaults;
  c.Pass(leases.dead_after - leases.interval, true);
  EXPECT_FALSE(c[2].serving() || c[3].serving());
  c.Pass(leases.interval + 2 * defaults.election_spread + 20 * kMs, true);
  EXPECT_TRUE(c[2].serving() || c[3].serving());
}

// The peer lives, and is heard again before anybody is free to elect another.
TEST(Election, AConnectionThatBreaksAndComesBackChangesNothing) {
  Cluster c(3);
  c.Elect(1);
  for (int i = 0; i < 20; ++i) {
    c.Pass(100 * kMs, true);
    for (const int node : {2, 3}) c.leases(node).ConnectionLost(1);
  }
  c.Pass(1000 * kMs, true);
  EXPECT_TRUE(c[1].serving());
  EXPECT_EQ(c[1].ballot().round, 1u);
}

TEST(Election, PreVoteIsRefusedWhileTheMasterLives) {
  Cluster c(3);
  c.Elect(1);
  c.Pass(20 * kMs, true);
  c.Campaign(3);  // it granted the master a lease itself, and does not even ask
  EXPECT_EQ(c.Pending(), "");
  // Without hearing from the master, node 3 asks; node 2 still hears from it.
  c.options().heartbeats = false;
  for (int i = 0; i < 20; ++i) {
    c.PassAt(1, 50 * kMs);
    c.PassAt(2, 50 * kMs);
    c.DeliverHeartbeats(1, 2);
    c.DeliverHeartbeats(2, 1);
    c.DropHeartbeats();
    c.PassAt(3, 50 * kMs, false);
  }
  c.Drop("");
  c.Campaign(3);
  EXPECT_EQ(c.Pending(), Lines(R"(
    3>1 PreVote (2,3)
    3>2 PreVote (2,3)
  )"));
  c.DeliverAll();
  EXPECT_EQ(c.Pending(), Lines(R"(
    1>3 PreVoteReply (2,3) no
    2>3 PreVoteReply (2,3) no
  )"));
  c.DeliverAll();
  EXPECT_EQ(c.Pending(), "");
  EXPECT_EQ(c[2].promised(), (Ballot{1, 1}));
  EXPECT_TRUE(c[1].serving());
}

TEST(Election, OfTwoCandidatesTheHigherBallotWins) {
  Cluster c(3);
  c.Idle(400 * kMs);  // no lease is left
  c.Campaign(1);
  c.Campaign(2);
  c.DeliverAll("1>3 PreVote");
  c.DeliverAll("2>3 PreVote");
  c.DeliverAll("3>1 PreVoteReply");
  c.DeliverAll("3>2 PreVoteReply");
  c.Drop("1>2 PreVote");
  c.Drop("2>1 PreVote");
  EXPECT_EQ(c.Pending(), Lines(R"(
    1>2 Prepare (1,1) from 1
    1>3 Prepare (1,1) from 1
    2>1 Prepare (1,2) from 1
    2>3 Prepare (1,2) from 1
  )"));
  c.Deliver("1>3 Prepare");
  c.Deliver("3>1 Promise (1,1)");  // node 1 is master for a moment
  EXPECT_EQ(c[1].mode(), Mode::kMaster);
  c.Deliver("2>3 Prepare");
  EXPECT_EQ(c[3].promised(), (Ballot{1, 2}));
  c.Deliver("1>3 Accept (1,1)");  // too late
  c.Deliver("3>2 Promise (1,2)");
  EXPECT_EQ(c[2].mode(), Mode::kMaster);
  c.Deliver("3>1 Reject (1,1): promised (1,2)");
  EXPECT_EQ(c[1].mode(), Mode::kFollower);
  c.Settle();
  EXPECT_TRUE(c[2].serving());
  EXPECT_EQ(c[1].promised(), (Ballot{1, 2}));
}

TEST(Election, AnOldPrepareIsRejectedWithWhatWasPromised) {
  Cluster c(3);
  c.Campaign(1);
  c.DeliverAll();
  c.DeliverAll();
  c.Duplicate("1>3 Prepare");
  c.DeliverAll("1>2 Prepare");
  c.Drop("1>3 Prepare");
  Message old = {7, c.Id(1), c.Id(3), 1, Prepare{{1, 1}, 1, 0, {}}};
  c.Crash(1);
  c.Pass(2 * kSecond, true);
  ASSERT_NE(c.Serving(), 0);
  const std::string promised = Describe(c[3].promised());
  c.Inject(old);
  c.DeliverAll();
  EXPECT_EQ(c.Pending(), "3>1 Reject (1,1): promised " + promised + "\n");
}

// --- Promises to those who never became master -------------------------------------------------
//
// A lease binds whoever promised its holder, so a candidate that fails must let go of its voters:
// otherwise two of them block each other for as long as they live.

// Node 2 has promised (1,1); node 1 is a candidate still, and node 2 grants it leases.
void PromiseToOne(Cluster* c) {
  c->Idle(400 * kMs);
  c->Campaign(1);
  c->DeliverAll();
  c->DeliverAll();
  c->Deliver("1>2 Prepare");
  c->Drop("");
  ASSERT_EQ(c->operator[](2).promised(), (Ballot{1, 1}));
}

// What node 2 answers to a candidate 3.
std::string AskTwo(Cluster* c) {
  c->Inject({7, c->Id(3), c->Id(2), 1, Prepare{{5, 3}, 1, 0, {}}});
  c->Deliver("3>2 Prepare");
  return c->TakePending();
}

TEST(Election, ACandidateBindsItsVotersWhileItTries) {
  Cluster c(3);
  PromiseToOne(&c);
  c.Pass(100 * kMs);
  c.Drop("");
  EXPECT_EQ(AskTwo(&c), "2>3 Reject (5,3): leased to (1,1)\n");
}

TEST(Election, ACandidateThatRestartedBindsNobody) {
  Cluster c(3);
  PromiseToOne(&c);
  c.Restart(1);
  c.Pass(400 * kMs);
  c.Drop("");
  EXPECT_EQ(AskTwo(&c), "2>3 Promise (5,3) commit 0\n");
}

TEST(Election, ACandidateThatPromisesAnotherLetsGoOfItsVoters) {
  Cluster c(3);
  PromiseToOne(&c);
  c.Inject({7, c.Id(3), c.Id(1), 1, Prepare{{2, 3}, 1, 0, {}}});
  c.Deliver("3>1 Prepare");
  c.Pass(50 * kMs);
  c.Drop("");
  EXPECT_EQ(AskTwo(&c), "2>3 Promise (5,3) commit 0\n");
}

TEST(Election, WhoGivesUpABallotHasGivenUpAllBefore) {
  Cluster c(3);
  PromiseToOne(&c);
  c.Pass(50 * kMs);
  c.Drop("");
  // Of two notices that wait, only the later is sent.
  c[2].OnNotice(1, {1, 7, Notice::Kind::kResigned, {4, 1}}, c.now(2));
  EXPECT_EQ(AskTwo(&c), "2>3 Promise (5,3) commit 0\n");
}

// --- Durable before said ----------------------------------------------------------------------

Cluster::Options HeldFlushes(int nodes = 3) {
  Cluster::Options options;
  options.nodes = nodes;
  options.flush = false;
  return options;
}

TEST(DurableBeforeSaid, PrepareLeavesAfterTheBallotIsDurable) {
  Cluster c(HeldFlushes());
  c.Campaign(1);
  c.DeliverAll();
  c.DeliverAll();
  EXPECT_EQ(c.Pending(), "");
  EXPECT_EQ(c[1].mode(), Mode::kPreparing);
  c.Flush(1);
  EXPECT_EQ(c.Pending(), Lines(R"(
    1>2 Prepare (1,1) from 1
    1>3 Prepare (1,1) from 1
  )"));
}

TEST(DurableBeforeSaid, ABallotLostInACrashWasNeverSaidAndMayBeUsedAgain) {
  Cluster c(HeldFlushes());
  c.Campaign(1);
  c.DeliverAll();
  c.DeliverAll();
  EXPECT_EQ(c[1].promised(), (Ballot{1, 1}));
  c.Restart(1);
  EXPECT_EQ(c[1].promised(), Ballot{});
  EXPECT_EQ(c.Pending(), "");
  c.options().flush = true;
  c.Idle(400 * kMs);
  c.Elect(1);
}

TEST(DurableBeforeSaid, ABallotLostInACrashWasNotGivenUpForALaterLife) {
  Cluster c(HeldFlushes());
  c.Campaign(1);
  c.DeliverAll();
  c.DeliverAll();
  ASSERT_EQ(c[1].mode(), Mode::kPreparing);
  c.Resign(1);
  c.Tick(1);  // a notice would leave with a heartbeat
  c.Restart(1);
  c.options().flush = true;
  c.Idle(400 * kMs);
  c.Elect(1);
  ASSERT_EQ(c[1].ballot(), (Ballot{1, 1})) << "used again";
  c.Pass(250 * kMs, true);
  ASSERT_TRUE(c[1].LeaseValid(c.now(1)));
  EXPECT_EQ(AskTwo(&c), "2>3 Reject (5,3): leased to (1,1)\n");
}

// Whoever promised it would be bound to somebody who does not try any more, and had not said so.
TEST(DurableBeforeSaid, ABallotThatIsGivenUpBeforeItIsDurableIsNeverSaid) {
  Cluster c(HeldFlushes());
  c.Campaign(1);
  c.DeliverAll();
  c.DeliverAll();
  ASSERT_EQ(c[1].mode(), Mode::kPreparing);
  c.Resign(1);
  c.Flush(1);
  EXPECT_EQ(c.Pending(), "");
}

// A node whose disk was replaced has forgotten its ballots, and the others remember what it said.
TEST(Lease, ABallotThatAnotherProcessGaveUpBindsAgain) {
  Cluster c(3);
  c.Pass(100 * kMs);
  c.Drop("");
  c[2].OnNotice(1, {1, 7, Notice::Kind::kResigned, {4, 1}}, c.now(2));
  c.Restart(1);
  c.Idle(400 * kMs);
  c.Elect(1);
  ASSERT_LE(c[1].ballot(), (Ballot{4, 1}));
  c.Pass(250 * kMs, true);
  ASSERT_TRUE(c[1].LeaseValid(c.now(1)));
  EXPECT_EQ(AskTwo(&c), fmt::format("2>3 Reject (5,3): leased to ({},1)\n", c[1].ballot().round));
}

TEST(DurableBeforeSaid, PromiseAndAcceptanceLeaveAfterTheFlush) {
  Cluster c(HeldFlushes());
  c.Campaign(1);
  c.DeliverAll();
  c.DeliverAll();
  c.Flush(1);
  c.DeliverAll();
  EXPECT_EQ(c.Pending(), "");  // promised, not durable
  c.Flush(2);
  EXPECT_EQ(c.Pending(), "2>1 Promise (1,1) commit 0\n");
  c.Deliver("2>1 Promise");
  c.Drop("1>3");
  c.Deliver("1>2 Accept (1,1) commit 0: 1n");
  EXPECT_EQ(c.Pending(), "");
  c.Flush(2);
  EXPECT_EQ(c.Pending(), "2>1 Accepted (1,1): 1\n");
}

TEST(DurableBeforeSaid, APromiseLostInACrashHarmsNobody) {
  Cluster c(HeldFlushes());
  c.Campaign(1);
  c.DeliverAll();
  c.DeliverAll();
  c.Flush(1);
  c.DeliverAll();
  c.Restart(2);
  EXPECT_EQ(c[2].promised(), Ballot{});
  c.Flush(3);
  c.Settle();
  EXPECT_TRUE(c[1].serving());
}

TEST(DurableBeforeSaid, AnAcceptanceLostInACrashIsNotCounted) {
  Cluster c(3);
  c.Elect(1);
  c.options().flush = false;
  ASSERT_OK(c.Propose(1, "a").status());
  c.Deliver("1>2 Accept");
  c.Drop("1>3 Accept");
  c.Restart(2);
  c.Flush(1);
  EXPECT_EQ(c.Pending(), "");
  EXPECT_EQ(c[1].commit(), 1u);  // its own disk alone is no majority
  c.options().flush = true;
  c.Pass(500 * kMs, true);
  EXPECT_EQ(c.Log(1), "n a");
  EXPECT_EQ(c.Log(3), "n a");
}

// The node that moved to a higher ballot by an accept of which it took nothing.
TEST(DurableBeforeSaid, APromiseImpliedByAnAcceptWithoutANewEntryIsRecordedToo) {
  Cluster c(3);
  c.Elect(1);
  ASSERT_OK(c.Propose(1, "a").status());
  c.Settle();
  c.Pass(50 * kMs, true);
  ASSERT_EQ(c[3].commit(), 2u);
  // A master in a higher ballot that node 3 did not hear of sends only what is chosen there.
  auto entries = std::make_shared<std::vector<AcceptEntry>>();
  entries->push_back({2, {EntryKind::kCommand, 0, 5, nullptr}, nullptr});
  c.options().flush = false;
  c.Inject({7, c.Id(2), c.Id(3), 1, Accept{{9, 2}, 2, entries}});
  c.DeliverAll();
  c.Inject({7, c.Id(2), c.Id(3), 1, Beat{{9, 2}, 2, 1}});
  c.DeliverAll();
  EXPECT_EQ(c.Pending(), "");
  c.Flush(3);
  EXPECT_EQ(c.Pending(), "3>2 BeatReply (9,2) round 1\n");
}

}  // namespace
}  // namespace hydra::paxos::test
