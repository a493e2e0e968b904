// SPDX-License-Identifier: Apache-2.0
//
// What peers say of a shard's log and state, and single entries for them.
#include <algorithm>

#include "base/check.h"
#include "base/coding.h"
#include "base/logging.h"
#include "base/probe.h"
#include "base/sabotage.h"
#include "blockstore/payload.h"
#include "daemon/shard.h"
#include "daemon/shard_install.h"
#include "daemon/shard_recovery.h"

namespace hydra {

void Shard::Send(const paxos::MemberId& to, paxos::MessageBody body) {
  out_.messages.push_back(
      {options_.group, replica_->options().self, to, leases_->boot(), std::move(body)});
}

// Whether the body is the entry that the core is told it is, with the payload that belongs to it:
// what was damaged on its way is dropped, and the core must not count on it.
Status Shard::CheckBody(const paxos::EntryMeta& meta, const paxos::Body& body,
                        Instance instance) const {
  const auto other = [](const char* what) { return Status::Corruption(what); };
  if (meta.kind == paxos::EntryKind::kNoop) {
    const uint64_t digest =
        meta.fence == Ballot{} ? 0 : paxos::FenceEntry(meta.fence, meta.fence_config).digest;
    if (body != nullptr || meta.digest != digest) return other("it is no no-op");
    return Status::Ok();
  }
  if (body == nullptr) return other("it is missing");
  const auto& whole = *static_cast<const EntryBody*>(body.get());
  const Entry& entry = whole.entry;
  HYDRA_RETURN_IF_ERROR(ValidateEntry(entry, block_pages_));
  HYDRA_ASSIGN_OR_RETURN(const paxos::EntryMeta actual, MetaOf(entry, instance));
  if (actual.kind != meta.kind || actual.digest != meta.digest) return other("its digest differs");
  HYDRA_RETURN_IF_ERROR(CheckEntryPayload(entry, whole.payload, block_pages_));
  if (meta.kind == paxos::EntryKind::kConfig && !(meta.config && *actual.config == *meta.config)) {
    return other("its configuration differs");
  }
  return Status::Ok();
}

// The same where only the digest is known: equal digests mean equal entries.
Status Shard::CheckBody(uint64_t digest, const paxos::Body& body, Instance instance) const {
  if (body == nullptr) return Status::Corruption("it is missing");
  HYDRA_ASSIGN_OR_RETURN(paxos::EntryMeta meta,
                         MetaOf(static_cast<const EntryBody*>(body.get())->entry, instance));
  meta.digest = digest;
  return CheckBody(meta, body, instance);
}

// --- The log ------------------------------------------------------------------------------------

void Shard::Serve(const paxos::ServeBody& serve, Nanos now) {
  LogReadRequest request;
  request.group = store_group_;
  request.from = serve.request.instance;
  request.to = serve.request.instance;
  auto job = engine_->PlanLogRead(std::move(request));
  if (!job.ok()) return AnswerBody(serve, {}, now);
  const uint64_t ticket = next_ticket_++;
  bodies_.emplace(ticket, serve);
  out_.reads.push_back({options_.group, ticket, std::move(*job), 0});
}

void Shard::AnswerBody(const paxos::ServeBody& serve, std::vector<LogEntry> entries, Nanos now) {
  const paxos::FetchBody& request = serve.request;
  std::shared_ptr<EntryBody> body;
  if (!entries.empty() && EntryDigest(entries[0].record.entry) == request.digest) {
    body = std::make_shared<EntryBody>();
    body->entry = std::move(entries[0].record.entry);
    body->payload = std::move(entries[0].payload);
  }
  if (serve.to == replica_->options().self) {
    replica_->BodyLoaded(request.instance, request.ballot, std::move(body), now);
    return;
  }
  const bool found = body != nullptr;
  Send(serve.to, paxos::FetchedBody{request.instance, request.ballot, request.digest, found,
                                    std::move(body)});
}

// Whatever happened to the log meanwhile: what was read was chosen, or is what it is said to be.
bool Shard::ServeDone(uint64_t ticket, std::unique_ptr<ReadJob>* job, Nanos now) {
  if (InstallReadDone(ticket, job) || LookDone(ticket, job)) return true;
  const auto body = bodies_.extract(ticket);
  const auto log = recovery_->reading.extract(ticket);
  if (body.empty() && log.empty()) return false;
  auto entries = engine_->FinishLogRead(std::move(*job));
  std::vector<LogEntry> read = entries.ok() ? std::move(*entries) : std::vector<LogEntry>();
  if (!body.empty()) {
    AnswerBody(body.mapped(), std::move(read), now);
  } else {
    const RecoveryWork::LogRead& asked = log.mapped();
    CatchUpRead(asked.serve, asked.truncated, asked.spent, std::move(read));
  }
  return true;
}

// --- Installing ---------------------------------------------------------------------------------

void Shard::TakePiece(const paxos::InstallChunk& chunk) {
  install_->body = std::static_pointer_cast<const InstallBody>(chunk.body);
  const auto info = engine_->Info(store_group_);
  HYDRA_CHECK(info.ok() && install_->body != nullptr);  // Step saw to it
  const bool fresh = !info->installing || info->install.restart || chunk.cursor.empty() ||
                     info->install.mode != install_->body->piece.chunk.mode;
  install_->queued = fresh ? InstallWork::Step::kBegin : InstallWork::Step::kChunk;
  if (fresh) install_->state_at = 0;
}

// Hands the next step to the engine, if it takes it.
void Shard::InstallStep(Nanos now) {
  using Step = InstallWork::Step;
  InstallWork& work = *install_;
  if (work.queued == Step::kIdle || work.out != Step::kIdle) return;
  const ImagePiece& piece = work.body->piece;
  const uint64_t token = tokens_->Add(options_.group, kLocalInstall);
  Status status;
  switch (work.queued) {
    case Step::kIdle: return;
    case Step::kBegin:
      status = engine_->InstallBegin(store_group_, piece.chunk.mode, piece.chunk.as_of, token);
      break;
    case Step::kChunk:
      status = MarkOwes(piece.chunk) ? Status::Ok() : Status::Busy("to be noted first");
      if (!status.ok()) break;
      status = engine_->InstallChunk(store_group_, piece.chunk, piece.payload, token);
      break;
    case Step::kFinish:
      status = engine_->InstallFinish(store_group_, work.state_at, work.state, token);
      break;
  }
  if (status.ok()) {
    work.out = work.queued;
    work.queued = Step::kIdle;
    return;
  }
  tokens_->Cancel(token);
  if (status.code() == Code::kBusy || status.code() == Code::kNoSpace) return;  // later
  if (status.code() == Code::kPoisoned) return Fail(status);
  // The chunk does not fit what is here: start over.
  HYDRA_LOG_WARN("group {}: a peer's state was refused: {}", options_.group, status.ToString());
  HYDRA_PROBE("install: a chunk is refused, from the start again");
  work.queued = Step::kIdle;
  replica_->InstallProgress("", now);
}

void Shard::InstallStepDone(Nanos now) {
  using Step = InstallWork::Step;
  InstallWork& work = *install_;
  const Step done = work.out;
  work.out = Step::kIdle;
  if (done == Step::kBegin) {
    work.queued = Step::kChunk;
    return;
  }
  const auto info = engine_->Info(store_group_);
  HYDRA_CHECK(info.ok());
  if (done == Step::kChunk) {
    const ImagePiece& piece = work.body->piece;
    // The latest state that the install may end with.
    if (!piece.state.empty() && piece.chunk.as_of <= info->install.as_of) {
      work.state = piece.state;
      work.state_at = piece.chunk.as_of;
    }
    if (!piece.chunk.cursor.empty()) {
      replica_->InstallProgress(InstallCursor(piece.chunk.mode, piece.chunk.cursor), now);
    } else if (work.state_at >= info->install.floor && work.state_at <= info->install.as_of) {
      work.queued = Step::kFinish;
    } else {
      HYDRA_PROBE("install: no state fits the blocks, from the start again");
      replica_->InstallProgress("", now);
    }
    work.body = work.queued == Step::kFinish ? work.body : nullptr;
    return;
  }
  if (done != Step::kFinish) return;
  auto state = GroupState::Decode(AsBytes(work.state));
  if (!state.ok()) return Fail(state.status());
  state_ = std::move(*state);
  const Instance at = work.state_at;
  work = {};
  accepted_.erase(accepted_.begin(), accepted_.upper_bound(at));
  replica_->Installed(at, state_.config(), state_.fence(), now);
  OnConfigApplied();
}

}  // namespace hydra
