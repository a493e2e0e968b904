// SPDX-License-Identifier: Apache-2.0
//
// The verified workload of a drill: many clients, each a thread with a connection of its own, that
// read, write, discard and compare-and-write a few blocks of a volume, one block or several at
// once, and note everything they asked and were told in one history. Every value is written once,
// so the history can be checked (daemon/linearizability.h). Each client stays with one shard: where
// one shard stands still, the others show that they do not.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"
#include "base/status.h"
#include "client/hydra.h"
#include "client/layout.h"
#include "daemon/history.h"

namespace hydra::drill {

struct LoadOptions {
  std::vector<std::string> seeds;  // addresses of nodes
  std::string volume;
  uint32_t shards = 1;  // of the volume
  unsigned clients = 16;
  uint64_t rate = 1000;  // operations per second, all clients together; 0: no limit
  uint32_t blocks_per_shard = 32;
  uint64_t seed = 1;
};

// Made, started, stopped and asked by one thread; the counters by any.
class Load {
 public:
  // Connects the clients and zeroes the blocks that they will use: **what those held is lost**.
  static Result<std::unique_ptr<Load>> Prepare(const LoadOptions& options);
  ~Load();

  // Times in the history count from now on.
  void Start();
  Nanos now() const { return clock_.Now() - began_; }
  // Returns when every client has its last answer, at the latest after a request's time-out.
  void Stop();
  // After Stop: every block is read once more, by a client that was not there before.
  Status ReadAll();

  // After Stop.
  const history::History& history() const { return history_; }
  // Blocks that were read and hold what nobody wrote; at most 20.
  const std::vector<std::string>& damage() const { return damage_; }
  uint32_t ShardOf(history::Block block) const { return layout_.ShardOfBlock(block); }
  uint64_t blocks() const { return places_.size(); }
  size_t shards() const { return shards_; }                       // that have some of them
  uint32_t final_client() const { return options_.clients + 1; }  // who reads in ReadAll
  std::vector<history::Block> Blocks() const;

  uint64_t acknowledged_writes() const { return acknowledged_; }
  uint64_t operations() const { return operations_; }
  uint64_t refused() const { return refused_; }
  uint64_t unknown() const { return unknown_; }
  // Operations that were answered: the blocks are damaged, and nobody has a good copy.
  uint64_t told_damaged() const { return told_damaged_; }
  // The last error that a client was told; empty: none.
  std::string last_error();

 private:
  // A block of the volume and what it last held, as far as anybody knows.
  struct Place {
    history::Block block = 0;
    size_t run_left = 0;  // blocks from here on that follow each other in one extent
    std::atomic<history::Value> known{history::kAbsent};
  };
  struct Client {
    uint32_t id = 0;
    Volume volume;
    std::vector<Place*> places;
    Rng rng;
    std::thread thread;
  };

  explicit Load(const LoadOptions& options) : options_(options) {}

  Status ChoosePlaces(const Volume& volume);
  Status Zero(Volume* volume);
  void Run(Client* client);
  void Once(Client* client);
  void DoRead(Client* client, Place* first, size_t count);
  void DoWrite(Client* client, Place* first, size_t count);
  void DoDiscard(Client* client, Place* first, size_t count);
  void DoCompareAndWrite(Client* client, Place* first);
  // Of a change: what its status says about whether it happened.
  void Told(history::History::OpId op, const Status& status);
  void NoteError(const Status& status);
  // Values of the blocks in `bytes`; empty, and noted as damage, if one holds what nobody wrote.
  std::vector<history::Value> Parse(const Place* first, size_t count,
                                    const std::vector<uint8_t>& bytes);
  std::vector<uint8_t> Bytes(const std::vector<history::Access>& accesses, bool expected) const;
  uint64_t OffsetOf(const Place* place) const { return place->block * layout_.block_bytes(); }

  const LoadOptions options_;
  const RealClock clock_;
  Nanos began_ = 0;
  Layout layout_;
  std::vector<std::unique_ptr<Place>> places_;  // by shard, runs in order
  size_t shards_ = 0;
  std::vector<std::unique_ptr<Client>> clients_;
  std::atomic<bool> stop_{false};

  std::mutex mutex_;  // of these three
  history::History history_;
  std::vector<std::string> damage_;
  std::string last_error_;

  std::atomic<uint64_t> acknowledged_{0};
  std::atomic<uint64_t> operations_{0};
  std::atomic<uint64_t> refused_{0};
  std::atomic<uint64_t> unknown_{0};
  std::atomic<uint64_t> told_damaged_{0};
};

}  // namespace hydra::drill
