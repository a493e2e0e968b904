// SPDX-License-Identifier: Apache-2.0
//
// hydractl debug dump|verify: looks at the data directory of a node that does not run.
#include <memory>

#include <CLI/CLI.hpp>

#include "daemon/hydractl.h"
#include "daemon/store_tool_commands.h"

namespace hydra::ctl {
namespace {

int ExitOf(store_tool::Outcome outcome) {
  switch (outcome) {
    case store_tool::Outcome::kClean: return kExitOk;
    case store_tool::Outcome::kDamage: return kExitDamage;
    case store_tool::Outcome::kUnusable: break;
  }
  return kExitFailed;
}

}  // namespace

void AddDebugCommands(CLI::App* app, Context* context) {
  const auto options = std::make_shared<store_tool::Options>();
  CLI::App* debug = app->add_subcommand("debug", "Look at the data directory of a stopped node.");
  debug->require_subcommand(1);
  CLI::App* dump = debug->add_subcommand("dump", "Print what is in the store.");
  CLI::App* verify = debug->add_subcommand("verify", "Check every batch and every row of the map.");
  for (CLI::App* command : {dump, verify}) {
    command->add_option("DIR", options->directory, "The data directory")->required();
    command->add_flag(
        "--force", options->force,
        "Look even if a process uses the store: findings may be its work in progress");
    command->add_option("--temp", options->temporary_parent, "Where to put the copy of the map");
  }
  dump->add_option("--segment", options->dump.segment, "Only this segment");
  dump->add_option("--group", options->dump.group, "Only this group's records and rows");
  dump->add_flag("--records", options->dump.records, "Records as well");
  dump->add_flag("--map", options->dump.map, "Map rows as well");
  dump->callback([=] {
    context->action = [=] {
      options->json = context->json;
      return ExitOf(store_tool::Dump("hydractl", *options));
    };
  });
  verify->callback([=] {
    context->action = [=] {
      options->json = context->json;
      return ExitOf(store_tool::Verify("hydractl", *options));
    };
  });
}

}  // namespace hydra::ctl
