// SPDX-License-Identifier: Apache-2.0
//
// A node that was downgraded: its log has an accepted entry with an operation that only the newer
// Hydra knows. What it does not understand it must not pass off as something else.
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "base/sim_disk.h"
#include "daemon/node_core.h"
#include "tests/support/forge.h"
#include "tests/support/gtest_status.h"

namespace hydra {
namespace {

constexpr GroupId kHalted = 1;
constexpr GroupId kWell = 2;
constexpr char kNodeDirectory[] = "/store";

class NewerOperationTest : public testing::Test {
 protected:
  NewerOperationTest() {
    engine_options_.fs = &disk_;
    engine_options_.dir = kNodeDirectory;
    engine_options_.inline_map = true;
    engine_options_.spare_segments = 1;
    engine_options_.map_write_buffer = 64 * 1024;
    engine_options_.map_cache = 64 * 1024;
    engine_options_.ballast_bytes = 0;
    options_.node = 1;
    options_.boot = 77;
    store_.bytes[0] = 1;
  }

  void Open() {
    auto engine = Engine::Open(engine_options_);
    ASSERT_OK(engine.status());
    engine_ = std::move(*engine);
    node_ = std::make_unique<NodeCore>(options_, engine_.get(), now_);
    ASSERT_OK(node_->Start(now_));
  }
  void Close() {
    ASSERT_OK(engine_->Close());
    node_.reset();
    engine_.reset();
  }
  void Create() {
    CreateOptions create;
    create.segment_bytes = 512 * 1024;
    create.store = store_;
    ASSERT_OK(Engine::Create(&disk_, kNodeDirectory, create));
    ASSERT_NO_FATAL_FAILURE(Open());
    std::vector<paxos::Member> members;
    for (NodeId id = 1; id <= 3; ++id) members.push_back({{id, 1}, paxos::Role::kVoter});
    ASSERT_OK(node_->CreateGroup(kHalted, 1, 1, members, now_));
    ASSERT_OK(node_->CreateGroup(kWell, 1, 1, {members[0]}, now_));
    Flush();
  }

  void Pump() {
    NodeOutput out;
    node_->Pump(now_, &out);
    ASSERT_OK(node_->failed());
  }
  void Flush() {
    Pump();
    while (Batch* batch = engine_->NextBatch(now_)) {
      std::vector<Completion> completions;
      const Status written = batch->Write();
      engine_->BatchDone(batch, written, now_, &completions);
      node_->Completed(completions, now_);
      Pump();
    }
  }
  // Node 2 has the entry accepted; nobody has chosen it yet.
  void AcceptFromPeer() {
    ShardRequest zero;
    zero.context.kind = RequestKind::kZero;
    zero.context.session = 1;
    zero.context.seq = 1;
    zero.context.lowest_unanswered = 1;
    zero.op.kind = OpKind::kZero;
    zero.op.lba = 5;
    zero.op.count = 1;
    EntryBuilder builder(1);
    ASSERT_OK(builder.Add(zero.op, zero.context));
    auto body = std::make_shared<EntryBody>();
    body->entry = builder.Build(0);
    const auto meta = MetaOf(body->entry, 1);
    ASSERT_OK(meta.status());
    const std::vector<paxos::AcceptEntry> entries{{1, *meta, std::move(body)}};
    const paxos::Accept accept{
        {1, 2}, 0, std::make_shared<const std::vector<paxos::AcceptEntry>>(entries)};
    node_->Receive(paxos::Message{kHalted, {2, 1}, {1, 1}, 1002, accept}, now_);
    Flush();
    ASSERT_EQ(engine_->LogEntries(kHalted, 1, 1).size(), 1u);
  }

  SimDisk disk_{SimDisk::Options{}};
  Uuid store_;
  EngineOptions engine_options_;
  NodeCore::Options options_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<NodeCore> node_;
  Nanos now_ = kSecond;
};

TEST_F(NewerOperationTest, InAnAcceptedEntryTakesTheVoteOfItsGroupAlone) {
  ASSERT_NO_FATAL_FAILURE(Create());
  ASSERT_NO_FATAL_FAILURE(AcceptFromPeer());
  const test::FoundBatch batch = test::FindBatches(&disk_, kNodeDirectory, store_).back();
  ASSERT_NO_FATAL_FAILURE(Close());
  const auto records = test::RecordsIn(&disk_, batch, RecordType::kAccept);
  ASSERT_EQ(records.size(), 1u);
  // Group, instance, round, node, stable, number of operations: a byte each.
  const uint64_t at = records[0] + kRecordHeadBytes + 6;
  const std::string file = test::ReadWholeFile(&disk_, batch.path);
  ASSERT_EQ(file[batch.offset() + at], static_cast<char>(OpKind::kZero));
  const uint8_t unknown = 99;
  test::ForgeHeader(&disk_, store_, batch, at, {&unknown, 1});

  ASSERT_NO_FATAL_FAILURE(Open());
  ASSERT_NE(node_->shard(kHalted), nullptr);
  EXPECT_FALSE(engine_->Info(kHalted)->suspect) << "nothing was lost";
  EXPECT_TRUE(node_->shard(kHalted)->replica().suspect()) << "it would vote for something else";
  for (int i = 0; i < 300 && !node_->shard(kWell)->ready(); ++i) {
    now_ += 10 * kMillisecond;
    node_->Tick(now_);
    Flush();
  }
  EXPECT_TRUE(node_->shard(kWell)->ready());
  EXPECT_EQ(node_->shard(kHalted)->replica().applied(), 0u);
  EXPECT_EQ(engine_->LogEntries(kHalted, 1, 1).size(), 1u) << "it was accepted";
  EXPECT_OK(node_->failed());
}

}  // namespace
}  // namespace hydra
