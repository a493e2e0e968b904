// SPDX-License-Identifier: Apache-2.0
//
// hydractl target list|show|sessions: volumes as iSCSI initiators see them.
#include <algorithm>
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

Result<TargetView> LookAtTargets(Cluster* cluster) {
  TargetView view;
  HYDRA_ASSIGN_OR_RETURN(view.volumes, cluster->volumes());
  HYDRA_ASSIGN_OR_RETURN(view.portals, cluster->GetStatus(false));
  std::erase_if(view.volumes, [](const VolumeInfo& volume) { return !volume.active; });
  std::erase_if(view.portals, [](const NodeInfo& node) { return node.iscsi.empty(); });
  return view;
}

std::string TargetName(const std::string& volume) {
  return std::string(iscsi::kTargetPrefix) + volume;
}

std::string VolumeName(std::string name) {
  if (name.starts_with(iscsi::kTargetPrefix)) name.erase(0, iscsi::kTargetPrefix.size());
  return name;
}

std::string PortalState(const NodeInfo& node) {
  return node.reachable.ok() && node.failed.empty() ? "up" : "down";
}

Json JsonOf(const VolumeInfo& volume, const std::vector<NodeInfo>& portals) {
  Json list = Json::array();
  for (const NodeInfo& node : portals) {
    list.push_back({{"node", node.node}, {"address", node.iscsi}, {"state", PortalState(node)}});
  }
  return {{"target", TargetName(volume.name)},
          {"volume", volume.name},
          {"lun", 0},
          {"bytes", volume.bytes},
          {"logical_block", volume.logical_block},
          {"block_bytes", volume.block_bytes},
          {"access", AccessJson(volume)},
          {"portals", list}};
}

int ListTargets(const Context& context) {
  Result<Cluster> cluster = context.Connect();
  if (!cluster.ok()) return context.Fail(cluster.status());
  const Result<TargetView> view = LookAtTargets(&*cluster);
  if (!view.ok()) return context.Fail(view.status());
  if (context.json) {
    Json list = Json::array();
    for (const VolumeInfo& volume : view->volumes) {
      list.push_back(JsonOf(volume, view->portals));
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
  Table table({"TARGET", "SIZE", "LOGICAL", "WHO", "PORTALS"});
  for (const VolumeInfo& volume : view->volumes) {
    table.Add({TargetName(volume.name), BytesText(volume.bytes), BytesText(volume.logical_block),
               AccessText(volume.target), fmt::format("{}", fmt::join(addresses, " "))});
  }
  table.Print();
  return kExitOk;
}

Status NoSuchVolume(const std::string& name) {
  return Status::NotFound(
      fmt::format("there is no volume '{}'; `hydractl target list` shows what there is", name));
}

int ListSessions(const Context& context, const std::string& volume) {
  Result<Cluster> cluster = context.Connect();
  if (!cluster.ok()) return context.Fail(cluster.status());
  Result<std::vector<NodeInfo>> nodes = cluster->GetStatus(true);
  if (!nodes.ok()) return context.Fail(nodes.status());
  const std::string target = volume.empty() ? "" : TargetName(VolumeName(volume));
  if (!volume.empty()) {
    const Result<std::vector<VolumeInfo>> volumes = cluster->volumes();
    if (!volumes.ok()) return context.Fail(volumes.status());
    const bool known = std::any_of(volumes->begin(), volumes->end(), [&](const VolumeInfo& info) {
      return TargetName(info.name) == target;
    });
    if (!known) return context.Fail(NoSuchVolume(volume));
  }
  if (!context.json) {
    if (!PrintSessions(*nodes, target)) std::cout << "no sessions\n";
    return kExitOk;
  }
  Json list = Json::array();
  for (NodeInfo& node : *nodes) {
    std::erase_if(node.sessions, [&](const IscsiSessionInfo& session) {
      return !target.empty() && session.target != target;
    });
    for (Json& session : SessionsJson(node)) {
      session["node"] = node.node;
      list.push_back(session);
    }
  }
  Print(list);
  return kExitOk;
}

}  // namespace

int ShowTarget(const Context& context, Cluster* cluster, const std::string& name) {
  const Result<TargetView> view = LookAtTargets(cluster);
  if (!view.ok()) return context.Fail(view.status());
  for (const VolumeInfo& volume : view->volumes) {
    if (volume.name != VolumeName(name)) continue;
    if (context.json) {
      Print(JsonOf(volume, view->portals));
      return kExitOk;
    }
    std::cout << fmt::format(
        "{}: LUN 0, {} ({} bytes), logical blocks of {}, physical ones of {}; for: {}\n",
        TargetName(volume.name), BytesText(volume.bytes), volume.bytes,
        BytesText(volume.logical_block), BytesText(volume.block_bytes), AccessText(volume.target));
    Table table({"PORTAL", "GROUP", "STATE", "URL"});
    for (const NodeInfo& node : view->portals) {
      table.Add({node.iscsi, std::to_string(node.node), PortalState(node),
                 fmt::format("iscsi://{}/{}/0", node.iscsi, TargetName(volume.name))});
    }
    table.Print();
    return kExitOk;
  }
  return context.Fail(NoSuchVolume(name));
}

Result<Json> TargetJson(Cluster* cluster, const std::string& name) {
  HYDRA_ASSIGN_OR_RETURN(const TargetView view, LookAtTargets(cluster));
  for (const VolumeInfo& volume : view.volumes) {
    if (volume.name == name) return JsonOf(volume, view.portals);
  }
  return NoSuchVolume(name);
}

Json SessionsJson(const NodeInfo& node) {
  Json list = Json::array();
  for (const IscsiSessionInfo& session : node.sessions) {
    list.push_back({{"initiator", session.initiator},
                    {"target", session.target},
                    {"address", session.address},
                    {"commands", session.commands},
                    {"read_bytes", session.read_bytes},
                    {"written_bytes", session.written_bytes},
                    {"failed", session.failed},
                    {"aborted", session.aborted},
                    {"damaged", session.damaged},
                    {"tasks", session.tasks}});
  }
  return list;
}

bool PrintSessions(const std::vector<NodeInfo>& nodes, const std::string& target) {
  Table table({"NODE", "INITIATOR", "TARGET", "ADDRESS", "COMMANDS", "READ", "WRITTEN", "TASKS"});
  bool any = false;
  for (const NodeInfo& node : nodes) {
    for (const IscsiSessionInfo& session : node.sessions) {
      if (!target.empty() && session.target != target) continue;
      any = true;
      table.Add({std::to_string(node.node), session.initiator,
                 session.target.empty() ? "(discovery)" : session.target, session.address,
                 std::to_string(session.commands), BytesText(session.read_bytes),
                 BytesText(session.written_bytes), std::to_string(session.tasks)});
    }
  }
  if (any) table.Print();
  return any;
}

void AddTargetCommands(CLI::App* app, Context* context) {
  CLI::App* target = app->add_subcommand("target", "Look at iSCSI targets; say who may use them.");
  target->require_subcommand(1);
  CLI::App* list = target->add_subcommand("list", "All targets and portals.");
  list->callback([=] { context->action = [=] { return ListTargets(*context); }; });
  const auto name = std::make_shared<std::string>();
  CLI::App* show = target->add_subcommand("show", "One target and its portals.");
  show->add_option("VOLUME", *name, "A volume, or the target's name")->required();
  show->callback([=] {
    context->action = [=] {
      Result<Cluster> cluster = context->Connect();
      if (!cluster.ok()) return context->Fail(cluster.status());
      return ShowTarget(*context, &*cluster, *name);
    };
  });
  CLI::App* sessions = target->add_subcommand("sessions", "Who is logged in, and what they do.");
  sessions->add_option("VOLUME", *name, "Only those of this one");
  sessions->callback([=] { context->action = [=] { return ListSessions(*context, *name); }; });
  AddAccessCommands(target, context);
}

}  // namespace hydra::ctl
