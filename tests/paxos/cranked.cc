// SPDX-License-Identifier: Apache-2.0
#include "tests/paxos/cranked.h"

#include <algorithm>
#include <functional>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/check.h"

namespace hydra::paxos::test {
namespace {

constexpr GroupId kGroup = 7;

uint64_t Hash(std::string_view text) {
  uint64_t hash = 14695981039346656037ull;  // FNV-1a
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  return hash | 1;
}

// The entry as the oracle compares it and Log prints it.
std::string Name(const EntryMeta& meta, const Body& body) {
  switch (meta.kind) {
    case EntryKind::kNoop: return "n";
    case EntryKind::kCommand:
      return body ? *std::static_pointer_cast<const std::string>(body) : "?";
    case EntryKind::kConfig: break;
  }
  std::string text = "{";
  for (const Member& member : meta.config->members()) {
    if (text.size() > 1) text += ' ';
    text += fmt::format("{}{}", member.id.node, member.role == Role::kLearner ? "l" : "");
  }
  return text + "}";
}

}  // namespace

std::string Lines(std::string_view text) {
  std::string lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    while (!line.empty() && line.front() == ' ') line.remove_prefix(1);
    while (!line.empty() && line.back() == ' ') line.remove_suffix(1);
    if (!line.empty()) lines.append(line).append("\n");
  }
  return lines;
}

Cluster::Cluster(const Options& options) : options_(options) {
  nodes_.resize(options.nodes);
  std::vector<Member> members;
  for (int i = 0; i < options.nodes; ++i) {
    nodes_[i].id = {static_cast<NodeId>(i + 1), 1};
    nodes_[i].now = kSecond;
    const int voters = options.voters == 0 ? options.nodes : options.voters;
    if (i < voters) members.push_back({nodes_[i].id, Role::kVoter});
  }
  for (Node& node : nodes_) {
    node.disk.checkpoint.config = Config(0, members);
    Start(node, 0);
  }
  // Everyone has heard from everyone, as in a group that is up.
  for (int i = 1; i <= options.nodes; ++i) Tick(i);
  if (options.heartbeats) return;
  while (!heartbeats_.empty()) DeliverHeartbeats();
}

Cluster::~Cluster() { EXPECT_EQ(violation_, ""); }

void Cluster::Fail(const Node& node, std::string what) {
  if (violation_.empty()) violation_ = fmt::format("node {}: {}", node.id.node, what);
}

// --- Driving one replica
// --------------------------------------------------------------------------

template <typename Input>
void Cluster::Do(Node& node, Input input) {
  if (node.replica == nullptr) return;
  const Invariants::Snapshot before = Invariants::Take(*node.replica);
  input(*node.replica);
  if (const std::string broken = Invariants::Step(before, *node.replica); !broken.empty()) {
    Fail(node, broken);
  }
  if (!options_.quick || ++inputs_ % 16 == 0) {
    if (const std::string broken = Invariants::State(*node.replica); !broken.empty()) {
      Fail(node, broken);
    }
  }
  Drain(node);
}

void Cluster::Drain(Node& node) {
  Output output;
  node.replica->TakeOutput(&output);
  if (!output.empty()) TakeIn(node, output);
}

void Cluster::TakeIn(Node& node, Output& output) {
  if (output.install_begun) {
    node.disk.installing = true;
    node.disk.cursor.clear();
  }
  if (output.removed) node.removed = true;
  for (Append& append : output.appends) {
    if (append.kind == Append::Kind::kAccept) {
      Record& record = node.log[append.instance];
      if (append.ballot < record.ballot) Fail(node, "an accept record of a lower ballot");
      record = {append.ballot, append.meta, append.body, false};
    }
    node.unflushed.push_back(std::move(append));
  }
  // Said now: only what was flushed before counts.
  for (Message& message : output.messages) {
    CheckSaid(node, message);
    messages_.push_back(std::move(message));
  }
  for (const Chosen& chosen : output.chosen) Learn(node, chosen);
  for (const ReadAnswer& answer : output.reads) {
    if (answers_.contains(answer.id))
      Fail(node, fmt::format("read {} is answered twice", answer.id));
    answers_[answer.id] = answer.ok ? fmt::format("at {}", answer.instance) : "no";
    if (answer.ok && answer.instance < read_floor_[answer.id]) {
      Fail(node, fmt::format("read {} is stale: at {}, but {} was chosen when it was asked",
                             answer.id, answer.instance, read_floor_[answer.id]));
    }
  }
  for (const ServeCatchUp& serve : output.catch_ups) Serve(node, serve);
  for (const ServeInstall& serve : output.installs) Serve(node, serve);
  for (const ServeBody& serve : output.bodies) node.bodies.push_back(serve);
  if (output.piece) node.piece = output.piece->chunk;
  const int index = static_cast<int>(node.id.node);
  if (options_.apply) Apply(index);
  if (options_.flush) Flush(index);
  if (options_.bodies) {
    LoadBodies(index);
    StorePiece(index);
  }
}

// Durable before said: the disk holds whatever the message asserts.
void Cluster::CheckSaid(const Node& node, const Message& message) {
  const auto promised = [&](const Ballot& ballot) {
    if (node.disk.promised < ballot) Fail(node, "not durable, but said: " + Describe(message));
  };
  const auto accepted = [&](Instance instance, const Ballot& ballot) {
    // A later ballot may have replaced it by now, or the log have been cut.
    const auto found = node.disk.log.find(instance);
    if (instance <= node.disk.truncated) return;
    if (found == node.disk.log.end() || found->second.ballot < ballot) {
      Fail(node, fmt::format("{} is not durable, but said: {}", instance, Describe(message)));
    }
  };
  if (const auto* prepare = std::get_if<Prepare>(&message.body)) promised(prepare->ballot);
  if (const auto* reply = std::get_if<BeatReply>(&message.body)) promised(reply->ballot);
  if (const auto* promise = std::get_if<Promise>(&message.body)) {
    promised(promise->ballot);
    for (const PromisedEntry& entry : promise->entries) accepted(entry.instance, entry.ballot);
  }
  if (const auto* said = std::get_if<Accepted>(&message.body)) {
    promised(said->ballot);
    for (const InstanceRange& range : said->ranges) {
      // What is known as chosen depends on this acceptance no more.
      for (Instance i = std::max(range.from, node.replica->commit() + 1); i <= range.to; ++i) {
        accepted(i, said->ballot);
      }
    }
  }
}

void Cluster::Learn(Node& node, const Chosen& chosen) {
  const auto local = node.log.find(chosen.instance);
  if (local == node.log.end() || local->second.ballot != chosen.ballot ||
      local->second.meta.digest != chosen.meta.digest) {
    Fail(node, fmt::format("chosen {} is not in the local log", chosen.instance));
    return;
  }
  const std::string name = Name(chosen.meta, local->second.body);
  const auto [known, fresh] = oracle_.emplace(chosen.instance, name);
  if (!fresh && known->second != name) {
    Fail(node, fmt::format("disagreement at {}: {} here, {} elsewhere", chosen.instance, name,
                           known->second));
  }
  node.unapplied.push_back(chosen);
}

void Cluster::ApplyOne(Node& node, const Chosen& chosen) {
  if (chosen.instance != node.state.applied + 1) {
    Fail(node, fmt::format("{} applied after {}", chosen.instance, node.state.applied));
    return;
  }
  node.state.applied = chosen.instance;
  node.state.log.push_back(Name(chosen.meta, node.log[chosen.instance].body));
  if (chosen.meta.kind == EntryKind::kConfig) node.state.config = *chosen.meta.config;
  node.replica->Applied(chosen.instance);
}

void Cluster::Apply(int index) {
  Node& node = At(index);
  const std::vector<Chosen> chosen = std::exchange(node.unapplied, {});
  for (const Chosen& entry : chosen) {
    // An install may have brought it meanwhile.
    if (entry.instance <= node.state.applied) continue;
    ApplyOne(node, entry);
  }
}

void Cluster::Persist(Node& node, const Append& append) {
  node.disk.promised = std::max(node.disk.promised, append.ballot);
  if (append.kind != Append::Kind::kAccept) return;
  node.disk.log[append.instance] = {append.ballot, append.meta, append.body, false};
}

void Cluster::Flush(int index) {
  Node& node = At(index);
  if (node.unflushed.empty()) return;
  for (const Append& append : node.unflushed) Persist(node, append);
  const uint64_t token = node.unflushed.back().token;
  node.unflushed.clear();
  Do(node, [&](Replica& r) { r.Persisted(token, node.now); });
}

void Cluster::FlushOne(int index) {
  Node& node = At(index);
  if (node.unflushed.empty()) return;
  const Append append = node.unflushed.front();
  node.unflushed.erase(node.unflushed.begin());
  Persist(node, append);
  Do(node, [&](Replica& r) { r.Persisted(append.token, node.now); });
}

// --- What the owner of a replica does for its peers
// -----------------------------------------------

void Cluster::Reply(const Node& node, const MemberId& to, MessageBody body) {
  messages_.push_back({kGroup, node.id, to, node.leases->boot(), std::move(body)});
}

void Cluster::Serve(Node& node, const ServeCatchUp& serve) {
  CatchUpReply reply;
  reply.from = serve.request.from;
  reply.commit = serve.commit;
  if (serve.request.from <= node.disk.truncated) {
    reply.truncated = node.disk.truncated;
    Reply(node, serve.to, std::move(reply));
    return;
  }
  for (size_t i = 0; i < serve.request.held.size(); ++i) {
    const Instance instance = serve.request.from + i;
    const auto found = node.log.find(instance);
    if (instance > serve.commit || found == node.log.end() || found->second.faulty) break;
    const Record& record = found->second;
    const CatchUp::Held& held = serve.request.held[i];
    const bool same = held.any && held.digest == record.meta.digest;
    reply.entries.push_back(
        {instance, record.ballot, record.meta, same, same ? nullptr : record.body});
  }
  Reply(node, serve.to, std::move(reply));
}

void Cluster::Serve(Node& node, const ServeBody& serve) {
  const FetchBody& request = serve.request;
  const auto found = node.log.find(request.instance);
  const bool has = found != node.log.end() && !found->second.faulty &&
                   found->second.meta.digest == request.digest;
  const Body body = has ? found->second.body : nullptr;
  if (serve.to == node.id) {
    Do(node, [&](Replica& r) { r.BodyLoaded(request.instance, request.ballot, body, node.now); });
    return;
  }
  Reply(node, serve.to, FetchedBody{request.instance, request.ballot, request.digest, has, body});
}

// Three pieces: two that say nothing, and the image.
void Cluster::Serve(Node& node, const ServeInstall& serve) {
  const std::string& cursor = serve.request.cursor;
  InstallChunk chunk;
  chunk.transfer = serve.request.transfer;
  chunk.cursor = cursor;
  chunk.next = cursor.empty() ? "one" : cursor == "one" ? "two" : "";
  chunk.as_of = node.state.applied;
  chunk.done = chunk.next.empty();
  chunk.body = std::make_shared<Image>(Image{node.state});
  Reply(node, serve.to, std::move(chunk));
}

void Cluster::LoadBodies(int index) {
  Node& node = At(index);
  for (const ServeBody& serve : std::exchange(node.bodies, {})) Serve(node, serve);
}

void Cluster::StorePiece(int index) {
  Node& node = At(index);
  if (!node.piece) return;
  const InstallChunk chunk = *std::exchange(node.piece, std::nullopt);
  if (!chunk.done) {
    node.disk.cursor = chunk.next;
    Do(node, [&](Replica& r) { r.InstallProgress(chunk.next, node.now); });
    return;
  }
  const auto image = std::static_pointer_cast<const Image>(chunk.body);
  node.disk.installing = false;
  node.disk.cursor.clear();
  if (image->state.applied >= node.state.applied) node.state = image->state;
  node.disk.checkpoint = node.state;
  node.disk.truncated = node.state.applied;
  node.disk.log.erase(node.disk.log.begin(), node.disk.log.upper_bound(node.state.applied));
  node.log.erase(node.log.begin(), node.log.upper_bound(node.state.applied));
  Do(node, [&](Replica& r) { r.Installed(node.state.applied, node.state.config, {}, node.now); });
}

// --- Nodes
// ----------------------------------------------------------------------------------------

void Cluster::Start(Node& node, Nanos quiet) {
  ++node.starts;
  node.removed = false;
  node.state = node.disk.checkpoint;
  node.log = node.disk.log;
  LeaseTable::Options lease = options_.lease;
  lease.node = node.id.node;
  lease.boot = ++boots_;
  lease.quiet_until = quiet;
  node.leases = std::make_unique<LeaseTable>(lease);
  std::vector<NodeId> peers;
  for (const Node& other : nodes_) {
    if (other.id.node != node.id.node) peers.push_back(other.id.node);
  }
  node.leases->SetPeers(peers, node.now);

  ReplicaOptions options = options_.replica;
  options.group = kGroup;
  options.self = node.id;
  options.seed = options_.seed * 1000 + node.id.node * 100 + node.starts;
  RecoveredState recovered;
  recovered.promised = node.disk.promised;
  recovered.applied = node.state.applied;
  recovered.config = node.state.config;
  recovered.suspect = node.disk.suspect;
  recovered.installing = node.disk.installing;
  recovered.install_cursor = node.disk.cursor;
  for (const auto& [instance, record] : node.disk.log) {
    if (instance <= node.state.applied) continue;
    recovered.entries.push_back({instance, record.ballot, record.meta, record.faulty});
  }
  node.replica = std::make_unique<Replica>(options, recovered, node.leases.get(), node.now);
  Drain(node);
}

void Cluster::Crash(int index) {
  Node& node = At(index);
  node.replica.reset();
  node.leases.reset();
  node.unflushed.clear();
  node.unapplied.clear();
  node.bodies.clear();
  node.piece.reset();
}

void Cluster::Restart(int index) {
  Crash(index);
  Node& node = At(index);
  Start(node, node.now + options_.lease.lease);
}

void Cluster::Wipe(int index, uint32_t incarnation) {
  Crash(index);
  Node& node = At(index);
  const Config first = nodes_[0].disk.checkpoint.config;
  node.disk = {};
  node.disk.checkpoint.config = first;
  node.id.incarnation = incarnation;
}

void Cluster::Rot(int index, Instance instance) { At(index).disk.log.at(instance).faulty = true; }

void Cluster::Checkpoint(int index) { At(index).disk.checkpoint = At(index).state; }

void Cluster::Truncate(int index, Instance up_to) {
  Node& node = At(index);
  Checkpoint(index);
  HYDRA_CHECK(up_to <= node.state.applied);
  node.disk.truncated = up_to;
  node.disk.log.erase(node.disk.log.begin(), node.disk.log.upper_bound(up_to));
  node.log.erase(node.log.begin(), node.log.upper_bound(up_to));
}

void Cluster::Campaign(int index) {
  Node& node = At(index);
  Do(node, [&](Replica& r) { r.Campaign(node.now); });
}

void Cluster::Elect(int index) {
  Campaign(index);
  Settle();
  ASSERT_TRUE(At(index).replica->serving()) << "node " << index << " was not elected";
}

Result<Instance> Cluster::Propose(int index, std::string_view entry, uint32_t bytes) {
  Node& node = At(index);
  Result<Instance> result = Status::Unavailable("down");
  Do(node, [&](Replica& r) {
    result = r.Propose({EntryKind::kCommand, bytes, Hash(entry), nullptr},
                       std::make_shared<const std::string>(entry), node.now);
  });
  return result;
}

Status Cluster::Reconfigure(int index, const std::vector<Member>& members) {
  Node& node = At(index);
  std::string name;
  for (const Member& member : members) {
    name += fmt::format("{}.{}.{} ", member.id.node, member.id.incarnation,
                        static_cast<int>(member.role));
  }
  Status status = Status::Unavailable("down");
  Do(node, [&](Replica& r) {
    status =
        r.ProposeConfig(members, Hash(name), std::make_shared<const std::string>(name), node.now);
  });
  return status;
}

Status Cluster::HandOver(int index, int to) {
  Node& node = At(index);
  Status status = Status::Unavailable("down");
  Do(node, [&](Replica& r) { status = r.HandOver(Id(to), node.now); });
  return status;
}

void Cluster::Resign(int index) {
  Node& node = At(index);
  Do(node, [&](Replica& r) { r.Resign(node.now); });
}

uint64_t Cluster::Read(int index) {
  const uint64_t id = next_read_++;
  Node& node = At(index);
  // All that anyone knows as chosen was acknowledged, or might have been.
  read_floor_[id] = oracle_.empty() ? 0 : oracle_.rbegin()->first;
  Do(node, [&](Replica& r) { r.Read(id, node.now); });
  return id;
}

std::string Cluster::Answer(uint64_t id) const {
  const auto found = answers_.find(id);
  return found == answers_.end() ? "" : found->second;
}

std::string Cluster::Log(int index) const {
  std::string text;
  for (const std::string& entry : At(index).state.log) {
    if (!text.empty()) text += ' ';
    text += entry;
  }
  return text;
}

std::string Cluster::Summary() const {
  std::string text;
  for (const Node& node : nodes_) {
    text += fmt::format("node {}.{}: ", node.id.node, node.id.incarnation);
    if (node.replica == nullptr) {
      text += "down\n";
      continue;
    }
    const Replica& r = *node.replica;
    text += fmt::format("mode {} promised {} ballot {} applied {} commit {} last {}{}{}{}\n",
                        static_cast<int>(r.mode()), paxos::Describe(r.promised()),
                        paxos::Describe(r.ballot()), r.applied(), r.commit(), r.last(),
                        r.serving() ? " serving" : "", r.installing() ? " installing" : "",
                        node.cut ? " cut" : "");
  }
  return text;
}

int Cluster::Serving() const {
  int serving = 0;
  for (const Node& node : nodes_) {
    if (node.replica != nullptr && node.replica->serving())
      serving = static_cast<int>(node.id.node);
  }
  return serving;
}

// --- The network
// ----------------------------------------------------------------------------------

std::string Cluster::Pending() const {
  std::string text;
  for (const Message& message : messages_) text += Describe(message) + "\n";
  return text;
}

std::string Cluster::TakePending() {
  const std::string text = Pending();
  messages_.clear();
  return text;
}

std::deque<Message>::iterator Cluster::Oldest(std::string_view starts_with) {
  return std::find_if(messages_.begin(), messages_.end(), [&](const Message& message) {
    return Describe(message).starts_with(starts_with);
  });
}

bool Cluster::Has(std::string_view starts_with) const {
  return const_cast<Cluster*>(this)->Oldest(starts_with) != messages_.end();
}

Message Cluster::Copy(std::string_view starts_with) const {
  const auto found = const_cast<Cluster*>(this)->Oldest(starts_with);
  EXPECT_TRUE(found != messages_.end()) << "no message " << starts_with << " in:\n" << Pending();
  return found != messages_.end() ? *found : Message{};
}

void Cluster::Inject(Message message) { messages_.push_back(std::move(message)); }

void Cluster::DeliverMessage(Message message) {
  if (message.to.node < 1 || message.to.node > nodes_.size()) return;
  Node& to = At(static_cast<int>(message.to.node));
  if (to.cut || At(static_cast<int>(message.from.node)).cut) return;
  Do(to, [&](Replica& r) { r.Step(std::move(message), to.now); });
}

void Cluster::Deliver(std::string_view starts_with) {
  const auto found = Oldest(starts_with);
  ASSERT_TRUE(found != messages_.end()) << "no message " << starts_with << " in:\n" << Pending();
  Message message = std::move(*found);
  messages_.erase(found);
  DeliverMessage(std::move(message));
}

void Cluster::DeliverAt(size_t index) {
  Message message = std::move(messages_.at(index));
  messages_.erase(messages_.begin() + static_cast<long>(index));
  DeliverMessage(std::move(message));
}

void Cluster::DeliverHeartbeatAt(size_t index) {
  const Heartbeat heartbeat = heartbeats_.at(index);
  heartbeats_.erase(heartbeats_.begin() + static_cast<long>(index));
  StepHeartbeat(heartbeat);
}

void Cluster::DeliverAll(std::string_view starts_with) {
  std::vector<Message> now;
  for (auto it = messages_.begin(); it != messages_.end();) {
    if (!Describe(*it).starts_with(starts_with)) {
      ++it;
      continue;
    }
    now.push_back(std::move(*it));
    it = messages_.erase(it);
  }
  for (Message& message : now) DeliverMessage(std::move(message));
}

void Cluster::Drop(std::string_view starts_with) {
  std::erase_if(messages_, [&](const Message& m) { return Describe(m).starts_with(starts_with); });
}

void Cluster::Duplicate(std::string_view starts_with) { Inject(Copy(starts_with)); }

void Cluster::Settle() {
  for (int round = 0; round < 10'000; ++round) {
    for (int i = 1; i <= size(); ++i) {
      if (!up(i)) continue;
      Apply(i);
      Flush(i);
      LoadBodies(i);
      StorePiece(i);
      Drain(At(i));
    }
    if (messages_.empty()) return;
    DeliverAll();
  }
  FAIL() << "the group does not come to rest:\n" << Pending();
}

void Cluster::StepHeartbeat(const Heartbeat& heartbeat) {
  Node& to = At(static_cast<int>(heartbeat.to));
  if (to.cut || At(static_cast<int>(heartbeat.from)).cut || to.leases == nullptr) return;
  std::vector<Heartbeat> out;
  std::vector<std::pair<NodeId, Notice>> notices;
  to.leases->Step(heartbeat, to.now, &out, &notices);
  for (const auto& [from, notice] : notices) {
    if (notice.group != kGroup) continue;
    Do(to, [&](Replica& r) { r.OnNotice(from, notice, to.now); });
  }
  for (Heartbeat& answer : out) {
    // What is granted now must include what the notices just changed: answers are filled in Step,
    // before the replica saw them, as they would be by an owner.
    heartbeats_.push_back(std::move(answer));
  }
}

void Cluster::DeliverHeartbeats(int from, int to) {
  std::vector<Heartbeat> now;
  for (auto it = heartbeats_.begin(); it != heartbeats_.end();) {
    if ((from != 0 && static_cast<int>(it->from) != from) ||
        (to != 0 && static_cast<int>(it->to) != to)) {
      ++it;
      continue;
    }
    now.push_back(std::move(*it));
    it = heartbeats_.erase(it);
  }
  for (const Heartbeat& heartbeat : now) StepHeartbeat(heartbeat);
}

// --- Time
// -----------------------------------------------------------------------------------------

void Cluster::Tick(int index) {
  Node& node = At(index);
  if (node.leases == nullptr) return;
  std::vector<Heartbeat> out;
  node.leases->Tick(node.now, &out);
  for (Heartbeat& heartbeat : out) heartbeats_.push_back(std::move(heartbeat));
  if (options_.heartbeats) {
    while (!heartbeats_.empty()) DeliverHeartbeats();
  }
  Do(node, [&](Replica& r) { r.Tick(node.now); });
}

void Cluster::PassAt(int index, Nanos duration, bool tick) {
  At(index).now += duration;
  if (tick) Tick(index);
}

void Cluster::Idle(Nanos duration) {
  for (Node& node : nodes_) node.now += duration;
}

void Cluster::Pass(Nanos duration, bool settle) {
  constexpr Nanos kStep = 5 * kMs;
  for (Nanos passed = 0; passed < duration; passed += kStep) {
    for (Node& node : nodes_) node.now += std::min(kStep, duration - passed);
    for (int i = 1; i <= size(); ++i) Tick(i);
    if (settle) Settle();
  }
}

}  // namespace hydra::paxos::test
