// SPDX-License-Identifier: Apache-2.0
#include "paxos/write_wire.h"

#include <limits>
#include <memory>
#include <utility>

#include "base/check.h"
#include "base/coding.h"
#include "paxos/wire.h"

namespace hydra::paxos {
namespace {

// Fields, as paxos.proto numbers them, with how each is written in the low three bits.
namespace field {

constexpr uint32_t Number(uint32_t number) { return number << 3; }
constexpr uint32_t Eight(uint32_t number) { return number << 3 | 1; }
constexpr uint32_t Bytes(uint32_t number) { return number << 3 | 2; }

constexpr uint32_t kGroup = Number(1);
constexpr uint32_t kFrom = Bytes(2);
constexpr uint32_t kTo = Bytes(3);
constexpr uint32_t kBoot = Eight(4);
constexpr uint32_t kAccept = Bytes(21);
constexpr uint32_t kAccepted = Bytes(22);
// Of either.
constexpr uint32_t kBallot = Bytes(1);
constexpr uint32_t kCommitOrApplied = Number(2);
constexpr uint32_t kLacks = Number(3);
constexpr uint32_t kList = Bytes(15);
// Of an entry.
constexpr uint32_t kInstance = Number(1);
constexpr uint32_t kKind = Number(3);
constexpr uint32_t kPayloadBytes = Number(4);
constexpr uint32_t kDigest = Eight(5);
constexpr uint32_t kHasBody = Number(7);
constexpr uint32_t kFence = Bytes(10);
constexpr uint32_t kFenceConfig = Number(11);
// Of a pair of numbers: a member, a ballot, a range.
constexpr uint32_t kFirst = Number(1);
constexpr uint32_t kSecond = Number(2);

}  // namespace field

// --- Writing ------------------------------------------------------------------------------------
//
// A struct is taken apart where its size is computed, so that one with a new member does not
// compile before the member is written here as well, and read below.

// What is zero is left out.
constexpr size_t NumberSize(uint32_t tag, uint64_t value) {
  return value == 0 ? 0 : VarintLength(tag) + VarintLength(value);
}
constexpr size_t EightSize(uint32_t tag, uint64_t value) {
  return value == 0 ? 0 : VarintLength(tag) + sizeof(value);
}
constexpr size_t BytesSize(uint32_t tag, size_t size) {
  return VarintLength(tag) + VarintLength(size) + size;
}
constexpr size_t PairSize(uint64_t first, uint64_t second) {
  return NumberSize(field::kFirst, first) + NumberSize(field::kSecond, second);
}

class Writer {
 public:
  explicit Writer(uint8_t* to) : to_(to) {}

  void Put(uint32_t tag, uint64_t value) {
    if (value == 0) return;
    to_ = EncodeVarint64(to_, tag);
    to_ = EncodeVarint64(to_, value);
  }
  void PutEight(uint32_t tag, uint64_t value) {
    if (value == 0) return;
    to_ = EncodeVarint64(to_, tag);
    EncodeFixed64(to_, value);
    to_ += sizeof(value);
  }
  // The head of so many bytes, which follow.
  void Begin(uint32_t tag, size_t size) {
    to_ = EncodeVarint64(to_, tag);
    to_ = EncodeVarint64(to_, size);
  }
  void PutPair(uint32_t tag, uint64_t first, uint64_t second) {
    Begin(tag, PairSize(first, second));
    Put(field::kFirst, first);
    Put(field::kSecond, second);
  }
  const uint8_t* end() const { return to_; }

 private:
  uint8_t* to_;
};

size_t EntrySize(const AcceptEntry& entry) {
  const auto& [instance, meta, body] = entry;
  const auto& [kind, payload_bytes, digest, config, fence, fence_config] = meta;
  HYDRA_CHECK(config == nullptr);  // left to protobuf
  size_t size = NumberSize(field::kInstance, instance) +
                NumberSize(field::kKind, static_cast<uint8_t>(kind)) +
                NumberSize(field::kPayloadBytes, payload_bytes) +
                EightSize(field::kDigest, digest) +
                NumberSize(field::kHasBody, body != nullptr ? 1 : 0) +
                NumberSize(field::kFenceConfig, fence_config);
  if (fence != Ballot{}) size += BytesSize(field::kFence, PairSize(fence.round, fence.node));
  return size;
}

void PutEntry(const AcceptEntry& entry, Writer* out) {
  const EntryMeta& meta = entry.meta;
  out->Begin(field::kList, EntrySize(entry));
  out->Put(field::kInstance, entry.instance);
  out->Put(field::kKind, static_cast<uint8_t>(meta.kind));
  out->Put(field::kPayloadBytes, meta.bytes);
  out->PutEight(field::kDigest, meta.digest);
  out->Put(field::kHasBody, entry.body != nullptr ? 1 : 0);
  if (meta.fence != Ballot{}) out->PutPair(field::kFence, meta.fence.round, meta.fence.node);
  out->Put(field::kFenceConfig, meta.fence_config);
}

size_t HeadSize(const Ballot& ballot, Instance instance) {
  return BytesSize(field::kBallot, PairSize(ballot.round, ballot.node)) +
         NumberSize(field::kCommitOrApplied, instance);
}

size_t FieldsSize(const Accept& m) {
  const auto& [ballot, commit, entries] = m;
  size_t size = HeadSize(ballot, commit);
  for (const AcceptEntry& entry : *entries) size += BytesSize(field::kList, EntrySize(entry));
  return size;
}

size_t FieldsSize(const Accepted& m) {
  const auto& [ballot, ranges, applied, lacks] = m;
  size_t size = HeadSize(ballot, applied) + NumberSize(field::kLacks, static_cast<uint8_t>(lacks));
  for (const auto& [from, to] : ranges) size += BytesSize(field::kList, PairSize(from, to));
  return size;
}

void PutFields(const Accept& m, Writer* out) {
  out->PutPair(field::kBallot, m.ballot.round, m.ballot.node);
  out->Put(field::kCommitOrApplied, m.commit);
  for (const AcceptEntry& entry : *m.entries) PutEntry(entry, out);
}

void PutFields(const Accepted& m, Writer* out) {
  out->PutPair(field::kBallot, m.ballot.round, m.ballot.node);
  out->Put(field::kCommitOrApplied, m.applied);
  out->Put(field::kLacks, static_cast<uint8_t>(m.lacks));
  for (const InstanceRange& range : m.ranges) out->PutPair(field::kList, range.from, range.to);
}

template <typename BodyMessage>
void Encode(const Message& message, uint32_t tag, const BodyMessage& body, std::string* bytes) {
  const auto& [group, from, to, boot, any_body] = message;
  const size_t body_size = FieldsSize(body);
  const size_t size = NumberSize(field::kGroup, group) +
                      BytesSize(field::kFrom, PairSize(from.node, from.incarnation)) +
                      BytesSize(field::kTo, PairSize(to.node, to.incarnation)) +
                      EightSize(field::kBoot, boot) + BytesSize(tag, body_size);
  HYDRA_CHECK(size <= kMaxWireBytes);
  const size_t before = bytes->size();
  bytes->resize(before + size);
  auto* const begin = reinterpret_cast<uint8_t*>(bytes->data()) + before;
  Writer out(begin);
  out.Put(field::kGroup, group);
  out.PutPair(field::kFrom, from.node, from.incarnation);
  out.PutPair(field::kTo, to.node, to.incarnation);
  out.PutEight(field::kBoot, boot);
  out.Begin(tag, body_size);
  PutFields(body, &out);
  HYDRA_CHECK(out.end() == begin + size);
}

// --- Reading ------------------------------------------------------------------------------------

// Reads fields in the order in which they are written. What is asked for and not there is zero, as
// it is to protobuf. After anything unexpected `good` is false, and what was read counts for
// nothing.
class Reader {
 public:
  explicit Reader(std::string_view bytes)
      : at_(reinterpret_cast<const uint8_t*>(bytes.data())), end_(at_ + bytes.size()) {}

  uint64_t Get(uint32_t tag) { return Take(tag) ? Varint() : 0; }
  uint32_t Get32(uint32_t tag) {
    const uint64_t value = Get(tag);
    if (value > std::numeric_limits<uint32_t>::max()) good_ = false;
    return static_cast<uint32_t>(value);
  }
  uint64_t GetEight(uint32_t tag) {
    if (!Take(tag)) return 0;
    if (left() < sizeof(uint64_t)) {
      good_ = false;
      return 0;
    }
    at_ += sizeof(uint64_t);
    return DecodeFixed64(at_ - sizeof(uint64_t));
  }
  // Whether it is there: `in` reads its bytes then.
  bool Enter(uint32_t tag, Reader* in) {
    if (!Take(tag)) return false;
    const uint8_t* const begin = at_;
    const uint64_t size = Varint();
    // In the shortest form: protobuf takes few others.
    if (size > left() || VarintLength(size) != static_cast<size_t>(at_ - begin)) good_ = false;
    if (!good_) return false;
    *in = Reader(at_, at_ + size);
    at_ += size;
    return true;
  }

  bool done() const { return good_ && at_ == end_; }

 private:
  Reader(const uint8_t* at, const uint8_t* end) : at_(at), end_(end) {}
  size_t left() const { return static_cast<size_t>(end_ - at_); }

  bool Take(uint32_t tag) {
    // All of them have one byte but the body's two.
    if (!good_ || at_ == end_) return false;
    if (tag < 0x80) {
      if (*at_ != tag) return false;
      ++at_;
      return true;
    }
    if (left() < 2 || at_[0] != ((tag & 0x7f) | 0x80) || at_[1] != tag >> 7) return false;
    at_ += 2;
    return true;
  }

  uint64_t Varint() {
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 63 && at_ < end_; shift += 7) {
      const uint8_t byte = *at_++;
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    good_ = false;  // or larger than anything that is counted here
    return 0;
  }

  const uint8_t* at_;
  const uint8_t* end_;
  bool good_ = true;
};

bool GetPair(Reader* in, uint32_t tag, uint64_t* first, uint64_t* second) {
  Reader pair({});
  if (!in->Enter(tag, &pair)) return false;
  *first = pair.Get(field::kFirst);
  *second = pair.Get(field::kSecond);
  return pair.done();
}

bool GetBallot(Reader* in, uint32_t tag, Ballot* ballot) {
  uint64_t node = 0;
  if (!GetPair(in, tag, &ballot->round, &node)) return false;
  ballot->node = static_cast<NodeId>(node);
  return node <= std::numeric_limits<NodeId>::max();
}

bool GetMember(Reader* in, uint32_t tag, MemberId* id) {
  uint64_t node = 0;
  uint64_t incarnation = 0;
  if (!GetPair(in, tag, &node, &incarnation)) return false;
  *id = {static_cast<NodeId>(node), static_cast<uint32_t>(incarnation)};
  return node != 0 && node <= std::numeric_limits<NodeId>::max() &&
         incarnation <= std::numeric_limits<uint32_t>::max();
}

bool GetEntry(Reader in, std::span<const Body>* bodies, AcceptEntry* entry) {
  entry->instance = in.Get(field::kInstance);
  const uint64_t kind = in.Get(field::kKind);
  entry->meta.bytes = in.Get32(field::kPayloadBytes);
  entry->meta.digest = in.GetEight(field::kDigest);
  const uint64_t has_body = in.Get(field::kHasBody);
  // Commands alone: what else there is comes once in a mastership.
  if (!in.done() || kind != static_cast<uint64_t>(EntryKind::kCommand) || has_body != 1 ||
      bodies->empty() || bodies->front() == nullptr) {
    return false;
  }
  entry->meta.kind = EntryKind::kCommand;
  entry->body = bodies->front();
  *bodies = bodies->subspan(1);
  return true;
}

bool GetFields(Reader in, std::span<const Body>* bodies, Accept* accept) {
  if (!GetBallot(&in, field::kBallot, &accept->ballot)) return false;
  accept->commit = in.Get(field::kCommitOrApplied);
  if (bodies->size() > kMaxWireElements) return false;  // each entry takes one
  auto entries = std::make_shared<std::vector<AcceptEntry>>();
  entries->reserve(bodies->size());
  Instance last = 0;
  for (Reader row({}); in.Enter(field::kList, &row);) {
    AcceptEntry& entry = entries->emplace_back();
    if (!GetEntry(row, bodies, &entry) || entry.instance <= last) return false;
    last = entry.instance;
  }
  accept->entries = std::move(entries);
  return in.done() && bodies->empty();
}

bool GetFields(Reader in, std::span<const Body>* bodies, Accepted* accepted) {
  if (!GetBallot(&in, field::kBallot, &accepted->ballot)) return false;
  accepted->applied = in.Get(field::kCommitOrApplied);
  const uint64_t lacks = in.Get(field::kLacks);
  if (lacks > static_cast<uint8_t>(Lacks::kBlocks)) return false;
  accepted->lacks = static_cast<Lacks>(lacks);
  for (Reader row({}); in.Enter(field::kList, &row);) {
    InstanceRange& range = accepted->ranges.emplace_back();
    range = {row.Get(field::kFirst), row.Get(field::kSecond)};
    if (!row.done() || range.from == 0 || range.from > range.to) return false;
    if (accepted->ranges.size() > kMaxWireElements) return false;
  }
  return in.done() && bodies->empty();
}

}  // namespace

bool EncodeWriteMessage(const Message& message, std::string* bytes, std::vector<Body>* bodies) {
  if (const auto* accepted = std::get_if<Accepted>(&message.body)) {
    Encode(message, field::kAccepted, *accepted, bytes);
    return true;
  }
  const auto* accept = std::get_if<Accept>(&message.body);
  if (accept == nullptr) return false;
  for (const AcceptEntry& entry : *accept->entries) {
    if (entry.meta.config != nullptr) return false;
  }
  Encode(message, field::kAccept, *accept, bytes);
  for (const AcceptEntry& entry : *accept->entries) {
    if (entry.body != nullptr) bodies->push_back(entry.body);
  }
  return true;
}

std::optional<Message> DecodeWriteMessage(std::string_view bytes, std::span<const Body> bodies) {
  Reader in(bytes);
  Message message;
  message.group = in.Get32(field::kGroup);
  if (!GetMember(&in, field::kFrom, &message.from) || !GetMember(&in, field::kTo, &message.to))
    return {};
  message.boot = in.GetEight(field::kBoot);
  Reader body({});
  if (in.Enter(field::kAccepted, &body)) {
    if (!in.done() || !GetFields(body, &bodies, &message.body.emplace<Accepted>())) return {};
  } else if (in.Enter(field::kAccept, &body)) {
    if (!in.done() || !GetFields(body, &bodies, &message.body.emplace<Accept>())) return {};
  } else {
    return {};
  }
  return message;
}

}  // namespace hydra::paxos
