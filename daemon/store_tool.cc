// SPDX-License-Identifier: Apache-2.0
//
// store-tool: looks at a Hydra data directory and never changes it.
//
// Exit codes: 0 nothing wrong (a torn tail is nothing wrong: it is what power loss leaves, and the
// engine cuts it), 1 damage, 2 wrong usage, no store, or a store that cannot be read.
#include <iostream>
#include <set>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/posix_file.h"
#include "daemon/store_reader_dump.h"
#include "daemon/store_reader_verify.h"

namespace hydra::store_tool {

namespace {

using Json = nlohmann::ordered_json;
using store_reader::DumpOptions;
using store_reader::Finding;
using store_reader::FindingKind;
using store_reader::VerifyReport;

constexpr int kExitClean = 0;
constexpr int kExitDamage = 1;
constexpr int kExitUnusable = 2;

int Fail(const Status& status) {
  std::cerr << "store-tool: " << status.ToString() << "\n";
  return kExitUnusable;
}

// --- Locking ---------------------------------------------------------------------------------

// Takes the store's lock, so that no daemon starts meanwhile. Null where there is nothing to lock
// or `force` says to go on without.
Result<std::unique_ptr<FileLock>> LockStore(FileSystem* fs, const std::string& directory,
                                            bool force) {
  const std::string path = directory + "/LOCK";
  if (!fs->Exists(path)) return std::unique_ptr<FileLock>();  // Lock() would create it
  auto lock = fs->Lock(path);
  if (lock.ok()) return lock;
  if (force) {
    std::cerr << "store-tool: going on without the lock (" << lock.status().ToString()
              << "): if a process writes to the store, findings may be its work in progress\n";
    return std::unique_ptr<FileLock>();
  }
  if (lock.status().code() == Code::kBusy) {
    return Status::Busy("a running process uses the store " + directory +
                        ": stop it first, or look anyway with --force");
  }
  return lock.status().WithContext(
      "cannot tell whether a process uses the store (--force looks anyway)");
}

// --- Verify ----------------------------------------------------------------------------------

std::string Where(const Finding& finding) {
  std::string where;
  const auto add = [&](const std::string& part) { where += (where.empty() ? "" : ", ") + part; };
  const bool row = finding.kind == FindingKind::kMapRow || finding.kind == FindingKind::kPresence;
  if (finding.kind == FindingKind::kPayload || (row && finding.group != 0)) {
    add(fmt::format("group {} {} {}", finding.group,
                    finding.kind == FindingKind::kPresence ? "extent" : "lba", finding.lba));
    if (finding.version != 0) {
      add(fmt::format("version {}.{}", finding.version >> 16, finding.version & 0xffff));
    }
  }
  if (finding.segment != 0) add(fmt::format("segment {}, page {}", finding.segment, finding.page));
  if (finding.batch != 0) add(fmt::format("batch {}", finding.batch));
  return where;
}

std::string EndOfStream(const VerifyReport& report) {
  if (!report.replayed) return "the stream was not replayed: there is no usable checkpoint row";
  const auto& replay = report.replay;
  std::string text = fmt::format(
      "the checkpoint at batch {} and {} batches behind it; batch {} "
      "would be next",
      report.checkpoint->next_batch, replay.accepted, replay.next_batch);
  if (replay.torn) {
    text += fmt::format(
        "; torn tail at segment {}, page {}: power loss leaves this, the engine "
        "cuts it, nothing acknowledged is lost",
        replay.torn_segment, replay.torn_page);
  }
  if (replay.gap) text += "; a gap: every group of this store becomes suspect";
  return text;
}

void PrintText(const VerifyReport& report) {
  std::cout << fmt::format(
      "store {} node {}: {} segments, {} batches, {} records, {} payload "
      "blocks; map: {} rows, {} live blocks\n",
      report.identity.store.ToString(), report.identity.node, report.segments.size(),
      report.batches, report.records, report.payload_blocks, report.map_rows, report.live_blocks);
  std::cout << "stream: " << EndOfStream(report) << "\n";
  for (const std::string& note : report.notes) std::cout << "note: " << note << "\n";
  if (report.notes_left_off > 0) std::cout << "note: " << report.notes_left_off << " more\n";
  std::set<FindingKind> kinds;
  for (const Finding& finding : report.findings) {
    kinds.insert(finding.kind);
    const std::string where = Where(finding);
    std::cout << "damage: " << FindingName(finding.kind) << (where.empty() ? "" : ": ") << where
              << ": " << finding.what << (finding.live ? " (live)" : "") << "\n";
  }
  if (report.findings_left_off > 0)
    std::cout << "damage: " << report.findings_left_off << " more\n";
  for (const FindingKind kind : kinds) {
    std::cout << "what to do about " << FindingName(kind) << ": " << Advice(kind) << "\n";
  }
  if (report.clean()) {
    std::cout << (report.replay.torn ? "clean (a torn tail, which is no damage)\n" : "clean\n");
  } else {
    std::cout << "damaged: " << report.findings.size() + report.findings_left_off << " findings\n";
  }
}

void PrintJson(const VerifyReport& report) {
  Json json{{"clean", report.clean()},
            {"store", report.identity.store.ToString()},
            {"node", report.identity.node},
            {"segments", report.segments.size()},
            {"batches", report.batches},
            {"records", report.records},
            {"payload blocks", report.payload_blocks},
            {"map rows", report.map_rows},
            {"live blocks", report.live_blocks},
            {"replayed", report.replayed}};
  if (report.replayed) {
    const auto& replay = report.replay;
    json["replay"] = {{"from batch", report.checkpoint->next_batch},
                      {"accepted", replay.accepted},
                      {"next batch", replay.next_batch},
                      {"gap", replay.gap}};
    if (replay.torn) {
      json["torn tail"] = {{"segment", replay.torn_segment}, {"page", replay.torn_page}};
    }
  }
  json["findings"] = Json::array();
  for (const Finding& finding : report.findings) {
    json["findings"].push_back({{"kind", FindingName(finding.kind)},
                                {"segment", finding.segment},
                                {"page", finding.page},
                                {"batch", finding.batch},
                                {"group", finding.group},
                                {"lba", finding.lba},
                                {"version", finding.version},
                                {"live", finding.live},
                                {"what", finding.what},
                                {"advice", Advice(finding.kind)}});
  }
  json["findings left off"] = report.findings_left_off;
  json["notes"] = report.notes;
  json["notes left off"] = report.notes_left_off;
  std::cout << json.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
}

int RunVerify(FileSystem* fs, const std::string& directory, bool json,
              const std::string& temporary_parent) {
  auto report = store_reader::VerifyStore(fs, directory, {temporary_parent});
  if (!report.ok()) return Fail(report.status());
  if (json) {
    PrintJson(*report);
  } else {
    PrintText(*report);
  }
  return report->clean() ? kExitClean : kExitDamage;
}

int RunDump(FileSystem* fs, const std::string& directory, const DumpOptions& options) {
  const Status status = store_reader::Dump(fs, directory, options, std::cout);
  if (status.ok()) return kExitClean;
  std::cerr << "store-tool: " << status.ToString() << "\n";
  return status.code() == Code::kCorruption ? kExitDamage : kExitUnusable;
}

int Main(int argc, char** argv) {
  CLI::App app("Looks at a Hydra data directory. Never changes it.", "store-tool");
  app.require_subcommand(1);
  app.footer(
      "Exit codes: 0 clean (a torn tail is clean), 1 damage found, 2 usage, not a store, or "
      "cannot read.");
  std::string directory;
  bool json = false;
  bool force = false;
  DumpOptions dump_options;
  std::string temporary_parent;
  auto* dump = app.add_subcommand("dump", "Print what is in the store.");
  auto* verify = app.add_subcommand("verify", "Check every batch and every row of the map.");
  for (CLI::App* command : {dump, verify}) {
    command->add_option("DIR", directory, "The data directory")->required();
    command->add_flag("--force", force,
                      "Look even if a process uses the store: findings may be "
                      "its work in progress");
    command->add_option("--temp", temporary_parent, "Where to put the copy of the map");
  }
  verify->add_flag("--json", json, "Print one JSON object");
  dump->add_flag("--json", json, "Print one JSON object per line");
  dump->add_option("--segment", dump_options.segment, "Only this segment");
  dump->add_option("--group", dump_options.group, "Only this group's records and rows");
  dump->add_flag("--records", dump_options.records, "Records as well");
  dump->add_flag("--map", dump_options.map, "Map rows as well");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitClean : kExitUnusable;
  }

  PosixFileSystem fs;
  while (directory.size() > 1 && directory.back() == '/') directory.pop_back();
  auto lock = LockStore(&fs, directory, force);
  if (!lock.ok()) return Fail(lock.status());
  if (verify->parsed()) return RunVerify(&fs, directory, json, temporary_parent);
  dump_options.json = json;
  dump_options.temporary_parent = temporary_parent;
  return RunDump(&fs, directory, dump_options);
}

}  // namespace
}  // namespace hydra::store_tool

int main(int argc, char** argv) { return hydra::store_tool::Main(argc, argv); }
