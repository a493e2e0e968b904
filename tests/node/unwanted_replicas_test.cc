// SPDX-License-Identifier: Apache-2.0
#include "daemon/unwanted_replicas.h"

#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "base/sim_disk.h"
#include "daemon/node_core.h"
#include "tests/support/gtest_status.h"

namespace hydra {
namespace {

constexpr GroupId kGoes = 1;
constexpr GroupId kStays = 2;

// One node with two groups, of which it is the only voter, on a disk whose spare segments are made
// when the test says so.
class UnwantedReplicasTest : public testing::Test {
 protected:
  UnwantedReplicasTest() {
    CreateOptions create;
    create.segment_bytes = 256 * 1024;
    create.store = Uuid{};
    create.store->bytes[0] = 1;
    EXPECT_OK(Engine::Create(&disk_, "/store", create));
    EngineOptions options;
    options.inline_map = true;
    options.spare_segments = 1;
    options.ballast_bytes = 0;
    options.fs = &disk_;
    options.dir = "/store";
    auto engine = Engine::Open(options);
    EXPECT_OK(engine.status());
    engine_ = std::move(*engine);
    NodeCore::Options core;
    core.node = 1;
    core.boot = 7;
    core_ = std::make_unique<NodeCore>(core, engine_.get(), now_);
    EXPECT_OK(core_->Start(now_));
    for (const GroupId group : {kGoes, kStays}) {
      EXPECT_OK(core_->CreateGroup(group, 1, 1, {{{1, 1}, paxos::Role::kVoter}}, now_));
    }
    RunJobs();
    Write();
  }
  void RunJobs() {
    while (std::unique_ptr<Job> job = engine_->NextJob()) {
      job->Run();
      engine_->FinishJob(std::move(job));
    }
  }
  void Write() {
    while (Batch* batch = engine_->NextBatch(now_)) {
      std::vector<Completion> completions;
      const Status written = batch->Write();
      engine_->BatchDone(batch, written, now_, &completions);
      core_->Completed(completions, now_);
    }
  }
  // Until the log's segment is full, and none is ready to follow it.
  void UseUpSpace() {
    for (uint64_t round = 100; round < 2000; ++round) {
      const Status saved = engine_->SaveHardState(kStays, {round, 1}, "", 0);
      if (saved.code() == Code::kBusy) return;
      ASSERT_OK(saved);
      Write();
    }
    FAIL() << "there is always more";
  }

  SimDisk disk_{SimDisk::Options{}};
  Nanos now_ = kSecond;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<NodeCore> core_;
  UnwantedReplicas unwanted_;
};

TEST_F(UnwantedReplicasTest, WhatTheStoreWillNotDropYetIsDroppedLater) {
  UseUpSpace();
  unwanted_.Set({kGoes}, {});
  unwanted_.Tend(core_.get(), now_);
  unwanted_.Tend(core_.get(), now_);
  EXPECT_NE(core_->shard(kGoes), nullptr) << "there is no room for the record";
  EXPECT_FALSE(unwanted_.empty());
  RunJobs();
  unwanted_.Tend(core_.get(), now_);
  EXPECT_EQ(core_->shard(kGoes), nullptr);
  EXPECT_NE(core_->shard(kStays), nullptr);
  EXPECT_TRUE(unwanted_.empty());
}

TEST_F(UnwantedReplicasTest, AVoterWhoseGroupHasMovedStaysUntilItsLogSaysSo) {
  unwanted_.Set({}, {kGoes});
  unwanted_.Tend(core_.get(), now_);
  EXPECT_NE(core_->shard(kGoes), nullptr);
  EXPECT_FALSE(unwanted_.empty());
  unwanted_.Set({kGoes}, {});
  unwanted_.Tend(core_.get(), now_);
  EXPECT_EQ(core_->shard(kGoes), nullptr) << "its volume is deleted";
}

}  // namespace
}  // namespace hydra
