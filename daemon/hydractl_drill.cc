// SPDX-License-Identifier: Apache-2.0
//
// hydractl drill: breaks a cluster on purpose, and says what came of it. docs/drills.md.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <random>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "daemon/drill_run.h"
#include "daemon/hydractl.h"

namespace hydra::ctl {
namespace {

namespace fs = std::filesystem;

std::atomic<bool> interrupted{false};

struct DrillArguments {
  std::string name;
  uint64_t duration_ms = 30'000;
  uint64_t hold_ms = 0;
  uint64_t max_gap_ms = 0;
  bool max_gap_given = false;
  std::string report;
  std::vector<std::string> ssh_hosts;
  std::map<std::string, std::string> commands;  // addresses of its strings go to the options
  drill::RunOptions run;
};

// --- list ---------------------------------------------------------------------------------------

std::string NeedsText(const drill::Drill& known) {
  std::string text;
  for (const drill::Need need : known.needs) {
    switch (need) {
      case drill::Need::kLinks:
      case drill::Need::kSlowDisk:
      case drill::Need::kFullDisk:
      case drill::Need::kRot: text = "--drill"; break;
      default: break;
    }
  }
  return text.empty() ? "-" : text;
}

int List(const Context& context) {
  if (context.json) {
    Json list = Json::array();
    for (const drill::Drill& known : drill::Drills()) {
      list.push_back({{"name", known.name},
                      {"summary", known.summary},
                      {"needs_drill_nodes", NeedsText(known) != "-"},
                      {"max_gap_ms", known.max_gap_ms},
                      {"rate", known.rate}});
    }
    Print(list);
    return kExitOk;
  }
  Table table({"DRILL", "NODES NEED", "MAX GAP", "WHAT IT DOES"});
  for (const drill::Drill& known : drill::Drills()) {
    table.Add(
        {known.name, NeedsText(known), fmt::format("{} ms", known.max_gap_ms), known.summary});
  }
  table.Print();
  return kExitOk;
}

// --- run ----------------------------------------------------------------------------------------

// Milliseconds, to a tenth.
double Ms(Nanos time) { return static_cast<double>(time / 100'000) / 10; }

Json ReportJson(const drill::Report& r) {
  Json json{{"drill", r.drill},
            {"passed", r.passed()},
            {"verdict", r.Verdict()},
            {"problems", r.Problems()},
            {"started", r.started},
            {"volume", r.volume},
            {"seed", r.seed},
            {"length_ms", Ms(r.length)},
            {"max_gap_ms", Ms(r.max_gap)},
            {"longest_gap_ms", Ms(r.WorstGap())},
            {"median_gap_ms", Ms(r.MedianGap())},
            {"gap_before_faults_ms", Ms(r.calm_gap)},
            {"slowest_recovery_ms", Ms(r.WorstRecovery())},
            {"faults", Json::array()},
            {"master_changes", Json::array()},
            {"check",
             {{"linearizable", r.check.ok},
              {"operations", r.check.operations},
              {"blocks", r.check.blocks},
              {"searched", r.check.searched},
              {"pairs", r.check.pairs},
              {"undecided", r.check.undecided},
              {"lost", r.lost},
              {"damaged", r.damage}}},
            {"totals",
             {{"operations", r.totals.operations},
              {"writes", r.totals.writes},
              {"reads", r.totals.reads},
              {"discards", r.totals.discards},
              {"compare_and_writes", r.totals.compares},
              {"mismatches", r.totals.mismatches},
              {"refused", r.totals.refused},
              {"unknown", r.totals.unknown},
              {"failed_reads", r.totals.failed_reads},
              {"told_damaged", r.told_damaged},
              {"p50_ms", Ms(r.totals.p50)},
              {"p99_ms", Ms(r.totals.p99)},
              {"max_ms", Ms(r.totals.max)}}}};
  if (!r.check.ok) json["check"]["explanation"] = r.check.explanation;
  if (r.shipped_bytes >= 0) json["shipped_bytes"] = r.shipped_bytes;
  for (const drill::FaultRecord& f : r.faults) {
    Json fault{{"what", f.what},
               {"at_ms", Ms(f.begin)},
               {"gap_ms", Ms(f.gap)},
               {"gap_group", f.gap_group},
               {"reads", f.reads},
               {"read_wait_ms", Ms(f.read_wait)},
               {"writes_stop", f.writes_stop}};
    if (f.restored > 0) fault["restored_after_ms"] = Ms(f.restored - f.begin);
    if (f.healthy > 0) fault["healthy_after_ms"] = Ms(f.healthy - f.begin);
    json["faults"].push_back(std::move(fault));
  }
  for (const drill::MasterChange& c : r.changes) {
    json["master_changes"].push_back(
        {{"at_ms", Ms(c.at)}, {"group", c.group}, {"from", c.from}, {"to", c.to}});
  }
  for (const auto& [name, value] : r.environment) json["environment"][name] = value;
  return json;
}

Json TimelineJson(const drill::Report& r) {
  Json list = Json::array();
  for (size_t i = 0; i < r.slots.size(); ++i) {
    const drill::Slot& s = r.slots[i];
    list.push_back({{"at_ms", Ms(static_cast<Nanos>(i) * r.slot)},
                    {"writes", s.writes},
                    {"reads", s.reads},
                    {"failed", s.failed},
                    {"p50_ms", Ms(s.p50)},
                    {"p99_ms", Ms(s.p99)},
                    {"max_ms", Ms(s.max)}});
  }
  return list;
}

Status WriteReport(const drill::Report& report, const std::string& dir) {
  std::error_code error;
  fs::create_directories(dir, error);
  Json json = ReportJson(report);
  json["slot_ms"] = Ms(report.slot);
  json["timeline"] = TimelineJson(report);
  const auto write = [&](const char* name, const std::string& text) {
    std::ofstream file(fs::path(dir) / name);
    file << text;
    file.close();
    return file.good();
  };
  const bool page = write("index.html", drill::RenderHtml(report));
  const bool data =
      write("report.json", json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
  if (page && data) return Status::Ok();
  return Status::IoError(fmt::format("the report could not be written to {}", dir));
}

void PrintSummary(const drill::Report& r) {
  Table table({"FAULT", "AT", "WRITE GAP", "GROUP", "READ WAIT", "UNDONE", "HEALTHY", "WHAT"});
  for (size_t i = 0; i < r.faults.size(); ++i) {
    const drill::FaultRecord& f = r.faults[i];
    table.Add({std::to_string(i + 1), drill::TimeText(f.begin), drill::TimeText(f.gap),
               std::to_string(f.gap_group), drill::TimeText(f.read_wait),
               f.restored == 0 ? "never" : drill::TimeText(f.restored - f.begin),
               f.healthy == 0 ? "never" : drill::TimeText(f.healthy - f.begin), f.what});
  }
  std::cout << "\n";
  table.Print();
  std::cout << fmt::format(
      "\nload:    {} operations, {} writes acknowledged, {} refused, {} unknown, {} reads failed; "
      "p50 {}, p99 {}, longest {}\n"
      "gaps:    median {}, longest {} (limit {}); {} before the first fault\n"
      "masters: {} changes\n"
      "check:   {} operations on {} blocks, {} lost, {} damaged, {}\n",
      r.totals.operations, r.totals.writes + r.totals.discards + r.totals.compares,
      r.totals.refused, r.totals.unknown, r.totals.failed_reads, drill::TimeText(r.totals.p50),
      drill::TimeText(r.totals.p99), drill::TimeText(r.totals.max), drill::TimeText(r.MedianGap()),
      drill::TimeText(r.WorstGap()), r.max_gap == 0 ? "none" : drill::TimeText(r.max_gap),
      drill::TimeText(r.calm_gap), r.NewMasters(), r.check.operations, r.check.blocks,
      r.lost.size(), r.damage.size(), r.check.ok ? "linearizable" : "not linearizable");
  if (!r.check.ok) std::cout << r.check.explanation << "\n";
  for (const std::string& line : r.lost) std::cout << "lost: " << line << "\n";
  for (const std::string& line : r.damage) std::cout << "damaged: " << line << "\n";
}

// One line that is written over and over on a terminal; none elsewhere.
class LiveLine {
 public:
  explicit LiveLine(bool shown) : shown_(shown) {}

  void Event(const std::string& line) {
    if (!shown_) {
      std::cerr << line << "\n";
    } else {
      std::cerr << "\r\033[K" << line << "\n";
    }
  }
  void Show(const drill::Progress& p) {
    if (!shown_ || p.seconds < last_ + 0.2) return;
    const double span = std::max(0.01, p.seconds - last_);
    const double rate = static_cast<double>(p.writes - last_writes_) / span;
    constexpr int kBar = 24;
    const int full = std::clamp(static_cast<int>(kBar * p.seconds / std::max(1.0, p.of)), 0, kBar);
    std::cerr << fmt::format("\r\033[K[{}{}] {:5.1f} s  {:6.0f} writes/s  {} failed  {}",
                             std::string(static_cast<size_t>(full), '#'),
                             std::string(static_cast<size_t>(kBar - full), '.'), p.seconds, rate,
                             p.failed, p.phase.substr(0, 60))
              << std::flush;
    last_ = p.seconds;
    last_writes_ = p.writes;
  }
  void End() {
    if (shown_) std::cerr << "\r\033[K" << std::flush;
  }

 private:
  const bool shown_;
  double last_ = 0;
  uint64_t last_writes_ = 0;
};

// Where scripts/cluster is, if hydractl was built in this repository or is called within it.
std::string FindScript() {
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  for (fs::path dir = self.parent_path(); !dir.empty() && dir != dir.root_path();
       dir = dir.parent_path()) {
    if (fs::exists(dir / "scripts" / "cluster")) return (dir / "scripts" / "cluster").string();
  }
  return "scripts/cluster";
}

Status Complete(const Context& context, DrillArguments* a) {
  size_t begin = 0;
  while (begin <= context.cluster.size()) {
    const size_t end = std::min(context.cluster.find(',', begin), context.cluster.size());
    if (end > begin) a->run.seeds.push_back(context.cluster.substr(begin, end - begin));
    begin = end + 1;
  }
  if (a->run.seeds.empty()) return Status::InvalidArgument("--cluster names no node");
  for (const std::string& host : a->ssh_hosts) {
    const size_t equals = host.find('=');
    const unsigned long node = std::strtoul(host.c_str(), nullptr, 10);
    if (equals == std::string::npos || node == 0) {
      return Status::InvalidArgument(fmt::format("--ssh-host {}: use N=HOST", host));
    }
    a->run.executor.ssh_hosts[static_cast<uint32_t>(node)] = host.substr(equals + 1);
  }
  for (const auto& [name, text] : a->commands) {
    if (!text.empty()) a->run.executor.commands[name] = text;
  }
  if (a->run.executor.script.empty()) a->run.executor.script = FindScript();
  if (a->run.seed == 0) a->run.seed = std::random_device()() | 1u;
  a->run.duration = std::chrono::milliseconds(a->duration_ms);
  if (a->hold_ms > 100'000) {
    return Status::InvalidArgument("--hold is at most 100s: nodes end faults after five minutes");
  }
  a->run.hold_ms = static_cast<unsigned>(a->hold_ms);
  if (a->max_gap_given) a->run.max_gap_ms = static_cast<int64_t>(a->max_gap_ms);
  return Status::Ok();
}

int RunOne(const Context& context, DrillArguments a) {
  const drill::Drill* known = drill::FindDrill(a.name);
  if (known == nullptr) {
    return context.Fail(Status::InvalidArgument(
        fmt::format("there is no drill '{}'; `hydractl drill list` shows what there is", a.name)));
  }
  const Status complete = Complete(context, &a);
  if (!complete.ok()) return context.Fail(complete);
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, [](int) { interrupted = true; });
  LiveLine line(isatty(STDERR_FILENO) == 1 && !context.json);
  drill::View view;
  view.interrupted = &interrupted;
  if (!context.json) {
    view.event = [&](const std::string& text) { line.Event(text); };
    view.progress = [&](const drill::Progress& progress) { line.Show(progress); };
    line.Event(fmt::format("drill {}, seed {}: {}", known->name, a.run.seed, known->summary));
  }
  const Result<drill::Report> report = drill::RunDrill(*known, a.run, view);
  line.End();
  if (!report.ok()) return context.Fail(report.status());
  const Status written = a.report.empty() ? Status::Ok() : WriteReport(*report, a.report);
  if (context.json) {
    Print(ReportJson(*report));
  } else {
    PrintSummary(*report);
    if (!a.report.empty() && written.ok()) {
      std::cout << fmt::format("report:  {}\n", (fs::path(a.report) / "index.html").string());
    }
    std::cout << "\n" << report->Verdict() << "\n";
  }
  // Whatever became of the report, the verdict is what counts.
  const int unwritten = written.ok() ? kExitOk : context.Fail(written);
  if (report->passed()) return unwritten;
  return report->data_is_good() ? kExitFailed : kExitDamage;
}

void AddRunOptions(CLI::App* run, DrillArguments* a) {
  run->add_option("NAME", a->name, "As `hydractl drill list` shows it")->required();
  run->add_option("--volume", a->run.volume,
                  "The load destroys a few blocks of it; default: one made for the drill");
  run->add_option("--duration", a->duration_ms, "Faults begin for so long; default 30s")
      ->transform(DurationOption())
      ->type_name("TIME");
  run->add_option("--faults", a->run.faults, "... or until there were so many");
  run->add_option("--hold", a->hold_ms, "How long each fault lasts; default: the drill's own")
      ->transform(DurationOption())
      ->type_name("TIME");
  run->add_option("--rate", a->run.rate, "Operations per second; default: the drill's own")
      ->check(CLI::Range(1, 50'000));
  run->add_option("--clients", a->run.clients, "Threads, each a client of its own")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  run->add_option("--blocks", a->run.blocks_per_shard, "That the load uses, per shard")
      ->check(CLI::Range(1, 65'536))
      ->capture_default_str();
  run->add_option("--seed", a->run.seed, "The same choices again; 0: others every time")
      ->capture_default_str();
  run->add_option("--report", a->report, "A directory for index.html and report.json");
  run->add_option_function<uint64_t>(
         "--max-gap",
         [a](const uint64_t& ms) {
           a->max_gap_ms = ms;
           a->max_gap_given = true;
         },
         "Longest write gap that passes, in ms; 0: any; default: the drill's own")
      ->type_name("MS");
  run->add_option("--executor", a->run.executor.kind, "Who breaks nodes: local, command or ssh")
      ->check(CLI::IsMember({"local", "command", "ssh"}))
      ->capture_default_str();
  run->add_option("--cluster-script", a->run.executor.script, "local: scripts/cluster");
  run->add_option("--cluster-dir", a->run.executor.dir, "local: --dir of scripts/cluster");
  run->add_option("--ssh-host", a->ssh_hosts, "ssh: N=HOST of each node; repeat it")
      ->delimiter(',');
  run->add_option("--ssh-command", a->run.executor.ssh, "ssh: how to call it")
      ->capture_default_str();
  for (const char* name : drill::kCommandNames) {
    run->add_option(fmt::format("--{}-command", name), a->commands[name],
                    fmt::format("command, ssh: how to {} node {{n}}", name));
  }
}

}  // namespace

void AddDrillCommands(CLI::App* app, Context* context) {
  const auto a = std::make_shared<DrillArguments>();
  CLI::App* parent = app->add_subcommand("drill", "Break the cluster on purpose, under load.");
  parent->require_subcommand(1);
  CLI::App* list = parent->add_subcommand("list", "What drills there are.");
  list->callback([=] { context->action = [=] { return List(*context); }; });
  CLI::App* run = parent->add_subcommand("run", "Run one, and say what came of it.");
  AddRunOptions(run, a.get());
  run->callback([=] { context->action = [=] { return RunOne(*context, *a); }; });
}

}  // namespace hydra::ctl
