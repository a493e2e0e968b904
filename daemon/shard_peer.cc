// SPDX-License-Identifier: Apache-2.0
//
// What peers ask of a shard's log and state, and taking in theirs.
#include <algorithm>

#include "base/check.h"
#include "base/coding.h"
#include "base/logging.h"
#include "base/probe.h"
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

void Shard::Serve(const paxos::ServeCatchUp& serve) {
  const auto info = engine_->Info(options_.group);
  if (!info.ok() || info->installing) return;
  paxos::CatchUpReply reply;
  reply.from = serve.request.from;
  reply.commit = serve.commit;
  reply.truncated = info->truncated;
  size_t bytes = 0;
  // Entries are applied as soon as they are queued, but what the log says of an instance that is
  // not durable yet is what stood there before: perhaps another value, which was never chosen.
  const Instance end =
      std::min<Instance>(info->stable, serve.request.from + serve.request.held.size() - 1);
  for (Instance i = serve.request.from; i <= end && i > info->truncated; ++i) {
    if (reply.entries.size() >= options_.catch_up_entries) break;
    const paxos::CatchUp::Held& held = serve.request.held[i - serve.request.from];
    const auto record = engine_->ReadLogRecord(options_.group, i);
    if (!record.ok()) break;  // truncated meanwhile, rotten, or not durable yet
    auto meta = MetaOf(record->entry, i);
    if (!meta.ok()) break;
    paxos::ChosenEntry entry;
    entry.instance = i;
    entry.ballot = record->ballot;
    entry.meta = std::move(*meta);
    entry.same = held.any && held.digest == entry.meta.digest;
    if (!entry.same && entry.meta.kind != paxos::EntryKind::kNoop) {
      if (bytes > 0 && bytes + entry.meta.bytes > options_.catch_up_bytes) break;
      auto whole = engine_->ReadLogEntry(options_.group, i);
      if (!whole.ok()) break;
      auto body = std::make_shared<EntryBody>();
      body->entry = std::move(whole->record.entry);
      body->payload = std::move(whole->payload);
      entry.body = std::move(body);
      bytes += entry.meta.bytes;
    }
    reply.entries.push_back(std::move(entry));
  }
  Send(serve.to, std::move(reply));
}

void Shard::Serve(const paxos::ServeBody& serve, Nanos now) {
  const paxos::FetchBody& request = serve.request;
  auto whole = engine_->ReadLogEntry(options_.group, request.instance);
  std::shared_ptr<EntryBody> body;
  if (whole.ok() && EntryDigest(whole->record.entry) == request.digest) {
    body = std::make_shared<EntryBody>();
    body->entry = std::move(whole->record.entry);
    body->payload = std::move(whole->payload);
  }
  if (serve.to == replica_->options().self) {
    replica_->BodyLoaded(request.instance, request.ballot, std::move(body), now);
    return;
  }
  const bool found = body != nullptr;
  Send(serve.to, paxos::FetchedBody{request.instance, request.ballot, request.digest, found,
                                    std::move(body)});
}

// --- Installing ---------------------------------------------------------------------------------

void Shard::Serve(const paxos::ServeInstall& serve) {
  ImageRequest request;
  request.group = options_.group;
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
  const auto info = engine_->Info(options_.group);
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
      status = engine_->InstallBegin(options_.group, piece.chunk.mode, piece.chunk.as_of, token);
      break;
    case Step::kChunk:
      status = engine_->InstallChunk(options_.group, piece.chunk, piece.payload, token);
      break;
    case Step::kFinish:
      status = engine_->InstallFinish(options_.group, work.state_at, work.state, token);
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
  const auto info = engine_->Info(options_.group);
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
