// SPDX-License-Identifier: Apache-2.0
//
// hydractl: the command line of a cluster. docs/hydractl.md is its manual.
#include "daemon/hydractl.h"

#include <csignal>
#include <iostream>

#include <CLI/CLI.hpp>

#include "base/logging.h"
#include "daemon/version.h"

namespace hydra::ctl {
namespace {

constexpr std::string_view kFooter =
    "Every command takes --json, --cluster and --timeout, before or after its name.\n"
    "Sizes are written 4096, 4K, 1M, 1G, 1T (or KiB, MiB ...); times 500ms, 10s, 2m.\n"
    "Exit codes: 0 ok, 1 failed, 2 usage, 3 not found, 4 unavailable or out of time, 5 "
    "miscompare,\n"
    "6 exists already, 7 damaged data, 8 outcome unknown, 9 no space.";

int Main(int argc, char** argv) {
  // A reader that goes away (| head) is an error of a write, not the end of the process.
  std::signal(SIGPIPE, SIG_IGN);
  SetLogLevel(LogLevel::kError);
  Context context;
  CLI::App app("Looks at and changes a Hydra cluster.", "hydractl");
  app.require_subcommand(1);
  app.fallthrough();  // global options may follow the command
  app.footer(std::string(kFooter));
  app.set_version_flag("--version", BuildVersion());
  app.add_option("--cluster", context.cluster, "Addresses of nodes, host:port[,host:port...]")
      ->envname("HYDRA_CLUSTER")
      ->capture_default_str();
  app.add_option("--timeout", context.timeout_ms, "How long a request may take")
      ->transform(DurationOption())
      ->type_name("TIME")
      ->default_str("30s");
  app.add_flag("--json", context.json, "Print JSON, also of errors");
  AddStatusCommands(&app, &context);
  AddScrubCommands(&app, &context);
  AddVolumeCommands(&app, &context);
  AddNodeCommands(&app, &context);
  AddTargetCommands(&app, &context);
  AddIoCommands(&app, &context);
  AddBenchCommand(&app, &context);
  AddDrillCommands(&app, &context);
  AddDebugCommands(&app, &context);
  AddCompletionCommand(&app, &context);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  if (context.timeout_ms == 0) {
    return context.Fail(Status::InvalidArgument("--timeout 0 leaves no time for anything"));
  }
  const int code = context.action();
  std::cout.flush();
  if (!std::cout.good()) return code == kExitOk ? static_cast<int>(kExitFailed) : code;
  return code;
}

}  // namespace
}  // namespace hydra::ctl

int main(int argc, char** argv) { return hydra::ctl::Main(argc, argv); }
