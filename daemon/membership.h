// SPDX-License-Identifier: Apache-2.0
//
// Which nodes there are and where replicas lie: changes of the catalogue, and what follows from
// them. A change says what is wanted; masters of groups bring it about (daemon/member_plan.h) and
// report, and the master of group 0 notes what is done (NoteGroup, TendMembership).
//
// A row of a group is MEMBER, JOINING or LEAVING. JOINING becomes MEMBER when the replica votes;
// a LEAVING row goes when it is not among the members any more, in whatever role. So what is under
// way can always be read from the catalogue, and whoever becomes master of whatever goes on with
// it.
//
// Everything here is pure, as in daemon/catalogue.h.
#pragma once

#include <set>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "client/protocol.pb.h"
#include "paxos/types.h"

namespace hydra {

inline constexpr size_t kMaxNodes = paxos::kMaxMembers;  // all are members of group 0

// --- What people ask for. Each says what is wrong and what to do, and changes nothing then. ---
// `alive`: the nodes that answer the master of group 0.
Status ChangeNodes(const rpc::ChangeNodes& request, const std::set<NodeId>& alive,
                   rpc::Catalogue* catalogue);

// The majority is lost for good, and this node decides alone: all others are lost.
void OnlySurvivor(NodeId survivor, rpc::Catalogue* catalogue);

// --- What is wanted. ---
// Of a group other than 0.
std::vector<paxos::Member> WantedMembers(const rpc::CatalogueGroup& group);
// Of group 0: all nodes; 3 or 5 of them vote, those who do already if possible.
std::vector<paxos::Member> WantedSystemMembers(const rpc::Catalogue& catalogue,
                                               const paxos::Config& now);
// The members that a group was formed with.
std::vector<paxos::Member> FirstMembers(const rpc::CatalogueGroup& group);
uint32_t SystemIncarnation(const rpc::CatalogueNode& node);

// --- What is done. ---
// Whether the report tells something that the group's rows do not say yet.
bool IsNews(const rpc::GroupReport& report, const rpc::CatalogueGroup& group);
void NoteGroup(const rpc::GroupReport& report, rpc::Catalogue* catalogue);
// What the master of group 0 sees of that.
struct SystemView {
  paxos::Config config;
  std::set<paxos::MemberId> near;  // learners that have what it has, or nearly
  std::set<NodeId> alive;
};
// What follows by itself: nodes that have arrived or left, replicas for those that are missing,
// the next moves of a rebalancing. False: nothing.
bool TendMembership(const SystemView& view, rpc::Catalogue* catalogue);

// Nodes and groups with something under way.
size_t ChangesUnderWay(const rpc::Catalogue& catalogue);
// active, joining, lost (it joins, and no data directory speaks for it), draining
const char* StateName(const rpc::CatalogueNode& node);
// Whether this data directory was the node's before it was replaced; and what to say to it then.
bool IsFormerStore(const rpc::CatalogueNode& node, const std::string& store);
Status FormerStore(NodeId node);
// Why a data directory is not, or not yet, that of this node; OK: it is, or may become it.
Status MayBeStoreOf(const rpc::Catalogue& catalogue, NodeId node, const std::string& store,
                    bool joining);

}  // namespace hydra
