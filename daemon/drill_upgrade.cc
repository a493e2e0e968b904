// SPDX-License-Identifier: Apache-2.0
//
// The drill rolling-upgrade: one node after the other is restarted, and comes back with a build
// that knows more. What it knows must not be used before the last one knows it too: until then a
// node could be started again with the old build, and would not understand the others.
#include <chrono>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "daemon/drill_http.h"
#include "daemon/drill_run.h"

namespace hydra::drill {
namespace {

using std::chrono::steady_clock;

constexpr unsigned kMixed = 1000;  // ms that nodes of both builds work together
constexpr unsigned kAskAgain = 50;
// Until the catalogue says what all nodes can.
constexpr std::chrono::seconds kLevelPatience(20);

struct Levels {
  uint32_t node = 0;     // what the node knows
  uint32_t cluster = 0;  // what is used, as far as it has heard
};

Result<Levels> LevelsOf(Run& run, uint32_t node) {
  HYDRA_ASSIGN_OR_RETURN(const std::string page, StatusPage(node, run.http(node)));
  const nlohmann::json json = nlohmann::json::parse(page, nullptr, false);
  if (!json.is_object() || !json.contains("feature_level") ||
      !json.contains("cluster_feature_level")) {
    return Status::Unavailable(fmt::format("node {} does not say its feature level", node));
  }
  return Levels{json.value("feature_level", 0u), json.value("cluster_feature_level", 0u)};
}

// What the cluster uses, as the node knows that has heard most.
Result<uint32_t> ClusterLevel(Run& run) {
  uint32_t level = 0;
  for (const uint32_t node : run.nodes()) {
    HYDRA_ASSIGN_OR_RETURN(const Levels levels, LevelsOf(run, node));
    level = std::max(level, levels.cluster);
  }
  return level;
}

// Every node has heard that the cluster uses all that every node can.
Status AwaitLevel(Run& run, uint32_t before) {
  const auto deadline = steady_clock::now() + kLevelPatience;
  while (true) {
    uint32_t used = UINT32_MAX;
    uint32_t can = UINT32_MAX;
    for (const uint32_t node : run.nodes()) {
      HYDRA_ASSIGN_OR_RETURN(const Levels levels, LevelsOf(run, node));
      used = std::min(used, levels.cluster);
      can = std::min(can, levels.node);
    }
    if (used > before && used == can) {
      run.Amend(fmt::format("the last one; the cluster's feature level rises to {}", used));
      return Status::Ok();
    }
    if (run.interrupted()) return Status::Aborted("interrupted");
    if (steady_clock::now() >= deadline) {
      return Status::Unavailable(fmt::format(
          "every node knows features of level {}, and the cluster uses those of {}", can, used));
    }
    run.Wait(kAskAgain);
  }
}

Status Upgrade(Run& run, uint32_t node, uint32_t before) {
  run.Begin(fmt::format("node {} restarted with a build that knows more", node));
  HYDRA_RETURN_IF_ERROR(run.Do("restart", node));
  run.Restored();
  HYDRA_RETURN_IF_ERROR(run.Recover());
  HYDRA_RETURN_IF_ERROR(run.CheckRestarted({node}));
  HYDRA_ASSIGN_OR_RETURN(const Levels levels, LevelsOf(run, node));
  if (levels.node > before) return Status::Ok();
  return Status::FailedPrecondition(fmt::format(
      "node {} came back with feature level {}, which the cluster uses already: install a newer "
      "build first, or form the cluster with an older level (docs/drills.md)",
      node, levels.node));
}

}  // namespace

Status RollingUpgrade(Run& run) {
  run.Enough();
  HYDRA_ASSIGN_OR_RETURN(const uint32_t before, ClusterLevel(run));
  for (const uint32_t node : run.nodes()) {
    HYDRA_RETURN_IF_ERROR(Upgrade(run, node, before));
    if (node == run.nodes().back()) return AwaitLevel(run, before);
    run.Hold(kMixed);
    HYDRA_ASSIGN_OR_RETURN(const uint32_t now, ClusterLevel(run));
    if (now != before) {
      return Status::FailedPrecondition(
          fmt::format("the cluster uses features of level {}, and node {} does not know them", now,
                      run.nodes().back()));
    }
    if (run.interrupted()) return Status::Aborted("interrupted");
  }
  return Status::Ok();
}

}  // namespace hydra::drill
