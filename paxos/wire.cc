// SPDX-License-Identifier: Apache-2.0
#include "paxos/wire.h"

#include <array>
#include <memory>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <google/protobuf/arena.h>

#include "base/check.h"
#include "paxos/paxos.pb.h"
#include "paxos/write_wire.h"

namespace hydra::paxos {
namespace {

// --- Counting before allocating
// -------------------------------------------------------------------

constexpr uint32_t kList = 15;  // the field of everything that repeats
constexpr uint32_t kFirstBody = 16;

// A cursor over the fields of a message in protobuf's encoding.
class Fields {
 public:
  explicit Fields(std::string_view bytes) : left_(bytes) {}

  // False at the end, or where the bytes are none.
  bool Next() {
    uint64_t tag = 0;
    if (left_.empty() || !Varint(&tag)) return false;
    number = static_cast<uint32_t>(tag >> 3);
    value = {};
    switch (tag & 7) {
      case 0: {
        uint64_t ignored = 0;
        return Varint(&ignored);
      }
      case 1: return Take(8);
      case 2: {
        uint64_t size = 0;
        return Varint(&size) && Take(size);
      }
      case 5: return Take(4);
      default: return false;
    }
  }

  uint32_t number = 0;
  std::string_view value;  // of a field with a length

 private:
  bool Varint(uint64_t* value_out) {
    uint64_t result = 0;
    for (int shift = 0; shift < 64 && !left_.empty(); shift += 7) {
      const auto byte = static_cast<uint8_t>(left_.front());
      left_.remove_prefix(1);
      result |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) {
        *value_out = result;
        return true;
      }
    }
    return false;
  }

  bool Take(uint64_t size) {
    if (size > left_.size()) return false;
    value = left_.substr(0, size);
    left_.remove_prefix(size);
    return true;
  }

  std::string_view left_;
};

Status CheckSize(std::string_view bytes, bool lists_in_body) {
  if (bytes.size() > kMaxWireBytes) {
    return Status::Corruption(fmt::format("a message of {} bytes", bytes.size()));
  }
  size_t elements = 0;
  size_t bodies = 0;
  for (Fields fields(bytes); fields.Next();) {
    if (!lists_in_body) {
      if (fields.number == kList) ++elements;
      continue;
    }
    if (fields.number < kFirstBody) continue;
    // There is one. Of others that it replaces, memory is kept until the message is decoded.
    if (++bodies > 1) return Status::Corruption("a message with several bodies");
    for (Fields inner(fields.value); inner.Next();) {
      if (inner.number == kList) ++elements;
    }
  }
  if (elements > kMaxWireElements) {
    return Status::Corruption(fmt::format("a message with a list of {}", elements));
  }
  return Status::Ok();
}

// --- Small parts
// ----------------------------------------------------------------------------------

void Put(const Ballot& from, wire::Ballot* to) {
  to->set_round(from.round);
  to->set_node(from.node);
}
void Put(const MemberId& from, wire::MemberId* to) {
  to->set_node(from.node);
  to->set_incarnation(from.incarnation);
}
Ballot Get(const wire::Ballot& from) { return {from.round(), from.node()}; }
MemberId Get(const wire::MemberId& from) { return {from.node(), from.incarnation()}; }

// Both directions carry what went wrong along, so that each message can be written as a list of
// fields. Bodies are taken and given in the order of the fields.
struct Encoder {
  std::vector<Body>* bodies;

  bool PutBody(const Body& body) {
    if (body != nullptr) bodies->push_back(body);
    return body != nullptr;
  }
};

struct Decoder {
  std::span<const Body> bodies;
  std::string error;

  void Fail(std::string what) {
    if (error.empty()) error = std::move(what);
  }
  Body GetBody(bool has) {
    if (!has) return nullptr;
    if (bodies.empty()) {
      Fail("a body is missing");
      return nullptr;
    }
    const Body body = bodies.front();
    bodies = bodies.subspan(1);
    if (body == nullptr) Fail("a body is empty");
    return body;
  }
  std::string GetCursor(const std::string& cursor) {
    if (cursor.size() > kMaxWireCursor) Fail("a cursor is too long");
    return error.empty() ? cursor : std::string();
  }
};

void Put(const EntryMeta& from, wire::Entry* to) {
  to->set_kind(static_cast<uint32_t>(from.kind));
  to->set_bytes(from.bytes);
  to->set_digest(from.digest);
  if (from.fence != Ballot{}) Put(from.fence, to->mutable_fence());
  to->set_fence_config(from.fence_config);
  if (from.config == nullptr) return;
  wire::Config* config = to->mutable_config();
  config->set_instance(from.config->instance());
  for (const Member& member : from.config->members()) {
    config->add_node(member.id.node);
    config->add_incarnation(member.id.incarnation);
    config->add_role(static_cast<uint32_t>(member.role));
  }
}

std::shared_ptr<const Config> GetConfig(const wire::Entry& entry, Decoder* in) {
  const wire::Config& from = entry.config();
  const int count = from.node_size();
  if (count == 0 || count > static_cast<int>(kMaxMembers) || from.incarnation_size() != count ||
      from.role_size() != count || from.instance() != entry.instance()) {
    in->Fail("a configuration is not whole");
    return nullptr;
  }
  std::vector<Member> members;
  std::set<NodeId> nodes;
  size_t voters = 0;
  for (int i = 0; i < count; ++i) {
    const auto role = static_cast<Role>(from.role(i));
    if ((from.role(i) != 1 && from.role(i) != 2) || from.node(i) == 0 ||
        !nodes.insert(from.node(i)).second) {
      in->Fail("a configuration with a wrong member");
      return nullptr;
    }
    if (role == Role::kVoter) ++voters;
    members.push_back({{from.node(i), from.incarnation(i)}, role});
  }
  if (voters == 0) {
    in->Fail("a configuration without a voter");
    return nullptr;
  }
  return std::make_shared<Config>(from.instance(), std::move(members));
}

EntryMeta GetMeta(const wire::Entry& from, Decoder* in) {
  EntryMeta meta;
  if (from.kind() > static_cast<uint32_t>(EntryKind::kConfig)) in->Fail("an entry of unknown kind");
  meta.kind = static_cast<EntryKind>(from.kind());
  meta.bytes = from.bytes();
  meta.digest = from.digest();
  if (from.has_fence()) meta.fence = Get(from.fence());
  meta.fence_config = from.fence_config();
  if (from.has_fence() && meta.kind != EntryKind::kNoop) in->Fail("a fence that is no no-op");
  if ((meta.kind == EntryKind::kConfig) != from.has_config()) {
    in->Fail("an entry whose kind and configuration disagree");
  } else if (from.has_config()) {
    meta.config = GetConfig(from, in);
  }
  return meta;
}

// The instances of a list grow.
void CheckOrder(Instance instance, Instance* last, Decoder* in) {
  if (instance <= *last) in->Fail("a list out of order");
  *last = instance;
}

// --- Messages, in the order of the variant
// --------------------------------------------------------

void Put(const PreVote& m, wire::Message* out, Encoder*) {
  auto* to = out->mutable_pre_vote();
  Put(m.ballot, to->mutable_ballot());
  to->set_config(m.config);
}
PreVote Get(const wire::PreVote& m, Decoder*) { return {Get(m.ballot()), m.config()}; }

void Put(const PreVoteReply& m, wire::Message* out, Encoder*) {
  auto* to = out->mutable_pre_vote_reply();
  Put(m.ballot, to->mutable_ballot());
  to->set_granted(m.granted);
  Put(m.promised, to->mutable_promised());
}
PreVoteReply Get(const wire::PreVoteReply& m, Decoder*) {
  return {Get(m.ballot()), m.granted(), Get(m.promised())};
}

void Put(const Prepare& m, wire::Message* out, Encoder*) {
  auto* to = out->mutable_prepare();
  Put(m.ballot, to->mutable_ballot());
  to->set_from(m.from);
  to->set_config(m.config);
  if (m.released != Ballot{}) Put(m.released, to->mutable_released());
}
Prepare Get(const wire::Prepare& m, Decoder*) {
  return {Get(m.ballot()), m.from(), m.config(), Get(m.released())};
}

void Put(const Promise& m, wire::Message* out, Encoder*) {
  auto* to = out->mutable_promise();
  Put(m.ballot, to->mutable_ballot());
  to->set_commit(m.commit);
  for (const PromisedEntry& entry : m.entries) {
    wire::Entry* row = to->add_entries();
    row->set_instance(entry.instance);
    Put(entry.ballot, row->mutable_ballot());
    Put(entry.meta, row);
    row->set_faulty(entry.faulty);
  }
}
Promise Get(const wire::Promise& m, Decoder* in) {
  Promise promise{Get(m.ballot()), m.commit(), {}};
  Instance last = 0;
  promise.entries.reserve(m.entries_size());
  for (const wire::Entry& row : m.entries()) {
    CheckOrder(row.instance(), &last, in);
    promise.entries.push_back({row.instance(), Get(row.ballot()), GetMeta(row, in), row.faulty()});
  }
  return promise;
}

void Put(const Reject& m, wire::Message* out, Encoder*) {
  auto* to = out->mutable_reject();
  Put(m.ballot, to->mutable_ballot());
  Put(m.promised, to->mutable_promised());
  to->set_reason(static_cast<uint32_t>(m.reason));
  to->set_config(m.config);
}
Reject Get(const wire::Reject& m, Decoder* in) {
  if (m.reason() < 1 || m.reason() > 3) in->Fail("a refusal for an unknown reason");
  return {Get(m.ballot()), Get(m.promised()), static_cast<Refusal>(m.reason()), m.config()};
}

void Put(const Accept& m, wire::Message* out, Encoder* encoder) {
  auto* to = out->mutable_accept();
  Put(m.ballot, to->mutable_ballot());
  to->set_commit(m.commit);
  for (const AcceptEntry& entry : *m.entries) {
    wire::Entry* row = to->add_entries();
    row->set_instance(entry.instance);
    Put(entry.meta, row);
    row->set_has_body(encoder->PutBody(entry.body));
  }
}
Accept Get(const wire::Accept& m, Decoder* in) {
  auto entries = std::make_shared<std::vector<AcceptEntry>>();
  entries->reserve(m.entries_size());
  Instance last = 0;
  for (const wire::Entry& row : m.entries()) {
    CheckOrder(row.instance(), &last, in);
    entries->push_back({row.instance(), GetMeta(row, in), in->GetBody(row.has_body())});
    // A master has the body of whatever it proposes.
    if (row.kind() != 0 && !row.has_body()) in->Fail("an entry to accept without its body");
  }
  return {Get(m.ballot()), m.commit(), std::move(entries)};
}

void Put(const Accepted& m, wire::Message* out, Encoder*) {
  auto* to = out->mutable_accepted();
  Put(m.ballot, to->mutable_ballot());
  to->set_applied(m.applied);
  to->set_lacks(static_cast<uint32_t>(m.lacks));
  for (const InstanceRange& range : m.ranges) {
    wire::Range* row = to->add_ranges();
    row->set_from(range.from);
    row->set_to(range.to);
  }
}
Lacks GetLacks(uint32_t lacks, Decoder* in) {
  if (lacks > static_cast<uint32_t>(Lacks::kBlocks)) in->Fail("what a replica lacks is unknown");
  return static_cast<Lacks>(lacks);
}
Accepted Get(const wire::Accepted& m, Decoder* in) {
  Accepted accepted{Get(m.ballot()), {}, m.applied(), GetLacks(m.lacks(), in)};
  accepted.ranges.reserve(m.ranges_size());
  for (const wire::Range& row : m.ranges()) {
    if (row.from() == 0 || row.from() > row.to()) in->Fail("an empty range");
    accepted.ranges.push_back({row.from(), row.to()});
  }
  return accepted;
}

void Put(const Beat& m, wire::Message* out, Encoder*) {
  auto* to = out->mutable_beat();
  Put(m.ballot, to->mutable_ballot());
  to->set_commit(m.commit);
  to->set_round(m.round);
}
Beat Get(const wire::Beat& m, Decoder*) { return {Get(m.ballot()), m.commit(), m.round()}; }

void Put(const BeatReply& m, wire::Message* out, Encoder*) {
  auto* to = out->mutable_beat_reply();
  Put(m.ballot, to->mutable_ballot());
  to->set_round(m.round);
  to->set_applied(m.applied);
  to->set_lacks(static_cast<uint32_t>(m.lacks));
}
BeatReply Get(const wire::BeatReply& m, Decoder* in) {
  return {Get(m.ballot()), m.round(), m.applied(), GetLacks(m.lacks(), in)};
}

void Put(const CatchUp& m, wire::Message* out, Encoder*) {
  auto* to = out->mutable_catch_up();
  to->set_from(m.from);
  for (const CatchUp::Held& held : m.held) {
    wire::Held* row = to->add_held();
    row->set_any(held.any);
    row->set_digest(held.digest);
  }
}
CatchUp Get(const wire::CatchUp& m, Decoder*) {
  CatchUp request{m.from(), {}};
  request.held.reserve(m.held_size());
  for (const wire::Held& row : m.held()) request.held.push_back({row.any(), row.digest()});
  return request;
}

void Put(const CatchUpReply& m, wire::Message* out, Encoder* encoder) {
  auto* to = out->mutable_catch_up_reply();
  to->set_from(m.from);
  to->set_commit(m.commit);
  to->set_truncated(m.truncated);
  for (const ChosenEntry& entry : m.entries) {
    wire::Entry* row = to->add_entries();
    row->set_instance(entry.instance);
    Put(entry.ballot, row->mutable_ballot());
    Put(entry.meta, row);
    row->set_same(entry.same);
    row->set_has_body(encoder->PutBody(entry.body));
  }
}
CatchUpReply Get(const wire::CatchUpReply& m, Decoder* in) {
  CatchUpReply reply{m.from(), m.commit(), m.truncated(), {}};
  reply.entries.reserve(m.entries_size());
  Instance last = 0;
  for (const wire::Entry& row : m.entries()) {
    CheckOrder(row.instance(), &last, in);
    if (row.kind() != 0 && !row.same() && !row.has_body()) in->Fail("an entry without its body");
    reply.entries.push_back({row.instance(), Get(row.ballot()), GetMeta(row, in), row.same(),
                             in->GetBody(row.has_body())});
  }
  return reply;
}

void Put(const FetchBody& m, wire::Message* out, Encoder*) {
  auto* to = out->mutable_fetch_body();
  to->set_instance(m.instance);
  Put(m.ballot, to->mutable_ballot());
  to->set_digest(m.digest);
}
FetchBody Get(const wire::FetchBody& m, Decoder*) {
  return {m.instance(), Get(m.ballot()), m.digest()};
}

void Put(const FetchedBody& m, wire::Message* out, Encoder* encoder) {
  auto* to = out->mutable_fetched_body();
  to->set_instance(m.instance);
  Put(m.ballot, to->mutable_ballot());
  to->set_digest(m.digest);
  to->set_found(m.found);
  to->set_has_body(encoder->PutBody(m.body));
}
FetchedBody Get(const wire::FetchedBody& m, Decoder* in) {
  if (m.found() != m.has_body()) in->Fail("a body that was found and is not there");
  return {m.instance(), Get(m.ballot()), m.digest(), m.found(), in->GetBody(m.has_body())};
}

void Put(const ReadIndex& m, wire::Message* out, Encoder*) {
  out->mutable_read_index()->set_id(m.id);
}
ReadIndex Get(const wire::ReadIndex& m, Decoder*) { return {m.id()}; }

void Put(const ReadIndexReply& m, wire::Message* out, Encoder*) {
  auto* to = out->mutable_read_index_reply();
  to->set_id(m.id);
  to->set_ok(m.ok);
  to->set_instance(m.instance);
}
ReadIndexReply Get(const wire::ReadIndexReply& m, Decoder*) {
  return {m.id(), m.ok(), m.instance()};
}

void Put(const TakeOver& m, wire::Message* out, Encoder*) {
  Put(m.ballot, out->mutable_take_over()->mutable_ballot());
}
TakeOver Get(const wire::TakeOver& m, Decoder*) { return {Get(m.ballot())}; }

void Put(const InstallRequest& m, wire::Message* out, Encoder*) {
  auto* to = out->mutable_install_request();
  to->set_transfer(m.transfer);
  to->set_base(m.base);
  to->set_cursor(m.cursor);
  to->set_bare(m.bare);
}
InstallRequest Get(const wire::InstallRequest& m, Decoder* in) {
  return {m.transfer(), m.base(), in->GetCursor(m.cursor()), m.bare()};
}

void Put(const InstallChunk& m, wire::Message* out, Encoder* encoder) {
  auto* to = out->mutable_install_chunk();
  to->set_transfer(m.transfer);
  to->set_cursor(m.cursor);
  to->set_next(m.next);
  to->set_as_of(m.as_of);
  to->set_done(m.done);
  to->set_has_body(encoder->PutBody(m.body));
}
InstallChunk Get(const wire::InstallChunk& m, Decoder* in) {
  return {m.transfer(), in->GetCursor(m.cursor()), in->GetCursor(m.next()), m.as_of(),
          m.done(),     in->GetBody(m.has_body())};
}

MessageBody GetBody(const wire::Message& m, Decoder* in) {
  using Case = wire::Message;
  switch (m.body_case()) {
    case Case::kPreVote: return Get(m.pre_vote(), in);
    case Case::kPreVoteReply: return Get(m.pre_vote_reply(), in);
    case Case::kPrepare: return Get(m.prepare(), in);
    case Case::kPromise: return Get(m.promise(), in);
    case Case::kReject: return Get(m.reject(), in);
    case Case::kAccept: return Get(m.accept(), in);
    case Case::kAccepted: return Get(m.accepted(), in);
    case Case::kBeat: return Get(m.beat(), in);
    case Case::kBeatReply: return Get(m.beat_reply(), in);
    case Case::kCatchUp: return Get(m.catch_up(), in);
    case Case::kCatchUpReply: return Get(m.catch_up_reply(), in);
    case Case::kFetchBody: return Get(m.fetch_body(), in);
    case Case::kFetchedBody: return Get(m.fetched_body(), in);
    case Case::kReadIndex: return Get(m.read_index(), in);
    case Case::kReadIndexReply: return Get(m.read_index_reply(), in);
    case Case::kTakeOver: return Get(m.take_over(), in);
    case Case::kInstallRequest: return Get(m.install_request(), in);
    case Case::kInstallChunk: return Get(m.install_chunk(), in);
    case Case::BODY_NOT_SET: break;
  }
  in->Fail("a message of unknown kind");
  return {};
}

// The parts of a message live as long as it is encoded or decoded: in memory of the stack, mostly,
// instead of an allocation for each.
class Scratch {
 public:
  Scratch() : arena_(Options(block_.data(), block_.size())) {}
  template <typename Part>
  Part* Make() {
    return google::protobuf::Arena::CreateMessage<Part>(&arena_);
  }

 private:
  static google::protobuf::ArenaOptions Options(char* block, size_t size) {
    google::protobuf::ArenaOptions options;
    options.initial_block = block;
    options.initial_block_size = size;
    return options;
  }

  alignas(8) std::array<char, 4096> block_;
  google::protobuf::Arena arena_;
};

}  // namespace

void EncodeMessage(const Message& message, std::string* bytes, std::vector<Body>* bodies) {
  if (!EncodeWriteMessage(message, bytes, bodies)) EncodeByProtobuf(message, bytes, bodies);
}

Result<Message> DecodeMessage(std::string_view bytes, std::span<const Body> bodies) {
  if (bytes.size() <= kMaxWireBytes) {
    if (auto message = DecodeWriteMessage(bytes, bodies)) return std::move(*message);
  }
  return DecodeByProtobuf(bytes, bodies);
}

void EncodeByProtobuf(const Message& message, std::string* bytes, std::vector<Body>* bodies) {
  Scratch scratch;
  wire::Message& out = *scratch.Make<wire::Message>();
  Encoder encoder{bodies};
  out.set_group(message.group);
  Put(message.from, out.mutable_from());
  Put(message.to, out.mutable_to());
  out.set_boot(message.boot);
  std::visit([&](const auto& body) { Put(body, &out, &encoder); }, message.body);
  HYDRA_CHECK(out.ByteSizeLong() <= kMaxWireBytes);
  HYDRA_CHECK(out.AppendToString(bytes));
}

Result<Message> DecodeByProtobuf(std::string_view bytes, std::span<const Body> bodies) {
  if (Status status = CheckSize(bytes, true); !status.ok()) return status;
  Scratch scratch;
  wire::Message& in = *scratch.Make<wire::Message>();
  if (!in.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return Status::Corruption("bytes that are no message");
  }
  Decoder decoder{bodies, {}};
  Message message{in.group(), Get(in.from()), Get(in.to()), in.boot(), GetBody(in, &decoder)};
  if (message.from.node == 0 || message.to.node == 0) decoder.Fail("a message of nobody");
  if (!decoder.bodies.empty()) decoder.Fail("more bodies than the message has");
  if (!decoder.error.empty()) return Status::Corruption(std::move(decoder.error));
  return message;
}

void EncodeHeartbeat(const Heartbeat& heartbeat, std::string* bytes) {
  wire::Heartbeat out;
  out.set_from(heartbeat.from);
  out.set_to(heartbeat.to);
  out.set_boot(heartbeat.boot);
  out.set_sequence(heartbeat.sequence);
  out.set_is_reply(heartbeat.is_reply);
  out.set_lease(heartbeat.lease);
  for (const Notice& notice : heartbeat.notices) {
    wire::Notice* row = out.add_notices();
    row->set_sequence(notice.sequence);
    row->set_group(notice.group);
    row->set_kind(static_cast<uint32_t>(notice.kind));
    Put(notice.ballot, row->mutable_ballot());
  }
  out.set_last_notice(heartbeat.last_notice);
  out.set_more_notices(heartbeat.more_notices);
  out.set_seen_boot(heartbeat.seen_boot);
  out.set_seen_notice(heartbeat.seen_notice);
  out.set_store(heartbeat.store);
  out.set_asker_boot(heartbeat.asker_boot);
  out.set_durable_batch(heartbeat.durable_batch);
  out.set_credit(heartbeat.credit);
  out.set_credit_known(heartbeat.credit_known);
  HYDRA_CHECK(out.AppendToString(bytes));
}

Result<Heartbeat> DecodeHeartbeat(std::string_view bytes) {
  if (Status status = CheckSize(bytes, false); !status.ok()) return status;
  wire::Heartbeat in;
  if (!in.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return Status::Corruption("bytes that are no heartbeat");
  }
  // A lease is counted from clocks: one of years overflows them.
  constexpr Nanos kLongestLease = 3600 * kSecond;
  if (in.from() == 0 || in.to() == 0 || in.boot() == 0 || in.lease() < 0 ||
      in.lease() > kLongestLease) {
    return Status::Corruption("a heartbeat of nobody, or with an impossible lease");
  }
  Heartbeat heartbeat;
  heartbeat.from = in.from();
  heartbeat.to = in.to();
  heartbeat.boot = in.boot();
  heartbeat.sequence = in.sequence();
  heartbeat.is_reply = in.is_reply();
  heartbeat.lease = in.lease();
  heartbeat.notices.reserve(in.notices_size());
  uint64_t last = 0;
  for (const wire::Notice& row : in.notices()) {
    if (row.kind() < 1 || row.kind() > 2 || row.sequence() <= last ||
        row.sequence() > in.last_notice()) {
      return Status::Corruption("a heartbeat with a wrong notice");
    }
    last = row.sequence();
    heartbeat.notices.push_back(
        {row.sequence(), row.group(), static_cast<Notice::Kind>(row.kind()), Get(row.ballot())});
  }
  heartbeat.last_notice = in.last_notice();
  heartbeat.more_notices = in.more_notices();
  heartbeat.seen_boot = in.seen_boot();
  heartbeat.seen_notice = in.seen_notice();
  heartbeat.store = in.store();
  heartbeat.asker_boot = in.asker_boot();
  heartbeat.durable_batch = in.durable_batch();
  heartbeat.credit = in.credit();
  heartbeat.credit_known = in.credit_known();
  return heartbeat;
}

}  // namespace hydra::paxos
