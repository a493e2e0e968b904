// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/store_bench_driver.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/crc32c.h"
#include "base/rng.h"
#include "tests/bench/store_bench_system.h"

namespace hydra::bench {

namespace {

constexpr Ballot kBallot{1, 1};
constexpr uint64_t kGroupToken = UINT64_MAX;  // entries use their instance

constexpr size_t kWordsPerBlock = kPageSize / 8;
constexpr size_t kNoiseWords = 128 * kWordsPerBlock;
constexpr size_t kPayloadLimit = 256u << 20;  // far above what any figure keeps outstanding

constexpr Nanos kTickEvery = 100 * kMillisecond;
constexpr Nanos kStuckAfter = 60 * kSecond;
constexpr auto kEventTimeout = std::chrono::milliseconds(1);

double Seconds(Nanos nanos) { return static_cast<double>(nanos) / kSecond; }

uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

// --- PayloadMaker ---------------------------------------------------------------------------

PayloadMaker::PayloadMaker() : noise_(kNoiseWords + kWordsPerBlock), pool_(kPayloadLimit) {
  Rng rng(0x6879647261);
  for (uint64_t& word : noise_) word = rng.Next();
}

void PayloadMaker::Fill(Lba lba, uint8_t* out) {
  const uint64_t key = Mix(++counter_ ^ Mix(lba));
  const uint64_t* from = noise_.data() + key % kNoiseWords;
  for (size_t i = 0; i < kWordsPerBlock; ++i) {
    const uint64_t word = from[i] ^ key;
    std::memcpy(out + 8 * i, &word, 8);
  }
  std::memcpy(out, &lba, 8);
  std::memcpy(out + 8, &counter_, 8);
}

bool PayloadMaker::Wrote(const uint8_t* block, Lba lba) {
  uint64_t stamp = 0;
  std::memcpy(&stamp, block, sizeof stamp);
  return stamp == lba;
}

Result<PayloadMaker::Prepared> PayloadMaker::Make(const std::vector<Lba>& lbas) {
  HYDRA_ASSIGN_OR_RETURN(Buffer buffer, pool_.Get(lbas.size() * kPageSize));
  Prepared prepared;
  prepared.entry.operations.reserve(lbas.size());
  uint8_t* block = buffer.data();
  for (const Lba lba : lbas) {
    Fill(lba, block);
    Operation& op = prepared.entry.operations.emplace_back();
    op.kind = OpKind::kWrite;
    op.lba = lba;
    op.count = 1;
    op.crcs.push_back(Crc32c(block, kPageSize));
    block += kPageSize;
  }
  prepared.payload.push_back(BufferSlice{std::move(buffer), 0, lbas.size() * kPageSize});
  prepared.again = prepared.entry;
  return prepared;
}

// --- TaskThread -----------------------------------------------------------------------------

TaskThread::TaskThread() : thread_([this] { Loop(); }) {}

TaskThread::~TaskThread() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void TaskThread::Send(std::function<void()> task) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  wake_.notify_one();
}

void TaskThread::Loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    lock.lock();
  }
}

// --- Driver ---------------------------------------------------------------------------------

const char* WriteModeName(WriteMode mode) {
  switch (mode) {
    case WriteMode::kInline: return "one thread";
    case WriteMode::kWriter: return "writer thread";
  }
  return "?";
}

Driver::Driver(const Options& options) : options_(options), mode_(options.mode) {
  if (options.run_jobs) job_runner_ = std::make_unique<TaskThread>();
}

Driver::~Driver() {
  writer_.reset();  // each joins after its last task
  job_runner_.reset();
  if (engine_ == nullptr) return;
  CollectBatch().IgnoreError();
  for (auto& job : finished_jobs_) engine_->FinishJob(std::move(job));
}

Result<std::unique_ptr<Driver>> Driver::Create(const Options& options) {
  CreateOptions create;
  create.cluster = Uuid::Random();
  create.segment_bytes = options.segment_bytes;
  HYDRA_RETURN_IF_ERROR(Engine::Create(options.engine.fs, options.engine.dir, create));
  std::unique_ptr<Driver> driver(new Driver(options));
  HYDRA_ASSIGN_OR_RETURN(driver->engine_, Engine::Open(options.engine));
  std::vector<Completion> completions;
  HYDRA_RETURN_IF_ERROR(driver->engine_->Drain(&completions));  // makes the first segments
  HYDRA_RETURN_IF_ERROR(driver->engine_->CreateGroup(kGroup, 1, kGroupToken));
  HYDRA_RETURN_IF_ERROR(driver->engine_->Drain(&completions));
  HYDRA_RETURN_IF_ERROR(driver->Start());
  return driver;
}

Result<std::unique_ptr<Driver>> Driver::Open(const Options& options) {
  std::unique_ptr<Driver> driver(new Driver(options));
  HYDRA_ASSIGN_OR_RETURN(driver->engine_, Engine::Open(options.engine));
  HYDRA_RETURN_IF_ERROR(driver->Start());
  return driver;
}

Status Driver::Start() {
  HYDRA_ASSIGN_OR_RETURN(const GroupInfo info, engine_->Info(kGroup));
  applied_ = info.applied;
  prepared_ = submitted_ = durable_ = std::max(info.last, info.applied);
  idle_since_ = clock_.Now();
  return Status::Ok();
}

Status Driver::Prepare(const Workload& workload) {
  const Nanos start = clock_.Now();
  std::vector<Lba> lbas(workload.blocks_per_entry);
  for (Lba& lba : lbas) lba = workload.next_lba();
  HYDRA_ASSIGN_OR_RETURN(PayloadMaker::Prepared prepared, maker_.Make(lbas));
  ahead_.push_back(std::move(prepared));
  ++prepared_;
  if (!batch_in_flight_) payload_nanos_ += clock_.Now() - start;
  return Status::Ok();
}

Status Driver::PrepareAhead(const Workload& workload, uint64_t last) {
  while (prepared_ < last && ahead_.size() < workload.depth) {
    HYDRA_RETURN_IF_ERROR(Prepare(workload));
  }
  return Status::Ok();
}

// Submits until `depth` entries are outstanding.
Status Driver::Refill(const Workload& workload, uint64_t last, RunResult* result) {
  while (submitted_ < last && submitted_ - Answered() < workload.depth) {
    if (ahead_.empty()) HYDRA_RETURN_IF_ERROR(Prepare(workload));
    PayloadMaker::Prepared& next = ahead_.front();
    const Instance instance = submitted_ + 1;
    const Status accepted =
        engine_->Accept(kGroup, instance, kBallot, std::move(next.entry), next.payload, instance);
    if (accepted.code() == Code::kBusy || accepted.code() == Code::kNoSpace) {
      next.entry = next.again;
      ++(accepted.code() == Code::kBusy ? result->accept_busy : result->accept_no_space);
      refused_ = true;
      refusal_ = accepted.ToString();
      return Status::Ok();
    }
    HYDRA_RETURN_IF_ERROR(accepted.WithContext("accept"));
    ahead_.pop_front();
    ++submitted_;
    progress_ = true;
  }
  return Status::Ok();
}

Status Driver::TimedWrite(Batch* batch) {
  const Nanos start = clock_.Now();
  Status written = batch->Write();
  write_nanos_ += clock_.Now() - start;
  return written;
}

Status Driver::StartBatch() {
  if (batch_in_flight_) return Status::Ok();
  Batch* const batch = engine_->NextBatch(clock_.Now());
  if (batch == nullptr) return engine_->poisoned();
  progress_ = true;
  ++batches_;
  if (mode_ == WriteMode::kInline) return FinishBatch(batch, TimedWrite(batch));
  if (writer_ == nullptr) writer_ = std::make_unique<TaskThread>();
  batch_in_flight_ = true;
  writer_->Send([this, batch] {
    Status written = TimedWrite(batch);
    std::lock_guard<std::mutex> lock(mutex_);
    written_batch_ = batch;
    written_status_ = std::move(written);
    event_.notify_one();
  });
  return Status::Ok();
}

Status Driver::CollectBatch() {
  if (!batch_in_flight_) return Status::Ok();
  Batch* batch = nullptr;
  Status written;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (written_batch_ == nullptr) return Status::Ok();
    batch = std::exchange(written_batch_, nullptr);
    written = std::exchange(written_status_, Status::Ok());
  }
  batch_in_flight_ = false;
  progress_ = true;
  return FinishBatch(batch, written);
}

Status Driver::FinishBatch(Batch* batch, const Status& written) {
  completions_.clear();
  engine_->BatchDone(batch, written, clock_.Now(), &completions_);
  HYDRA_RETURN_IF_ERROR(engine_->poisoned());
  for (const Completion& completion : completions_) {
    if (completion.token != durable_ + 1) {
      return Status::Corruption(
          fmt::format("entry {} completed after entry {}", completion.token, durable_));
    }
    durable_ = completion.token;
  }
  return Status::Ok();
}

Status Driver::ApplyDurable(RunResult* result) {
  if (applied_ == durable_) return Status::Ok();
  const Nanos start = clock_.Now();
  while (applied_ < durable_) {
    const Status applied = engine_->Apply(kGroup, applied_ + 1, kBallot);
    if (applied.code() == Code::kBusy) {
      ++result->apply_busy;
      refused_ = true;
      refusal_ = applied.ToString();
      break;
    }
    HYDRA_RETURN_IF_ERROR(applied.WithContext("apply"));
    ++applied_;
    progress_ = true;
  }
  result->apply_seconds += Seconds(clock_.Now() - start);
  return Status::Ok();
}

// Brings finished jobs back and sends due ones out.
Status Driver::PumpJobs() {
  if (job_runner_ == nullptr) return Status::Ok();
  std::vector<std::unique_ptr<Job>> finished;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    finished.swap(finished_jobs_);
  }
  for (auto& job : finished) {
    engine_->FinishJob(std::move(job));
    --jobs_out_;
    progress_ = true;
  }
  while (std::unique_ptr<Job> job = engine_->NextJob()) {
    ++jobs_out_;
    progress_ = true;
    job_runner_->Send([this, owned = std::make_shared<std::unique_ptr<Job>>(std::move(job))] {
      (*owned)->Run();
      std::lock_guard<std::mutex> lock(mutex_);
      finished_jobs_.push_back(std::move(*owned));
      event_.notify_one();
    });
  }
  return engine_->poisoned();
}

Status Driver::Tick(const Workload& workload) {
  const Nanos now = clock_.Now();
  if (now < next_tick_) return Status::Ok();
  next_tick_ = now + kTickEvery;
  HYDRA_RETURN_IF_ERROR(CheckInterrupted());
  return workload.tick ? workload.tick() : Status::Ok();
}

// Called at the end of a pass. Waits only if the pass changed nothing.
Status Driver::WaitForEvent(RunResult* result) {
  const bool refused = std::exchange(refused_, false);
  if (std::exchange(progress_, false)) {
    idle_since_ = clock_.Now();
    return Status::Ok();
  }
  const Nanos start = clock_.Now();
  {
    std::unique_lock<std::mutex> lock(mutex_);
    event_.wait_for(lock, kEventTimeout,
                    [this] { return written_batch_ != nullptr || !finished_jobs_.empty(); });
  }
  const Nanos now = clock_.Now();
  if (refused) result->stalled_seconds += Seconds(now - start);
  if (now - idle_since_ < kStuckAfter) return Status::Ok();
  return Status::Unavailable(fmt::format(
      "stuck: submitted {}, durable {}, applied {}, {} jobs out; the engine last said: {}",
      submitted_, durable_, applied_, jobs_out_, refusal_.empty() ? "nothing" : refusal_));
}

Result<RunResult> Driver::Run(const Workload& workload) {
  RunResult result;
  answer_when_durable_ = workload.answer_when_durable || !apply_;
  const uint64_t last = submitted_ + workload.entries;
  const Nanos write_nanos = write_nanos_;
  const Nanos payload_nanos = payload_nanos_;
  const uint64_t batches = batches_;
  const Nanos start = clock_.Now();
  idle_since_ = start;
  for (;;) {
    HYDRA_RETURN_IF_ERROR(CollectBatch());
    if (!answer_when_durable_) HYDRA_RETURN_IF_ERROR(ApplyDurable(&result));
    HYDRA_RETURN_IF_ERROR(Refill(workload, last, &result));
    HYDRA_RETURN_IF_ERROR(StartBatch());
    if (mode_ != WriteMode::kInline) HYDRA_RETURN_IF_ERROR(PrepareAhead(workload, last));
    if (apply_) HYDRA_RETURN_IF_ERROR(ApplyDurable(&result));
    if ((apply_ ? applied_ : durable_) >= last) break;
    HYDRA_RETURN_IF_ERROR(PumpJobs());
    HYDRA_RETURN_IF_ERROR(Tick(workload));
    HYDRA_RETURN_IF_ERROR(WaitForEvent(&result));
  }
  result.seconds = Seconds(clock_.Now() - start);
  result.batches = batches_ - batches;
  result.payload_seconds = Seconds(payload_nanos_ - payload_nanos);
  if (!batch_in_flight_) result.write_seconds = Seconds(write_nanos_ - write_nanos);
  return result;
}

Status Driver::AcceptOnly(const Workload& workload) {
  apply_ = false;
  const Result<RunResult> result = Run(workload);
  apply_ = true;
  return result.status();
}

Result<RunResult> Driver::ApplyAccepted() {
  RunResult result;
  HYDRA_RETURN_IF_ERROR(ApplyDurable(&result));
  if (applied_ < durable_) return Status::Busy("the overlay was to be large enough: " + refusal_);
  result.seconds = result.apply_seconds;
  return result;
}

Status Driver::RunJobsHere() {
  while (std::unique_ptr<Job> job = engine_->NextJob()) {
    HYDRA_RETURN_IF_ERROR(CheckInterrupted());
    job->Run();
    engine_->FinishJob(std::move(job));
    HYDRA_RETURN_IF_ERROR(engine_->poisoned());
    HYDRA_RETURN_IF_ERROR(StartBatch());
  }
  return Status::Ok();
}

Status Driver::Quiesce() {
  RunResult ignored;
  idle_since_ = clock_.Now();
  for (;;) {
    HYDRA_RETURN_IF_ERROR(CollectBatch());
    HYDRA_RETURN_IF_ERROR(StartBatch());
    HYDRA_RETURN_IF_ERROR(ApplyDurable(&ignored));
    HYDRA_RETURN_IF_ERROR(PumpJobs());
    if (!progress_ && !batch_in_flight_ && jobs_out_ == 0 && applied_ == submitted_) break;
    HYDRA_RETURN_IF_ERROR(CheckInterrupted());
    HYDRA_RETURN_IF_ERROR(WaitForEvent(&ignored));
  }
  return Status::Ok();
}

Status Driver::Close() {
  HYDRA_RETURN_IF_ERROR(Quiesce());
  return engine_->Close();
}

}  // namespace hydra::bench
