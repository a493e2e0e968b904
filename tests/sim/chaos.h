// SPDX-License-Identifier: Apache-2.0
//
// Chaos: everything bad that may happen to a cluster, at random times, as far as the atlas allows.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/rng.h"
#include "tests/sim/cluster.h"
#include "tests/sim/fault_atlas.h"
#include "tests/sim/operator.h"

namespace hydra::sim {

constexpr Nanos Milliseconds(uint64_t n) { return static_cast<Nanos>(n) * kMillisecond; }

class Chaos {
 public:
  Chaos(Scheduler* scheduler, Cluster* cluster, FaultAtlas* atlas, Operator* op, uint64_t seed);

  void Start();
  // No new faults; what is broken is mended: power, links, space, and disks by replacing them.
  void StopAndHeal();
  const std::map<std::string, uint64_t>& faults() const { return faults_; }

 private:
  // A kind of fault, and how often it strikes in this run.
  struct Kind {
    void (Chaos::*strike)();
    unsigned weight;
  };

  void DrawKinds();
  void Round();
  void One();
  void Count(const char* kind, NodeId node = 0);
  NodeId AnyNode();
  NodeId AnyAlive();
  void BootLater(NodeId node);
  void BootWithin(NodeId node, Nanos delay);
  void ReplaceLater(NodeId node);
  void Mend(NodeId node);

  // --- Single faults (chaos.cc). ---
  void DisturbNetwork();
  void HealNetwork();
  void Storm();
  void Crash();
  void LosePower();
  void Kill(NodeId node, bool power);
  void KillAll();
  void CutPower();
  void PauseOne();
  void BreakConnections();
  void Rot();
  bool RotOf(NodeId node);
  void RotBlocksOf(NodeId node);
  void RotAndScrub();
  void FailIo();
  NodeId AnyCreditor();
  void WipeOne();
  void FillDisk();
  void Housekeeping();

  // --- Plots: faults that follow one another as the state of a group asks for
  // (chaos_plots.cc). ---
  struct Reign {
    GroupId group = 0;
    NodeId master = 0;  // 0: nobody reigns
  };
  Reign AnyReign();
  std::vector<NodeId> OtherVoters(const Reign& reign);  // in random order
  void MoveMaster();
  bool Crown(GroupId group);
  void Coup();
  void Depose(const Reign& reign);
  void Succession();
  void Shake(NodeId witness);
  void Surround(const Reign& reign);
  void LetGo(const Reign& reign, bool watch, Nanos until);
  void EndPlot();

  Scheduler* const scheduler_;
  Cluster* const cluster_;
  FaultAtlas* const atlas_;
  Operator* const operator_;
  Rng rng_;
  Rng rot_rng_;  // of its own, so that seeds without rotting blocks stay what they were
  bool running_ = true;
  Nanos pace_;
  std::vector<Kind> kinds_;
  unsigned plots_ = 0;     // going on
  std::set<NodeId> down_;  // to be booted
  std::map<std::string, uint64_t> faults_;
};

}  // namespace hydra::sim
