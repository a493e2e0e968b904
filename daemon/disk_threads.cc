// SPDX-License-Identifier: Apache-2.0
#include "daemon/disk_threads.h"

#include <algorithm>
#include <memory>
#include <utility>

#include <boost/asio/post.hpp>

#include "base/background.h"

namespace hydra {
namespace {

namespace asio = boost::asio;

constexpr unsigned kWorkers = 2;
constexpr size_t kReadHereBytes = 64u << 10;
// A header and two blocks: what a write of a client by itself becomes.
constexpr size_t kWriteHereBytes = 12u << 10;
// While this thread waits for the disk the node says nothing. So batches are written by the other
// thread where writes take longer as a rule, for a while after one that took very long (the longer
// it took, the longer), and after a read.
constexpr Nanos kQuickWrite = 1 * kMillisecond;
constexpr Nanos kUsualOf = 16;  // about so many of them make the rule
constexpr Nanos kSlowWrite = 20 * kMillisecond;
constexpr Nanos kAfterSlowWriteTimes = 100;
constexpr Nanos kLongestAfterSlowWrite = 60 * kSecond;
constexpr Nanos kAfterRead = 20 * kMillisecond;
// The engine is asked for jobs this often when it had none: to look costs as much as a small write.
constexpr Nanos kJobsEvery = 1 * kMillisecond;

}  // namespace

DiskThreads::DiskThreads(Engine* engine, asio::io_context* owner, unsigned readers,
                         Handlers handlers, DrillFaults* faults)
    : engine_(engine),
      owner_(owner),
      handlers_(std::move(handlers)),
      faults_(faults),
      writer_(1),
      workers_(kWorkers),
      readers_(readers) {}

DiskThreads::~DiskThreads() { Stop(); }

void DiskThreads::Stop() {
  stopped_ = true;
  writer_.join();
  workers_.join();
  readers_.join();
  WriteHere();
}

bool DiskThreads::WritesHere(const Batch& batch, Nanos now) const {
  const bool quick = usual_write_ <= kQuickWrite && now >= slow_until_;
  const bool unread = last_read_ == 0 || now >= last_read_ + kAfterRead;
  return batch.bytes() <= kWriteHereBytes && !batch.opens_segment() && quick && unread &&
         reads_ == 0;
}

void DiskThreads::Kick(Nanos now) {
  if (stopped_) return;
  Batch* const batch = writing_ ? nullptr : engine_->NextBatch(now);
  if (batch != nullptr) {
    writing_ = true;
    writing_since_ = now;
    if (WritesHere(*batch, now)) {
      here_ = batch;
    } else {
      WriteThere(batch);
    }
  }
  if (now < jobs_from_ && !engine_->AwaitsJob()) return;
  while (jobs_ < kWorkers) {
    std::unique_ptr<Job> job = engine_->NextJob();
    if (job == nullptr) {
      jobs_from_ = now + kJobsEvery;
      break;
    }
    ++jobs_;
    asio::post(workers_, [this, raw = job.release()] {
      LowerPriority();
      raw->Run();
      asio::post(*owner_, [this, raw] {
        --jobs_;
        engine_->FinishJob(std::unique_ptr<Job>(raw));
        jobs_from_ = 0;
        handlers_.due();
      });
    });
  }
}

void DiskThreads::WriteHere() {
  Batch* const batch = std::exchange(here_, nullptr);
  if (batch == nullptr) return;
  Nanos took = 0;
  const Status written = Write(batch, &took);
  BatchDone(batch, written, took);
  handlers_.durable(completions_);
}

void DiskThreads::WriteThere(Batch* batch) {
  asio::post(writer_, [this, batch] {
    Nanos took = 0;
    const Status written = Write(batch, &took);
    asio::post(*owner_, [this, batch, written, took] {
      BatchDone(batch, written, took);
      handlers_.durable(completions_);
    });
  });
}

// On either thread.
Status DiskThreads::Write(Batch* batch, Nanos* took) const {
  const Nanos began = clock_.Now();
  Status written = faults_ == nullptr ? Status::Ok() : faults_->BeforeWrite();
  if (written.ok()) written = batch->Write();
  *took = clock_.Now() - began;
  return written;
}

void DiskThreads::BatchDone(Batch* batch, const Status& written, Nanos took) {
  const Nanos now = clock_.Now();
  const bool small = batch->bytes() <= kWriteHereBytes;
  writing_ = false;
  ++writes_;
  writing_nanos_ += static_cast<uint64_t>(took);
  longest_write_ = std::max(longest_write_, took);
  if (small) usual_write_ += (took - usual_write_) / kUsualOf;
  if (!small) jobs_from_ = 0;  // beside such a write it costs nothing to look
  if (took > kSlowWrite) {
    slow_until_ = now + std::min(kAfterSlowWriteTimes * took, kLongestAfterSlowWrite);
  }
  handlers_.written(took);
  completions_.clear();
  engine_->BatchDone(batch, written, now, &completions_);
}

void DiskThreads::Read(ShardRead read) {
  if (stopped_) {
    engine_->DropRead(std::move(read.job));
    return;
  }
  last_read_ = clock_.Now();
  // What is in memory is read here: going to another thread and back takes longer.
  if (read.bytes <= kReadHereBytes && read.job->TryRun()) return handlers_.read(std::move(read));
  ++reads_;
  // Handlers must be copyable; the job is not.
  auto shared = std::make_shared<ShardRead>(std::move(read));
  asio::post(readers_, [this, shared] {
    shared->job->Run();
    asio::post(*owner_, [this, shared] {
      --reads_;
      handlers_.read(std::move(*shared));
    });
  });
}

}  // namespace hydra
