// SPDX-License-Identifier: Apache-2.0
//
// Nodes and replicas that come and go in a drill.
#include <algorithm>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "daemon/drill_run.h"

namespace hydra::drill {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kSettlePatience(300'000);

}  // namespace

// Refused while something else is under way: the others notice a moment later that a node is gone,
// replicas are being spread over nodes that were added.
Status Run::Change(const NodeChange& change) {
  const auto deadline = steady_clock::now() + kChangePatience;
  while (true) {
    const Status changed = cluster_->ChangeNodes(change);
    if (changed.ok() || interrupted() || steady_clock::now() >= deadline) return changed;
    Wait(kLook);
    ShowProgress();
  }
}

Status Run::Replace(uint32_t node) {
  NodeChange change;
  change.kind = NodeChange::Kind::kReplace;
  change.node = node;
  HYDRA_RETURN_IF_ERROR(Change(change));
  lost_.erase(node);
  return Status::Ok();
}

// What failed may have let a node in that will never come: it is to be forgotten again.
void Run::NoteAdded(const std::vector<NodeInfo>& before) {
  const Result<std::vector<NodeInfo>> now = cluster_->GetStatus(false);
  if (!now.ok()) return;
  std::vector<uint32_t> joining;
  for (const NodeInfo& node : *now) {
    const bool known = std::ranges::find(before, node.node, &NodeInfo::node) != before.end();
    if (!known && node.state == "joining") joining.push_back(node.node);
  }
  if (joining.size() == 1) added_.insert(joining.front());  // else somebody else adds one too
}

Status Run::Forget(uint32_t node) {
  NodeChange change;
  change.kind = NodeChange::Kind::kRemove;
  change.node = node;
  HYDRA_RETURN_IF_ERROR(Change(change));
  added_.erase(node);
  return Status::Ok();
}

// The one that is new. Somebody else may add one too: that is not to be removed in the end.
Result<uint32_t> Run::AddNode() {
  HYDRA_ASSIGN_OR_RETURN(const std::vector<NodeInfo> before, cluster_->GetStatus(false));
  const Status done = executor_->Do("add", 0);
  if (!done.ok()) {
    NoteAdded(before);
    return done;
  }
  const auto deadline = steady_clock::now() + kHealthPatience;
  while (steady_clock::now() < deadline && !interrupted()) {
    HYDRA_ASSIGN_OR_RETURN(std::vector<NodeInfo> nodes, cluster_->GetStatus(false));
    std::erase_if(nodes, [&](const NodeInfo& node) {
      return std::ranges::find(before, node.node, &NodeInfo::node) != before.end();
    });
    if (nodes.size() > 1) {
      return Status::FailedPrecondition(
          fmt::format("nodes {} and {} were added at the same time, and only one by this drill",
                      nodes[0].node, nodes[1].node));
    }
    if (!nodes.empty()) {
      const NodeInfo& node = nodes.front();
      added_.insert(node.node);
      if (node.state == "active" && !node.http.empty()) {
        http_[node.node] = node.http;
        watch_->Add(node.node, node.http);
        return node.node;
      }
    }
    Wait(kLook);
  }
  return Status::Unavailable("the node that was added did not join");
}

Status Run::RemoveNode(uint32_t node) {
  watch_->Remove(node);
  HYDRA_RETURN_IF_ERROR(executor_->Do("remove", node));
  http_.erase(node);
  added_.erase(node);
  return Status::Ok();
}

Status Run::SetReplicas(uint32_t replicas) {
  NodeChange change;
  change.kind = NodeChange::Kind::kSetReplicas;
  change.volume = volume_;
  change.replicas = replicas;
  HYDRA_RETURN_IF_ERROR(Change(change));
  replicas_ = replicas;
  return Status::Ok();
}

// What is not as wanted; "" if all is.
Result<std::string> Run::MembersMissing() {
  HYDRA_ASSIGN_OR_RETURN(const std::vector<NodeInfo> nodes, cluster_->GetStatus(true));
  std::map<uint32_t, uint32_t> replicas;
  for (const NodeInfo& node : nodes) {
    if (!node.reachable.ok()) return fmt::format("node {} does not answer", node.node);
    if (node.state != "active") return fmt::format("node {} is {}", node.node, node.state);
    if (node.changes > 0) return fmt::format("{} changes are under way", node.changes);
    for (const ReplicaInfo& replica : node.replicas) ++replicas[replica.group];
  }
  for (const uint32_t group : groups_) {
    // One that is not needed any more goes a moment after all is decided.
    if (replicas[group] == replicas_) continue;
    return fmt::format("group {} has {} replicas, not {}", group, replicas[group], replicas_);
  }
  return std::string();
}

Status Run::AwaitMembers() {
  const auto deadline = steady_clock::now() + kSettlePatience;
  while (true) {
    const Result<std::string> missing = MembersMissing();
    if (missing.ok() && missing->empty()) break;
    if (interrupted()) return Status::Aborted("interrupted");
    if (steady_clock::now() >= deadline) {
      return Status::Unavailable(
          fmt::format("members are not as wanted after {} s: {}", kSettlePatience.count() / 1000,
                      missing.ok() ? *missing : std::string(missing.status().message())));
    }
    Wait(kLook);
  }
  watch_->Recount();
  return Status::Ok();
}

}  // namespace hydra::drill
