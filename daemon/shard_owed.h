// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "daemon/shard.h"

namespace hydra {

// Blocks that an install brought without their payload: a replica asks its peers for them, so many
// at a time, in the order of their numbers and over and over until it has all; and it answers peers
// that ask. Nobody waits for them (reads that do go the way of rotten blocks, shard_repair.h), so
// the rate is the budget's.
struct Shard::OwedWork {
  static constexpr uint64_t kPagesAtOnce = 64;
  static constexpr Nanos kAskAgain = kSecond;                // without an answer
  static constexpr Nanos kForgetAfter = 500 * kMillisecond;  // a question: it is asked again
  static constexpr Nanos kAfterNothing = 20 * kMillisecond;  // an answer that brought nothing
  static constexpr Nanos kAfterARound = 500 * kMillisecond;  // all were asked for in vain
  static constexpr Nanos kEngineRefused = 20 * kMillisecond;
  static constexpr Nanos kNoRoom = kSecond;
  static constexpr Nanos kWarnEvery = 10 * kSecond;
  static constexpr ptrdiff_t kMostAlone = 64;  // blocks that all peers are asked for, at a time

  // What it asks for.
  bool slot = false;  // of the node's (RecoveryBudget::BeginAsking)
  uint64_t last_request = 0;
  bool asking = false;             // `last_request` is on its way
  bool writing = false;            // what came is on its way to the disk
  std::optional<OwedMessage> got;  // ... or there is more of it than the engine took
  Nanos next_at = 0;               // when to go on; while asking: when to stop waiting
  Lba next = 0;                    // from where on
  Lba behind = 0;                  // of what was asked for last, the next one
  size_t asked = 0;                // ... blocks
  size_t turn = 0;                 // which peer is asked next
  size_t asked_turn = 0;           // ... was asked last
  size_t denied = 0;               // peers in a row that had nothing of it
  bool fruitful = false;           // something came since the round began
  Lba alone = 0;                   // where those begin that all peers are asked for next
  Nanos warned = 0;

  // What it is asked for.
  struct Question {
    OwedMessage asked;
    Nanos at = 0;
  };
  struct Reading {
    OwedMessage asked;
    std::vector<LbaRange> runs;
    uint64_t spent = 0;
  };
  std::map<NodeId, Question> questions;  // the newest of each peer
  std::map<uint64_t, Reading> reading;   // by ticket

  bool IsReadingFor(NodeId peer) const {
    for (const auto& [ticket, read] : reading) {
      if (read.asked.from == peer) return true;
    }
    return false;
  }
};

}  // namespace hydra
