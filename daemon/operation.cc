// SPDX-License-Identifier: Apache-2.0
#include "daemon/operation.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/coding.h"
#include "blockstore/batch_format.h"
#include "blockstore/record.h"
#include "daemon/digest.h"

namespace hydra {
namespace {

constexpr uint8_t kContextFormat = 1;
constexpr uint8_t kHasInterval = 1;

// Fields of a context, in the order of their bytes.
enum Field : uint8_t {
  kSession = 1,
  kSeq = 2,
  kLowest = 4,
  kEpoch = 8,
  kTimeout = 16,
  kOutcome = 32,
  kBody = 64,
};
constexpr uint8_t kData = kSession | kSeq | kLowest | kEpoch;

constexpr uint8_t Bit(OpKind kind) { return static_cast<uint8_t>(1u << static_cast<int>(kind)); }

struct KindRule {
  RequestKind kind;
  uint8_t fields;
  uint8_t operations;  // kinds of the operation that it may ride in
  bool mutation;
};

constexpr KindRule kRules[] = {
    {RequestKind::kNoop, 0, Bit(OpKind::kNoop), false},
    {RequestKind::kWrite, kData, Bit(OpKind::kWrite), true},
    {RequestKind::kZero, kData, Bit(OpKind::kZero), true},
    {RequestKind::kUnmap, kData, Bit(OpKind::kUnmap), true},
    {RequestKind::kZeroExtents, kData, Bit(OpKind::kZeroExtents), true},
    {RequestKind::kCompareAndWrite, kData | kOutcome, Bit(OpKind::kWrite) | Bit(OpKind::kOpaque),
     true},
    {RequestKind::kOpenSession, kTimeout, Bit(OpKind::kOpaque), false},
    {RequestKind::kCloseSession, kSession, Bit(OpKind::kOpaque), false},
    {RequestKind::kKeepAlive, kSession | kLowest, Bit(OpKind::kOpaque), false},
    {RequestKind::kCancel, kSession | kSeq | kLowest, Bit(OpKind::kOpaque), false},
    {RequestKind::kFence, kEpoch, Bit(OpKind::kOpaque), false},
    {RequestKind::kConfig, kBody, Bit(OpKind::kOpaque), false},
    {RequestKind::kMaster, kBody, Bit(OpKind::kNoop), false},
};

constexpr bool RulesAreInOrder() {
  for (size_t i = 0; i < std::size(kRules); ++i) {
    if (static_cast<size_t>(kRules[i].kind) != i) return false;
  }
  return true;
}
static_assert(RulesAreInOrder(), "RuleOf indexes by kind");

const KindRule* RuleOf(RequestKind kind) {
  const auto index = static_cast<size_t>(kind);
  return index < std::size(kRules) ? &kRules[index] : nullptr;
}

Status MalformedContext() { return Status::Corruption("malformed context of an operation"); }

// Limits of the fields that are there. Zero is no session and no sequence.
bool WithinLimits(const RequestContext& c, uint8_t fields) {
  return c.interval >= 0 && c.interval <= SessionTable::kMaxInterval &&
         (!(fields & kSession) || (c.session >= 1 && c.session <= kMaxInstance)) &&
         (!(fields & kSeq) || c.seq >= 1) && c.timeout >= 0 &&
         c.timeout <= SessionTable::kMaxTimeout && c.body.size() <= kMaxConfigBytes &&
         c.outcome.has_value() == ((fields & kOutcome) != 0) &&
         (!c.outcome || (c.outcome->version == 0 && c.outcome->detail.size() <= kMaxDetailBytes));
}

// Nothing is set that would not be encoded.
bool OnlyOwnFields(const RequestContext& c, uint8_t fields) {
  return ((fields & kSession) || c.session == 0) && ((fields & kSeq) || c.seq == 0) &&
         ((fields & kLowest) || c.lowest_unanswered == 0) && ((fields & kEpoch) || c.epoch == 0) &&
         ((fields & kTimeout) || c.timeout == 0) && ((fields & kBody) || c.body.empty());
}

bool GetNanos(Decoder* in, Nanos limit, Nanos* out) {
  uint64_t value = 0;
  if (!in->Varint64(&value) || value > static_cast<uint64_t>(limit)) return false;
  *out = static_cast<Nanos>(value);
  return true;
}

bool GetBody(Decoder* in, std::string* out) {
  uint64_t length = 0;
  std::span<const uint8_t> bytes;
  if (!in->Varint64(&length) || length > kMaxConfigBytes || !in->Bytes(length, &bytes)) {
    return false;
  }
  out->assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return true;
}

// Into one that was just made.
Status ReadContext(std::span<const uint8_t> bytes, RequestContext* context) {
  if (bytes.empty()) return Status::Ok();
  if (bytes.size() > kMaxContextBytes) return MalformedContext();
  Decoder in(bytes);
  uint8_t format = 0;
  uint8_t kind = 0;
  uint8_t flags = 0;
  if (!in.U8(&format) || !in.U8(&kind) || !in.U8(&flags)) return MalformedContext();
  context->kind = static_cast<RequestKind>(kind);
  const KindRule* rule = RuleOf(context->kind);
  if (format != kContextFormat || rule == nullptr || (flags & ~kHasInterval) != 0) {
    return Status::Unsupported(fmt::format(
        "a context of format {}, kind {}, flags {}: upgrade this node", format, kind, flags));
  }
  const uint8_t fields = rule->fields;
  if (flags & kHasInterval) {
    if (!GetNanos(&in, SessionTable::kMaxInterval, &context->interval) || context->interval == 0) {
      return MalformedContext();
    }
  }
  if (fields & kOutcome) context->outcome.emplace();
  if (((fields & kSession) && !in.Varint64(&context->session)) ||
      ((fields & kSeq) && !in.Varint64(&context->seq)) ||
      ((fields & kLowest) && !in.Varint64(&context->lowest_unanswered)) ||
      ((fields & kEpoch) && !in.Varint64(&context->epoch)) ||
      ((fields & kTimeout) && !GetNanos(&in, SessionTable::kMaxTimeout, &context->timeout)) ||
      ((fields & kOutcome) && !GetOutcome(&in, &*context->outcome)) ||
      ((fields & kBody) && !GetBody(&in, &context->body)) || in.remaining() != 0 ||
      !WithinLimits(*context, fields)) {
    return MalformedContext();
  }
  return Status::Ok();
}

// At most as many bytes as the operation takes in an accept record, context not counted.
size_t OperationBytes(const Operation& op) {
  constexpr size_t kHead = 32;  // kinds, flags, range, lengths
  return kHead + op.crcs.size() * sizeof(uint32_t) + op.extents.size() * kMaxVarint64Bytes;
}

// The largest operations fit alone, and a full entry fits into a batch header.
static_assert(kMaxExtentsPerEntry * kMaxVarint64Bytes + 1024 <= EntryBuilder::kMaxEntryBytes);
static_assert(kMaxContextBytes + 1024 <= EntryBuilder::kMaxEntryBytes);
static_assert(EntryBuilder::kMaxEntryBytes + 128 <= kMaxRecordAreaBytes);

}  // namespace

bool IsMutation(RequestKind kind) {
  const KindRule* rule = RuleOf(kind);
  return rule != nullptr && rule->mutation;
}

Status ValidateContext(const RequestContext& context, const Operation& op) {
  const KindRule* rule = RuleOf(context.kind);
  if (rule == nullptr) return Status::Unsupported("unknown kind of request");
  const bool known_op = static_cast<uint8_t>(op.kind) <= static_cast<uint8_t>(OpKind::kOpaque);
  if (!known_op || !(rule->operations & Bit(op.kind))) {
    return Status::InvalidArgument(fmt::format("a request of kind {} in an operation of kind {}",
                                               static_cast<int>(context.kind),
                                               static_cast<int>(op.kind)));
  }
  if (!WithinLimits(context, rule->fields) || !OnlyOwnFields(context, rule->fields)) {
    return Status::InvalidArgument(fmt::format("a request of kind {} with fields beyond its limits",
                                               static_cast<int>(context.kind)));
  }
  if (context.outcome && (context.outcome->code == Code::kOk) != (op.kind == OpKind::kWrite)) {
    return Status::InvalidArgument(
        "a compare-and-write is resolved to a write, or to a failure without one");
  }
  return Status::Ok();
}

std::string EncodeContext(const RequestContext& context) {
  const KindRule* rule = RuleOf(context.kind);
  HYDRA_CHECK(rule != nullptr && WithinLimits(context, rule->fields) &&
              OnlyOwnFields(context, rule->fields));
  const uint8_t fields = rule->fields;
  std::string bytes;
  bytes.reserve(48);  // most fit
  PutU8(&bytes, kContextFormat);
  PutU8(&bytes, static_cast<uint8_t>(context.kind));
  PutU8(&bytes, context.interval > 0 ? kHasInterval : 0);
  if (context.interval > 0) PutVarint64(&bytes, static_cast<uint64_t>(context.interval));
  if (fields & kSession) PutVarint64(&bytes, context.session);
  if (fields & kSeq) PutVarint64(&bytes, context.seq);
  if (fields & kLowest) PutVarint64(&bytes, context.lowest_unanswered);
  if (fields & kEpoch) PutVarint64(&bytes, context.epoch);
  if (fields & kTimeout) PutVarint64(&bytes, static_cast<uint64_t>(context.timeout));
  if (fields & kOutcome) PutOutcome(&bytes, *context.outcome);
  if (fields & kBody) {
    PutVarint64(&bytes, context.body.size());
    bytes.append(context.body);
  }
  HYDRA_CHECK(bytes.size() <= kMaxContextBytes);
  return bytes;
}

Result<RequestContext> DecodeContext(std::span<const uint8_t> bytes) {
  RequestContext context;
  HYDRA_RETURN_IF_ERROR(ReadContext(bytes, &context));
  return context;
}

Outcome OutcomeOf(const RequestContext& context, Instance instance, uint32_t index) {
  HYDRA_CHECK(IsMutation(context.kind));
  Outcome outcome;
  if (context.outcome) outcome = *context.outcome;
  if (outcome.code == Code::kOk) outcome.version = MakeVersion(instance, index);
  return outcome;
}

Result<DecodedEntry> DecodeEntry(const Entry& entry) {
  DecodedEntry decoded;
  decoded.requests.reserve(entry.operations.size());
  bool opens = false;
  for (const Operation& op : entry.operations) {
    RequestContext& context = decoded.requests.emplace_back();
    HYDRA_RETURN_IF_ERROR(ReadContext(AsBytes(op.context), &context));
    if (!ValidateContext(context, op).ok()) return MalformedContext();
    if (decoded.requests.size() == 1) {
      decoded.interval = context.interval;
    } else if (context.interval != 0) {
      return Status::Corruption("an entry with two intervals");
    }
    if (context.kind == RequestKind::kConfig && entry.operations.size() != 1) {
      return Status::Corruption("a config that is not alone in its entry");
    }
    if (context.kind == RequestKind::kOpenSession && std::exchange(opens, true)) {
      return Status::Corruption("two sessions opened by one entry");
    }
  }
  return decoded;
}

uint64_t EntryDigest(const Entry& entry) {
  Digester digester;
  digester.Add(uint64_t{kContextFormat});
  digester.Add(entry.operations.size());
  for (const Operation& op : entry.operations) {
    digester.Add(uint64_t{static_cast<uint8_t>(op.kind)} << 8 | op.version);
    switch (op.kind) {
      case OpKind::kNoop:
      case OpKind::kOpaque: break;
      case OpKind::kWrite:
        digester.Add(op.lba);
        digester.Add(op.count);
        digester.Add(op.block_pages);
        for (const uint32_t crc : op.crcs) digester.Add(crc);
        break;
      case OpKind::kZero:
      case OpKind::kUnmap:
        digester.Add(op.lba);
        digester.Add(op.count);
        break;
      case OpKind::kZeroExtents:
        digester.Add(op.extents.size());
        for (const Extent extent : op.extents) digester.Add(extent);
        break;
    }
    digester.Add(AsBytes(op.context));
  }
  return digester.value();
}

// --- The builder ------------------------------------------------------------------------------

Status EntryBuilder::Add(Operation op, const RequestContext& context) {
  HYDRA_CHECK(context.interval == 0);
  HYDRA_RETURN_IF_ERROR(ValidateContext(context, op));
  op.context = EncodeContext(context);
  // Room for an interval is counted for every operation; only the first gets one.
  const size_t bytes = OperationBytes(op) + op.context.size() + kMaxVarint64Bytes;
  const uint32_t pages = op.PayloadPages();
  const size_t extents = op.extents.size();
  const bool opens = context.kind == RequestKind::kOpenSession;
  const bool config = context.kind == RequestKind::kConfig;
  HYDRA_RETURN_IF_ERROR(ValidateOperations({&op, 1}, block_pages_));
  if (!empty() &&
      (entry_.operations.size() >= kMaxOpsPerEntry || bytes_ + bytes > kMaxEntryBytes ||
       payload_pages_ + pages > kMaxPayloadPages || extents_ + extents > kMaxExtentsPerEntry ||
       (opens && opens_) || config || config_)) {
    return Status::Busy("the entry is full; propose it first");
  }
  if (empty()) first_ = context;
  entry_.operations.push_back(std::move(op));
  bytes_ += bytes;
  payload_pages_ += pages;
  extents_ += extents;
  opens_ = opens_ || opens;
  config_ = config_ || config;
  return Status::Ok();
}

Entry EntryBuilder::Build(Nanos interval) {
  if (empty()) entry_.operations.emplace_back();
  first_.interval = std::clamp<Nanos>(interval, 0, SessionTable::kMaxInterval);
  entry_.operations.front().context = EncodeContext(first_);
  Entry entry = std::move(entry_);
  *this = EntryBuilder(block_pages_);
  return entry;
}

}  // namespace hydra
