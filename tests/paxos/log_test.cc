// SPDX-License-Identifier: Apache-2.0
//
// The log: proposing, accepting in any order, choosing in order, and what a new master makes of
// what it finds.
#include <gtest/gtest.h>

#include "tests/paxos/cranked.h"
#include "tests/support/gtest_status.h"

namespace hydra::paxos::test {
namespace {

// Master 1 with its no-op chosen and known everywhere, and no lease left to wait for.
void ElectAndLearn(Cluster* c) {
  c->Elect(1);
  c->Pass(30 * kMs, true);
  for (int i = 1; i <= c->size(); ++i) ASSERT_EQ(c->Log(i), "n");
}

// The master is gone, and so is its lease.
void LoseMaster(Cluster* c, int node) {
  c->Crash(node);
  c->Drop("");
  c->Idle(kSecond);
}

TEST(Log, AcceptsArePipelinedAcceptedInAnyOrderAndChosenInOrder) {
  Cluster c(3);
  ElectAndLearn(&c);
  for (const char* entry : {"a", "b", "c"}) ASSERT_OK(c.Propose(1, entry).status());
  EXPECT_EQ(c.Pending(), Lines(R"(
    1>2 Accept (1,1) commit 1: 2
    1>3 Accept (1,1) commit 1: 2
    1>2 Accept (1,1) commit 1: 3
    1>3 Accept (1,1) commit 1: 3
    1>2 Accept (1,1) commit 1: 4
    1>3 Accept (1,1) commit 1: 4
  )"));
  c.Drop("1>3");
  c.Deliver("1>2 Accept (1,1) commit 1: 4");
  c.Deliver("1>2 Accept (1,1) commit 1: 3");
  c.Deliver("2>1 Accepted (1,1): 4");
  EXPECT_EQ(c.Log(1), "n");  // 4 is chosen, but not all below it
  c.Deliver("2>1 Accepted (1,1): 3");
  EXPECT_EQ(c.Log(1), "n");
  c.Deliver("1>2 Accept (1,1) commit 1: 2");
  c.Deliver("2>1 Accepted (1,1): 2");
  EXPECT_EQ(c.Log(1), "n a b c");
  c.Pass(30 * kMs);
  c.Deliver("1>2 Beat (1,1) commit 4");
  EXPECT_EQ(c.Log(2), "n a b c");
}

TEST(Log, SeveralProposalsBetweenTwoOutputsShareAMessage) {
  Cluster c(3);
  ElectAndLearn(&c);
  for (uint64_t digest = 1; digest <= 3; ++digest) {
    ASSERT_OK(c[1].Propose({EntryKind::kCommand, 0, digest, nullptr},
                           std::make_shared<const std::string>("x"), c.now(1))
                  .status());
  }
  c.Tick(1);
  EXPECT_EQ(c.Pending(), Lines(R"(
    1>2 Accept (1,1) commit 1: 2 3 4
    1>3 Accept (1,1) commit 1: 2 3 4
  )"));
}

TEST(Log, LostAcceptsAreSentAgainButNotToThoseWhoAnswered) {
  Cluster c(5);
  ElectAndLearn(&c);
  ASSERT_OK(c.Propose(1, "a").status());
  c.Deliver("1>2 Accept");
  c.Deliver("2>1 Accepted");
  c.Drop("");
  c.Pass(150 * kMs);
  EXPECT_FALSE(c.Has("1>3 Accept"));
  c.Pass(60 * kMs);
  EXPECT_FALSE(c.Has("1>2 Accept"));
  EXPECT_TRUE(c.Has("1>3 Accept (1,1) commit 1: 2"));
  c.Settle();
  EXPECT_EQ(c.Log(1), "n a");
}

TEST(Log, RetransmissionIsBoundedInNumberAndSize) {
  Cluster::Options options;
  options.replica.max_entries_per_message = 4;
  Cluster c(options);
  ElectAndLearn(&c);
  for (int i = 0; i < 10; ++i) ASSERT_OK(c.Propose(1, "e" + std::to_string(i)).status());
  c.Drop("");
  c.Pass(kSecond);
  int messages = 0;
  for (const Message& message : c.messages()) {
    const auto* accept = std::get_if<Accept>(&message.body);
    if (accept == nullptr || message.to != c.Id(2)) continue;
    ++messages;
    EXPECT_LE(accept->entries->size(), 4u);
  }
  EXPECT_LE(messages, 15);  // ten entries, four at a time, five times a second
  EXPECT_GE(messages, 10);
}

TEST(Log, AMajorityCommitsWithoutTheMastersOwnDisk) {
  Cluster c(3);
  ElectAndLearn(&c);
  c.options().flush = false;
  ASSERT_OK(c.Propose(1, "a").status());
  c.DeliverAll();
  c.Flush(2);
  c.Flush(3);
  c.DeliverAll("2>1");
  EXPECT_EQ(c.Log(1), "n");
  c.DeliverAll("3>1");
  EXPECT_EQ(c.Log(1), "n a");
  EXPECT_TRUE(c.HasUnflushed(1));
  // The master forgets it, and learns it again from the others.
  c.Restart(1);
  c.options().flush = true;
  c.Pass(3 * kSecond, true);
  for (int i = 1; i <= 3; ++i) EXPECT_TRUE(c.Log(i).starts_with("n a")) << c.Log(i);
}

TEST(Log, DuplicateVotesCountOnce) {
  Cluster c(5);
  ElectAndLearn(&c);
  ASSERT_OK(c.Propose(1, "a").status());
  c.Deliver("1>2 Accept");
  for (int i = 0; i < 4; ++i) c.Duplicate("2>1 Accepted (1,1): 2");
  c.DeliverAll("2>1");
  EXPECT_EQ(c.Log(1), "n");  // two of five
  c.Deliver("1>3 Accept");
  c.Deliver("3>1 Accepted");
  EXPECT_EQ(c.Log(1), "n a");
}

TEST(Log, DuplicatedAcceptsAreAnsweredAgainAndWrittenOnce) {
  Cluster c(3);
  ElectAndLearn(&c);
  ASSERT_OK(c.Propose(1, "a").status());
  c.Duplicate("1>2 Accept");
  c.options().flush = false;
  c.DeliverAll("1>2 Accept");
  EXPECT_EQ(c.Pending(), "1>3 Accept (1,1) commit 1: 2\n");
  c.Flush(2);
  EXPECT_EQ(c.Pending(), Lines(R"(
    1>3 Accept (1,1) commit 1: 2
    2>1 Accepted (1,1): 2
  )"));
  c.Inject({7, c.Id(1), c.Id(2), 1, c.Copy("1>3 Accept").body});
  c.Deliver("1>2 Accept");
  EXPECT_FALSE(c.HasUnflushed(2));
  EXPECT_TRUE(c.Has("2>1 Accepted (1,1): 2"));
}

// --- Recovery of open instances
// -------------------------------------------------------------------

TEST(Recovery, TheHighestBallotsValueIsProposedAgain) {
  Cluster c(5);
  ElectAndLearn(&c);
  ASSERT_OK(c.Propose(1, "a").status());  // 2: a in (1,1), at node 1 alone
  LoseMaster(&c, 1);
  c.Campaign(2);
  while (c[2].mode() != Mode::kMaster) c.DeliverAll();
  LoseMaster(&c, 2);  // 2: a no-op in (2,2), at node 2 alone
  c.Restart(1);
  c.Restart(2);
  c.Idle(kSecond);
  c.Cut(4);
  c.Cut(5);
  c.Campaign(3);
  c.DeliverAll();
  c.DeliverAll();
  c.DeliverAll();
  EXPECT_EQ(c.Pending(), Lines(R"(
    1>3 Promise (3,3) commit 0 2@(1,1)
    2>3 Promise (3,3) commit 0 2@(2,2)
  )"));
  c.DeliverAll();
  EXPECT_TRUE(c.Has("3>1 Accept (3,3) commit 1: 2n 3n")) << c.Pending();
  c.Settle();
  EXPECT_EQ(c.Log(3), "n n n");
}

TEST(Recovery, GapsAreFilledWithNoops) {
  Cluster c(3);
  ElectAndLearn(&c);
  for (const char* entry : {"a", "b", "c"}) ASSERT_OK(c.Propose(1, entry).status());
  c.Deliver("1>2 Accept (1,1) commit 1: 4");
  LoseMaster(&c, 1);
  c.Campaign(2);
  while (c[2].mode() != Mode::kMaster) c.DeliverAll();
  EXPECT_EQ(c.Pending(), Lines(R"(
    2>1 Accept (2,2) commit 1: 2n 3n 4 5n
    2>3 Accept (2,2) commit 1: 2n 3n 4 5n
  )"));
  c.Settle();
  EXPECT_EQ(c.Log(2), "n n n c n");
  // The old master's own copies of a and b are replaced.
  c.Restart(1);
  c.Pass(kSecond, true);
  EXPECT_TRUE(c.Log(1).starts_with("n n n c n")) << c.Log(1);
}

TEST(Recovery, CopiesOfAnOldBallotAreNotCountedAsChosen) {
  Cluster c(3);
  ElectAndLearn(&c);
  ASSERT_OK(c.Propose(1, "a").status());
  c.DeliverAll("1>");  // a is with a majority, and nobody knows
  LoseMaster(&c, 1);
  c.Campaign(2);
  while (c[2].mode() != Mode::kMaster) c.DeliverAll();
  EXPECT_EQ(c[2].commit(), 1u);
  EXPECT_EQ(c.Pending(), Lines(R"(
    2>1 Accept (2,2) commit 1: 2 3n
    2>3 Accept (2,2) commit 1: 2 3n
  )"));
  EXPECT_FALSE(c[2].serving());
  c.Settle();
  EXPECT_EQ(c.Log(2), "n a n");
}

TEST(Recovery, ABodyThatAPeerHoldsIsFetched) {
  Cluster c(3);
  ElectAndLearn(&c);
  ASSERT_OK(c.Propose(1, "a").status());
  c.Deliver("1>3 Accept");
  LoseMaster(&c, 1);
  c.Campaign(2);
  while (c[2].mode() != Mode::kRecovering) c.DeliverAll();
  EXPECT_EQ(c.Pending(), "2>3 FetchBody 2@(1,1)\n");
  c.DeliverAll();
  EXPECT_EQ(c.Pending(), "3>2 FetchedBody 2@(1,1) found\n");
  c.Settle();
  EXPECT_EQ(c.Log(2), "n a n");
}

TEST(Recovery, ALostRequestForABodyIsRepeated) {
  Cluster c(3);
  ElectAndLearn(&c);
  ASSERT_OK(c.Propose(1, "a").status());
  c.Deliver("1>3 Accept");
  LoseMaster(&c, 1);
  c.Campaign(2);
  while (c[2].mode() != Mode::kRecovering) c.DeliverAll();
  c.Drop("2>3 FetchBody");
  c.Pass(210 * kMs);
  EXPECT_TRUE(c.Has("2>3 FetchBody 2@(1,1)"));
  c.Settle();
  EXPECT_EQ(c.Log(2), "n a n");
}

TEST(Recovery, ABodyOfItsOwnLogIsLoadedByTheOwner) {
  Cluster c(3);
  ElectAndLearn(&c);
  ASSERT_OK(c.Propose(1, "a").status());
  c.Deliver("1>2 Accept");
  LoseMaster(&c, 1);
  c.Checkpoint(2);
  c.Restart(2);  // it knows the entry, the body is on disk
  c.Idle(kSecond);
  c.options().bodies = false;
  c.Campaign(2);
  for (int i = 0; i < 4; ++i) c.DeliverAll();
  EXPECT_EQ(c[2].mode(), Mode::kRecovering);
  EXPECT_EQ(c.Pending(), "");
  c.LoadBodies(2);
  EXPECT_EQ(c[2].mode(), Mode::kMaster);
  c.Settle();
  EXPECT_EQ(c.Log(2), "n a n");
  EXPECT_EQ(c.Log(3), "n");
  c.Pass(30 * kMs, true);
  EXPECT_EQ(c.Log(3), "n a n");
}

TEST(Recovery, ACandidateThatIsBehindCatchesUpFirst) {
  Cluster c(3);
  ElectAndLearn(&c);
  c.Cut(2);
  ASSERT_OK(c.Propose(1, "a").status());
  ASSERT_OK(c.Propose(1, "b").status());
  c.Settle();
  c.Pass(30 * kMs, true);
  EXPECT_EQ(c.Log(3), "n a b");
  LoseMaster(&c, 1);
  c.Heal(2);
  c.Campaign(2);
  while (c[2].mode() != Mode::kRecovering) c.DeliverAll();
  EXPECT_EQ(c.Pending(), "2>3 CatchUp from 2 x2\n");
  c.Settle();
  EXPECT_EQ(c.Log(2), "n a b n");
}

// --- Commit at a follower
// -------------------------------------------------------------------------

TEST(Commit, OfAnotherBallotIsNotAppliedWhereAnotherValueMayHaveBeenAccepted) {
  Cluster c(5);
  ElectAndLearn(&c);
  ASSERT_OK(c.Propose(1, "x").status());
  c.Deliver("1>3 Accept");  // 3 holds x in (1,1)
  LoseMaster(&c, 1);
  c.Cut(3);
  c.Elect(2);
  EXPECT_EQ(c.Log(2), "n n");  // 2 is a no-op
  c.Heal(3);
  c.Inject({7, c.Id(2), c.Id(3), 1, Beat{c[2].ballot(), 2, 0}});
  c.Deliver("2>3 Beat");
  EXPECT_EQ(c.Log(3), "n");
  c.Drop("");
  c.PassAt(3, 30 * kMs);
  EXPECT_EQ(c.Pending(), "3>2 CatchUp from 2 x1\n");
  c.Deliver("3>2 CatchUp");
  EXPECT_EQ(c.Pending(), "2>3 CatchUpReply commit 2 2\n");
  c.DeliverAll();
  EXPECT_EQ(c.Log(3), "n n");
}

TEST(Commit, OfAnotherBallotIsConfirmedWithoutABodyWhereTheValueIsTheSame) {
  Cluster c(5);
  ElectAndLearn(&c);
  ASSERT_OK(c.Propose(1, "x").status());
  c.Deliver("1>3 Accept");
  c.Deliver("1>4 Accept");
  LoseMaster(&c, 1);
  c.Cut(3);
  c.Elect(2);
  EXPECT_EQ(c.Log(2), "n x n");
  c.Heal(3);
  c.Inject({7, c.Id(2), c.Id(3), 1, Beat{c[2].ballot(), 2, 0}});
  c.Deliver("2>3 Beat");
  EXPECT_EQ(c.Log(3), "n");
  c.Drop("");
  c.PassAt(3, 30 * kMs);
  c.Deliver("3>2 CatchUp from 2 x1");
  EXPECT_EQ(c.Pending(), "2>3 CatchUpReply commit 3 2=\n");
  c.Deliver("2>3 CatchUpReply");
  EXPECT_EQ(c.Log(3), "n x");
}

// A peer may hold the chosen value from a ballot below that of another value here.
TEST(Commit, AValueThatThePeerHoldsFromALowerBallotReplacesOneThatWasNotChosen) {
  Cluster c(5);
  ElectAndLearn(&c);
  ASSERT_OK(c.Propose(1, "v").status());  // v in (1,1), at node 1 alone
  LoseMaster(&c, 1);
  c.Campaign(2);
  while (c[2].mode() != Mode::kMaster) c.DeliverAll();
  LoseMaster(&c, 2);  // a no-op in (2,2), at node 2 alone
  c.Restart(1);
  c.Idle(kSecond);
  c.Campaign(3);
  c.DeliverAll("3>1 PreVote");
  c.DeliverAll("3>4 PreVote");
  c.DeliverAll("1>3");
  c.DeliverAll("4>3");
  c.DeliverAll("3>1 Prepare");
  c.DeliverAll("3>4 Prepare");
  c.DeliverAll("1>3");
  c.DeliverAll("4>3");
  c.Deliver("3>1 FetchBody 2@(1,1)");
  c.Deliver("1>3 FetchedBody");
  c.Cut(1);  // it promised, and takes no part in what follows
  c.Settle();
  ASSERT_EQ(c.Log(3), "n v n");  // v in (3,3) at 3, 4 and 5
  c.Pass(30 * kMs, true);
  c.Heal(1);
  c.Cut(4);
  c.Cut(5);
  c.Inject({7, c.Id(3), c.Id(1), 1, Beat{c[3].ballot(), 3, 0}});
  c.Deliver("3>1 Beat");
  c.Drop("");
  c.PassAt(1, 30 * kMs);
  c.Settle();
  ASSERT_EQ(c.Log(1), "n v n");  // confirmed: its record is still that of (1,1)
  c.Restart(2);
  c.Inject({7, c.Id(1), c.Id(2), 1, CatchUpReply{1, 1, 0, {}}});
  c.DeliverAll();
  c.Inject({7, c.Id(2), c.Id(1), 1, CatchUp{1, {{}, {}}}});
  c.DeliverAll();
  c.DeliverAll("1>2 CatchUpReply commit 3 1 2");
  EXPECT_EQ(c.Log(2), "n v");
  // And its old master's accept, which comes late, changes nothing after a restart.
  c.Restart(2);
  auto entries = std::make_shared<std::vector<AcceptEntry>>();
  entries->push_back({2, {}, nullptr});
  c.Inject({7, {2, 1}, c.Id(2), 1, Accept{{2, 2}, 1, entries}});
  c.DeliverAll();
  c.Heal(4);
  c.Heal(5);
  c.Pass(2 * kSecond, true);
  EXPECT_TRUE(c.Log(2).starts_with("n v n")) << c.Log(2);
}

// --- Limits
// ---------------------------------------------------------------------------------------

TEST(Limits, AFullWindowRefusesWithBusy) {
  Cluster::Options options;
  options.replica.window_instances = 4;
  options.replica.window_bytes = 1000;
  Cluster c(options);
  ElectAndLearn(&c);
  for (int i = 0; i < 4; ++i) ASSERT_OK(c.Propose(1, "e" + std::to_string(i)).status());
  EXPECT_CODE(c.Propose(1, "f").status(), Code::kBusy);
  c.Settle();
  ASSERT_OK(c.Propose(1, "big", 5000).status());  // alone, even if larger than the window
  EXPECT_CODE(c.Propose(1, "g", 1).status(), Code::kBusy);
  c.Settle();
  ASSERT_OK(c.Propose(1, "h", 600).status());
  EXPECT_CODE(c.Propose(1, "i", 600).status(), Code::kBusy);
  c.Settle();
  EXPECT_OK(c.Propose(1, "i", 600).status());
}

TEST(Limits, EntriesThatWaitToBeAppliedRefuseProposals) {
  Cluster::Options options;
  options.replica.apply_backlog = 4;
  Cluster c(options);
  ElectAndLearn(&c);
  c.options().apply = false;
  for (int i = 0; i < 4; ++i) {
    ASSERT_OK(c.Propose(1, "e" + std::to_string(i)).status());
    c.DeliverAll();
    c.DeliverAll();
  }
  EXPECT_CODE(c.Propose(1, "f").status(), Code::kBusy);
  c.Apply(1);
  EXPECT_OK(c.Propose(1, "f").status());
}

TEST(Limits, AFollowerTakesNothingFarAheadOfWhatItApplied) {
  Cluster::Options options;
  options.replica.apply_backlog = 8;
  options.replica.window_instances = 4;
  Cluster c(options);
  ElectAndLearn(&c);  // applied 1, so the limit is 1 + 8 + 2 * 4
  const auto accept = [&](Instance instance) {
    auto entries = std::make_shared<std::vector<AcceptEntry>>();
    entries->push_back({instance, {}, nullptr});
    c.Inject({7, c.Id(1), c.Id(2), 1, Accept{{1, 1}, 1, entries}});
    c.DeliverAll("1>2");
    return c.TakePending();
  };
  EXPECT_EQ(accept(18), "");
  EXPECT_EQ(accept(17), "2>1 Accepted (1,1): 17\n");
}

TEST(DurableBeforeSaid, APromiseImpliedByAnAcceptBeyondTheLimitIsRecordedToo) {
  Cluster::Options options;
  options.replica.apply_backlog = 8;
  options.replica.window_instances = 4;
  Cluster c(options);
  ElectAndLearn(&c);
  c.options().flush = false;
  auto entries = std::make_shared<std::vector<AcceptEntry>>();
  entries->push_back({100, {}, nullptr});
  c.Inject({7, c.Id(2), c.Id(3), 1, Accept{{9, 2}, 1, entries}});
  c.DeliverAll();
  c.Inject({7, c.Id(2), c.Id(3), 1, Beat{{9, 2}, 1, 1}});
  c.DeliverAll();
  EXPECT_EQ(c.Pending(), "");
  c.Flush(3);
  EXPECT_EQ(c.Pending(), "3>2 BeatReply (9,2) round 1\n");
}

}  // namespace
}  // namespace hydra::paxos::test
