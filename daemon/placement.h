// SPDX-License-Identifier: Apache-2.0
//
// Where replicas lie: the rows of the catalogue's groups, and how they are spread over nodes. Pure.
#pragma once

#include <map>
#include <set>

#include "base/ids.h"
#include "client/protocol.pb.h"

namespace hydra {

using ReplicaRow = rpc::CatalogueReplica;
using NodeRow = rpc::CatalogueNode;

inline constexpr size_t kMovesAtOnce = 4;  // groups that spreading changes

bool IsBusy(const rpc::CatalogueGroup& group);            // a replica comes or goes
size_t WantedReplicas(const rpc::CatalogueGroup& group);  // replicas, without those that leave
bool IsOn(const rpc::CatalogueGroup& group, NodeId node);

// A replica that is to come, under an incarnation that the group has not seen.
void AddRow(NodeId node, rpc::CatalogueGroup* group);
// So many are never given.
void SkipIncarnations(uint32_t count, rpc::CatalogueGroup* group);
// False: there is none that stays.
bool LeaveRow(NodeId node, rpc::CatalogueGroup* group);

// How many replicas each node has, and how many groups it should lead, among the nodes that take
// new ones.
struct NodeLoad {
  std::map<NodeId, size_t> replicas;
  std::map<NodeId, size_t> led;

  explicit NodeLoad(const rpc::Catalogue& catalogue);
  // For another replica of the group: the node with the fewest, those that answer first; 0: none.
  NodeId PlaceFor(const rpc::CatalogueGroup& group, const std::set<NodeId>& alive) const;
};

// To the member that stays and leads the fewest, if the present one does not stay.
void FixPreferred(NodeLoad* load, rpc::CatalogueGroup* group);

// Adds replicas that volumes ask for and that there was no node for; while the catalogue says that
// it is rebalancing, also moves replicas from nodes that have more than others, a few at a time,
// and at the end masterships. False: nothing to do now.
bool Spread(const std::set<NodeId>& alive, rpc::Catalogue* catalogue);

}  // namespace hydra
