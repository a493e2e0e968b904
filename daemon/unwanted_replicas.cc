// SPDX-License-Identifier: Apache-2.0
#include "daemon/unwanted_replicas.h"

#include <utility>

#include "base/logging.h"
#include "daemon/node_core.h"

namespace hydra {

void UnwantedReplicas::Set(const std::set<GroupId>& deleted, const std::set<GroupId>& moved) {
  replicas_.clear();
  for (const GroupId group : moved) replicas_[group] = {};
  for (const GroupId group : deleted) replicas_[group].deleted = true;
}

void UnwantedReplicas::Tend(NodeCore* core, Nanos now) {
  for (auto it = replicas_.begin(); it != replicas_.end();) {
    auto& [group, state] = *it;
    Shard* shard = core->shard(group);
    if (shard == nullptr) {
      it = replicas_.erase(it);
      continue;
    }
    if (!state.deleted && std::as_const(*shard).replica().IsVoter()) {
      shard->TouchReplica().AskMembership(now);
      ++it;
      continue;
    }
    const Status dropped = core->DropGroup(group, now);
    if (dropped.ok()) {
      HYDRA_LOG_INFO("group {}: its replica here is dropped", group);
      it = replicas_.erase(it);
      continue;
    }
    if (!std::exchange(state.refused, true)) {
      HYDRA_LOG_WARN("group {}: its replica here is to be dropped, and cannot be yet: {}", group,
                     dropped.ToString());
    }
    ++it;
  }
}

}  // namespace hydra
