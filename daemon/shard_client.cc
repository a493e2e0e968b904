// SPDX-License-Identifier: Apache-2.0
//
// What clients ask of a shard: mutations, decided by the master before it proposes them.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/crc32c.h"
#include "base/probe.h"
#include "base/sabotage.h"
#include "blockstore/payload.h"
#include "daemon/shard.h"
#include "daemon/shard_install.h"

namespace hydra {

// --- Answers ------------------------------------------------------------------------------------

void Shard::Answer(const ShardRequest& request, ShardAnswer answer, Status status) {
  ShardReply reply;
  reply.id = request.id;
  reply.answer = answer;
  reply.status = std::move(status);
  reply.master = replica_->master_hint().node;
  reply.commit = replica_->commit();
  out_.replies.push_back(std::move(reply));
}

void Shard::AnswerId(uint64_t id, ShardAnswer answer, Outcome outcome) {
  ShardReply reply;
  reply.id = id;
  reply.answer = answer;
  reply.outcome = std::move(outcome);
  reply.master = replica_->master_hint().node;
  reply.commit = replica_->commit();
  out_.replies.push_back(std::move(reply));
}

// What was charged for it is no longer under way, or not this master's any more.
void Shard::AnswerAndSettle(const Proposed& operation, ShardAnswer answer, Outcome outcome) {
  leases_->Settle(operation.bytes);
  AnswerId(operation.request, answer, std::move(outcome));
  out_.replies.back().begun = operation.at;
  out_.replies.back().chosen = operation.chosen;
  out_.replies.back().ended = operation.chosen == 0 ? 0 : now_;
}

// --- Mastership ---------------------------------------------------------------------------------

void Shard::OnMastership(Nanos now) {
  if (replica_->mode() != paxos::Mode::kMaster) {
    LoseMastership();
    return;
  }
  if (!replica_->serving() || ready_) return;
  ready_at_ = replica_->last();
  BecomeReadyIfApplied(now);
}

// Everything that earlier masters proposed, and this one, is applied: what clients are told from
// here on rests on all of it.
void Shard::BecomeReadyIfApplied(Nanos now) {
  if (ready_ || ready_at_ == 0 || !replica_->serving()) return;
  if (replica_->applied() < ready_at_ || !serves_local()) return;
  ready_ = true;
  decided_ = state_.sessions();
  order_.Clear();
  time_told_ = now;
}

void Shard::LoseMastership() {
  ready_ = false;
  ready_at_ = 0;
  for (const auto& [instance, operations] : proposed_) {
    for (const Proposed& operation : operations) {
      AnswerAndSettle(operation, ShardAnswer::kUnknown, {});
    }
  }
  proposed_.clear();
  DropUnproposed();
  locks_.Clear();
  for (const auto& [ticket, waiting] : waiting_) Answer(waiting.request, ShardAnswer::kNotMaster);
  waiting_.clear();
  for (const Overtaken& refused : overtaken_) {
    AnswerId(refused.request, ShardAnswer::kNotMaster, {});
  }
  overtaken_.clear();
  resolving_.clear();
  order_.Clear();
}

void Shard::DropUnproposed() {
  for (const auto* list : {&building_, &held_proposed_}) {
    for (const Proposed& operation : *list) {
      AnswerAndSettle(operation, ShardAnswer::kNotMaster, {});
    }
  }
  building_.clear();
  building_ranges_.clear();
  building_payload_.clear();
  building_bytes_ = 0;
  builder_ = EntryBuilder(block_pages_);
  held_.reset();
  held_proposed_.clear();
}

void Shard::Abandon(Nanos now, ShardOutput* out) {
  replica_->Resign(now);
  LoseMastership();
  for (const auto& [id, read] : reads_) Answer(read.request, ShardAnswer::kNotMaster);
  for (const auto& [ticket, read] : reading_) Answer(read.request, ShardAnswer::kNotMaster);
  for (ShardReply& reply : out_.replies) out->replies.push_back(std::move(reply));
  // Nobody will carry them out, and each keeps segments from being freed.
  for (ShardRead& read : out_.reads) engine_->DropRead(std::move(read.job));
  out_ = {};
}

// --- Mutations ----------------------------------------------------------------------------------

void Shard::Submit(ShardRequest&& request, Nanos now) {
  Touch();
  now_ = std::max(now_, now);
  if (request.kind == ShardRequest::Kind::kReadLocal) {
    if (!serves_local() || reading_.size() >= options_.max_waiting) {
      return Answer(request, ShardAnswer::kBusy);
    }
    return StartRead(std::move(request));
  }
  if (request.kind == ShardRequest::Kind::kRead) {
    if (reads_.size() >= options_.max_waiting) return Answer(request, ShardAnswer::kBusy);
    const uint64_t id = request.id;
    reads_[id].request = std::move(request);
    replica_->Read(id, now);
    return;
  }
  if (Status valid = CheckMutation(request); !valid.ok()) {
    return Answer(request, ShardAnswer::kInvalid, std::move(valid));
  }
  Mutate(std::move(request), now, false);
}

// Everything below relies on it, down to the engine, which stops at a wrong payload.
Status Shard::CheckMutation(const ShardRequest& request) const {
  RequestContext context = request.context;
  switch (context.kind) {
    case RequestKind::kNoop:
    case RequestKind::kConfig:
    case RequestKind::kMaster: return Status::InvalidArgument("not a client's request");
    case RequestKind::kCompareAndWrite:
      if (context.outcome) return Status::InvalidArgument("the outcome is the master's to say");
      context.outcome = Outcome{};
      break;
    default: break;
  }
  if (context.interval != 0) return Status::InvalidArgument("the interval is the master's to say");
  HYDRA_RETURN_IF_ERROR(ValidateContext(context, request.op));
  if (request.part_bytes > 0) {
    // Checksums of whole blocks come with the merging.
    Operation whole = request.op;
    whole.crcs.assign(std::min<uint64_t>(whole.count, kExtentPages), 0);
    HYDRA_RETURN_IF_ERROR(ValidateOperations({&whole, 1}, block_pages_));
    return CheckPart(request);
  }
  HYDRA_RETURN_IF_ERROR(ValidateOperations({&request.op, 1}, block_pages_));
  if (request.compare.length > 0 &&
      request.compare.offset + request.compare.length > request.compare.buffer.size()) {
    return Status::InvalidArgument("what to compare with is not there");
  }
  HYDRA_RETURN_IF_ERROR(
      CheckSlices(request.payload, uint64_t{request.op.PayloadPages()} * kPageSize));
  PayloadWalk walk(request.payload);
  for (const uint32_t crc : request.op.crcs) {
    if (request.op.kind != OpKind::kWrite) break;
    if (walk.Next(size_t{block_pages_} * kPageSize) == crc) continue;
    return Status::InvalidArgument("the payload was damaged on its way here; send it again");
  }
  return Status::Ok();
}

Status Shard::CheckPart(const ShardRequest& request) const {
  const uint64_t room = request.op.count * block_pages_ * kPageSize;
  const bool compare = request.context.kind == RequestKind::kCompareAndWrite;
  const auto holds = [&](const BufferSlice& slice) {
    return slice.length >= request.part_bytes && slice.offset + slice.length <= slice.buffer.size();
  };
  if ((!compare && request.context.kind != RequestKind::kWrite) ||
      uint64_t{request.part_offset} + request.part_bytes > room || request.payload.size() != 1 ||
      !holds(request.payload[0]) || (compare && !holds(request.compare))) {
    return Status::InvalidArgument("a part of a block that makes no sense");
  }
  return Status::Ok();
}

// What has to know the blocks it changes before it can be proposed.
bool Shard::NeedsRead(const ShardRequest& request) {
  return request.context.kind == RequestKind::kCompareAndWrite || request.part_bytes > 0;
}

// Whether the request is to be executed; if not, what it is answered.
bool Shard::Decide(const ShardRequest& request, ShardAnswer* refusal, Outcome* repeat) {
  if (!IsMutation(request.context.kind)) return true;
  if (HYDRA_SABOTAGE(kApplyTwice)) return true;
  switch (decided_.Look(request.context.id()).decision) {
    case Decision::kExecute: return true;
    case Decision::kRepeat: {
      const Verdict applied = state_.sessions().Look(request.context.id());
      if (applied.decision != Decision::kRepeat) {
        HYDRA_PROBE("session: repeated while under way");
        *refusal = ShardAnswer::kBusy;
        return false;
      }
      HYDRA_PROBE("session: repeated, answered with the first outcome");
      *refusal = ShardAnswer::kDone;
      *repeat = *applied.first;
      return false;
    }
    case Decision::kExpired: *refusal = ShardAnswer::kSessionExpired; return false;
    case Decision::kForgotten: *refusal = ShardAnswer::kForgotten; return false;
    case Decision::kCancelled: *refusal = ShardAnswer::kCancelled; return false;
    case Decision::kFenced:
      if (HYDRA_SABOTAGE(kIgnoreFence)) return true;
      HYDRA_PROBE("fence: a write checked under an older epoch is refused");
      *refusal = ShardAnswer::kFenced;
      return false;
    case Decision::kWindowFull: *refusal = ShardAnswer::kBusy; return false;
  }
  return false;
}

// No old write after a newer one: whoever asks must have known every version it overwrites.
bool Shard::SeenAllows(const ShardRequest& request) {
  if (request.seen == ShardRequest::kAnySeen || !IsMutation(request.context.kind)) return true;
  if (HYDRA_SABOTAGE(kIgnoreSeen)) return true;
  bool allowed = true;
  ForEachRange(request.op, block_pages_, [&](Lba lba, uint64_t count) {
    for (const auto& [first, blocks] : building_ranges_) {
      if (first < lba + count && lba < first + blocks) allowed = false;
    }
    const SeenVerdict verdict = order_.CheckSeen(
        lba, count, request.seen, [&](Lba first, uint64_t n, Instance seen, bool* known) {
          Version newest = 0;
          *known = true;
          for (Lba block = first; block < first + n && *known; ++block) {
            newest = std::max(newest, engine_->NewestVersion(store_group_, block, seen, known));
          }
          return newest;
        });
    if (verdict == SeenVerdict::kBelowFloor) HYDRA_PROBE("seen: below the floor");
    allowed = allowed && verdict == SeenVerdict::kAllowed;
  });
  return allowed;
}

void Shard::RefuseAsStale(const ShardRequest& request, Nanos now) {
  // What is being built has no instance yet.
  if (!building_.empty() && !FlushBuilder(now)) return Answer(request, ShardAnswer::kBusy);
  Instance by = 0;
  ForEachRange(request.op, block_pages_,
               [&](Lba lba, uint64_t count) { by = std::max(by, order_.Newest(lba, count)); });
  if (by == 0 || overtaken_.size() >= options_.max_waiting) {
    return Answer(request, ShardAnswer::kStale);
  }
  HYDRA_PROBE("seen: refused when what overtook it is applied");
  overtaken_.push_back({request.id, by});
}

// What a majority cannot store must not be proposed: it would stand in the way of everything behind
// it, the deletes that make room included. A peer of which nothing is known just now is not full:
// who asks may ask again. A master applies what it has stored itself, so one that is full gives way
// to one that is not.
Status Shard::CheckSpace(uint64_t bytes, Nanos now) {
  using Space = paxos::LeaseTable::Space;
  const paxos::Config& config = replica_->config();
  uint32_t enough = 0;
  uint32_t unknown = 0;
  for (size_t i = 0; i < config.members().size(); ++i) {
    const Space space = leases_->SpaceOf(config.members()[i].id.node, bytes, now);
    if (space == Space::kEnough) enough |= 1u << i;
    if (space == Space::kUnknown) unknown |= 1u << i;
  }
  const Space own = leases_->SpaceOf(options_.node, bytes, now);
  if (config.IsMajority(enough)) {
    if (own == Space::kEnough) return Status::Ok();
    if (own == Space::kFull) GiveWay(bytes, now);
    return Status::Busy("this master's store is full, those of others are not");
  }
  if (config.IsMajority(enough | unknown)) {
    return Status::Busy("no majority has said that it takes so much more just now");
  }
  return Status::NoSpace(
      "no majority of the group's stores has space for more data: unmap blocks, or add capacity");
}

void Shard::GiveWay(uint64_t bytes, Nanos now) {
  for (const paxos::Member& member : replica_->config().members()) {
    const paxos::MemberId& id = member.id;
    if (id.node == options_.node || member.role != paxos::Role::kVoter ||
        leases_->SpaceOf(id.node, bytes, now) != paxos::LeaseTable::Space::kEnough ||
        !replica_->PeerIsWhole(id)) {
      continue;
    }
    if (!replica_->HandOver(id, now).ok()) continue;
    HYDRA_PROBE("space: a full master gives way");
    return;
  }
}

bool Shard::RefuseForSpace(const ShardRequest& request, Nanos now) {
  const uint64_t pages = request.op.PayloadPages();
  if (pages == 0 || options_.may_use_reserve) return false;
  const Status space = CheckSpace(pages * kPageSize, now);
  if (space.ok()) return false;
  if (space.code() == Code::kBusy) {
    HYDRA_PROBE("space: a write is put off while peers are silent");
    Answer(request, ShardAnswer::kBusy);
  } else {
    HYDRA_PROBE("space: a write is refused before it is proposed");
    Answer(request, ShardAnswer::kNoSpace, space);
  }
  return true;
}

void Shard::Mutate(ShardRequest&& request, Nanos now, bool locked) {
  if (!ready()) return Answer(request, ShardAnswer::kNotMaster);
  ShardAnswer refusal = ShardAnswer::kBusy;
  Outcome repeat;
  if (!Decide(request, &refusal, &repeat)) {
    AnswerId(request.id, refusal, std::move(repeat));
    return;
  }
  // (Of a session that is gone a client does not know the lowest any more; that was answered.)
  const RequestContext& context = request.context;
  if (context.seq > context.lowest_unanswered &&
      context.seq - context.lowest_unanswered > SessionTable::kMaxSpan) {
    return Answer(
        request, ShardAnswer::kInvalid,
        Status::InvalidArgument("its number is too far above the lowest that is unanswered"));
  }
  if (RefuseForSpace(request, now)) return;
  if (held_ != nullptr || waiting_.size() >= options_.max_waiting) {
    return Answer(request, ShardAnswer::kBusy);
  }
  bool must_wait = NeedsRead(request);
  Lba lba = 0;
  uint64_t count = 0;
  size_t ranges = 0;
  if (IsMutation(request.context.kind)) {
    ForEachRange(request.op, block_pages_, [&](Lba first, uint64_t n) {
      must_wait = must_wait || !locks_.IsFree(first, n);
      lba = ranges == 0 ? first : std::min(lba, first);
      count = std::max(count, first + n - lba);
      ++ranges;
    });
  }
  if (!order_.HasRoom(ranges + building_ranges_.size())) {
    return Answer(request, ShardAnswer::kBusy);
  }
  if (must_wait && !locked) {
    const uint64_t ticket = next_ticket_++;
    const RangeLocks::Answer answer = locks_.Acquire(ticket, lba, count);
    if (answer == RangeLocks::Answer::kBusy) return Answer(request, ShardAnswer::kBusy);
    waiting_[ticket] = {std::move(request), 0, false};
    if (answer == RangeLocks::Answer::kGranted) Resolve(ticket, now);
    return;
  }
  if (!SeenAllows(request)) {
    HYDRA_PROBE("seen: a write older than what it overwrites is refused");
    return RefuseAsStale(request, now);
  }
  Join(std::move(request), 0, now);
}

// The lock is held. What needs to know its blocks waits until all before it is applied, then reads.
void Shard::Resolve(uint64_t ticket, Nanos now) {
  const auto found = waiting_.find(ticket);
  if (found == waiting_.end() || !locks_.Holds(ticket) || found->second.reading) return;
  Waiting& waiting = found->second;
  if (!NeedsRead(waiting.request)) {
    // A plain write that waited: its place is fixed once it joins.
    ShardRequest request = std::move(waiting.request);
    waiting_.erase(found);
    Mutate(std::move(request), now, true);
    ReleaseLock(ticket, now);
    return;
  }
  const Lba lba = waiting.request.op.lba;
  const uint64_t count = waiting.request.op.count;
  for (const auto& [first, blocks] : building_ranges_) {
    if (first < lba + count && lba < first + blocks) return;  // not even proposed yet
  }
  if (order_.HasUnapplied(lba, count)) return;
  waiting.reading = true;
  auto job = engine_->PlanRead(store_group_, lba, count);
  if (!job.ok()) {
    Answer(waiting.request, ShardAnswer::kInvalid, job.status());
    waiting_.erase(found);
    ReleaseLock(ticket, now);
    return;
  }
  const uint64_t read = next_ticket_++;
  resolving_[read] = ticket;
  out_.reads.push_back({options_.group, read, std::move(*job), BytesOf(count)});
}

// The blocks are known: a compare is decided, a part becomes whole blocks.
void Shard::Resolved(ShardRequest request, const ReadResult& found, Nanos now) {
  const bool part = request.part_bytes > 0;
  const size_t offset = part ? request.part_offset : 0;
  const size_t length = part ? request.part_bytes : found.data.size();
  bool equal = true;
  if (request.context.kind == RequestKind::kCompareAndWrite) {
    equal = request.compare.length >= length && (part || request.compare.length == length) &&
            std::memcmp(request.compare.data(), found.data.data() + offset, length) == 0;
    Outcome outcome;
    if (!equal) {
      HYDRA_PROBE("compare-and-write: miscompare");
      outcome.code = Code::kFailedPrecondition;
      request.op = Operation{};
      request.op.kind = OpKind::kOpaque;
      request.payload.clear();
    }
    request.context.outcome = outcome;
  }
  if (equal && part) Merge(found.data, &request);
  Join(std::move(request), 0, now);
}

void Shard::Merge(const Buffer& blocks, ShardRequest* request) const {
  HYDRA_PROBE("a part of a block is merged");
  Buffer merged = Buffer::Allocate(blocks.size());
  std::memcpy(merged.data(), blocks.data(), blocks.size());
  std::memcpy(merged.data() + request->part_offset, request->payload[0].data(),
              request->part_bytes);
  const size_t block = size_t{block_pages_} * kPageSize;
  request->op.crcs.clear();
  for (size_t i = 0; i < blocks.size(); i += block) {
    request->op.crcs.push_back(Crc32c(merged.data() + i, block));
  }
  request->payload.clear();
  request->payload.push_back({merged, 0, blocks.size()});
}

// Gives the request a place in the entry being built, and decides it.
void Shard::Join(ShardRequest&& request, RangeLocks::Ticket lock, Nanos now) {
  // What was built before has to be proposed first: the order of decisions is that of the log.
  if (held_ != nullptr) return Answer(request, ShardAnswer::kBusy);
  // A compare-and-write has waited for its read: meanwhile it may have been repeated and done, or
  // its session have ended.
  ShardAnswer refusal = ShardAnswer::kBusy;
  Outcome repeat;
  if (!Decide(request, &refusal, &repeat)) {
    AnswerId(request.id, refusal, std::move(repeat));
    return;
  }
  // Others may have been charged while it waited.
  if (RefuseForSpace(request, now)) return;
  // A session's id is its entry's instance: it comes alone, so that nothing else depends on it.
  const bool alone = request.context.kind == RequestKind::kOpenSession;
  if (alone && !builder_.empty() && !FlushBuilder(now)) {
    return Answer(request, ShardAnswer::kBusy);
  }
  for (int attempt = 0;; ++attempt) {
    const Status added = builder_.Add(request.op, request.context);
    if (added.ok()) break;
    if (added.code() != Code::kBusy || attempt > 0) {
      return Answer(
          request, added.code() == Code::kBusy ? ShardAnswer::kBusy : ShardAnswer::kInvalid, added);
    }
    if (!FlushBuilder(now)) return Answer(request, ShardAnswer::kBusy);
  }
  if (building_.empty()) {
    building_interval_ = std::clamp<Nanos>(now - time_told_, 0, SessionTable::kMaxInterval);
    time_told_ = now;
    decided_.Advance(building_interval_);
    // Time alone may have ended the session.
    if (!Decide(request, &refusal, &repeat)) {
      HYDRA_PROBE("session: expired by the entry's own interval");
      AnswerId(request.id, refusal, std::move(repeat));
      builder_ = EntryBuilder(block_pages_);
      // The time that passed is told by an entry without operations, so that both tables agree.
      building_.push_back({});
      FlushBuilder(now);
      return;
    }
  }
  if (!alone) ApplyToSessions(&decided_, request.context, 0, 0);
  const uint64_t bytes = uint64_t{request.op.PayloadPages()} * kPageSize;
  leases_->Charge(bytes);
  building_.push_back({request.id, lock, bytes});
  building_bytes_ += std::max<uint64_t>(bytes, kPageSize);
  if (IsMutation(request.context.kind)) {
    ForEachRange(request.op, block_pages_,
                 [&](Lba lba, uint64_t count) { building_ranges_.emplace_back(lba, count); });
  }
  for (const BufferSlice& slice : request.payload) building_payload_.push_back(slice);
  if (alone) FlushBuilder(now);
}

// While enough entries are under way, what arrives waits for the first of them to end, and goes in
// one entry then: the disks would not take it sooner, and many small entries cost more than one.
bool Shard::Gathers() const {
  return held_ == nullptr && proposed_.size() >= options_.gather_entries &&
         building_bytes_ < options_.gather_bytes;
}

// Proposes what was built. False if nothing moved.
bool Shard::FlushBuilder(Nanos now) {
  if (held_ == nullptr) {
    if (building_.empty()) return false;
    held_ = std::make_shared<EntryBody>();
    held_->entry = builder_.Build(building_interval_);
    held_->payload = std::move(building_payload_);
    building_payload_.clear();
    building_bytes_ = 0;
    held_proposed_ = std::move(building_);
    building_.clear();
  }
  auto meta = MetaOf(held_->entry, 0);
  HYDRA_CHECK(meta.ok());
  const Result<Instance> instance = replica_->Propose(*meta, held_, now);
  if (!instance.ok()) {
    if (instance.status().code() == Code::kBusy) return false;
    // Handing over, or not master any more: what was decided and not proposed is void. If it goes
    // on being master, decisions start anew when everything proposed is applied.
    DropUnproposed();
    ready_ = false;
    ready_at_ = replica_->last();
    return false;
  }
  for (const Operation& op : held_->entry.operations) {
    ForEachRange(op, block_pages_,
                 [&](Lba lba, uint64_t count) { order_.NotePending(*instance, lba, count); });
    if (op.kind != OpKind::kOpaque) continue;
    const auto context = DecodeContext(AsBytes(op.context));
    if (context.ok() && context->kind == RequestKind::kOpenSession) {
      ApplyToSessions(&decided_, *context, *instance, 0);
    }
  }
  building_ranges_.clear();
  for (Proposed& operation : held_proposed_) operation.at = now;
  proposed_[*instance] = std::move(held_proposed_);
  held_proposed_.clear();
  held_.reset();
  return true;
}

void Shard::ReleaseLock(RangeLocks::Ticket ticket, Nanos now) {
  for (const RangeLocks::Ticket granted : locks_.Release(ticket)) Resolve(granted, now);
}

}  // namespace hydra
