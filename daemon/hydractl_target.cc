// SPDX-License-Identifier: Apache-2.0
//
// hydractl target list|show: volumes as iSCSI initiators see them.
#include <iostream>
#include <memory>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "daemon/hydractl.h"
#include "iscsi/target_name.h"

namespace hydra::ctl {
namespace {

struct TargetView {
  std::vector<VolumeInfo> volumes;  // that can be used
  std::vector<NodeInfo> portals;    // nodes that have one
};

Result<TargetView> LookAtTargets(const Context& context) {
  HYDRA_ASSIGN_OR_RETURN(Cluster cluster, context.Connect());
  TargetView view;
  HYDRA_ASSIGN_OR_RETURN(view.volumes, cluster.volumes());
  HYDRA_ASSIGN_OR_RETURN(view.portals, cluster.GetStatus(false));
  std::erase_if(view.volumes, [](const VolumeInfo& volume) { return !volume.active; });
  std::erase_if(view.portals, [](const NodeInfo& node) { return node.iscsi.empty(); });
  return view;
}

std::string TargetName(const VolumeInfo& volume) {
  return std::string(iscsi::kTargetPrefix) + volume.name;
}

std::string PortalState(const NodeInfo& node) {
  return node.reachable.ok() && node.failed.empty() ? "up" : "down";
}

Json TargetJson(const VolumeInfo& volume, const std::vector<NodeInfo>& portals) {
  Json list = Json::array();
  for (const NodeInfo& node : portals) {
    list.push_back({{"node", node.node}, {"address", node.iscsi}, {"state", PortalState(node)}});
  }
  return {{"target", TargetName(volume)},
          {"volume", volume.name},
          {"lun", 0},
          {"bytes", volume.bytes},
          {"portals", list}};
}

int ListTargets(const Context& context) {
  const Result<TargetView> view = LookAtTargets(context);
  if (!view.ok()) return context.Fail(view.status());
  if (context.json) {
    Json list = Json::array();
    for (const VolumeInfo& volume : view->volumes) {
      list.push_back(TargetJson(volume, view->portals));
    }
    Print(list);
    return kExitOk;
  }
  if (view->portals.empty()) {
    std::cout << "no portals; start nodes with --iscsi HOST:PORT\n";
    return kExitOk;
  }
  if (view->volumes.empty()) {
    std::cout << "no targets; each volume is one: hydractl volume create NAME --size 1G\n";
    return kExitOk;
  }
  std::vector<std::string> addresses;
  for (const NodeInfo& node : view->portals) {
    addresses.push_back(PortalState(node) == "up" ? node.iscsi : node.iscsi + " (down)");
  }
  Table table({"TARGET", "SIZE", "PORTALS"});
  for (const VolumeInfo& volume : view->volumes) {
    table.Add({TargetName(volume), BytesText(volume.bytes),
               fmt::format("{}", fmt::join(addresses, " "))});
  }
  table.Print();
  return kExitOk;
}

int ShowTarget(const Context& context, std::string name) {
  if (name.starts_with(iscsi::kTargetPrefix)) name.erase(0, iscsi::kTargetPrefix.size());
  const Result<TargetView> view = LookAtTargets(context);
  if (!view.ok()) return context.Fail(view.status());
  for (const VolumeInfo& volume : view->volumes) {
    if (volume.name != name) continue;
    if (context.json) {
      Print(TargetJson(volume, view->portals));
      return kExitOk;
    }
    std::cout << fmt::format("{}: LUN 0, {} ({} bytes), physical blocks of {}\n",
                             TargetName(volume), BytesText(volume.bytes), volume.bytes,
                             BytesText(volume.block_bytes));
    Table table({"PORTAL", "GROUP", "STATE", "URL"});
    for (const NodeInfo& node : view->portals) {
      table.Add({node.iscsi, std::to_string(node.node), PortalState(node),
                 fmt::format("iscsi://{}/{}/0", node.iscsi, TargetName(volume))});
    }
    table.Print();
    return kExitOk;
  }
  return context.Fail(Status::NotFound(
      fmt::format("there is no volume '{}'; `hydractl target list` shows what there is", name)));
}

}  // namespace

void AddTargetCommands(CLI::App* app, Context* context) {
  CLI::App* target = app->add_subcommand("target", "Look at iSCSI targets.");
  target->require_subcommand(1);
  CLI::App* list = target->add_subcommand("list", "All targets and portals.");
  list->callback([=] { context->action = [=] { return ListTargets(*context); }; });
  const auto name = std::make_shared<std::string>();
  CLI::App* show = target->add_subcommand("show", "One target and its portals.");
  show->add_option("VOLUME", *name, "A volume, or the target's name")->required();
  show->callback([=] { context->action = [=] { return ShowTarget(*context, *name); }; });
}

}  // namespace hydra::ctl
