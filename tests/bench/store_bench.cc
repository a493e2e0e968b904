// SPDX-License-Identifier: Apache-2.0
//
// store-bench: the speed and memory of one replica's storage engine, beside fio on the same file
// system in the same run.
//
//   store-bench --dir D [--json] [--only FIGURE,...] [--quick] [--scale X] [--strict]
//   store-bench --dir D --map-blocks N,...    instead: what maps of these sizes cost, as JSON
//
// D must be on the disk in question and have 30 GiB free (2 with --quick); what the run makes there
// it removes. Results go to stdout, progress to stderr. Exit code 0: measured, whether or not the
// bars were met; 1: a bar was missed and --strict given; 2: something failed.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/logging.h"
#include "base/posix_file.h"
#include "tests/bench/store_bench_figures.h"
#include "tests/bench/store_bench_system.h"
#include "tests/support/command_line.h"

namespace hydra::bench {

namespace {

constexpr double kBusyMachine = 10;  // percent

struct Figure {
  const char* name;
  FigureFunction measure;
};

// In the order of the printed table.
constexpr Figure kFigures[] = {
    {"append_qd1", MeasureAppendDepth1},
    {"append_qd64", MeasureAppendDepth64},
    {"device_bytes", MeasureDeviceBytes},
    {"read_qd1", MeasureRead},
    {"apply", MeasureApply},
    {"recovery", MeasureRecovery},
    {"vacuum", MeasureVacuum},
    {"memory", MeasureMemory},
};

// In the order of measuring: the three that share a store come last, so that no other figure's
// store lies beside it on the disk, and memory last of all, because it changes that store.
constexpr const char* kOrder[] = {"append_qd1", "append_qd64", "device_bytes", "apply",
                                  "vacuum",     "recovery",    "read_qd1",     "memory"};

struct Arguments {
  std::string dir;
  bool json = false;
  bool quick = false;
  bool strict = false;
  double scale = 1;
  std::vector<std::string> only;
  std::vector<uint64_t> map_blocks;
  std::string child_memory;
  uint64_t child_blocks = 0;
  uint64_t child_operations = 0;
};

const Figure* FindFigure(const std::string& name) {
  for (const Figure& figure : kFigures) {
    if (name == figure.name) return &figure;
  }
  return nullptr;
}

std::string Number(double value) {
  if (value >= 1000) return fmt::format("{:.0f}", value);
  if (value >= 100) return fmt::format("{:.1f}", value);
  return fmt::format("{:.3f}", value);
}

std::string SamplesText(const Samples& samples, const std::string& unit) {
  if (samples.empty()) return "-";
  std::string text = Number(samples.Median()) + " " + unit;
  if (samples.values.size() > 1) {
    text += fmt::format(" ({}..{})", Number(samples.Min()), Number(samples.Max()));
  }
  return text;
}

std::string BarText(const Row& row) {
  return fmt::format(
      "{} {}", row.bar.kind == Bar::Kind::kAtLeast ? ">=" : "<=",
      row.bar.limit >= 1000 ? Number(row.bar.limit) : fmt::format("{:g}", row.bar.limit));
}

void PrintTable(double cpu_pressure, const std::vector<Row>& rows) {
  constexpr const char* kFormat = "{:<22} {:<36} {:<30} {:>6}  {:<10} {}\n";
  fmt::print(fmt::runtime(kFormat), "figure", "hydra: median (min..max)", "fio: median (min..max)",
             "ratio", "bar", "");
  for (const Row& row : rows) {
    fmt::print(fmt::runtime(kFormat), row.name, SamplesText(row.hydra, row.unit),
               SamplesText(row.fio, row.unit),
               row.fio.empty() ? "-" : fmt::format("{:.2f}", row.Value()), BarText(row),
               row.Met() ? "met" : "MISSED");
  }
  if (cpu_pressure > kBusyMachine) {
    fmt::print(
        "\nThe machine was busy before the start (CPU pressure {:.0f} %): compare with care.\n",
        cpu_pressure);
  }
  for (const Row& row : rows) {
    fmt::print("\n{}: {}\n", row.name, row.what);
    for (const auto& [key, value] : row.notes) fmt::print("    {}: {}\n", key, value);
  }
}

nlohmann::ordered_json SamplesJson(const Samples& samples) {
  if (samples.empty()) return nullptr;
  return {{"median", samples.Median()},
          {"min", samples.Min()},
          {"max", samples.Max()},
          {"rounds", samples.values}};
}

void PrintJson(const Arguments& arguments, double cpu_pressure, const std::vector<Row>& rows) {
  nlohmann::ordered_json out;
  out["quick"] = arguments.quick;
  out["scale"] = arguments.scale;
  out["cpu_pressure_before"] = cpu_pressure;
  out["figures"] = nlohmann::ordered_json::array();
  for (const Row& row : rows) {
    nlohmann::ordered_json notes = nlohmann::ordered_json::object();
    for (const auto& [key, value] : row.notes) notes[key] = value;
    out["figures"].push_back(
        {{"name", row.name},
         {"what", row.what},
         {"unit", row.unit},
         {"hydra", SamplesJson(row.hydra)},
         {"fio", SamplesJson(row.fio)},
         {"value", row.Value()},
         {"bar", {{row.bar.kind == Bar::Kind::kAtLeast ? "at_least" : "at_most", row.bar.limit}}},
         {"met", row.Met()},
         {"notes", notes}});
  }
  fmt::print("{}\n", out.dump(2));
}

std::string SelfPath(const char* fallback) {
  char path[4096];
  const ssize_t n = ::readlink("/proc/self/exe", path, sizeof path);
  return n > 0 ? std::string(path, static_cast<size_t>(n)) : fallback;
}

// Rows in the order of the table, whatever the order of measuring.
Result<std::vector<Row>> MeasureAll(BenchContext* context, const std::set<std::string>& only) {
  std::vector<std::vector<Row>> by_figure(std::size(kFigures));
  for (const char* name : kOrder) {
    if (!only.empty() && !only.contains(name)) continue;
    HYDRA_RETURN_IF_ERROR(CheckInterrupted());
    Progress("--- {}", name);
    const Figure* const figure = FindFigure(name);
    const Status measured = figure->measure(context, &by_figure[figure - kFigures]);
    HYDRA_RETURN_IF_ERROR(measured.WithContext(name));
  }
  std::vector<Row> rows;
  for (const auto& some : by_figure) rows.insert(rows.end(), some.begin(), some.end());
  return rows;
}

int RunMapScale(const BenchContext& context, const std::vector<uint64_t>& sizes) {
  if (!std::is_sorted(sizes.begin(), sizes.end())) {
    fmt::print(stderr, "store-bench: --map-blocks: name the sizes in ascending order\n");
    return 2;
  }
  const Result<std::vector<MapSize>> measured = MeasureMapScale(context, sizes);
  if (!measured.ok()) {
    fmt::print(stderr, "store-bench: {}\n", measured.status().ToString());
    return 2;
  }
  auto out = nlohmann::ordered_json::array();
  for (const MapSize& size : *measured) {
    out.push_back({{"blocks", size.blocks},
                   {"grown_per_second", size.grown_per_second},
                   {"lookup_us", size.lookup_us},
                   {"overwritten_per_second", size.overwritten_per_second},
                   {"lookup_again_us", size.lookup_again_us},
                   {"resident_bytes", size.resident_bytes},
                   {"map_bytes", size.map_bytes}});
  }
  fmt::print("{}\n", out.dump(2));
  return 0;
}

int Run(const Arguments& arguments, const char* program) {
  PosixFileSystem fs;
  if (!arguments.child_memory.empty()) {
    const Status child = RunMemoryChild(&fs, arguments.child_memory, arguments.child_blocks,
                                        arguments.child_operations);
    if (!child.ok()) fmt::print(stderr, "store-bench: memory child: {}\n", child.ToString());
    return child.ok() ? 0 : 2;
  }
  Result<ScratchDirectory> scratch = ScratchDirectory::Make(arguments.dir);
  if (!scratch.ok()) {
    fmt::print(stderr, "store-bench: {}\n", scratch.status().ToString());
    return 2;
  }
  const double cpu_pressure = CpuPressure();
  BenchContext context;
  context.fs = &fs;
  context.dir = scratch->path();
  context.self = SelfPath(program);
  context.quick = arguments.quick;
  context.scale = arguments.scale;
  if (!arguments.map_blocks.empty()) return RunMapScale(context, arguments.map_blocks);
  const Result<std::vector<Row>> rows =
      MeasureAll(&context, {arguments.only.begin(), arguments.only.end()});
  if (!rows.ok()) {
    fmt::print(stderr, "store-bench: {}\n", rows.status().ToString());
    return 2;
  }
  if (arguments.json) {
    PrintJson(arguments, cpu_pressure, *rows);
  } else {
    PrintTable(cpu_pressure, *rows);
  }
  const bool all_met =
      std::all_of(rows->begin(), rows->end(), [](const Row& r) { return r.Met(); });
  return all_met || !arguments.strict ? 0 : 1;
}

}  // namespace

}  // namespace hydra::bench

int main(int argc, char** argv) {
  hydra::bench::Arguments arguments;
  hydra::test::CommandLine line("Measures the storage engine beside fio on the same file system.",
                                "store-bench");
  std::set<std::string> names;
  for (const auto& figure : hydra::bench::kFigures) names.insert(figure.name);
  line.Add("--dir", &arguments.dir, "A directory on the disk to measure").ExistingDirectory();
  line.Add("--json", &arguments.json, "Print JSON instead of a table");
  line.Add("--only", &arguments.only, "Measure only these figures").CommaLists().OneOf(names);
  line.Add("--map-blocks", &arguments.map_blocks, "Measure maps of these sizes, ascending")
      .CommaLists()
      .Between(100'000, 1'000'000'000);
  line.Add("--quick", &arguments.quick, "Small sizes: a look, not a result");
  line.Add("--scale", &arguments.scale, "Multiplies the sizes of data sets")
      .BetweenReals(0.01, 100.0);
  line.Add("--strict", &arguments.strict, "Exit with 1 if a bar is missed");
  line.Add("--child-memory", &arguments.child_memory).Hidden();
  line.Add("--child-blocks", &arguments.child_blocks).Hidden();
  line.Add("--child-operations", &arguments.child_operations).Hidden();
  if (const std::optional<int> status = line.Parse(argc, argv)) return *status;
  if (arguments.dir.empty() && arguments.child_memory.empty()) {
    fmt::print(stderr, "store-bench: --dir is required\n");
    return 2;
  }
  hydra::SetLogLevel(hydra::LogLevel::kWarn);
  hydra::bench::CatchSignals();
  return hydra::bench::Run(arguments, argv[0]);
}
