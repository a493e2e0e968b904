// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <iostream>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "daemon/hydractl.h"

namespace hydra::ctl {

// --- The cluster --------------------------------------------------------------------------------

Result<Cluster> Context::Connect() const {
  std::vector<std::string> seeds;
  size_t begin = 0;
  while (begin <= cluster.size()) {
    const size_t end = std::min(cluster.find(',', begin), cluster.size());
    if (end > begin) seeds.push_back(cluster.substr(begin, end - begin));
    begin = end + 1;
  }
  if (seeds.empty()) {
    return Status::InvalidArgument("--cluster (or HYDRA_CLUSTER) names no node: give host:port");
  }
  ClusterOptions options;
  options.timeout = std::chrono::milliseconds(timeout_ms);
  options.attempt_timeout = std::min(options.attempt_timeout, options.timeout);
  options.connect_timeout = std::min(options.connect_timeout, options.timeout);
  options.name = "hydractl";
  Result<Cluster> connected = Cluster::Connect(std::move(seeds), options);
  if (connected.ok() || connected.status().code() == Code::kInvalidArgument) return connected;
  return Status(connected.status().code(),
                fmt::format("{} (asked: {}; is a cluster running there? --cluster or HYDRA_CLUSTER "
                            "says where it is)",
                            connected.status().message(), cluster));
}

Result<Volume> Context::Open(const std::string& volume) const {
  HYDRA_ASSIGN_OR_RETURN(const Cluster connected, Connect());
  Result<Volume> opened = Volume::Open(connected, volume);
  if (opened.ok() || opened.status().code() != Code::kNotFound) return opened;
  return Status::NotFound(
      fmt::format("there is no volume '{}'; `hydractl volume list` shows what there is", volume));
}

int ExitOf(const Status& status) {
  switch (status.code()) {
    case Code::kOk: return kExitOk;
    case Code::kInvalidArgument:
    case Code::kOutOfRange: return kExitUsage;
    case Code::kNotFound: return kExitNotFound;
    case Code::kAlreadyExists: return kExitExists;
    case Code::kBusy:
    case Code::kUnavailable: return kExitUnavailable;
    case Code::kCorruption: return kExitDamage;
    case Code::kAborted: return kExitUnknown;
    case Code::kNoSpace: return kExitNoSpace;
    default: return kExitFailed;
  }
}

int Context::Fail(const Status& status) const {
  const int code = ExitOf(status);
  if (json) {
    const Json error{{"error", std::string(CodeName(status.code()))},
                     {"message", std::string(status.message())},
                     {"exit", code}};
    std::cerr << error.dump(-1, ' ', false, Json::error_handler_t::replace) << "\n";
  } else {
    std::cerr << "hydractl: " << status.message() << "\n";
  }
  return code;
}

// --- Printing -----------------------------------------------------------------------------------

void Print(const Json& json) {
  std::cout << json.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
}

void Table::Print() const {
  std::vector<size_t> widths(rows_.front().size(), 0);
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows_) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      line += i + 1 == row.size() ? row[i] : fmt::format("{:<{}}  ", row[i], widths[i]);
    }
    std::cout << line.substr(0, line.find_last_not_of(' ') + 1) << "\n";
  }
}

std::string BytesText(uint64_t bytes) {
  constexpr std::array<const char*, 6> kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  const bool whole = value == std::floor(value);
  return whole ? fmt::format("{:.0f} {}", value, kUnits[unit])
               : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string DurationText(std::chrono::milliseconds duration) {
  const auto seconds = static_cast<uint64_t>(duration.count()) / 1000;
  if (seconds < 60) return fmt::format("{} s", seconds);
  if (seconds < 3600) return fmt::format("{} min {} s", seconds / 60, seconds % 60);
  if (seconds < 86'400) return fmt::format("{} h {} min", seconds / 3600, seconds / 60 % 60);
  return fmt::format("{} d {} h", seconds / 86'400, seconds / 3600 % 24);
}

// --- Reading the command line -------------------------------------------------------------------

namespace {

struct Unit {
  std::string_view name;  // in lower case
  uint64_t factor;
};

// A number, perhaps with a fraction, and one of the units.
template <size_t kCount>
Result<uint64_t> ParseUnits(std::string_view text, const std::array<Unit, kCount>& units,
                            const char* usage) {
  const auto bad = [&] { return Status::InvalidArgument(fmt::format("'{}': {}", text, usage)); };
  const size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
  std::string_view number = text.substr(0, digits);
  std::string_view suffix = text.substr(digits);
  while (suffix.starts_with(' ')) suffix.remove_prefix(1);
  std::string lower(suffix);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const auto unit = std::find_if(units.begin(), units.end(),
                                 [&](const Unit& known) { return known.name == lower; });
  if (number.empty() || unit == units.end()) return bad();
  uint64_t whole = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), whole);
  if (error == std::errc() && end == number.data() + number.size()) {
    uint64_t result = 0;
    if (__builtin_mul_overflow(whole, unit->factor, &result)) return bad();
    return result;
  }
  double value = 0;
  const auto parsed = std::from_chars(number.data(), number.data() + number.size(), value);
  if (parsed.ec != std::errc() || parsed.ptr != number.data() + number.size()) return bad();
  value *= static_cast<double>(unit->factor);
  if (value >= 9e18 || value != std::floor(value)) return bad();
  return static_cast<uint64_t>(value);
}

CLI::Validator Transform(Result<uint64_t> (*parse)(std::string_view), const char* name) {
  return CLI::Validator(
      [parse](std::string& text) {
        const Result<uint64_t> value = parse(text);
        if (!value.ok()) return std::string(value.status().message());
        text = std::to_string(*value);
        return std::string();
      },
      name);
}

}  // namespace

Result<uint64_t> ParseSize(std::string_view text) {
  constexpr uint64_t kKibi = 1024;
  static constexpr std::array<Unit, 17> kUnits = {{
      {"", 1},
      {"b", 1},
      {"k", kKibi},
      {"kb", kKibi},
      {"kib", kKibi},
      {"m", kKibi << 10},
      {"mb", kKibi << 10},
      {"mib", kKibi << 10},
      {"g", kKibi << 20},
      {"gb", kKibi << 20},
      {"gib", kKibi << 20},
      {"t", kKibi << 30},
      {"tb", kKibi << 30},
      {"tib", kKibi << 30},
      {"p", kKibi << 40},
      {"pb", kKibi << 40},
      {"pib", kKibi << 40},
  }};
  return ParseUnits(text, kUnits, "write a size as 4096, 4K, 1M, 1G or 1T");
}

Result<uint64_t> ParseDuration(std::string_view text) {
  static constexpr std::array<Unit, 6> kUnits = {{
      {"", 1000},
      {"ms", 1},
      {"s", 1000},
      {"m", 60'000},
      {"min", 60'000},
      {"h", 3'600'000},
  }};
  return ParseUnits(text, kUnits, "write a time as 500ms, 10s, 2m or 1h");
}

CLI::Validator SizeOption() { return Transform(&ParseSize, "SIZE"); }
CLI::Validator DurationOption() { return Transform(&ParseDuration, "TIME"); }

}  // namespace hydra::ctl
