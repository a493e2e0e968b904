// SPDX-License-Identifier: Apache-2.0
//
// Drives one Engine the way a daemon does: keeps a number of entries outstanding, carries batches
// to the disk and jobs to a background thread, applies what is durable.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "blockstore/engine.h"

namespace hydra::bench {

// Incompressible blocks, each different from all others: noise, masked by a key made of the lba
// and a counter. Both stand in the first 16 bytes. One thread at a time.
class PayloadMaker {
 public:
  PayloadMaker();

  // An entry ready to be accepted: one single-block write per lba.
  struct Prepared {
    Entry entry;
    Payload payload;
    Entry again;  // to offer after a refusal
  };
  Result<Prepared> Make(const std::vector<Lba>& lbas);

  // Whether `block` (4 KiB) is something Make() wrote to `lba`.
  static bool Wrote(const uint8_t* block, Lba lba);

 private:
  void Fill(Lba lba, uint8_t* out);

  std::vector<uint64_t> noise_;
  BufferPool pool_;
  uint64_t counter_ = 0;
};

// Who calls Batch::Write, and when clients come back.
enum class WriteMode {
  // The owner's thread writes. All that completed is submitted again, then the next batch starts:
  // a batch holds everything that is outstanding.
  kInline,
  // A writer thread writes; meanwhile the owner applies what the batch before made durable and
  // makes payload that clients will need next. Otherwise as above.
  kWriter,
};
const char* WriteModeName(WriteMode mode);

// One thread that runs tasks one after the other. Ends when destroyed, after what it was sent.
class TaskThread {
 public:
  TaskThread();
  ~TaskThread();
  TaskThread(const TaskThread&) = delete;
  TaskThread& operator=(const TaskThread&) = delete;
  void Send(std::function<void()> task);

 private:
  void Loop();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;  // guarded by mutex_
  bool stopping_ = false;                    // guarded by mutex_
  std::thread thread_;
};

struct Workload {
  uint64_t entries = 0;           // to submit in all
  uint32_t depth = 1;             // entries submitted and not yet answered
  uint32_t blocks_per_entry = 1;  // single-block writes
  std::function<Lba()> next_lba;
  std::function<Status()> tick;  // called about every 100 ms, if given
  // When an entry is answered and its place taken by the next: when it is applied, as for a
  // client's write, or when it is durable, as for a replica's accept. Applied is it either way.
  bool answer_when_durable = false;
};

struct RunResult {
  double seconds = 0;          // wall
  double payload_seconds = 0;  // making payload while nothing was being written
  double write_seconds = 0;    // inside Batch::Write
  double apply_seconds = 0;    // inside Engine::Apply
  double stalled_seconds = 0;  // waiting because Apply or Accept had said busy or no space
  uint64_t accept_busy = 0;
  uint64_t accept_no_space = 0;
  uint64_t apply_busy = 0;
  uint64_t batches = 0;
};

// Owns an Engine with one group of 4 KiB blocks, and up to two threads. All methods belong to one
// thread. Destroying the driver waits for what is in flight and drops the engine without closing
// it: what a killed process leaves.
class Driver {
 public:
  struct Options {
    EngineOptions engine;
    uint64_t segment_bytes = 256ull << 20;  // for Create
    WriteMode mode = WriteMode::kInline;
    bool run_jobs = true;  // on a thread of their own; off: only RunJobsHere runs any
  };

  static constexpr GroupId kGroup = 1;

  static Result<std::unique_ptr<Driver>> Create(const Options& options);
  static Result<std::unique_ptr<Driver>> Open(const Options& options);
  ~Driver();
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  Engine& engine() { return *engine_; }
  // Only while nothing is outstanding.
  void set_mode(WriteMode mode) { mode_ = mode; }

  // Submits, writes and applies all of a workload.
  Result<RunResult> Run(const Workload& workload);

  // The same in two steps, to time the second alone: makes entries durable; applies them.
  Status AcceptOnly(const Workload& workload);
  Result<RunResult> ApplyAccepted();

  // Runs jobs on this thread until none is due: before anything is written, spares are ready then.
  Status RunJobsHere();
  // Waits until no job is running or due and nothing is being written.
  Status Quiesce();
  // Quiesce, then Engine::Close.
  Status Close();

 private:
  explicit Driver(const Options& options);
  Status Start();

  Status Refill(const Workload& workload, uint64_t last, RunResult* result);
  Status PrepareAhead(const Workload& workload, uint64_t last);
  Status Prepare(const Workload& workload);
  Status StartBatch();
  Status TimedWrite(Batch* batch);
  Status CollectBatch();
  Status FinishBatch(Batch* batch, const Status& written);
  Status ApplyDurable(RunResult* result);
  Status PumpJobs();
  Status Tick(const Workload& workload);
  Status WaitForEvent(RunResult* result);
  uint64_t Answered() const { return answer_when_durable_ ? durable_ : applied_; }

  const Options options_;
  RealClock clock_;
  PayloadMaker maker_;
  std::unique_ptr<Engine> engine_;
  WriteMode mode_;

  // The log: instances up to each of these were made, submitted, completed, applied.
  Instance prepared_ = 0;
  Instance submitted_ = 0;
  Instance durable_ = 0;
  Instance applied_ = 0;
  bool apply_ = true;
  bool answer_when_durable_ = false;
  std::deque<PayloadMaker::Prepared> ahead_;  // submitted_ + 1 ... prepared_

  bool batch_in_flight_ = false;
  size_t jobs_out_ = 0;
  std::vector<Completion> completions_;
  uint64_t batches_ = 0;
  Nanos payload_nanos_ = 0;  // in Prepare, with no batch in flight
  Nanos write_nanos_ = 0;    // inside Batch::Write; the writer's while a batch is in flight

  // Whether the last pass of a loop changed anything, and since when none did.
  bool progress_ = false;
  bool refused_ = false;
  std::string refusal_;
  Nanos idle_since_ = 0;
  Nanos next_tick_ = 0;

  // What the threads hand back.
  std::mutex mutex_;
  std::condition_variable event_;
  std::vector<std::unique_ptr<Job>> finished_jobs_;  // guarded by mutex_
  Batch* written_batch_ = nullptr;                   // guarded by mutex_
  Status written_status_;                            // guarded by mutex_

  std::unique_ptr<TaskThread> writer_;      // started when first needed
  std::unique_ptr<TaskThread> job_runner_;  // null unless options_.run_jobs
};

}  // namespace hydra::bench
