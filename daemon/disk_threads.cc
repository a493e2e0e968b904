// SPDX-License-Identifier: Apache-2.0
#include "daemon/disk_threads.h"

#include <memory>
#include <utility>

#include <boost/asio/post.hpp>

namespace hydra {
namespace {

namespace asio = boost::asio;

constexpr unsigned kWorkers = 2;
constexpr size_t kReadHereBytes = 64u << 10;

}  // namespace

DiskThreads::DiskThreads(Engine* engine, asio::io_context* owner, unsigned readers,
                         Handlers handlers)
    : engine_(engine),
      owner_(owner),
      handlers_(std::move(handlers)),
      writer_(1),
      workers_(kWorkers),
      readers_(readers) {}

DiskThreads::~DiskThreads() { Stop(); }

void DiskThreads::Stop() {
  stopped_ = true;
  writer_.join();
  workers_.join();
  readers_.join();
}

void DiskThreads::Kick(Nanos now) {
  if (stopped_) return;
  if (!writing_) {
    if (Batch* batch = engine_->NextBatch(now)) {
      writing_ = true;
      asio::post(writer_, [this, batch] {
        const Nanos began = clock_.Now();
        const Status written = batch->Write();
        const Nanos took = clock_.Now() - began;
        asio::post(*owner_, [this, batch, written, took] {
          writing_nanos_ += static_cast<uint64_t>(took);
          BatchDone(batch, written);
        });
      });
    }
  }
  while (jobs_ < kWorkers) {
    std::unique_ptr<Job> job = engine_->NextJob();
    if (job == nullptr) break;
    ++jobs_;
    asio::post(workers_, [this, raw = job.release()] {
      raw->Run();
      asio::post(*owner_, [this, raw] {
        --jobs_;
        engine_->FinishJob(std::unique_ptr<Job>(raw));
        Kick(clock_.Now());
      });
    });
  }
}

void DiskThreads::BatchDone(Batch* batch, const Status& written) {
  writing_ = false;
  completions_.clear();
  const Nanos now = clock_.Now();
  engine_->BatchDone(batch, written, now, &completions_);
  // What arrived meanwhile is the next batch: the disk does not wait for what comes of this one.
  Kick(now);
  handlers_.durable(completions_);
}

void DiskThreads::Read(ShardRead read) {
  if (stopped_) {
    engine_->DropRead(std::move(read.job));
    return;
  }
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
