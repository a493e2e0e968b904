// SPDX-License-Identifier: Apache-2.0
//
// store-tool: looks at a Hydra data directory and never changes it. `hydractl debug` does the same.
//
// Exit codes: 0 nothing wrong (a torn tail is nothing wrong: it is what power loss leaves, and the
// engine cuts it), 1 damage, 2 wrong usage, no store, or a store that cannot be read.
#include <CLI/CLI.hpp>

#include "daemon/store_tool_commands.h"

namespace hydra::store_tool {
namespace {

constexpr int kExitClean = 0;
constexpr int kExitDamage = 1;
constexpr int kExitUnusable = 2;

int Main(int argc, char** argv) {
  CLI::App app("Looks at a Hydra data directory. Never changes it.", "store-tool");
  app.require_subcommand(1);
  app.footer(
      "Exit codes: 0 clean (a torn tail is clean), 1 damage found, 2 usage, not a store, or "
      "cannot read.");
  Options options;
  auto* dump = app.add_subcommand("dump", "Print what is in the store.");
  auto* verify = app.add_subcommand("verify", "Check every batch and every row of the map.");
  for (CLI::App* command : {dump, verify}) {
    command->add_option("DIR", options.directory, "The data directory")->required();
    command->add_flag("--force", options.force,
                      "Look even if a process uses the store: findings may be "
                      "its work in progress");
    command->add_option("--temp", options.temporary_parent, "Where to put the copy of the map");
  }
  verify->add_flag("--json", options.json, "Print one JSON object");
  dump->add_flag("--json", options.json, "Print one JSON object per line");
  dump->add_option("--segment", options.dump.segment, "Only this segment");
  dump->add_option("--group", options.dump.group, "Only this group's records and rows");
  dump->add_flag("--records", options.dump.records, "Records as well");
  dump->add_flag("--map", options.dump.map, "Map rows as well");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitClean : kExitUnusable;
  }
  const Outcome outcome =
      verify->parsed() ? Verify("store-tool", options) : Dump("store-tool", options);
  switch (outcome) {
    case Outcome::kClean: return kExitClean;
    case Outcome::kDamage: return kExitDamage;
    case Outcome::kUnusable: break;
  }
  return kExitUnusable;
}

}  // namespace
}  // namespace hydra::store_tool

int main(int argc, char** argv) { return hydra::store_tool::Main(argc, argv); }
