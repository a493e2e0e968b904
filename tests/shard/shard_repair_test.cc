// SPDX-License-Identifier: Apache-2.0
//
// Three nodes by hand, whose disks rot: whoever reads gets what was written, and the copy is
// mended.
#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "tests/shard/nodes_by_hand.h"

namespace hydra {
namespace {

class ShardRepairTest : public NodesByHand {};

TEST_F(ShardRepairTest, ALinearizableReadAtAMasterWhoseCopyIsRottenIsServed) {
  Start(3);
  MustWrite(5, 'a');
  MustWrite(6, 'b');
  MustWrite(7, 'c');
  Rot(Master(), 'b');
  EXPECT_EQ(Text(Master(), 5, 3, false), "abc");
  EXPECT_EQ(Repairs(Master()).reads, 1u);
  ASSERT_TRUE(Until([&] { return Repairs(Master()).repaired == 1; }));
  EXPECT_TRUE(Scrub(Master()).empty());
  const uint64_t messages = block_messages_;
  EXPECT_EQ(Text(Master(), 5, 3, true), "abc");
  EXPECT_EQ(block_messages_, messages) << "it is mended: nobody was asked again";
}

TEST_F(ShardRepairTest, ALocalReadAtAFollowerIsServedAndMendsItsCopy) {
  Start(3);
  MustWrite(5, 'a');
  const NodeId node = Follower();
  Rot(node, 'a');
  EXPECT_EQ(Text(node, 5, 1, true), "a");
  EXPECT_TRUE(Scrub(node).empty());
}

TEST_F(ShardRepairTest, ManyReadsOfARottenBlockAskForItOnce) {
  Start(3);
  MustWrite(5, 'a');
  const NodeId node = Follower();
  Rot(node, 'a');
  std::vector<uint64_t> ids;
  for (int i = 0; i < 10; ++i) ids.push_back(Submit(node, Read(5, 1, true)));
  ASSERT_TRUE(Until([&] { return replies_.contains(ids.back()); }));
  for (const uint64_t id : ids) EXPECT_EQ(replies_[id].answer, ShardAnswer::kDone);
  EXPECT_EQ(block_messages_, 2u);
  EXPECT_EQ(Repairs(node).found, 1u);
}

TEST_F(ShardRepairTest, ACompareOnARottenBlockIsDecidedByItsTrueContent) {
  Start(3);
  MustWrite(5, 'a');
  Rot(Master(), 'a');
  ShardRequest request = Write(5, 'b');
  request.context.kind = RequestKind::kCompareAndWrite;
  request.compare = {Block('a'), 0, kPageSize};
  const ShardReply reply = Do(Master(), std::move(request));
  EXPECT_EQ(reply.answer, ShardAnswer::kDone);
  EXPECT_EQ(reply.outcome.code, Code::kOk);
  AwaitAll();
  EXPECT_EQ(Text(Master(), 5, 1, false), "b");
}

TEST_F(ShardRepairTest, APartOfARottenBlockIsWrittenIntoItsTrueContent) {
  Start(3);
  MustWrite(5, 'a');
  Rot(Master(), 'a');
  ShardRequest request = Write(5, 'x');
  request.op.crcs.clear();
  request.part_offset = 512;
  request.part_bytes = 512;
  EXPECT_EQ(Do(Master(), std::move(request)).answer, ShardAnswer::kDone);
  const ShardReply reply = Do(Master(), Read(5, 1, false));
  ASSERT_TRUE(reply.data.has_value());
  EXPECT_EQ(reply.data->data.data()[511], 'a');
  EXPECT_EQ(reply.data->data.data()[600], 'x');
  EXPECT_EQ(reply.data->data.data()[1024], 'a');
  EXPECT_EQ(reply.data->data.data()[3000], 'a');
}

TEST_F(ShardRepairTest, IfTheFirstPeerIsRottenTooTheOtherIsAskedAndBothAreMended) {
  Start(3);
  MustWrite(5, 'a');
  Rot(1, 'a');
  Rot(2, 'a');
  EXPECT_EQ(Text(1, 5, 1, true), "a");
  EXPECT_EQ(Text(2, 5, 1, true), "a");
  ASSERT_TRUE(Until([&] { return Repairs(1).under_way + Repairs(2).under_way == 0; }));
  EXPECT_TRUE(Scrub(1).empty());
  EXPECT_TRUE(Scrub(2).empty());
}

TEST_F(ShardRepairTest, WhatNoPeerHasIsReportedForTheseBlocksOnly) {
  Start(3);
  MustWrite(5, 'a');
  MustWrite(6, 'b');
  for (const NodeId id : {1, 2, 3}) Rot(id, 'a');
  EXPECT_EQ(Text(Master(), 5, 1, false), "?");
  EXPECT_EQ(Text(Master(), 6, 1, false), "b");
  // Whoever looks for the bad block of many reads again and again, and does not wait for each
  // round.
  const Nanos before = now_;
  for (int i = 0; i < 8; ++i) EXPECT_EQ(Text(Master(), 5, 2, false), "?");
  EXPECT_LE(now_ - before, 2 * kSecond);
  EXPECT_EQ(Repairs(Master()).repaired, 0u);
  // Given up in the end, not for ever on the wire.
  ASSERT_TRUE(Until([&] { return Repairs(Master()).under_way == 0; }, 300 * kSecond));
  EXPECT_GE(Repairs(Master()).given_up, 1u);
}

TEST_F(ShardRepairTest, AGroupOfOneSaysSoAtOnce) {
  Start(1);
  ASSERT_EQ(Do(1, Write(5, 'a')).answer, ShardAnswer::kDone);
  Rot(1, 'a');
  const Nanos before = now_;
  EXPECT_EQ(Text(1, 5, 1, false), "?");
  EXPECT_LE(now_ - before, 2 * kHandTick);
  EXPECT_EQ(block_messages_, 0u);
}

TEST_F(ShardRepairTest, ACopyThatIsNotTheBlockIsNotTaken) {
  Start(3);
  MustWrite(5, 'a');
  Rot(Master(), 'a');
  int tampered = 0;
  tamper_ = [&](BlockMessage* message) {
    if (!message->answer || !message->found || tampered++ > 0) return;
    message->data = {Block('z'), 0, kPageSize};  // as if another version, or damaged on its way
  };
  EXPECT_EQ(Text(Master(), 5, 1, false), "a");
  EXPECT_GE(tampered, 2);
  EXPECT_TRUE(Scrub(Master()).empty());
}

TEST_F(ShardRepairTest, ADeadPeerCostsATimeOutNotTheRead) {
  Start(3);
  MustWrite(5, 'a');
  const NodeId master = Master();
  machines_[master == 3 ? 2 : 3].up = false;
  Rot(master, 'a');
  EXPECT_EQ(Text(master, 5, 1, true), "a");
}

// A peer that has not applied the version yet has nothing to give; it is asked again.
TEST_F(ShardRepairTest, APeerThatIsBehindIsNotBelieved) {
  Start(3);
  MustWrite(5, 'o');
  const NodeId master = Master();
  const NodeId behind = master == 3 ? 2 : 3;
  const NodeId other = 6 - master - behind;
  machines_[behind].up = false;
  ASSERT_EQ(Do(master, Write(5, 'n')).answer, ShardAnswer::kDone);
  ASSERT_TRUE(Until([&] { return Replica(other).applied() == Replica(master).commit(); }));
  machines_[other].up = false;
  Rot(master, 'n');
  Submit(master, Read(5, 1, true));
  const uint64_t id = last_id_;
  Settle();
  EXPECT_FALSE(replies_.contains(id));
  machines_[behind].up = true;  // its block is the old one until it has caught up
  ASSERT_TRUE(Until([&] { return replies_.contains(id); }));
  if (replies_[id].answer == ShardAnswer::kDone) {
    EXPECT_EQ(replies_[id].data->data.data()[100], 'n');
  } else {
    EXPECT_EQ(replies_[id].answer, ShardAnswer::kDamaged);
  }
}

TEST_F(ShardRepairTest, ABlockOverwrittenWhileItIsMissedIsReadAgain) {
  Start(3);
  MustWrite(5, 'a');
  const NodeId node = Follower();
  Rot(node, 'a');
  tamper_ = [](BlockMessage* message) { message->to = 99; };  // lost
  const uint64_t id = Submit(node, Read(5, 1, true));
  Settle();
  EXPECT_FALSE(replies_.contains(id));
  MustWrite(5, 'b');
  ASSERT_TRUE(Until([&] { return replies_.contains(id); }));
  ASSERT_EQ(replies_[id].answer, ShardAnswer::kDone);
  EXPECT_EQ(replies_[id].data->data.data()[100], 'b');
  EXPECT_EQ(Repairs(node).under_way, 0u);
}

// Its overlay is full, so the engine takes no copy in: whoever reads gets it all the same.
TEST_F(ShardRepairTest, ManyCopiesThatTheEngineRefusesDoNotKeepAFurtherReadWaiting) {
  constexpr Lba kMany = 40;
  overlay_rows_ = kMany / 2;
  Start(3);
  const NodeId node = Follower();
  machines_[node].checkpoints = false;
  for (Lba lba = 0; lba < kMany; ++lba) MustWrite(lba, static_cast<char>('A' + lba));
  for (Lba lba = 0; lba < kMany; ++lba) Rot(node, static_cast<char>('A' + lba));
  std::vector<uint64_t> ids;
  for (Lba lba = 0; lba < kMany; ++lba) ids.push_back(Submit(node, Read(lba, 1, true)));
  EXPECT_TRUE(Until([&] {
    return std::ranges::all_of(ids, [&](uint64_t id) { return replies_.contains(id); });
  }));
  for (const uint64_t id : ids) EXPECT_EQ(replies_[id].answer, ShardAnswer::kDone);
  EXPECT_EQ(Repairs(node).repaired, 0u);
  machines_[node].checkpoints = true;
  ASSERT_TRUE(Until([&] { return Repairs(node).under_way == 0; }));
  EXPECT_EQ(Repairs(node).repaired, kMany);
  EXPECT_TRUE(Scrub(node).empty());
}

TEST_F(ShardRepairTest, ACopyThatComesTooLateBecauseTheBlockWasOverwrittenIsNotCountedAsARepair) {
  Start(3);
  MustWrite(5, 'a');
  const NodeId master = Master();
  Rot(master, 'a');
  machines_[master].writes = false;
  EXPECT_EQ(Text(master, 5, 1, true), "a");
  EXPECT_EQ(Repairs(master).under_way, 1u) << "the copy waits for the disk";
  ASSERT_EQ(Do(master, Write(5, 'b')).answer, ShardAnswer::kDone) << "the others have it";
  machines_[master].writes = true;
  ASSERT_TRUE(Until([&] { return Repairs(master).under_way == 0; }));
  EXPECT_EQ(Text(master, 5, 1, true), "b");
  EXPECT_EQ(Repairs(master).found, 1u);
  EXPECT_EQ(Repairs(master).repaired, 0u);
}

TEST_F(ShardRepairTest, AScrubFindsAndMendsWhatNobodyReads) {
  Start(3);
  for (Lba lba = 0; lba < 20; ++lba) MustWrite(lba, static_cast<char>('a' + lba));
  const NodeId node = Follower();
  machines_[node].engine->RequestCheckpoint();
  Settle();
  MustWrite(30, 'z');  // in the overlay alone
  for (const char fill : {'c', 'h', 'z'}) Rot(node, fill);
  Scrubber& scrubber = machines_[node].core->scrubber();
  scrubber.Start(64 << 20, now_);
  ASSERT_TRUE(Until([&] { return scrubber.rounds() == 1; }));
  EXPECT_EQ(scrubber.round().found, 3u);
  EXPECT_FALSE(scrubber.round().running);
  EXPECT_GE(scrubber.round().bytes, 21 * kPageSize);
  ASSERT_TRUE(Until([&] { return Repairs(node).repaired == 3; }));
  EXPECT_TRUE(Scrub(node).empty());
}

// A replica that was dropped and came back has another number in the store than its group.
TEST_F(ShardRepairTest, WhatWasMendedStaysCountedWhenItsGroupIsDropped) {
  Start(3);
  MustWrite(5, 'a');
  const NodeId node = Follower();
  Rot(node, 'a');
  EXPECT_EQ(Text(node, 5, 1, true), "a");
  ASSERT_TRUE(Until([&] { return Repairs(node).repaired == 1; }));
  ASSERT_OK(machines_[node].core->DropGroup(kHandGroup, now_));
  EXPECT_EQ(Repairs(node).found, 1u);
  EXPECT_EQ(Repairs(node).repaired, 1u);
  EXPECT_EQ(Repairs(node).under_way, 0u);
}

TEST_F(ShardRepairTest, AReplicaThatCameBackIsMendedLikeAnyOther) {
  Start(3);
  MustWrite(5, 'a');
  MustWrite(6, 'b');
  const NodeId node = Follower();
  NodeCore& core = *machines_[node].core;
  std::vector<paxos::Member> others = Replica(Master()).config().members();
  std::erase_if(others, [&](const paxos::Member& member) { return member.id.node == node; });
  const auto change = [&](std::vector<paxos::Role> roles) {
    std::vector<paxos::Member> members = others;
    for (const paxos::Role role : roles) members.push_back({{node, 2}, role});
    ASSERT_TRUE(Until([&] {
      const paxos::Replica& master = Replica(Master());
      const auto wanted = paxos::Config(0, members).members();
      if (master.config().members() == wanted && !master.changing_members()) return true;
      // Refused while a learner is behind.
      machines_[Master()].core->shard(kHandGroup)->ChangeMembers(members, now_).IgnoreError();
      return false;
    }));
  };
  change({});
  // A read of the old replica's rotten copy is under way when that is dropped.
  Rot(node, 'a');
  auto job = machines_[node].engine->PlanRead(kHandGroup, 5, 1);
  ASSERT_OK(job.status());
  ShardRead late{kHandGroup, 7, std::move(*job), kPageSize};
  late.job->Run();
  ASSERT_OK(core.DropGroup(kHandGroup, now_));
  ASSERT_OK(core.CreateGroup(kHandGroup, 1, 2, {}, now_));
  ASSERT_NE(core.shard(kHandGroup)->store_group(), kHandGroup);
  core.ReadDone(std::move(late), now_);
  change({paxos::Role::kLearner});
  change({paxos::Role::kVoter});
  AwaitAll();
  EXPECT_EQ(Repairs(node).found, 0u) << "what the old one had is nobody's matter";
  EXPECT_EQ(Text(node, 5, 2, true), "ab");
  ASSERT_EQ(Scrub(node).size(), 0u);

  Rot(node, 'b');
  EXPECT_EQ(Text(node, 5, 2, true), "ab");
  ASSERT_TRUE(Until([&] { return Repairs(node).repaired == 1; }));
  Rot(node, 'a');
  core.scrubber().Start(64 << 20, now_);
  ASSERT_TRUE(Until([&] { return Repairs(node).repaired == 2; })) << "found by a scrub";
  EXPECT_TRUE(Scrub(node).empty());
  // And what it has is given to others.
  const NodeId other = 6 - Master() - node;
  machines_[other].up = false;
  Rot(Master(), 'a');
  EXPECT_EQ(Text(Master(), 5, 2, true), "ab");
}

TEST_F(ShardRepairTest, AScrubKeepsToItsRateAndYieldsToClients) {
  Start(1);
  for (Lba lba = 0; lba < 200; ++lba) {
    ASSERT_EQ(Do(1, Write(lba, 'a')).answer, ShardAnswer::kDone);
  }
  Scrubber& scrubber = machines_[1].core->scrubber();
  const auto seconds = [&](bool clients) {
    const Nanos began = now_;
    const uint64_t rounds = scrubber.rounds();
    scrubber.Start(400 << 10, now_);
    EXPECT_TRUE(Until([&] {
      if (clients) Submit(1, Read(0, 1, true));
      return scrubber.rounds() > rounds;
    }));
    return static_cast<double>(now_ - began) / kSecond;
  };
  // 800 KiB at 400 KiB/s.
  const double alone = seconds(false);
  EXPECT_GT(alone, 1.5);
  EXPECT_LT(alone, 3.0);
  EXPECT_GT(seconds(true), 2.5 * alone);
  scrubber.Start(1, now_);
  scrubber.Stop(now_);
  EXPECT_FALSE(scrubber.round().running);
  EXPECT_FALSE(scrubber.round().complete);
}

// An entry that rots before it is applied is mended when it is.
TEST_F(ShardRepairTest, ARottenOpenEntryFoundByAScrubIsMendedOnceItIsApplied) {
  Start(3);
  MustWrite(5, 'a');
  const NodeId master = Master();
  const NodeId node = Follower();
  // The follower accepts, and does not hear that it is chosen.
  const uint64_t id = Submit(master, Write(6, 'b'));
  Settle();
  ASSERT_TRUE(replies_.contains(id));
  ASSERT_LT(Replica(node).applied(), Replica(master).commit());
  Rot(node, 'b');
  std::vector<Damage> found = Scrub(node);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].what, Damage::What::kRecordPayload);
  machines_[node].core->shard(kHandGroup)->OnDamage(found[0], now_);
  AwaitAll();
  ASSERT_TRUE(Until([&] { return Repairs(node).repaired == 1; }));
  EXPECT_TRUE(Scrub(node).empty());
}

// A restart finds that what it accepted is rotten, and fetches it before it counts on it.
TEST_F(ShardRepairTest, ARottenOpenEntryFoundByARestartIsFetchedBeforeItIsApplied) {
  Start(3);
  MustWrite(5, 'a');
  const NodeId master = Master();
  const NodeId node = Follower();
  Submit(master, Write(6, 'b'));
  Submit(master, Write(7, 'c'));
  Settle();
  ASSERT_LT(Replica(node).applied(), Replica(master).commit());
  // Sealed: otherwise rot of the last batch cannot be told from a tear.
  now_ += 20 * kMillisecond;
  Batch* seal = machines_[node].engine->NextBatch(now_);
  ASSERT_NE(seal, nullptr);
  std::vector<Completion> none;
  const Status written = seal->Write();
  machines_[node].engine->BatchDone(seal, written, now_, &none);
  Rot(node, 'b');
  Restart(node);
  EXPECT_EQ(machines_[node].engine->recovery().faulty, 1u);
  AwaitAll();
  EXPECT_EQ(Text(node, 5, 3, true), "abc");
  EXPECT_TRUE(Scrub(node).empty()) << "it was taken in anew, not applied as it was";
  EXPECT_EQ(Repairs(node).found, 0u);
}

TEST_F(ShardRepairTest, WhoHasTheBlockInItsLogAloneGivesItToo) {
  Start(3);
  const ShardReply written = Do(Master(), Write(5, 'a'));
  ASSERT_EQ(written.answer, ShardAnswer::kDone);
  MustWrite(5, 'b');  // what the maps have
  BlockMessage told;
  tamper_ = [&](BlockMessage* message) { told = *message; };
  BlockMessage asked;
  asked.group = kHandGroup;
  asked.from = Master();
  asked.to = Follower();
  asked.lba = 5;
  asked.version = written.outcome.version;
  asked.crc = Crc32c(Block('a').span());
  machines_[asked.to].core->Receive(asked, now_);
  Settle();
  ASSERT_TRUE(told.answer && told.found);
  ASSERT_EQ(told.data.length, kPageSize);
  EXPECT_EQ(std::memcmp(told.data.data(), Block('a').data(), kPageSize), 0);

  asked.crc = Crc32c(Block('c').span());  // another was chosen than this one accepted
  machines_[asked.to].core->Receive(asked, now_);
  Settle();
  EXPECT_TRUE(told.answer);
  EXPECT_FALSE(told.found);
}

}  // namespace
}  // namespace hydra
