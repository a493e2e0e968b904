// SPDX-License-Identifier: Apache-2.0
//
// The catalogue at work: which groups this node has, who should lead them, who may call.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/logging.h"
#include "daemon/membership.h"
#include "daemon/node_impl.h"
#include "daemon/version.h"

namespace hydra {
namespace {

constexpr Nanos kMoveAfter = 5 * kSecond;
constexpr Nanos kWaitTold = 3 * kSecond;

std::string StoreOf(const Engine& engine) {
  const Uuid& store = engine.identity().store;
  return {reinterpret_cast<const char*>(store.bytes.data()), store.bytes.size()};
}

const char* RoleOf(const Shard& shard) {
  const paxos::Replica& replica = shard.replica();
  if (replica.suspect()) return "suspect";
  if (replica.installing()) return "installing";
  switch (replica.mode()) {
    case paxos::Mode::kMaster: return "master";
    case paxos::Mode::kFollower: return replica.IsVoter() ? "follower" : "learner";
    default: return "candidate";
  }
}

}  // namespace

// --- Peers --------------------------------------------------------------------------------------

Result<rpc::Ready> Node::Impl::Admit(const rpc::Hello& hello) {
  const NodeId node = hello.node();
  rpc::Ready ready;
  if (acted_on_ != 0) {
    const rpc::Catalogue& catalogue = keeper_->catalogue();
    HYDRA_RETURN_IF_ERROR(MayBeStoreOf(catalogue, node, hello.store(), hello.joining()));
    const rpc::CatalogueNode& known = *FindNode(catalogue, node);
    peer_hellos_[node] = hello;
    if (!hello.joining()) return ready;
    if (known.store().empty()) {
      return Status::Unavailable(fmt::format("node {} is being let in", node));
    }
    ready.set_incarnation(SystemIncarnation(known));
    return ready;
  }
  if (hello.joining()) return Status::Unavailable("this node has no catalogue yet");
  if (!options_.peers.contains(node)) {
    return Status::FailedPrecondition(fmt::format("node {} is not in the list of peers", node));
  }
  peer_hellos_[node] = hello;
  return ready;
}

// --- The catalogue ------------------------------------------------------------------------------

void Node::Impl::OnCatalogue(const rpc::Catalogue& catalogue) {
  const rpc::CatalogueNode* self = FindNode(catalogue, options_.node);
  // Both stay true, however old this catalogue is.
  if (self != nullptr && IsFormerStore(*self, StoreOf(*engine_))) {
    return EndWith(FormerStore(options_.node));
  }
  if (IsKnownStore(catalogue)) NameReplicas(catalogue);
  if (!IsSystemMember()) return;  // TendMembers asks again
  acted_on_ = catalogue.version();
  if (self != nullptr && !self->store().empty() && self->store() != StoreOf(*engine_)) {
    return EndWith(Status::FailedPrecondition(
        fmt::format("the cluster knows node {0} by another data directory than {1}: start it on "
                    "that one; or, if that is lost, delete {1}, start with --join, and say: "
                    "hydractl node replace {0}",
                    options_.node, options_.dir)));
  }
  if (catalogue.feature_level() > options_.feature_level) {
    return EndWith(Status::Unsupported(
        fmt::format("the cluster uses features of level {}, and this node knows those up to {}: "
                    "upgrade it",
                    catalogue.feature_level(), options_.feature_level)));
  }
  core_->MayAskBare(catalogue.feature_level() >= kOwedBlocksLevel);
  std::map<NodeId, std::string> addresses = options_.peers;
  for (const rpc::CatalogueNode& node : catalogue.nodes()) {
    addresses[node.id()] = node.rpc();
    core_->Know(node.id());
  }
  for (auto it = addresses.begin(); it != addresses.end();) {
    it = FindNode(catalogue, it->first) == nullptr ? addresses.erase(it) : std::next(it);
  }
  if (links_) {
    // Nodes without a catalogue turn those away that join, and this one may be who has it for them.
    links_->Joined();
    links_->SetPeers(addresses);
  }
  options_.peers = std::move(addresses);
  node_->accounts_.Take(catalogue);
  DropStrangers(catalogue);
  Reconcile(catalogue);
}

// Whether the catalogue knows this node by this very data directory.
bool Node::Impl::IsKnownStore(const rpc::Catalogue& catalogue) const {
  const rpc::CatalogueNode* self = FindNode(catalogue, options_.node);
  return self != nullptr && self->store() == StoreOf(*engine_);
}

// The incarnations in such a catalogue were given to this store, and to no other ever: when a node
// is replaced, the change that gives out new ones takes its store from it. (But for a catalogue
// that a forced survivor did not know: what the others had is never started again,
// docs/operations.md.)
void Node::Impl::NameReplicas(const rpc::Catalogue& catalogue) {
  const auto name = [this](GroupId group, uint32_t incarnation) {
    Shard* const shard = core_->shard(group);
    if (shard != nullptr) shard->BeNamed(incarnation);
  };
  name(kSystemGroup, SystemIncarnation(*FindNode(catalogue, options_.node)));
  for (const rpc::CatalogueGroup& group : catalogue.groups()) {
    for (const rpc::CatalogueReplica& replica : group.replicas()) {
      if (replica.node() == options_.node) name(group.id(), replica.incarnation());
    }
  }
  Wake();
}

// Replicas are made and removed by the catalogue alone, and only when it is known to be as new as
// what this node acted on before it started: an older one lists replicas that were dropped since,
// and lacks those of volumes that were made.
void Node::Impl::Reconcile(const rpc::Catalogue& catalogue) {
  served_.clear();
  preferred_.clear();
  wanted_members_.clear();
  rows_pending_.clear();
  missing_.clear();
  for (const rpc::CatalogueVolume& volume : catalogue.volumes()) {
    const bool shrinking = volume.state() == rpc::CatalogueVolume::SHRINKING;
    const uint64_t kept = shrinking ? volume.shrink_to() : volume.bytes();
    for (const uint32_t group : volume.shards()) {
      served_[group] = {volume.bytes() / volume.block_bytes(), kept / volume.block_bytes(),
                        static_cast<uint32_t>(volume.block_bytes() / kPageSize), EpochOf(volume)};
    }
  }
  std::set<GroupId> wanted = {kSystemGroup};
  for (const rpc::CatalogueGroup& group : catalogue.groups()) {
    uint32_t incarnation = 0;  // to be made
    bool on = false;
    for (const rpc::CatalogueReplica& replica : group.replicas()) {
      if (replica.state() != rpc::CatalogueReplica::MEMBER) rows_pending_.insert(group.id());
      if (replica.node() != options_.node) continue;
      on = true;
      if (replica.state() != rpc::CatalogueReplica::LEAVING) incarnation = replica.incarnation();
    }
    if (!on) continue;
    wanted.insert(group.id());
    wanted_members_[group.id()] = WantedMembers(group);
    if (incarnation != 0) preferred_[group.id()] = group.preferred_master();
    if (core_->shard(group.id()) == nullptr && incarnation != 0) {
      missing_[group.id()].incarnation = incarnation;
    }
  }
  MakeReplicas(catalogue);
  if (!ended_.ok()) return;
  DropReplicas(wanted, catalogue);
  Wake();
}

// Those that are missing. What the store refuses for now is tried again by TendMembers. Until the
// catalogue has noted this data directory, another one may get their names.
void Node::Impl::MakeReplicas(const rpc::Catalogue& catalogue) {
  if (missing_.empty() || !keeper_->confirmed() || !IsKnownStore(catalogue)) return;
  const Nanos now = clock_.Now();
  for (const rpc::CatalogueGroup& group : catalogue.groups()) {
    const auto missing = missing_.find(group.id());
    if (missing == missing_.end()) continue;
    // A later one learns who the members are.
    const bool first = missing->second.incarnation == 1;
    const Status created =
        core_->CreateGroup(group.id(), served_[group.id()].block_pages, missing->second.incarnation,
                           first ? FirstMembers(group) : std::vector<paxos::Member>(), now);
    if (IsForNow(created)) {
      if (!std::exchange(missing->second.refused, true)) {
        HYDRA_LOG_WARN("group {}: its replica here cannot be made yet: {}", group.id(),
                       created.ToString());
      }
      continue;
    }
    missing_.erase(missing);
    if (created.code() == Code::kFailedPrecondition) {
      // It has promised and accepted what it would know nothing of. A newer catalogue will say.
      HYDRA_LOG_WARN("group {}: {}", group.id(), created.message());
      continue;
    }
    if (!created.ok()) return EndWith(created.WithContext("make a replica"));
    if (first && group.preferred_master() == options_.node) {
      core_->shard(group.id())->TouchReplica().Campaign(now);
    }
    Wake();
  }
}

// The master of group 0 writes the first catalogue, and what nodes say of themselves.
void Node::Impl::TendCatalogue() {
  Shard* shard = core_->shard(kSystemGroup);
  if (shard == nullptr) return;
  const Nanos now = clock_.Now();
  if (!keeper_->known() && !waiting_told_ && now > started_ + kWaitTold && !shard->ready()) {
    waiting_told_ = true;
    HYDRA_LOG_INFO("node {} waits for a majority of the nodes of the cluster", options_.node);
  }
  if (!shard->ready() || keeper_->busy()) return;
  if (!keeper_->known()) {
    std::vector<rpc::CatalogueNode> nodes;
    for (const auto& [id, address] : options_.peers) {
      rpc::CatalogueNode node;
      node.set_id(id);
      node.set_rpc(address);
      nodes.push_back(std::move(node));
    }
    const Uuid& id = options_.cluster;
    const std::string cluster(reinterpret_cast<const char*>(id.bytes.data()), id.bytes.size());
    keeper_->Submit(
        [nodes, cluster](rpc::Catalogue* catalogue) {
          if (catalogue->version() == 0) *catalogue = FirstCatalogue(cluster, nodes);
          return Status::Ok();
        },
        [](const Status& status) {
          if (!status.ok()) HYDRA_LOG_WARN("the first catalogue: {}", status.ToString());
        },
        now);
    return;
  }
  // All at once: until its store is known, a node that lost it could come back with another.
  std::map<NodeId, rpc::Hello> news = peer_hellos_;
  rpc::Hello& self = news[options_.node];
  self.set_node(options_.node);
  self.set_store(StoreOf(*engine_));
  self.set_feature_level(options_.feature_level);
  self.set_iscsi(options_.iscsi());
  self.set_http(options_.http());
  std::erase_if(news, [&](const auto& hello) {
    const rpc::Hello& said = hello.second;
    const rpc::CatalogueNode* node = FindNode(keeper_->catalogue(), said.node());
    if (node == nullptr || IsNoted(said, *node)) return true;
    return !MayBeStoreOf(keeper_->catalogue(), said.node(), said.store(), said.joining()).ok();
  });
  if (news.empty()) return;
  keeper_->Submit(
      [news](rpc::Catalogue* catalogue) {
        for (const auto& [node, hello] : news) {
          HYDRA_RETURN_IF_ERROR(NoteNode(hello, catalogue));
        }
        return Status::Ok();
      },
      [](const Status&) {}, now);
}

// Masterships go back to where the catalogue wants them, once that node is there and up to date.
void Node::Impl::TendMasterships() {
  if (stopping_) return;
  const Nanos now = clock_.Now();
  for (const auto& [group, preferred] : preferred_) {
    Shard* shard = core_->shard(group);
    const bool move = shard != nullptr && shard->ready() && preferred != options_.node &&
                      core_->leases().Alive(preferred, now) && !IsAvoided(preferred) &&
                      IsWhole(*shard, preferred) &&
                      core_->leases().SpaceOf(preferred, kExtentPages * kPageSize, now) !=
                          paxos::LeaseTable::Space::kFull;
    if (!move) {
      not_preferred_since_.erase(group);
      continue;
    }
    const Nanos since = not_preferred_since_.emplace(group, now).first->second;
    if (now < since + kMoveAfter) continue;
    not_preferred_since_.erase(group);
    HandOver(group, preferred);
  }
}

bool Node::Impl::IsWhole(const Shard& shard, NodeId node) const {
  const paxos::Member* member = shard.replica().config().FindNode(node);
  return member != nullptr && shard.replica().PeerIsWhole(member->id);
}

// Voters that may take over, those first that have all blocks: another has to fetch what it reads.
std::vector<NodeId> Node::Impl::Successors(GroupId group) const {
  const Shard& shard = *std::as_const(*core_).shard(group);
  std::vector<NodeId> successors;
  for (const paxos::Member& member : shard.replica().config().members()) {
    const bool votes = member.role == paxos::Role::kVoter;
    if (votes && member.id.node != options_.node) successors.push_back(member.id.node);
  }
  std::ranges::stable_partition(successors, [&](NodeId node) { return IsWhole(shard, node); });
  return successors;
}

bool Node::Impl::HandOver(GroupId group, NodeId to) {
  Shard* shard = core_->shard(group);
  if (shard == nullptr) return false;
  const paxos::Replica& replica = shard->replica();
  const paxos::Member* member = replica.config().FindNode(to);
  // Who is far behind would keep everyone waiting.
  if (member == nullptr ||
      replica.PeerApplied(member->id) + replica.options().window_instances < replica.commit()) {
    return false;
  }
  const bool begun = shard->TouchReplica().HandOver(member->id, clock_.Now()).ok();
  Wake();
  return begun;
}

// --- Requests -----------------------------------------------------------------------------------

void Node::Impl::Change(const Server::ClientPtr& client, const Frame& frame,
                        CatalogueKeeper::Change change) {
  Shard* shard = core_->shard(kSystemGroup);
  if (shard == nullptr || !shard->ready()) {
    const NodeId master = shard == nullptr ? 0 : shard->replica().master_hint().node;
    return Answer(client, frame, rpc::Reply::NOT_MASTER,
                  "this node is not the master of the catalogue",
                  master == options_.node ? 0 : master);
  }
  Frame head = frame;
  head.payload = {};
  keeper_->Submit(
      std::move(change),
      [this, client, head](const Status& status) { AnswerStatus(client, head, status); },
      clock_.Now());
}

void Node::Impl::MoveMaster(const Server::ClientPtr& client, const Frame& frame,
                            const rpc::MoveMaster& request) {
  Shard* shard = core_->shard(request.group());
  if (shard == nullptr) {
    return Answer(
        client, frame, rpc::Reply::NO_GROUP,
        fmt::format("node {} has no replica of group {}", options_.node, request.group()));
  }
  const paxos::Replica& replica = shard->replica();
  if (!replica.serving()) {
    return Answer(client, frame, rpc::Reply::NOT_MASTER, "", replica.master_hint().node);
  }
  const paxos::Member* member = replica.config().FindNode(request.node());
  if (member == nullptr) {
    return AnswerStatus(client, frame,
                        Status::InvalidArgument(fmt::format("node {} has no replica of group {}",
                                                            request.node(), request.group())));
  }
  AnswerStatus(client, frame, shard->TouchReplica().HandOver(member->id, clock_.Now()));
  Wake();
}

// --- Looking ------------------------------------------------------------------------------------

void Node::Impl::FillStatus(bool groups, rpc::NodeStatus* status) {
  const EngineStats stats = engine_->Stats();
  status->set_node(options_.node);
  status->set_store(StoreOf(*engine_));
  status->set_uptime_ms(static_cast<uint64_t>((clock_.Now() - started_) / kMillisecond));
  status->set_version(BuildVersion());
  status->set_feature_level(options_.feature_level);
  for (const auto& [id, address] : options_.peers) {
    if (links_->connected(id)) status->add_connected(id);
  }
  status->set_space_bytes(stats.space_bytes);
  status->set_capacity_bytes(stats.capacity_bytes);
  status->set_free_bytes(engine_->PayloadRoom().bytes);
  FillScrub(status->mutable_scrub());
  if (keeper_->known()) {
    status->set_changes(static_cast<uint32_t>(ChangesUnderWay(keeper_->catalogue())));
    status->set_cluster_feature_level(keeper_->catalogue().feature_level());
  }
  if (!groups) return;
  if (node_->sessions_) {
    for (rpc::IscsiSession& session : node_->sessions_()) {
      *status->add_sessions() = std::move(session);
    }
  }
  for (const auto& [group, shard] : core_->shards()) {
    const paxos::Replica& replica = shard->replica();
    rpc::ReplicaStatus* out = status->add_replicas();
    out->set_group(group);
    out->set_incarnation(shard->identity().incarnation);
    out->set_role(RoleOf(*shard));
    out->set_ballot_round(replica.promised().round);
    out->set_ballot_node(replica.promised().node);
    out->set_commit(replica.commit());
    out->set_applied(replica.applied());
    out->set_master(replica.master_hint().node);
    out->set_ready(shard->ready());
    const auto info = engine_->Info(shard->store_group());
    if (info.ok()) out->set_data_blocks(info->data_blocks);
    if (shard->Owes()) out->set_owed_bytes(std::max<uint64_t>(1, shard->OwedBytes()));
    out->set_lag(replica.commit() - replica.applied());
    const auto change = changes_.find(group);
    if (change != changes_.end()) out->set_change(change->second);
  }
}

Status Node::Impl::health() const {
  if (!ended_.ok()) return ended_;
  if (core_->shard(kSystemGroup) == nullptr) {
    return Status::Unavailable("waiting to be let in: hydractl node add, or node replace");
  }
  if (!keeper_->known()) return Status::Unavailable("waiting for a majority of the nodes");
  return Status::Ok();
}

void Node::Impl::UpdateMetrics() {
  const EngineStats stats = engine_->Stats();
  MetricsRegistry& metrics = node_->metrics_;
  const auto gauge = [&](const char* name, const char* help, uint64_t value) {
    metrics.GetGauge(name, help)->Set(static_cast<int64_t>(value));
  };
  gauge("hydra_store_batches", "batches written since start", stats.batches);
  gauge("hydra_store_batch_bytes", "bytes of batches written since start", stats.batch_bytes);
  gauge("hydra_store_payload_bytes", "payload of client entries since start", stats.payload_bytes);
  gauge("hydra_store_relocated_bytes", "payload moved by vacuum", stats.relocated_bytes);
  gauge("hydra_store_zero_fill_bytes", "written into fresh segments", stats.zero_fill_bytes);
  gauge("hydra_store_installed_bytes", "payload taken in from peers", stats.installed_bytes);
  gauge("hydra_store_checkpoints", "checkpoints since start", stats.checkpoints);
  gauge("hydra_store_space_bytes", "taken by segments", stats.space_bytes);
  gauge("hydra_store_room_bytes", "that clients can still write to this store",
        engine_->PayloadRoom().bytes);
  gauge("hydra_store_queued_bytes", "waiting to be written", stats.queued_bytes);
  gauge("hydra_store_overlay_rows", "map rows not checkpointed", stats.overlay_rows);
  gauge("hydra_store_rotten_blocks", "rotten blocks found since start", stats.rotten_blocks);
  gauge("hydra_store_map_lookups", "rows that reads had to look up", stats.map_lookups);
  gauge("hydra_store_map_recalled", "rows that reads found remembered", stats.map_recalled);
  gauge("hydra_store_read_around_bytes", "read into memory along with what was asked for",
        stats.around_bytes);
  using Sent = RecoveryBudget::Kind;
  const RecoveryBudget& recovery = core_->recovery_budget();
  gauge("hydra_recovery_log_bytes", "sent to replicas that were behind, as entries of the log",
        recovery.sent(Sent::kLog));
  gauge("hydra_recovery_delta_bytes", "sent to replicas that were behind, as changed blocks",
        recovery.sent(Sent::kDelta));
  gauge("hydra_recovery_image_bytes", "sent to replicas that were behind, as all blocks",
        recovery.sent(Sent::kImage));
  gauge("hydra_recovery_owed_bytes", "sent to replicas that had taken in what their blocks are",
        recovery.sent(Sent::kOwed));
  gauge("hydra_store_owed_bytes", "of blocks that peers have yet to send", core_->OwedBytes());
  gauge("hydra_recovery_rate", "bytes per second that replicas which are behind may be sent now",
        recovery.rate_now());
  UpdateScrubMetrics();
  gauge("hydra_clients", "connected clients", server_->clients());
  gauge("hydra_payload_copied_bytes", "payload that was copied after it was received",
        server_->copied_bytes());
  gauge("hydra_peer_messages_sent", "messages to peers", links_->stats().sent);
  gauge("hydra_peer_messages_dropped", "messages to peers that could not be sent",
        links_->stats().dropped);
  uint64_t masters = 0;
  for (const auto& [group, shard] : core_->shards()) masters += shard->ready() ? 1 : 0;
  gauge("hydra_groups", "replicas on this node", core_->shards().size());
  gauge("hydra_unfit_to_lead", "1 while the disk or the links are too slow",
        unfit_.empty() ? 0 : 1);
  gauge("hydra_groups_led", "groups this node is the serving master of", masters);
}

}  // namespace hydra
