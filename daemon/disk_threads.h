// SPDX-License-Identifier: Apache-2.0
//
// The threads around the passive engine: one that writes batches, two for background jobs, and a
// few that read. They run what the engine hands out and bring it back to the owner's thread; they
// never call the engine themselves.
//
// What takes less time than two switches of threads is done on the owner's: reads of what is in
// memory, and writes of short batches, if the disk has been quick and nobody is reading, who would
// have to wait. On a disk that hangs such a write silences the node, as it should: its leases run
// out, and others lead.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>

#include "base/clock.h"
#include "blockstore/engine.h"
#include "daemon/drill_faults.h"
#include "daemon/shard.h"

namespace hydra {

class DiskThreads {
 public:
  struct Handlers {  // on the owner's thread; after `durable` and `due` it acts, then calls Kick
    std::function<void(const std::vector<Completion>& durable)> durable;
    std::function<void(ShardRead read)> read;
    std::function<void(Nanos took)> written;  // a batch
    std::function<void()> due;                // there may be more to hand out
  };

  // `faults`: of a node that takes part in drills; else null.
  DiskThreads(Engine* engine, boost::asio::io_context* owner, unsigned readers, Handlers handlers,
              DrillFaults* faults = nullptr);
  ~DiskThreads();

  // Hands out nothing more, writes the batch that waits for WriteHere, and waits for what is under
  // way; that is brought back when the owner's io_context runs again, before which this object must
  // not be destroyed.
  void Stop();

  // Hands out the next batch and the jobs that are due. Call after anything was done to the engine.
  // A batch that is to be written on the owner's thread waits for WriteHere, which the owner calls
  // when it has sent what it had to say: peers are to write at the same time.
  void Kick(Nanos now);
  bool writes_here() const { return here_ != nullptr; }
  void WriteHere();
  void Read(ShardRead read);
  bool idle() const { return !writing_ && jobs_ == 0 && reads_ == 0; }
  // Of batches: so many were written, it took so long, and one is being written since.
  uint64_t writes() const { return writes_; }
  uint64_t writing_nanos() const { return writing_nanos_; }
  Nanos writing_since() const { return writing_ ? writing_since_ : 0; }
  // The longest that one took since this was asked last.
  Nanos TakeLongestWrite() { return std::exchange(longest_write_, 0); }

 private:
  bool WritesHere(const Batch& batch, Nanos now) const;
  void WriteThere(Batch* batch);
  Status Write(Batch* batch, Nanos* took) const;
  void BatchDone(Batch* batch, const Status& written, Nanos took);

  Engine* const engine_;
  boost::asio::io_context* const owner_;
  const Handlers handlers_;
  DrillFaults* const faults_;
  const RealClock clock_;
  bool stopped_ = false;
  bool writing_ = false;
  Batch* here_ = nullptr;  // waits for WriteHere
  unsigned jobs_ = 0;
  size_t reads_ = 0;
  Nanos writing_since_ = 0;
  uint64_t writes_ = 0;
  uint64_t writing_nanos_ = 0;
  Nanos last_read_ = 0;
  Nanos jobs_from_ = 0;  // when to ask for the next job
  Nanos slow_until_ = 0;
  Nanos usual_write_ = 0;  // how long writes of short batches took lately
  Nanos longest_write_ = 0;
  std::vector<Completion> completions_;
  boost::asio::thread_pool writer_;
  boost::asio::thread_pool workers_;
  boost::asio::thread_pool readers_;
};

}  // namespace hydra
