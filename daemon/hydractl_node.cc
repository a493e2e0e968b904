// SPDX-License-Identifier: Apache-2.0
//
// hydractl node add|replace|remove, volume set-replicas, rebalance, recover
#include <algorithm>
#include <iostream>
#include <memory>
#include <thread>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "daemon/hydractl.h"

namespace hydra::ctl {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

struct NodeArguments {
  NodeChange change;
  bool wait = false;
  uint32_t survivor = 0;
  bool may_lose_data = false;
};

// What is left to do, as the nodes that answer know it.
Result<size_t> ChangesLeft(Cluster* cluster) {
  HYDRA_ASSIGN_OR_RETURN(const std::vector<NodeInfo> nodes, cluster->GetStatus(false));
  size_t left = 0;
  for (const NodeInfo& node : nodes) {
    if (node.reachable.ok()) left = std::max(left, node.changes);
    if (node.state != "active") left = std::max<size_t>(left, 1);
  }
  return left;
}

int AwaitChanges(const Context& context, Cluster* cluster) {
  const auto deadline = steady_clock::now() + milliseconds(context.timeout_ms);
  while (true) {
    const Result<size_t> left = ChangesLeft(cluster);
    if (left.ok() && *left == 0) return kExitOk;
    if (steady_clock::now() >= deadline) {
      return context.Fail(Status::Unavailable(
          "it goes on, and is not done yet; `hydractl status` and `hydractl group list` show what "
          "it waits for, `hydractl status --wait` waits on"));
    }
    std::this_thread::sleep_for(milliseconds(200));
  }
}

// The number that a node at this address got.
uint32_t NumberOf(Cluster* cluster, const NodeChange& change) {
  if (change.node != 0) return change.node;
  const Result<std::vector<NodeInfo>> nodes = cluster->GetStatus(false);
  if (!nodes.ok()) return 0;
  for (const NodeInfo& node : *nodes) {
    if (node.address == change.address) return node.node;
  }
  return 0;
}

std::string Told(const NodeChange& change, uint32_t node) {
  const char* goes_on = "`hydractl status` shows how it goes on";
  switch (change.kind) {
    case NodeChange::Kind::kAdd:
      return fmt::format(
          "node {} may join. Start it with --join --node {} on an empty data directory; {}", node,
          node, goes_on);
    case NodeChange::Kind::kReplace:
      return fmt::format(
          "node {} is replaced as soon as it is started with --join on an empty data directory; {}",
          node, goes_on);
    case NodeChange::Kind::kRemove:
      return fmt::format("node {} is being emptied, and stops by itself when it is; {}", node,
                         goes_on);
    case NodeChange::Kind::kSetReplicas:
      return fmt::format("{}: {} replicas of each shard; {}", change.volume, change.replicas,
                         goes_on);
    case NodeChange::Kind::kRebalance:
      return fmt::format("replicas and masters are being spread evenly; {}", goes_on);
  }
  return "";
}

int Run(const Context& context, const NodeArguments& arguments) {
  Result<Cluster> cluster = context.Connect();
  if (!cluster.ok()) return context.Fail(cluster.status());
  const Status changed = cluster->ChangeNodes(arguments.change);
  if (!changed.ok()) return context.Fail(changed);
  const uint32_t node = NumberOf(&*cluster, arguments.change);
  if (arguments.wait) {
    const int waited = AwaitChanges(context, &*cluster);
    if (waited != kExitOk) return waited;
  }
  if (context.json) {
    Json json{{"done", arguments.wait}};
    if (node != 0) json["node"] = node;
    Print(json);
  } else {
    std::cout << (arguments.wait ? "done" : Told(arguments.change, node)) << "\n";
  }
  return kExitOk;
}

int Recover(const Context& context, const NodeArguments& arguments) {
  if (!arguments.may_lose_data) {
    return context.Fail(Status::InvalidArgument(fmt::format(
        "this makes node {} decide alone. Writes that were acknowledged and are only on the lost "
        "nodes are lost, and those nodes must never be started on their old data directories "
        "again. Add --yes-i-may-lose-data if that is meant",
        arguments.survivor)));
  }
  Result<Cluster> cluster = context.Connect();
  if (!cluster.ok()) return context.Fail(cluster.status());
  const Status forced = cluster->ForceSurvivor(arguments.survivor);
  if (!forced.ok()) return context.Fail(forced);
  if (context.json) {
    Print({{"survivor", arguments.survivor}});
  } else {
    std::cout << fmt::format(
        "node {} decides alone now. Start the others with --join on empty data directories; "
        "`hydractl status` shows how they come back\n",
        arguments.survivor);
  }
  return kExitOk;
}

CLI::App* Add(CLI::App* under, const char* name, const char* help, NodeChange::Kind kind,
              Context* context, const std::shared_ptr<NodeArguments>& a) {
  CLI::App* command = under->add_subcommand(name, help);
  command->add_flag("--wait", a->wait, "Return when all that follows is done (up to --timeout)");
  command->callback([=] {
    a->change.kind = kind;
    context->action = [=] { return Run(*context, *a); };
  });
  return command;
}

}  // namespace

void AddNodeCommands(CLI::App* app, Context* context) {
  using Kind = NodeChange::Kind;
  const auto a = std::make_shared<NodeArguments>();
  CLI::App* node = app->get_subcommand("node");

  CLI::App* add = Add(node, "add", "Let a new node in.", Kind::kAdd, context, a);
  add->add_option("--id", a->change.node, "Its number; default the next free one");
  add->add_option("--rpc", a->change.address, "HOST:PORT where it will listen")->required();
  add->add_option("--iscsi", a->change.iscsi, "HOST:PORT of its iSCSI portal; it also says itself");
  add->add_option("--http", a->change.http, "HOST:PORT of its HTTP; it also says itself");

  CLI::App* replace = Add(node, "replace", "A node's disk is lost: let it in with an empty one.",
                          Kind::kReplace, context, a);
  replace->add_option("NODE", a->change.node)->required();
  replace->add_option("--rpc", a->change.address, "HOST:PORT, if it comes back at another address");
  replace->add_flag("--force", a->change.force, "Although it answers");

  CLI::App* remove =
      Add(node, "remove", "Move everything off a node, then forget it.", Kind::kRemove, context, a);
  remove->add_option("NODE", a->change.node)->required();
  remove->add_flag("--force", a->change.force,
                   "Although volumes are left with fewer replicas than they ask for");

  CLI::App* replicas =
      Add(app->get_subcommand("volume"), "set-replicas",
          "Change the number of copies of each shard.", Kind::kSetReplicas, context, a);
  replicas->add_option("VOLUME", a->change.volume)->required();
  replicas->add_option("COUNT", a->change.replicas, "3 or 5 (1 with --force)")->required();
  replicas->add_flag("--force", a->change.force, "Allow a single copy");

  CLI::App* recover = app->add_subcommand(
      "recover", "The majority is lost for good: go on from one node. May lose data.");
  recover->add_option("--force-survivor", a->survivor, "The node to go on from")->required();
  recover->add_flag("--yes-i-may-lose-data", a->may_lose_data, "It is meant");
  recover->callback([=] { context->action = [=] { return Recover(*context, *a); }; });

  Add(app, "rebalance", "Spread replicas and masters evenly.", Kind::kRebalance, context, a);
}

}  // namespace hydra::ctl
