// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "blockstore/types.h"
#include "daemon/outcome.h"

namespace hydra {

// Which request of which session, as its operation says.
struct RequestId {
  Instance session = 0;
  uint64_t seq = 0;                // from 1, each used for one request only
  uint64_t lowest_unanswered = 0;  // below it, the client has every outcome it will ever ask for
  uint64_t epoch = 0;              // of access rights, under which it was checked
};

enum class Decision : uint8_t {
  kExecute,     // the first time: do it, then Finish
  kRepeat,      // done before; here is what it was answered
  kExpired,     // no such session (any more)
  kForgotten,   // the client itself said that it has the outcome
  kCancelled,   // cancelled before it came
  kFenced,      // checked under access rights that were narrowed since
  kWindowFull,  // too many outcomes unacknowledged: try again with a higher lowest_unanswered
};

struct Verdict {
  Decision decision = Decision::kExpired;
  const Outcome* first = nullptr;  // kRepeat; valid until the table changes
};

enum class CancelResult : uint8_t {
  kCancelled,   // it has not been executed and never will be
  kExecuted,    // too late; here is what it was answered
  kExpired,     // no such session: it can no longer be executed either
  kForgotten,   // the client already has its outcome
  kWindowFull,  // could not be noted; it may still be executed
};

struct CancelVerdict {
  CancelResult result = CancelResult::kExpired;
  const Outcome* first = nullptr;  // kExecuted; valid until the table changes
};

// The sessions of one group: what makes a request that is sent twice happen once.
//
// A client may send a request again whenever it has no answer, through another master and long
// after the first. The table is therefore part of the replicated state: it changes only by entries
// applied in order, its time is the sum of the intervals that entries carry, and equal inputs give
// equal bytes on every replica. Whatever it does not know, it refuses: an outcome is dropped only
// when the client said it has it, and the session it belonged to then remembers that for as long
// as it lives; a session that is gone never executes anything again, because ids (the instances
// that opened them) are never used twice.
//
// kFenced and kWindowFull executed nothing and are not remembered: the same request may come again
// and be executed then. A client that takes such an answer for the last word must count it as one
// (raise lowest_unanswered above it), so that a copy still under way comes too late.
//
// A request is decided and finished within the apply of one operation: Begin, and if it says
// kExecute, Finish before any other call. What an entry holds is executed in any case: the master
// decided before it proposed. If it decided upon an entry that was lost with its mastership, Begin
// may say otherwise; then Keep notes what happened, beyond the limits if need be. One thread. The
// limits are part of the state machine: replicas that disagree about them diverge, so they change
// only with the cluster's feature level.
//
// Full tables. Expired sessions are dropped by Advance, so a full table is full of live ones. Then
// the one unused for longest (the lowest id among equals) makes room for the new one if it has been
// idle for kEvictableAfter; else the new one is refused.
//
// Full windows. A session may keep kGuaranteedOutcomes in any case, and up to kMaxOutcomes while
// all sessions together keep fewer than kSharedOutcomes beyond their guaranteed ones: no client can
// take from another what it needs to go on.
//
// Bytes (the checkpoint's, and an image's): u8 1; varint now, fence, last opened id, sessions;
// each, by ascending id: varint id (less the one before), time-out, idle time, lowest unanswered,
// slots; each slot, by ascending seq: varint seq (the first less lowest unanswered, then less the
// one before), u8 1 executed | 2 cancelled, and if executed its outcome. All varints shortest: a
// state has one encoding.
class SessionTable {
 public:
  static constexpr size_t kMaxSessions = 4096;
  static constexpr size_t kMaxOutcomes = 1024;          // per session, cancellations included
  static constexpr size_t kGuaranteedOutcomes = 8;      // per session
  static constexpr size_t kSharedOutcomes = 32 * 1024;  // per group, beyond the guaranteed ones
  // How far a request's number may be above the lowest unanswered one. Numbers far apart take more
  // bytes, and the whole table has to fit into one record of an install (kMaxInstalledState).
  static constexpr uint64_t kMaxSpan = 1u << 16;
  static constexpr Nanos kMinTimeout = kSecond;
  static constexpr Nanos kMaxTimeout = 24 * 3600 * kSecond;
  static constexpr Nanos kEvictableAfter = 10 * kSecond;
  static constexpr Nanos kMaxInterval = 3600 * kSecond;  // a master idle for longer says this

  // Opens the session whose id is `at`, the instance that is being applied; one per instance. The
  // time-out is brought between kMinTimeout and kMaxTimeout. kBusy: the table is full.
  // kAlreadyExists: a session was opened here or later.
  Result<Instance> Open(Instance at, Nanos timeout);
  // False if there is none.
  bool Close(Instance id);
  // Keeps an otherwise idle session alive and drops the outcomes that the client has. False if
  // there is none.
  bool Touch(Instance id, uint64_t lowest_unanswered);

  // Replicated time: once per entry, before its operations, with its interval in
  // [0, kMaxInterval]. Sessions idle for longer than their time-out are gone when it returns.
  // Returns how many.
  size_t Advance(Nanos interval);

  // Decides, in this order: unknown session; below the lowest unanswered; done or cancelled before;
  // older epoch than the fence; no room. Whatever it says, the session counts as used.
  Verdict Begin(const RequestId& request);
  // What Begin would say now, changing nothing: a master can answer a repeat without proposing it.
  Verdict Look(const RequestId& request) const;
  // The outcome of the request for which Begin just said kExecute.
  void Finish(Instance id, uint64_t seq, Outcome outcome);
  // The outcome of one that was executed although Begin said something else. Changes nothing if the
  // session is gone, or knows of the request already.
  void Keep(Instance id, uint64_t seq, Outcome outcome);

  // From now on, `seq` is either answered with what it did before or never executed.
  CancelVerdict Cancel(Instance id, uint64_t seq, uint64_t lowest_unanswered);

  // Requests checked under an epoch older than this are refused. Never goes back: false, and
  // nothing changes, if a later fence stands already.
  bool SetFence(uint64_t epoch);

  uint64_t fence() const { return fence_; }
  Nanos now() const { return now_; }
  size_t sessions() const { return sessions_.size(); }
  size_t outcomes() const { return outcomes_; }  // of all sessions

  std::string Encode() const;
  // Trusts nothing: kUnsupported for another version, kCorruption for bytes that Encode cannot have
  // made. (Not so many outcomes: Keep may have gone beyond their limits.)
  static Result<SessionTable> Decode(std::span<const uint8_t> bytes);
  // Of the encoded bytes: equal on replicas that applied the same entries.
  uint64_t Digest() const;

 private:
  struct Slot {
    uint64_t seq = 0;
    bool cancelled = false;
    Outcome outcome;
  };
  struct Session {
    Nanos timeout = 0;
    Nanos last_used = 0;
    uint64_t lowest_unanswered = 1;
    std::deque<Slot> slots;  // by seq: nearly always appended at one end, dropped at the other

    Nanos deadline() const { return last_used + timeout; }
  };
  using Sessions = std::map<Instance, Session>;
  struct Executing {
    Instance session = 0;
    uint64_t seq = 0;
  };

  static size_t BeyondGuaranteed(size_t held);
  static const Slot* Find(const Session& session, uint64_t seq);
  Session* Use(Instance id, uint64_t lowest_unanswered);
  Verdict Judge(const Session& session, const RequestId& request) const;
  bool HasRoom(const Session& session, uint64_t lowest_unanswered) const;
  void Insert(Session* session, Slot slot);
  Sessions::iterator Drop(Sessions::iterator at);
  bool EvictOne();
  bool DecodeSession(Decoder* in, Instance* id);

  Sessions sessions_;
  Nanos now_ = 0;
  uint64_t fence_ = 0;
  Instance last_opened_ = 0;

  // Derived from the above.
  size_t outcomes_ = 0;
  size_t shared_ = 0;                                        // outcomes beyond the guaranteed ones
  Nanos next_deadline_ = std::numeric_limits<Nanos>::max();  // no session expires before
  std::optional<Executing> executing_;                       // between Begin and Finish
};

}  // namespace hydra
