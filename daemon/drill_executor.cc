// SPDX-License-Identifier: Apache-2.0
#include "daemon/drill_executor.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "daemon/drill_http.h"

namespace hydra::drill {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kCommandPatience(60'000);
// Until all replicas have moved.
constexpr milliseconds kMembersPatience(300'000);
// A block at a time, on a disk that others use.
constexpr milliseconds kRotPatience(60'000);
constexpr size_t kShownOutput = 600;
// Faults end by themselves when a drill dies; it renews nothing, so longer than any holds them.
constexpr int kFaultsLastMs = 300'000;

// What an ssh executor does unless told otherwise. (systemd counts starts, also those that are
// asked for, and refuses the next after some: a drill that starts a node often begins the count
// anew.)
const std::map<std::string, std::string> kSshDefaults = {
    {"kill", "sudo systemctl kill --signal=KILL hydrad"},
    {"start", "sudo systemctl reset-failed hydrad; sudo systemctl start hydrad"},
    {"restart", "sudo systemctl reset-failed hydrad; sudo systemctl restart hydrad"},
    {"pause", "sudo systemctl kill --signal=STOP hydrad"},
    {"resume", "sudo systemctl kill --signal=CONT hydrad"}};

std::vector<std::string> CommandsFor(Need need) {
  switch (need) {
    case Need::kKill: return {"kill", "start"};
    case Need::kPause: return {"pause", "resume"};
    case Need::kRestart: return {"restart"};
    case Need::kWipe: return {"wipe", "start"};
    case Need::kMembers: return {"add", "remove"};
    case Need::kLinks: return {"partition", "slow-link", "heal"};
    case Need::kSlowDisk: return {"slow-disk", "heal"};
    case Need::kFullDisk:
    case Need::kRot: return {};
  }
  return {};
}

bool ChangesMembers(const std::string& action) { return action == "add" || action == "remove"; }

// What is there to be read, added to the end of `output`, of which only the end is kept.
void ReadSome(int pipe, std::string* output) {
  char piece[4096];
  for (ssize_t n = 0; (n = read(pipe, piece, sizeof(piece))) > 0;) {
    output->append(piece, static_cast<size_t>(n));
    if (output->size() > kShownOutput) output->erase(0, output->size() - kShownOutput);
  }
}

}  // namespace

std::string ShellQuote(const std::string& word) {
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string FillTemplate(std::string text, const std::map<std::string, std::string>& values) {
  for (const auto& [name, value] : values) {
    const std::string place = "{" + name + "}";
    for (size_t at = text.find(place); at != std::string::npos;
         at = text.find(place, at + value.size())) {
      text.replace(at, place.size(), value);
    }
  }
  return text;
}

// It is over when the shell ends: what it leaves behind, a daemon say, may keep the pipe.
Result<std::string> ShellOutput(const std::string& line, milliseconds patience) {
  int pipes[2];
  if (pipe2(pipes, O_CLOEXEC) != 0) return Status::IoError("cannot make a pipe");
  const pid_t child = fork();
  if (child == 0) {
    setpgid(0, 0);
    dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
    dup2(pipes[1], STDOUT_FILENO);
    dup2(pipes[1], STDERR_FILENO);
    execl("/bin/sh", "sh", "-c", line.c_str(), static_cast<char*>(nullptr));
    _exit(127);
  }
  close(pipes[1]);
  fcntl(pipes[0], F_SETFL, O_NONBLOCK);
  const auto deadline = steady_clock::now() + patience;
  std::string output;
  int status = 0;
  pid_t ended = child < 0 ? child : 0;
  while (ended == 0 && steady_clock::now() < deadline) {
    pollfd waited{.fd = pipes[0], .events = POLLIN, .revents = 0};
    // A closed pipe is readable at once, so the time is spent in one place or the other.
    if (poll(&waited, 1, 5) > 0 && (waited.revents & POLLIN) == 0) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    ReadSome(pipes[0], &output);
    ended = waitpid(child, &status, WNOHANG);
  }
  if (ended == 0) {
    kill(-child, SIGKILL);
    waitpid(child, &status, 0);
  }
  ReadSome(pipes[0], &output);
  close(pipes[0]);
  while (!output.empty() && output.back() == '\n') output.pop_back();
  const std::string said = output.empty() ? "" : ": " + output;
  if (ended < 0) return Status::IoError("cannot start another process");
  if (ended == 0) {
    return Status::IoError(
        fmt::format("`{}` did not end within {} s{}", line, patience.count() / 1000, said));
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return output;
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return Status::IoError(fmt::format("`{}` failed with {}{}", line, code, said));
}

Status RunShell(const std::string& line, milliseconds patience) {
  return ShellOutput(line, patience).status();
}

std::string FaultsJson(const NodeFaults& faults) {
  std::vector<std::string> links;
  for (const uint32_t peer : faults.cut)
    links.push_back(fmt::format("\"{}\":{{\"drop\":true}}", peer));
  for (const uint32_t peer : faults.slow) {
    if (faults.cut.contains(peer)) continue;
    links.push_back(fmt::format("\"{}\":{{\"delay_ms\":{},\"loss_percent\":{}}}", peer,
                                faults.delay_ms, faults.loss_percent));
  }
  if (links.empty() && faults.write_delay_ms == 0 && !faults.full) return "{}";
  return fmt::format(
      "{{\"for_ms\":{},\"links\":{{{}}},\"disk\":{{\"write_delay_ms\":{},\"full\":{}}}}}",
      kFaultsLastMs, fmt::join(links, ","), faults.write_delay_ms, faults.full);
}

std::string RotJson(const RotBlocks& blocks) {
  std::vector<std::string> groups;
  for (const auto& [group, numbers] : blocks) {
    groups.push_back(fmt::format("\"{}\":[{}]", group, fmt::join(numbers, ",")));
  }
  return fmt::format("{{\"blocks\":{{{}}}}}", fmt::join(groups, ","));
}

// --- Executor -----------------------------------------------------------------------------------

Executor::Executor(ExecutorOptions options, std::map<uint32_t, std::string> http)
    : options_([&] {
        if (options.kind == "ssh") {
          options.commands.insert(kSshDefaults.begin(), kSshDefaults.end());
        }
        return std::move(options);
      }()),
      http_(std::move(http)) {}

Status Executor::CheckCommand(const std::string& name) const {
  if (options_.commands.contains(name)) return Status::Ok();
  return Status::InvalidArgument(
      fmt::format("this drill needs --{}-command, and it is not given", name));
}

Status Executor::CheckHooks(const std::string& instead) const {
  for (const auto& [node, address] : http_) {
    const Result<HttpAnswer> answer = address.empty()
                                          ? Result<HttpAnswer>(Status::Unavailable("no --http"))
                                          : HttpCall(address, "/drill/faults", "");
    if (answer.ok() && answer->status == 200) continue;
    return Status::InvalidArgument(fmt::format(
        "node {} does not take part in drills of links and disks: start it with --drill "
        "(scripts/cluster restart {} after scripts/cluster start --drill){}{}",
        node, node, instead, answer.ok() ? "" : "; " + answer.status().ToString()));
  }
  return Status::Ok();
}

// Node 2 of another cluster has the same number, and data of its own.
Status Executor::CheckCluster() const {
  const Result<std::string> id = ShellOutput(Line("id", 0), kCommandPatience);
  if (id.ok() && *id == options_.cluster) return Status::Ok();
  return Status::InvalidArgument(fmt::format(
      "the local executor would break another cluster than this one, which is {}: {}; say where "
      "scripts/cluster keeps it with --cluster-dir, or use --executor command",
      options_.cluster,
      id.ok() ? fmt::format("`{}` says {}", Line("id", 0), *id)
              : std::string(id.status().message())));
}

Status Executor::Check(const std::set<Need>& needs) const {
  if (options_.kind == "local") {
    if (access(options_.script.c_str(), X_OK) != 0) {
      return Status::InvalidArgument(fmt::format(
          "the local executor needs scripts/cluster, and there is no '{}'; say where it is with "
          "--cluster-script, or use --executor command",
          options_.script));
    }
  }
  if (options_.kind == "ssh") {
    for (const auto& [node, address] : http_) {
      if (options_.ssh_hosts.contains(node)) continue;
      return Status::InvalidArgument(
          fmt::format("the ssh executor needs --ssh-host {}=HOST: where node {} runs", node, node));
    }
  }
  for (const Need need : needs) {
    const std::vector<std::string> commands = CommandsFor(need);
    const bool of_node = need == Need::kLinks || need == Need::kSlowDisk ||
                         need == Need::kFullDisk || need == Need::kRot;
    const bool given = !commands.empty() &&
                       std::all_of(commands.begin(), commands.end(), [&](const std::string& name) {
                         return CheckCommand(name).ok();
                       });
    if (of_node && given) continue;
    if (of_node) {
      HYDRA_RETURN_IF_ERROR(CheckHooks(
          commands.empty()
              ? std::string()
              : fmt::format(", or give --{}-command", fmt::join(commands, "-command, --"))));
      continue;
    }
    if (options_.kind == "local") {
      HYDRA_RETURN_IF_ERROR(CheckCluster());
      continue;
    }
    for (const std::string& name : commands) HYDRA_RETURN_IF_ERROR(CheckCommand(name));
  }
  return Status::Ok();
}

std::string Executor::Line(const std::string& action, uint32_t node) const {
  if (options_.kind == "local") {
    const std::string dir = options_.dir.empty() ? "" : " --dir " + ShellQuote(options_.dir);
    const std::string number = node == 0 ? "" : fmt::format(" {}", node);
    return fmt::format("{} {}{}{}", ShellQuote(options_.script), action, number, dir);
  }
  const std::string line =
      FillTemplate(options_.commands.at(action), {{"n", std::to_string(node)}});
  if (options_.kind != "ssh" || ChangesMembers(action)) return line;
  return fmt::format("{} {} {}", options_.ssh, ShellQuote(options_.ssh_hosts.at(node)),
                     ShellQuote(line));
}

Status Executor::Do(const std::string& action, uint32_t node) const {
  if (options_.kind != "local") HYDRA_RETURN_IF_ERROR(CheckCommand(action));
  return RunShell(Line(action, node), ChangesMembers(action) ? kMembersPatience : kCommandPatience);
}

Status Executor::SetByCommand(uint32_t node, const NodeFaults& faults) const {
  const auto run = [&](const std::string& name, const std::set<uint32_t>& peers, unsigned ms) {
    std::string line = FillTemplate(options_.commands.at(name),
                                    {{"n", std::to_string(node)},
                                     {"peers", fmt::format("{}", fmt::join(peers, ","))},
                                     {"ms", std::to_string(ms)}});
    if (options_.kind == "ssh") {
      line = fmt::format("{} {} {}", options_.ssh, ShellQuote(options_.ssh_hosts.at(node)),
                         ShellQuote(line));
    }
    return RunShell(line, kCommandPatience);
  };
  HYDRA_RETURN_IF_ERROR(run("heal", {}, 0));
  if (!faults.cut.empty()) HYDRA_RETURN_IF_ERROR(run("partition", faults.cut, 0));
  if (!faults.slow.empty()) {
    HYDRA_RETURN_IF_ERROR(run("slow-link", faults.slow, faults.delay_ms));
  }
  if (faults.write_delay_ms > 0) {
    HYDRA_RETURN_IF_ERROR(run("slow-disk", {}, faults.write_delay_ms));
  }
  return Status::Ok();
}

Status Executor::Set(uint32_t node, const NodeFaults& faults) {
  // There is no command that fills a disk: only the node itself can act as if it were full.
  const bool full = faults.full || full_.contains(node);
  if (options_.commands.contains("heal") && !full) return SetByCommand(node, faults);
  HYDRA_ASSIGN_OR_RETURN(const HttpAnswer answer,
                         HttpCall(http_.at(node), "/drill/faults", FaultsJson(faults)));
  if (answer.status != 200) {
    return Status::IoError(fmt::format("node {} refused the faults: {}", node, answer.body));
  }
  if (faults.full) {
    full_.insert(node);
  } else {
    full_.erase(node);
  }
  return Status::Ok();
}

Result<RotState> Executor::AskRot(uint32_t node, const std::string& body) const {
  HYDRA_ASSIGN_OR_RETURN(const HttpAnswer answer,
                         HttpCall(http_.at(node), "/drill/rot", body, kRotPatience));
  if (answer.status != 200) {
    return Status::IoError(fmt::format("node {}: {}", node, answer.body));
  }
  const nlohmann::json json = nlohmann::json::parse(answer.body, nullptr, false);
  if (!json.is_object() || !json.contains("damaged")) {
    return Status::IoError(fmt::format("node {} says something else than of rot", node));
  }
  RotState state;
  state.damaged = json.value("damaged", uint64_t{0});
  state.rotten = json.value("rotten", uint64_t{0});
  state.repaired = json.value("repaired", uint64_t{0});
  state.overwritten = json.value("overwritten", uint64_t{0});
  state.still = fmt::format("{}", fmt::join(json.value("still", std::vector<std::string>()), ", "));
  return state;
}

Result<RotState> Executor::Rot(uint32_t node, const RotBlocks& blocks) const {
  return AskRot(node, RotJson(blocks));
}

Result<RotState> Executor::Rotten(uint32_t node) const { return AskRot(node, ""); }

}  // namespace hydra::drill
