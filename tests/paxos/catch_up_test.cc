// SPDX-License-Identifier: Apache-2.0
//
// Replicas that are behind: by log shipping, and by installing a peer's state.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/paxos/cranked.h"
#include "tests/support/gtest_status.h"

namespace hydra::paxos::test {
namespace {

// Node 3 has missed "a b c".
void LeaveBehind(Cluster* c) {
  c->Elect(1);
  c->Pass(30 * kMs, true);
  c->Cut(3);
  for (const char* entry : {"a", "b", "c"}) ASSERT_OK(c->Propose(1, entry).status());
  c->Settle();
  c->Pass(30 * kMs, true);
  ASSERT_EQ(c->Log(2), "n a b c");
  c->Drop("");
  c->Heal(3);
}

// Tells node 3 how far the others are.
void Tell(Cluster* c) {
  c->Inject({7, c->Id(1), c->Id(3), 1, Beat{c->operator[](1).ballot(), 4, 0}});
  c->Deliver("1>3 Beat");
  c->Drop("");
}

TEST(CatchUp, MissedEntriesAreShippedInPieces) {
  Cluster::Options options;
  options.replica.max_entries_per_message = 2;
  Cluster c(options);
  LeaveBehind(&c);
  Tell(&c);
  c.PassAt(3, 20 * kMs);
  EXPECT_EQ(c.Pending(), "3>1 CatchUp from 2 x2\n");
  c.DeliverAll();
  EXPECT_EQ(c.Pending(), "1>3 CatchUpReply commit 4 2 3\n");
  c.DeliverAll();
  EXPECT_EQ(c.Log(3), "n a b");
  EXPECT_EQ(c.Pending(), Lines(R"(
    3>1 CatchUp from 4 x1
    3>1 Accepted (1,1): 2-3
  )"));
  c.DeliverAll();
  c.DeliverAll();
  EXPECT_EQ(c.Log(3), "n a b c");
  EXPECT_EQ(c.TakePending(), "3>1 Accepted (1,1): 4\n");
}

// Each accept that follows tells of more that is chosen, and must not put the question off again.
TEST(CatchUp, AStreamOfAcceptsDoesNotKeepAFollowerFromAskingForTheOneItMissed) {
  Cluster c(3);
  c.Elect(1);
  c.Pass(30 * kMs, true);
  ASSERT_OK(c.Propose(1, "lost").status());
  c.Drop("1>2 Accept");
  c.Settle();
  bool asked = false;
  for (int i = 0; i < 100 && !asked; ++i) {
    ASSERT_OK(c.Propose(1, fmt::format("e{}", i)).status());
    c.DeliverAll("1>");
    asked = c.Has("2>1 CatchUp");
    c.DeliverAll("3>1");
    for (int node = 1; node <= 3; ++node) c.PassAt(node, kMs, false);
    if (i % 10 == 0) c.Tick(1);  // node 2 ticks at the wrong moments only
  }
  EXPECT_TRUE(asked);
  c.Settle();
}

TEST(CatchUp, AnyPeerServesAndALostAnswerIsAskedForAgain) {
  Cluster c(3);
  LeaveBehind(&c);
  Tell(&c);
  c.Cut(1);
  for (int i = 0; i < 40 && c.Log(3) == "n"; ++i) {
    c.PassAt(3, 50 * kMs, false);
    c.options().heartbeats = false;
    c.Tick(3);
    c.DeliverAll();
    c.DeliverAll();
  }
  EXPECT_EQ(c.Log(3), "n a b c");
}

// The members it knows of were all given new names while it was away; only the master's own words
// tell it one.
TEST(CatchUp, AMasterThatWasGivenANewNameIsAskedAgainAfterALostAnswer) {
  Cluster c(3);
  LeaveBehind(&c);
  const MemberId master{2, 5};
  c.Inject({7, master, c.Id(3), 1, Beat{{9, 2}, 4, 0}});
  c.DeliverAll();
  c.Drop("");
  int asked = 0;
  for (int i = 0; i < 100; ++i) {
    c.PassAt(3, 50 * kMs, false);
    c.options().heartbeats = false;
    c.Tick(3);
    for (const Message& message : c.messages()) {
      if (message.to == master && std::holds_alternative<CatchUp>(message.body)) ++asked;
    }
    c.Drop("");
  }
  EXPECT_GT(asked, 5);
}

TEST(CatchUp, WhatItAcceptedInTheSameBallotNeedsNoCatchUp) {
  Cluster c(3);
  c.Elect(1);
  c.Pass(30 * kMs, true);
  ASSERT_OK(c.Propose(1, "a").status());
  c.Settle();
  EXPECT_EQ(c.Log(3), "n");
  c.Pass(30 * kMs);
  c.Deliver("1>3 Beat (1,1) commit 2");
  EXPECT_EQ(c.Log(3), "n a");
  EXPECT_FALSE(c.Has("3>1 CatchUp"));
}

TEST(CatchUp, ABacklogOfUnappliedEntriesStopsIt) {
  Cluster::Options options;
  options.replica.apply_backlog = 3;
  options.replica.max_entries_per_message = 1;
  Cluster c(options);
  LeaveBehind(&c);
  for (const char* entry : {"d", "e"}) {
    c.Cut(3);
    ASSERT_OK(c.Propose(1, entry).status());
    c.Settle();
    c.Heal(3);
  }
  c.options().apply = false;
  Tell(&c);
  for (int i = 0; i < 20; ++i) {
    c.PassAt(3, 20 * kMs);
    c.DeliverAll("3>1 CatchUp");
    c.DeliverAll("1>3 CatchUpReply");
    c.Drop("3>1 Accepted");
  }
  EXPECT_EQ(c[3].commit(), 4u);  // a, b and c wait to be applied
  c.PassAt(3, kSecond);
  EXPECT_FALSE(c.Has("3>1 CatchUp"));
  c.Drop("");
  c.options().apply = true;
  c.Pass(kSecond, true);
  EXPECT_TRUE(c.Log(3).starts_with("n a b c d e")) << c.Log(3);
}

// --- Installing
// -----------------------------------------------------------------------------------

void LeaveBehindTruncated(Cluster* c) {
  LeaveBehind(c);
  c->Truncate(1, 3);
  c->Truncate(2, 3);
  Tell(c);
  c->PassAt(3, 20 * kMs);
  c->Deliver("3>1 CatchUp from 2 x3");
  EXPECT_EQ(c->Pending(), "1>3 CatchUpReply commit 4 truncated 3\n");
  c->options().bodies = false;
  c->DeliverAll();
  EXPECT_TRUE(c->operator[](3).installing());
  EXPECT_EQ(c->Pending(), "3>1 InstallRequest base 1\n");
}

TEST(Install, BeginsWhereTheLogIsTruncatedAndEndsInTheSameState) {
  Cluster c(3);
  LeaveBehindTruncated(&c);
  c.options().bodies = true;
  c.DeliverAll();
  EXPECT_EQ(c.Pending(), "1>3 InstallChunk as of 4\n");
  c.Settle();
  EXPECT_FALSE(c[3].installing());
  EXPECT_EQ(c.Log(3), "n a b c");
  c.Pass(30 * kMs, true);
  ASSERT_OK(c.Propose(1, "d").status());
  c.Settle();
  c.Pass(30 * kMs, true);
  EXPECT_EQ(c.Log(3), "n a b c d");
}

TEST(Install, IsExclusive) {
  Cluster c(3);
  LeaveBehindTruncated(&c);
  c.DeliverAll();
  c.DeliverAll();
  EXPECT_EQ(c.Pieces(3), 1);
  // Commits, catch-up answers, elections, requests for state: nothing of it touches the state.
  ASSERT_OK(c.Propose(1, "d").status());
  c.Deliver("1>3 Accept");
  c.Deliver("3>1 Accepted");  // accepting is no matter of state
  c.Inject({7, c.Id(1), c.Id(3), 1, Beat{{1, 1}, 5, 0}});
  c.Inject({7, c.Id(2), c.Id(3), 1, CatchUpReply{2, 5, 4, {}}});
  c.Inject({7, c.Id(2), c.Id(3), 1, InstallRequest{9, 0, ""}});
  c.DeliverAll();
  c.Drop("");
  c.Campaign(3);
  c.PassAt(3, 3 * kSecond);
  EXPECT_EQ(c.Pending(), "");
  EXPECT_EQ(c.Log(3), "n");
  EXPECT_EQ(c[3].commit(), 1u);
}

TEST(Install, ResumesWithItsCursorAfterARestart) {
  Cluster c(3);
  LeaveBehindTruncated(&c);
  c.DeliverAll();
  c.DeliverAll();
  c.StorePiece(3);
  c.Drop("");
  c.Restart(3);
  EXPECT_TRUE(c[3].installing());
  c.Tick(3);
  ASSERT_TRUE(c.Has("3>")) << c.Pending();
  EXPECT_EQ(std::get<InstallRequest>(c.messages().front().body).cursor, "one");
  c.options().bodies = true;
  c.Settle();
  EXPECT_EQ(c.Log(3), "n a b c");
}

TEST(Install, AnotherSourceIsAskedAfterFailures) {
  Cluster c(3);
  LeaveBehindTruncated(&c);
  c.Drop("");
  bool other = false;
  for (int i = 0; i < 60 && !other; ++i) {
    c.PassAt(3, kSecond);
    other = c.Has("3>2 InstallRequest");
    c.Drop("");
  }
  EXPECT_TRUE(other);
}

TEST(Install, StaleAndDoubledChunksAreIgnored) {
  Cluster c(3);
  LeaveBehindTruncated(&c);
  c.DeliverAll();
  const Message chunk = c.Copy("1>3 InstallChunk");
  c.DeliverAll();
  EXPECT_EQ(c.Pieces(3), 1);
  c.StorePiece(3);  // asks for the next
  c.Inject(chunk);
  c.Deliver("1>3 InstallChunk");
  EXPECT_EQ(c.Pieces(3), 0);
  Message wrong = chunk;
  std::get<InstallChunk>(wrong.body).cursor = "one";
  c.Inject(wrong);  // the cursor asked for, but of another transfer
  c.Deliver("1>3 InstallChunk");
  EXPECT_EQ(c.Pieces(3), 0);
  c.Settle();
  EXPECT_EQ(c.Log(3), "n a b c");
}

TEST(Install, BringsTheConfiguration) {
  Cluster::Options options;
  options.nodes = 4;
  options.voters = 3;
  Cluster c(options);
  c.Elect(1);
  c.Pass(30 * kMs, true);
  c.Cut(3);
  ASSERT_OK(c.Reconfigure(1, {c.Voter(1), c.Voter(2), c.Voter(3), c.Learner(4)}));
  c.Settle();
  ASSERT_OK(c.Propose(1, "a").status());
  c.Settle();
  c.Pass(kSecond, true);
  for (const int i : {1, 2, 4}) c.Truncate(i, 3);
  c.Heal(3);
  c.Pass(2 * kSecond, true);
  EXPECT_EQ(c.Log(3), "n {1 2 3 4l} n a");
  EXPECT_EQ(c[3].config(), c[1].config());
}

TEST(Install, ACandidateBehindTheTruncationPointInstallsFirst) {
  Cluster c(3);
  LeaveBehind(&c);
  c.Truncate(1, 4);
  c.Truncate(2, 4);
  c.Crash(1);
  c.Idle(kSecond);
  c.Campaign(3);
  c.Settle();
  EXPECT_EQ(c[3].mode(), Mode::kFollower);
  EXPECT_EQ(c.Log(3), "n a b c");
  c.Pass(3 * kSecond, true);
  EXPECT_NE(c.Serving(), 0);
}

}  // namespace
}  // namespace hydra::paxos::test
