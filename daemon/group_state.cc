// SPDX-License-Identifier: Apache-2.0
#include "daemon/group_state.h"

#include "base/check.h"
#include "base/coding.h"
#include "base/probe.h"
#include "daemon/digest.h"

namespace hydra {
namespace {

constexpr uint8_t kStateVersion = 1;

bool IsEmptyNoop(const Entry& entry) {
  return entry.operations.size() == 1 && entry.operations[0].kind == OpKind::kNoop &&
         entry.operations[0].context.empty();
}

Result<paxos::EntryMeta> DecodeFence(std::span<const uint8_t> bytes) {
  Decoder in(bytes);
  Ballot fence;
  Instance config = 0;
  in.Varint64(&fence.round);
  in.Varint32(&fence.node);
  if (!in.Varint64(&config) || in.remaining() != 0 || fence == Ballot{}) {
    return Status::Corruption("the first entry of a mastership makes no sense");
  }
  return paxos::FenceEntry(fence, config);
}

}  // namespace

Entry NoopEntry(const paxos::EntryMeta& meta) {
  Entry entry;
  entry.operations.emplace_back();
  if (meta.fence == Ballot{}) return entry;
  RequestContext context;
  context.kind = RequestKind::kMaster;
  PutVarint64(&context.body, meta.fence.round);
  PutVarint64(&context.body, meta.fence.node);
  PutVarint64(&context.body, meta.fence_config);
  entry.operations[0].context = EncodeContext(context);
  return entry;
}

std::string EncodeMembers(const std::vector<paxos::Member>& members) {
  std::string out;
  PutVarint64(&out, members.size());
  for (const paxos::Member& member : members) {
    PutVarint64(&out, member.id.node);
    PutVarint64(&out, member.id.incarnation);
    PutVarint64(&out, static_cast<uint64_t>(member.role));
  }
  return out;
}

Result<std::vector<paxos::Member>> DecodeMembers(std::span<const uint8_t> bytes) {
  Decoder in(bytes);
  std::vector<paxos::Member> members;
  uint64_t count = 0;
  if (!in.Varint64(&count) || count > paxos::kMaxMembers) {
    return Status::Corruption("more members than a group can have");
  }
  for (uint64_t i = 0; i < count; ++i) {
    paxos::Member member;
    uint64_t node = 0;
    uint64_t incarnation = 0;
    uint64_t role = 0;
    in.Varint64(&node);
    in.Varint64(&incarnation);
    if (!in.Varint64(&role)) break;
    if (node == 0 || node > UINT32_MAX || incarnation > UINT32_MAX || role < 1 || role > 2) {
      return Status::Corruption("a member makes no sense");
    }
    member.id = {static_cast<NodeId>(node), static_cast<uint32_t>(incarnation)};
    member.role = static_cast<paxos::Role>(role);
    for (const paxos::Member& other : members) {
      if (other.id.node == member.id.node) return Status::Corruption("a node is a member twice");
    }
    members.push_back(member);
  }
  if (members.size() != count || in.remaining() != 0) {
    return Status::Corruption("the list of members is cut");
  }
  return members;
}

Entry ConfigEntry(const std::vector<paxos::Member>& members) {
  RequestContext context;
  context.kind = RequestKind::kConfig;
  context.body = EncodeMembers(members);
  Operation op;
  op.kind = OpKind::kOpaque;
  op.context = EncodeContext(context);
  Entry entry;
  entry.operations.push_back(std::move(op));
  return entry;
}

Result<paxos::EntryMeta> MetaOf(const Entry& entry, Instance instance) {
  paxos::EntryMeta meta;
  if (IsEmptyNoop(entry)) return meta;
  meta.kind = paxos::EntryKind::kCommand;
  meta.bytes = entry.PayloadPages() * kPageSize;
  meta.digest = EntryDigest(entry);
  if (entry.operations.size() == 1 && entry.operations[0].kind == OpKind::kNoop) {
    HYDRA_ASSIGN_OR_RETURN(const RequestContext context,
                           DecodeContext(AsBytes(entry.operations[0].context)));
    if (context.kind == RequestKind::kMaster) {
      return DecodeFence(AsBytes(context.body));
    }
  }
  if (entry.operations.size() == 1 && entry.operations[0].kind == OpKind::kOpaque) {
    HYDRA_ASSIGN_OR_RETURN(const RequestContext context,
                           DecodeContext(AsBytes(entry.operations[0].context)));
    if (context.kind == RequestKind::kConfig) {
      HYDRA_ASSIGN_OR_RETURN(auto members, DecodeMembers(AsBytes(context.body)));
      meta.kind = paxos::EntryKind::kConfig;
      meta.config = std::make_shared<paxos::Config>(instance, std::move(members));
    }
  }
  return meta;
}

Outcome ApplyToSessions(SessionTable* sessions, const RequestContext& request, Instance instance,
                        uint32_t index) {
  switch (request.kind) {
    case RequestKind::kNoop:
    case RequestKind::kMaster:
    case RequestKind::kConfig: return {};
    case RequestKind::kOpenSession: {
      const Result<Instance> opened = sessions->Open(instance, request.timeout);
      if (!opened.ok()) return {opened.status().code(), 0, {}};
      return {Code::kOk, MakeVersion(*opened, 0), {}};
    }
    case RequestKind::kCloseSession:
      return {sessions->Close(request.session) ? Code::kOk : Code::kNotFound, 0, {}};
    case RequestKind::kKeepAlive:
      return {
          sessions->Touch(request.session, request.lowest_unanswered) ? Code::kOk : Code::kNotFound,
          0,
          {}};
    case RequestKind::kCancel: {
      const CancelVerdict verdict =
          sessions->Cancel(request.session, request.seq, request.lowest_unanswered);
      switch (verdict.result) {
        case CancelResult::kCancelled: return {Code::kOk, 0, {}};
        case CancelResult::kExecuted: return {Code::kAlreadyExists, verdict.first->version, {}};
        case CancelResult::kExpired: return {Code::kNotFound, 0, {}};
        case CancelResult::kForgotten: return {Code::kOutOfRange, 0, {}};
        case CancelResult::kWindowFull: return {Code::kBusy, 0, {}};
      }
      return {};
    }
    case RequestKind::kFence:
      return {sessions->SetFence(request.epoch) ? Code::kOk : Code::kFailedPrecondition, 0, {}};
    case RequestKind::kWrite:
    case RequestKind::kZero:
    case RequestKind::kUnmap:
    case RequestKind::kZeroExtents:
    case RequestKind::kCompareAndWrite: break;
  }
  Outcome outcome = OutcomeOf(request, instance, index);
  const Verdict verdict = sessions->Begin(request.id());
  switch (verdict.decision) {
    case Decision::kExecute: sessions->Finish(request.session, request.seq, outcome); break;
    case Decision::kRepeat: return *verdict.first;
    case Decision::kExpired:
    case Decision::kForgotten:
    case Decision::kCancelled:
    case Decision::kFenced:
    case Decision::kWindowFull:
      // The master asked the same table before it proposed, but one that was ahead by entries which
      // were lost with its mastership. The blocks are written by now, on every replica.
      HYDRA_PROBE("session: decided upon an entry that was lost");
      sessions->Keep(request.session, request.seq, outcome);
      break;
  }
  return outcome;
}

Result<std::vector<Outcome>> GroupState::Apply(Instance instance, const Entry& entry) {
  std::vector<Outcome> outcomes;
  Digester chain;
  chain.Add(chain_);
  chain.Add(instance);
  if (!IsEmptyNoop(entry)) {
    chain.Add(EntryDigest(entry));
    HYDRA_ASSIGN_OR_RETURN(const DecodedEntry decoded, DecodeEntry(entry));
    sessions_.Advance(decoded.interval);
    outcomes.reserve(decoded.requests.size());
    for (size_t i = 0; i < decoded.requests.size(); ++i) {
      const RequestContext& request = decoded.requests[i];
      if (request.kind == RequestKind::kConfig) {
        HYDRA_ASSIGN_OR_RETURN(auto members, DecodeMembers(AsBytes(request.body)));
        config_ = paxos::Config(instance, std::move(members));
      }
      if (request.kind == RequestKind::kMaster) {
        HYDRA_ASSIGN_OR_RETURN(const paxos::EntryMeta meta, DecodeFence(AsBytes(request.body)));
        fence_ = std::max(fence_, meta.fence);
      }
      outcomes.push_back(ApplyToSessions(&sessions_, request, instance, static_cast<uint32_t>(i)));
    }
  }
  chain_ = chain.value();
  return outcomes;
}

uint64_t GroupState::Digest() const {
  const std::string bytes = Encode();
  Digester digester;
  digester.Add(AsBytes(bytes));
  return digester.value();
}

std::string GroupState::Encode() const {
  std::string out;
  out.push_back(static_cast<char>(kStateVersion));
  PutVarint64(&out, config_.instance());
  const std::string members = EncodeMembers(config_.members());
  PutVarint64(&out, members.size());
  out += members;
  PutVarint64(&out, fence_.round);
  PutVarint64(&out, fence_.node);
  PutFixed64(&out, chain_);
  out += sessions_.Encode();
  return out;
}

Result<GroupState> GroupState::Decode(std::span<const uint8_t> bytes) {
  if (bytes.empty() || bytes[0] != kStateVersion) {
    return Status::Unsupported("the group's state is of another version: upgrade this node");
  }
  Decoder in(bytes.subspan(1));
  GroupState state;
  Instance instance = 0;
  uint64_t length = 0;
  std::span<const uint8_t> part;
  in.Varint64(&instance);
  in.Varint64(&length);
  if (!in.Bytes(length, &part)) return Status::Corruption("the group's state is cut");
  HYDRA_ASSIGN_OR_RETURN(auto members, DecodeMembers(part));
  state.config_ = paxos::Config(instance, std::move(members));
  in.Varint64(&state.fence_.round);
  in.Varint32(&state.fence_.node);
  in.Fixed64(&state.chain_);
  if (!in.Bytes(in.remaining(), &part)) return Status::Corruption("the group's state is cut");
  HYDRA_ASSIGN_OR_RETURN(state.sessions_, SessionTable::Decode(part));
  return state;
}

}  // namespace hydra
