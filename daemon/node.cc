// SPDX-License-Identifier: Apache-2.0
//
// The life of a node: opening, the loop that lets everything act, stopping.
#include "daemon/node.h"

#include <sys/random.h>

#include <algorithm>
#include <chrono>

#include <boost/asio/post.hpp>
#include <fmt/format.h>

#include "base/check.h"
#include "base/logging.h"
#include "client/local_connection.h"
#include "daemon/event_loop.h"
#include "daemon/node_impl.h"

namespace hydra {
namespace {

namespace asio = boost::asio;

constexpr std::chrono::milliseconds kTick(10);
constexpr Nanos kStopPatience = 3 * kSecond;
// To each peer: one that hangs must not keep more than a small part of the memory that clients'
// requests are read into (Server::Options). The protocol repeats what does not fit.
constexpr size_t kPeerQueueBytes = 32u << 20;
// Clients that wait for one answer before they ask again are back within this; between others there
// is time to sleep.
constexpr Nanos kJustNow = 1 * kMillisecond;
// Seconds of writing at the speed of a disk.
constexpr uint64_t kIdleSpareBytes = 1ull << 30;
// Replicas apply the same writes, and would all checkpoint at the same moments: with a majority
// that is busy with it, writes take longer. So each node has intervals of its own, between three
// quarters of the usual ones and the whole. Multiples of the golden ratio keep whichever few nodes
// there are apart.
uint64_t CheckpointInterval(uint64_t usual, NodeId node) {
  constexpr uint16_t kGoldenRatio = 40'503;  // its fraction, in 1/65536
  const auto share = static_cast<uint16_t>(node * kGoldenRatio);
  return usual - ((usual / 4 * share) >> 16);
}

uint64_t RandomNumber() {
  uint64_t number = 0;
  HYDRA_CHECK(getrandom(&number, sizeof(number), 0) == sizeof(number));
  return number | 1;
}

// For whoever looks at the last line of the log of a node that ended because of its disk.
Status WithAdvice(const Status& status, NodeId node, const std::string& dir) {
  const bool disk = status.code() == Code::kPoisoned || status.code() == Code::kIoError ||
                    status.code() == Code::kCorruption;
  if (!disk) return status;
  return {status.code(),
          fmt::format("{}. What to do: look at the kernel's log (dmesg) and at the disk (smartctl "
                      "-a). If it is sound, start node {} again on {}; if not, give it an empty "
                      "directory on another disk, and say: hydractl node replace {} "
                      "(docs/operations.md, 'A disk failed')",
                      status.message(), node, dir, node)};
}

}  // namespace

// --- Node ---------------------------------------------------------------------------------------

Node::Node() : io_(std::make_unique<asio::io_context>(1)) {}
Node::~Node() = default;

Result<std::unique_ptr<Node>> Node::Open(const NodeOptions& options) {
  std::unique_ptr<Node> node(new Node);
  node->impl_ = std::make_unique<Impl>(node.get(), options);
  HYDRA_RETURN_IF_ERROR(node->impl_->Open());
  return node;
}

Status Node::Run() {
  HYDRA_RETURN_IF_ERROR(impl_->Start());
  BusyWait wait;
  wait.at_most = impl_->busy_wait();
  wait.worth = [this] { return impl_->AskedJustNow(); };
  wait.turn_ends = [this] { impl_->Act(); };
  RunLoop(io_.get(), wait);
  return impl_->Close();
}

void Node::Stop() {
  asio::post(*io_, [this] { impl_->BeginStop(); });
}

std::shared_ptr<Connection> Node::Dial(asio::io_context* caller) {
  auto [theirs, ours] = MakeLocalConnection(caller, io_.get(), &impl_->outbox());
  asio::post(*io_, [this, ours = std::move(ours)] { impl_->Accept(ours); });
  return theirs;
}

void Node::FillStatus(bool groups, rpc::NodeStatus* status) { impl_->FillStatus(groups, status); }
void Node::UpdateMetrics() { impl_->UpdateMetrics(); }
Status Node::health() { return impl_->health(); }
DrillFaults* Node::drill_faults() { return impl_->drill_faults(); }
DrillRot* Node::drill_rot() { return impl_->drill_rot(); }
const Uuid& Node::cluster() const { return impl_->cluster(); }

const rpc::Catalogue* Node::catalogue() const {
  return impl_->keeper().known() ? &impl_->keeper().catalogue() : nullptr;
}

// --- Opening ------------------------------------------------------------------------------------

Node::Impl::Impl(Node* node, const NodeOptions& options)
    : node_(node), options_(options), outbox_(node->io_.get()), tick_(*node->io_) {
  if (!options.drill) return;
  faults_ = std::make_unique<DrillFaults>(node->io_.get());
  drill_fs_ = std::make_unique<DrillFileSystem>(&fs_, faults_.get());
}

Node::Impl::~Impl() = default;

Status Node::Impl::MakeStore() {
  if (options_.cluster.IsNil()) {
    return Status::InvalidArgument("a new data directory needs --cluster-id: that of the others");
  }
  CreateOptions create;
  create.cluster = options_.cluster;
  create.node = options_.node;
  create.segment_bytes = options_.segment_bytes;
  return Engine::Create(&fs_, options_.dir, create);
}

Status Node::Impl::Open() {
  EngineOptions engine;
  engine.idle_spare_bytes = kIdleSpareBytes;
  engine.overlay_rows = CheckpointInterval(engine.overlay_rows, options_.node);
  engine.checkpoint_batches = CheckpointInterval(engine.checkpoint_batches, options_.node);
  engine.fs = &fs_;
  if (drill_fs_) engine.fs = drill_fs_.get();
  engine.dir = options_.dir;
  engine.capacity_bytes = options_.capacity_bytes;
  const std::optional<Uuid> cluster =
      options_.cluster.IsNil() ? std::nullopt : std::optional<Uuid>(options_.cluster);
  Result<std::unique_ptr<Engine>> opened = Engine::Open(engine, cluster);
  const bool missing = !opened.ok() && opened.status().code() == Code::kNotFound;
  if (missing && !options_.bootstrap && !options_.join) {
    return opened.status().WithContext(
        "no store here (--bootstrap makes one, when a cluster is formed; --join, when a node is "
        "added or replaced)");
  }
  if (missing) {
    HYDRA_RETURN_IF_ERROR(MakeStore());
    opened = Engine::Open(engine, cluster);
  }
  if (!opened.ok()) return opened.status();
  engine_ = std::move(*opened);
  const StoreIdentity& identity = engine_->identity();
  if (identity.node != options_.node) {
    return Status::FailedPrecondition(
        fmt::format("{} is the data directory of node {}, not of node {}: check --node and --dir",
                    options_.dir, identity.node, options_.node));
  }
  options_.cluster = identity.cluster;
  started_ = clock_.Now();
  options_.core.node = options_.node;
  options_.core.boot = RandomNumber();
  options_.core.seed = RandomNumber();
  options_.core.reserve_group = kSystemGroup;
  next_request_ = RandomNumber() >> 8;
  core_ = std::make_unique<NodeCore>(options_.core, engine_.get(), started_);
  HYDRA_RETURN_IF_ERROR(core_->Start(started_));
  if (core_->shard(kSystemGroup) == nullptr) HYDRA_RETURN_IF_ERROR(CreateSystemGroup());

  keeper_ = std::make_unique<CatalogueKeeper>(
      core_.get(), engine_.get(),
      CatalogueKeeper::Handlers{[this](const rpc::Catalogue& c) { OnCatalogue(c); },
                                [this](ShardRequest request) {
                                  request.id = next_request_++;
                                  const uint64_t id = request.id;
                                  core_->Submit(kSystemGroup, std::move(request), clock_.Now());
                                  Wake();
                                  return id;
                                }});
  MetricsRegistry& metrics = node_->metrics_;
  request_time_ = metrics.GetHistogram("hydra_request_seconds", "from arrival to answer",
                                       HistogramOptions::Latency(), {{"kind", "mutation"}});
  read_time_ = metrics.GetHistogram("hydra_request_seconds", "from arrival to answer",
                                    HistogramOptions::Latency(), {{"kind", "read"}});
  stages_ = std::make_unique<StageTimes>(&metrics);
  requests_ = metrics.GetCounter("hydra_requests_total", "requests of clients");
  slow_ = metrics.GetCounter("hydra_slow_requests_total", "requests that were logged as slow");
  LoadScrub();
  if (options_.drill) {
    const auto store_group = [this](GroupId group) {
      const Shard* shard = core_->shard(group);
      return shard == nullptr ? std::nullopt : std::optional<GroupId>(shard->store_group());
    };
    drill_rot_ =
        std::make_unique<DrillRot>(&fs_, engine_.get(), options_.dir, store_group, RandomNumber());
  }
  const RecoveryReport& report = engine_->recovery();
  HYDRA_LOG_INFO("node {} of cluster {} opened {}: {}", options_.node, options_.cluster.ToString(),
                 options_.dir, report.ToString());
  return Status::Ok();
}

// The same members on every node that is formed with the same list.
Status Node::Impl::CreateSystemGroup() {
  if (options_.join) {
    HYDRA_LOG_INFO(
        "node {} asks to be let in; if it is new to the cluster: hydractl node add; if "
        "its disk was lost: hydractl node replace {}",
        options_.node, options_.node);
    return Status::Ok();
  }
  if (!options_.bootstrap) {
    return Status::FailedPrecondition(
        "this store is not part of a cluster yet: start it with --join, or, when a cluster is "
        "formed, with --bootstrap");
  }
  std::vector<NodeId> nodes;
  for (const auto& [id, address] : options_.peers) nodes.push_back(id);
  const std::vector<NodeId> voters = SystemVoters(nodes);
  std::vector<paxos::Member> members;
  for (const NodeId id : nodes) {
    const bool votes = std::find(voters.begin(), voters.end(), id) != voters.end();
    members.push_back({{id, 1}, votes ? paxos::Role::kVoter : paxos::Role::kLearner});
  }
  HYDRA_LOG_INFO("forming a cluster of {} nodes", members.size());
  return core_->CreateGroup(kSystemGroup, 1, 1, members, clock_.Now());
}

Status Node::Impl::Start() {
  NodeIdentity self{options_.node, options_.cluster, engine_->identity().store, options_.secret};
  self.feature_level = options_.feature_level;
  self.iscsi = options_.iscsi();
  self.http = options_.http();
  self.joining = core_->shard(kSystemGroup) == nullptr;
  disk_ = std::make_unique<DiskThreads>(
      engine_.get(), node_->io_.get(), options_.readers,
      DiskThreads::Handlers{[this](const std::vector<Completion>& durable) {
                              core_->Completed(durable, clock_.Now());
                              Wake();
                            },
                            [this](ShardRead read) {
                              core_->ReadDone(std::move(read), clock_.Now());
                              Wake();
                            },
                            [this](Nanos took) { stages_->BatchWritten(took); },
                            [this] { Wake(); }},
      faults_.get());
  links_ = std::make_unique<PeerLinks>(
      node_->io_.get(), self, kPeerQueueBytes,
      PeerLinks::Handlers{[this](uint32_t incarnation) { LetIn(incarnation); },
                          [this](NodeId peer) { core_->ConnectionLost(peer); }},
      &outbox_, faults_.get());
  Server::Options server;
  server.listen = options_.listen;
  server.self = self;
  server.outbox = &outbox_;
  server.faults = faults_.get();
  server_ = std::make_unique<Server>(
      node_->io_.get(), server,
      Server::Handlers{
          [this](const rpc::Hello& hello) { return Admit(hello); },
          [this](PeerMessage message) {
            CountBeat(message, false);
            const Nanos now = clock_.Now();
            stages_->Received(message, now);
            core_->Receive(std::move(message), now);
            Wake();
          },
          [this](const Server::ClientPtr& client, const Frame& frame) { OnRequest(client, frame); },
          [this](const rpc::GroupReport& report) { OnReport(report); },
          [this](NodeId peer, const rpc::Unfit& unfit) { OnUnfit(peer, unfit); },
          [this](NodeId peer) { core_->ConnectionLost(peer); }});
  HYDRA_RETURN_IF_ERROR(server_->Listen());
  links_->SetPeers(options_.peers);
  HYDRA_LOG_INFO("serving on {}", options_.listen);
  Tick();
  return Status::Ok();
}

bool Node::Impl::AskedJustNow() const { return clock_.Now() < last_asked_ + kJustNow; }

// --- Acting -------------------------------------------------------------------------------------

// Everything that happened in this turn of the loop is acted upon together.
void Node::Impl::Wake() { awake_ = true; }

// What comes at once of what was done (a short batch was written, a read found its blocks in
// memory) is acted upon in the same turn; but others have to be heard in between.
void Node::Impl::Act() {
  constexpr int kRounds = 3;
  if (!awake_ || !ended_.ok()) return;
  outbox_.Hold();
  int round = 0;
  do {
    awake_ = false;
    ActOnce();
  } while (awake_ && ended_.ok() && ++round < kRounds);
  outbox_.Flush();
  outbox_.Release();
  if (awake_) asio::post(*node_->io_, [] {});  // in the next turn
}

void Node::Impl::ActOnce() {
  const Nanos now = clock_.Now();
  out_.messages.clear();
  out_.replies.clear();
  out_.reads.clear();
  core_->Pump(now, &out_);
  disk_->Kick(now);
  for (const PeerMessage& message : out_.messages) {
    CountBeat(message, true);
    stages_->Sent(message, now);
    links_->Send(message);
  }
  for (ShardRead& read : out_.reads) disk_->Read(std::move(read));
  for (ShardReply& reply : out_.replies) OnReply(std::move(reply));
  keeper_->Look(now);
  if (disk_->writes_here()) {
    outbox_.Flush();  // peers are to write at the same time
    disk_->WriteHere();
  }
  const Status failed = core_->failed();
  if (!failed.ok()) EndWith(failed);
}

void Node::Impl::Tick() {
  tick_.expires_after(kTick);
  tick_.async_wait([this](const boost::system::error_code& error) {
    if (error || !ended_.ok()) return;
    const Nanos now = clock_.Now();
    core_->Tick(now);
    if (now >= tended_ + 250 * kMillisecond) {
      tended_ = now;
      links_->Tend();
      server_->Tend();
      TendCatalogue();
      TendMembers();
      TendMasterships();
      TendHealth();
      TendScrub();
    }
    if (stopping_) StopStep();
    Wake();
    Tick();
  });
}

// --- Ending -------------------------------------------------------------------------------------

// Something is broken for good: say so and be silent.
void Node::Impl::EndWith(const Status& status) {
  if (!ended_.ok()) return;
  ended_ = WithAdvice(status, options_.node, options_.dir);
  HYDRA_LOG_ERROR("node {} stops serving: {}", options_.node, ended_.ToString());
  node_->io_->stop();
}

void Node::Impl::BeginStop() {
  if (stopping_) return;
  HYDRA_LOG_INFO("node {} stops: handing over its masterships", options_.node);
  stopping_ = true;
  stop_by_ = clock_.Now() + kStopPatience;
}

void Node::Impl::StopStep() {
  size_t mine = 0;
  for (const auto& [group, shard] : core_->shards()) {
    const paxos::Replica& replica = shard->replica();
    if (replica.mode() == paxos::Mode::kFollower) continue;
    ++mine;
    if (!replica.serving()) continue;
    for (const NodeId node : Successors(group)) {
      if (HandOver(group, node)) break;
    }
  }
  const bool alone = std::none_of(options_.peers.begin(), options_.peers.end(),
                                  [&](const auto& peer) { return links_->connected(peer.first); });
  if (mine > 0 && !alone && clock_.Now() < stop_by_) return;
  node_->io_->stop();
}

Status Node::Impl::Close() {
  tick_.cancel();
  if (faults_) faults_->Clear(false);
  if (server_) server_->Close(fmt::format("node {} stops", options_.node));
  if (links_) links_->Close();
  saver_.join();
  if (disk_) {
    disk_->Stop();
    node_->io_->restart();
    node_->io_->poll();
    Act();  // gives back what waits for a read
    disk_.reset();
  }
  if (!ended_.ok()) return ended_;
  const Status closed = engine_->Close();
  if (closed.ok()) HYDRA_LOG_INFO("node {} stopped", options_.node);
  return closed;
}

}  // namespace hydra
