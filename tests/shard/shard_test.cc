// SPDX-License-Identifier: Apache-2.0
//
// One node by hand: a shard on an engine on a simulated disk. The test says when the disk writes,
// when a read is carried out, and what the other members say.
#include <cstring>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "base/crc32c.h"
#include "base/sim_disk.h"
#include "daemon/node_core.h"
#include "tests/support/gtest_status.h"

namespace hydra {
namespace {

constexpr GroupId kGroup = 1;

class ShardTest : public testing::Test {
 protected:
  ShardTest() {
    engine_options_.inline_map = true;
    engine_options_.spare_segments = 1;
    engine_options_.map_write_buffer = 64 * 1024;
    engine_options_.map_cache = 64 * 1024;
    engine_options_.ballast_bytes = 0;
    options_.node = 1;
    options_.boot = 77;
  }

  // Node 1 of a group of so many voters.
  void Start(NodeId voters) {
    CreateOptions create;
    create.segment_bytes = 512 * 1024;
    create.store = Uuid{};
    create.store->bytes[0] = 1;
    ASSERT_OK(Engine::Create(&disk_, "/store", create));
    engine_options_.fs = &disk_;
    engine_options_.dir = "/store";
    auto engine = Engine::Open(engine_options_);
    ASSERT_OK(engine.status());
    engine_ = std::move(*engine);
    node_ = std::make_unique<NodeCore>(options_, engine_.get(), now_);
    ASSERT_OK(node_->Start(now_));
    std::vector<paxos::Member> members;
    for (NodeId id = 1; id <= voters; ++id) members.push_back({{id, 1}, paxos::Role::kVoter});
    ASSERT_OK(node_->CreateGroup(kGroup, 1, 1, members, now_));
    Flush();
  }
  // The process ends, and another begins.
  void Restart() {
    ASSERT_OK(engine_->Close());  // asks for the groups' states
    node_.reset();
    engine_.reset();
    auto engine = Engine::Open(engine_options_);
    ASSERT_OK(engine.status());
    engine_ = std::move(*engine);
    node_ = std::make_unique<NodeCore>(options_, engine_.get(), now_);
    ASSERT_OK(node_->Start(now_));
  }
  // The only voter, serving, with a session open.
  void StartAlone() {
    Start(1);
    for (int i = 0; i < 300 && !shard().ready(); ++i) {
      now_ += 10 * kMillisecond;
      node_->Tick(now_);
      Flush();
    }
    ASSERT_TRUE(shard().ready());
    ShardRequest open;
    open.context.kind = RequestKind::kOpenSession;
    open.context.timeout = 10 * kSecond;
    open.op.kind = OpKind::kOpaque;
    session_ = VersionInstance(Do(std::move(open)).outcome.version);
    ASSERT_NE(session_, 0u);
  }

  Shard& shard() { return *node_->shard(kGroup); }

  void Pump() {
    NodeOutput out;
    node_->Pump(now_, &out);
    for (PeerMessage& message : out.messages) {
      if (auto* inner = std::get_if<paxos::Message>(&message)) sent_.push_back(std::move(*inner));
    }
    for (ShardReply& reply : out.replies) replies_[reply.id] = std::move(reply);
    for (ShardRead& read : out.reads) reads_.push_back(std::move(read));
    ASSERT_OK(node_->failed());
  }
  // The disk writes all that there is.
  void Flush() {
    Pump();
    for (bool moved = true; moved;) {
      moved = false;
      while (std::unique_ptr<Job> job = engine_->NextJob()) {
        job->Run();
        engine_->FinishJob(std::move(job));
      }
      while (Batch* batch = engine_->NextBatch(now_)) {
        std::vector<Completion> completions;
        const Status written = batch->Write();
        engine_->BatchDone(batch, written, now_, &completions);
        node_->Completed(completions, now_);
        Pump();
        moved = true;
      }
    }
  }
  void RunReads() {
    for (ShardRead& read : std::exchange(reads_, {})) {
      read.job->Run();
      node_->ReadDone(std::move(read), now_);
    }
    Pump();
  }

  // --- Clients. ---
  uint64_t Submit(ShardRequest request) {
    request.id = ++last_id_;
    node_->Submit(kGroup, std::move(request), now_);
    Pump();
    return last_id_;
  }
  bool Answered(uint64_t id) const { return replies_.contains(id); }
  const ShardReply& Reply(uint64_t id) {
    EXPECT_TRUE(replies_.contains(id));
    return replies_[id];
  }
  const ShardReply& Do(ShardRequest request) {
    const uint64_t id = Submit(std::move(request));
    Flush();
    return Reply(id);
  }
  static Buffer Block(char fill) {
    Buffer block = Buffer::Allocate(kPageSize);
    std::memset(block.span().data(), fill, kPageSize);
    return block;
  }
  ShardRequest Mutation(RequestKind kind, OpKind op, Lba lba) {
    ShardRequest request;
    request.context.kind = kind;
    request.context.session = session_;
    request.context.seq = ++last_seq_;
    request.context.lowest_unanswered = 1;
    request.op.kind = op;
    request.op.lba = lba;
    request.op.count = 1;
    return request;
  }
  ShardRequest Write(Lba lba, char fill) {
    ShardRequest request = Mutation(RequestKind::kWrite, OpKind::kWrite, lba);
    const Buffer block = Block(fill);
    request.op.block_pages = 1;
    request.op.crcs = {Crc32c(block.span())};
    request.payload = {{block, 0, kPageSize}};
    return request;
  }
  ShardRequest CompareAndWrite(Lba lba, char expected, char fill) {
    ShardRequest request = Write(lba, fill);
    request.context.kind = RequestKind::kCompareAndWrite;
    request.compare = {Block(expected), 0, kPageSize};
    return request;
  }
  ShardRequest Close() {
    ShardRequest request;
    request.context.kind = RequestKind::kCloseSession;
    request.context.session = session_;
    request.op.kind = OpKind::kOpaque;
    return request;
  }
  static ShardRequest LocalRead(Lba lba) {
    ShardRequest request;
    request.kind = ShardRequest::Kind::kReadLocal;
    request.lba = lba;
    request.count = 1;
    return request;
  }
  // What the replica itself holds.
  char LocalBlock(Lba lba) {
    const uint64_t id = Submit(LocalRead(lba));
    RunReads();
    const ShardReply& reply = Reply(id);
    EXPECT_EQ(reply.answer, ShardAnswer::kDone);
    return reply.data ? static_cast<char>(reply.data->data.span()[100]) : '?';
  }

  // --- The other members. ---
  void Receive(NodeId from, paxos::MessageBody body, GroupId group = kGroup) {
    node_->Receive(paxos::Message{group, {from, 1}, {1, 1}, 1000 + uint64_t{from}, std::move(body)},
                   now_);
    Pump();
  }
  paxos::AcceptEntry Accepting(Instance instance, Lba lba, char fill) {
    const ShardRequest write = Write(lba, fill);
    EntryBuilder builder(1);
    EXPECT_OK(builder.Add(write.op, write.context));
    auto body = std::make_shared<EntryBody>();
    body->entry = builder.Build(0);
    body->payload = write.payload;
    const auto meta = MetaOf(body->entry, instance);
    EXPECT_OK(meta.status());
    return {instance, *meta, std::move(body)};
  }
  static paxos::Accept Accept(const Ballot& ballot, Instance commit,
                              std::vector<paxos::AcceptEntry> entries) {
    return {ballot, commit,
            std::make_shared<const std::vector<paxos::AcceptEntry>>(std::move(entries))};
  }
  // The others choose, as the first entry, node 1 as this incarnation and themselves as they were.
  void Rename(uint32_t incarnation) {
    auto body = std::make_shared<EntryBody>();
    body->entry = ConfigEntry({{{1, incarnation}, paxos::Role::kLearner},
                               {{2, 1}, paxos::Role::kVoter},
                               {{3, 1}, paxos::Role::kVoter}});
    const auto meta = MetaOf(body->entry, 1);
    ASSERT_OK(meta.status());
    Receive(2, Accept({1, 2}, 0, {{1, *meta, std::move(body)}}));
    Flush();
    Receive(2, Accept({1, 2}, 1, {}));
    Flush();
  }
  uint32_t incarnation() { return shard().replica().options().self.incarnation; }
  paxos::CatchUpReply CatchUp(Instance from) {
    sent_.clear();
    Receive(2, paxos::CatchUp{from, {{}}});
    RunReads();
    for (const paxos::Message& message : sent_) {
      if (const auto* reply = std::get_if<paxos::CatchUpReply>(&message.body)) return *reply;
    }
    ADD_FAILURE() << "no answer";
    return {};
  }

  SimDisk disk_{SimDisk::Options{}};
  EngineOptions engine_options_;
  NodeCore::Options options_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<NodeCore> node_;
  Nanos now_ = kSecond;
  std::vector<paxos::Message> sent_;
  std::map<uint64_t, ShardReply> replies_;
  std::vector<ShardRead> reads_;
  Instance session_ = 1;
  uint64_t last_id_ = 0;
  uint64_t last_seq_ = 0;
};

// --- Who a replica is ---------------------------------------------------------------------------

// The former disk of a node that was replaced may hear of its successor from a peer that knows the
// group's log and not yet the catalogue: two would vote under one name.
TEST_F(ShardTest, TakesNoNameThatMayBeAnotherStores) {
  Start(3);
  Rename(2);
  ASSERT_EQ(shard().replica().applied(), 1u);
  EXPECT_EQ(incarnation(), 1u);
  Restart();
  Flush();
  EXPECT_EQ(incarnation(), 1u);
  shard().BeNamed(2);
  Flush();
  EXPECT_EQ(incarnation(), 2u);
  Restart();
  EXPECT_EQ(incarnation(), 2u);
}

TEST_F(ShardTest, TakesTheNameThatItsStoreWasGivenWhenItHearsOfIt) {
  Start(3);
  shard().BeNamed(2);
  EXPECT_EQ(incarnation(), 1u);
  Rename(2);
  EXPECT_EQ(incarnation(), 2u);
}

// --- A master that proposes ---------------------------------------------------------------------

TEST_F(ShardTest, WhatArrivesWhileAnEntryIsUnderWayGoesTogetherInTheNext) {
  StartAlone();
  const Instance before = shard().replica().last();
  const uint64_t first = Submit(Write(1, 'a'));
  const uint64_t second = Submit(Write(2, 'b'));
  const uint64_t third = Submit(Write(3, 'c'));
  EXPECT_EQ(shard().replica().last(), before + 1);
  Flush();
  EXPECT_EQ(shard().replica().last(), before + 2);
  for (const uint64_t id : {first, second, third}) EXPECT_EQ(Reply(id).answer, ShardAnswer::kDone);
  EXPECT_EQ(LocalBlock(1), 'a');
  EXPECT_EQ(LocalBlock(2), 'b');
  EXPECT_EQ(LocalBlock(3), 'c');
}

TEST_F(ShardTest, WhatIsLargeEnoughDoesNotWaitForTheEntryBefore) {
  options_.shard.gather_bytes = 2 * kPageSize;
  StartAlone();
  const Instance before = shard().replica().last();
  Submit(Write(1, 'a'));
  Submit(Write(2, 'b'));
  EXPECT_EQ(shard().replica().last(), before + 1);
  Submit(Write(3, 'c'));
  EXPECT_EQ(shard().replica().last(), before + 2);
  Flush();
  EXPECT_EQ(LocalBlock(3), 'c');
}

// --- A follower --------------------------------------------------------------------------------

TEST_F(ShardTest, WhatIsAppliedButNotDurableIsNotShippedAsChosen) {
  Start(3);
  Receive(2, Accept({1, 2}, 0, {Accepting(1, 5, 'a')}));
  Flush();
  // Another value, in a later ballot, is chosen and applied before the disk has it.
  const paxos::AcceptEntry chosen = Accepting(1, 5, 'b');
  Receive(3, Accept({2, 3}, 1, {chosen}));
  ASSERT_EQ(shard().replica().applied(), 1u);
  EXPECT_TRUE(CatchUp(1).entries.empty());
  Flush();
  const paxos::CatchUpReply reply = CatchUp(1);
  ASSERT_EQ(reply.entries.size(), 1u);
  EXPECT_EQ(reply.entries[0].meta.digest, chosen.meta.digest);
}

TEST_F(ShardTest, TheRecordThatWasChosenIsAppliedNotTheOneThatTheEngineHas) {
  engine_options_.queue_records = 1;
  Start(3);
  Receive(2, Accept({1, 2}, 0, {Accepting(1, 5, 'a')}));
  Flush();
  Receive(3, Accept({2, 3}, 0, {Accepting(2, 6, 'x')}));  // fills the engine's queue
  Receive(3, Accept({2, 3}, 1, {Accepting(1, 5, 'b')}));
  EXPECT_EQ(shard().replica().commit(), 1u);
  EXPECT_EQ(shard().replica().applied(), 0u) << "the engine has only the other value";
  Flush();
  ASSERT_EQ(shard().replica().applied(), 1u);
  EXPECT_EQ(LocalBlock(5), 'b');
}

// Both records wait; the engine takes the first of them, and then no more.
TEST_F(ShardTest, TheNewestRecordOfAnInstanceCounts) {
  engine_options_.queue_records = 1;
  Start(3);
  Receive(2, Accept({1, 2}, 0, {Accepting(2, 6, 'x')}));
  Receive(2, Accept({1, 2}, 0, {Accepting(1, 5, 'a')}));
  Receive(3, Accept({2, 3}, 1, {Accepting(1, 5, 'b')}));
  Batch* batch = engine_->NextBatch(now_);
  ASSERT_NE(batch, nullptr);
  std::vector<Completion> completions;
  engine_->BatchDone(batch, batch->Write(), now_, &completions);
  node_->Completed(completions, now_);
  Pump();
  EXPECT_EQ(shard().replica().applied(), 0u);
  Flush();
  ASSERT_EQ(shard().replica().applied(), 1u);
  EXPECT_EQ(LocalBlock(5), 'b');
}

// --- Compare-and-write -------------------------------------------------------------------------

TEST_F(ShardTest, ACompareWhoseSessionEndsWhileItReadsIsRefused) {
  StartAlone();
  const uint64_t compare = Submit(CompareAndWrite(5, 0, 'a'));
  ASSERT_EQ(reads_.size(), 1u);
  // The end of the session is in the entry that the compare would join.
  ShardRequest close = Close();
  close.id = ++last_id_;
  node_->Submit(kGroup, std::move(close), now_);
  RunReads();
  Flush();
  EXPECT_EQ(Reply(compare).answer, ShardAnswer::kSessionExpired);
  EXPECT_EQ(LocalBlock(5), 0);
}

TEST_F(ShardTest, ACompareThatIsRepeatedWhileItReadsIsExecutedOnce) {
  StartAlone();
  ShardRequest request = CompareAndWrite(5, 0, 'a');
  request.seen = shard().replica().commit();  // the first copy is newer than that
  const uint64_t first = Submit(request);
  const uint64_t second = Submit(request);
  for (int i = 0; i < 3; ++i) {
    RunReads();
    Flush();
  }
  EXPECT_EQ(Reply(first).answer, ShardAnswer::kDone);
  EXPECT_EQ(Reply(first).outcome.code, Code::kOk);
  ASSERT_TRUE(Answered(second));
  EXPECT_EQ(Reply(second).answer, ShardAnswer::kDone);
  EXPECT_EQ(Reply(second).outcome, Reply(first).outcome);
}

TEST_F(ShardTest, TwoComparesDoNotSucceedOnTheSameValueWhileTheWindowIsFull) {
  options_.shard.replica.window_instances = 1;
  StartAlone();
  const uint64_t first = Submit(CompareAndWrite(7, 0, 'a'));
  const uint64_t second = Submit(CompareAndWrite(7, 0, 'b'));
  const uint64_t other = Submit(Write(5, 'x'));  // fills the window
  RunReads();                                    // the first gets a place in the next entry
  for (int i = 0; i < 4; ++i) {
    RunReads();
    Flush();
  }
  EXPECT_EQ(Reply(other).outcome.code, Code::kOk);
  EXPECT_EQ(Reply(first).outcome.code, Code::kOk);
  ASSERT_TRUE(Answered(second));
  EXPECT_EQ(Reply(second).outcome.code, Code::kFailedPrecondition);
  EXPECT_EQ(LocalBlock(7), 'a');
}

// --- What peers are sent -----------------------------------------------------------------------

// An answer before would send the gateway round in circles: it cannot know what overtook its write.
TEST_F(ShardTest, AnOvertakenWriteIsRefusedWhenWhatOvertookItCanBeSeen) {
  StartAlone();
  ASSERT_EQ(Do(Write(7, 'a')).answer, ShardAnswer::kDone);
  const Instance seen = shard().replica().commit();
  const uint64_t first = Submit(Write(7, 'b'));
  ShardRequest late = Write(7, 'c');
  late.seen = seen;
  const uint64_t overtaken = Submit(late);
  ShardRequest elsewhere = Write(8, 'd');
  elsewhere.seen = seen;
  const uint64_t other = Submit(elsewhere);
  EXPECT_FALSE(Answered(overtaken));
  Flush();
  EXPECT_EQ(Reply(first).answer, ShardAnswer::kDone);
  EXPECT_EQ(Reply(other).answer, ShardAnswer::kDone);
  ASSERT_EQ(Reply(overtaken).answer, ShardAnswer::kStale);
  EXPECT_GE(Reply(overtaken).commit, VersionInstance(Reply(first).outcome.version));
  late.seen = Reply(overtaken).commit;
  EXPECT_EQ(Do(late).answer, ShardAnswer::kDone);
  EXPECT_EQ(LocalBlock(7), 'c');
}

TEST_F(ShardTest, APeerThatAsksAgainBeforeItsAnswerWasReadIsAnsweredOnce) {
  StartAlone();
  for (Lba lba = 1; lba <= 5; ++lba) Do(Write(lba, 'a'));
  sent_.clear();
  const paxos::CatchUp question{2, {{}, {}, {}}};
  Receive(2, question);
  Receive(2, question);
  Receive(3, question);
  EXPECT_EQ(reads_.size(), 2u) << "one for each peer";
  RunReads();
  RunReads();
  std::map<NodeId, size_t> answers;
  for (const paxos::Message& message : sent_) {
    const auto* reply = std::get_if<paxos::CatchUpReply>(&message.body);
    if (reply == nullptr) continue;
    ++answers[message.to.node];
    ASSERT_EQ(reply->entries.size(), 3u);
    EXPECT_EQ(reply->entries[0].instance, 2u);
  }
  EXPECT_EQ(answers, (std::map<NodeId, size_t>{{2, 1}, {3, 1}}));
}

// It would have forgotten what it promised; alone in its group it would even serve an empty one.
TEST_F(ShardTest, ADroppedReplicaIsNeverMadeAgainUnderTheSameName) {
  StartAlone();
  const std::vector<paxos::Member> alone = {{{1, 1}, paxos::Role::kVoter}};
  ASSERT_OK(node_->DropGroup(kGroup, now_));
  EXPECT_CODE(node_->CreateGroup(kGroup, 1, 1, alone, now_), Code::kFailedPrecondition)
      << "the record of the drop is on its way";
  Flush();
  EXPECT_CODE(node_->CreateGroup(kGroup, 1, 1, alone, now_), Code::kFailedPrecondition);
  ASSERT_OK(node_->CreateGroup(kGroup, 1, 4, {}, now_)) << "a later one is another";
  Flush();
  ASSERT_OK(node_->DropGroup(kGroup, now_));
  Flush();
  EXPECT_CODE(node_->CreateGroup(kGroup, 1, 4, {}, now_), Code::kFailedPrecondition);
  Restart();
  for (const uint32_t incarnation : {1u, 2u}) {
    EXPECT_CODE(node_->CreateGroup(kGroup, 1, incarnation, alone, now_), Code::kFailedPrecondition)
        << incarnation;
  }
  EXPECT_EQ(node_->shard(kGroup), nullptr);
  EXPECT_OK(node_->CreateGroup(kGroup, 1, 5, {}, now_));
}

// A read that was planned, and that nobody has been given to carry out.
TEST_F(ShardTest, AReplicaThatIsDroppedLeavesNoReadBehindThatKeepsSegmentsFromBeingFreed) {
  StartAlone();
  Do(Write(5, 'a'));
  node_->Submit(kGroup, LocalRead(5), now_);
  ASSERT_OK(node_->DropGroup(kGroup, now_));
  Flush();
  EXPECT_TRUE(reads_.empty());
  const Result<uint64_t> purge = engine_->Purge({});
  ASSERT_OK(purge.status());
  Flush();
  EXPECT_TRUE(engine_->PurgeProgress(*purge)->done) << "a segment is still being read";
}

// The ticket is nobody's then, and does not say what kind of read it was.
TEST_F(ShardTest, AReadOfTheLogThatReturnsToALaterReplicaIsDropped) {
  StartAlone();
  Do(Write(5, 'a'));
  Receive(2, paxos::CatchUp{1, {{}}});
  ASSERT_EQ(reads_.size(), 1u);
  ASSERT_OK(node_->DropGroup(kGroup, now_));
  ASSERT_OK(node_->CreateGroup(kGroup, 1, 2, {}, now_));
  RunReads();
  Flush();
  EXPECT_TRUE(reads_.empty());
  const Result<uint64_t> purge = engine_->Purge({});
  ASSERT_OK(purge.status());
  Flush();
  EXPECT_TRUE(engine_->PurgeProgress(*purge)->done) << "a segment is still being read";
}

TEST_F(ShardTest, APeerIsSentOnlySoMuchAtATimeOfAllGroups) {
  options_.shard.catch_up_bytes = RecoveryBudget::kBytesPerPeer;
  StartAlone();
  Do(Write(1, 'a'));
  constexpr GroupId kOther = 2;
  ASSERT_OK(node_->CreateGroup(kOther, 1, 1, {{{1, 1}, paxos::Role::kVoter}}, now_));
  for (int i = 0; i < 300 && !node_->shard(kOther)->ready(); ++i) {
    node_->Tick(now_ += 10 * kMillisecond);
    Flush();
  }
  ASSERT_TRUE(node_->shard(kOther)->ready());
  const auto ask = [&](GroupId group) {
    node_->Receive(paxos::Message{group, {2, 1}, {1, 1}, 1002, paxos::CatchUp{1, {{}}}}, now_);
    Pump();
  };
  ask(kGroup);
  ask(kOther);
  ASSERT_EQ(reads_.size(), 1u);
  EXPECT_EQ(reads_[0].group, kGroup);
  RunReads();
  ASSERT_EQ(reads_.size(), 1u) << "its turn";
  EXPECT_EQ(reads_[0].group, kOther);

  // A group that goes away meanwhile takes nothing with it.
  ASSERT_OK(node_->DropGroup(kOther, now_));
  ask(kGroup);
  EXPECT_EQ(reads_.size(), 2u);
  Flush();
  RunReads();
  EXPECT_TRUE(reads_.empty());
}

// --- What is refused ---------------------------------------------------------------------------

TEST_F(ShardTest, DataIsRefusedWithoutSpaceAndDeletesAreNot) {
  StartAlone();
  node_->leases().SetRoom(0, true);
  EXPECT_EQ(Do(Write(5, 'a')).answer, ShardAnswer::kNoSpace);
  EXPECT_EQ(Do(CompareAndWrite(5, 0, 'a')).answer, ShardAnswer::kNoSpace);
  EXPECT_EQ(Do(Mutation(RequestKind::kUnmap, OpKind::kUnmap, 5)).answer, ShardAnswer::kDone);
  node_->leases().SetRoom(1 << 20, true);
  EXPECT_EQ(Do(Write(5, 'a')).answer, ShardAnswer::kDone);
}

TEST_F(ShardTest, WhatDeletesVolumesIsNotRefusedForLackOfSpace) {
  options_.reserve_group = kGroup;
  StartAlone();
  node_->leases().SetRoom(0, true);
  EXPECT_EQ(Do(Write(5, 'a')).answer, ShardAnswer::kDone);
}

TEST_F(ShardTest, WritesAreChargedUntilTheyAreApplied) {
  StartAlone();
  node_->leases().SetRoom(4 * kPageSize, true);  // half of it is given away
  const uint64_t first = Submit(Write(1, 'a'));
  const uint64_t second = Submit(Write(2, 'b'));
  const uint64_t third = Submit(Write(3, 'c'));
  EXPECT_EQ(Reply(third).answer, ShardAnswer::kBusy) << "it waits for what is under way";
  Flush();
  EXPECT_EQ(Reply(first).answer, ShardAnswer::kDone);
  EXPECT_EQ(Reply(second).answer, ShardAnswer::kDone);
  node_->Tick(now_ += 10 * kMillisecond);  // the store is asked again
  EXPECT_EQ(Do(Write(3, 'c')).answer, ShardAnswer::kDone);
}

// The store is filled behind the master's back, to the last page that it takes.
TEST_F(ShardTest, AFullStoreTakesInDeletesAndNoDataAndGoesOnWhenThereIsSpace) {
  engine_options_.capacity_bytes = 10 * 512 * 1024;
  Start(3);
  const Ballot ballot{5, 2};
  Instance instance = 0;
  const auto accepted = [&](Instance i) {
    return shard().replica().last() >= i && !engine_->LogEntries(kGroup, i, i).empty();
  };
  while (instance < 2000) {
    ++instance;
    Receive(2, Accept(ballot, instance - 1, {Accepting(instance, instance, 'x')}));
    Flush();
    if (!accepted(instance)) break;
  }
  ASSERT_LT(instance, 2000u) << "the store never got full";
  ASSERT_GT(instance, 100u);
  const Instance refused = instance;

  // Nothing waits for it: promises and deletes go on.
  paxos::AcceptEntry discard = Accepting(refused + 1, 1, 'x');
  auto body = std::make_shared<EntryBody>();
  EntryBuilder builder(1);
  ShardRequest unmap = Mutation(RequestKind::kUnmap, OpKind::kUnmap, 1);
  unmap.op.count = 200;
  ASSERT_OK(builder.Add(unmap.op, unmap.context));
  body->entry = builder.Build(0);
  discard.meta = *MetaOf(body->entry, refused + 1);
  discard.body = body;
  Receive(2, Accept(ballot, refused - 1, {discard}));
  Flush();
  EXPECT_TRUE(accepted(refused + 1));
  EXPECT_FALSE(accepted(refused));
  EXPECT_EQ(shard().replica().applied(), refused - 1);

  // More space, by whatever means: the entry that comes again is taken.
  engine_options_.capacity_bytes = 20 * 512 * 1024;
  node_.reset();
  engine_.reset();
  auto engine = Engine::Open(engine_options_);
  ASSERT_OK(engine.status());
  engine_ = std::move(*engine);
  node_ = std::make_unique<NodeCore>(options_, engine_.get(), now_);
  ASSERT_OK(node_->Start(now_));
  Flush();
  Receive(2, Accept(ballot, refused + 1, {Accepting(refused, refused, 'x')}));
  Flush();
  EXPECT_EQ(shard().replica().applied(), refused + 1);
  EXPECT_EQ(LocalBlock(refused), 'x');
  EXPECT_EQ(LocalBlock(1), 0);
}

// Another group's records fill the engine's queue; when they are written, it alone hears of it.
TEST_F(ShardTest, WhatTheEngineRefusesIsHandedOverLaterThoughTheGroupHearsNothingMore) {
  constexpr GroupId kOther = 2;
  engine_options_.queue_records = 2;
  Start(3);
  std::vector<paxos::Member> members;
  for (NodeId id = 1; id <= 3; ++id) members.push_back({{id, 1}, paxos::Role::kVoter});
  ASSERT_OK(node_->CreateGroup(kOther, 1, 1, members, now_));
  Flush();
  const Ballot ballot{5, 2};
  for (Instance i = 1; i <= 2; ++i) {
    Receive(2, Accept(ballot, 0, {Accepting(i, i, 'o')}), kOther);
  }
  Receive(2, Accept(ballot, 0, {Accepting(1, 7, 'x')}));
  ASSERT_TRUE(engine_->LogEntries(kGroup, 1, 1).empty());
  Flush();
  EXPECT_EQ(engine_->LogEntries(kOther, 1, 2).size(), 2u);
  EXPECT_EQ(engine_->LogEntries(kGroup, 1, 1).size(), 1u);
}

// A client that lost its session says 1 for the lowest, and has to hear that the session is gone.
TEST_F(ShardTest, ANumberFarAboveTheLowestIsInvalidOnlyInASessionThatLives) {
  StartAlone();
  ShardRequest far = Write(1, 'a');
  far.context.seq = SessionTable::kMaxSpan + 2;
  EXPECT_EQ(Do(far).answer, ShardAnswer::kInvalid);
  far.context.session = session_ + 1000;
  EXPECT_EQ(Do(far).answer, ShardAnswer::kSessionExpired);
  far.context.session = session_;
  far.context.lowest_unanswered = 2;
  EXPECT_EQ(Do(far).answer, ShardAnswer::kDone);
}

TEST_F(ShardTest, RequestsThatMakeNoSenseAreInvalid) {
  StartAlone();
  std::vector<std::pair<ShardRequest, const char*>> bad;
  ShardRequest request;
  request.context.kind = RequestKind::kConfig;
  request.context.body = EncodeMembers({{{9, 1}, paxos::Role::kVoter}});
  request.op.kind = OpKind::kOpaque;
  bad.emplace_back(request, "a configuration");
  request.context.kind = RequestKind::kMaster;
  request.op.kind = OpKind::kNoop;
  bad.emplace_back(request, "the beginning of a mastership");
  request = Mutation(RequestKind::kZero, OpKind::kZero, 5);
  request.op.count = 0;
  bad.emplace_back(request, "no blocks");
  request = Mutation(RequestKind::kZero, OpKind::kZero, ~Lba{0});
  request.op.count = 2;
  bad.emplace_back(request, "blocks past the end");
  request = Mutation(RequestKind::kZero, OpKind::kZero, 5);
  request.context.interval = 1;
  bad.emplace_back(request, "an interval");
  request = Write(5, 'a');
  request.op.crcs[0] ^= 1;
  bad.emplace_back(request, "a wrong checksum");
  request = Write(5, 'a');
  request.payload.clear();
  bad.emplace_back(request, "no payload");
  request = CompareAndWrite(5, 0, 'a');
  request.context.outcome = Outcome{};
  bad.emplace_back(request, "an outcome");
  request = CompareAndWrite(5, 0, 'a');
  request.compare.length *= 2;
  bad.emplace_back(request, "more to compare than there is");
  for (auto& [wrong, what] : bad) {
    EXPECT_EQ(Do(std::move(wrong)).answer, ShardAnswer::kInvalid) << what;
  }
  EXPECT_EQ(Do(Write(5, 'a')).answer, ShardAnswer::kDone);
}

}  // namespace
}  // namespace hydra
