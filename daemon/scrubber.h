// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "blockstore/engine.h"
#include "daemon/shard.h"

namespace hydra {

// Walks a store, a piece at a time at a given rate, and finds what is rotten before anybody needs
// it. Owned by NodeCore, on its thread; pure: time is passed in, reading is the read pool's work (a
// ShardRead of kNodeGroup). While clients are at work it takes a quarter of its rate.
class Scrubber {
 public:
  static constexpr uint64_t kLargestPiece = 1u << 20;
  static constexpr uint64_t kSmallestPiece = 64u << 10;

  // Of the round that runs, or else of the last one.
  struct Round {
    bool running = false;
    bool complete = false;  // to the end
    uint64_t rate = 0;      // bytes per second
    Nanos began = 0;
    Nanos ended = 0;
    uint64_t bytes = 0;  // verified
    uint64_t total = 0;  // about, when it began
    uint64_t found = 0;  // rotten blocks and entries
    std::string failed;  // why it could not go on
  };

  explicit Scrubber(Engine* engine) : engine_(engine) {}

  // A new round from the start; one that runs goes on, at that rate.
  void Start(uint64_t rate, Nanos now);
  void Stop(Nanos now);
  // Hands out the next piece when it is due. `clients`: some were at work since the last call.
  void Tick(Nanos now, bool clients, std::vector<ShardRead>* reads);
  // With a piece that was read; returns what is rotten in it.
  std::vector<Damage> Done(std::unique_ptr<ReadJob> job, Nanos now);

  const Round& round() const { return round_; }
  uint64_t rounds() const { return rounds_; }            // complete, since the start
  uint64_t bytes_total() const { return bytes_total_; }  // verified, since the start
  uint64_t found_total() const { return found_total_; }

 private:
  void End(Nanos now);

  Engine* const engine_;
  Round round_;
  bool out_ = false;
  Nanos ticked_ = 0;
  double credit_ = 0;  // bytes
  uint64_t rounds_ = 0;
  uint64_t bytes_total_ = 0;
  uint64_t found_total_ = 0;
};

}  // namespace hydra
