// SPDX-License-Identifier: Apache-2.0
//
// Clusters whose disks fill up while clients write: nothing hangs, and deleting helps.
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/crc32c.h"
#include "base/logging.h"
#include "tests/sim/cluster.h"
#include "tests/sim/scheduler.h"

namespace hydra::sim {
namespace {

constexpr uint64_t kPlenty = 1ull << 40;

class FullDisks {
 public:
  FullDisks(uint64_t seed, uint64_t segments) : rng_(seed) {
    SetLogLevel(LogLevel::kOff);
    Knobs knobs = DrawKnobs(&rng_, 3);
    knobs.groups = 2;
    knobs.segment_bytes = 256 * 1024;
    knobs.capacity_bytes = segments * knobs.segment_bytes;
    knobs.engine.capacity_bytes = knobs.capacity_bytes;
    knobs.shard.replica.window_bytes = 1024 * 1024;
    knobs.shard.replica.window_instances = 64;
    knobs.shard.owed_pause = 0;
    cluster_ = std::make_unique<Cluster>(&scheduler_, knobs, rng_.Next());
    cluster_->SetFailureHandler([this](const std::string& what) { Fail(what); });
    cluster_->SetBrokenHandler([this](NodeId node, const std::string& why) {
      Fail(fmt::format("node {} fails without a cause: {}", node, why));
    });
    cluster_->SetReplyHandler(
        [this](NodeId, const ShardReply& reply, std::optional<Instance>) { OnReply(reply); });
    cluster_->CreateAll();
    Weather weather;
    weather.loss_permille = static_cast<unsigned>(rng_.Below(30));
    cluster_->network().SetWeather(weather);
    for (const GroupId group : cluster_->groups()) {
      ShardRequest open;
      open.context.kind = RequestKind::kOpenSession;
      open.context.timeout = 3600 * kSecond;
      open.op.kind = ::hydra::OpKind::kOpaque;
      Ask(group, open, [this, group](const ShardReply& reply) {
        sessions_[group] = VersionInstance(reply.outcome.version);
      });
    }
    EXPECT_TRUE(Idle(60 * kSecond)) << Describe();
  }

  Cluster& cluster() { return *cluster_; }
  Rng& rng() { return rng_; }
  const std::string& failure() const { return failure_; }
  std::string Describe() { return cluster_->Describe(); }

  // Until all that was asked is answered; false: not in that time.
  bool Idle(Nanos patience) {
    const Nanos deadline = scheduler_.now() + patience;
    while (!asked_.empty() && failure_.empty() && scheduler_.now() < deadline) Pass(kMillisecond);
    return asked_.empty() && failure_.empty();
  }
  void Pass(Nanos time) { scheduler_.RunUntil(scheduler_.now() + time); }

  // So many clients write new blocks until they are told that there is no space.
  void WriteUntilFull(unsigned clients) {
    for (unsigned i = 0; i < clients; ++i) {
      for (const GroupId group : cluster_->groups()) WriteOn(group);
    }
  }
  void Write(GroupId group, Lba lba, uint64_t count, std::function<void(const ShardReply&)> done) {
    ShardRequest request =
        Mutation(group, RequestKind::kWrite, ::hydra::OpKind::kWrite, lba, count);
    const Buffer data = Buffer::Allocate(count * kPageSize);
    request.op.block_pages = 1;
    request.op.crcs.assign(count, Crc32c(data.span().first(kPageSize)));
    request.payload = {{data, 0, data.size()}};
    Ask(group, std::move(request), std::move(done));
  }
  // Deletes all that was written.
  void UnmapAll() {
    for (const GroupId group : cluster_->groups()) {
      for (Lba lba = 0; lba < next_lba_[group]; lba += 200) {
        Ask(group,
            Mutation(group, RequestKind::kUnmap, ::hydra::OpKind::kUnmap, lba,
                     std::min<uint64_t>(200, next_lba_[group] - lba)),
            [](const ShardReply& reply) { EXPECT_EQ(reply.answer, ShardAnswer::kDone); });
      }
      next_lba_[group] = 0;
    }
  }
  uint64_t written(GroupId group) { return next_lba_[group]; }
  // A master that is not where it was, in each group.
  void MoveMasters() {
    for (const GroupId group : cluster_->groups()) {
      const NodeId master = cluster_->MasterOf(group);
      if (master == 0) continue;
      cluster_->Touch(master, [group](NodeCore* core, Nanos now) {
        core->shard(group)->TouchReplica().Resign(now);
      });
    }
  }

 private:
  struct Asked {
    GroupId group = 0;
    ShardRequest request;
    std::function<void(const ShardReply&)> done;
  };

  void Fail(const std::string& what) {
    if (failure_.empty()) failure_ = what;
  }
  ShardRequest Mutation(GroupId group, RequestKind kind, ::hydra::OpKind op, Lba lba,
                        uint64_t count) {
    ShardRequest request;
    request.context.kind = kind;
    request.context.session = sessions_[group];
    request.context.seq = ++sequences_[group];
    request.op.kind = op;
    request.op.lba = lba;
    request.op.count = count;
    return request;
  }
  void WriteOn(GroupId group) {
    const uint64_t count = rng_.Between(1, 8);
    const Lba lba = next_lba_[group];
    next_lba_[group] += count;
    Write(group, lba, count, [this, group](const ShardReply& reply) {
      if (reply.answer == ShardAnswer::kNoSpace) return;
      EXPECT_EQ(reply.answer, ShardAnswer::kDone);
      WriteOn(group);
    });
  }
  void Ask(GroupId group, ShardRequest request, std::function<void(const ShardReply&)> done) {
    const uint64_t key = ++last_key_;
    if (request.context.seq != 0) open_[group].insert(request.context.seq);
    asked_[key] = {group, std::move(request), std::move(done)};
    Send(key);
  }
  void Send(uint64_t key) {
    const auto found = asked_.find(key);
    if (found == asked_.end()) return;
    const uint64_t id = ++last_id_;
    attempts_[id] = key;
    ShardRequest request = found->second.request;
    request.id = id;
    if (request.context.seq != 0) {
      request.context.lowest_unanswered = *open_[found->second.group].begin();
    }
    const NodeId master = cluster_->MasterOf(found->second.group);
    if (master != 0) cluster_->Submit(master, found->second.group, std::move(request));
    // An answer may get lost with its master.
    scheduler_.After(master != 0 ? kSecond : 20 * kMillisecond, {"again", 0, key}, [this, key, id] {
      if (attempts_.erase(id) > 0) Send(key);
    });
  }
  void OnReply(const ShardReply& reply) {
    const auto attempt = attempts_.find(reply.id);
    if (attempt == attempts_.end()) return;
    const uint64_t key = attempt->second;
    attempts_.erase(attempt);
    switch (reply.answer) {
      case ShardAnswer::kBusy:
      case ShardAnswer::kNotMaster:
      case ShardAnswer::kUnknown:
        scheduler_.After(static_cast<Nanos>(rng_.Between(1, 20)) * kMillisecond, {"again", 0, key},
                         [this, key] { Send(key); });
        return;
      default: break;
    }
    const auto found = asked_.find(key);
    if (found == asked_.end()) return;
    Asked asked = std::move(found->second);
    asked_.erase(found);
    open_[asked.group].erase(asked.request.context.seq);
    asked.done(reply);
  }

  Rng rng_;
  Scheduler scheduler_;
  std::unique_ptr<Cluster> cluster_;
  std::string failure_;
  std::map<GroupId, Instance> sessions_;
  std::map<GroupId, uint64_t> sequences_;
  std::map<GroupId, std::set<uint64_t>> open_;
  std::map<GroupId, Lba> next_lba_;
  std::map<uint64_t, Asked> asked_;
  std::map<uint64_t, uint64_t> attempts_;  // request id -> key
  uint64_t last_key_ = 0;
  uint64_t last_id_ = 0;
};

TEST(FullDisk, WritersAreRefusedNothingHangsAndDeletingMakesRoom) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    FullDisks disks(seed, 24);
    for (int round = 0; round < 3; ++round) {
      SCOPED_TRACE(fmt::format("round {}", round));
      disks.WriteUntilFull(static_cast<unsigned>(disks.rng().Between(1, 12)));
      if (disks.rng().Percent(50)) {
        disks.Pass(static_cast<Nanos>(disks.rng().Below(2000)) * kMillisecond);
        disks.MoveMasters();
      }
      ASSERT_TRUE(disks.Idle(600 * kSecond)) << disks.failure() << "\n" << disks.Describe();
      uint64_t blocks = 0;
      for (const GroupId group : disks.cluster().groups()) blocks += disks.written(group);
      EXPECT_GT(blocks, 100u) << "refused from the start";
      disks.UnmapAll();
      ASSERT_TRUE(disks.Idle(600 * kSecond)) << disks.failure() << "\n" << disks.Describe();
      disks.Pass(2 * kSecond);
    }
    ASSERT_EQ(disks.failure(), "");
  }
}

// One node's disk takes no more, whichever groups it is master of: the others go on.
TEST(FullDisk, AMajorityThatHasSpaceServesWhoeverIsFull) {
  for (uint64_t seed = 1; seed <= 15; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    FullDisks disks(seed, 200);
    const NodeId full = disks.cluster().MasterOf(1);
    ASSERT_NE(full, 0u);
    SimDisk& disk = disks.cluster().disk(full);
    disk.SetCapacity(disk.used_bytes());
    uint64_t done = 0;
    for (int i = 0; i < 200; ++i) {
      disks.Write(1, static_cast<Lba>(i) * 8, 8,
                  [&](const ShardReply& reply) { done += reply.answer == ShardAnswer::kDone; });
      ASSERT_TRUE(disks.Idle(60 * kSecond)) << disks.failure() << "\n" << disks.Describe();
    }
    EXPECT_EQ(done, 200u);
    EXPECT_NE(disks.cluster().MasterOf(1), full) << "it could not apply what it had chosen";
    // It catches up when it has space again, without a restart.
    disk.SetCapacity(kPlenty);
    for (int i = 0; i < 600 && !disks.cluster().Unconverged().empty(); ++i)
      disks.Pass(kSecond / 10);
    EXPECT_EQ(disks.cluster().Unconverged(), "") << disks.Describe();
    EXPECT_EQ(disks.cluster().CompareReplicas(), "");
    ASSERT_EQ(disks.failure(), "");
  }
}

}  // namespace
}  // namespace hydra::sim
