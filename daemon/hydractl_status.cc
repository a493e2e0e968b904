// SPDX-License-Identifier: Apache-2.0
//
// hydractl status, node list, group list, master move
#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <thread>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "daemon/hydractl.h"
#include "daemon/recovery_estimate.h"

namespace hydra::ctl {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kAskAgain(200);
// Between two looks at replicas that catch up, to see how fast.
constexpr milliseconds kSecondLook(1000);
constexpr uint64_t kCatalogueBlock = 4096;

struct StatusArguments {
  bool wait = false;
  std::string volume;
  uint32_t group = 0;
  uint32_t node = 0;
};

// One group, seen from all of its replicas.
struct Group {
  struct Replica {
    uint32_t node = 0;
    ReplicaInfo info;
    uint64_t lag = 0;  // behind the replica that knows most
  };
  uint32_t id = 0;
  std::string volume;  // "(catalogue)" for group 0
  std::string change;  // of members, under way
  size_t shard = 0;
  uint32_t master = 0;  // 0: nobody serves
  uint64_t commit = 0;
  uint64_t expected = 0;  // a replica that has applied so much is up to date
  std::vector<Replica> replicas;
};

struct Picture {
  std::vector<NodeInfo> nodes;
  std::vector<VolumeInfo> volumes;
  std::vector<Group> groups;
  std::map<uint32_t, NodeRecovery> recovery;  // by node; after a second look

  size_t nodes_up() const {
    return static_cast<size_t>(std::count_if(nodes.begin(), nodes.end(), [](const NodeInfo& node) {
      return node.reachable.ok() && node.failed.empty();
    }));
  }
  size_t groups_served() const {
    return static_cast<size_t>(std::count_if(groups.begin(), groups.end(),
                                             [](const Group& group) { return group.master != 0; }));
  }
  uint64_t largest_lag() const {
    uint64_t lag = 0;
    for (const Group& group : groups) {
      for (const Group::Replica& replica : group.replicas) lag = std::max(lag, replica.lag);
    }
    return lag;
  }
  bool up_to_date() const {
    for (const Group& group : groups) {
      for (const Group::Replica& replica : group.replicas) {
        if (replica.info.applied < group.expected || replica.info.owed_bytes > 0) return false;
      }
    }
    return true;
  }
  bool installing() const {
    return std::ranges::any_of(groups, [](const Group& group) {
      return std::ranges::any_of(group.replicas, [](const Group::Replica& replica) {
        return replica.info.role == "installing";
      });
    });
  }
  // Of nodes and replicas, under way.
  size_t changes() const {
    size_t most = 0;
    for (const NodeInfo& node : nodes) {
      if (node.reachable.ok()) most = std::max(most, node.changes);
      if (node.state != "active") most = std::max<size_t>(most, 1);
    }
    return most;
  }
  bool served() const { return groups_served() == groups.size(); }
  bool complete() const {
    return served() && nodes_up() == nodes.size() && up_to_date() && changes() == 0;
  }
};

Result<Picture> Look(Cluster* cluster) {
  Picture picture;
  HYDRA_ASSIGN_OR_RETURN(picture.volumes, cluster->volumes());
  HYDRA_ASSIGN_OR_RETURN(picture.nodes, cluster->GetStatus(true));
  std::map<uint32_t, Group> groups;
  groups[0].volume = "(catalogue)";
  for (const VolumeInfo& volume : picture.volumes) {
    for (size_t shard = 0; shard < volume.groups.size(); ++shard) {
      Group& group = groups[volume.groups[shard]];
      group.volume = volume.name;
      group.shard = shard;
    }
  }
  for (const NodeInfo& node : picture.nodes) {
    for (const ReplicaInfo& replica : node.replicas) {
      const auto known = groups.find(replica.group);
      if (known == groups.end()) continue;  // its volume was deleted a moment ago
      Group& group = known->second;
      group.commit = std::max({group.commit, replica.commit, replica.applied});
      if (replica.role == "master" && replica.ready) {
        group.master = node.node;
        group.change = replica.change;
      }
      group.replicas.push_back({node.node, replica, 0});
    }
  }
  for (auto& [id, group] : groups) {
    group.id = id;
    group.expected = group.commit;
    for (Group::Replica& replica : group.replicas) {
      replica.lag = group.commit - replica.info.applied;
    }
    picture.groups.push_back(std::move(group));
  }
  return picture;
}

std::string NodeState(const NodeInfo& node) {
  if (!node.reachable.ok()) return "down";
  return node.failed.empty() ? "up" : "failed";
}

// With what is being changed about it.
std::string NodeStateText(const NodeInfo& node) {
  return node.state == "active" ? NodeState(node) : NodeState(node) + ", " + node.state;
}

// --- status -------------------------------------------------------------------------------------

Json NodeJson(const NodeInfo& node, bool sessions) {
  Json json{{"node", node.node}, {"address", node.address}, {"state", NodeState(node)}};
  json["membership"] = node.state;
  if (!node.reachable.ok()) {
    json["reason"] = std::string(node.reachable.message());
    return json;
  }
  if (!node.failed.empty()) json["reason"] = node.failed;
  json["http"] = node.http;
  json["iscsi"] = node.iscsi;
  json["version"] = node.version;
  json["feature_level"] = node.feature_level;
  json["cluster_feature_level"] = node.cluster_feature_level;
  json["uptime_ms"] = node.uptime.count();
  json["connected"] = node.connected;
  json["space_bytes"] = node.space_bytes;
  json["capacity_bytes"] = node.capacity_bytes;
  json["free_bytes"] = node.free_bytes;
  if (sessions) json["sessions"] = SessionsJson(node);
  return json;
}

std::string RecoveryText(const NodeRecovery& node) {
  std::vector<std::string> parts;
  if (node.installing > 0) {
    parts.push_back(fmt::format("{} of {} of {} group{} taken in, {}/s", BytesText(node.have_bytes),
                                BytesText(node.of_bytes), node.installing,
                                node.installing == 1 ? "" : "s", BytesText(node.bytes_per_second)));
  }
  if (node.owed > 0) {
    parts.push_back(fmt::format("{} of {} group{} to come, {}/s", BytesText(node.owed_bytes),
                                node.owed, node.owed == 1 ? "" : "s",
                                BytesText(node.owed_per_second)));
  }
  if (node.behind > 0) {
    parts.push_back(fmt::format("{} entries of {} group{} to come, {}/s", node.entries, node.behind,
                                node.behind == 1 ? "" : "s", node.entries_per_second));
  }
  parts.push_back(node.left ? fmt::format("about {} left", DurationText(*node.left))
                            : std::string("no telling how long"));
  return fmt::format("{}", fmt::join(parts, "; "));
}

void PrintStatus(const Picture& picture) {
  const char* state = "some data cannot be read or written now";
  if (picture.complete()) {
    state = "healthy";
  } else if (picture.served()) {
    state = picture.changes() == 0 ? "everything is served; a replica is missing or catching up"
                                   : "everything is served; nodes or replicas are being changed";
  }
  std::cout << "cluster: " << state << "\n"
            << fmt::format("nodes:   {} of {} up\n", picture.nodes_up(), picture.nodes.size())
            << fmt::format("groups:  {} of {} have a master\n", picture.groups_served(),
                           picture.groups.size());
  uint64_t bytes = 0;
  for (const VolumeInfo& volume : picture.volumes) bytes += volume.bytes;
  std::cout << fmt::format("volumes: {}, {} together\n", picture.volumes.size(), BytesText(bytes));
  if (picture.changes() > 0) {
    std::cout << fmt::format("changes: {} under way\n", picture.changes());
  }
  for (const auto& [node, recovery] : picture.recovery) {
    std::cout << fmt::format("node {} catches up: {}\n", node, RecoveryText(recovery));
  }
  std::map<uint32_t, size_t> leads;
  std::map<uint32_t, uint64_t> lag;
  for (const Group& group : picture.groups) {
    ++leads[group.master];
    for (const Group::Replica& replica : group.replicas) {
      lag[replica.node] = std::max(lag[replica.node], replica.lag);
    }
  }
  std::cout << "\n";
  Table table({"NODE", "STATE", "ADDRESS", "LEADS", "LAG", "SPACE", "FREE", "UPTIME"});
  for (const NodeInfo& node : picture.nodes) {
    if (!node.reachable.ok()) {
      table.Add({std::to_string(node.node), NodeStateText(node), node.address, "-", "-", "-", "-",
                 std::string(node.reachable.message())});
      continue;
    }
    table.Add({std::to_string(node.node), NodeStateText(node), node.address,
               std::to_string(leads[node.node]), std::to_string(lag[node.node]),
               BytesText(node.space_bytes), BytesText(node.free_bytes), DurationText(node.uptime)});
  }
  table.Print();
  for (const NodeInfo& node : picture.nodes) {
    if (!node.failed.empty()) std::cout << "\nnode " << node.node << ": " << node.failed << "\n";
  }
  size_t sessions = 0;
  for (const NodeInfo& node : picture.nodes) sessions += node.sessions.size();
  if (sessions == 0) return;
  std::cout << fmt::format("\niSCSI sessions: {}\n", sessions);
  PrintSessions(picture.nodes, "");
}

// While clients write, replicas are always an entry or two behind. Who has what was chosen at an
// earlier look is up to date.
void ExpectAsBefore(const Picture& before, Picture* picture) {
  std::map<uint32_t, uint64_t> chosen;
  for (const Group& group : before.groups) chosen[group.id] = group.commit;
  for (Group& group : picture->groups) {
    const auto found = chosen.find(group.id);
    if (found != chosen.end()) group.expected = std::min(group.commit, found->second);
  }
}

RecoveryLook ProgressOf(const Picture& picture) {
  std::map<std::string, uint32_t> block_bytes;
  for (const VolumeInfo& volume : picture.volumes) block_bytes[volume.name] = volume.block_bytes;
  RecoveryLook look;
  for (const Group& group : picture.groups) {
    uint64_t blocks = 0;
    for (const Group::Replica& replica : group.replicas) {
      if (replica.node == group.master) blocks = replica.info.data_blocks;
    }
    const uint64_t bytes = group.id == 0 ? kCatalogueBlock : block_bytes[group.volume];
    for (const Group::Replica& replica : group.replicas) {
      const uint64_t known = replica.info.data_blocks * bytes;
      look[{replica.node, group.id}] = {.installing = replica.info.role == "installing",
                                        .have_bytes = known,
                                        .of_bytes = blocks * bytes,
                                        .owed_bytes = replica.info.owed_bytes,
                                        .applied = replica.info.applied,
                                        .expected = group.expected};
    }
  }
  return look;
}

// Looks again, if some replica is behind: only then can be told whether it is more than what is
// under way at any moment, and when it will be there.
void LookAgain(Cluster* cluster, Picture* picture) {
  if (picture->up_to_date() && !picture->installing()) return;
  const auto began = steady_clock::now();
  std::this_thread::sleep_for(kSecondLook);
  Result<Picture> again = Look(cluster);
  if (!again.ok()) return;
  ExpectAsBefore(*picture, &*again);
  const auto took = std::chrono::duration_cast<milliseconds>(steady_clock::now() - began);
  again->recovery = EstimateRecovery(ProgressOf(*picture), ProgressOf(*again), took);
  *picture = std::move(*again);
}

Json RecoveryJson(const Picture& picture) {
  Json list = Json::array();
  for (const auto& [id, node] : picture.recovery) {
    Json json{{"node", id},
              {"groups_installing", node.installing},
              {"bytes", node.have_bytes},
              {"of_bytes", node.of_bytes},
              {"bytes_per_second", node.bytes_per_second},
              {"groups_owed", node.owed},
              {"owed_bytes", node.owed_bytes},
              {"owed_bytes_per_second", node.owed_per_second},
              {"groups_behind", node.behind},
              {"entries", node.entries},
              {"entries_per_second", node.entries_per_second},
              {"seconds_left", nullptr}};
    if (node.left) json["seconds_left"] = node.left->count();
    list.push_back(std::move(json));
  }
  return list;
}

int RunStatus(const Context& context, bool wait) {
  const auto deadline = steady_clock::now() + milliseconds(context.timeout_ms);
  Result<Cluster> cluster = context.Connect();
  if (!cluster.ok()) return context.Fail(cluster.status());
  std::optional<Picture> picture;
  while (true) {
    Result<Picture> seen = Look(&*cluster);
    if (!seen.ok() && (!wait || steady_clock::now() >= deadline)) {
      return context.Fail(seen.status());
    }
    if (seen.ok() && picture) ExpectAsBefore(*picture, &*seen);
    if (seen.ok()) picture = std::move(*seen);
    const bool enough = picture && (!wait || picture->complete());
    if (enough || steady_clock::now() >= deadline) break;
    std::this_thread::sleep_for(kAskAgain);
  }
  if (!picture) return context.Fail(Status::Unavailable("the cluster did not answer in time"));
  if (!wait && picture->served()) LookAgain(&*cluster, &*picture);
  if (context.json) {
    Json json{{"healthy", picture->complete()},
              {"served", picture->served()},
              {"nodes_up", picture->nodes_up()},
              {"groups", picture->groups.size()},
              {"groups_served", picture->groups_served()},
              {"volumes", picture->volumes.size()},
              {"largest_lag", picture->largest_lag()},
              {"changes", picture->changes()},
              {"recovery", RecoveryJson(*picture)},
              {"nodes", Json::array()}};
    for (const NodeInfo& node : picture->nodes) json["nodes"].push_back(NodeJson(node, true));
    Print(json);
  } else {
    PrintStatus(*picture);
  }
  return wait ? (picture->complete() ? kExitOk : kExitUnavailable)
              : (picture->served() ? kExitOk : kExitUnavailable);
}

// --- node list ----------------------------------------------------------------------------------

// What it can do, and what the cluster uses as it has heard: during an upgrade these differ.
std::string LevelText(const NodeInfo& node) {
  if (node.cluster_feature_level == 0) return std::to_string(node.feature_level);
  return fmt::format("{}/{}", node.feature_level, node.cluster_feature_level);
}

int NodeList(const Context& context) {
  Result<Cluster> cluster = context.Connect();
  if (!cluster.ok()) return context.Fail(cluster.status());
  const Result<std::vector<NodeInfo>> nodes = cluster->GetStatus(false);
  if (!nodes.ok()) return context.Fail(nodes.status());
  if (context.json) {
    Json list = Json::array();
    for (const NodeInfo& node : *nodes) list.push_back(NodeJson(node, false));
    Print(list);
    return kExitOk;
  }
  Table table(
      {"NODE", "STATE", "ADDRESS", "VERSION", "LEVEL", "UPTIME", "PEERS", "SPACE", "CAPACITY"});
  for (const NodeInfo& node : *nodes) {
    if (!node.reachable.ok()) {
      table.Add({std::to_string(node.node), NodeStateText(node), node.address, "-", "-", "-", "-",
                 "-", std::string(node.reachable.message())});
      continue;
    }
    table.Add({std::to_string(node.node), NodeStateText(node), node.address, node.version,
               LevelText(node), DurationText(node.uptime),
               fmt::format("{}", fmt::join(node.connected, " ")), BytesText(node.space_bytes),
               node.capacity_bytes == 0 ? "-" : BytesText(node.capacity_bytes)});
  }
  table.Print();
  return kExitOk;
}

// --- group list ---------------------------------------------------------------------------------

Json GroupJson(const Group& group) {
  Json json{{"group", group.id},      {"volume", group.volume}, {"shard", group.shard},
            {"master", group.master}, {"commit", group.commit}, {"replicas", Json::array()}};
  if (!group.change.empty()) json["change"] = group.change;
  for (const Group::Replica& replica : group.replicas) {
    json["replicas"].push_back({{"node", replica.node},
                                {"incarnation", replica.info.incarnation},
                                {"role", replica.info.role},
                                {"ready", replica.info.ready},
                                {"ballot_round", replica.info.ballot_round},
                                {"ballot_node", replica.info.ballot_node},
                                {"commit", replica.info.commit},
                                {"applied", replica.info.applied},
                                {"lag", replica.lag},
                                {"data_blocks", replica.info.data_blocks},
                                {"owed_bytes", replica.info.owed_bytes}});
  }
  return json;
}

int GroupList(const Context& context, const std::string& volume) {
  Result<Cluster> cluster = context.Connect();
  if (!cluster.ok()) return context.Fail(cluster.status());
  Result<Picture> picture = Look(&*cluster);
  if (!picture.ok()) return context.Fail(picture.status());
  if (!volume.empty()) {
    std::erase_if(picture->groups, [&](const Group& group) { return group.volume != volume; });
    if (picture->groups.empty()) {
      return context.Fail(Status::NotFound(fmt::format(
          "there is no volume '{}'; `hydractl volume list` shows what there is", volume)));
    }
  }
  if (context.json) {
    Json list = Json::array();
    for (const Group& group : picture->groups) list.push_back(GroupJson(group));
    Print(list);
    return kExitOk;
  }
  Table table({"GROUP", "VOLUME", "SHARD", "MASTER", "BALLOT", "APPLIED", "REPLICAS (NODE:LAG)"});
  for (const Group& group : picture->groups) {
    uint64_t round = 0;
    uint32_t node = 0;
    uint64_t applied = 0;
    std::vector<std::string> replicas;
    for (const Group::Replica& replica : group.replicas) {
      if (std::pair(replica.info.ballot_round, replica.info.ballot_node) > std::pair(round, node)) {
        round = replica.info.ballot_round;
        node = replica.info.ballot_node;
      }
      applied = std::max(applied, replica.info.applied);
      const bool usual = replica.info.role == "master" || replica.info.role == "follower";
      replicas.push_back(fmt::format("{}:{}{}", replica.node, replica.lag,
                                     usual ? "" : " (" + replica.info.role + ")"));
    }
    table.Add({std::to_string(group.id), group.volume,
               group.id == 0 ? "-" : std::to_string(group.shard),
               group.master == 0 ? "none" : std::to_string(group.master),
               fmt::format("{}.{}", round, node), std::to_string(applied),
               fmt::format("{}{}", fmt::join(replicas, "  "),
                           group.change.empty() ? "" : "  [" + group.change + "]")});
  }
  table.Print();
  return kExitOk;
}

// --- master move --------------------------------------------------------------------------------

// The hand-over is asked for, then watched until the new master serves.
int MoveMaster(const Context& context, uint32_t group, uint32_t node) {
  const auto deadline = steady_clock::now() + milliseconds(context.timeout_ms);
  Result<Cluster> cluster = context.Connect();
  if (!cluster.ok()) return context.Fail(cluster.status());
  const Result<Picture> before = Look(&*cluster);
  if (!before.ok()) return context.Fail(before.status());
  const auto is_group = [&](const Group& known) { return known.id == group; };
  const auto known = std::find_if(before->groups.begin(), before->groups.end(), is_group);
  if (known == before->groups.end()) {
    return context.Fail(Status::NotFound(
        fmt::format("there is no group {}; `hydractl group list` shows what there is", group)));
  }
  const bool member = std::any_of(known->replicas.begin(), known->replicas.end(),
                                  [&](const Group::Replica& r) { return r.node == node; });
  if (!member) {
    return context.Fail(Status::NotFound(
        fmt::format("node {} has no replica of group {}, or does not answer", node, group)));
  }
  const uint32_t from = known->master;
  if (from != node) {
    const Status moved = cluster->MoveMaster(group, node);
    if (!moved.ok()) return context.Fail(moved);
    while (true) {
      const Result<Picture> now = Look(&*cluster);
      if (now.ok()) {
        const auto found = std::find_if(now->groups.begin(), now->groups.end(), is_group);
        if (found != now->groups.end() && found->master == node) break;
      }
      if (steady_clock::now() >= deadline) {
        return context.Fail(Status::Unavailable(
            fmt::format("node {} has not become master of group {} in time; `hydractl group list` "
                        "shows who is",
                        node, group)));
      }
      std::this_thread::sleep_for(kAskAgain / 4);
    }
  }
  if (context.json) {
    Print({{"group", group}, {"from", from}, {"master", node}});
  } else if (from == node) {
    std::cout << fmt::format("node {} is the master of group {} already\n", node, group);
  } else {
    std::cout << fmt::format("group {}: master moved from node {} to node {}\n", group, from, node);
  }
  return kExitOk;
}

}  // namespace

void AddStatusCommands(CLI::App* app, Context* context) {
  const auto a = std::make_shared<StatusArguments>();
  CLI::App* status = app->add_subcommand("status", "The cluster at a glance.");
  status->add_flag("--wait", a->wait, "Wait (up to --timeout) until it is healthy");
  status->callback([=] { context->action = [=] { return RunStatus(*context, a->wait); }; });

  CLI::App* node = app->add_subcommand("node", "Look at nodes; add, replace and remove them.");
  node->require_subcommand(1);
  CLI::App* nodes = node->add_subcommand("list", "All nodes.");
  nodes->callback([=] { context->action = [=] { return NodeList(*context); }; });

  CLI::App* group = app->add_subcommand("group", "Look at the groups that replicate shards.");
  group->require_subcommand(1);
  CLI::App* groups = group->add_subcommand("list", "All groups: master, ballot, applied, lag.");
  groups->add_option("--volume", a->volume, "Only those of this volume");
  groups->callback([=] { context->action = [=] { return GroupList(*context, a->volume); }; });

  CLI::App* master = app->add_subcommand("master", "Say who leads a group.");
  master->require_subcommand(1);
  CLI::App* move = master->add_subcommand("move", "Hand a group's mastership to another node.");
  move->add_option("GROUP", a->group, "As `hydractl group list` shows it")->required();
  move->add_option("NODE", a->node, "Who is to lead it")->required();
  move->callback(
      [=] { context->action = [=] { return MoveMaster(*context, a->group, a->node); }; });
}

}  // namespace hydra::ctl
