// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/run.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/logging.h"
#include "tests/sim/chaos.h"
#include "tests/sim/cluster.h"
#include "tests/sim/fault_atlas.h"
#include "tests/sim/gateways.h"
#include "tests/sim/history.h"
#include "tests/sim/operator.h"
#include "tests/sim/workload.h"

namespace hydra::sim {
namespace {

constexpr uint64_t kGatewaysIn = 3;      // one in so many runs has some
constexpr uint64_t kPayloadsIn = 4;      // in one of so many, single blocks rot instead of stores
constexpr uint64_t kUndecidedShare = 4;  // one in so many checks may be

constexpr Nanos kStep = 100 * kMillisecond;
// Of virtual time, after the last fault; or so many writes, where a disk is slow.
constexpr Nanos kHealWithin = 120 * kSecond;
constexpr Nanos kHealWrites = 2000;

// So many blocks that segments are never quite dead, and vacuum has to copy; but far from what
// fits, or writes would be refused for ever.
unsigned ManyBlocks(const Knobs& knobs) {
  constexpr uint64_t kLivePages = 15;  // of the 64 of the smallest segment
  constexpr uint64_t kOtherSegments = 6;
  const uint64_t segments = knobs.capacity_bytes == 0
                                ? 2 * kOtherSegments
                                : knobs.capacity_bytes / knobs.segment_bytes - kOtherSegments;
  return static_cast<unsigned>(std::clamp<uint64_t>(segments * kLivePages / knobs.groups, 40, 120));
}

Workload::Options DrawWorkload(Rng* rng, const Knobs& knobs) {
  const bool politics = knobs.taste == Taste::kPolitics;
  Workload::Options options;
  options.clients = static_cast<unsigned>(rng->Between(2, 6));
  options.depth = static_cast<unsigned>(rng->Between(1, 4));
  options.blocks =
      static_cast<unsigned>(rng->Percent(40) ? rng->Between(4, 8) : rng->Between(6, 40));
  if (knobs.taste == Taste::kStorage && knobs.groups > 1 && rng->Percent(50)) {
    options.blocks = ManyBlocks(knobs);
  }
  // Many at a time on few blocks cannot be checked.
  if (options.blocks <= 8) options.depth = std::min(options.depth, 2u);
  options.loss_percent = static_cast<unsigned>(rng->Below(15));
  options.twice_percent = static_cast<unsigned>(rng->Below(20));
  options.think = static_cast<Nanos>(rng->Between(2, politics ? 25 : 50)) * kMillisecond;
  options.patience = static_cast<Nanos>(rng->Between(200, 800)) * kMillisecond;
  // Some look for another master at once.
  if (rng->Percent(politics ? 85 : 50))
    options.patience = static_cast<Nanos>(rng->Between(15, 80)) * kMillisecond;
  // Who asks so often must not give up as often: too many writes of uncertain outcome cannot be
  // checked.
  if (options.patience < 100 * kMillisecond) {
    options.give_up_percent = static_cast<unsigned>(rng->Below(2));
  }
  if (rng->Percent(30)) options.session_timeout = 2 * kSecond;
  if (politics) options.haste = rng->Between(5, 50);
  options.readers = rng->Percent(politics ? 90 : 60);
  options.loyal = rng->Percent(politics ? 80 : 50);
  return options;
}

class Run {
 public:
  explicit Run(const RunOptions& options) : options_(options), rng_(options.seed) {}

  RunResult Go() {
    SetLogLevel(LogLevel::kOff);
    SetSabotage(options_.sabotage);
    if (options_.trace) scheduler_.trace().SetSink(options_.trace);
    const Knobs knobs = DrawKnobs(&rng_, options_.nodes);
    result_.knobs = knobs.ToString();
    Cluster cluster(&scheduler_, knobs, rng_.Next());
    const bool payloads = options_.seed % kPayloadsIn == 2;
    FaultAtlas atlas(rng_.Next(),
                     payloads ? FaultAtlas::Mode::kPayloads : FaultAtlas::Mode::kNodes);
    Operator op(&scheduler_, &cluster, &atlas, rng_.Next());
    const bool with_gateways = options_.seed % kGatewaysIn == 0;
    Workload::Options clients = DrawWorkload(&rng_, knobs);
    if (with_gateways) clients.epoch = Gateways::kEpochOfOthers;
    Workload workload(&scheduler_, &cluster, clients, rng_.Next());
    Chaos chaos(&scheduler_, &cluster, &atlas, &op, rng_.Next());
    std::optional<Gateways> gateways;
    if (with_gateways) gateways.emplace(&scheduler_, &cluster, rng_.Next());
    const auto fail = [this](const std::string& what) { Fail(what); };
    if (gateways) gateways->SetFailureHandler(fail);
    cluster.SetFailureHandler(fail);
    workload.SetFailureHandler(fail);
    cluster.SetBrokenHandler([&](NodeId node, const std::string& why) {
      // A block may be missed for a while where blocks rot; the others have it.
      if (payloads && why.starts_with(kCannotRead)) return;
      // Only damage excuses a store that fails.
      if (!atlas.damaged(node)) Fail(fmt::format("node {} fails without a cause: {}", node, why));
    });
    cluster.SetReplyHandler(
        [&](NodeId from, const ShardReply& reply, std::optional<Instance> as_of) {
          if (reply.id >= Gateways::kFirstId) return gateways->OnReply(from, reply);
          workload.OnReply(from, reply, as_of);
        });

    cluster.CreateAll();
    op.Start();
    workload.Start();
    if (gateways) gateways->Start();
    Until(scheduler_.now() + 2 * kSecond);
    chaos.Start();
    Until(scheduler_.now() + static_cast<Nanos>(rng_.Between(5, 25)) * kSecond);
    chaos.StopAndHeal();
    workload.SetReliable();
    if (gateways) gateways->SetReliable();
    Until(scheduler_.now() + 2 * kSecond);
    workload.StopIssuing();
    if (gateways) gateways->StopIssuing();
    Settle(&cluster, &op, &workload, gateways ? &*gateways : nullptr);
    Scrub(&cluster);
    // Time has passed, in which something may have been begun.
    Settle(&cluster, &op, &workload, gateways ? &*gateways : nullptr);
    Check(&cluster, &workload);
    if (gateways) result_.operations_checked += gateways->finished();

    result_.faults = chaos.faults();
    result_.faults["network faults"] = cluster.network().counters().faults();
    result_.faults["member changes"] = op.changes();
    if (gateways) result_.faults["gateways that stalled or died"] = gateways->faults();
    result_.simulated = scheduler_.now();
    result_.trace_hash = scheduler_.trace().hash();
    SetSabotage(std::nullopt);
    return result_;
  }

 private:
  void Fail(const std::string& what) {
    if (!result_.ok) return;
    result_.ok = false;
    result_.failure = fmt::format("at {:.3f} s: {}\nlast events:\n{}",
                                  static_cast<double>(scheduler_.now()) / kSecond, what,
                                  scheduler_.trace().Tail());
    scheduler_.RequestStop();
  }

  void Until(Nanos time) {
    if (!result_.ok) return;
    const Scheduler::Stop stop = scheduler_.RunUntil(time);
    if (Scheduler::IsLimit(stop)) Fail(fmt::format("stopped: {}", Scheduler::StopName(stop)));
  }

  // Liveness: without faults, everything asked is answered and all replicas become equal.
  void Settle(Cluster* cluster, Operator* op, Workload* workload, const Gateways* gateways) {
    const Nanos deadline =
        scheduler_.now() + std::max(kHealWithin, kHealWrites * cluster->SlowestWrite());
    while (result_.ok) {
      std::string missing;
      if (workload->open() > 0) {
        missing = workload->DescribeOpen();
      } else if (gateways != nullptr && !gateways->idle()) {
        missing = "a machine waits for its gateway";
      } else if (!op->AllRepaired()) {
        missing = "a lost disk is not replaced in all groups";
      } else {
        missing = cluster->Unconverged();
        if (missing.empty()) missing = op->Unfinished();
      }
      if (missing.empty()) return;
      if (scheduler_.now() >= deadline) {
        return Fail(fmt::format("does not recover: {} ({})\n{}", missing, cluster->Unconverged(),
                                cluster->Describe()));
      }
      Until(scheduler_.now() + kStep);
    }
  }

  // Rot that sleeps is found and mended, and none is left.
  void Scrub(Cluster* cluster) {
    if (!result_.ok) return;
    cluster->StartScrubs();
    const Nanos deadline = scheduler_.now() + kHealWithin;
    while (result_.ok) {
      Until(scheduler_.now() + kStep);
      const std::string missing = cluster->Unscrubbed();
      if (missing.empty()) break;
      if (scheduler_.now() >= deadline) {
        return Fail(fmt::format("does not recover: {}\n{}", missing, cluster->Describe()));
      }
    }
    const std::string rotten = cluster->FindDamage();
    if (!rotten.empty()) Fail(rotten);
  }

  void Check(Cluster* cluster, Workload* workload) {
    result_.operations_checked = workload->finished();
    if (result_.ok) {
      const std::string differ = cluster->CompareReplicas();
      if (!differ.empty()) Fail(differ);
    }
    if (result_.ok) {
      const std::string stale = workload->CheckSeen();
      if (!stale.empty()) Fail(stale);
    }
    if (result_.ok) {
      const std::string wrong = workload->CheckLocalReads();
      if (!wrong.empty()) Fail(wrong);
    }
    if (!result_.ok) return;
    const CheckResult checked = CheckLinearizable(workload->history());
    if (!checked.ok) Fail("not linearizable: " + checked.explanation);
    // Where too many operations have no certain outcome a search is given up. A few of those are
    // said aloud in the summary; a run that has more was not checked.
    result_.undecided = checked.undecided;
    if (checked.undecided * kUndecidedShare > checked.blocks + checked.pairs) {
      Fail(fmt::format("{} of {} checks are undecided", checked.undecided,
                       checked.blocks + checked.pairs));
    }
  }

  const RunOptions options_;
  Rng rng_;
  Scheduler scheduler_;
  RunResult result_;
};

}  // namespace

RunResult RunSeed(const RunOptions& options) { return Run(options).Go(); }

}  // namespace hydra::sim
