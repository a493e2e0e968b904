// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "blockstore/image_source.h"
#include "daemon/shard.h"

namespace hydra {

// What a shard has under way for replicas that are behind. They ask again when they do not get an
// answer, here or elsewhere: the newest question of each counts, and an old one is forgotten.
struct Shard::RecoveryWork {
  static constexpr Nanos kForgetAfter = kSecond;
  static constexpr size_t kRowsAtOnce = 4096;
  static constexpr size_t kBareRowsAtOnce = 256;  // each of them is looked up by the receiver
  static constexpr uint64_t kNearWindows = 16;    // of instances
  static constexpr unsigned kMostLooks = 32;      // at a delta that is not shorter yet
  static constexpr Nanos kLookAgain = 250 * kMillisecond;
  static constexpr Nanos kLookForgotten = 5 * kSecond;
  static constexpr Nanos kAwaitCheckpoint = 2 * kSecond;

  template <typename Question>
  struct Asked {
    Question serve;
    Nanos at = 0;
  };
  struct LogRead {
    paxos::ServeCatchUp serve;
    Instance truncated = 0;  // when it was asked
    uint64_t spent = 0;      // of the budget's rate
  };
  // Whether a delta would be shorter than the log: its rows are counted, a piece at a time, while
  // the log is sent.
  struct DeltaLook {
    enum class State : uint8_t { kCounting, kCounted, kLog } state = State::kCounting;
    Instance from = 0;
    Nanos asked = 0;      // last
    Nanos again = 0;      // look
    uint64_t ticket = 0;  // of the piece at the read pool; 0: none
    std::string cursor;
    uint64_t rows = 0;
    uint64_t last_rows = 0;  // kCounted: of the last piece
    Instance as_of = 0;      // kCounted: the checkpoint
    unsigned looks = 0;
  };
  struct Chunk {
    paxos::ServeInstall serve;
    std::unique_ptr<ImageBuilder> builder;
    bool listed = false;
    uint64_t spent = 0;
  };

  std::map<NodeId, Asked<paxos::ServeCatchUp>> catch_ups;
  std::map<uint64_t, LogRead> reading;  // by ticket, at the read pool; one for each peer
  std::map<NodeId, DeltaLook> looks;
  // Who was told last that a delta is shorter, and when: it may not have said yet that it installs.
  NodeId told = 0;
  Nanos told_at = 0;
  std::map<uint64_t, NodeId> look_reads;  // by ticket, at the read pool: whose
  std::map<NodeId, Asked<paxos::ServeInstall>> installs;
  std::map<NodeId, Chunk> chunks;  // in the making
  // The checkpoint that is not to be the last that it gets, and since when.
  std::map<NodeId, std::pair<Instance, Nanos>> awaited;
  std::map<uint64_t, NodeId> chunk_reads;  // by ticket, at the read pool: whose

  bool IsReadingFor(NodeId peer) const {
    for (const auto& [ticket, read] : reading) {
      if (read.serve.to.node == peer) return true;
    }
    return false;
  }
};

}  // namespace hydra
