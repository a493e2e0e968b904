// SPDX-License-Identifier: Apache-2.0
//
// hydractl bench: a load in the words of fio.
#include <iostream>
#include <map>
#include <memory>
#include <random>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "daemon/hydractl.h"
#include "daemon/hydractl_load.h"

namespace hydra::ctl {
namespace {

constexpr unsigned kMixedReads = 50;  // percent, as fio's default

struct BenchArguments {
  std::string volume;
  std::string pattern = "randread";
  unsigned read_percent = kMixedReads;
  uint64_t runtime_ms = 10'000;
  std::string skew;
  LoadOptions load;
};

constexpr std::array<std::pair<const char*, double>, 6> kQuantiles = {{{"p50", 0.5},
                                                                       {"p90", 0.9},
                                                                       {"p95", 0.95},
                                                                       {"p99", 0.99},
                                                                       {"p99.9", 0.999},
                                                                       {"p99.99", 0.9999}}};

// "90/10" as two percentages.
std::string ParseSkew(const std::string& text, Skew* skew) {
  const size_t slash = text.find('/');
  unsigned requests = 0;
  unsigned blocks = 0;
  if (slash == std::string::npos || !CLI::detail::lexical_cast(text.substr(0, slash), requests) ||
      !CLI::detail::lexical_cast(text.substr(slash + 1), blocks) || requests > 100 || blocks == 0 ||
      blocks > 100) {
    return text + ": say for example 90/10, for 90 % of the requests to 10 % of the blocks";
  }
  *skew = {requests, blocks};
  return "";
}

double Micros(double nanoseconds) { return nanoseconds / 1e3; }

Json SideJson(const LoadSide& side, const LoadOptions& options, double seconds) {
  const auto operations = static_cast<double>(side.operations);
  Json latency{{"min", Micros(static_cast<double>(side.latency.min()))},
               {"mean", Micros(side.latency.mean())}};
  for (const auto& [name, q] : kQuantiles) {
    latency[name] = Micros(static_cast<double>(side.latency.Quantile(q)));
  }
  latency["max"] = Micros(static_cast<double>(side.latency.max()));
  return {{"operations", side.operations},
          {"iops", operations / seconds},
          {"mb_per_second", operations * static_cast<double>(options.block_bytes) / seconds / 1e6},
          {"latency_us", latency}};
}

std::string LatencyText(double microseconds) {
  if (microseconds >= 1e6) return fmt::format("{:.2f} s", microseconds / 1e6);
  if (microseconds >= 1e4) return fmt::format("{:.1f} ms", microseconds / 1e3);
  return fmt::format("{:.0f} us", microseconds);
}

void PrintSide(const char* name, const LoadSide& side, const LoadOptions& options, double seconds) {
  if (side.operations == 0) return;
  const auto operations = static_cast<double>(side.operations);
  std::cout << fmt::format("  {}: {:.0f} IOPS, {:.1f} MB/s, {} I/Os\n", name, operations / seconds,
                           operations * static_cast<double>(options.block_bytes) / seconds / 1e6,
                           side.operations);
  std::string line = fmt::format("    latency: min {}, mean {}",
                                 LatencyText(Micros(static_cast<double>(side.latency.min()))),
                                 LatencyText(Micros(side.latency.mean())));
  for (const auto& [quantile, q] : kQuantiles) {
    line += fmt::format(", {} {}", quantile,
                        LatencyText(Micros(static_cast<double>(side.latency.Quantile(q)))));
  }
  line += fmt::format(", max {}", LatencyText(Micros(static_cast<double>(side.latency.max()))));
  std::cout << line << "\n";
}

void PrintReport(const BenchArguments& a, const LoadReport& report) {
  std::cout << fmt::format("{} on {}: bs {}, iodepth {}, numjobs {}, {:.1f} s\n", a.pattern,
                           a.volume, BytesText(a.load.block_bytes), a.load.depth, a.load.jobs,
                           report.seconds);
  PrintSide("read", report.reads, a.load, report.seconds);
  PrintSide("write", report.writes, a.load, report.seconds);
  if (report.errors > 0) {
    std::cout << fmt::format("  errors: {}, the first: {}\n", report.errors,
                             report.first_error.ToString());
  }
  if (!a.load.verify) return;
  std::cout << fmt::format("  verify: {} blocks read again, {} wrong\n", report.verified,
                           report.wrong);
  if (report.wrong > 0) std::cout << "  the first: " << report.first_wrong << "\n";
}

int Bench(const Context& context, BenchArguments a) {
  static const std::map<std::string, std::pair<bool, int>> kPatterns = {
      {"read", {false, 100}},    {"write", {false, 0}},    {"rw", {false, -1}},
      {"randread", {true, 100}}, {"randwrite", {true, 0}}, {"randrw", {true, -1}}};
  const auto pattern = kPatterns.at(a.pattern);
  a.load.random = pattern.first;
  a.load.read_percent = pattern.second < 0 ? a.read_percent : static_cast<unsigned>(pattern.second);
  a.load.runtime = std::chrono::milliseconds(a.runtime_ms);
  if (a.load.seed == 0) a.load.seed = (uint64_t{std::random_device()()} << 32) | 1;
  std::vector<Volume> volumes;
  for (unsigned i = 0; i < a.load.jobs; ++i) {
    Result<Volume> volume = context.Open(a.volume);
    if (!volume.ok()) return context.Fail(volume.status());
    volumes.push_back(std::move(*volume));
  }
  const Result<LoadReport> report = RunLoad(volumes, a.load);
  if (!report.ok()) return context.Fail(report.status());
  if (context.json) {
    Json json{{"volume", a.volume},
              {"rw", a.pattern},
              {"bs", a.load.block_bytes},
              {"iodepth", a.load.depth},
              {"numjobs", a.load.jobs},
              {"seconds", report->seconds},
              {"read", SideJson(report->reads, a.load, report->seconds)},
              {"write", SideJson(report->writes, a.load, report->seconds)},
              {"errors", report->errors}};
    if (report->errors > 0) json["first_error"] = report->first_error.ToString();
    if (a.load.verify) {
      json["verified_blocks"] = report->verified;
      json["wrong_blocks"] = report->wrong;
      if (report->wrong > 0) json["first_wrong"] = report->first_wrong;
    }
    Print(json);
  } else {
    PrintReport(a, *report);
  }
  if (report->wrong > 0) return kExitDamage;
  if (report->errors > 0 && !a.load.continue_on_error) return ExitOf(report->first_error);
  return kExitOk;
}

}  // namespace

void AddBenchCommand(CLI::App* app, Context* context) {
  const auto a = std::make_shared<BenchArguments>();
  CLI::App* bench = app->add_subcommand("bench", "Measure a volume, in fio's words.");
  bench->add_option("VOLUME", a->volume, "Writing destroys what it holds")->required();
  bench->add_option("--rw", a->pattern, "read, write, rw, randread, randwrite or randrw")
      ->check(CLI::IsMember({"read", "write", "rw", "randread", "randwrite", "randrw"}))
      ->capture_default_str();
  bench->add_option("--rwmixread", a->read_percent, "Reads of rw and randrw, in percent")
      ->check(CLI::Range(0, 100))
      ->capture_default_str();
  bench->add_option("--bs", a->load.block_bytes, "Bytes per request")
      ->transform(SizeOption())
      ->capture_default_str();
  bench->add_option("--iodepth", a->load.depth, "Requests under way, per job")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  bench->add_option("--numjobs", a->load.jobs, "Clients; each has a part of the range")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  bench->add_option("--runtime", a->runtime_ms, "For how long; default 10s")
      ->transform(DurationOption())
      ->type_name("TIME");
  bench->add_option("--number-ios", a->load.operations, "... or until so many requests per job");
  bench->add_option("--offset", a->load.offset, "Where the range begins; default 0")
      ->transform(SizeOption());
  bench->add_option("--size", a->load.size, "How long it is; default to the end of the volume")
      ->transform(SizeOption());
  bench->add_option("--randseed", a->load.seed, "The same places again; 0: others every time")
      ->capture_default_str();
  bench
      ->add_option("--skew", a->skew, "90/10: 90 % of the random requests go to 10 % of the blocks")
      ->check([=](const std::string& text) { return ParseSkew(text, &a->load.skew); })
      ->type_name("PERCENT/PERCENT");
  bench->add_flag("--local", a->load.local, "Read from any replica, perhaps a moment old");
  bench->add_flag("--verify", a->load.verify,
                  "Check what is read, and at the end everything that was written");
  bench->add_flag("--continue-on-error", a->load.continue_on_error, "Count errors and go on");
  bench->callback([=] { context->action = [=] { return Bench(*context, *a); }; });
}

}  // namespace hydra::ctl
