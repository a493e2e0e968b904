// SPDX-License-Identifier: Apache-2.0
#include "daemon/session_table.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/coding.h"
#include "daemon/digest.h"

namespace hydra {
namespace {

constexpr uint8_t kTableFormat = 1;
constexpr uint8_t kExecutedSlot = 1;
constexpr uint8_t kCancelledSlot = 2;
// 146 years. Time stops here, so that no sum of a time and a time-out overflows.
constexpr Nanos kEndOfTime = Nanos{1} << 62;

Status MalformedTable() { return Status::Corruption("malformed session table"); }

}  // namespace

// --- The sessions -----------------------------------------------------------------------------

Result<Instance> SessionTable::Open(Instance at, Nanos timeout) {
  HYDRA_CHECK(!executing_);
  HYDRA_CHECK(at >= 1 && at <= kMaxInstance);
  if (at <= last_opened_) {
    return Status::AlreadyExists(
        fmt::format("a session was opened at instance {}; {} is not after it", last_opened_, at));
  }
  if (sessions_.size() >= kMaxSessions && !EvictOne()) {
    return Status::Busy(fmt::format(
        "all {} sessions of the group are in use; close one or wait for one to fall idle",
        kMaxSessions));
  }
  last_opened_ = at;
  Session session;
  session.timeout = std::clamp(timeout, kMinTimeout, kMaxTimeout);
  session.last_used = now_;
  next_deadline_ = std::min(next_deadline_, session.deadline());
  sessions_.emplace_hint(sessions_.end(), at, std::move(session));
  return at;
}

// Makes room by dropping the session that was unused for longest, if that is long enough.
bool SessionTable::EvictOne() {
  const auto oldest = std::min_element(
      sessions_.begin(), sessions_.end(),
      [](const auto& a, const auto& b) { return a.second.last_used < b.second.last_used; });
  if (now_ - oldest->second.last_used < kEvictableAfter) return false;
  Drop(oldest);
  return true;
}

bool SessionTable::Close(Instance id) {
  HYDRA_CHECK(!executing_);
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return false;
  Drop(found);
  return true;
}

bool SessionTable::Touch(Instance id, uint64_t lowest_unanswered) {
  HYDRA_CHECK(!executing_);
  return Use(id, lowest_unanswered) != nullptr;
}

size_t SessionTable::Advance(Nanos interval) {
  HYDRA_CHECK(!executing_);
  HYDRA_CHECK(interval >= 0 && interval <= kMaxInterval);
  now_ = std::min(now_ + interval, kEndOfTime);
  if (now_ <= next_deadline_) return 0;
  const size_t before = sessions_.size();
  next_deadline_ = std::numeric_limits<Nanos>::max();
  for (auto at = sessions_.begin(); at != sessions_.end();) {
    if (now_ > at->second.deadline()) {
      at = Drop(at);
    } else {
      next_deadline_ = std::min(next_deadline_, at->second.deadline());
      ++at;
    }
  }
  return before - sessions_.size();
}

SessionTable::Sessions::iterator SessionTable::Drop(Sessions::iterator at) {
  outcomes_ -= at->second.slots.size();
  shared_ -= BeyondGuaranteed(at->second.slots.size());
  return sessions_.erase(at);
}

// Null if there is none. Outcomes that the client has are dropped here, and only here.
SessionTable::Session* SessionTable::Use(Instance id, uint64_t lowest_unanswered) {
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return nullptr;
  Session& session = found->second;
  session.last_used = now_;
  session.lowest_unanswered = std::max(session.lowest_unanswered, lowest_unanswered);
  std::deque<Slot>& slots = session.slots;
  const size_t before = slots.size();
  while (!slots.empty() && slots.front().seq < session.lowest_unanswered) slots.pop_front();
  outcomes_ -= before - slots.size();
  shared_ -= BeyondGuaranteed(before) - BeyondGuaranteed(slots.size());
  return &session;
}

// --- The requests -----------------------------------------------------------------------------

Verdict SessionTable::Begin(const RequestId& request) {
  HYDRA_CHECK(!executing_);
  const Session* session = Use(request.session, request.lowest_unanswered);
  const Verdict verdict = session == nullptr ? Verdict{} : Judge(*session, request);
  if (verdict.decision == Decision::kExecute) {
    executing_ = Executing{request.session, request.seq};
  }
  return verdict;
}

Verdict SessionTable::Look(const RequestId& request) const {
  const auto found = sessions_.find(request.session);
  return found == sessions_.end() ? Verdict{} : Judge(found->second, request);
}

Verdict SessionTable::Judge(const Session& session, const RequestId& request) const {
  if (request.seq < std::max(session.lowest_unanswered, request.lowest_unanswered)) {
    return {Decision::kForgotten};
  }
  if (const Slot* slot = Find(session, request.seq)) {
    if (slot->cancelled) return {Decision::kCancelled};
    return {Decision::kRepeat, &slot->outcome};
  }
  if (request.epoch < fence_) return {Decision::kFenced};
  if (!HasRoom(session, request.lowest_unanswered)) return {Decision::kWindowFull};
  return {Decision::kExecute};
}

void SessionTable::Finish(Instance id, uint64_t seq, Outcome outcome) {
  HYDRA_CHECK(executing_ && executing_->session == id && executing_->seq == seq);
  HYDRA_CHECK(outcome.detail.size() <= kMaxDetailBytes);
  executing_.reset();
  Insert(&sessions_.at(id), {seq, false, std::move(outcome)});
}

void SessionTable::Keep(Instance id, uint64_t seq, Outcome outcome) {
  HYDRA_CHECK(!executing_);
  HYDRA_CHECK(outcome.detail.size() <= kMaxDetailBytes);
  const auto found = sessions_.find(id);
  if (found == sessions_.end() || seq < found->second.lowest_unanswered) return;
  if (Find(found->second, seq) != nullptr) return;
  Insert(&found->second, {seq, false, std::move(outcome)});
}

CancelVerdict SessionTable::Cancel(Instance id, uint64_t seq, uint64_t lowest_unanswered) {
  HYDRA_CHECK(!executing_);
  Session* session = Use(id, lowest_unanswered);
  if (session == nullptr) return {CancelResult::kExpired};
  if (seq < session->lowest_unanswered) return {CancelResult::kForgotten};
  if (const Slot* slot = Find(*session, seq)) {
    if (slot->cancelled) return {CancelResult::kCancelled};
    return {CancelResult::kExecuted, &slot->outcome};
  }
  if (!HasRoom(*session, lowest_unanswered)) return {CancelResult::kWindowFull};
  Insert(session, {seq, true, {}});
  return {CancelResult::kCancelled};
}

bool SessionTable::SetFence(uint64_t epoch) {
  HYDRA_CHECK(!executing_);
  if (epoch < fence_) return false;
  fence_ = epoch;
  return true;
}

size_t SessionTable::BeyondGuaranteed(size_t held) {
  return held > kGuaranteedOutcomes ? held - kGuaranteedOutcomes : 0;
}

const SessionTable::Slot* SessionTable::Find(const Session& session, uint64_t seq) {
  const auto& slots = session.slots;
  if (slots.empty() || seq > slots.back().seq) return nullptr;  // nearly always
  const auto at = std::lower_bound(slots.begin(), slots.end(), seq,
                                   [](const Slot& slot, uint64_t s) { return slot.seq < s; });
  return at->seq == seq ? &*at : nullptr;
}

// Whether one more fits once the outcomes below `lowest_unanswered` are gone.
bool SessionTable::HasRoom(const Session& session, uint64_t lowest_unanswered) const {
  const auto& slots = session.slots;
  const auto kept = std::lower_bound(slots.begin(), slots.end(), lowest_unanswered,
                                     [](const Slot& slot, uint64_t s) { return slot.seq < s; });
  const auto held = static_cast<size_t>(slots.end() - kept);
  if (held < kGuaranteedOutcomes) return true;
  const size_t shared = shared_ - BeyondGuaranteed(slots.size()) + BeyondGuaranteed(held);
  return held < kMaxOutcomes && shared < kSharedOutcomes;
}

void SessionTable::Insert(Session* session, Slot slot) {
  std::deque<Slot>& slots = session->slots;
  if (slots.empty() || slot.seq > slots.back().seq) {  // nearly always
    slots.push_back(std::move(slot));
  } else {
    const auto at = std::upper_bound(slots.begin(), slots.end(), slot.seq,
                                     [](uint64_t s, const Slot& other) { return s < other.seq; });
    slots.insert(at, std::move(slot));
  }
  ++outcomes_;
  if (slots.size() > kGuaranteedOutcomes) ++shared_;
}

// --- The bytes --------------------------------------------------------------------------------

std::string SessionTable::Encode() const {
  HYDRA_CHECK(!executing_);
  std::string bytes;
  bytes.reserve(64 + sessions_.size() * 24 + outcomes_ * 16);
  PutU8(&bytes, kTableFormat);
  PutVarint64(&bytes, static_cast<uint64_t>(now_));
  PutVarint64(&bytes, fence_);
  PutVarint64(&bytes, last_opened_);
  PutVarint64(&bytes, sessions_.size());
  Instance previous_id = 0;
  for (const auto& [id, session] : sessions_) {
    PutVarint64(&bytes, id - previous_id);
    previous_id = id;
    PutVarint64(&bytes, static_cast<uint64_t>(session.timeout));
    PutVarint64(&bytes, static_cast<uint64_t>(now_ - session.last_used));
    PutVarint64(&bytes, session.lowest_unanswered);
    PutVarint64(&bytes, session.slots.size());
    uint64_t previous_seq = session.lowest_unanswered;
    for (const Slot& slot : session.slots) {
      PutVarint64(&bytes, slot.seq - previous_seq);
      previous_seq = slot.seq;
      PutU8(&bytes, slot.cancelled ? kCancelledSlot : kExecutedSlot);
      if (!slot.cancelled) PutOutcome(&bytes, slot.outcome);
    }
  }
  return bytes;
}

Result<SessionTable> SessionTable::Decode(std::span<const uint8_t> bytes) {
  SessionTable table;
  Decoder in(bytes);
  uint8_t format = 0;
  if (!in.U8(&format)) return MalformedTable();
  if (format != kTableFormat) {
    return Status::Unsupported(
        fmt::format("a session table of format {}; this build knows {}: upgrade this node", format,
                    kTableFormat));
  }
  uint64_t now = 0;
  uint64_t count = 0;
  if (!in.Varint64(&now) || now > static_cast<uint64_t>(kEndOfTime) ||
      !in.Varint64(&table.fence_) || !in.Varint64(&table.last_opened_) ||
      table.last_opened_ > kMaxInstance || !in.Varint64(&count) || count > kMaxSessions) {
    return MalformedTable();
  }
  table.now_ = static_cast<Nanos>(now);
  Instance id = 0;
  for (uint64_t i = 0; i < count; ++i) {
    if (!table.DecodeSession(&in, &id)) return MalformedTable();
  }
  if (in.remaining() != 0) return MalformedTable();
  return table;
}

// Reads the session after `*id` and moves `*id` to it.
bool SessionTable::DecodeSession(Decoder* in, Instance* id) {
  uint64_t step = 0;
  uint64_t timeout = 0;
  uint64_t idle = 0;
  uint64_t count = 0;
  Session session;
  if (!in->Varint64(&step) || step == 0 || step > last_opened_ - *id || !in->Varint64(&timeout) ||
      !in->Varint64(&idle) || !in->Varint64(&session.lowest_unanswered) || !in->Varint64(&count)) {
    return false;
  }
  if (timeout < uint64_t{kMinTimeout} || timeout > uint64_t{kMaxTimeout} || idle > timeout ||
      idle > static_cast<uint64_t>(now_) || session.lowest_unanswered == 0 ||
      count > in->remaining()) {
    return false;
  }
  session.timeout = static_cast<Nanos>(timeout);
  session.last_used = now_ - static_cast<Nanos>(idle);
  uint64_t seq = session.lowest_unanswered;
  for (uint64_t i = 0; i < count; ++i) {
    uint64_t gap = 0;
    uint8_t state = 0;
    Slot slot;
    if (!in->Varint64(&gap) || (i > 0 && gap == 0) || seq + gap < seq || !in->U8(&state)) {
      return false;
    }
    seq += gap;
    slot.seq = seq;
    slot.cancelled = state == kCancelledSlot;
    if (!slot.cancelled && (state != kExecutedSlot || !GetOutcome(in, &slot.outcome))) return false;
    session.slots.push_back(std::move(slot));
  }
  outcomes_ += session.slots.size();
  shared_ += BeyondGuaranteed(session.slots.size());
  next_deadline_ = std::min(next_deadline_, session.deadline());
  *id += step;
  sessions_.emplace_hint(sessions_.end(), *id, std::move(session));
  return true;
}

uint64_t SessionTable::Digest() const {
  Digester digester;
  digester.Add(AsBytes(Encode()));
  return digester.value();
}

}  // namespace hydra
