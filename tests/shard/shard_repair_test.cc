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

#include "base/crc32c.h"
#include "base/sim_disk.h"
#include "daemon/node_core.h"
#include "tests/support/gtest_status.h"

namespace hydra {
namespace {

constexpr GroupId kRottenGroup = 1;
constexpr Nanos kRepairTick = 10 * kMillisecond;
constexpr uint8_t kMark = 0xa7;  // of blocks: the rest of the disk has no such pages

class ShardRepairTest : public testing::Test {
 protected:
  struct Machine {
    SimDisk disk{SimDisk::Options{}};
    std::unique_ptr<Engine> engine;
    std::unique_ptr<NodeCore> core;
    std::vector<ShardRead> reads;
    bool up = true;
    bool writes = true;       // batches
    bool checkpoints = true;  // and does all else that is due now and then
  };

  void Start(NodeId nodes) {
    std::vector<paxos::Member> members;
    for (NodeId id = 1; id <= nodes; ++id) members.push_back({{id, 1}, paxos::Role::kVoter});
    for (NodeId id = 1; id <= nodes; ++id) {
      Machine& machine = machines_[id];
      CreateOptions create;
      create.node = id;
      create.segment_bytes = 512 * 1024;
      create.store = Uuid{};
      create.store->bytes[0] = static_cast<uint8_t>(id);
      ASSERT_OK(Engine::Create(&machine.disk, "/store", create));
      Open(id);
      ASSERT_OK(machine.core->CreateGroup(kRottenGroup, 1, 1, members, now_));
    }
    ASSERT_TRUE(Until([&] { return Master() != 0; }));
    ShardRequest open;
    open.context.kind = RequestKind::kOpenSession;
    open.context.timeout = 1000 * kSecond;
    open.op.kind = OpKind::kOpaque;
    session_ = VersionInstance(Do(Master(), std::move(open)).outcome.version);
    ASSERT_NE(session_, 0u);
  }
  void Open(NodeId id) {
    Machine& machine = machines_[id];
    EngineOptions options;
    options.inline_map = true;
    options.spare_segments = 1;
    options.map_write_buffer = 64 * 1024;
    options.map_cache = 64 * 1024;
    options.ballast_bytes = 0;
    options.overlay_rows = overlay_rows_;
    options.fs = &machine.disk;
    options.dir = "/store";
    auto engine = Engine::Open(options);
    ASSERT_OK(engine.status());
    machine.engine = std::move(*engine);
    NodeCore::Options core;
    core.node = id;
    core.boot = ++boots_;
    core.seed = id;
    machine.core = std::make_unique<NodeCore>(core, machine.engine.get(), now_);
    ASSERT_OK(machine.core->Start(now_));
    machine.up = true;
  }
  void Restart(NodeId id) {
    Machine& machine = machines_[id];
    machine.reads.clear();
    machine.core.reset();
    machine.engine.reset();
    machine.disk.Crash();
    Open(id);
  }

  // Everything that can happen without time passing.
  void Settle() {
    for (bool moved = true; moved;) {
      moved = false;
      for (auto& [id, machine] : machines_) {
        if (machine.up) moved = Act(&machine) || moved;
      }
    }
  }
  bool Act(Machine* machine) {
    NodeOutput out;
    machine->core->Pump(now_, &out);
    EXPECT_OK(machine->core->failed());
    bool moved = false;
    for (PeerMessage& message : out.messages) {
      if (std::holds_alternative<BlockMessage>(message)) {
        ++block_messages_;
        if (tamper_) tamper_(&std::get<BlockMessage>(message));
      }
      const auto to = machines_.find(ReceiverOf(message));
      if (to == machines_.end() || !to->second.up) continue;
      to->second.core->Receive(std::move(message), now_);
      moved = true;
    }
    for (ShardReply& reply : out.replies) replies_[reply.id] = std::move(reply);
    for (ShardRead& read : out.reads) {
      read.job->Run();
      machine->core->ReadDone(std::move(read), now_);
      moved = true;
    }
    while (machine->checkpoints) {
      std::unique_ptr<Job> job = machine->engine->NextJob();
      if (job == nullptr) break;
      job->Run();
      machine->engine->FinishJob(std::move(job));
      moved = true;
    }
    while (machine->writes) {
      Batch* batch = machine->engine->NextBatch(now_);
      if (batch == nullptr) break;
      std::vector<Completion> completions;
      const Status written = batch->Write();
      machine->engine->BatchDone(batch, written, now_, &completions);
      machine->core->Completed(completions, now_);
      moved = true;
    }
    return moved;
  }
  bool Until(const std::function<bool()>& condition, Nanos patience = 60 * kSecond) {
    for (const Nanos end = now_ + patience; now_ < end; now_ += kRepairTick) {
      for (auto& [id, machine] : machines_) {
        if (machine.up) machine.core->Tick(now_);
      }
      Settle();
      if (condition()) return true;
    }
    return false;
  }
  NodeId Master() {
    for (auto& [id, machine] : machines_) {
      if (machine.up && machine.core->shard(kRottenGroup)->ready()) return id;
    }
    return 0;
  }
  NodeId Follower() { return Master() == 1 ? 2 : 1; }

  // --- Clients. ---
  uint64_t Submit(NodeId node, ShardRequest request) {
    request.id = ++last_id_;
    machines_[node].core->Submit(kRottenGroup, std::move(request), now_);
    return last_id_;
  }
  ShardReply Do(NodeId node, ShardRequest request) {
    const uint64_t id = Submit(node, std::move(request));
    EXPECT_TRUE(Until([&] { return replies_.contains(id); }));
    return replies_[id];
  }
  static Buffer Block(char fill) {
    Buffer block = Buffer::Allocate(kPageSize);
    std::memset(block.data(), fill, kPageSize);
    block.data()[0] = kMark;
    return block;
  }
  ShardRequest Write(Lba lba, char fill) {
    ShardRequest request;
    request.context.kind = RequestKind::kWrite;
    request.context.session = session_;
    request.context.seq = ++last_seq_;
    request.context.lowest_unanswered = 1;
    const Buffer block = Block(fill);
    request.op.kind = OpKind::kWrite;
    request.op.lba = lba;
    request.op.count = 1;
    request.op.crcs = {Crc32c(block.span())};
    request.payload = {{block, 0, kPageSize}};
    return request;
  }
  void MustWrite(Lba lba, char fill) {
    ASSERT_EQ(Do(Master(), Write(lba, fill)).answer, ShardAnswer::kDone);
    AwaitAll();
  }
  // All replicas have applied what is chosen.
  void AwaitAll() {
    ASSERT_TRUE(Until([&] {
      const Instance commit = Replica(Master()).commit();
      for (auto& [id, machine] : machines_) {
        if (machine.up && Replica(id).applied() != commit) return false;
      }
      return true;
    }));
  }
  const paxos::Replica& Replica(NodeId id) {
    return machines_[id].core->shard(kRottenGroup)->replica();
  }
  static ShardRequest Read(Lba lba, uint64_t count, bool local) {
    ShardRequest request;
    request.kind = local ? ShardRequest::Kind::kReadLocal : ShardRequest::Kind::kRead;
    request.lba = lba;
    request.count = count;
    return request;
  }
  // What the blocks hold, a letter each; "?" if damaged.
  std::string Text(NodeId node, Lba lba, uint64_t count, bool local) {
    const ShardReply reply = Do(node, Read(lba, count, local));
    if (reply.answer == ShardAnswer::kDamaged) return "?";
    EXPECT_EQ(reply.answer, ShardAnswer::kDone);
    if (!reply.data) return "";
    std::string text;
    for (uint64_t b = 0; b < count; ++b) {
      const auto block = reply.data->data.span().subspan(b * kPageSize, kPageSize);
      EXPECT_EQ(Crc32c(block), reply.data->blocks[b].crc);
      text += static_cast<char>(block[100]);
    }
    return text;
  }

  // --- Rot. ---
  // In every copy of a block with this filling.
  void Rot(NodeId node, char fill) {
    Machine& machine = machines_[node];
    int flipped = 0;
    const auto names = machine.disk.List("/store/segments");
    ASSERT_OK(names.status());
    for (const std::string& name : *names) {
      if (!name.ends_with(".seg")) continue;
      const std::string path = "/store/segments/" + name;
      auto file = machine.disk.Open(path, {.read_only = true});
      ASSERT_OK(file.status());
      Buffer bytes = Buffer::Allocate(*(*file)->Size());
      ASSERT_OK((*file)->ReadExactly(0, bytes.span(), path));
      for (size_t at = 0; at < bytes.size(); at += kPageSize) {
        const uint8_t* page = bytes.data() + at;
        if (page[0] != kMark || page[1] != static_cast<uint8_t>(fill) ||
            page[kPageSize - 1] != static_cast<uint8_t>(fill)) {
          continue;
        }
        machine.disk.FlipBit(path, at + 2000, 5);
        ++flipped;
      }
    }
    ASSERT_GT(flipped, 0);
  }
  std::vector<Damage> Scrub(NodeId node) {
    std::vector<Damage> found;
    for (int i = 0; i < 1000; ++i) {
      const auto done = machines_[node].engine->Scrub(1 << 20, &found);
      EXPECT_OK(done.status());
      if (!done.ok() || *done) break;
    }
    return found;
  }
  RepairStats Repairs(NodeId node) { return machines_[node].core->Repairs(); }

  size_t overlay_rows_ = EngineOptions().overlay_rows;
  std::map<NodeId, Machine> machines_;
  std::map<uint64_t, ShardReply> replies_;
  std::function<void(BlockMessage*)> tamper_;
  uint64_t block_messages_ = 0;
  Nanos now_ = kSecond;
  uint64_t boots_ = 100;
  Instance session_ = 0;
  uint64_t last_id_ = 0;
  uint64_t last_seq_ = 0;
};

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
  EXPECT_LE(now_ - before, 2 * kRepairTick);
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
  ASSERT_OK(machines_[node].core->DropGroup(kRottenGroup, now_));
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
      machines_[Master()].core->shard(kRottenGroup)->ChangeMembers(members, now_).IgnoreError();
      return false;
    }));
  };
  change({});
  // A read of the old replica's rotten copy is under way when that is dropped.
  Rot(node, 'a');
  auto job = machines_[node].engine->PlanRead(kRottenGroup, 5, 1);
  ASSERT_OK(job.status());
  ShardRead late{kRottenGroup, 7, std::move(*job), kPageSize};
  late.job->Run();
  ASSERT_OK(core.DropGroup(kRottenGroup, now_));
  ASSERT_OK(core.CreateGroup(kRottenGroup, 1, 2, {}, now_));
  ASSERT_NE(core.shard(kRottenGroup)->store_group(), kRottenGroup);
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
  machines_[node].core->shard(kRottenGroup)->OnDamage(found[0], now_);
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
  asked.group = kRottenGroup;
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
