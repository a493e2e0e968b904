// SPDX-License-Identifier: Apache-2.0
//
// What breaks nodes and mends them again, for a drill.
//
//   local    `scripts/cluster kill 2` and so on, for clusters that it started on this machine
//   command  the operator's own commands: --kill-command 'virsh destroy node{n}'
//   ssh      the same, run by ssh on the host of each node: --ssh-host 2=root@store2
//
// Links and disks are broken by the nodes themselves (daemon/drill_faults.h) where they were
// started with --drill, or by the operator's commands.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/status.h"

namespace hydra::drill {

enum class Need { kKill, kPause, kRestart, kWipe, kMembers, kLinks, kSlowDisk, kFullDisk, kRot };

// What is wrong with a node's links and disk while it runs.
struct NodeFaults {
  std::set<uint32_t> cut;  // peers: nothing arrives, in either direction
  std::set<uint32_t> slow;
  unsigned delay_ms = 0;  // of slow links, each way
  unsigned loss_percent = 0;
  unsigned write_delay_ms = 0;
  bool full = false;
};

// Blocks, by group.
using RotBlocks = std::map<uint32_t, std::vector<uint64_t>>;

// What became of blocks that were damaged (daemon/drill_rot.h).
struct RotState {
  uint64_t damaged = 0;
  uint64_t rotten = 0;  // ... of them, that still are
  uint64_t repaired = 0;
  uint64_t overwritten = 0;
  std::string still;  // which are, the first of them
};

struct ExecutorOptions {
  std::string kind = "local";
  std::string script;                           // scripts/cluster
  std::string dir;                              // its --dir; empty: its own default
  std::string cluster;                          // the UUID of the one that the drill is about
  std::map<std::string, std::string> commands;  // "kill" -> template; see kCommandNames
  std::map<uint32_t, std::string> ssh_hosts;
  std::string ssh = "ssh -o BatchMode=yes -o ConnectTimeout=5";
};

// A template for each may be given. {n}: the node; {peers}: those that it is cut from, with commas;
// {ms}: how slow. heal ends what the three before it did. wipe kills the node and empties its disk;
// it is started with --join then. add adds the next node to the cluster and starts it, remove does
// the opposite; both run here, also with ssh.
inline constexpr const char* kCommandNames[] = {"kill",      "start",     "pause",     "resume",
                                                "restart",   "wipe",      "add",       "remove",
                                                "partition", "slow-link", "slow-disk", "heal"};

// Not thread-safe, except that Do may be called for different nodes at the same time.
class Executor {
 public:
  // `http`: where each node's own pages are.
  Executor(ExecutorOptions options, std::map<uint32_t, std::string> http);

  // Whether all that is needed is there, before anything is broken. kInvalidArgument: what is not,
  // and how to get it.
  Status Check(const std::set<Need>& needs) const;
  // Whether it is, without a reason.
  bool Can(Need need) const { return Check({need}).ok(); }

  // kill, start, pause, resume, restart, wipe, remove; or add, of which the node is 0.
  Status Do(const std::string& action, uint32_t node) const;
  // Replaces what was wrong before. A default NodeFaults: nothing is.
  Status Set(uint32_t node, const NodeFaults& faults);
  // Damages those of the blocks that the node has.
  Result<RotState> Rot(uint32_t node, const RotBlocks& blocks) const;
  // Of those that were damaged last.
  Result<RotState> Rotten(uint32_t node) const;

  const ExecutorOptions& options() const { return options_; }

 private:
  Status CheckCommand(const std::string& name) const;
  Status CheckHooks(const std::string& instead) const;
  Status CheckCluster() const;
  std::string Line(const std::string& action, uint32_t node) const;
  Result<RotState> AskRot(uint32_t node, const std::string& body) const;
  Status SetByCommand(uint32_t node, const NodeFaults& faults) const;

  const ExecutorOptions options_;
  const std::map<uint32_t, std::string> http_;
  std::set<uint32_t> full_;  // nodes that act as if their disks were full
};

// Runs a line in a shell of its own; not OK with the end of what it printed if it fails, or takes
// longer (then it is killed, and all that it started).
Status RunShell(const std::string& line, std::chrono::milliseconds patience);
// The same, with the end of what it printed.
Result<std::string> ShellOutput(const std::string& line, std::chrono::milliseconds patience);
std::string ShellQuote(const std::string& word);
std::string FillTemplate(std::string text, const std::map<std::string, std::string>& values);
// As posted to a node.
std::string FaultsJson(const NodeFaults& faults);
std::string RotJson(const RotBlocks& blocks);

}  // namespace hydra::drill
