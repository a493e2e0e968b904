// SPDX-License-Identifier: Apache-2.0
//
// Store: an engine on a simulated disk, with a model of what it must hold, and short words for
// what tests do with it:
//
//   Store store({});
//   store.MustStart();                       // created, opened, group 1 with blocks of one page
//   ok(store.Write(1, 100, 4));              // accepts an entry; then, one by one:
//   ok(store.Flush()); ok(store.Apply(1));   // ... durable, applied
//   store.PowerLoss(); ok(store.Open());     // the model checks what came back
//   EXPECT_EQ(store.Problems(), "");
//
// Everything runs on the caller's thread, with a clock that moves only when told to. Whatever the
// model finds wrong is collected in Problems(). Independent of any test framework.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/sim_disk.h"
#include "blockstore/engine.h"
#include "tests/support/forge.h"
#include "tests/support/store_model.h"

namespace hydra::test {

inline constexpr char kStoreDirectory[] = "/store";
inline constexpr Ballot kFirstBallot{1, 1};

class Store {
 public:
  struct Options {
    SimDisk::Options disk;
    uint64_t segment_bytes = 512 * 1024;
    EngineOptions engine;  // file system and directory are filled in
    Options();             // small: a few megabytes, no LevelDB thread
  };

  explicit Store(const Options& options);
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  SimDisk& disk() { return *disk_; }
  ManualClock& clock() { return clock_; }
  StoreModel& model() { return model_; }
  Engine* engine() { return engine_.get(); }
  Engine* operator->() { return engine_.get(); }
  const Options& options() const { return options_; }
  EngineOptions& engine_options() { return options_.engine; }  // for the next Open
  const Uuid& uuid() const { return uuid_; }

  // --- Life. ---
  Status Create();
  Status Open();  // and compares with the model
  Status OpenUnchecked();
  void MustStart();  // Create, Open, group 1 of one page per block; aborts on failure
  Status Close();    // in order; then not open
  void PowerLoss();  // the engine dies, unsynced data is lost, power returns
  void Crash();      // the engine dies, unsynced data stays in the cache
  void Abandon();    // the engine object alone goes away (after an injected fault)
  // A second store with the same disk contents and expectations, not open.
  std::unique_ptr<Store> Fork(uint64_t seed) const;

  // --- Records. Each is queued, not durable. ---
  // A patient store (the default) answers kBusy by running batches and jobs, and tries again.
  void set_patient(bool patient) { patient_ = patient; }
  uint64_t NextToken() { return ++token_; }
  Status CreateGroup(GroupId group, uint32_t block_pages);
  Status DropGroup(GroupId group);
  Status Accept(GroupId group, Instance instance, const Ballot& ballot, const Proposal* value);
  // At the group's next instance, in kFirstBallot.
  Status Propose(GroupId group, std::vector<Operation> operations);
  Status Write(GroupId group, Lba lba, uint64_t count = 1);
  Status WriteBytes(GroupId group, Lba lba, Buffer contents);
  Status Zero(GroupId group, Lba lba, uint64_t count = 1);
  Status Unmap(GroupId group, Lba lba, uint64_t count = 1);
  Status ZeroExtents(GroupId group, std::vector<Extent> extents);
  Status SaveHardState(GroupId group, const Ballot& promised, std::string opaque);
  Status Truncate(GroupId group, Instance instance);

  // --- Installs (tests/support/install_driver.h drives whole ones). ---
  Status InstallBegin(GroupId group, InstallMode mode, Instance floor);
  Status InstallChunk(GroupId group, const ImageChunk& chunk, const Payload& payload);
  Status InstallFinish(GroupId group, Instance applied);
  // As in Engine: what is owed no more, or finds no room, is left out.
  Status Deliver(GroupId group, const std::vector<BlockName>& blocks, const Payload& payload);
  Status InstallAbort(GroupId group);

  // --- The state machine. ---
  // The next instance: the newest accept, or, after a crash, what had been chosen before (accepted
  // again if the log lacks it). kNotFound: nothing to apply.
  Status Apply(GroupId group);
  Status ApplyAll();  // of groups that are not installing

  // --- The writer and the jobs, run here. ---
  Status WriteBatch(Batch* batch);  // Write and BatchDone
  void Complete(Batch* batch, const Status& written);
  Status Flush();    // until no batch is left; runs jobs where a segment is missing
  Status RunJobs();  // until no job is left, with the batches they need
  Status Settle();   // Flush, ApplyAll, RunJobs until nothing moves
  Status Checkpoint();
  // Groups whose entries a checkpoint now covers; after a checkpoint that the caller saw complete.
  void NoteCheckpoint();

  // --- Checks. ---
  std::string VerifyAll();      // blocks, log, info
  std::string VerifySettled();  // ... scans and accounting as well; checkpoints first
  void Fail(const std::string& problem) { problems_ += problem; }
  const std::string& Problems() const { return problems_; }

  // What lies on the disk (tests/support/forge.h).
  std::vector<FoundBatch> Batches() { return FindBatches(disk_.get(), kStoreDirectory, uuid_); }
  std::vector<std::string> SegmentPaths() {
    return test::SegmentPaths(disk_.get(), kStoreDirectory);
  }
  std::string ReadFile(const std::string& path) { return ReadWholeFile(disk_.get(), path); }
  void WriteFile(const std::string& path, const std::string& contents) {
    WriteWholeFile(disk_.get(), path, contents);
  }
  void Forge(const FoundBatch& batch, uint64_t offset, std::span<const uint8_t> bytes) {
    ForgeHeader(disk_.get(), uuid_, batch, offset, bytes);
  }
  void ForgeInChain(const FoundBatch& batch, uint64_t offset, std::span<const uint8_t> bytes) {
    test::ForgeInChain(disk_.get(), kStoreDirectory, uuid_, batch, offset, bytes);
  }

 private:
  Store(const Options& options, std::unique_ptr<SimDisk> disk);
  template <typename Call>
  Status Patiently(const Call& call);

  Options options_;
  Uuid uuid_;
  ManualClock clock_;
  std::unique_ptr<SimDisk> disk_;
  std::unique_ptr<Engine> engine_;
  StoreModel model_;
  uint64_t token_ = 0;
  bool patient_ = true;
  std::string problems_;
};

}  // namespace hydra::test
