// SPDX-License-Identifier: Apache-2.0
#include "daemon/store_tool_commands.h"

#include <iostream>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/posix_file.h"
#include "daemon/store_reader_verify.h"

namespace hydra::store_tool {

namespace {

using Json = nlohmann::ordered_json;
using store_reader::Finding;
using store_reader::FindingKind;
using store_reader::VerifyReport;

Outcome Fail(const std::string& program, const Status& status) {
  std::cerr << program << ": " << status.ToString() << "\n";
  return Outcome::kUnusable;
}

// --- Locking ---------------------------------------------------------------------------------

// Takes the store's lock, so that no daemon starts meanwhile. Null where there is nothing to lock
// or `force` says to go on without.
Result<std::unique_ptr<FileLock>> LockStore(const std::string& program, FileSystem* fs,
                                            const std::string& directory, bool force) {
  const std::string path = directory + "/LOCK";
  if (!fs->Exists(path)) return std::unique_ptr<FileLock>();  // Lock() would create it
  auto lock = fs->Lock(path);
  if (lock.ok()) return lock;
  if (force) {
    std::cerr << program << ": going on without the lock (" << lock.status().ToString()
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

std::string WithoutSlash(std::string directory) {
  while (directory.size() > 1 && directory.back() == '/') directory.pop_back();
  return directory;
}

}  // namespace

Outcome Verify(const std::string& program, const Options& options) {
  PosixFileSystem fs;
  const std::string directory = WithoutSlash(options.directory);
  auto lock = LockStore(program, &fs, directory, options.force);
  if (!lock.ok()) return Fail(program, lock.status());
  auto report = store_reader::VerifyStore(&fs, directory, {options.temporary_parent});
  if (!report.ok()) return Fail(program, report.status());
  if (options.json) {
    PrintJson(*report);
  } else {
    PrintText(*report);
  }
  return report->clean() ? Outcome::kClean : Outcome::kDamage;
}

Outcome Dump(const std::string& program, const Options& options) {
  PosixFileSystem fs;
  const std::string directory = WithoutSlash(options.directory);
  auto lock = LockStore(program, &fs, directory, options.force);
  if (!lock.ok()) return Fail(program, lock.status());
  store_reader::DumpOptions dump = options.dump;
  dump.json = options.json;
  dump.temporary_parent = options.temporary_parent;
  const Status status = store_reader::Dump(&fs, directory, dump, std::cout);
  if (status.ok()) return Outcome::kClean;
  std::cerr << program << ": " << status.ToString() << "\n";
  return status.code() == Code::kCorruption ? Outcome::kDamage : Outcome::kUnusable;
}

}  // namespace hydra::store_tool
