// SPDX-License-Identifier: Apache-2.0
//
// What hydractl's commands share: where the cluster is, how they print, what they exit with. Each
// family of commands has a file of its own (hydractl_*.cc) that adds them to the command line; a
// command that was chosen leaves what is to be done in Context::action, and main() does it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/status.h"
#include "client/hydra.h"

namespace CLI {
class App;
class Validator;
}  // namespace CLI

namespace hydra::ctl {

using Json = nlohmann::ordered_json;

// Documented in docs/hydractl.md: scripts rely on them.
enum Exit : int {
  kExitOk = 0,
  kExitFailed = 1,
  kExitUsage = 2,  // the command can never work as it stands
  kExitNotFound = 3,
  kExitUnavailable = 4,  // not now: no majority, no node, out of time
  kExitMiscompare = 5,
  kExitExists = 6,
  kExitDamage = 7,   // data is not what was written
  kExitUnknown = 8,  // it may or may not have happened
  kExitNoSpace = 9,
};

inline constexpr std::string_view kDefaultCluster = "127.0.0.1:7101,127.0.0.1:7102,127.0.0.1:7103";

struct Context {
  std::string cluster{kDefaultCluster};
  uint64_t timeout_ms = 30'000;
  bool json = false;
  std::function<int()> action;  // of the command that was chosen; returns an exit code

  Result<Cluster> Connect() const;
  Result<Volume> Open(const std::string& volume) const;
  // Says what went wrong, and returns the exit code for it.
  int Fail(const Status& status) const;
};

int ExitOf(const Status& status);

// --- Printing -----------------------------------------------------------------------------------

void Print(const Json& json);

// Columns as wide as they need to be. The last is not padded.
class Table {
 public:
  explicit Table(std::vector<std::string> titles) { rows_.push_back(std::move(titles)); }
  void Add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  void Print() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

std::string BytesText(uint64_t bytes);                         // "1 GiB", "1.5 MiB", "512 B"
std::string DurationText(std::chrono::milliseconds duration);  // "3 min 5 s"

// --- Targets ------------------------------------------------------------------------------------

// Prints a target's name and portals, or makes an object of it.
int ShowTarget(const Context& context, Cluster* cluster, const std::string& volume);
Result<Json> TargetJson(Cluster* cluster, const std::string& volume);
Json AccessJson(const VolumeInfo& volume);
std::string AccessText(const TargetInfo& target);  // "everyone", "2 listed, CHAP", "off"
Json SessionsJson(const NodeInfo& node);
// Those of `target`, or all if that is empty. False: there is none.
bool PrintSessions(const std::vector<NodeInfo>& nodes, const std::string& target);

// --- Reading the command line -------------------------------------------------------------------

// 4096, 4k, 4K, 4KB, 4KiB, 1.5G; all suffixes are powers of 1024.
Result<uint64_t> ParseSize(std::string_view text);
// 500ms, 10s, 2m, 1h; a plain number is seconds. In milliseconds.
Result<uint64_t> ParseDuration(std::string_view text);

// For ->transform(): turn such texts into the plain number that the option's variable takes.
CLI::Validator SizeOption();
CLI::Validator DurationOption();

// --- Families of commands -----------------------------------------------------------------------

void AddStatusCommands(CLI::App* app, Context* context);  // status, node, group, master
void AddScrubCommands(CLI::App* app, Context* context);
void AddVolumeCommands(CLI::App* app, Context* context);
// node add, replace, remove; volume set-replicas; rebalance. After the two above.
void AddNodeCommands(CLI::App* app, Context* context);
void AddTargetCommands(CLI::App* app, Context* context);
void AddAccessCommands(CLI::App* target, Context* context);  // target acl, chap, enable, disable
void AddIoCommands(CLI::App* app, Context* context);
void AddCopyCommands(CLI::App* io, Context* context);  // io import, io export
void AddBenchCommand(CLI::App* app, Context* context);
void AddDrillCommands(CLI::App* app, Context* context);
void AddDebugCommands(CLI::App* app, Context* context);
void AddCompletionCommand(CLI::App* app, Context* context);

}  // namespace hydra::ctl
