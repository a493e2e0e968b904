// SPDX-License-Identifier: Apache-2.0
//
// The threads around the passive engine: one that writes batches, two for background jobs, and a
// few that read. They run what the engine hands out and bring it back to the owner's thread; they
// never call the engine themselves.
#pragma once

#include <functional>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>

#include "base/clock.h"
#include "blockstore/engine.h"
#include "daemon/shard.h"

namespace hydra {

class DiskThreads {
 public:
  struct Handlers {  // on the owner's thread
    std::function<void(const std::vector<Completion>& durable)> durable;
    std::function<void(ShardRead read)> read;
  };

  DiskThreads(Engine* engine, boost::asio::io_context* owner, unsigned readers, Handlers handlers);
  ~DiskThreads();

  // Hands out nothing more and waits for what is under way; it is brought back when the owner's
  // io_context runs again, before which this object must not be destroyed.
  void Stop();

  // Hands out the next batch and the jobs that are due. Call after anything was done to the engine.
  void Kick(Nanos now);
  void Read(ShardRead read);
  bool idle() const { return !writing_ && jobs_ == 0 && reads_ == 0; }
  uint64_t writing_nanos() const { return writing_nanos_; }

 private:
  void BatchDone(Batch* batch, const Status& written);

  Engine* const engine_;
  boost::asio::io_context* const owner_;
  const Handlers handlers_;
  const RealClock clock_;
  bool stopped_ = false;
  bool writing_ = false;
  unsigned jobs_ = 0;
  size_t reads_ = 0;
  uint64_t writing_nanos_ = 0;
  std::vector<Completion> completions_;
  boost::asio::thread_pool writer_;
  boost::asio::thread_pool workers_;
  boost::asio::thread_pool readers_;
};

}  // namespace hydra
