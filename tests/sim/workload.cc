// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/workload.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "base/check.h"
#include "base/crc32c.h"
#include "blockstore/batch_format.h"

namespace hydra::sim {
namespace {

constexpr unsigned kLoyalGiveUpPercent = 70;
constexpr uint64_t kSplitBlocks = 2;
constexpr size_t kHalf = kPageSize / 2;

// A block that holds a value: the value in every word, mixed with where it belongs.
void Fill(std::span<uint8_t> block, Block where, Value value) {
  for (size_t i = 0; i < block.size(); i += sizeof(uint64_t)) {
    const uint64_t word = value == kAbsent ? 0 : value * 0x9e3779b97f4a7c15 + where + i;
    std::memcpy(block.data() + i, &word, sizeof(word));
  }
}

// False: not a block that anyone wrote here.
bool Recognise(std::span<const uint8_t> block, Block where, Value* value) {
  uint64_t first = 0;
  std::memcpy(&first, block.data(), sizeof(first));
  *value = kAbsent;
  if (first != 0) {
    // The inverse of the odd factor modulo 2^64.
    constexpr uint64_t kInverse = 0xf1de83e19937733d;
    static_assert(0x9e3779b97f4a7c15 * kInverse == 1);
    *value = (first - where) * kInverse;
    if (*value == kAbsent) return false;
  }
  std::vector<uint8_t> expected(block.size());
  Fill(expected, where, *value);
  return std::memcmp(expected.data(), block.data(), block.size()) == 0;
}

}  // namespace

Workload::Workload(Scheduler* scheduler, Cluster* cluster, const Options& options, uint64_t seed)
    : scheduler_(scheduler), cluster_(cluster), options_(options), rng_(seed) {
  for (unsigned i = 0; i < options.clients; ++i) {
    clients_.push_back(std::make_unique<Client>());
    clients_.back()->id = i + 1;
    clients_.back()->reader = options.readers && i % 3 == 1;
  }
}

void Workload::Start() {
  for (auto& client : clients_) {
    for (unsigned i = 0; i < options_.depth; ++i) Think(client.get());
  }
}

void Workload::SetReliable() { reliable_ = true; }

NodeId Workload::AnyNode() {
  const auto& nodes = cluster_->nodes();
  return nodes[rng_.Below(nodes.size())];
}

NodeId Workload::AnotherNode(const Operation& operation) {
  const NodeId node = AnyNode();
  return node == operation.asked ? AnyNode() : node;
}

// --- Asking
// ---------------------------------------------------------------------------------------

void Workload::Think(Client* client) {
  const Nanos think = client->reader ? options_.think / 2 : options_.think;
  const Nanos delay = static_cast<Nanos>(rng_.Below(static_cast<uint64_t>(2 * think) + 1));
  scheduler_->After(delay, {"client", 0, client->id}, [this, client] { Issue(client); });
}

void Workload::Issue(Client* client) {
  if (!issuing_) return;
  const auto& groups = cluster_->groups();
  const GroupId group = groups[rng_.Below(groups.size())];
  Session& session = client->sessions[group];
  const unsigned dice = static_cast<unsigned>(rng_.Below(100));
  const bool mutation = dice < 55 && !client->reader;
  if (mutation && session.id == 0) {
    if (!session.opening) {
      OpenSession(client, group);
    } else {
      Think(client);
    }
    return;
  }
  auto operation = std::make_unique<Operation>();
  operation->key = next_id_++;
  operation->client = client;
  operation->group = group;
  if (mutation) {
    MakeMutation(operation.get());
  } else {
    MakeRead(operation.get());
  }
  const uint64_t key = operation->key;
  operations_.emplace(key, std::move(operation));
  Send(key);
}

void Workload::OpenSession(Client* client, GroupId group) {
  client->sessions[group].opening = true;
  auto operation = std::make_unique<Operation>();
  operation->key = next_id_++;
  operation->client = client;
  operation->group = group;
  operation->opens_session = true;
  operation->request.context.kind = RequestKind::kOpenSession;
  operation->request.context.timeout = options_.session_timeout;
  operation->request.op.kind = ::hydra::OpKind::kOpaque;
  const uint64_t key = operation->key;
  operations_.emplace(key, std::move(operation));
  Send(key);
}

void Workload::BeginMutation(Operation* operation) {
  Session& session = operation->client->sessions[operation->group];
  ShardRequest& request = operation->request;
  request.context.session = session.id;
  request.context.seq = session.next_seq++;
  request.context.epoch = options_.epoch;
  session.unanswered.insert(request.context.seq);
  if (rng_.Percent(50)) request.seen = session.seen;
}

void Workload::MakePartOfBlock(Operation* operation) {
  BeginMutation(operation);
  ShardRequest& request = operation->request;
  const uint64_t half = rng_.Below(2);
  request.op.kind = ::hydra::OpKind::kWrite;
  request.op.block_pages = 1;
  request.op.lba = options_.blocks + rng_.Below(kSplitBlocks);
  request.op.count = 1;
  request.part_offset = static_cast<uint32_t>(half * kHalf);
  request.part_bytes = kHalf;
  const bool compare = rng_.Percent(30);
  Access access;
  access.block = HalfOf(operation->group, request.op.lba, half);
  access.value = history_.NewValue();
  if (compare && rng_.Percent(60) && access.value > 1) access.expected = rng_.Below(access.value);
  operation->values.push_back(access.value);
  const Buffer data = Buffer::Allocate(kPageSize);
  Fill(data.span().first(kHalf), access.block, access.value);
  request.payload.push_back(BufferSlice{data, 0, kHalf});
  if (compare) {
    const Buffer expected = Buffer::Allocate(kPageSize);
    Fill(expected.span().first(kHalf), access.block, access.expected);
    request.context.kind = RequestKind::kCompareAndWrite;
    request.compare = BufferSlice{expected, 0, kHalf};
    operation->op = history_.CompareAndWrite(operation->client->id, {access}, scheduler_->now());
  } else {
    request.context.kind = RequestKind::kWrite;
    operation->op = history_.Write(operation->client->id, {access}, scheduler_->now());
  }
}

void Workload::MakeMutation(Operation* operation) {
  if (rng_.Percent(10)) return MakePartOfBlock(operation);
  BeginMutation(operation);
  ShardRequest& request = operation->request;
  const Nanos now = scheduler_->now();
  const uint64_t count = rng_.Percent(70) ? 1 : rng_.Between(2, 4);
  const Lba lba = rng_.Below(options_.blocks - count + 1);
  request.op.lba = lba;
  request.op.count = count;
  std::vector<Access> accesses;
  const unsigned dice = static_cast<unsigned>(rng_.Below(100));
  const bool compare = dice >= 85;
  const bool write = dice < 65 || compare;
  Buffer data = Buffer::Allocate(count * kPageSize);
  Buffer expected = Buffer::Allocate(count * kPageSize);
  for (uint64_t i = 0; i < count; ++i) {
    Access access;
    access.block = BlockOf(operation->group, lba + i);
    if (write) access.value = history_.NewValue();
    if (compare && rng_.Percent(60) && access.value > 1) access.expected = rng_.Below(access.value);
    Fill(data.span().subspan(i * kPageSize, kPageSize), access.block, access.value);
    Fill(expected.span().subspan(i * kPageSize, kPageSize), access.block, access.expected);
    operation->values.push_back(access.value);
    accesses.push_back(access);
  }
  if (write) {
    request.op.kind = ::hydra::OpKind::kWrite;
    request.op.block_pages = 1;
    for (uint64_t i = 0; i < count; ++i) {
      request.op.crcs.push_back(Crc32c(data.span().subspan(i * kPageSize, kPageSize)));
    }
    request.payload.push_back(BufferSlice{data, 0, data.size()});
  }
  if (compare) {
    request.context.kind = RequestKind::kCompareAndWrite;
    request.compare = BufferSlice{expected, 0, expected.size()};
    operation->op = history_.CompareAndWrite(operation->client->id, accesses, now);
  } else if (write) {
    request.context.kind = RequestKind::kWrite;
    operation->op = history_.Write(operation->client->id, accesses, now);
  } else {
    const bool zero = rng_.Percent(50);
    request.context.kind = zero ? RequestKind::kZero : RequestKind::kUnmap;
    request.op.kind = zero ? ::hydra::OpKind::kZero : ::hydra::OpKind::kUnmap;
    operation->op = history_.Write(operation->client->id, accesses, now);
  }
}

void Workload::MakeRead(Operation* operation) {
  ShardRequest& request = operation->request;
  request.kind = ShardRequest::Kind::kRead;
  if (rng_.Percent(10)) {
    request.count = 1;
    request.lba = options_.blocks + rng_.Below(kSplitBlocks);
    operation->op = history_.Read(
        operation->client->id,
        {HalfOf(operation->group, request.lba, 0), HalfOf(operation->group, request.lba, 1)},
        scheduler_->now());
    return;
  }
  request.count = rng_.Percent(70) ? 1 : rng_.Between(2, 4);
  request.lba = rng_.Below(options_.blocks - request.count + 1);
  if (rng_.Percent(20)) {
    request.kind = ShardRequest::Kind::kReadLocal;
    operation->local = true;
    operation->local_node = AnyNode();
    return;
  }
  std::vector<Block> blocks;
  for (uint64_t i = 0; i < request.count; ++i) {
    blocks.push_back(BlockOf(operation->group, request.lba + i));
  }
  operation->op = history_.Read(operation->client->id, blocks, scheduler_->now());
}

void Workload::Send(uint64_t key) {
  const auto found = operations_.find(key);
  if (found == operations_.end()) return;
  Operation* operation = found->second.get();
  ++operation->attempts;
  NodeId target = operation->target;
  if (target == 0) target = operation->client->masters[operation->group];
  // A follower can serve a linearizable read as well.
  const bool anywhere = operation->request.kind == ShardRequest::Kind::kRead &&
                        rng_.Percent(IsLoyal(*operation) ? 3 : 20);
  if (target == 0 || anywhere) {
    target = AnyNode();
  }
  if (operation->local) target = operation->local_node;
  if (!operation->opens_session && operation->request.kind == ShardRequest::Kind::kMutate) {
    const Session& session = operation->client->sessions[operation->group];
    // Of a session that was replaced meanwhile, everything below the request is answered.
    operation->request.context.lowest_unanswered =
        session.id == operation->request.context.session && !session.unanswered.empty()
            ? *session.unanswered.begin()
            : operation->request.context.seq;
  }
  const unsigned copies = !reliable_ && rng_.Percent(options_.twice_percent) ? 2 : 1;
  for (unsigned i = 0; i < copies; ++i) {
    const uint64_t id = next_id_++;
    attempts_[id] = key;
    ShardRequest request = operation->request;
    request.id = id;
    if (request.kind == ShardRequest::Kind::kMutate && !operation->opens_session) {
      seen_attempts_[id] = {operation->group, request.op.lba, request.op.count, request.seen};
    }
    if (!reliable_ && rng_.Percent(options_.loss_percent)) continue;
    // A second copy may come very late.
    Nanos delay = static_cast<Nanos>(rng_.Between(50, 2000)) * 1000;
    if (i > 0) {
      delay = static_cast<Nanos>(rng_.Below(static_cast<uint64_t>(3 * kSecond)));
      operation->maybe = true;
    }
    auto shared = std::make_shared<ShardRequest>(std::move(request));
    const GroupId group = operation->group;
    scheduler_->After(delay, {"request", target, id}, [this, target, group, shared] {
      if (cluster_->alive(target)) cluster_->Submit(target, group, std::move(*shared));
    });
  }
  operation->target = 0;
  operation->asked = target;
  operation->timer =
      scheduler_->After(options_.patience, {"patience", 0, key}, [this, key] { TimedOut(key); });
}

void Workload::Retry(Operation* operation, NodeId hint, Nanos delay) {
  scheduler_->Cancel(operation->timer);
  operation->target = hint;
  const uint64_t key = operation->key;
  operation->timer = scheduler_->After(delay, {"again", 0, key}, [this, key] { Send(key); });
}

void Workload::TimedOut(uint64_t key) {
  Operation* operation = operations_.at(key).get();
  operation->maybe = true;
  operation->silent = operation->asked;
  const bool loyal = IsLoyal(*operation);
  const bool give_up =
      operation->local ||
      (!reliable_ && rng_.Percent(loyal ? kLoyalGiveUpPercent : options_.give_up_percent)) ||
      (operation->opens_session && !issuing_);
  if (!give_up) {
    const NodeId master = operation->client->masters[operation->group];
    Retry(operation, loyal && master != 0 ? master : AnotherNode(*operation), 0);
    return;
  }
  if (operation->opens_session) {
    operation->client->sessions[operation->group].opening = false;
  } else if (!operation->local) {
    history_.Unknown(operation->op, scheduler_->now());
  }
  Finish(operation);
}

// --- Answers
// --------------------------------------------------------------------------------------

void Workload::OnReply(NodeId from, const ShardReply& reply, std::optional<Instance> as_of) {
  if (as_of && reply.data) NoteLocal(from, reply, *as_of);
  if (!reliable_ && rng_.Percent(options_.loss_percent)) return;
  const Nanos delay = static_cast<Nanos>(rng_.Between(50, 2000)) * 1000;
  auto shared = std::make_shared<ShardReply>(reply);
  scheduler_->After(delay, {"reply", from, reply.id, static_cast<uint64_t>(reply.answer)},
                    [this, from, shared] { Handle(shared->id, from, *shared); });
}

void Workload::Handle(uint64_t id, NodeId from, const ShardReply& reply) {
  const auto attempt = attempts_.find(id);
  if (attempt == attempts_.end()) return;
  const auto knew = seen_attempts_.find(id);
  if (knew != seen_attempts_.end() && reply.answer == ShardAnswer::kDone &&
      reply.outcome.version != 0) {
    for (uint64_t i = 0; i < knew->second.count; ++i) {
      writes_[BlockOf(knew->second.group, knew->second.lba + i)].push_back(
          {reply.outcome.version, knew->second.seen});
    }
    seen_attempts_.erase(knew);
  }
  const auto found = operations_.find(attempt->second);
  if (found == operations_.end()) return;
  Operation* operation = found->second.get();
  const Nanos now = scheduler_->now();
  Session& session = operation->client->sessions[operation->group];
  session.seen = std::max(session.seen, reply.commit);
  switch (reply.answer) {
    case ShardAnswer::kDone: HandleDone(operation, from, reply); return;
    case ShardAnswer::kNotMaster:
    case ShardAnswer::kBusy:
    case ShardAnswer::kNoSpace:
    case ShardAnswer::kDamaged:
      if (operation->local) {
        Finish(operation);
        return;
      }
      Redirect(operation, reply.master);
      return;
    case ShardAnswer::kUnknown:
      operation->maybe = true;
      Retry(operation, AnyNode(), static_cast<Nanos>(rng_.Between(1, 50)) * kMillisecond);
      return;
    case ShardAnswer::kStale:
      // Certain of this copy only: another master may take another, whose blocks have no newer
      // version there because that was never chosen.
      if (operation->maybe) {
        history_.Unknown(operation->op, now);
      } else {
        history_.Refused(operation->op, now);
      }
      break;
    case ShardAnswer::kSessionExpired:
      if (operation->maybe || operation->attempts > 1) {
        history_.Unknown(operation->op, now);
      } else {
        history_.Refused(operation->op, now);
      }
      if (session.id == operation->request.context.session) {
        session = Session{};
      }
      break;
    case ShardAnswer::kForgotten:
      // A master may say that a session has expired upon entries which are lost with it. Whoever
      // goes on in the session then, with a request below others that counted as answered, is told
      // this.
      if (session.id != operation->request.context.session) {
        history_.Unknown(operation->op, now);
        break;
      }
      [[fallthrough]];
    case ShardAnswer::kCancelled:
    case ShardAnswer::kFenced:
    case ShardAnswer::kInvalid:
      Fail(fmt::format("request {} of client {} was answered {} ({})", id, operation->client->id,
                       static_cast<int>(reply.answer), reply.status.ToString()));
      return;
  }
  Finish(operation);
}

// To the master that a node named, unless that one is known for its silence.
void Workload::Redirect(Operation* operation, NodeId master) {
  if (master != 0) operation->client->masters[operation->group] = master;
  const bool follow = master != 0 && (master != operation->silent || rng_.Percent(30));
  Retry(operation, follow ? master : AnotherNode(*operation),
        static_cast<Nanos>(rng_.Between(1, options_.haste)) * kMillisecond);
}

void Workload::HandleDone(Operation* operation, NodeId from, const ShardReply& reply) {
  const Nanos now = scheduler_->now();
  Session& session = operation->client->sessions[operation->group];
  if (operation->opens_session) {
    session.opening = false;
    if (reply.outcome.code == Code::kOk) {
      const Instance seen = session.seen;
      session = Session{};
      session.seen = seen;
      session.id = VersionInstance(reply.outcome.version);
    }
  } else if (operation->local) {
    std::vector<Value> values;
    if (!Values(*operation, *reply.data, &values)) {
      Fail(fmt::format("node {} answered a local read with data that nobody wrote", from));
      return;
    }
  } else if (operation->request.kind == ShardRequest::Kind::kRead) {
    std::vector<Value> values;
    if (!Values(*operation, *reply.data, &values)) {
      Fail(fmt::format("node {} answered a read of group {} block {} with data that nobody wrote",
                       from, operation->group, operation->request.lba));
      return;
    }
    history_.ReadOk(operation->op, values, now);
  } else if (reply.outcome.code == Code::kOk) {
    history_.Ok(operation->op, now);
  } else if (reply.outcome.code == Code::kFailedPrecondition) {
    history_.Mismatch(operation->op, now);
  } else {
    Fail(fmt::format("a mutation was answered with code {}", static_cast<int>(reply.outcome.code)));
    return;
  }
  if (!operation->local) operation->client->masters[operation->group] = from;
  Finish(operation);
}

void Workload::Finish(Operation* operation) {
  ++finished_;
  scheduler_->Cancel(operation->timer);
  Client* client = operation->client;
  Session& session = client->sessions[operation->group];
  if (session.id == operation->request.context.session) {
    session.unanswered.erase(operation->request.context.seq);
  }
  operations_.erase(operation->key);
  Think(client);
}

// --- Checks
// ---------------------------------------------------------------------------------------

bool Workload::Values(const Operation& operation, const ReadResult& data, std::vector<Value>* out) {
  for (uint64_t i = 0; i < operation.request.count; ++i) {
    Value value = kAbsent;
    if (IsSplit(operation.request.lba + i)) {
      for (const uint64_t half : {0, 1}) {
        const Block block = HalfOf(operation.group, operation.request.lba + i, half);
        if (!Recognise(data.data.span().subspan(half * kHalf, kHalf), block, &value)) return false;
        out->push_back(value);
      }
      continue;
    }
    const Block block = BlockOf(operation.group, operation.request.lba + i);
    if (!Recognise(data.data.span().subspan(i * kPageSize, kPageSize), block, &value)) {
      return false;
    }
    out->push_back(value);
  }
  return true;
}

// As it leaves the node, whatever becomes of the answer.
void Workload::NoteLocal(NodeId from, const ShardReply& reply, Instance as_of) {
  const auto attempt = attempts_.find(reply.id);
  if (attempt == attempts_.end()) return;
  const auto found = operations_.find(attempt->second);
  if (found == operations_.end()) return;
  const Operation& operation = *found->second;
  LocalReads::Observation read;
  read.replica = from;
  read.session = local_reads_.size();
  read.group = operation.group;
  read.as_of = as_of;
  read.until = cluster_->shard(from, operation.group)->replica().applied();
  for (uint64_t i = 0; i < operation.request.count; ++i) {
    const BlockInfo& info = reply.data->blocks[i];
    const auto bytes = reply.data->data.span().subspan(i * kPageSize, kPageSize);
    const Value value = info.version == 0 ? kAbsent : uint64_t{Crc32c(bytes)};
    read.blocks.push_back(
        {BlockOf(operation.group, operation.request.lba + i), info.version, value});
  }
  local_reads_.push_back(std::move(read));
}

std::string Workload::CheckLocalReads() const {
  LocalReads checker;
  cluster_->TellChosen(&checker);
  for (const LocalReads::Observation& read : local_reads_) {
    // Of instances that no disk showed in time, nothing is known.
    if (read.until > checker.chosen(read.group)) continue;
    std::string wrong = checker.Observe(read);
    if (!wrong.empty()) return wrong;
  }
  return {};
}

std::string Workload::CheckSeen() const {
  for (const auto& [block, writes] : writes_) {
    for (const Write& write : writes) {
      for (const Write& other : writes) {
        const bool overtaken =
            VersionInstance(other.version) > write.seen && other.version < write.version;
        if (!overtaken) continue;
        return fmt::format(
            "group {} block {}: a write at instance {} that knew of {} overwrote the newer one at "
            "{}",
            block >> 32, block & 0xffffffff, VersionInstance(write.version), write.seen,
            VersionInstance(other.version));
      }
    }
  }
  return {};
}

std::string Workload::DescribeOpen() const {
  std::string text = fmt::format("{} operations are open:", operations_.size());
  size_t shown = 0;
  for (const auto& [key, operation] : operations_) {
    if (++shown > 5) break;
    text += fmt::format(" [client {} group {} kind {} attempts {}]", operation->client->id,
                        operation->group, static_cast<int>(operation->request.context.kind),
                        operation->attempts);
  }
  return text;
}

}  // namespace hydra::sim
