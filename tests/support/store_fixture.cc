// SPDX-License-Identifier: Apache-2.0
#include "tests/support/store_fixture.h"

#include <malloc.h>

#include <algorithm>
#include <cstdlib>

#include <fmt/format.h>

#include "base/check.h"
#include "base/logging.h"

namespace hydra::test {
namespace {

// More rounds than any test needs; a store that is not quiet by then never will be.
constexpr int kMaxRounds = 10'000;
// How often a patient store tries again.
constexpr int kMaxTries = 100;

Uuid FixedUuid(uint8_t last) {
  Uuid uuid;
  uuid.bytes = {0x48, 0x79, 0x64, 0x72, 0x61, 0, 0x40, 0, 0x80, 0, 0, 0, 0, 0, 0, last};
  return uuid;
}

}  // namespace

Store::Options::Options() {
  engine.capacity_bytes = 0;
  engine.reserve_segments = 2;
  engine.spare_segments = 1;
  engine.inline_map = true;
  engine.map_write_buffer = 64 * 1024;
  engine.map_cache = 64 * 1024;
  engine.ballast_bytes = 0;
}

Store::Store(const Options& options) : Store(options, nullptr) {
  disk_ = std::make_unique<SimDisk>(options.disk);
}

Store::Store(const Options& options, std::unique_ptr<SimDisk> disk)
    : options_(options), uuid_(FixedUuid(1)), disk_(std::move(disk)) {
  static const bool kPrepared = [] {
    // Thousands of stores die on purpose; what they say of it is noise.
    if (std::getenv("HYDRA_TEST_LOG") == nullptr) SetLogLevel(LogLevel::kOff);
    // And their memory is needed again at once: giving it back to the system takes most of the
    // time otherwise.
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    mallopt(M_TOP_PAD, 64 << 20);
    return true;
  }();
  (void)kPrepared;
}

Store::~Store() = default;

// --- Life ------------------------------------------------------------------------------------

Status Store::Create() {
  CreateOptions create;
  create.cluster = FixedUuid(0xc);
  create.node = 1;
  create.segment_bytes = options_.segment_bytes;
  create.store = uuid_;
  return Engine::Create(disk_.get(), kStoreDirectory, create);
}

Status Store::OpenUnchecked() {
  EngineOptions options = options_.engine;
  options.fs = disk_.get();
  options.dir = kStoreDirectory;
  Result<std::unique_ptr<Engine>> engine = Engine::Open(options);
  if (!engine.ok()) return engine.status();
  engine_ = std::move(engine).value();
  engine_->SetStateSource([this](GroupId group) {
    const Result<GroupInfo> info = engine_->Info(group);
    return info.ok() ? LayerState(group, info->applied) : std::string();
  });
  return Status::Ok();
}

Status Store::Open() {
  HYDRA_RETURN_IF_ERROR(OpenUnchecked());
  StoreModel seen = model_;
  const std::string problems = seen.Recover(engine_.get());
  // Reading the map may compact it, and so meet a power loss that a test has ordered.
  if (!disk_->powered()) return Status::IoError("power was lost while opening");
  model_ = std::move(seen);
  Fail(problems);
  return Status::Ok();
}

void Store::MustStart() {
  HYDRA_CHECK(Create().ok());
  HYDRA_CHECK(Open().ok());
  HYDRA_CHECK(CreateGroup(1, 1).ok());
  HYDRA_CHECK(Flush().ok());
}

Status Store::Close() {
  const Status status = engine_->Close();
  engine_.reset();
  if (status.ok()) model_.CompletedAll();
  return status;
}

void Store::PowerLoss() {
  if (disk_->powered()) disk_->PowerLoss();
  engine_.reset();
  disk_->Restart();
}

void Store::Crash() {
  disk_->Crash();
  engine_.reset();
}

void Store::Abandon() { engine_.reset(); }

std::unique_ptr<Store> Store::Fork(uint64_t seed) const {
  std::unique_ptr<Store> fork(new Store(options_, disk_->Clone(seed)));
  fork->model_ = model_;
  fork->token_ = token_;
  fork->patient_ = patient_;
  return fork;
}

// --- Records ---------------------------------------------------------------------------------

template <typename Call>
Status Store::Patiently(const Call& call) {
  for (int tries = 1;; ++tries) {
    const Status status = call();
    if (!patient_ || status.code() != Code::kBusy || tries == kMaxTries) return status;
    HYDRA_RETURN_IF_ERROR(RunJobs());
  }
}

Status Store::CreateGroup(GroupId group, uint32_t block_pages) {
  const uint64_t token = NextToken();
  HYDRA_RETURN_IF_ERROR(Patiently([&] { return engine_->CreateGroup(group, block_pages, token); }));
  model_.Created(group, block_pages, token);
  return Status::Ok();
}

Status Store::DropGroup(GroupId group) {
  const uint64_t token = NextToken();
  HYDRA_RETURN_IF_ERROR(Patiently([&] { return engine_->DropGroup(group, token); }));
  model_.DropQueued(group, token);
  return Status::Ok();
}

Status Store::Accept(GroupId group, Instance instance, const Ballot& ballot,
                     const Proposal* value) {
  const uint64_t token = NextToken();
  HYDRA_RETURN_IF_ERROR(Patiently([&] {
    return engine_->Accept(group, instance, ballot, value->entry, value->MakePayload(), token);
  }));
  model_.Accepted(group, instance, ballot, value, token);
  return Status::Ok();
}

Status Store::Propose(GroupId group, std::vector<Operation> operations) {
  const GroupModel& state = model_.group(group);
  return Accept(group, state.last() + 1, kFirstBallot,
                model_.NewProposal(state, std::move(operations)));
}

Status Store::Write(GroupId group, Lba lba, uint64_t count) {
  return Propose(group, {WriteOp(lba, count)});
}

Status Store::WriteBytes(GroupId group, Lba lba, Buffer contents) {
  const GroupModel& state = model_.group(group);
  const uint64_t count = contents.size() / (state.block_pages * kPageSize);
  return Accept(group, state.last() + 1, kFirstBallot,
                model_.NewProposal(state, {WriteOp(lba, count)}, std::move(contents)));
}

Status Store::Zero(GroupId group, Lba lba, uint64_t count) {
  return Propose(group, {ZeroOp(lba, count)});
}

Status Store::Unmap(GroupId group, Lba lba, uint64_t count) {
  return Propose(group, {UnmapOp(lba, count)});
}

Status Store::ZeroExtents(GroupId group, std::vector<Extent> extents) {
  return Propose(group, {ZeroExtentsOp(std::move(extents))});
}

Status Store::SaveHardState(GroupId group, const Ballot& promised, std::string opaque) {
  const uint64_t token = NextToken();
  HYDRA_RETURN_IF_ERROR(
      Patiently([&] { return engine_->SaveHardState(group, promised, opaque, token); }));
  model_.HardStateQueued(group, promised, std::move(opaque), token);
  return Status::Ok();
}

Status Store::Truncate(GroupId group, Instance instance) {
  const uint64_t token = NextToken();
  HYDRA_RETURN_IF_ERROR(Patiently([&] { return engine_->TruncateLog(group, instance, token); }));
  model_.TruncateQueued(group, instance, token);
  return Status::Ok();
}

// --- Installs --------------------------------------------------------------------------------

Status Store::InstallBegin(GroupId group, InstallMode mode, Instance floor) {
  const uint64_t token = NextToken();
  HYDRA_RETURN_IF_ERROR(
      Patiently([&] { return engine_->InstallBegin(group, mode, floor, token); }));
  model_.InstallQueued(group, true, 0, token);
  return Status::Ok();
}

Status Store::InstallChunk(GroupId group, const ImageChunk& chunk, const Payload& payload) {
  const uint64_t token = NextToken();
  HYDRA_RETURN_IF_ERROR(
      Patiently([&] { return engine_->InstallChunk(group, chunk, payload, token); }));
  model_.InstallQueued(group, true, 0, token);
  for (const ImageRow& row : chunk.rows) {
    if (row.bare) model_.TookBareRows(group);
  }
  return Status::Ok();
}

Status Store::Deliver(GroupId group, const std::vector<BlockName>& blocks, const Payload& payload) {
  const uint64_t token = NextToken();
  HYDRA_RETURN_IF_ERROR(Patiently([&] { return engine_->Deliver(group, blocks, payload, token); }));
  model_.DeliverQueued(group, blocks, token);
  return Status::Ok();
}

Status Store::InstallFinish(GroupId group, Instance applied) {
  const uint64_t token = NextToken();
  HYDRA_RETURN_IF_ERROR(Patiently(
      [&] { return engine_->InstallFinish(group, applied, LayerState(group, applied), token); }));
  model_.InstallQueued(group, false, applied, token);
  return Status::Ok();
}

Status Store::InstallAbort(GroupId group) {
  const uint64_t token = NextToken();
  const Result<GroupInfo> info = engine_->Info(group);
  HYDRA_RETURN_IF_ERROR(Patiently([&] { return engine_->InstallAbort(group, token); }));
  model_.InstallQueued(group, info->install.dirty, 0, token);
  return Status::Ok();
}

// --- The state machine -----------------------------------------------------------------------

Status Store::Apply(GroupId id) {
  GroupModel& group = model_.group(id);
  const Instance next = group.applied + 1;
  const AcceptState* accepted = group.Newest(next);
  if (next <= group.chosen.size()) {
    const Proposal* chosen = group.chosen[next - 1];
    if (accepted == nullptr || accepted->value != chosen) {
      const Ballot old = accepted == nullptr ? Ballot() : accepted->ballot;
      HYDRA_RETURN_IF_ERROR(Accept(id, next, {old.round + 1, 1}, chosen));
      accepted = group.Newest(next);
    }
  }
  if (accepted == nullptr) return Status::NotFound("nothing to apply");
  HYDRA_RETURN_IF_ERROR(Patiently([&] { return engine_->Apply(id, next, accepted->ballot); }));
  model_.Applied(id, next);
  return Status::Ok();
}

Status Store::ApplyAll() {
  for (GroupId group : model_.Usable()) {
    if (model_.group(group).Installing()) continue;
    Status status;
    while (status.ok()) status = Apply(group);
    if (status.code() != Code::kNotFound) return status;
  }
  return Status::Ok();
}

// --- The writer and the jobs -----------------------------------------------------------------

void Store::Complete(Batch* batch, const Status& written) {
  std::vector<Completion> completions;
  engine_->BatchDone(batch, written, clock_.Now(), &completions);
  for (const Completion& completion : completions)
    Fail(model_.Completed(completion.token, engine_.get()));
}

Status Store::WriteBatch(Batch* batch) {
  const Status written = batch->Write();
  Complete(batch, written);
  return written;
}

Status Store::Flush() {
  for (int round = 0; round < kMaxRounds; ++round) {
    while (Batch* batch = engine_->NextBatch(clock_.Now())) {
      HYDRA_RETURN_IF_ERROR(WriteBatch(batch));
    }
    if (!engine_->poisoned().ok()) return engine_->poisoned();
    if (model_.pending() == 0) return Status::Ok();
    std::unique_ptr<Job> job = engine_->NextJob();
    if (job == nullptr) return Status::Unavailable("records are queued, but nothing can be done");
    job->Run();
    engine_->FinishJob(std::move(job));
  }
  return Status::Unavailable("the engine does not come to rest");
}

Status Store::RunJobs() {
  for (int round = 0; round < kMaxRounds; ++round) {
    bool moved = false;
    if (std::unique_ptr<Job> job = engine_->NextJob()) {
      job->Run();
      engine_->FinishJob(std::move(job));
      moved = true;
    }
    // Asking for a job may also have queued records.
    if (Batch* batch = engine_->NextBatch(clock_.Now())) {
      HYDRA_RETURN_IF_ERROR(WriteBatch(batch));
      moved = true;
    }
    if (!engine_->poisoned().ok()) return engine_->poisoned();
    if (!moved) return Status::Ok();
  }
  return Status::Unavailable("the engine does not come to rest");
}

Status Store::Settle() {
  HYDRA_RETURN_IF_ERROR(Flush());
  HYDRA_RETURN_IF_ERROR(ApplyAll());
  HYDRA_RETURN_IF_ERROR(Flush());
  return RunJobs();
}

Status Store::Checkpoint() {
  // First what is queued, so that its completions are heard of.
  std::vector<Completion> completions;
  const Status drained = engine_->Drain(&completions);
  for (const Completion& completion : completions)
    Fail(model_.Completed(completion.token, engine_.get()));
  HYDRA_RETURN_IF_ERROR(drained);
  HYDRA_RETURN_IF_ERROR(engine_->Checkpoint());
  NoteCheckpoint();
  return Status::Ok();
}

void Store::NoteCheckpoint() {
  for (GroupId group : model_.Usable()) {
    const Result<GroupInfo> info = engine_->Info(group);
    if (info.ok() && model_.group(group).created) model_.Covered(group, info->stable);
  }
}

// --- Checks ----------------------------------------------------------------------------------

std::string Store::VerifyAll() {
  std::string problems = model_.VerifyBlocks(engine_.get());
  for (GroupId group : model_.Usable()) {
    problems += model_.VerifyInfo(engine_.get(), group);
    problems += model_.VerifyLog(engine_.get(), group);
  }
  return problems;
}

std::string Store::VerifySettled() {
  if (const Status status = Settle(); !status.ok()) return status.ToString() + "\n";
  if (const Status status = Checkpoint(); !status.ok()) return status.ToString() + "\n";
  if (const Status status = RunJobs(); !status.ok()) return status.ToString() + "\n";
  std::string problems = VerifyAll();
  for (GroupId group : model_.Usable()) problems += model_.VerifyScans(engine_.get(), group);
  return problems + model_.VerifyAccounting(engine_.get());
}

}  // namespace hydra::test
