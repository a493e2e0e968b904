// SPDX-License-Identifier: Apache-2.0
#include "daemon/membership.h"

#include <algorithm>

#include <fmt/format.h>

#include "daemon/catalogue.h"
#include "daemon/placement.h"

namespace hydra {
namespace {

NodeRow* MutableNode(rpc::Catalogue* catalogue, NodeId id) {
  return const_cast<NodeRow*>(FindNode(*catalogue, id));
}

Status NoSuchNode(NodeId id) {
  return Status::NotFound(
      fmt::format("there is no node {}; `hydractl node list` shows what there is", id));
}

bool WasRemoved(const rpc::Catalogue& catalogue, NodeId id) {
  return std::any_of(catalogue.former_nodes().begin(), catalogue.former_nodes().end(),
                     [&](const rpc::FormerNode& node) { return node.id() == id; });
}

bool IsLost(const NodeRow& node) {
  return node.state() == NodeRow::JOINING && node.store().empty() && SystemIncarnation(node) > 1;
}

const rpc::CatalogueVolume* VolumeOf(const rpc::Catalogue& catalogue, GroupId group) {
  for (const rpc::CatalogueVolume& volume : catalogue.volumes()) {
    for (const uint32_t shard : volume.shards()) {
      if (shard == group) return &volume;
    }
  }
  return nullptr;
}

std::string NameOf(const rpc::Catalogue& catalogue, GroupId group) {
  const rpc::CatalogueVolume* volume = VolumeOf(catalogue, group);
  return volume == nullptr ? fmt::format("group {}", group)
                           : fmt::format("volume '{}' (group {})", volume->name(), group);
}

// Whether a replica answers for itself, rather than another one on the same node: its disk may be
// lost, and the node up with a new one.
bool Answers(const ReplicaRow& row, const rpc::Catalogue& catalogue,
             const rpc::CatalogueGroup& group, const std::set<NodeId>& alive) {
  if (row.state() == ReplicaRow::JOINING || !alive.contains(row.node())) return false;
  if (row.state() == ReplicaRow::MEMBER) return true;
  const NodeRow* node = FindNode(catalogue, row.node());
  return node != nullptr && !node->store().empty() &&
         std::none_of(group.replicas().begin(), group.replicas().end(), [&](const ReplicaRow& r) {
           return r.node() == row.node() && r.incarnation() > row.incarnation();
         });
}

// Whether the voters without this node can decide. Who joins may vote already, and may not be able
// to; of a node's replicas one at most votes.
Status MajorityWithout(NodeId node, const rpc::Catalogue& catalogue,
                       const rpc::CatalogueGroup& group, const std::set<NodeId>& alive) {
  std::set<NodeId> voting;
  std::set<NodeId> answering;
  for (const ReplicaRow& row : group.replicas()) {
    voting.insert(row.node());
    if (row.node() != node && Answers(row, catalogue, group, alive)) answering.insert(row.node());
  }
  const size_t voters = voting.size();
  const size_t answer = answering.size();
  const rpc::CatalogueVolume* volume = VolumeOf(catalogue, group.id());
  const std::string name = volume == nullptr ? "VOLUME" : volume->name();
  if (voters == 1) {
    return Status::FailedPrecondition(fmt::format(
        "{} has its only replica on node {}: bring that node back, or give the volume up with "
        "`hydractl volume delete {}`",
        NameOf(catalogue, group.id()), node, name));
  }
  if (2 * answer > voters) return Status::Ok();
  return Status::FailedPrecondition(fmt::format(
      "without node {} only {} of the {} replicas of {} would answer, which is no majority: bring "
      "other nodes back first (`hydractl node list` shows which are down), wait for what is under "
      "way (`hydractl status --wait`), or, if their disks are lost, give the volume up with "
      "`hydractl volume delete {}`",
      node, answer, voters, NameOf(catalogue, group.id()), name));
}

// --- Nodes --------------------------------------------------------------------------------------

Status CheckAddress(const std::string& rpc, NodeId id, const rpc::Catalogue& catalogue) {
  const size_t colon = rpc.rfind(':');
  if (colon == 0 || colon == std::string::npos || colon + 1 == rpc.size()) {
    return Status::InvalidArgument(
        fmt::format("'{}' is no address of a node: use --rpc HOST:PORT", rpc));
  }
  for (const NodeRow& node : catalogue.nodes()) {
    if (node.rpc() != rpc || node.id() == id) continue;
    return Status::AlreadyExists(fmt::format("node {} has the address {}", node.id(), rpc));
  }
  return Status::Ok();
}

Status AddNode(const rpc::ChangeNodes& request, rpc::Catalogue* catalogue) {
  NodeId id = request.node();
  if (id == 0) {
    for (const NodeRow& node : catalogue->nodes()) {
      if (node.rpc() == request.rpc() && node.state() == NodeRow::JOINING) return Status::Ok();
      id = std::max(id, node.id());
    }
    for (const rpc::FormerNode& node : catalogue->former_nodes()) id = std::max(id, node.id());
    ++id;
  }
  HYDRA_RETURN_IF_ERROR(CheckAddress(request.rpc(), id, *catalogue));
  if (const NodeRow* known = FindNode(*catalogue, id)) {
    if (known->state() == NodeRow::JOINING && known->rpc() == request.rpc()) return Status::Ok();
    return Status::AlreadyExists(fmt::format(
        "there is a node {0} already. If its disk is lost: hydractl node replace {0}", id));
  }
  if (WasRemoved(*catalogue, id)) {
    return Status::InvalidArgument(
        fmt::format("node {} was removed, and numbers are never used again: take another", id));
  }
  if (static_cast<size_t>(catalogue->nodes_size()) >= kMaxNodes) {
    return Status::NoSpace(fmt::format("there are {} nodes, the most there can be", kMaxNodes));
  }
  NodeRow* node = catalogue->add_nodes();
  node->set_id(id);
  node->set_rpc(request.rpc());
  node->set_iscsi(request.iscsi());
  node->set_http(request.http());
  node->set_state(NodeRow::JOINING);
  node->set_incarnation(1);
  return Status::Ok();
}

void Lose(NodeRow* node, rpc::Catalogue* catalogue) {
  if (!node->store().empty()) node->add_former_stores(node->store());
  node->clear_store();
  node->set_incarnation(std::max(SystemIncarnation(*node) + 1, catalogue->least_incarnation()));
  node->set_state(NodeRow::JOINING);
  for (rpc::CatalogueGroup& group : *catalogue->mutable_groups()) {
    if (LeaveRow(node->id(), &group)) AddRow(node->id(), &group);
  }
}

// Its place in every group goes to a new incarnation: what the old one promised is lost with its
// disk. The number stays, so addresses, rules and habits do.
Status ReplaceNode(const rpc::ChangeNodes& request, const std::set<NodeId>& alive,
                   rpc::Catalogue* catalogue) {
  NodeRow* node = MutableNode(catalogue, request.node());
  if (node == nullptr) return NoSuchNode(request.node());
  const bool again = request.incarnation() != 0 && SystemIncarnation(*node) > request.incarnation();
  if (again && !IsLost(*node)) return Status::Ok();  // and its successor is there already
  if (!request.rpc().empty()) {
    HYDRA_RETURN_IF_ERROR(CheckAddress(request.rpc(), node->id(), *catalogue));
  }
  if (node->state() == NodeRow::DRAINING) {
    return Status::FailedPrecondition(
        fmt::format("node {} is being removed; it needs no replacement", node->id()));
  }
  if (!IsLost(*node)) {
    if (alive.contains(node->id()) && !request.force()) {
      return Status::FailedPrecondition(fmt::format(
          "node {0} answers, so its disk is not lost. Stop it first; or use --force, and never "
          "start it on its present data directory again",
          node->id()));
    }
    for (const rpc::CatalogueGroup& group : catalogue->groups()) {
      if (!IsOn(group, node->id())) continue;
      HYDRA_RETURN_IF_ERROR(MajorityWithout(node->id(), *catalogue, group, alive));
    }
    Lose(node, catalogue);
  }
  if (!request.rpc().empty()) node->set_rpc(request.rpc());
  return Status::Ok();
}

Status RemoveNode(const rpc::ChangeNodes& request, const std::set<NodeId>& alive,
                  rpc::Catalogue* catalogue) {
  NodeRow* node = MutableNode(catalogue, request.node());
  if (node == nullptr) {
    return WasRemoved(*catalogue, request.node()) ? Status::Ok() : NoSuchNode(request.node());
  }
  if (node->state() == NodeRow::DRAINING) return Status::Ok();
  const bool last = std::none_of(
      catalogue->nodes().begin(), catalogue->nodes().end(),
      [&](const NodeRow& n) { return n.id() != node->id() && n.state() == NodeRow::ACTIVE; });
  if (last) {
    return Status::FailedPrecondition(
        fmt::format("node {} is the last one that is complete; add others first", request.node()));
  }
  node->set_state(NodeRow::DRAINING);
  NodeLoad load(*catalogue);
  for (rpc::CatalogueGroup& group : *catalogue->mutable_groups()) {
    if (!IsOn(group, node->id())) continue;
    HYDRA_RETURN_IF_ERROR(alive.contains(node->id())
                              ? Status::Ok()
                              : MajorityWithout(node->id(), *catalogue, group, alive));
    const NodeId place = load.PlaceFor(group, alive);
    if (place == 0 && (!request.force() || WantedReplicas(group) <= 1)) {
      const rpc::CatalogueVolume* volume = VolumeOf(*catalogue, group.id());
      return Status::FailedPrecondition(fmt::format(
          "{} would be left with {} replica(s), and there is no other node for one: add a node "
          "first (`hydractl node add`){}",
          NameOf(*catalogue, group.id()), WantedReplicas(group) - 1,
          WantedReplicas(group) <= 1
              ? ", or delete the volume"
              : fmt::format("; or ask for fewer (`hydractl volume set-replicas {} 1 --force`); or "
                            "--force leaves it so until there is one",
                            volume == nullptr ? "VOLUME" : volume->name())));
    }
    if (!LeaveRow(node->id(), &group)) continue;
    if (place != 0) {
      AddRow(place, &group);
      ++load.replicas[place];
    }
    FixPreferred(&load, &group);
  }
  return Status::Ok();
}

// --- Volumes ------------------------------------------------------------------------------------

Status CheckReplicas(const rpc::ChangeNodes& request, const rpc::Catalogue& catalogue) {
  const uint32_t count = request.replicas();
  if (count != 1 && count != 3 && count != 5) {
    return Status::InvalidArgument(
        fmt::format("{} replicas: use 3 or 5 (or 1, with --force)", count));
  }
  if (count == 1 && !request.force()) {
    return Status::FailedPrecondition(
        "with one replica the first lost disk loses the volume; use --force if that is meant");
  }
  const auto nodes = static_cast<size_t>(
      std::count_if(catalogue.nodes().begin(), catalogue.nodes().end(),
                    [](const NodeRow& node) { return node.state() == NodeRow::ACTIVE; }));
  if (count > nodes) {
    return Status::FailedPrecondition(fmt::format(
        "{} replicas on {} nodes: each needs a node of its own; add nodes first (`hydractl node "
        "add`)",
        count, nodes));
  }
  return Status::Ok();
}

// Who leaves first: who does not answer; who has most; never the one that should lead.
NodeId Victim(const rpc::CatalogueGroup& group, const NodeLoad& load,
              const std::set<NodeId>& alive) {
  NodeId victim = 0;
  const auto rank = [&](NodeId node) {
    const auto has = load.replicas.find(node);
    return std::tuple(!alive.contains(node), node != group.preferred_master(),
                      has == load.replicas.end() ? 0 : has->second, node);
  };
  for (const ReplicaRow& row : group.replicas()) {
    if (row.state() == ReplicaRow::LEAVING) continue;
    if (victim == 0 || rank(row.node()) > rank(victim)) victim = row.node();
  }
  return victim;
}

Status SetReplicas(const rpc::ChangeNodes& request, const std::set<NodeId>& alive,
                   rpc::Catalogue* catalogue) {
  HYDRA_RETURN_IF_ERROR(CheckReplicas(request, *catalogue));
  rpc::CatalogueVolume* volume =
      const_cast<rpc::CatalogueVolume*>(FindVolume(*catalogue, request.volume()));
  if (volume == nullptr) {
    return Status::NotFound(fmt::format(
        "there is no volume '{}'; `hydractl volume list` shows what there is", request.volume()));
  }
  if (volume->replicas() == request.replicas()) return Status::Ok();
  const std::set<uint32_t> shards(volume->shards().begin(), volume->shards().end());
  NodeLoad load(*catalogue);
  for (rpc::CatalogueGroup& group : *catalogue->mutable_groups()) {
    if (!shards.contains(group.id())) continue;
    if (IsBusy(group)) {
      return Status::FailedPrecondition(
          fmt::format("replicas of '{}' are being moved; wait for that (`hydractl status --wait`)",
                      request.volume()));
    }
    while (WantedReplicas(group) < request.replicas()) {
      const NodeId place = load.PlaceFor(group, alive);
      if (place == 0) break;  // it is added when there is one
      AddRow(place, &group);
      ++load.replicas[place];
    }
    while (WantedReplicas(group) > request.replicas()) {
      const NodeId victim = Victim(group, load, alive);
      LeaveRow(victim, &group);
      if (load.replicas.contains(victim)) --load.replicas[victim];
    }
    size_t answer = 0;
    for (const ReplicaRow& row : group.replicas()) {
      if (row.state() != ReplicaRow::LEAVING && alive.contains(row.node())) ++answer;
    }
    if (2 * answer <= WantedReplicas(group)) {
      return Status::FailedPrecondition(fmt::format(
          "too few replicas of {} would answer; bring the nodes that are down back first",
          NameOf(*catalogue, group.id())));
    }
    FixPreferred(&load, &group);
  }
  volume->set_replicas(request.replicas());
  return Status::Ok();
}

}  // namespace

Status ChangeNodes(const rpc::ChangeNodes& request, const std::set<NodeId>& alive,
                   rpc::Catalogue* catalogue) {
  switch (request.kind()) {
    case rpc::ChangeNodes::ADD: return AddNode(request, catalogue);
    case rpc::ChangeNodes::REPLACE: return ReplaceNode(request, alive, catalogue);
    case rpc::ChangeNodes::REMOVE: return RemoveNode(request, alive, catalogue);
    case rpc::ChangeNodes::SET_REPLICAS: return SetReplicas(request, alive, catalogue);
    case rpc::ChangeNodes::REBALANCE: catalogue->set_rebalancing(true); return Status::Ok();
    default: break;
  }
  return Status::Unsupported("a change of a newer version: upgrade the nodes");
}

namespace {

// Those who are gone may have decided on later catalogues, of which nobody knows any more. They
// gave numbers away: to replicas, groups and volumes, to rights of access, and to the catalogue
// itself, of which clients keep the highest. What is given from now on is well above.
void SkipLostNumbers(rpc::Catalogue* catalogue) {
  constexpr uint32_t kMostLost = 1024;
  catalogue->set_version(catalogue->version() + kMostLost);
  catalogue->set_next_group(catalogue->next_group() + kMostLost);
  catalogue->set_next_volume(catalogue->next_volume() + kMostLost);
  for (rpc::CatalogueVolume& volume : *catalogue->mutable_volumes()) {
    volume.set_epoch(EpochOf(volume) + kMostLost);
  }
  uint32_t highest = catalogue->least_incarnation();
  for (const NodeRow& node : catalogue->nodes()) {
    highest = std::max(highest, SystemIncarnation(node));
  }
  catalogue->set_least_incarnation(highest + kMostLost);
  for (rpc::CatalogueGroup& group : *catalogue->mutable_groups()) {
    SkipIncarnations(kMostLost, &group);
    group.clear_config();  // the survivor's may be an older one
  }
}

}  // namespace

// (Groups that have no replica there are gone: their new ones never learn who the members are.)
void OnlySurvivor(NodeId survivor, rpc::Catalogue* catalogue) {
  const bool again =
      std::all_of(catalogue->nodes().begin(), catalogue->nodes().end(),
                  [&](const NodeRow& node) { return node.id() == survivor || IsLost(node); });
  if (!again) SkipLostNumbers(catalogue);
  for (NodeRow& node : *catalogue->mutable_nodes()) {
    if (node.id() == survivor) {
      if (node.state() == NodeRow::DRAINING) node.set_state(NodeRow::ACTIVE);
    } else if (!again) {
      Lose(&node, catalogue);
    }
  }
  for (rpc::CatalogueGroup& group : *catalogue->mutable_groups()) {
    for (ReplicaRow& row : *group.mutable_replicas()) {
      if (row.node() != survivor) continue;
      if (row.state() == ReplicaRow::LEAVING) row.set_state(ReplicaRow::MEMBER);
      group.set_preferred_master(survivor);
    }
  }
}

// --- What is wanted -----------------------------------------------------------------------------

uint32_t SystemIncarnation(const rpc::CatalogueNode& node) {
  return std::max(node.incarnation(), 1u);
}

std::vector<paxos::Member> WantedMembers(const rpc::CatalogueGroup& group) {
  std::vector<paxos::Member> members;
  for (const ReplicaRow& row : group.replicas()) {
    if (row.state() == ReplicaRow::LEAVING) continue;
    members.push_back({{row.node(), row.incarnation()}, paxos::Role::kVoter});
  }
  return members;
}

std::vector<paxos::Member> FirstMembers(const rpc::CatalogueGroup& group) {
  std::vector<paxos::Member> members;
  for (const uint32_t node : group.founders()) {
    members.push_back({{node, 1}, paxos::Role::kVoter});
  }
  if (!members.empty()) return members;
  for (const ReplicaRow& row : group.replicas()) {
    members.push_back({{row.node(), row.incarnation()}, paxos::Role::kVoter});
  }
  return members;
}

std::vector<paxos::Member> WantedSystemMembers(const rpc::Catalogue& catalogue,
                                               const paxos::Config& now) {
  std::vector<paxos::Member> members;
  std::vector<std::pair<bool, NodeId>> candidates;  // false first: those who vote now
  size_t voting = 0;
  for (const NodeRow& node : catalogue.nodes()) {
    const bool drains = node.state() == NodeRow::DRAINING;
    const bool empty =
        std::none_of(catalogue.groups().begin(), catalogue.groups().end(),
                     [&](const rpc::CatalogueGroup& group) { return IsOn(group, node.id()); });
    // It has to hear what it is to give up.
    if (drains && empty) continue;
    members.push_back({{node.id(), SystemIncarnation(node)}, paxos::Role::kLearner});
    if (drains) continue;
    const paxos::Member* member = now.FindNode(node.id());
    const bool votes = member != nullptr && member->role == paxos::Role::kVoter;
    voting += votes ? 1 : 0;
    candidates.emplace_back(!votes, node.id());
  }
  std::sort(candidates.begin(), candidates.end());
  size_t count = std::min<size_t>(candidates.size(), 5);
  // An odd number; but of two that vote, both hold the catalogue.
  if (count % 2 == 0 && !(count == 2 && voting >= 2)) --count;
  for (size_t i = 0; i < count; ++i) {
    for (paxos::Member& member : members) {
      if (member.id.node == candidates[i].second) member.role = paxos::Role::kVoter;
    }
  }
  return members;
}

// --- What is done -------------------------------------------------------------------------------

namespace {

// What becomes of a row: it stays, or becomes a member, or goes.
enum class Fate { kStays, kArrives, kGoes };

Fate FateOf(const ReplicaRow& row, const rpc::GroupReport& report) {
  const auto among = [&](const auto& members) {
    return std::any_of(members.begin(), members.end(), [&](const ReplicaRow& member) {
      return member.node() == row.node() && member.incarnation() == row.incarnation();
    });
  };
  const bool votes = among(report.voters());
  if (row.state() == ReplicaRow::JOINING && votes) return Fate::kArrives;
  // A learner may become a voter yet, by a master that has not heard that it is to leave.
  if (row.state() == ReplicaRow::LEAVING && !votes && !among(report.learners())) {
    return Fate::kGoes;
  }
  return Fate::kStays;
}

}  // namespace

bool IsNews(const rpc::GroupReport& report, const rpc::CatalogueGroup& group) {
  return report.config() >= group.config() &&
         std::any_of(group.replicas().begin(), group.replicas().end(),
                     [&](const ReplicaRow& row) { return FateOf(row, report) != Fate::kStays; });
}

void NoteGroup(const rpc::GroupReport& report, rpc::Catalogue* catalogue) {
  for (rpc::CatalogueGroup& group : *catalogue->mutable_groups()) {
    if (group.id() != report.group() || !IsNews(report, group)) continue;
    group.set_config(report.config());
    auto* rows = group.mutable_replicas();
    for (int i = rows->size() - 1; i >= 0; --i) {
      const Fate fate = FateOf(rows->Get(i), report);
      if (fate == Fate::kArrives) rows->Mutable(i)->set_state(ReplicaRow::MEMBER);
      if (fate == Fate::kGoes) rows->DeleteSubrange(i, 1);
    }
  }
}

bool TendMembership(const SystemView& view, rpc::Catalogue* catalogue) {
  bool changed = false;
  auto* nodes = catalogue->mutable_nodes();
  for (int i = nodes->size() - 1; i >= 0; --i) {
    NodeRow& node = *nodes->Mutable(i);
    if (node.state() == NodeRow::JOINING && !node.store().empty()) {
      const paxos::MemberId id{node.id(), SystemIncarnation(node)};
      bool complete = view.config.IsVoter(id) || view.near.contains(id);
      for (const rpc::CatalogueGroup& group : catalogue->groups()) {
        for (const ReplicaRow& row : group.replicas()) {
          if (row.node() == node.id() && row.state() == ReplicaRow::JOINING) complete = false;
        }
      }
      if (!complete) continue;
      node.set_state(NodeRow::ACTIVE);
      catalogue->set_rebalancing(true);
      changed = true;
    } else if (node.state() == NodeRow::DRAINING && view.config.FindNode(node.id()) == nullptr) {
      const bool on =
          std::any_of(catalogue->groups().begin(), catalogue->groups().end(),
                      [&](const rpc::CatalogueGroup& group) { return IsOn(group, node.id()); });
      if (on) continue;
      catalogue->add_former_nodes()->set_id(node.id());
      nodes->DeleteSubrange(i, 1);
      changed = true;
    }
  }
  return Spread(view.alive, catalogue) || changed;
}

size_t ChangesUnderWay(const rpc::Catalogue& catalogue) {
  const auto nodes =
      std::count_if(catalogue.nodes().begin(), catalogue.nodes().end(),
                    [](const NodeRow& node) { return node.state() != NodeRow::ACTIVE; });
  const auto groups = std::count_if(catalogue.groups().begin(), catalogue.groups().end(), &IsBusy);
  return static_cast<size_t>(nodes + groups) + (catalogue.rebalancing() ? 1 : 0);
}

const char* StateName(const rpc::CatalogueNode& node) {
  if (IsLost(node)) return "lost";
  switch (node.state()) {
    case NodeRow::JOINING: return "joining";
    case NodeRow::DRAINING: return "draining";
    default: return "active";
  }
}

bool IsFormerStore(const rpc::CatalogueNode& node, const std::string& store) {
  const auto& former = node.former_stores();
  return std::find(former.begin(), former.end(), store) != former.end();
}

Status FormerStore(NodeId id) {
  return Status::FailedPrecondition(fmt::format(
      "node {} was replaced, and this is its former data directory: what it holds is no longer "
      "part of the cluster. Delete it, and start with --join on an empty one",
      id));
}

Status MayBeStoreOf(const rpc::Catalogue& catalogue, NodeId id, const std::string& store,
                    bool joining) {
  const NodeRow* node = FindNode(catalogue, id);
  if (node == nullptr && WasRemoved(catalogue, id)) {
    return Status::FailedPrecondition(fmt::format(
        "node {} was removed from this cluster, and its number is never used again. Delete its "
        "data directory; to come back it needs a new number (`hydractl node add`)",
        id));
  }
  if (node == nullptr) {
    return Status::FailedPrecondition(fmt::format(
        "node {0} is not part of this cluster; if it should be: hydractl node add --id {0} --rpc "
        "HOST:PORT",
        id));
  }
  if (IsFormerStore(*node, store)) return FormerStore(id);
  if (node->store() == store) return Status::Ok();
  // Its replicas are new ones: a directory that has some of before must not speak for them.
  const bool founder = node->incarnation() == 0;
  if (node->store().empty() && !founder && !joining) {
    return Status::FailedPrecondition(
        fmt::format("node {} joins this cluster: start it with --join on an empty data directory "
                    "(and without --bootstrap)",
                    id));
  }
  // One that helped to form the cluster may have voted before its data directory was noted: another
  // must not vote under its name.
  if (node->store().empty() && founder && joining) {
    return Status::FailedPrecondition(fmt::format(
        "node {0} is one of those that formed this cluster: if it never ran, start it with "
        "--bootstrap instead of --join; if it did, and its data directory is lost: hydractl node "
        "replace {0}",
        id));
  }
  if (node->store().empty()) return Status::Ok();
  if (joining) {
    return Status::FailedPrecondition(fmt::format(
        "the cluster knows node {0} by another data directory. If that is lost: hydractl node "
        "replace {0}",
        id));
  }
  return Status::FailedPrecondition(fmt::format(
      "node {0} comes with another data directory than the one the cluster knows. Start it on that "
      "one; if that is lost, start it with --join and say: hydractl node replace {0}",
      id));
}

}  // namespace hydra
