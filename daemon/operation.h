// SPDX-License-Identifier: Apache-2.0
//
// What rides beside the blocks in an entry: who asked for each operation, and how often at most it
// may happen. The engine stores these bytes (Operation::context) and never looks into them.
//
// Bytes of a context: u8 1; u8 kind; u8 flags (bit 0: varint interval follows); then, for those
// fields that the kind has, in this order: varint session, seq, lowest unanswered, epoch, time-out;
// outcome (outcome.h); varint length, body. An empty context is a no-op's. Replicas that meet a
// format, kind or flag they do not know halt the group (kUnsupported) until they are upgraded:
// skipping it would make them differ.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "blockstore/types.h"
#include "daemon/outcome.h"
#include "daemon/session_table.h"

namespace hydra {

// In the bytes: append only.
enum class RequestKind : uint8_t {
  kNoop = 0,
  kWrite = 1,
  kZero = 2,
  kUnmap = 3,
  kZeroExtents = 4,
  kCompareAndWrite = 5,  // resolved: a write if it compared equal, else only its outcome
  kOpenSession = 6,
  kCloseSession = 7,
  kKeepAlive = 8,
  kCancel = 9,
  kFence = 10,
  kConfig = 11,
  kMaster = 12,  // the no-op that begins a mastership
};

inline constexpr size_t kMaxConfigBytes = 8 * 1024;
// A whole context: what the engine takes is 16 KiB.
inline constexpr size_t kMaxContextBytes = kMaxConfigBytes + 512;

// Which fields count depends on `kind`; the others have their defaults.
struct RequestContext {
  RequestKind kind = RequestKind::kNoop;
  Nanos interval = 0;  // first operation of an entry: how far replicated time moves before it

  Instance session = 0;            // data, close, keep-alive, cancel
  uint64_t seq = 0;                // data; cancel: of the request to be cancelled
  uint64_t lowest_unanswered = 0;  // data, keep-alive, cancel
  uint64_t epoch = 0;              // data: checked under; fence: to be enforced
  Nanos timeout = 0;               // open
  std::optional<Outcome> outcome;  // compare-and-write, as the master resolved it; version 0
  std::string body;                // config, master; the consensus core knows what it means

  RequestId id() const { return {session, seq, lowest_unanswered, epoch}; }
  friend bool operator==(const RequestContext&, const RequestContext&) = default;
};

// Changes blocks (or, a compare that failed, might have): goes through SessionTable::Begin.
bool IsMutation(RequestKind kind);

// Whether `context` can ride in `op`: its kind fits the operation's, its fields are those of its
// kind and within their limits. For the master, before it proposes: contexts come from clients.
Status ValidateContext(const RequestContext& context, const Operation& op);

// `context` must be valid.
std::string EncodeContext(const RequestContext& context);
// Trusts nothing. kUnsupported: from a newer version. kCorruption: from nobody.
Result<RequestContext> DecodeContext(std::span<const uint8_t> bytes);

// What a mutation is answered when it was executed as operation `index` of `instance`.
Outcome OutcomeOf(const RequestContext& context, Instance instance, uint32_t index);

// An entry as its replicas apply it: time first, then one request per operation.
struct DecodedEntry {
  Nanos interval = 0;
  std::vector<RequestContext> requests;
};
// Fails, on all replicas alike, unless every context is valid for its operation, only the first
// has an interval, at most one opens a session (its id is the instance), and a config is alone.
Result<DecodedEntry> DecodeEntry(const Entry& entry);

// A hash of all that replicas must agree on in an entry: kinds, ranges, checksums, contexts; not
// where payload lies. The same for an entry that was encoded and decoded again, and independent of
// the engine's record format, so that nodes of different versions agree.
uint64_t EntryDigest(const Entry& entry);

// Calls f(lba, count) for each range of blocks that the operation changes; extents side by side are
// one range.
template <typename F>
void ForEachRange(const Operation& op, uint32_t block_pages, F&& f) {
  if (op.kind == OpKind::kWrite || op.kind == OpKind::kZero || op.kind == OpKind::kUnmap) {
    f(op.lba, op.count);
  }
  if (op.kind != OpKind::kZeroExtents) return;
  const uint64_t blocks = kExtentPages / block_pages;
  for (size_t i = 0; i < op.extents.size();) {
    size_t next = i + 1;
    while (next < op.extents.size() && op.extents[next] == op.extents[next - 1] + 1) ++next;
    f(op.extents[i] * blocks, (next - i) * blocks);
    i = next;
  }
}

// Collects operations into an entry that the engine will take and DecodeEntry will understand.
class EntryBuilder {
 public:
  // Of an accept record; the engine's limit is that of a batch header, a little more.
  static constexpr size_t kMaxEntryBytes = 60 * 1024;

  explicit EntryBuilder(uint32_t block_pages) : block_pages_(block_pages) {}

  // `op.context` is filled in from `context`, whose interval must be 0. kBusy: does not fit
  // together with the others; propose them first. Any other failure: it never will.
  Status Add(Operation op, const RequestContext& context);
  // Moves replicated time by `interval`, brought into [0, kMaxInterval]. An entry without
  // operations becomes a no-op. The builder is empty afterwards.
  Entry Build(Nanos interval);

  bool empty() const { return entry_.operations.empty(); }
  size_t operations() const { return entry_.operations.size(); }
  uint32_t payload_pages() const { return payload_pages_; }

 private:
  uint32_t block_pages_;
  Entry entry_;
  RequestContext first_;  // of the first operation, which gets the interval
  size_t bytes_ = 0;
  uint32_t payload_pages_ = 0;
  size_t extents_ = 0;
  bool opens_ = false;
  bool config_ = false;
};

}  // namespace hydra
