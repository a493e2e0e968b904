// SPDX-License-Identifier: Apache-2.0
//
// Linearizable reads, with a lease and by rounds, and what a lease may be counted for.
#include <gtest/gtest.h>

#include "tests/paxos/cranked.h"
#include "tests/support/gtest_status.h"

namespace hydra::paxos::test {
namespace {

// Master 1 with a lease, "a" applied everywhere.
void ElectAndWrite(Cluster* c) {
  c->Elect(1);
  ASSERT_OK(c->Propose(1, "a").status());
  c->Settle();
  c->Pass(100 * kMs, true);
  for (int i = 1; i <= c->size(); ++i) ASSERT_EQ(c->Log(i), "n a");
  ASSERT_TRUE(c->operator[](1).LeaseValid(c->now(1)));
}

TEST(Read, WithALeaseIsAnsweredAtOnce) {
  Cluster c(3);
  ElectAndWrite(&c);
  EXPECT_EQ(c.Answer(c.Read(1)), "at 2");
  EXPECT_EQ(c.Pending(), "");
}

TEST(Read, AfterTheLeaseRanOutTakesARound) {
  Cluster c(3);
  ElectAndWrite(&c);
  c.Idle(300 * kMs);
  EXPECT_FALSE(c[1].LeaseValid(c.now(1)));
  const uint64_t read = c.Read(1);
  EXPECT_EQ(c.Answer(read), "");
  EXPECT_EQ(c.Pending(), Lines(R"(
    1>2 Beat (1,1) commit 2 round 1
    1>3 Beat (1,1) commit 2 round 1
  )"));
  c.Deliver("1>2 Beat");
  c.Deliver("2>1 BeatReply (1,1) round 1");
  EXPECT_EQ(c.Answer(read), "at 2");
}

TEST(Read, TheHoldersLeaseEndsBeforeTheGrantors) {
  Cluster c(3);
  ElectAndWrite(&c);
  c.options().heartbeats = false;
  const LeaseTable::Held held = c.leases(1).HeldFrom(2);
  // With both clocks ten percent off, in opposite directions, the holder is first still.
  const Nanos usable = held.until - held.sent;
  EXPECT_LE(usable * 110, 300 * kMs * 90);
  EXPECT_GE(c.leases(2).GrantedUntil(1, c.leases(1).boot()), held.sent + 300 * kMs);
}

TEST(Read, AnswersToAnOlderRoundDoNotCount) {
  Cluster c(3);
  ElectAndWrite(&c);
  c.Idle(300 * kMs);
  const uint64_t first = c.Read(1);
  c.Deliver("1>2 Beat (1,1) commit 2 round 1");
  c.Duplicate("2>1 BeatReply (1,1) round 1");
  c.Deliver("2>1 BeatReply (1,1) round 1");
  EXPECT_EQ(c.Answer(first), "at 2");
  const uint64_t second = c.Read(1);
  c.Deliver("2>1 BeatReply (1,1) round 1");
  c.Deliver("1>3 Beat (1,1) commit 2 round 1");
  c.Deliver("3>1 BeatReply (1,1) round 1");
  EXPECT_EQ(c.Answer(second), "");
  c.Deliver("1>2 Beat (1,1) commit 2 round 2");
  c.Deliver("2>1 BeatReply (1,1) round 2");
  EXPECT_EQ(c.Answer(second), "at 2");
}

TEST(Read, ThoseThatComeDuringARoundWaitForTheNext) {
  Cluster c(3);
  ElectAndWrite(&c);
  c.Idle(300 * kMs);
  const uint64_t first = c.Read(1);
  c.DeliverAll("1>2 Beat");
  const uint64_t second = c.Read(1);
  const uint64_t third = c.Read(1);
  EXPECT_FALSE(c.Has("1>2 Beat"));
  c.Deliver("2>1 BeatReply (1,1) round 1");
  EXPECT_EQ(c.Answer(first), "at 2");
  EXPECT_EQ(c.Answer(second), "");
  c.Drop("1>3");
  EXPECT_EQ(c.Pending(), "1>2 Beat (1,1) commit 2 round 2\n");  // one round for both
  c.Deliver("1>2 Beat");
  c.Deliver("2>1 BeatReply");
  EXPECT_EQ(c.Answer(second), "at 2");
  EXPECT_EQ(c.Answer(third), "at 2");
}

TEST(Read, ALostRoundIsRepeated) {
  Cluster c(3);
  ElectAndWrite(&c);
  c.Idle(300 * kMs);
  const uint64_t read = c.Read(1);
  c.Drop("");
  for (int i = 1; i <= 3; ++i) c.PassAt(i, 210 * kMs, i != 1);
  c.Tick(1);
  EXPECT_TRUE(c.Has("1>2 Beat (1,1) commit 2 round 1")) << c.Pending();
  c.Settle();
  EXPECT_EQ(c.Answer(read), "at 2");
}

TEST(Read, TooManyThatWaitAreRefused) {
  Cluster::Options options;
  options.replica.max_reads = 2;
  Cluster c(options);
  ElectAndWrite(&c);
  c.Idle(300 * kMs);
  c.Read(1);  // in the round
  c.Read(1);
  c.Read(1);
  EXPECT_EQ(c.Answer(c.Read(1)), "no");
}

TEST(Read, AFollowerAsksTheMaster) {
  Cluster c(3);
  ElectAndWrite(&c);
  const uint64_t read = c.Read(2);
  EXPECT_EQ(c.Pending(), "2>1 ReadIndex 1\n");
  c.DeliverAll();
  EXPECT_EQ(c.Pending(), "1>2 ReadIndexReply 1 at 2\n");
  c.DeliverAll();
  EXPECT_EQ(c.Answer(read), "at 2");
}

TEST(Read, AFollowersReadTakesTheRoundThatTheMasterNeeds) {
  Cluster c(3);
  ElectAndWrite(&c);
  c.Idle(300 * kMs);
  const uint64_t read = c.Read(2);
  c.Deliver("2>1 ReadIndex");
  EXPECT_FALSE(c.Has("1>2 ReadIndexReply"));
  c.Deliver("1>3 Beat (1,1) commit 2 round 1");
  c.Deliver("3>1 BeatReply");
  c.Deliver("1>2 ReadIndexReply");
  EXPECT_EQ(c.Answer(read), "at 2");
}

TEST(Read, AFollowerWhoseMasterDoesNotAnswerSaysSo) {
  Cluster c(3);
  ElectAndWrite(&c);
  const uint64_t read = c.Read(2);
  c.Cut(1);
  c.Pass(1100 * kMs);
  EXPECT_EQ(c.Answer(read), "no");
}

// A client that had asked a follower waited a second for a dead master, when another had led for
// most of it.
TEST(Read, AFollowerThatPromisesToAnotherNoLongerWaitsForTheOldMaster) {
  Cluster c(3);
  ElectAndWrite(&c);
  const uint64_t read = c.Read(2);
  c.Cut(1);
  while (c[2].promised() == Ballot{1, 1}) {
    EXPECT_EQ(c.Answer(read), "");
    c.Pass(10 * kMs, true);
  }
  EXPECT_EQ(c.Answer(read), "no");
}

TEST(Read, ADeposedMasterDoesNotServe) {
  Cluster c(3);
  ElectAndWrite(&c);
  c.Cut(1);
  c.Pass(2 * kSecond, true);  // the others elect one of them; node 1 notices too
  const int master = c.Serving();
  ASSERT_TRUE(master == 2 || master == 3);
  EXPECT_FALSE(c[1].serving());
  ASSERT_OK(c.Propose(master, "b").status());
  c.Settle();
  EXPECT_EQ(c.Answer(c.Read(1)), "no");
}

TEST(Read, APausedMasterThatWakesUpDoesNotServeFromItsOldLease) {
  Cluster c(3);
  ElectAndWrite(&c);
  // Node 1 sleeps: its clock goes on, it neither ticks nor hears.
  c.Cut(1);
  c.options().heartbeats = true;
  for (int i = 0; i < 400; ++i) {
    for (int n = 1; n <= 3; ++n) c.PassAt(n, 5 * kMs, n != 1);
    c.DeliverAll("2>3");
    c.DeliverAll("3>2");
  }
  const int master = c.Serving() == 1 ? (c[2].serving() ? 2 : 3) : c.Serving();
  ASSERT_TRUE(c[master].serving());
  ASSERT_OK(c.Propose(master, "b").status());
  c.DeliverAll("2>3");
  c.DeliverAll("3>2");
  c.DeliverAll("2>3");
  c.DeliverAll("3>2");
  EXPECT_TRUE(c[1].serving());  // as far as it knows
  c.Drop("");
  const uint64_t read = c.Read(1);
  EXPECT_EQ(c.Answer(read), "");  // a round, no lease
  c.Heal(1);
  c.Settle();
  EXPECT_EQ(c.Answer(read), "no");
}

// --- What counts as a lease
// -----------------------------------------------------------------------

Cluster::Options HeldHeartbeats(int nodes = 3) {
  Cluster::Options options;
  options.nodes = nodes;
  options.heartbeats = false;
  return options;
}

void BeatAll(Cluster* c) {
  for (int i = 1; i <= c->size(); ++i) c->PassAt(i, 80 * kMs);
  while (!c->heartbeats().empty()) c->DeliverHeartbeats();
}

TEST(Lease, CountsOnlyFromAHeartbeatSentAfterThePromiseWasKnown) {
  Cluster c(HeldHeartbeats());
  c.Idle(400 * kMs);
  c.Tick(1);
  c.Tick(2);
  c.Tick(3);  // heartbeats leave
  const std::deque<Heartbeat> early = c.heartbeats();
  c.DropHeartbeats();
  c.Idle(kMs);
  c.Elect(1);
  c.heartbeats() = early;
  while (!c.heartbeats().empty()) c.DeliverHeartbeats();
  EXPECT_GT(c.leases(1).HeldFrom(2).until, c.now(1));  // the lease is there
  EXPECT_FALSE(c[1].LeaseValid(c.now(1)));             // but not for this group
  BeatAll(&c);
  EXPECT_TRUE(c[1].LeaseValid(c.now(1)));
}

TEST(Lease, OfARestartedPeerCountsAfterItConfirmedItsPromise) {
  Cluster c(3);
  ElectAndWrite(&c);
  c.Cut(3);
  c.Restart(2);
  c.Pass(450 * kMs);  // it grants again
  EXPECT_GT(c.leases(1).HeldFrom(2).until, c.now(1));
  EXPECT_FALSE(c[1].LeaseValid(c.now(1)));
  EXPECT_TRUE(c.Has("1>2 Beat (1,1) commit 2")) << c.Pending();
  c.Settle();
  c.Pass(80 * kMs);
  EXPECT_TRUE(c[1].LeaseValid(c.now(1)));
}

TEST(Lease, ARestartedNodeGrantsAndPromisesNothingForAsLongAsItMayHaveGranted) {
  Cluster c(3);
  ElectAndWrite(&c);
  c.Cut(1);
  c.Restart(2);
  c.Idle(290 * kMs);
  c.Inject({7, c.Id(3), c.Id(2), 1, PreVote{{5, 3}, 0}});
  c.Inject({7, c.Id(3), c.Id(2), 1, Prepare{{5, 3}, 1, 0, {}}});
  c.DeliverAll();
  EXPECT_EQ(c.Pending(), "");
  EXPECT_EQ(c[2].promised(), (Ballot{1, 1}));
  c.Campaign(2);
  EXPECT_EQ(c.Pending(), "");
  c.Idle(20 * kMs);
  c.Inject({7, c.Id(3), c.Id(2), 1, Prepare{{5, 3}, 1, 0, {}}});
  c.DeliverAll();
  EXPECT_EQ(c.Pending(), "2>3 Promise (5,3) commit 0 1@(1,1) 2@(1,1)\n");
}

TEST(Lease, APrepareIsRefusedWhileTheLeaseOfAnotherMasterLasts) {
  Cluster c(3);
  ElectAndWrite(&c);
  c.Inject({7, c.Id(3), c.Id(2), 1, Prepare{{5, 3}, 1, 0, {}}});
  c.DeliverAll();
  EXPECT_EQ(c.Pending(), "2>3 Reject (5,3): leased to (1,1)\n");
  c.Drop("");
  c.Idle(310 * kMs);
  c.Inject({7, c.Id(3), c.Id(2), 1, Prepare{{5, 3}, 1, 0, {}}});
  c.DeliverAll();
  EXPECT_EQ(c.Pending(), "2>3 Promise (5,3) commit 2\n");
}

TEST(Lease, APromiseThatMovedIsToldWithTheNextGrant) {
  Cluster c(HeldHeartbeats());
  c.Idle(305 * kMs);
  c.Elect(1);
  BeatAll(&c);
  BeatAll(&c);
  ASSERT_TRUE(c[1].LeaseValid(c.now(1)));
  c.Idle(305 * kMs);
  // Node 2 promises another ballot; its answer to the master's next heartbeat says so.
  c.Inject({7, c.Id(3), c.Id(2), 1, Prepare{{5, 3}, 1, 0, {}}});
  c.DeliverAll();
  c.Drop("");
  c.PassAt(1, 80 * kMs);
  c.DeliverHeartbeats(1, 2);
  c.DeliverHeartbeats(2, 1);
  EXPECT_EQ(c[1].mode(), Mode::kFollower);
}

LeaseTable Table(NodeId node, uint64_t boot, size_t notices = 256) {
  LeaseTable::Options options;
  options.node = node;
  options.boot = boot;
  options.max_notices_per_message = notices;
  LeaseTable table(options);
  table.SetPeers({1, 2}, 0);
  return table;
}

// Everything that waits goes from `a` to `b` and back.
struct Exchange {
  std::vector<std::pair<NodeId, Notice>> notices;
  void Run(LeaseTable* a, LeaseTable* b, Nanos now) {
    std::vector<Heartbeat> out;
    std::vector<Heartbeat> answers;
    std::vector<Heartbeat> none;
    a->Tick(now, &out);
    for (const Heartbeat& heartbeat : out) b->Step(heartbeat, now, &answers, &notices);
    for (const Heartbeat& answer : answers) a->Step(answer, now, &none, &notices);
  }
};

TEST(LeaseTable, AGrantDoesNotCountWhileANoticeIsMissing) {
  LeaseTable a = Table(1, 11);
  LeaseTable b = Table(2, 21, 1);
  Exchange exchange;
  exchange.Run(&a, &b, 100 * kMs);
  const Nanos before = a.HeldFrom(2).sent;
  EXPECT_EQ(before, 100 * kMs);
  b.Notify(1, 5, Notice::Kind::kMoved, {3, 3});
  b.Notify(1, 6, Notice::Kind::kMoved, {3, 3});
  exchange.Run(&a, &b, 200 * kMs);
  EXPECT_EQ(exchange.notices.size(), 1u);
  EXPECT_EQ(a.HeldFrom(2).sent, before);
  exchange.Run(&a, &b, 300 * kMs);
  EXPECT_EQ(exchange.notices.size(), 2u);
  EXPECT_EQ(a.HeldFrom(2).sent, 300 * kMs);
}

TEST(LeaseTable, APeerIsKnownToBeFullAsLongAsItSaysSo) {
  using Space = LeaseTable::Space;
  LeaseTable a = Table(1, 11);
  LeaseTable b = Table(2, 21);
  Exchange exchange;
  EXPECT_EQ(a.SpaceOf(2, 100, 0), Space::kUnknown) << "nothing was heard of it";
  b.SetRoom(4000, true);
  exchange.Run(&a, &b, 100 * kMs);
  EXPECT_EQ(a.SpaceOf(2, 1000, 100 * kMs), Space::kEnough) << "a share: of half, for two nodes";
  EXPECT_EQ(a.SpaceOf(2, 1001, 100 * kMs), Space::kFull);
  b.SetRoom(0, true);
  EXPECT_EQ(b.SpaceOf(2, 100, 100 * kMs), Space::kFull);
  exchange.Run(&a, &b, 200 * kMs);
  EXPECT_EQ(a.SpaceOf(2, 100, 200 * kMs), Space::kFull);
  b.SetRoom(0, false);
  exchange.Run(&a, &b, 300 * kMs);
  EXPECT_EQ(a.SpaceOf(2, 100, 300 * kMs), Space::kUnknown) << "it has not counted yet";
  b.SetRoom(4000, true);
  exchange.Run(&a, &b, 400 * kMs);
  EXPECT_EQ(a.SpaceOf(2, 100, 400 * kMs), Space::kEnough);
  EXPECT_EQ(a.SpaceOf(2, 100, 900 * kMs), Space::kUnknown) << "it may have filled up since";
  EXPECT_EQ(a.SpaceOf(2, 100, 10 * kSecond), Space::kUnknown) << "not heard for long";
}

TEST(LeaseTable, WhatIsUnderWayIsPaidFromTheCredit) {
  using Space = LeaseTable::Space;
  LeaseTable a = Table(1, 11);
  LeaseTable b = Table(2, 21);
  Exchange exchange;
  b.SetRoom(4000, true);
  exchange.Run(&a, &b, 100 * kMs);
  a.Charge(700);
  EXPECT_EQ(a.SpaceOf(2, 300, 110 * kMs), Space::kEnough);
  EXPECT_EQ(a.SpaceOf(2, 301, 110 * kMs), Space::kUnknown) << "not now, but it is not full";
  a.Settle(700);
  EXPECT_EQ(a.SpaceOf(2, 301, 110 * kMs), Space::kUnknown) << "it took the place all the same";

  // The next credit counts what was settled before it was asked for, and nothing else: what was
  // under way may not have arrived.
  a.Charge(200);
  exchange.Run(&a, &b, 200 * kMs);
  EXPECT_EQ(a.SpaceOf(2, 800, 200 * kMs), Space::kEnough);
  EXPECT_EQ(a.SpaceOf(2, 801, 200 * kMs), Space::kUnknown);
  a.Settle(200);
  exchange.Run(&a, &b, 300 * kMs);
  EXPECT_EQ(a.SpaceOf(2, 1000, 300 * kMs), Space::kEnough);
}

TEST(LeaseTable, NothingLongerIsGrantedThanWhatIsStored) {
  LeaseTable a = Table(1, 11);
  LeaseTable b = Table(2, 21);
  b.SetLongestGrant(110 * kMs);
  Exchange exchange;
  exchange.Run(&a, &b, kSecond);
  EXPECT_EQ(b.GrantedUntil(1, 11), kSecond + 110 * kMs);
  EXPECT_EQ(a.HeldFrom(2).until, kSecond + 90 * kMs);
  b.SetLongestGrant(kSecond);
  exchange.Run(&a, &b, 2 * kSecond);
  EXPECT_EQ(b.GrantedUntil(1, 11), 2 * kSecond + LeaseTable::Options{}.lease);
}

TEST(LeaseTable, ANoticeToANodeThatIsNoPeerWaitsForIt) {
  LeaseTable a = Table(1, 11);
  LeaseTable::Options options;
  options.node = 2;
  options.boot = 21;
  LeaseTable b(options);
  b.Notify(1, 5, Notice::Kind::kMoved, {3, 3});
  b.SetPeers({}, kMs);
  b.SetPeers({1}, kMs);
  Exchange exchange;
  exchange.Run(&a, &b, 100 * kMs);
  ASSERT_EQ(exchange.notices.size(), 1u);
  EXPECT_EQ(exchange.notices[0].second.group, 5u);
}

TEST(LeaseTable, NoticesOfAPeerThatLeftAndCameBackAreStillHeard) {
  LeaseTable a = Table(1, 11);
  LeaseTable b = Table(2, 21);
  Exchange exchange;
  b.Notify(1, 5, Notice::Kind::kMoved, {3, 3});
  exchange.Run(&a, &b, 100 * kMs);
  exchange.Run(&a, &b, 200 * kMs);
  EXPECT_EQ(exchange.notices.size(), 1u);
  b.SetPeers({}, 10 * kSecond);
  b.SetPeers({1}, 10 * kSecond);
  b.Notify(1, 5, Notice::Kind::kMoved, {4, 3});
  exchange.Run(&a, &b, 10 * kSecond);
  EXPECT_EQ(exchange.notices.size(), 2u);
}

TEST(LeaseTable, AHeartbeatOfAProcessThatDiedDoesNotDisplaceItsSuccessor) {
  LeaseTable a = Table(1, 11);
  LeaseTable old = Table(2, 21);
  old.SetDurableBatch(5);
  std::vector<Heartbeat> late;
  old.Tick(0, &late);  // sent by the first process, and never heard before its successor was
  LeaseTable b = Table(2, 22);
  b.SetDurableBatch(9);
  Exchange exchange;
  exchange.Run(&a, &b, 100 * kMs);
  exchange.Run(&a, &b, 200 * kMs);
  EXPECT_EQ(a.BootOf(2), 22u);
  std::vector<Heartbeat> answers;
  for (const Heartbeat& heartbeat : late) a.Step(heartbeat, 210 * kMs, &answers, &exchange.notices);
  EXPECT_EQ(a.BootOf(2), 22u);
  EXPECT_TRUE(a.rolled_back().empty());
  exchange.Run(&a, &b, 300 * kMs);
  EXPECT_EQ(a.BootOf(2), 22u);
  EXPECT_EQ(a.HeldFrom(2).sent, 300 * kMs);
}

TEST(LeaseTable, AStoreThatWentBackInTimeIsNoticed) {
  LeaseTable a = Table(1, 11);
  LeaseTable b = Table(2, 21);
  b.SetDurableBatch(9);
  Exchange exchange;
  exchange.Run(&a, &b, 100 * kMs);
  EXPECT_TRUE(a.rolled_back().empty());
  LeaseTable again = Table(2, 22);
  again.SetDurableBatch(8);
  exchange.Run(&a, &again, 200 * kMs);
  exchange.Run(&a, &again, 300 * kMs);
  EXPECT_EQ(a.rolled_back(), std::vector<NodeId>{2});
}

}  // namespace
}  // namespace hydra::paxos::test
