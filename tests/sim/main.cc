// SPDX-License-Identifier: Apache-2.0
//
// hydra-sim: runs simulated clusters and reports what they did wrong. Exit status: 0 all was right,
// 1 a violation was found (--exam: a sabotage was not), 2 it was called wrongly.
#include <sys/random.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/probe.h"
#include "base/sabotage.h"
#include "tests/sim/campaign.h"
#include "tests/sim/exam.h"
#include "tests/sim/run.h"
#include "tests/support/command_line.h"

namespace hydra::sim {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kDefaultSeeds = 100;
constexpr size_t kExamText = 120;  // of what caught a sabotage

struct Arguments {
  std::string seeds;
  uint64_t seed = 0;
  unsigned nodes = 0;
  double minutes = 0;
  unsigned jobs = 0;
  unsigned max_failures = 1;
  std::string sabotage;
  bool one_seed = false;
  bool json = false;
  bool trace = false;
  bool twice = false;
  bool exam = false;
  bool probes = false;
  bool list_sabotages = false;
};

std::string ReplayCommand(uint64_t seed, const RunOptions& run) {
  std::string command = fmt::format("hydra-sim --seed {}", seed);
  if (run.nodes != 0) command += fmt::format(" --nodes {}", run.nodes);
  if (run.sabotage) command += fmt::format(" --sabotage {}", SabotageName(*run.sabotage));
  return command + " --trace";
}

double Seconds(Nanos nanos) { return static_cast<double>(nanos) / kSecond; }

double Speed(const CampaignResult& result) {
  return result.wall == 0 ? 0 : Seconds(result.simulated) / Seconds(result.wall);
}

Json ToJson(const CampaignResult& result, const CampaignOptions& options, bool probes) {
  Json json = {{"ok", result.ok()},
               {"first_seed", options.seeds.first},
               {"seeds", result.seeds},
               {"failed", result.failures.size()},
               {"simulated_seconds", Seconds(result.simulated)},
               {"wall_seconds", Seconds(result.wall)},
               {"speed", Speed(result)},
               {"operations_checked", result.operations_checked},
               {"undecided", result.undecided},
               {"faults_injected", result.faults_injected()},
               {"faults", result.faults},
               {"probes_reached", result.probes_reached()},
               {"probes_total", result.probes.size()}};
  if (options.run.sabotage) json["sabotage"] = SabotageName(*options.run.sabotage);
  Json failures = Json::array();
  for (const SeedFailure& f : result.failures) {
    failures.push_back({{"seed", f.seed},
                        {"failure", f.text},
                        {"knobs", f.knobs},
                        {"replay", ReplayCommand(f.seed, options.run)}});
  }
  json["failures"] = std::move(failures);
  if (probes) {
    for (const auto& [probe, passed] : result.probes) {
      json["probes"].push_back(
          {{"name", probe.first}, {"where", probe.second}, {"passed", passed}});
    }
  }
  return json;
}

void PrintText(const CampaignResult& result, const CampaignOptions& options, bool probes) {
  for (const SeedFailure& f : result.failures) {
    fmt::print("seed {} FAILED: {}\n", f.seed, f.text);
    if (!f.knobs.empty()) fmt::print("  options: {}\n", f.knobs);
    fmt::print("  replay: {}\n\n", ReplayCommand(f.seed, options.run));
  }
  fmt::print(
      "{} seeds from {}, {} failed; {:.2f} simulated hours in {:.1f} s ({:.0f} times real time); "
      "{} operations checked ({} searches undecided), {} faults injected; probes reached {}/{}\n",
      result.seeds, options.seeds.first, result.failures.size(), Seconds(result.simulated) / 3600,
      Seconds(result.wall), Speed(result), result.operations_checked, result.undecided,
      result.faults_injected(), result.probes_reached(), result.probes.size());
  if (!probes) return;
  for (const auto& [kind, count] : result.faults) fmt::print("  fault {:>12} {}\n", count, kind);
  for (const auto& [probe, passed] : result.probes) {
    fmt::print("  probe {:>12} {} ({})\n", passed == 0 ? "NEVER" : fmt::to_string(passed),
               probe.first, probe.second);
  }
}

// In this process, for a debugger or a trace.
CampaignResult RunHere(const Arguments& arguments, const CampaignOptions& options) {
  RunOptions run = options.run;
  run.seed = arguments.seed;
  if (arguments.trace) {
    std::FILE* out = arguments.json ? stderr : stdout;
    run.trace = [out](const std::string& line) { fmt::print(out, "{}\n", line); };
  }
  const RealClock clock;
  const Nanos began = clock.Now();
  const RunResult run_result = RunSeed(run);
  CampaignResult result;
  result.Add(run_result);
  result.wall = clock.Now() - began;
  if (!run_result.ok) {
    result.failures.push_back({run.seed, run_result.failure, run_result.knobs});
  }
  for (const ProbeCount& p : Probes()) result.probes[{p.name, p.where}] = p.passed;
  if (!arguments.json) fmt::print("seed {}: trace {:016x}\n", run.seed, run_result.trace_hash);
  return result;
}

void PrintRow(const ExamRow& row) {
  std::string text = row.failure.substr(0, kExamText);
  std::replace(text.begin(), text.end(), '\n', ' ');
  fmt::print("{:28} {} after {:3} of {:3} seeds, {:5.1f} s: {}\n", SabotageName(row.sabotage),
             row.caught_by ? "caught" : "MISSED", row.seeds, row.limit, row.wall_seconds, text);
  if (!row.fails_anyway.empty()) {
    fmt::print("  seeds that fail without it as well: {}\n", fmt::join(row.fails_anyway, " "));
  }
  if (!row.unfitting.empty()) {
    fmt::print("  seeds whose complaint does not fit: {}\n", fmt::join(row.unfitting, " "));
  }
  std::fflush(stdout);
}

Json ToJson(const ExamRow& row) {
  Json json = {{"sabotage", SabotageName(row.sabotage)},
               {"caught", row.caught_by.has_value()},
               {"seeds", row.seeds},
               {"limit", row.limit},
               {"wall_seconds", row.wall_seconds},
               {"fails_anyway", row.fails_anyway},
               {"unfitting", row.unfitting}};
  if (row.caught_by) {
    json["seed"] = *row.caught_by;
    json["failure"] = row.failure;
  }
  return json;
}

// Every sabotage must be found within its own number of seeds, or within those that were given.
int Exam(const Arguments& arguments, const CampaignOptions& campaign) {
  ExamOptions options;
  options.jobs = campaign.jobs;
  options.run = campaign.run;
  if (!arguments.seeds.empty() || arguments.one_seed) options.seeds = campaign.seeds;
  for (const SabotageInfo& info : AllSabotages()) {
    if (campaign.run.sabotage.value_or(info.sabotage) == info.sabotage) {
      options.sabotages.push_back(info.sabotage);
    }
  }
  if (!arguments.json) options.on_row = PrintRow;
  const std::vector<ExamRow> rows = TakeExam(options);
  const auto caught = std::count_if(rows.begin(), rows.end(),
                                    [](const ExamRow& row) { return row.caught_by.has_value(); });
  const bool ok = static_cast<size_t>(caught) == rows.size();
  if (arguments.json) {
    Json all = Json::array();
    for (const ExamRow& row : rows) all.push_back(ToJson(row));
    fmt::print("{}\n",
               Json{{"ok", ok}, {"exam", all}}.dump(2, ' ', false, Json::error_handler_t::replace));
  } else {
    fmt::print("{} of {} sabotages caught\n", caught, rows.size());
  }
  return ok ? 0 : 1;
}

int ListSabotages() {
  for (const SabotageInfo& info : AllSabotages()) {
    fmt::print("{:28} {:4} seeds: {}\n", info.name, info.seeds, info.what);
  }
  return 0;
}

int Usage(const std::string& problem) {
  fmt::print(stderr, "hydra-sim: {}\n", problem);
  return 2;
}

int Main(const Arguments& arguments) {
  if (arguments.list_sabotages) return ListSabotages();
  CampaignOptions options;
  options.run.nodes = arguments.nodes;
  options.max_failures = arguments.max_failures;
  options.twice = arguments.twice;
  options.jobs =
      arguments.jobs != 0 ? arguments.jobs : std::max(1u, std::thread::hardware_concurrency());
  options.wall_time = static_cast<Nanos>(arguments.minutes * 60 * kSecond);
  if (!arguments.sabotage.empty()) {
    options.run.sabotage = FindSabotage(arguments.sabotage);
    if (!options.run.sabotage) {
      return Usage("no sabotage '" + arguments.sabotage + "'; see --list-sabotages");
    }
  }
  if (arguments.one_seed) {
    options.seeds = {arguments.seed, arguments.seed};
  } else if (!arguments.seeds.empty()) {
    const Result<SeedRange> seeds = ParseSeedRange(arguments.seeds);
    if (!seeds.ok()) return Usage(std::string(seeds.status().message()));
    options.seeds = *seeds;
  } else if (arguments.minutes > 0) {
    // Fresh seeds. 32 bits, so that they are easy to pass around.
    uint32_t fresh = 0;
    HYDRA_CHECK(getrandom(&fresh, sizeof(fresh), 0) == sizeof(fresh));
    options.seeds = {fresh, std::numeric_limits<uint64_t>::max() / 2};
  } else {
    options.seeds = {1, kDefaultSeeds};
  }
  if (arguments.exam) return Exam(arguments, options);
  const bool here = arguments.one_seed && !arguments.twice;
  const CampaignResult result = here ? RunHere(arguments, options) : RunCampaign(options, RunSeed);
  if (arguments.json) {
    fmt::print("{}\n", ToJson(result, options, arguments.probes)
                           .dump(2, ' ', false, Json::error_handler_t::replace));
  } else {
    PrintText(result, options, arguments.probes);
  }
  return result.ok() ? 0 : 1;
}

}  // namespace
}  // namespace hydra::sim

int main(int argc, char** argv) {
  hydra::sim::Arguments a;
  hydra::test::CommandLine line("Runs simulated clusters and tries to break them.");
  const auto seeds = line.Add("--seeds", &a.seeds, "a range, as 1..500");
  auto seed = line.Add("--seed", &a.seed, "one seed, in this process");
  seed.Excludes(seeds);
  line.Add("--nodes", &a.nodes, "drawn from the seed unless given").Between(1, 9);
  line.Add("--minutes", &a.minutes, "of real time; over fresh seeds unless --seeds is given")
      .NonNegative();
  line.Add("--jobs", &a.jobs, "seeds run beside each other; one per core unless given");
  line.Add("--max-failures", &a.max_failures, "stop after so many").Positive();
  line.Add("--sabotage", &a.sabotage, "switch a deliberate bug on");
  line.Add("--exam", &a.exam, "try every sabotage, or that one; each must be caught in time");
  line.Add("--twice", &a.twice, "run each seed twice and compare the traces");
  line.Add("--trace", &a.trace, "print every event").Needs(seed);
  line.Add("--probes", &a.probes, "print every probe and fault counter");
  line.Add("--list-sabotages", &a.list_sabotages, "and exit");
  line.Add("--json", &a.json, "print one JSON object");
  if (const std::optional<int> status = line.Parse(argc, argv)) return *status == 0 ? 0 : 2;
  a.one_seed = seed.given();
  return hydra::sim::Main(a);
}
