// SPDX-License-Identifier: Apache-2.0
#include "daemon/placement.h"

#include <algorithm>
#include <utility>

namespace hydra {
bool IsBusy(const rpc::CatalogueGroup& group) {
  return std::any_of(group.replicas().begin(), group.replicas().end(),
                     [](const ReplicaRow& row) { return row.state() != ReplicaRow::MEMBER; });
}

size_t WantedReplicas(const rpc::CatalogueGroup& group) {
  return static_cast<size_t>(
      std::count_if(group.replicas().begin(), group.replicas().end(),
                    [](const ReplicaRow& row) { return row.state() != ReplicaRow::LEAVING; }));
}

bool IsOn(const rpc::CatalogueGroup& group, NodeId node) {
  return std::any_of(group.replicas().begin(), group.replicas().end(),
                     [node](const ReplicaRow& row) { return row.node() == node; });
}

// --- Rows ---------------------------------------------------------------------------------------

void AddRow(NodeId node, rpc::CatalogueGroup* group) {
  if (group->founders().empty()) {
    for (const ReplicaRow& row : group->replicas()) group->add_founders(row.node());
  }
  SkipIncarnations(1, group);
  ReplicaRow* row = group->add_replicas();
  row->set_node(node);
  row->set_incarnation(group->last_incarnation());
  row->set_state(ReplicaRow::JOINING);
}

void SkipIncarnations(uint32_t count, rpc::CatalogueGroup* group) {
  uint32_t last = std::max(group->last_incarnation(), 1u);
  for (const ReplicaRow& row : group->replicas()) last = std::max(last, row.incarnation());
  group->set_last_incarnation(last + count);
}

bool LeaveRow(NodeId node, rpc::CatalogueGroup* group) {
  bool left = false;
  if (group->founders().empty()) {
    for (const ReplicaRow& row : group->replicas()) group->add_founders(row.node());
  }
  for (ReplicaRow& row : *group->mutable_replicas()) {
    if (row.node() != node || row.state() == ReplicaRow::LEAVING) continue;
    row.set_state(ReplicaRow::LEAVING);
    left = true;
  }
  return left;
}

NodeLoad::NodeLoad(const rpc::Catalogue& catalogue) {
  for (const NodeRow& node : catalogue.nodes()) {
    if (node.state() == NodeRow::ACTIVE) replicas[node.id()] = led[node.id()] = 0;
  }
  for (const rpc::CatalogueGroup& group : catalogue.groups()) {
    const auto leads = led.find(group.preferred_master());
    if (leads != led.end()) ++leads->second;
    for (const ReplicaRow& row : group.replicas()) {
      const auto has = replicas.find(row.node());
      if (has != replicas.end() && row.state() != ReplicaRow::LEAVING) ++has->second;
    }
  }
}

NodeId NodeLoad::PlaceFor(const rpc::CatalogueGroup& group, const std::set<NodeId>& alive) const {
  NodeId best = 0;
  const auto rank = [&](NodeId id) { return std::pair(!alive.contains(id), replicas.at(id)); };
  for (const auto& [node, count] : replicas) {
    if (IsOn(group, node)) continue;
    if (best == 0 || rank(node) < rank(best)) best = node;
  }
  return best;
}

// To the member that stays and leads the fewest, if the present one does not stay.
void FixPreferred(NodeLoad* load, rpc::CatalogueGroup* group) {
  NodeId best = 0;
  for (const ReplicaRow& row : group->replicas()) {
    if (row.state() == ReplicaRow::LEAVING) continue;
    if (row.node() == group->preferred_master()) return;
    if (row.state() != ReplicaRow::MEMBER) continue;
    if (best == 0 || load->led[row.node()] < load->led[best]) best = row.node();
  }
  if (best == 0) return;
  group->set_preferred_master(best);
  ++load->led[best];
}

// --- Spreading ----------------------------------------------------------------------------------

namespace {

// Groups that have fewer replicas than their volume asks for, since there was no node.
bool FillUp(const std::set<NodeId>& alive, size_t* budget, rpc::Catalogue* catalogue) {
  bool changed = false;
  NodeLoad load(*catalogue);
  std::map<GroupId, uint32_t> asked;
  for (const rpc::CatalogueVolume& volume : catalogue->volumes()) {
    for (const uint32_t shard : volume.shards()) asked[shard] = volume.replicas();
  }
  for (rpc::CatalogueGroup& group : *catalogue->mutable_groups()) {
    if (*budget == 0) break;
    if (IsBusy(group) || WantedReplicas(group) >= asked[group.id()]) continue;
    const NodeId place = load.PlaceFor(group, alive);
    if (place == 0 || !alive.contains(place)) continue;
    AddRow(place, &group);
    ++load.replicas[place];
    --*budget;
    changed = true;
  }
  return changed;
}

// One replica from a node that has at least two more than another that lacks it.
bool MoveOne(const std::set<NodeId>& alive, rpc::Catalogue* catalogue) {
  NodeLoad load(*catalogue);
  rpc::CatalogueGroup* best = nullptr;
  NodeId from = 0;
  NodeId to = 0;
  size_t gain = 1;
  for (rpc::CatalogueGroup& group : *catalogue->mutable_groups()) {
    if (IsBusy(group)) continue;
    for (const ReplicaRow& row : group.replicas()) {
      const auto has = load.replicas.find(row.node());
      if (has == load.replicas.end()) continue;
      for (const auto& [node, count] : load.replicas) {
        if (IsOn(group, node) || !alive.contains(node) || has->second < count) continue;
        if (has->second - count <= gain) continue;
        best = &group;
        from = row.node();
        to = node;
        gain = has->second - count;
      }
    }
  }
  if (best == nullptr) return false;
  LeaveRow(from, best);
  AddRow(to, best);
  return true;
}

bool SpreadMasters(rpc::Catalogue* catalogue) {
  bool changed = false;
  for (size_t i = 0; i < static_cast<size_t>(catalogue->groups_size()); ++i) {
    NodeLoad load(*catalogue);
    rpc::CatalogueGroup* best = nullptr;
    NodeId to = 0;
    size_t gain = 1;
    for (rpc::CatalogueGroup& group : *catalogue->mutable_groups()) {
      const auto leads = load.led.find(group.preferred_master());
      if (leads == load.led.end()) continue;
      for (const ReplicaRow& row : group.replicas()) {
        const auto other = load.led.find(row.node());
        if (row.state() != ReplicaRow::MEMBER || other == load.led.end()) continue;
        if (leads->second < other->second || leads->second - other->second <= gain) continue;
        best = &group;
        to = row.node();
        gain = leads->second - other->second;
      }
    }
    if (best == nullptr) break;
    best->set_preferred_master(to);
    changed = true;
  }
  return changed;
}

}  // namespace

bool Spread(const std::set<NodeId>& alive, rpc::Catalogue* catalogue) {
  const auto busy = static_cast<size_t>(
      std::count_if(catalogue->groups().begin(), catalogue->groups().end(), &IsBusy));
  size_t budget = busy >= kMovesAtOnce ? 0 : kMovesAtOnce - busy;
  bool changed = FillUp(alive, &budget, catalogue);
  if (!catalogue->rebalancing()) return changed;
  for (; budget > 0 && MoveOne(alive, catalogue); --budget) changed = true;
  NodeLoad load(*catalogue);
  for (rpc::CatalogueGroup& group : *catalogue->mutable_groups()) {
    const NodeId before = group.preferred_master();
    FixPreferred(&load, &group);
    changed = changed || before != group.preferred_master();
  }
  if (changed || busy > 0) return changed;
  SpreadMasters(catalogue);
  catalogue->set_rebalancing(false);
  return true;
}

}  // namespace hydra
