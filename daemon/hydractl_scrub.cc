// SPDX-License-Identifier: Apache-2.0
//
// hydractl scrub: nodes look for rotten blocks and mend them from their peers.
#include <algorithm>
#include <ctime>
#include <iostream>
#include <memory>

#include <CLI/CLI.hpp>
#include <fmt/chrono.h>
#include <fmt/format.h>

#include "daemon/hydractl.h"

namespace hydra::ctl {
namespace {

struct ScrubArguments {
  uint32_t node = 0;  // 0: all
  uint64_t rate = 0;  // 0: as the node was told when it started
};

std::string TimeText(uint64_t seconds) {
  if (seconds == 0) return "never";
  const auto time = static_cast<std::time_t>(seconds);
  std::tm utc{};
  gmtime_r(&time, &utc);
  return fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", utc);
}

// The nodes that are meant.
Result<std::vector<NodeInfo>> Nodes(Cluster* cluster, const ScrubArguments& a) {
  HYDRA_ASSIGN_OR_RETURN(std::vector<NodeInfo> nodes, cluster->GetStatus(false));
  if (a.node == 0) return nodes;
  std::erase_if(nodes, [&](const NodeInfo& info) { return info.node != a.node; });
  if (nodes.empty()) {
    return Status::NotFound(
        fmt::format("there is no node {}; `hydractl node list` shows what there is", a.node));
  }
  return nodes;
}

// Of all nodes that are meant; says of each what came of it. Fails if any does.
int Order(const Context& context, const ScrubArguments& a, bool start) {
  Result<Cluster> cluster = context.Connect();
  if (!cluster.ok()) return context.Fail(cluster.status());
  const Result<std::vector<NodeInfo>> nodes = Nodes(&*cluster, a);
  if (!nodes.ok()) return context.Fail(nodes.status());
  Json list = Json::array();
  Status first;
  for (const NodeInfo& info : *nodes) {
    const Status done =
        start ? cluster->StartScrub(info.node, a.rate) : cluster->StopScrub(info.node);
    if (context.json) {
      list.push_back({{"node", info.node}, {"ok", done.ok()}, {"message", done.message()}});
    } else if (done.ok()) {
      std::cout << fmt::format("node {}: {}\n", info.node,
                               start ? "scrubbing" : "no longer scrubbing");
    } else {
      std::cout << fmt::format("node {}: {}\n", info.node, done.ToString());
    }
    if (first.ok()) first = done;
  }
  if (context.json) Print(list);
  return first.ok() ? static_cast<int>(kExitOk) : ctl::ExitOf(first);
}

double PercentOf(const ScrubInfo& scrub) {
  if (scrub.complete) return 100;
  return scrub.total == 0 ? 0
                          : std::min(99.9, 100.0 * static_cast<double>(scrub.bytes) /
                                               static_cast<double>(scrub.total));
}

Json ScrubJson(const NodeInfo& info) {
  const ScrubInfo& s = info.scrub;
  Json json{{"node", info.node}, {"reachable", info.reachable.ok()}};
  if (!info.reachable.ok()) {
    json["message"] = info.reachable.message();
    return json;
  }
  json.update({{"running", s.running},
               {"complete", s.complete},
               {"percent", PercentOf(s)},
               {"rate", s.rate},
               {"bytes", s.bytes},
               {"total", s.total},
               {"found", s.found},
               {"repaired", s.repaired},
               {"under repair", s.under_repair},
               {"elapsed ms", s.elapsed.count()},
               {"failed", s.failed},
               {"last completed", s.last_completed},
               {"last found", s.last_found},
               {"next", s.next},
               {"rotten total", s.rotten_total},
               {"repaired total", s.repaired_total},
               {"given up total", s.given_up_total}});
  return json;
}

int Show(const Context& context, const ScrubArguments& a) {
  Result<Cluster> cluster = context.Connect();
  if (!cluster.ok()) return context.Fail(cluster.status());
  const Result<std::vector<NodeInfo>> nodes = Nodes(&*cluster, a);
  if (!nodes.ok()) return context.Fail(nodes.status());
  if (context.json) {
    Json list = Json::array();
    for (const NodeInfo& info : *nodes) list.push_back(ScrubJson(info));
    Print(list);
    return kExitOk;
  }
  Table table({"NODE", "SCRUB", "VERIFIED", "RATE", "FOUND", "REPAIRED", "LAST COMPLETE", "NEXT"});
  for (const NodeInfo& info : *nodes) {
    if (!info.reachable.ok()) {
      table.Add({std::to_string(info.node), "does not answer", "-", "-", "-", "-", "-", "-"});
      continue;
    }
    const ScrubInfo& s = info.scrub;
    const std::string state = s.running           ? fmt::format("{:.1f} %", PercentOf(s))
                              : !s.failed.empty() ? "failed: " + s.failed
                              : s.complete        ? "complete"
                              : s.bytes > 0       ? "stopped"
                                                  : "idle";
    table.Add({std::to_string(info.node), state, BytesText(s.bytes), BytesText(s.rate) + "/s",
               std::to_string(s.found),
               s.under_repair == 0 ? std::to_string(s.repaired)
                                   : fmt::format("{} ({} under way)", s.repaired, s.under_repair),
               TimeText(s.last_completed), s.next == 0 ? "not scheduled" : TimeText(s.next)});
  }
  table.Print();
  return kExitOk;
}

}  // namespace

void AddScrubCommands(CLI::App* app, Context* context) {
  const auto a = std::make_shared<ScrubArguments>();
  CLI::App* scrub = app->add_subcommand("scrub", "Look for rotten blocks, and mend them.");
  scrub->require_subcommand(1);
  CLI::App* start = scrub->add_subcommand("start", "Begin now, or go on at another rate.");
  start->add_option("--rate", a->rate, "Bytes per second; a quarter of it while clients work")
      ->transform(SizeOption())
      ->type_name("SIZE");
  start->callback([=] { context->action = [=] { return Order(*context, *a, true); }; });
  CLI::App* status = scrub->add_subcommand("status", "How far, what was found, when next.");
  status->callback([=] { context->action = [=] { return Show(*context, *a); }; });
  CLI::App* stop = scrub->add_subcommand("stop", "End it; the schedule's next turn begins anew.");
  stop->callback([=] { context->action = [=] { return Order(*context, *a, false); }; });
  for (CLI::App* command : {start, status, stop}) {
    command->add_option("--node", a->node, "Only this node; otherwise all");
  }
}

}  // namespace hydra::ctl
