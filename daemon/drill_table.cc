// SPDX-License-Identifier: Apache-2.0
//
// The drills. Each is one fault and its end; a run repeats it until its time is up. To add one,
// write a function and a row.
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "client/layout.h"
#include "daemon/drill_run.h"

namespace hydra::drill {
namespace {

constexpr unsigned kAway = 2500;     // ms: how long a node is gone
constexpr unsigned kIll = 4000;      // ... or not well
constexpr unsigned kInFlight = 100;  // ms: what was on its way when a link goes has arrived then
constexpr unsigned kSeenGone = 500;  // ms: a link that is gone for so long is missed
constexpr unsigned kSlowLinkMs = 40;
constexpr unsigned kLostPercent = 30;
constexpr unsigned kGray = 12'000;  // ms: how long a node is ill until it must have noticed
// ... and how much longer it may take where the machine has other things to do: a node compares
// itself with its peers.
constexpr unsigned kGrayPatience = 60'000;
constexpr unsigned kMissedLook = 1000;  // ms: one look may miss a node, and what it leads
constexpr unsigned kGrayLook = 100;
constexpr uint32_t kGrown = 5;  // replicas
constexpr unsigned kSlowDiskMs = 150;
constexpr uint64_t kMostFilled = 4ull << 30;

Status KillFor(Run& run, uint32_t node, const char* who) {
  run.Begin(fmt::format("kill -9 of node {}, {}", node, who));
  HYDRA_RETURN_IF_ERROR(run.Do("kill", node));
  run.Hold(kAway);
  HYDRA_RETURN_IF_ERROR(run.Do("start", node));
  run.Restored();
  HYDRA_RETURN_IF_ERROR(run.Recover());
  return run.CheckRestarted({node});
}

Status MasterKill(Run& run) { return KillFor(run, run.Master(), "which leads most groups"); }
Status NodeKill(Run& run) { return KillFor(run, run.Any(), "any of them"); }

Status MasterPause(Run& run) {
  const uint32_t node = run.Master();
  run.Begin(fmt::format("node {}, which leads most groups, stopped with SIGSTOP", node));
  HYDRA_RETURN_IF_ERROR(run.Do("pause", node));
  HYDRA_RETURN_IF_ERROR(run.HoldStopped(node, kAway));
  HYDRA_RETURN_IF_ERROR(run.Do("resume", node));
  run.Restored();
  return run.Recover();
}

Status RollingRestart(Run& run) {
  const uint32_t node = run.nodes()[run.ordinal() % run.nodes().size()];
  run.Begin(fmt::format("restart of node {}", node));
  HYDRA_RETURN_IF_ERROR(run.Do("restart", node));
  run.Restored();
  HYDRA_RETURN_IF_ERROR(run.Recover());
  return run.CheckRestarted({node});
}

Status CutOff(Run& run, uint32_t node, const char* who) {
  run.Begin(fmt::format("node {}, {}, cut off from its peers", node, who));
  NodeFaults faults;
  faults.cut = run.PeersOf(node);
  HYDRA_RETURN_IF_ERROR(run.Set(node, faults));
  HYDRA_RETURN_IF_ERROR(run.HoldCut(node, kIll));
  HYDRA_RETURN_IF_ERROR(run.Set(node, {}));
  run.Restored();
  return run.Recover();
}

Status PartitionMaster(Run& run) { return CutOff(run, run.Master(), "which leads most groups"); }
Status PartitionMinority(Run& run) { return CutOff(run, run.Minor(), "which leads few groups"); }

// Whether a link is ever gone: what a node leads goes on, and a follower that it does not reach
// stands still with some of it meanwhile. The follower is asked before and after the other one, so
// that it had all the time, and a little more.
class LinkProof {
 public:
  LinkProof(Run& run, uint32_t leader, uint32_t follower)
      : run_(run), leader_(leader), follower_(follower) {}

  void Begin() {
    follower_before_ = CommittedBy(follower_);
    leader_before_ = CommittedBy(leader_);
    led_ = run_.LedBy(leader_);
  }

  void End() {
    const Committed leader = CommittedBy(leader_);
    const Committed follower = CommittedBy(follower_);
    const std::set<uint32_t> led = run_.LedBy(leader_);
    for (const auto& [group, before] : leader_before_) {
      if (!led_.contains(group) || !led.contains(group) || !leader.contains(group)) continue;
      if (!follower.contains(group) || !follower_before_.contains(group)) continue;
      if (leader.at(group) < before + kWentOn) continue;
      (follower.at(group) == follower_before_.at(group) ? gone_ : there_) = true;
    }
  }

  Status Verdict() const {
    if (gone_ || !there_ || run_.interrupted()) return Status::Ok();
    return Status::FailedPrecondition(
        fmt::format("node {} followed node {} all the while: what was to break the link did not",
                    follower_, leader_));
  }

 private:
  using Committed = std::map<uint32_t, uint64_t>;
  static constexpr uint64_t kWentOn = 5;  // entries

  // Nothing, if it does not say.
  Committed CommittedBy(uint32_t node) const {
    auto committed = run_.Committed(node);
    return committed.ok() ? std::move(*committed) : Committed();
  }

  Run& run_;
  const uint32_t leader_;
  const uint32_t follower_;
  Committed leader_before_, follower_before_;
  std::set<uint32_t> led_;
  bool gone_ = false;
  bool there_ = false;
};

Status FlappingLink(Run& run) {
  const uint32_t one = run.Master();
  const uint32_t other = run.Minor();
  run.Begin(fmt::format("link between nodes {} and {} goes and comes", one, other));
  NodeFaults faults;
  faults.cut = {other};
  LinkProof proof(run, one, other);
  for (int i = 0; i < 6; ++i) {
    HYDRA_RETURN_IF_ERROR(run.Set(one, faults));
    const auto gone = static_cast<unsigned>(run.rng().Between(i == 0 ? kSeenGone : 150, 600));
    run.Wait(kInFlight);
    const bool seen = gone >= kSeenGone;
    if (seen) proof.Begin();
    run.Wait(gone - kInFlight);
    if (seen) proof.End();
    HYDRA_RETURN_IF_ERROR(run.Set(one, {}));
    run.Wait(static_cast<unsigned>(run.rng().Between(100, 400)));
  }
  run.Restored();
  HYDRA_RETURN_IF_ERROR(proof.Verdict());
  return run.Recover();
}

// A node that is alive and no good. It has to notice by itself, and to let others lead; `strict`:
// if it does not, given the time, the drill fails.
Status MakeIll(Run& run, uint32_t node, const NodeFaults& faults, bool strict) {
  const std::set<uint32_t> peers = run.PeersOf(node);
  // After another drill of this kind perhaps nobody is, for a while.
  bool replaceable = false;
  for (const uint32_t peer : peers) {
    HYDRA_ASSIGN_OR_RETURN(const bool fit, run.Fit(peer));
    replaceable = replaceable || fit;
  }
  HYDRA_RETURN_IF_ERROR(run.Set(node, faults));
  const unsigned held = run.Hold(kGray);
  size_t left = run.NotLedByOthers(node);
  const unsigned patience = strict && replaceable && held >= kGray ? kGrayPatience : kMissedLook;
  for (unsigned waited = 0; left > 0 && waited < patience && !run.interrupted();
       waited += kGrayLook) {
    run.Wait(kGrayLook);
    left = run.NotLedByOthers(node);
  }
  HYDRA_RETURN_IF_ERROR(run.Set(node, {}));
  run.Restored();
  run.Amend(left == 0 ? std::string("it let others lead")
                      : fmt::format("after {} ms nobody else led {} groups", held, left));
  if (strict && replaceable && left > 0 && held >= kGray) {
    return Status::FailedPrecondition(fmt::format(
        "node {} is not fit to lead, and after {} ms nobody else led {} groups", node, held, left));
  }
  return run.Recover();
}

Status SlowDisk(Run& run) {
  const uint32_t node = run.Master();
  run.Begin(fmt::format("disk of node {}, which leads most groups, takes {} ms longer per write",
                        node, kSlowDiskMs));
  NodeFaults faults;
  faults.write_delay_ms = kSlowDiskMs;
  return MakeIll(run, node, faults, true);
}

Status SlowLink(Run& run) {
  const uint32_t node = run.Master();
  run.Begin(fmt::format("links of node {}, which leads most groups: {} ms more each way, {} % lost",
                        node, kSlowLinkMs, kLostPercent));
  NodeFaults faults;
  faults.slow = run.PeersOf(node);
  faults.delay_ms = kSlowLinkMs;
  faults.loss_percent = kLostPercent;
  // An operator's command knows of the delay alone.
  return MakeIll(run, node, faults, run.by_hooks());
}

Status PowerCycleAll(Run& run) {
  run.Begin("kill -9 of every node at once");
  HYDRA_RETURN_IF_ERROR(run.DoAll("kill"));
  run.Hold(500);
  HYDRA_RETURN_IF_ERROR(run.DoAll("start"));
  run.Restored();
  HYDRA_RETURN_IF_ERROR(run.Recover());
  return run.CheckRestarted(run.nodes());
}

Status HandOver(Run& run) {
  const auto [group, node] = run.NextHandOver();
  run.Begin(fmt::format("mastership of group {} handed to node {}", group, node));
  HYDRA_RETURN_IF_ERROR(run.MoveMaster(group, node));
  run.Restored();
  return run.Recover();
}

// Writes into a volume of its own until the cluster refuses even a block for lack of room.
Status Fill(Run& run, const std::string& volume) {
  VolumeSpec spec;
  spec.name = volume;
  spec.bytes = kMostFilled;
  HYDRA_RETURN_IF_ERROR(run.CreateVolume(spec));
  HYDRA_ASSIGN_OR_RETURN(Volume opened, Volume::Open(run.cluster(), volume));
  std::vector<uint8_t> piece(kExtentBytes);
  for (uint8_t& byte : piece) byte = static_cast<uint8_t>(run.rng().Next());
  uint64_t at = 0;
  for (size_t bytes = piece.size(); bytes >= opened.block_bytes(); bytes /= 16) {
    while (at + bytes <= kMostFilled) {
      const Status written = opened.Write(at, std::span(piece).first(bytes));
      if (written.code() == Code::kNoSpace) break;
      HYDRA_RETURN_IF_ERROR(written);
      at += bytes;
      if (at % (16 * bytes) == 0) run.Wait(1);
    }
  }
  if (at + piece.size() <= kMostFilled) return Status::Ok();
  return Status::FailedPrecondition(
      fmt::format("{} MiB were written, and the cluster is not full", kMostFilled >> 20));
}

// Every disk has no room for another segment; what is left is filled, until writes are refused.
// Reads go on. Then there is room again.
Status DiskFull(Run& run) {
  const std::string volume = fmt::format("drill-fill-{}", run.rng().Below(1u << 30));
  run.Begin("every disk full: writes are refused until there is room again", true);
  NodeFaults full;
  full.full = true;
  for (const uint32_t node : run.nodes()) HYDRA_RETURN_IF_ERROR(run.Set(node, full));
  const uint64_t refused = run.refused();
  const Status filled = Fill(run, volume);
  if (filled.ok()) run.Hold(kIll / 2);
  const bool felt = run.refused() > refused;
  const Status deleted = run.cluster().DeleteVolume(volume);
  for (const uint32_t node : run.nodes()) HYDRA_RETURN_IF_ERROR(run.Set(node, {}));
  run.Restored();
  HYDRA_RETURN_IF_ERROR(filled);
  HYDRA_RETURN_IF_ERROR(deleted);
  if (!felt) return Status::FailedPrecondition("the disks were full, and no write was refused");
  HYDRA_RETURN_IF_ERROR(run.Recover());
  const uint64_t before = run.acknowledged_writes();
  for (int i = 0; i < 300 && run.acknowledged_writes() == before; ++i) run.Wait(100);
  if (run.acknowledged_writes() > before) return Status::Ok();
  return Status::Unavailable("there is room again, and no write was acknowledged for 30 s");
}

// The node keeps its number, and gets everything anew from the others.
Status DiskLoss(Run& run) {
  const uint32_t node = run.Any();
  run.Begin(fmt::format("disk of node {} lost; it comes back with an empty one", node));
  HYDRA_RETURN_IF_ERROR(run.Do("wipe", node));
  run.Hold(kAway);
  HYDRA_RETURN_IF_ERROR(run.Replace(node));
  HYDRA_RETURN_IF_ERROR(run.Do("start", node));
  run.Restored();
  HYDRA_RETURN_IF_ERROR(run.AwaitMembers());
  HYDRA_RETURN_IF_ERROR(run.Recover());
  return run.CheckRestarted({node});
}

// Nodes are added if there are fewer than five, and leave in the end.
Status GrowAndShrink(Run& run) {
  const uint32_t before = run.replicas();
  if (before >= kGrown) {
    return Status::FailedPrecondition(fmt::format("the volume has {} replicas already", before));
  }
  run.Begin(fmt::format("replicas of every shard grow from {} to {}, and back", before, kGrown));
  std::vector<uint32_t> added;
  while (run.nodes().size() + added.size() < kGrown) {
    HYDRA_ASSIGN_OR_RETURN(const uint32_t node, run.AddNode());
    added.push_back(node);
  }
  HYDRA_RETURN_IF_ERROR(run.SetReplicas(kGrown));
  HYDRA_RETURN_IF_ERROR(run.AwaitMembers());
  run.Hold(kAway);
  HYDRA_RETURN_IF_ERROR(run.SetReplicas(before));
  HYDRA_RETURN_IF_ERROR(run.AwaitMembers());
  for (const uint32_t node : added) HYDRA_RETURN_IF_ERROR(run.RemoveNode(node));
  run.Restored();
  HYDRA_RETURN_IF_ERROR(run.AwaitMembers());
  return run.Recover();
}

// Any of the above, by chance; those that need what is not there are left out.
Status Chaos(Run& run) {
  std::vector<const Drill*> choices;
  for (const Drill& drill : Drills()) {
    const bool possible = std::all_of(drill.needs.begin(), drill.needs.end(),
                                      [&](Need need) { return run.Can(need); });
    const bool long_one = drill.once == &DiskFull || drill.once == &GrowAndShrink;
    if (!possible || long_one || drill.once == &RollingUpgrade || drill.once == &Chaos) continue;
    choices.push_back(&drill);
  }
  const Drill* drill = choices[run.rng().Below(choices.size())];
  // Everything at once is a fault of another kind, and a minute of outage teaches nothing new.
  if (drill->once == &PowerCycleAll && !run.rng().Percent(30)) drill = choices.front();
  return drill->once(run);
}

}  // namespace

const std::vector<Drill>& Drills() {
  static const std::vector<Drill> drills = {
      {"master-kill",
       "Kills the node that leads most groups, and starts it again.",
       {Need::kKill},
       2000,
       1000,
       1,
       &MasterKill},
      {"master-pause",
       "Stops the node that leads most groups with SIGSTOP, and lets it go on.",
       {Need::kPause},
       4000,
       1000,
       1,
       &MasterPause},
      {"node-kill",
       "Kills any node, and starts it again.",
       {Need::kKill},
       2000,
       1000,
       1,
       &NodeKill},
      {"rolling-restart",
       "Restarts one node after the other, as an upgrade does.",
       {Need::kRestart},
       2000,
       1000,
       0,
       &RollingRestart},
      {"rolling-upgrade",
       "Restarts one node after the other with a newer build; the last one raises the level.",
       {Need::kRestart},
       2000,
       1000,
       0,
       &RollingUpgrade},
      {"partition-master",
       "Cuts the node that leads most groups off from its peers, not from clients.",
       {Need::kLinks},
       5000,
       1000,
       1,
       &PartitionMaster},
      {"partition-minority",
       "Cuts another node off from its peers.",
       {Need::kLinks},
       5000,
       1000,
       1,
       &PartitionMinority},
      {"flapping-link",
       "A link between two nodes goes and comes, every few hundred milliseconds.",
       {Need::kLinks},
       5000,
       1000,
       1,
       &FlappingLink},
      {"slow-disk",
       "The disk of the node that leads most groups becomes a hundred times slower.",
       {Need::kSlowDisk},
       5000,
       1000,
       1,
       &SlowDisk},
      {"slow-link",
       "The links of the node that leads most groups become slow and lossy.",
       {Need::kLinks},
       5000,
       1000,
       1,
       &SlowLink},
      {"bit-rot",
       "Flips bits of live blocks on the disk of the node that leads most groups.",
       {Need::kRot},
       2000,
       1000,
       1,
       &BitRot},
      {"disk-full",
       "Fills every disk: writes are refused, reads go on; then there is room again.",
       {Need::kFullDisk},
       5000,
       500,
       1,
       &DiskFull,
       true},
      {"disk-loss",
       "Kills any node and empties its disk; it is replaced by one with an empty disk.",
       {Need::kKill, Need::kWipe},
       5000,
       1000,
       1,
       &DiskLoss},
      {"grow-3-to-5",
       "Every shard gets five replicas, on nodes that are added if need be; then back.",
       {Need::kMembers},
       5000,
       1000,
       1,
       &GrowAndShrink},
      {"power-cycle-all",
       "Kills every node at once; they come back by themselves.",
       {Need::kKill},
       30'000,
       1000,
       1,
       &PowerCycleAll,
       true},
      {"hand-over",
       "Moves masterships from node to node, one group after the other.",
       {},
       500,
       4000,
       1,
       &HandOver},
      {"chaos",
       "Any of the others, by chance, one after the other.",
       {Need::kKill, Need::kPause, Need::kRestart},
       30'000,
       500,
       1,
       &Chaos,
       true},
  };
  return drills;
}

const Drill* FindDrill(const std::string& name) {
  for (const Drill& drill : Drills()) {
    if (drill.name == name) return &drill;
  }
  return nullptr;
}

}  // namespace hydra::drill
