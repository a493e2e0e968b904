// SPDX-License-Identifier: Apache-2.0
//
// Chaos: everything bad that may happen to a cluster, at random times, as far as the atlas allows.
#pragma once

#include <map>
#include <set>
#include <string>

#include "base/rng.h"
#include "tests/sim/cluster.h"
#include "tests/sim/fault_atlas.h"
#include "tests/sim/operator.h"

namespace hydra::sim {

class Chaos {
 public:
  Chaos(Scheduler* scheduler, Cluster* cluster, FaultAtlas* atlas, Operator* op, uint64_t seed);

  void Start();
  // No new faults; what is broken is mended: power, links, space, and disks by replacing them.
  void StopAndHeal();
  const std::map<std::string, uint64_t>& faults() const { return faults_; }

 private:
  void Round();
  void One();
  void DamageStorage(unsigned dice);
  void Count(const char* kind, NodeId node = 0);
  NodeId AnyNode();
  NodeId AnyAlive();
  void BootLater(NodeId node);
  void ReplaceLater(NodeId node);
  void Mend(NodeId node);

  void KillOne(bool power);
  void KillAll();
  void CutPower();
  void PauseOne();
  void Rot();
  void FailIo();
  void WipeOne();
  void FillDisk();
  void Storm();
  void MoveMaster();
  void Coup();
  void Surround(NodeId master, Nanos lease);
  void Housekeeping();

  Scheduler* const scheduler_;
  Cluster* const cluster_;
  FaultAtlas* const atlas_;
  Operator* const operator_;
  Rng rng_;
  bool running_ = true;
  Nanos pace_;
  // A little of everything rarely adds up to what one kind of trouble needs to do harm.
  enum class Taste { kMixed, kPolitics, kStorage };
  Taste taste_ = Taste::kMixed;
  std::set<NodeId> down_;  // to be booted
  std::map<std::string, uint64_t> faults_;
};

}  // namespace hydra::sim
