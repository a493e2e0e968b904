// SPDX-License-Identifier: Apache-2.0
//
// hydractl completion bash: made from the commands themselves, so that it never lags behind them.
#include <iostream>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "daemon/hydractl.h"

namespace hydra::ctl {
namespace {

// "    'volume create') words='--size --shards ...' ;;" for a command and all below it.
void AddCases(const CLI::App& app, const std::string& path, std::string* cases) {
  std::string words;
  std::string positional;
  for (const CLI::App* command : app.get_subcommands({})) {
    words += " " + command->get_name();
    AddCases(*command, path.empty() ? command->get_name() : path + " " + command->get_name(),
             cases);
  }
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) words += " --" + name;
    if (option->get_positional()) positional = option->get_name(true);
    if (option->get_name(true) == "VOLUME") words += " $(_hydractl_volumes)";
  }
  const bool files = positional == "FILE" || positional == "DIR";
  *cases += fmt::format("    '{}') words=\"{}\"{} ;;\n", path, words.substr(words.empty() ? 0 : 1),
                        files ? " files=1" : "");
}

constexpr std::string_view kHead = R"BASH(# bash completion for hydractl; use it with:
#   source <(hydractl completion bash)
_hydractl_volumes() { hydractl volume list --quiet --timeout 1s 2>/dev/null; }
_hydractl() {
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}
  local path='' words='' files='' word
  case $previous in
    --input | --output | --compare | --temp | --secret-file | --mutual-secret-file)
      mapfile -t COMPREPLY < <(compgen -f -- "$current")
      return
      ;;
    --rw)
      mapfile -t COMPREPLY < <(compgen -W 'read write rw randread randwrite randrw' -- "$current")
      return
      ;;
    --volume)
      mapfile -t COMPREPLY < <(compgen -W "$(_hydractl_volumes)" -- "$current")
      return
      ;;
  esac
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    case "$path${path:+ }$word" in
)BASH";

constexpr std::string_view kMiddle = R"BASH() path="$path${path:+ }$word" ;;
    esac
  done
  case $path in
)BASH";

constexpr std::string_view kTail = R"BASH(  esac
  mapfile -t COMPREPLY < <(compgen -W "$words --json --cluster --timeout --help" -- "$current")
  if [[ -n $files ]]; then
    mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -f -- "$current")
  fi
}
complete -o filenames -F _hydractl hydractl
)BASH";

void AddPaths(const CLI::App& app, const std::string& path, std::string* paths) {
  for (const CLI::App* command : app.get_subcommands({})) {
    const std::string name = path.empty() ? command->get_name() : path + " " + command->get_name();
    *paths += fmt::format("{}'{}'", paths->empty() ? "      " : " | ", name);
    AddPaths(*command, name, paths);
  }
}

}  // namespace

void AddCompletionCommand(CLI::App* app, Context* context) {
  CLI::App* completion =
      app->add_subcommand("completion", "Print a completion script for a shell.");
  completion->require_subcommand(1);
  CLI::App* bash = completion->add_subcommand("bash", "Use it: source <(hydractl completion bash)");
  bash->callback([=] {
    context->action = [=] {
      std::string cases;
      std::string paths;
      AddCases(*app, "", &cases);
      AddPaths(*app, "", &paths);
      std::cout << kHead << paths << kMiddle << cases << kTail;
      return static_cast<int>(kExitOk);
    };
  });
}

}  // namespace hydra::ctl
