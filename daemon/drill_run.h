// SPDX-License-Identifier: Apache-2.0
//
// A drill: a verified load, faults on top of it, and a report. The drills themselves are a table of
// small functions (daemon/drill_table.cc); this is what they are written in.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/rng.h"
#include "base/status.h"
#include "client/hydra.h"
#include "daemon/drill_executor.h"
#include "daemon/drill_load.h"
#include "daemon/drill_report.h"
#include "daemon/drill_watch.h"

namespace hydra::drill {

class Run;

constexpr unsigned kLook = 100;  // ms between two looks at something
constexpr std::chrono::milliseconds kHealthPatience(90'000);
constexpr std::chrono::milliseconds kChangePatience(60'000);

struct Drill {
  const char* name;
  const char* summary;
  std::set<Need> needs;
  unsigned max_gap_ms;  // unless the operator says otherwise
  uint64_t rate;        // likewise: operations per second
  // How many faults there are at least: 0 stands for one per node.
  unsigned faults;
  // One fault and its end.
  Status (*once)(Run& run);
  // Whether clients may be told errors: else all that they see is a pause.
  bool errors = false;
};

const std::vector<Drill>& Drills();
// Of the table, those that have a file of their own.
Status BitRot(Run& run);
Status RollingUpgrade(Run& run);
const Drill* FindDrill(const std::string& name);

struct RunOptions {
  std::vector<std::string> seeds;
  std::string volume;  // empty: one is made for the drill, and deleted after it
  std::chrono::milliseconds duration{30'000};
  unsigned faults = 0;   // stop after so many, whatever the duration; 0: when the time is up
  unsigned hold_ms = 0;  // how long a fault lasts; 0: as the drill thinks best
  unsigned clients = 16;
  uint64_t rate = 0;  // 0: the drill's own
  uint32_t blocks_per_shard = 32;
  uint64_t seed = 1;
  int64_t max_gap_ms = -1;  // -1: the drill's own; 0: no limit
  ExecutorOptions executor;
};

struct Progress {
  double seconds = 0;
  double of = 0;
  unsigned faults = 0;
  uint64_t writes = 0;
  uint64_t operations = 0;
  uint64_t failed = 0;
  std::string phase;
};

struct View {
  std::function<void(const std::string& line)> event = [](const std::string&) {};
  std::function<void(const Progress& progress)> progress = [](const Progress&) {};
  const std::atomic<bool>* interrupted = nullptr;
};

// Not OK: nothing was broken, because something that is needed is missing. A drill that began
// always has a report, and everything that it broke is mended as well as can be.
Result<Report> RunDrill(const Drill& drill, const RunOptions& options, const View& view);

// What the functions of the table use. One thread.
class Run {
 public:
  // --- Who. ---
  const std::vector<uint32_t>& nodes() const { return nodes_; }
  std::set<uint32_t> PeersOf(uint32_t node) const;
  uint32_t Master() const;  // who leads most groups of the volume
  // So many groups of the volume are led by this node, or by nobody that is known.
  size_t NotLedByOthers(uint32_t node) const;
  std::set<uint32_t> LedBy(uint32_t node) const;  // groups of the volume
  Result<bool> Fit(uint32_t node) const;          // to lead, as it says itself
  uint32_t Minor();                               // another one, by chance
  uint32_t Any();                                 // any, by chance
  // The group that is to be handed over next, and to whom.
  std::pair<uint32_t, uint32_t> NextHandOver();
  Rng& rng() { return rng_; }
  bool Can(Need need) const { return executor_->Can(need); }
  // Whether nodes break their own links and disks; else the operator's commands do.
  bool by_hooks() const { return !options_.executor.commands.contains("heal"); }
  unsigned ordinal() const { return ordinal_; }  // of this fault, from 0 on

  // --- What. Each call of Begin is followed by one of Restored and Recover. ---
  void Begin(const std::string& what, bool writes_stop = false);
  Status Do(const std::string& action, uint32_t node);
  Status DoAll(const std::string& action);  // on all nodes at once
  Status Set(uint32_t node, const NodeFaults& faults);
  // Damages blocks on the disk of a node; and what became of them.
  Result<RotState> Rot(uint32_t node, const RotBlocks& blocks);
  Result<RotState> Rotten(uint32_t node);
  Status MoveMaster(uint32_t group, uint32_t node);
  // Says that a wiped node's disk is lost; it may be started then.
  Status Replace(uint32_t node);
  Result<uint32_t> AddNode();  // its number, when it has joined
  Status RemoveNode(uint32_t node);
  Status SetReplicas(uint32_t replicas);
  // Until the members of all groups are as wanted.
  Status AwaitMembers();
  uint32_t replicas() const { return replicas_; }  // of each shard, wanted
  // The fault lasts that long, or as long as the operator said; returns which.
  unsigned Hold(unsigned ms);
  void Wait(unsigned ms);
  // The same of a node that is stopped: not OK if it answers.
  Status HoldStopped(uint32_t node, unsigned ms);
  // The same of a node that is cut off from its peers: not OK if it goes on with what they do.
  Status HoldCut(uint32_t node, unsigned ms);
  // Up to where the node knows each group's log to be chosen, asked for now.
  Result<std::map<uint32_t, uint64_t>> Committed(uint32_t node) const;
  // After Recover: not OK unless these were started after the fault began.
  Status CheckRestarted(const std::vector<uint32_t>& nodes) const;
  void Restored();
  Status Recover();
  // Until every replica has applied what is chosen by now.
  Status AwaitCaughtUp();
  // There is nothing more to break after this, whatever the time.
  void Enough() { enough_ = true; }
  // Adds to what is said of this fault.
  void Amend(const std::string& what);
  // Bytes were read that nobody wrote, elsewhere than by the load.
  void NoteDamage(const std::string& what) { report_.damage.push_back(what); }
  bool interrupted() const { return view_.interrupted != nullptr && *view_.interrupted; }

  Cluster& cluster() { return *cluster_; }
  // Of a name that nobody else uses; also while masters change.
  Status CreateVolume(const VolumeSpec& spec);
  const std::string& http(uint32_t node) const { return http_.at(node); }
  // Those that the load uses, with their groups.
  std::vector<std::pair<uint64_t, uint32_t>> LoadBlocks() const;
  uint64_t acknowledged_writes() const { return load_->acknowledged_writes(); }
  uint64_t refused() const { return load_->refused(); }

 private:
  friend Result<Report> RunDrill(const Drill& drill, const RunOptions& options, const View& view);
  Run(const Drill& drill, const RunOptions& options, const View& view)
      : drill_(drill), options_(options), view_(view), rng_(options.seed) {}

  Result<std::vector<NodeInfo>> AskNodes();
  Result<std::string> AskCluster() const;
  Status CheckPages() const;
  Status Prepare();
  Status MakeVolume();
  Status Change(const NodeChange& change);
  void NoteAdded(const std::vector<NodeInfo>& before);
  Status Forget(uint32_t node);  // takes it out of the cluster, whatever becomes of its process
  Result<std::string> MembersMissing();
  Status AwaitHealth(Nanos since, std::chrono::milliseconds patience);
  Status Loop();
  void Mend();
  void Finish(const Status& ended);
  void Describe();
  bool More() const;
  void ShowProgress();

  const Drill& drill_;
  const RunOptions options_;
  const View view_;
  Rng rng_;
  std::unique_ptr<Cluster> cluster_;
  std::string volume_;
  bool own_volume_ = false;
  std::vector<uint32_t> groups_;  // of the volume, by shard
  uint32_t replicas_ = 0;
  uint32_t first_replicas_ = 0;
  std::vector<uint32_t> nodes_;
  std::map<uint32_t, std::string> http_;
  std::map<uint32_t, std::string> versions_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Load> load_;
  std::unique_ptr<Watch> watch_;
  // What is to be undone.
  std::set<uint32_t> down_;
  std::set<uint32_t> paused_;
  std::set<uint32_t> faulty_;
  std::set<uint32_t> rotten_;
  std::set<uint32_t> lost_;   // wiped, and the cluster does not know
  std::set<uint32_t> added_;  // not there when the drill began
  unsigned ordinal_ = 0;
  bool enough_ = false;
  size_t handed_over_ = 0;
  Nanos first_ = 0;  // when the faults began
  std::string phase_;
  Report report_;
};

}  // namespace hydra::drill
