// SPDX-License-Identifier: Apache-2.0
//
// The engine with its real threading model, on real files and on the simulated disk: the test's
// thread owns the engine, and batches, jobs and reads run on threads of their own while it goes on.
// Foremost for the thread sanitizer, which sees what they share. How often they meet depends on the
// machine; what must hold in the end does not.
#include <stdlib.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/clock.h"
#include "base/logging.h"
#include "base/posix_file.h"
#include "base/rng.h"
#include "base/sim_disk.h"
#include "blockstore/engine.h"
#include "tests/support/gtest_status.h"
#include "tests/support/store_model.h"
#include "tests/threads/workers.h"

namespace hydra::test {
namespace {

constexpr Ballot kBallot{1, 1};
constexpr uint64_t kBlocks = 300;      // of each group that are written: more than an extent
constexpr uint64_t kLongest = 6;       // blocks of an operation
constexpr uint64_t kAhead = 24;        // entries of a group accepted beyond the applied one
constexpr uint64_t kReadsAtOnce = 12;  // out at a time
constexpr Nanos kStuckAfter = 60 * kSecond;
constexpr std::chrono::milliseconds kNap{2};

// Blocks of one, one and four pages.
const std::map<GroupId, uint32_t> kGroups = {{1, 1}, {2, 1}, {7, 4}};

enum class Disk { kReal, kSimulated };

class EngineThreads : public testing::TestWithParam<Disk> {
 protected:
  void SetUp() override {
    SetLogLevel(LogLevel::kWarn);
    if (GetParam() == Disk::kReal) {
      std::string name = (std::filesystem::temp_directory_path() / "hydra-threads-XXXXXX").string();
      ASSERT_NE(::mkdtemp(name.data()), nullptr);
      root_ = name;
      fs_ = std::make_unique<PosixFileSystem>();
    } else {
      fs_ = std::make_unique<SimDisk>(SimDisk::Options());
    }
    options_.fs = fs_.get();
    options_.dir = root_ + "/store";
    options_.capacity_bytes = 24u << 20;
    options_.reserve_segments = 3;
    options_.spare_segments = 2;
    options_.overlay_rows = 1'500;  // many checkpoints
    options_.log_entries_kept = 100;
    options_.map_write_buffer = 64u << 10;  // and LevelDB's own thread has work
    options_.map_cache = 64u << 10;
    options_.ballast_bytes = 0;
    CreateOptions create;
    create.segment_bytes = 1u << 20;
    ASSERT_OK(Engine::Create(fs_.get(), options_.dir, create));
    Open();
  }

  void TearDown() override {
    writer_.reset();
    job_runner_.reset();
    readers_.clear();
    while (mailbox_.Deliver(std::chrono::milliseconds(0))) {
    }
    engine_.reset();
    if (!root_.empty()) std::filesystem::remove_all(root_);
  }

  void Open() {
    Result<std::unique_ptr<Engine>> engine = Engine::Open(options_);
    ASSERT_OK(engine.status());
    engine_ = std::move(engine).value();
    engine_->SetStateSource([this](GroupId group) {
      const Result<GroupInfo> info = engine_->Info(group);
      return info.ok() ? LayerState(group, info->applied) : std::string();
    });
    EXPECT_EQ(model_.Recover(engine_.get()), "");
  }

  void StartThreads() {
    writer_ = std::make_unique<Worker>();
    job_runner_ = std::make_unique<Worker>();
    for (int i = 0; i < 3; ++i) readers_.push_back(std::make_unique<Worker>());
  }

  // --- What the owner does in a round. Each says whether anything moved. ---

  bool StartBatch() {
    if (batch_out_) return false;
    Batch* const batch = engine_->NextBatch(clock_.Now());
    if (batch == nullptr) return false;
    batch_out_ = true;
    writer_->Send([this, batch] {
      const Status written = batch->Write();
      mailbox_.Post([this, batch, written] {
        batch_out_ = false;
        std::vector<Completion> completions;
        engine_->BatchDone(batch, written, clock_.Now(), &completions);
        for (const Completion& done : completions) EXPECT_EQ(model_.Completed(done.token), "");
      });
    });
    return true;
  }

  bool StartJobs() {
    bool moved = false;
    while (std::unique_ptr<Job> next = engine_->NextJob()) {
      moved = true;
      ++jobs_out_;
      // A std::function must be copyable, and so what it owns.
      const auto job = std::make_shared<std::unique_ptr<Job>>(std::move(next));
      job_runner_->Send([this, job] {
        (*job)->Run();
        mailbox_.Post([this, job] {
          --jobs_out_;
          engine_->FinishJob(std::move(*job));
        });
      });
    }
    return moved;
  }

  bool StartRead() {
    if (reads_out_ >= kReadsAtOnce) return false;
    const GroupModel& group = AnyGroup();
    if (rng_.Percent(10)) return StartLogRead(group.id);
    const Lba lba = rng_.Below(kBlocks - kLongest);
    const uint64_t count = 1 + rng_.Below(kLongest);
    Result<std::unique_ptr<ReadJob>> planned = engine_->PlanRead(group.id, lba, count);
    EXPECT_OK(planned.status());
    if (!planned.ok()) return false;
    const auto job = std::make_shared<std::unique_ptr<ReadJob>>(std::move(planned).value());
    const std::map<Lba, BlockState> then(group.blocks.lower_bound(lba),
                                         group.blocks.lower_bound(lba + count));
    ++reads_out_;
    if (rng_.Percent(50) && (*job)->TryRun()) {  // here, as a node does first
      --reads_out_;
      ++reads_tried_;
      const Result<ReadResult> read = engine_->FinishRead(std::move(*job));
      EXPECT_OK(read.status());
      if (!read.ok()) return false;
      EXPECT_EQ(StoreModel::CompareReadSince(group, group.applied, then, lba, *read), "");
      return true;
    }
    readers_[reads_done_++ % readers_.size()]->Send(
        [this, job, then, id = group.id, since = group.applied, lba] {
          (*job)->Run();
          mailbox_.Post([this, job, then, id, since, lba] {
            --reads_out_;
            const Result<ReadResult> read = engine_->FinishRead(std::move(*job));
            ASSERT_OK(read.status());
            EXPECT_EQ(StoreModel::CompareReadSince(model_.group(id), since, then, lba, *read), "");
          });
        });
    return true;
  }

  // The oldest entries of the log, which are the first to be truncated.
  bool StartLogRead(GroupId id) {
    const Result<GroupInfo> info = engine_->Info(id);
    EXPECT_OK(info.status());
    const Instance from = info->truncated + 1;
    const Instance to = std::min<Instance>(info->stable, info->truncated + kLongest);
    if (to < from) return false;
    Result<std::unique_ptr<ReadJob>> planned =
        engine_->PlanLogRead({id, from, to, SIZE_MAX, nullptr});
    EXPECT_OK(planned.status());
    if (!planned.ok()) return false;
    const auto job = std::make_shared<std::unique_ptr<ReadJob>>(std::move(planned).value());
    ++reads_out_;
    readers_[reads_done_++ % readers_.size()]->Send([this, job, from, to] {
      (*job)->Run();
      mailbox_.Post([this, job, from, to] {
        --reads_out_;
        const Result<std::vector<LogEntry>> read = engine_->FinishLogRead(std::move(*job));
        ASSERT_OK(read.status());
        EXPECT_EQ(read->size(), to - from + 1);
      });
    });
    return true;
  }

  bool Propose() {
    const GroupModel& group = AnyGroup();
    const Instance instance = group.last() + 1;
    if (instance > group.applied + kAhead) return false;
    const uint64_t kind = rng_.Below(100);
    const Lba lba = rng_.Below(kBlocks - kLongest);
    const uint64_t count = 1 + rng_.Below(kLongest);
    const Operation operation = kind < 85   ? WriteOp(lba, count)
                                : kind < 92 ? ZeroOp(lba, count)
                                            : UnmapOp(lba, count);
    const Proposal* const value = model_.NewProposal(group, {operation});
    const Status status =
        engine_->Accept(group.id, instance, kBallot, value->entry, value->MakePayload(), ++token_);
    if (status.code() == Code::kBusy) return false;
    EXPECT_OK(status);
    if (!status.ok()) return false;
    model_.Accepted(group.id, instance, kBallot, value, token_);
    ++proposed_;
    return true;
  }

  bool Apply() {
    bool moved = false;
    for (const auto& [id, pages] : kGroups) {
      const Instance next = model_.group(id).applied + 1;
      if (model_.group(id).Newest(next) == nullptr) continue;
      const Status status = engine_->Apply(id, next, kBallot);
      if (status.code() == Code::kBusy) continue;
      EXPECT_OK(status);
      if (!status.ok()) continue;
      model_.Applied(id, next);
      moved = true;
    }
    return moved;
  }

  const GroupModel& AnyGroup() {
    return model_.group(std::next(kGroups.begin(), rng_.Below(kGroups.size()))->first);
  }

  bool Quiet() const {
    if (batch_out_ || jobs_out_ > 0 || reads_out_ > 0 || model_.pending() > 0) return false;
    for (const auto& [id, pages] : kGroups) {
      if (model_.group(id).applied < model_.group(id).last()) return false;
    }
    return true;
  }

  // Until `entries` more are accepted, durable and applied, and nothing is out.
  void Run(uint64_t entries) {
    const uint64_t target = proposed_ + entries;
    Nanos moved_at = clock_.Now();
    for (;;) {
      bool moved = mailbox_.Deliver(std::chrono::milliseconds(0));
      if (proposed_ < target) moved = Propose() || moved;
      moved = StartBatch() || moved;
      moved = StartJobs() || moved;
      moved = Apply() || moved;
      if (proposed_ < target && rng_.Percent(30)) moved = StartRead() || moved;
      if (rng_.Below(500) == 0) engine_->RequestCheckpoint();
      ASSERT_OK(engine_->poisoned());
      ASSERT_FALSE(HasFailure());
      if (proposed_ == target && !moved && Quiet()) return;
      if (!moved) moved = mailbox_.Deliver(kNap);
      if (moved) moved_at = clock_.Now();
      ASSERT_LT(clock_.Now() - moved_at, kStuckAfter) << "stuck after " << proposed_ << " entries";
    }
  }

  std::string Problems() {
    std::string problems = model_.VerifyBlocks(engine_.get());
    for (const auto& [id, pages] : kGroups) {
      problems += model_.VerifyInfo(engine_.get(), id) + model_.VerifyLog(engine_.get(), id);
    }
    return problems;
  }

  std::unique_ptr<FileSystem> fs_;
  RealClock clock_;
  Rng rng_{2024};
  std::string root_;  // real files only
  EngineOptions options_;
  StoreModel model_;
  uint64_t token_ = 0;
  uint64_t proposed_ = 0;

  // All of the owner's thread.
  bool batch_out_ = false;
  uint64_t jobs_out_ = 0;
  uint64_t reads_out_ = 0;
  uint64_t reads_done_ = 0;
  uint64_t reads_tried_ = 0;  // ... and done on the owner's thread

  Mailbox mailbox_;
  std::unique_ptr<Engine> engine_;
  // After what their tasks use.
  std::unique_ptr<Worker> writer_;
  std::unique_ptr<Worker> job_runner_;
  std::vector<std::unique_ptr<Worker>> readers_;
};

TEST_P(EngineThreads, WritesReadsCheckpointsAndVacuumBesideEachOtherLoseNothing) {
  StartThreads();
  for (const auto& [id, pages] : kGroups) {
    Status status = engine_->CreateGroup(id, pages, ++token_);
    for (int i = 0; i < 1000 && status.code() == Code::kBusy; ++i) {  // the first segments
      StartJobs();
      mailbox_.Deliver(kNap);
      status = engine_->CreateGroup(id, pages, token_);
    }
    ASSERT_OK(status);
    model_.Created(id, pages, token_);
  }
  Run(2'500);
  EXPECT_EQ(Problems(), "");

  const EngineStats stats = engine_->Stats();
  EXPECT_GT(stats.checkpoints, 3u);
  EXPECT_GT(stats.segments_freed, 0u);
  EXPECT_GT(stats.relocated_bytes, 0u);
  EXPECT_GT(reads_done_, 200u);
  EXPECT_GT(reads_tried_, 20u);

  ASSERT_OK(engine_->Close());
  engine_.reset();
  model_.CompletedAll();
  Open();
  EXPECT_EQ(Problems(), "");
  Run(100);
  EXPECT_EQ(Problems(), "");
}

INSTANTIATE_TEST_SUITE_P(Disks, EngineThreads, testing::Values(Disk::kReal, Disk::kSimulated),
                         [](const testing::TestParamInfo<Disk>& info) {
                           return info.param == Disk::kReal ? "Real" : "Simulated";
                         });

}  // namespace
}  // namespace hydra::test
