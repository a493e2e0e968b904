// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/crc32c.h"
#include "base/sim_disk.h"
#include "daemon/node_core.h"
#include "tests/support/gtest_status.h"

namespace hydra {

inline constexpr GroupId kHandGroup = 1;
inline constexpr Nanos kHandTick = 10 * kMillisecond;
inline constexpr uint8_t kMark = 0xa7;  // of blocks: the rest of the disk has no such pages

// Nodes with one group, on simulated disks: nothing happens but by Settle and Until.
class NodesByHand : public testing::Test {
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
      ASSERT_OK(machine.core->CreateGroup(kHandGroup, 1, 1, members, now_));
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
    core.shard = shard_options_;
    machine.core = std::make_unique<NodeCore>(core, machine.engine.get(), now_);
    machine.core->MayAskBare(bare_);
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
      if (auto* owed = std::get_if<OwedMessage>(&message); owed != nullptr && tamper_owed_) {
        tamper_owed_(owed);
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
    for (const Nanos end = now_ + patience; now_ < end; now_ += kHandTick) {
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
      if (machine.up && machine.core->shard(kHandGroup)->ready()) return id;
    }
    return 0;
  }
  NodeId Follower() { return Master() == 1 ? 2 : 1; }

  // --- Clients. ---
  uint64_t Submit(NodeId node, ShardRequest request) {
    request.id = ++last_id_;
    machines_[node].core->Submit(kHandGroup, std::move(request), now_);
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
    return machines_[id].core->shard(kHandGroup)->replica();
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
  bool bare_ = false;  // installs leave payload out
  Shard::Options shard_options_;
  std::map<NodeId, Machine> machines_;
  std::map<uint64_t, ShardReply> replies_;
  std::function<void(BlockMessage*)> tamper_;
  std::function<void(OwedMessage*)> tamper_owed_;
  uint64_t block_messages_ = 0;
  Nanos now_ = kSecond;
  uint64_t boots_ = 100;
  Instance session_ = 0;
  uint64_t last_id_ = 0;
  uint64_t last_seq_ = 0;
};

}  // namespace hydra
