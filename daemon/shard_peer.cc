// SPDX-License-Identifier: Apache-2.0
//
// What peers ask of a shard's log and state, and taking in theirs.
#include <algorithm>

#include "base/check.h"
#include "base/coding.h"
#include "base/logging.h"
#include "base/probe.h"
#include "base/sabotage.h"
#include "blockstore/payload.h"
#include "daemon/shard.h"
#include "daemon/shard_install.h"

namespace hydra {

void Shard::Send(const paxos::MemberId& to, paxos::MessageBody body) {
  out_.messages.push_back(
      {options_.group, replica_->options().self, to, leases_->boot(), std::move(body)});
}

// Whether the body is the entry that the core is told it is, with the payload that belongs to it.
bool Shard::BodyIsGood(const paxos::EntryMeta& meta, const paxos::Body& body,
                       Instance instance) const {
  if (meta.kind == paxos::EntryKind::kNoop) {
    const uint64_t digest =
        meta.fence == Ballot{} ? 0 : paxos::FenceEntry(meta.fence, meta.fence_config).digest;
    return body == nullptr && meta.digest == digest;
  }
  if (body == nullptr) return false;
  const auto& entry = static_cast<const EntryBody*>(body.get())->entry;
  if (!ValidateEntry(entry, block_pages_).ok()) return false;
  const auto actual = MetaOf(entry, instance);
  if (!actual.ok() || actual->kind != meta.kind || actual->digest != meta.digest) return false;
  if (!PayloadIsGood(*static_cast<const EntryBody*>(body.get()))) return false;
  return meta.kind != paxos::EntryKind::kConfig || (meta.config && *actual->config == *meta.config);
}

// What was damaged on its way is dropped here: the engine would refuse it when the core counts on
// it already.
bool Shard::PayloadIsGood(const EntryBody& body) const {
  const uint64_t bytes = uint64_t{body.entry.PayloadPages()} * kPageSize;
  if (!CheckSlices(body.payload, bytes).ok()) return false;
  PayloadWalk walk(body.payload);
  for (const Operation& op : body.entry.operations) {
    if (op.kind != OpKind::kWrite) continue;
    for (const uint32_t crc : op.crcs) {
      if (walk.Next(size_t{block_pages_} * kPageSize) != crc) return false;
    }
  }
  return true;
}

// The same where only the digest is known: equal digests mean equal entries.
bool Shard::BodyIsGood(uint64_t digest, const paxos::Body& body, Instance instance) const {
  if (body == nullptr) return false;
  const auto meta = MetaOf(static_cast<const EntryBody*>(body.get())->entry, instance);
  return meta.ok() && meta->digest == digest && BodyIsGood(*meta, body, instance);
}

// --- The log ------------------------------------------------------------------------------------

// Reading is the read pool's work, one answer at a time for each peer, as many as the budget
// allows.
void Shard::ServeCatchUps() {
  for (auto it = catch_ups_.begin(); it != catch_ups_.end();) {
    if (!catching_up_.contains(it->first) && Serve(it->second)) {
      it = catch_ups_.erase(it);
    } else {
      ++it;
    }
  }
}

// False: later.
bool Shard::Serve(const paxos::ServeCatchUp& serve) {
  const auto info = engine_->Info(store_group_);
  if (!info.ok() || info->installing) return true;
  const Instance from = serve.request.from;
  // Entries are applied as soon as they are queued, but what the log says of an instance that is
  // not durable yet is what stood there before: perhaps another value, which was never chosen.
  const Instance to = std::min<Instance>(info->stable, from + serve.request.held.size() - 1);
  if (to < from || from <= info->truncated) {
    AnswerCatchUp(serve, info->truncated, {});
    return true;
  }
  if (!catch_up_budget_->Take(serve.to.node, options_.catch_up_bytes)) {
    HYDRA_PROBE("catch-up: a peer has enough on its way");
    return false;
  }
  LogReadRequest request;
  request.group = store_group_;
  request.from = from;
  request.to = to;
  request.max_bytes = options_.catch_up_bytes;
  request.wanted = [from, held = serve.request.held](const AcceptRecord& record) {
    const paxos::CatchUp::Held& there = held[record.instance - from];
    return !there.any || there.digest != EntryDigest(record.entry);
  };
  auto job = engine_->PlanLogRead(std::move(request));
  if (!job.ok()) {
    catch_up_budget_->Return(serve.to.node, options_.catch_up_bytes);
    return true;
  }
  const uint64_t ticket = next_ticket_++;
  serving_[ticket] = {serve, info->truncated};
  catching_up_.insert(serve.to.node);
  out_.reads.push_back({options_.group, ticket, std::move(*job), 0});
  return true;
}

void Shard::AnswerCatchUp(const paxos::ServeCatchUp& serve, Instance truncated,
                          std::vector<LogEntry> entries) {
  paxos::CatchUpReply reply;
  reply.from = serve.request.from;
  reply.commit = serve.commit;
  reply.truncated = truncated;
  for (LogEntry& read : entries) {
    const Instance instance = read.record.instance;
    auto meta = MetaOf(read.record.entry, instance);
    if (!meta.ok()) break;
    const paxos::CatchUp::Held& held = serve.request.held[instance - serve.request.from];
    paxos::ChosenEntry entry;
    entry.instance = instance;
    entry.ballot = read.record.ballot;
    entry.meta = std::move(*meta);
    entry.same = held.any && held.digest == entry.meta.digest;
    if (!entry.same && entry.meta.kind != paxos::EntryKind::kNoop) {
      auto body = std::make_shared<EntryBody>();
      body->entry = std::move(read.record.entry);
      body->payload = std::move(read.payload);
      entry.body = std::move(body);
    }
    reply.entries.push_back(std::move(entry));
  }
  Send(serve.to, std::move(reply));
}

void Shard::Serve(const paxos::ServeBody& serve, Nanos now) {
  LogReadRequest request;
  request.group = store_group_;
  request.from = serve.request.instance;
  request.to = serve.request.instance;
  auto job = engine_->PlanLogRead(std::move(request));
  if (!job.ok()) return AnswerBody(serve, {}, now);
  const uint64_t ticket = next_ticket_++;
  serving_[ticket] = {serve, 0};
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
  const auto found = serving_.find(ticket);
  if (found == serving_.end()) return false;
  const Serving serving = std::move(found->second);
  serving_.erase(found);
  auto entries = engine_->FinishLogRead(std::move(*job));
  std::vector<LogEntry> read = entries.ok() ? std::move(*entries) : std::vector<LogEntry>();
  if (const auto* body = std::get_if<paxos::ServeBody>(&serving.question)) {
    AnswerBody(*body, std::move(read), now);
    return true;
  }
  const auto& serve = std::get<paxos::ServeCatchUp>(serving.question);
  catching_up_.erase(serve.to.node);
  catch_up_budget_->Return(serve.to.node, options_.catch_up_bytes);
  // It became impatient: this is the answer.
  const auto again = catch_ups_.find(serve.to.node);
  if (again != catch_ups_.end() && again->second.request.from == serve.request.from) {
    catch_ups_.erase(again);
  }
  Instance truncated = serving.truncated;
  const Instance from = serve.request.from;
  if (read.empty()) {
    // Its payload is rotten here, and this may be the only peer that is asked. Its blocks, which
    // are mended where they still count, lead past it.
    const auto first = engine_->LogEntries(store_group_, from, from);
    if (!first.empty() && first[0].faulty && !HYDRA_SABOTAGE(kLogOutlivesSegment)) {
      HYDRA_PROBE("catch-up: an entry that is rotten here is left to an install");
      truncated = std::max(truncated, from);
    }
  }
  AnswerCatchUp(serve, truncated, std::move(read));
  return true;
}

// --- Installing ---------------------------------------------------------------------------------

void Shard::Serve(const paxos::ServeInstall& serve) {
  ImageRequest request;
  request.group = store_group_;
  request.base = LastVersionOf(serve.request.base);
  request.max_pages = static_cast<uint32_t>(
      std::max<size_t>(block_pages_, options_.install_chunk_bytes / kPageSize));
  // The first byte of a cursor says which kind of transfer it belongs to.
  const std::string& cursor = serve.request.cursor;
  request.mode = InstallMode::kDelta;
  if (!cursor.empty()) {
    request.mode = static_cast<InstallMode>(cursor[0]);
    request.cursor = cursor.substr(1);
  }
  auto piece = BuildImageChunk(engine_, request);
  if (!piece.ok() && piece.status().code() == Code::kOutOfRange) {
    // The receiver starts over when it sees the other kind, wherever it was.
    HYDRA_PROBE("install: an image, because the delta is behind the horizon");
    request.mode = InstallMode::kImage;
    request.cursor.clear();
    piece = BuildImageChunk(engine_, request);
  }
  if (!piece.ok()) {
    HYDRA_PROBE("install: the source cannot build a chunk");
    return;
  }
  if (piece->chunk.as_of <= serve.request.base && cursor.empty()) {
    // Nothing newer is in a checkpoint yet.
    HYDRA_PROBE("install: the source has to checkpoint first");
    engine_->RequestCheckpoint();
    return;
  }
  paxos::InstallChunk chunk;
  chunk.transfer = serve.request.transfer;
  chunk.cursor = cursor;
  chunk.done = piece->chunk.cursor.empty();
  if (!chunk.done) chunk.next = InstallCursor(request.mode, piece->chunk.cursor);
  chunk.as_of = piece->chunk.as_of;
  auto body = std::make_shared<InstallBody>();
  body->piece = std::move(*piece);
  chunk.body = std::move(body);
  Send(serve.to, std::move(chunk));
}

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
