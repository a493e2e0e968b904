// SPDX-License-Identifier: Apache-2.0
//
// paxos-bench: the consensus core alone. Three replicas in one thread, messages as structs, no
// serialisation, no disk: what is appended counts as durable at once.
//
//   paxos-bench [--seconds S] [--json] [--strict]
//
// Prints entries chosen per second by the number of proposals in flight, and the memory of one idle
// replica. Exit code 1: a bar was missed and --strict given.
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "paxos/lease_table.h"
#include "paxos/replica.h"
#include "tests/support/command_line.h"

namespace hydra::bench {
namespace {

using namespace hydra::paxos;  // NOLINT: a program of its own

constexpr double kEntriesBar = 400'000;  // chosen per second
constexpr double kMemoryBar = 64 << 10;  // bytes of one idle replica

// The lease tables of three nodes that hear each other, and the groups on them.
class Nodes {
 public:
  Nodes() {
    for (NodeId node = 1; node <= 3; ++node) {
      LeaseTable::Options options;
      options.node = node;
      options.boot = node;
      tables_.push_back(std::make_unique<LeaseTable>(options));
      tables_.back()->SetPeers({1, 2, 3}, 0);
    }
  }

  LeaseTable* table(int index) { return tables_[index].get(); }

 private:
  std::vector<std::unique_ptr<LeaseTable>> tables_;
};

class Group {
 public:
  Group(GroupId group, Nodes* nodes) {
    RecoveredState state;
    std::vector<Member> members;
    for (NodeId node = 1; node <= 3; ++node) members.push_back({{node, 1}, Role::kVoter});
    state.config = Config(0, members);
    for (int i = 0; i < 3; ++i) {
      ReplicaOptions options;
      options.group = group;
      options.self = members[i].id;
      options.seed = group * 3 + i;
      replicas_.push_back(std::make_unique<Replica>(options, state, nodes->table(i), kNow));
    }
    replicas_[0]->Campaign(kNow);
    while (!replicas_[0]->serving()) Turn();
  }

  Replica& master() { return *replicas_[0]; }

  // Each replica takes what the others sent it, then hands out what came of it.
  void Turn() {
    for (int i = 0; i < 3; ++i) {
      Replica& replica = *replicas_[i];
      for (Message& message : inbox_[i]) replica.Step(std::move(message), kNow);
      inbox_[i].clear();
      for (;;) {
        replica.TakeOutput(&output_);
        if (output_.empty()) break;
        if (!output_.appends.empty()) replica.Persisted(output_.appends.back().token, kNow);
        for (const Chosen& chosen : output_.chosen) replica.Applied(chosen.instance);
        for (Message& message : output_.messages) {
          inbox_[message.to.node - 1].push_back(std::move(message));
        }
      }
    }
  }

  // Chosen at the master in about `seconds`, with `depth` proposals in flight at any time.
  double Measure(int depth, double seconds) {
    const Body body = std::make_shared<const int>(1);
    EntryMeta meta;
    meta.kind = EntryKind::kCommand;
    meta.bytes = 4096;
    const auto start = std::chrono::steady_clock::now();
    const Instance first = master().commit();
    Instance proposed = first;
    double passed = 0;
    while (passed < seconds) {
      for (int turn = 0; turn < 1000; ++turn) {
        while (proposed - master().commit() < static_cast<uint64_t>(depth)) {
          ++meta.digest;
          const Result<Instance> instance = master().Propose(meta, body, kNow);
          HYDRA_CHECK(instance.ok());
          proposed = *instance;
        }
        Turn();
      }
      passed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
    return static_cast<double>(master().commit() - first) / passed;
  }

 private:
  static constexpr Nanos kNow = kSecond;

  std::vector<std::unique_ptr<Replica>> replicas_;
  std::vector<Message> inbox_[3];
  Output output_;
};

// Of one replica that has served and is idle now.
double IdleMemory() {
  constexpr int kGroups = 200;
  Nodes nodes;
  std::vector<std::unique_ptr<Group>> groups;
  const size_t before = mallinfo2().uordblks;
  for (int i = 0; i < kGroups; ++i) {
    groups.push_back(std::make_unique<Group>(static_cast<GroupId>(i + 1), &nodes));
    groups.back()->Measure(64, 0);
    for (int turn = 0; turn < 4; ++turn) groups.back()->Turn();
  }
  return static_cast<double>(mallinfo2().uordblks - before) / (3.0 * kGroups);
}

int Main(int argc, char** argv) {
  double seconds = 2;
  bool json = false;
  bool strict = false;
  test::CommandLine line("the consensus core alone: entries per second, memory of an idle group");
  line.Add("--seconds", &seconds, "of each measurement").BetweenReals(0.01, 600.0);
  line.Add("--json", &json, "for programs");
  line.Add("--strict", &strict, "exit with 1 if a bar was missed");
  if (const std::optional<int> status = line.Parse(argc, argv)) return *status;

  nlohmann::json figures;
  double best = 0;
  for (const int depth : {1, 16, 64, 256}) {
    Nodes nodes;
    Group group(1, &nodes);
    group.Measure(depth, seconds / 10);
    const double rate = group.Measure(depth, seconds);
    best = std::max(best, rate);
    figures[fmt::format("entries_per_second_depth_{}", depth)] = rate;
    if (!json) fmt::print("entries chosen per second, {:3} in flight: {:10.0f}\n", depth, rate);
  }
  const double memory = IdleMemory();
  figures["idle_replica_bytes"] = memory;
  const bool met = best >= kEntriesBar && memory <= kMemoryBar;
  figures["bars_met"] = met;
  if (json) {
    fmt::print("{}\n", figures.dump(2));
  } else {
    fmt::print("memory of an idle replica: {:.1f} KiB\n", memory / 1024);
    fmt::print("bars (>= {:.0f}/s, <= {:.0f} KiB): {}\n", kEntriesBar, kMemoryBar / 1024,
               met ? "met" : "MISSED");
  }
  return strict && !met ? 1 : 0;
}

}  // namespace
}  // namespace hydra::bench

int main(int argc, char** argv) { return hydra::bench::Main(argc, argv); }
