// SPDX-License-Identifier: Apache-2.0
//
// Replicas that return, are told what their blocks are, and get the blocks later.
#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "tests/shard/nodes_by_hand.h"

namespace hydra {
namespace {

constexpr NodeId kNowhere = 99;

class ShardOwedTest : public NodesByHand {
 protected:
  void SetUp() override {
    bare_ = true;
    shard_options_.near_bytes = 0;
  }

  // Node 3 misses the blocks from 0 on, returns, and knows them; but nobody sends them while
  // `held_`. The first was written twice.
  void ReturnWithout(const std::string& blocks) {
    Start(3);
    MoveTo(1);
    tamper_owed_ = [this](OwedMessage* message) {
      ++owed_messages_;
      if (held_) message->to = kNowhere;
    };
    MustWrite(0, 'z');
    Kill(3);
    for (size_t lba = 0; lba < blocks.size(); ++lba) {
      ASSERT_EQ(Do(Master(), Write(lba, blocks[lba])).answer, ShardAnswer::kDone);
    }
    Restart(3);
    ASSERT_TRUE(Until([&] { return IsBack(3) && OwedBlocks(3) == blocks.size(); }))
        << OwedBlocks(3);
  }
  void Kill(NodeId id) { machines_[id].up = false; }
  bool IsBack(NodeId id) {
    Shard* shard = machines_[id].core->shard(kHandGroup);
    return shard->serves_local() && Replica(id).applied() == Replica(Master()).commit();
  }
  size_t OwedBlocks(NodeId id) {
    return machines_[id].core->shard(kHandGroup)->OwedBytes() / kPageSize;
  }
  bool IsWhole(NodeId id) { return !machines_[id].core->shard(kHandGroup)->Owes(); }
  void MoveTo(NodeId id) {
    ASSERT_TRUE(Until([&] {
      const NodeId master = Master();
      if (master == id) return true;
      if (master != 0) {
        machines_[master]
            .core->shard(kHandGroup)
            ->TouchReplica()
            .HandOver({id, 1}, now_)
            .IgnoreError();
      }
      return false;
    }));
  }
  // Without waiting for more than this.
  ShardAnswer AnswerWithin(NodeId node, Lba lba, bool local, Nanos patience) {
    const uint64_t id = Submit(node, Read(lba, 1, local));
    EXPECT_TRUE(Until([&] { return replies_.contains(id); }, patience));
    return replies_[id].answer;
  }

  bool held_ = true;
  uint64_t owed_messages_ = 0;
};

TEST_F(ShardOwedTest, AReplicaThatReturnsTakesPartAtOnceAndGetsItsBlocksLater) {
  ReturnWithout("abcdef");
  EXPECT_FALSE(machines_[1].core->shard(kHandGroup)->replica().PeerIsWhole({3, 1}));
  // It is of the majority: what is new goes on without node 2.
  Kill(2);
  ASSERT_EQ(Do(Master(), Write(20, 'x')).answer, ShardAnswer::kDone);
  EXPECT_EQ(OwedBlocks(3), 6u) << "what is new is there";
  Restart(2);
  held_ = false;
  ASSERT_TRUE(Until([&] { return IsWhole(3); }));
  ASSERT_TRUE(Until([&] {
    return machines_[1].core->shard(kHandGroup)->replica().PeerIsWhole({3, 1});
  }));
  EXPECT_EQ(machines_[3].engine->Stats().delivered_blocks, 6u);
  const uint64_t messages = block_messages_;
  EXPECT_EQ(Text(3, 0, 6, true), "abcdef");
  EXPECT_EQ(block_messages_, messages) << "all of them are here";
  EXPECT_EQ(Repairs(3).found, 0u) << "nothing was rotten";
}

TEST_F(ShardOwedTest, WhatIsWrittenOrDeletedAgainIsOwedNoMore) {
  ReturnWithout("abcdef");
  MustWrite(1, 'B');
  ShardRequest unmap = Write(2, ' ');
  unmap.op = {};
  unmap.context.kind = RequestKind::kUnmap;
  unmap.op.kind = OpKind::kUnmap;
  unmap.op.lba = 2;
  unmap.op.count = 2;
  unmap.payload.clear();
  ASSERT_EQ(Do(Master(), std::move(unmap)).answer, ShardAnswer::kDone);
  AwaitAll();
  EXPECT_EQ(OwedBlocks(3), 3u);
  held_ = false;
  ASSERT_TRUE(Until([&] { return IsWhole(3); }));
  EXPECT_EQ(machines_[3].engine->Stats().delivered_blocks, 3u);
}

TEST_F(ShardOwedTest, ReadsOfOwedBlocksAreServedFromPeers) {
  ReturnWithout("abc");
  EXPECT_EQ(Text(3, 0, 1, true), "a");
  MoveTo(3);
  EXPECT_EQ(Text(3, 0, 3, false), "abc") << "also by a master, at once";
  ASSERT_TRUE(Until([&] { return OwedBlocks(3) == 0; })) << "and they stay";
}

TEST_F(ShardOwedTest, WhileNoPeerHasSentABlockItsReadersAreToldToTryAgain) {
  ReturnWithout("abc");
  tamper_ = [](BlockMessage* message) { message->to = kNowhere; };
  EXPECT_EQ(AnswerWithin(3, 1, true, 10 * kSecond), ShardAnswer::kBusy);
  EXPECT_EQ(Text(3, 30, 1, true), std::string(1, '\0')) << "others are read meanwhile";
  tamper_ = nullptr;
  ASSERT_TRUE(Until([&] { return AnswerWithin(3, 1, true, 10 * kSecond) == ShardAnswer::kDone; }));
}

TEST_F(ShardOwedTest, AMasterWhosePeersAllDenyItSaysInTheEndThatABlockIsLost) {
  ReturnWithout("abc");
  MoveTo(3);
  tamper_ = [](BlockMessage* message) {
    message->found = false;
    message->data = {};
  };
  ASSERT_TRUE(
      Until([&] { return AnswerWithin(3, 1, false, 10 * kSecond) == ShardAnswer::kDamaged; },
            600 * kSecond));
  tamper_ = nullptr;
  held_ = false;
  ASSERT_TRUE(Until([&] { return IsWhole(3); })) << "it goes on asking all the same";
  EXPECT_EQ(Text(3, 0, 3, false), "abc");
}

TEST_F(ShardOwedTest, ARestartForgetsNothingThatIsOwed) {
  ReturnWithout("abcdef");
  Restart(3);
  EXPECT_FALSE(IsWhole(3)) << "before it has counted";
  ASSERT_TRUE(Until([&] { return IsBack(3) && OwedBlocks(3) == 6; }));
  held_ = false;
  ASSERT_TRUE(Until([&] { return IsWhole(3); }));
  Restart(3);
  ASSERT_TRUE(Until([&] { return IsBack(3) && IsWhole(3); }));
  EXPECT_EQ(Text(3, 0, 6, true), "abcdef");
}

TEST_F(ShardOwedTest, WrongBytesAreNotTaken) {
  ReturnWithout("abcdef");
  int wrong = 0;
  tamper_owed_ = [&](OwedMessage* message) {
    if (!message->answer || message->from != 1 || message->payload.empty()) return;
    ++wrong;
    const Buffer bytes = Block('!');
    message->payload[0] = {bytes, 0, kPageSize};
    message->payload.resize(1);
    message->blocks.resize(1);
  };
  ASSERT_TRUE(Until([&] { return IsWhole(3); })) << "the other peer is asked";
  EXPECT_GT(wrong, 0);
  EXPECT_EQ(Text(3, 0, 6, true), "abcdef");
}

TEST_F(ShardOwedTest, APeerThatHasNothingOfItIsNotAskedForAllOfIt) {
  ReturnWithout("abcdef");
  int asked = 0;
  tamper_owed_ = [&](OwedMessage* message) {
    if (!message->answer || message->from != 1) return;
    ++asked;
    message->payload.clear();
    message->blocks.clear();
  };
  const Nanos before = now_;
  ASSERT_TRUE(Until([&] { return IsWhole(3); })) << "the other peer has it";
  EXPECT_LT(now_ - before, 2 * kSecond);  // of which one for the answer that never came
  EXPECT_LE(asked, 1);
}

TEST_F(ShardOwedTest, WhatNobodySendsManyOfIsAskedForBlockByBlock) {
  ReturnWithout("abcdef");
  // As if neither had applied what it has in its log.
  tamper_owed_ = [&](OwedMessage* message) {
    message->payload.clear();
    if (message->answer) message->blocks.clear();
  };
  ASSERT_TRUE(Until([&] { return IsWhole(3); }, 600 * kSecond));
  EXPECT_EQ(Text(3, 0, 6, true), "abcdef");
  EXPECT_EQ(Repairs(3).found, 0u);
}

TEST_F(ShardOwedTest, WhoIsLeftAloneSaysWhichBlocksAreLost) {
  ReturnWithout("abc");
  Kill(1);
  Kill(2);
  ASSERT_OK(machines_[3].core->shard(kHandGroup)->ForceSole(now_));
  ASSERT_TRUE(Until([&] { return Master() == 3; }));
  const auto one = [&] { return AnswerWithin(3, 1, false, 10 * kSecond); };
  ASSERT_TRUE(Until([&] { return Replica(3).config().members().size() == 1; }));
  EXPECT_EQ(one(), ShardAnswer::kDamaged);
  ASSERT_EQ(Do(3, Write(1, 'B')).answer, ShardAnswer::kDone);
  EXPECT_EQ(one(), ShardAnswer::kDone) << "until they are written anew";
  EXPECT_EQ(OwedBlocks(3), 2u);
}

TEST_F(ShardOwedTest, AStartCountsOnlyWhereSomethingMayBeOwed) {
  ReturnWithout("abc");
  EXPECT_TRUE(machines_[3].core->shard(kHandGroup)->identity().owes);
  machines_[3].checkpoints = machines_[2].checkpoints = false;  // nor counts
  Restart(3);
  Restart(2);
  EXPECT_FALSE(IsWhole(3));
  EXPECT_TRUE(IsWhole(2)) << "it never was";
  machines_[3].checkpoints = machines_[2].checkpoints = true;
  held_ = false;
  ASSERT_TRUE(Until([&] { return IsWhole(3); }));
  ASSERT_TRUE(Until([&] { return !machines_[3].core->shard(kHandGroup)->identity().owes; }));
  Restart(3);
  EXPECT_TRUE(IsWhole(3));
}

TEST(ReplicaIdentity, SaysWhetherBlocksMayBeOwedAlsoOfASurvivor) {
  for (const bool owes : {false, true}) {
    for (const std::optional<Instance> sole_at : {std::optional<Instance>(), {Instance{77}}}) {
      ReplicaIdentity identity;
      identity.incarnation = 3;
      identity.lease = kSecond;
      identity.first_members = {{{1, 1}, paxos::Role::kVoter}};
      identity.owes = owes;
      identity.sole_at = sole_at;
      const std::string bytes = identity.Encode();
      EXPECT_EQ(bytes[0], owes ? 3 : sole_at ? 2 : 1) << "older builds read what they know";
      const auto back = ReplicaIdentity::Decode(AsBytes(bytes));
      ASSERT_OK(back.status());
      EXPECT_EQ(back->owes, owes);
      EXPECT_EQ(back->sole_at, sole_at);
      EXPECT_EQ(back->incarnation, 3u);
      EXPECT_EQ(back->first_members, identity.first_members);
      for (size_t length = 0; length + 1 < bytes.size(); ++length) {
        EXPECT_FALSE(ReplicaIdentity::Decode(AsBytes(bytes.substr(0, length))).ok()) << length;
      }
    }
  }
}

TEST_F(ShardOwedTest, AnAnswerToAnEarlierQuestionIsIgnored) {
  ReturnWithout("abc");
  tamper_owed_ = [&](OwedMessage* message) {
    if (message->answer) message->request += 1000;
  };
  EXPECT_FALSE(Until([&] { return OwedBlocks(3) != 3; }, 5 * kSecond));
  tamper_owed_ = nullptr;
  ASSERT_TRUE(Until([&] { return IsWhole(3); }));
}

TEST_F(ShardOwedTest, NobodyWhoMayHaveAloneWhatIsOwedIsTakenOutOfTheGroup) {
  ReturnWithout("abc");
  const std::vector<paxos::Member> without_2 = {{{1, 1}, paxos::Role::kVoter},
                                                {{3, 1}, paxos::Role::kVoter}};
  EXPECT_EQ(machines_[1].core->shard(kHandGroup)->ChangeMembers(without_2, now_).code(),
            Code::kFailedPrecondition);
  held_ = false;
  ASSERT_TRUE(Until(
      [&] { return machines_[1].core->shard(kHandGroup)->ChangeMembers(without_2, now_).ok(); }));
}

TEST_F(ShardOwedTest, OfOlderNodesItGetsWholeBlocks) {
  bare_ = false;
  shard_options_.delta_gain_bytes = 0;
  Start(3);
  MoveTo(1);
  Kill(3);
  for (int round = 0; round < 40; ++round) {
    for (Lba lba = 0; lba < 4; ++lba) {
      ASSERT_EQ(Do(Master(), Write(lba, static_cast<char>('a' + round % 26))).answer,
                ShardAnswer::kDone);
    }
  }
  tamper_owed_ = [&](OwedMessage*) { ++owed_messages_; };
  Restart(3);
  ASSERT_TRUE(Until([&] { return IsBack(3) && IsWhole(3); }));
  EXPECT_EQ(owed_messages_, 0u);
  EXPECT_EQ(Text(3, 0, 4, true), "nnnn");
}

}  // namespace
}  // namespace hydra
