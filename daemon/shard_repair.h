// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "daemon/shard.h"

namespace hydra {

// Rotten blocks of a replica on their way to being whole again, and the reads that wait for them.
// Owned by its shard. A block is asked of one peer after another, round by round with growing
// pauses; a copy of the right version and CRC goes to whoever waits for it at once, and to the
// engine.
struct Shard::RepairWork {
  static constexpr size_t kMaxBlocks = 1024;  // known to be rotten; more are found again by a scrub
  static constexpr size_t kMaxAtATime = 16;   // being fetched or written
  static constexpr size_t kMaxRefused = 64;   // fetched, and not taken by the engine yet
  static constexpr size_t kMaxServing = 64;   // blocks being read for peers
  static constexpr size_t kMaxVerifying = 64;  // reads that only look
  static constexpr size_t kMaxSuspects = 1024;
  static constexpr Nanos kAnswerWithin = 200 * kMillisecond;
  static constexpr Nanos kFirstPause = 20 * kMillisecond;
  static constexpr Nanos kLongestPause = 10 * kSecond;
  static constexpr unsigned kRoundsOfReads = 3;  // before a read that waits is told of the damage
  static constexpr unsigned kMaxRounds = 12;     // before it is left to the next scrub
  static constexpr unsigned kMaxReadsAgain = 3;
  static constexpr unsigned kDenials = 8;  // rounds, before a block that is owed counts as lost

  using Key = std::pair<Lba, Version>;
  struct Block {
    enum class State : uint8_t { kWaiting, kAsking, kFetched, kWriting };
    Damage damage;
    State state = State::kWaiting;
    Nanos next = 0;             // when to do something about it, if nothing happens before
    std::vector<NodeId> peers;  // still to be asked in this round
    NodeId asked = 0;
    unsigned rounds = 0;
    unsigned denials = 0;  // rounds in a row in which all peers said that they do not have it
    bool denied = false;   // this round is one so far
    BufferSlice good;
  };
  // A read that has everything but these blocks.
  struct Held {
    DamagedRead read;
    Status status;
    std::set<Key> missing;

    void FillIn(const Key& key, const BufferSlice& good);
  };

  std::map<Key, Block> blocks;
  std::map<uint64_t, Key> writing;            // by token
  std::map<uint64_t, Held> held;              // by the read's ticket
  std::map<uint64_t, BlockMessage> serving;   // by ticket: what a peer asked for
  std::map<uint64_t, BlockMessage> from_log;  // likewise: what the map here did not have
  std::set<uint64_t> verifying;               // by ticket
  std::set<Instance> suspects;                // entries with a rotten payload, not applied yet
  uint64_t next_token = 0;
  RepairStats stats;

  size_t Count(Block::State state) const {
    return static_cast<size_t>(std::ranges::count_if(
        blocks, [state](const auto& block) { return block.second.state == state; }));
  }
  // What was fetched and waits for room on this disk is not: for others it may never be their turn.
  size_t at_work() const { return Count(Block::State::kAsking) + Count(Block::State::kWriting); }
};

}  // namespace hydra
