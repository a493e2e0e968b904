// SPDX-License-Identifier: Apache-2.0
//
// What replicas that are behind are sent: entries of the log, or the state in pieces. Reading is
// the read pool's work; how much and how fast is the node's RecoveryBudget's.
#include "daemon/shard_recovery.h"

#include <algorithm>
#include <utility>

#include "base/probe.h"
#include "base/sabotage.h"
#include "blockstore/payload.h"
#include "daemon/shard_install.h"

namespace hydra {
namespace {

// About what an entry or a row takes on the wire beside its blocks.
constexpr uint64_t kEntryBytes = 64;
constexpr uint64_t kRowBytes = 24;

uint64_t LengthOf(const Payload& payload) {
  uint64_t bytes = 0;
  for (const auto& slice : payload) bytes += slice.length;
  return bytes;
}

}  // namespace

// --- The log ------------------------------------------------------------------------------------

// One answer at a time for each peer, as many as the budget allows.
void Shard::ServeCatchUps() {
  auto& asked = recovery_->catch_ups;
  for (auto it = asked.begin(); it != asked.end();) {
    const bool old = now_ > it->second.at + RecoveryWork::kForgetAfter;
    if (old || (!recovery_->IsReadingFor(it->first) && Serve(it->second.serve))) {
      it = asked.erase(it);
    } else {
      ++it;
    }
  }
}

// False: later.
bool Shard::Serve(const paxos::ServeCatchUp& serve) {
  const Instance from = serve.request.from;
  const bool near = IsNear(serve);
  if (near) {
    recovery_->looks.erase(serve.to.node);
  } else if (DeltaIsShorter(serve)) {
    HYDRA_PROBE("catch-up: a delta is shorter than the log");
    recovery_->looks.erase(serve.to.node);
    recovery_->told = serve.to.node;
    recovery_->told_at = now_;
    AnswerCatchUp(serve, from, {});
    return true;
  } else if (!budget_->MaySend()) {
    HYDRA_PROBE("catch-up: waits for its rate");
    return false;
  }
  const auto info = engine_->Info(store_group_);
  if (!info.ok() || info->installing) return true;
  // Entries are applied as soon as they are queued, but what the log says of an instance that is
  // not durable yet is what stood there before: perhaps another value, which was never chosen.
  const Instance to = std::min<Instance>(info->stable, from + serve.request.held.size() - 1);
  if (to < from || from <= info->truncated) {
    AnswerCatchUp(serve, info->truncated, {});
    return true;
  }
  if (!budget_->Take(serve.to.node, options_.catch_up_bytes)) {
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
    budget_->Return(serve.to.node, options_.catch_up_bytes);
    return true;
  }
  const uint64_t ticket = next_ticket_++;
  const uint64_t spent = near ? 0 : options_.catch_up_bytes;
  budget_->Spend(serve.to.node, spent);
  recovery_->reading[ticket] = {serve, info->truncated, spent};
  out_.reads.push_back({options_.group, ticket, std::move(*job), 0});
  return true;
}

// A group without a master, or whose majority lacks this one, waits for it.
bool Shard::IsNeeded(const paxos::MemberId& id) const {
  if (replica_->master_hint().node == 0) return true;
  const bool master = replica_->mode() == paxos::Mode::kMaster;
  return master && (!ready() || !replica_->KeepsUpWithout(id, 0, now_));
}

// Who lacks little is of the majority, or about to be. Neither that one nor one that is needed is
// held up by a rate.
bool Shard::IsNear(const paxos::ServeCatchUp& serve) const {
  if (IsNeeded(serve.to)) return true;
  const bool known = history_.Knows(serve.request.from - 1);
  const uint64_t windows = may_ask_bare_ && known ? RecoveryWork::kNearWindows : 1;
  const uint64_t bytes = may_ask_bare_ ? options_.near_bytes : options_.delta_gain_bytes;
  return serve.request.from + windows * options_.replica.window_instances >= serve.commit &&
         history_.Since(serve.request.from - 1) <= bytes;
}

// While the log reaches it, a replica is consistent at any moment; one that installs is not before
// the end. So only a master decides it, and only for one whom its majority does not need.
bool Shard::DeltaIsShorter(const paxos::ServeCatchUp& serve) {
  using State = RecoveryWork::DeltaLook::State;
  const uint64_t window = options_.replica.window_instances;
  const Instance nearly = serve.commit > window ? serve.commit - window : 0;
  if (!ready() || !serves_local() || !replica_->KeepsUpWithout(serve.to, nearly, now_)) {
    return false;
  }
  // Whole blocks cannot be sent before they are here.
  const bool voter = replica_->config().IsVoter(serve.to);
  if (!voter && Owes()) return false;
  const bool another = recovery_->told != 0 && recovery_->told != serve.to.node;
  if (another && now_ < recovery_->told_at + RecoveryWork::kLookForgotten) return false;
  const Instance from = serve.request.from;
  RecoveryWork::DeltaLook& look = recovery_->looks[serve.to.node];
  if (look.from == 0 || from < look.from || now_ > look.asked + RecoveryWork::kLookForgotten) {
    look = {};
    look.from = from;
  }
  look.asked = now_;
  const uint64_t log = history_.Since(from - 1);
  // Without payload the rows are a small part of any log that is worth a word.
  if (may_ask_bare_ && voter) return log > options_.near_bytes;
  const uint64_t rows = look.rows + look.last_rows;
  const uint64_t delta = rows * (BytesOf(1) + kRowBytes) + options_.delta_gain_bytes;
  if (delta >= log) look.state = State::kLog;
  if (look.state == State::kLog || look.ticket != 0 || now_ < look.again) return false;
  if (look.state == State::kCounted) {
    // What is not in that checkpoint goes as log.
    if (delta + history_.Since(look.as_of) < log) return true;
    look.state = ++look.looks < RecoveryWork::kMostLooks ? State::kCounting : State::kLog;
    look.again = now_ + RecoveryWork::kLookAgain;
    engine_->RequestCheckpoint();
    return false;
  }
  auto job = engine_->PlanScan(
      {store_group_, false, LastVersionOf(look.from - 1), look.cursor, RecoveryWork::kRowsAtOnce});
  if (!job.ok()) {
    look.state = State::kLog;
    return false;
  }
  if (look.cursor.empty() && look.looks == 0) engine_->RequestCheckpoint();
  look.ticket = next_ticket_++;
  recovery_->look_reads[look.ticket] = serve.to.node;
  out_.reads.push_back({options_.group, look.ticket, std::move(*job), options_.catch_up_bytes});
  return false;
}

bool Shard::LookDone(uint64_t ticket, std::unique_ptr<ReadJob>* job) {
  using State = RecoveryWork::DeltaLook::State;
  const auto asked = recovery_->look_reads.extract(ticket);
  if (asked.empty()) return false;
  const auto batch = engine_->FinishScan(std::move(*job));
  const auto found = recovery_->looks.find(asked.mapped());
  if (found == recovery_->looks.end() || found->second.ticket != ticket) return true;  // given up
  RecoveryWork::DeltaLook& look = found->second;
  look.ticket = 0;
  look.last_rows = 0;
  if (!batch.ok()) {
    look.state = State::kLog;
  } else if (batch->done) {
    // The cursor stays: these rows are counted again if there has to be another look.
    look.state = State::kCounted;
    look.as_of = batch->as_of;
    look.last_rows = batch->changes.size();
  } else {
    look.rows += batch->changes.size();
    look.cursor = batch->next;
  }
  return true;
}

void Shard::CatchUpRead(const paxos::ServeCatchUp& serve, Instance truncated, uint64_t spent,
                        std::vector<LogEntry> entries) {
  budget_->Return(serve.to.node, options_.catch_up_bytes);
  // It became impatient: this is the answer.
  const auto again = recovery_->catch_ups.find(serve.to.node);
  if (again != recovery_->catch_ups.end() &&
      again->second.serve.request.from == serve.request.from) {
    recovery_->catch_ups.erase(again);
  }
  const Instance from = serve.request.from;
  if (entries.empty()) {
    // Its payload is rotten here, and this may be the only peer that is asked. Its blocks, which
    // are mended where they still count, lead past it.
    const auto first = engine_->LogEntries(store_group_, from, from);
    if (!first.empty() && first[0].faulty && !HYDRA_SABOTAGE(kLogOutlivesSegment)) {
      HYDRA_PROBE("catch-up: an entry that is rotten here is left to an install");
      truncated = std::max(truncated, from);
    }
  }
  const uint64_t sent = AnswerCatchUp(serve, truncated, std::move(entries));
  budget_->Settle(spent, sent, RecoveryBudget::Kind::kLog);
}

// Returns about how many bytes it sends.
uint64_t Shard::AnswerCatchUp(const paxos::ServeCatchUp& serve, Instance truncated,
                              std::vector<LogEntry> entries) {
  paxos::CatchUpReply reply;
  uint64_t bytes = 0;
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
    bytes += kEntryBytes;
    if (!entry.same && entry.meta.kind != paxos::EntryKind::kNoop) {
      auto body = std::make_shared<EntryBody>();
      body->entry = std::move(read.record.entry);
      body->payload = std::move(read.payload);
      bytes += LengthOf(body->payload);
      entry.body = std::move(body);
    }
    reply.entries.push_back(std::move(entry));
  }
  Send(serve.to, std::move(reply));
  return bytes;
}

// --- The state ----------------------------------------------------------------------------------

// One chunk at a time for each peer.
void Shard::ServeInstalls() {
  auto asked = std::exchange(recovery_->installs, {});
  for (auto& [peer, question] : asked) {
    if (now_ > question.at + RecoveryWork::kForgetAfter) continue;
    if (recovery_->chunks.contains(peer) || !Serve(question.serve)) {
      recovery_->installs.emplace(peer, std::move(question));
    }
  }
}

// False: later.
bool Shard::Serve(const paxos::ServeInstall& serve) {
  if (!IsNeeded(serve.to) && !budget_->MaySend()) {
    HYDRA_PROBE("install: waits for its rate");
    return false;
  }
  ImageRequest request;
  request.group = store_group_;
  request.base = LastVersionOf(serve.request.base);
  request.bare = serve.request.bare;
  if (request.bare) request.max_rows = RecoveryWork::kBareRowsAtOnce;
  request.max_pages = static_cast<uint32_t>(
      std::max<size_t>(block_pages_, options_.install_chunk_bytes / kPageSize));
  // The first byte of a cursor says which kind of transfer it belongs to.
  const std::string& cursor = serve.request.cursor;
  request.mode = InstallMode::kDelta;
  if (!cursor.empty()) {
    request.mode = static_cast<InstallMode>(cursor[0]);
    request.cursor = cursor.substr(1);
  }
  auto builder = std::make_unique<ImageBuilder>(engine_, request);
  auto list = builder->PlanList();
  if (list.status().code() == Code::kOutOfRange) {
    // The receiver starts over when it sees the other kind, wherever it was.
    HYDRA_PROBE("install: an image, because the delta is behind the horizon");
    request.mode = InstallMode::kImage;
    request.cursor.clear();
    builder = std::make_unique<ImageBuilder>(engine_, request);
    list = builder->PlanList();
  }
  if (!list.ok()) {
    HYDRA_PROBE("install: the source cannot build a chunk");
    return true;
  }
  budget_->Spend(serve.to.node, options_.install_chunk_bytes);
  recovery_->chunks[serve.to.node] = {serve, std::move(builder), false,
                                      options_.install_chunk_bytes};
  ReadForInstall(serve.to.node, std::move(*list));
  return true;
}

void Shard::ReadForInstall(NodeId peer, std::unique_ptr<ReadJob> job) {
  const uint64_t ticket = next_ticket_++;
  recovery_->chunk_reads[ticket] = peer;
  out_.reads.push_back({options_.group, ticket, std::move(job), options_.install_chunk_bytes});
}

bool Shard::InstallReadDone(uint64_t ticket, std::unique_ptr<ReadJob>* job) {
  const auto found = recovery_->chunk_reads.extract(ticket);
  if (found.empty()) return false;
  const NodeId peer = found.mapped();
  RecoveryWork::Chunk& chunk = recovery_->chunks.at(peer);
  if (chunk.listed) {
    AnswerInstall(peer, std::move(*job));
    return true;
  }
  chunk.listed = true;
  auto reads = chunk.builder->PlanReads(std::move(*job));
  const Instance as_of = chunk.builder->as_of();
  // (Also where the receiver is in the middle of a delta, and gets an image instead.)
  const bool first = chunk.builder->is_first();
  if (!reads.ok() || (first && as_of <= chunk.serve.request.base) || IsTooEarly(peer)) {
    if (reads.ok()) {
      HYDRA_PROBE("install: the source has to checkpoint first");
      engine_->RequestCheckpoint();
      if (*reads != nullptr) engine_->DropRead(std::move(*reads));
    }
    budget_->Settle(chunk.spent, 0, RecoveryBudget::Kind::kImage);
    recovery_->chunks.erase(peer);
    return true;  // it asks again
  }
  if (*reads == nullptr) {
    AnswerInstall(peer, nullptr);
  } else {
    ReadForInstall(peer, std::move(*reads));
  }
  return true;
}

// A delta leads to the last checkpoint, and the log has to do the rest. If that is much, the last
// piece waits for one more, but not for long.
bool Shard::IsTooEarly(NodeId peer) {
  const ImageBuilder& builder = *recovery_->chunks.at(peer).builder;
  const Instance as_of = builder.as_of();
  if (builder.mode() != InstallMode::kDelta || !builder.is_last() ||
      history_.Since(as_of) <= options_.delta_gain_bytes) {
    return false;
  }
  const auto [waits, begun] = recovery_->awaited.try_emplace(peer, as_of, now_);
  const auto& [awaited, since] = waits->second;
  return begun || (awaited == as_of && now_ < since + RecoveryWork::kAwaitCheckpoint);
}

void Shard::AnswerInstall(NodeId peer, std::unique_ptr<ReadJob> reads) {
  const auto work = recovery_->chunks.extract(peer);
  const RecoveryWork::Chunk& chunk = work.mapped();
  const bool delta = chunk.builder->mode() == InstallMode::kDelta;
  const auto kind = delta ? RecoveryBudget::Kind::kDelta : RecoveryBudget::Kind::kImage;
  paxos::ServeInstall serve = chunk.serve;
  auto piece = chunk.builder->Finish(std::move(reads));
  if (!piece.ok()) {
    // Rotten here: it is mended, or another peer has it.
    HYDRA_PROBE("install: the source cannot read a chunk");
    budget_->Settle(chunk.spent, 0, kind);
    return;
  }
  // It became impatient: this is the answer.
  const auto again = recovery_->installs.find(peer);
  if (again != recovery_->installs.end() && again->second.serve.to == serve.to &&
      again->second.serve.request.base == serve.request.base &&
      again->second.serve.request.cursor == serve.request.cursor) {
    serve = again->second.serve;
    recovery_->installs.erase(again);
  }
  const uint64_t sent =
      LengthOf(piece->payload) + piece->chunk.rows.size() * kRowBytes + piece->state.size();
  budget_->Settle(chunk.spent, sent, kind);
  paxos::InstallChunk answer;
  answer.transfer = serve.request.transfer;
  answer.cursor = serve.request.cursor;
  answer.done = piece->chunk.cursor.empty();
  if (answer.done) recovery_->awaited.erase(peer);
  if (!answer.done) answer.next = InstallCursor(piece->chunk.mode, piece->chunk.cursor);
  answer.as_of = piece->chunk.as_of;
  auto body = std::make_shared<InstallBody>();
  body->piece = std::move(*piece);
  answer.body = std::move(body);
  Send(serve.to, std::move(answer));
}

}  // namespace hydra
