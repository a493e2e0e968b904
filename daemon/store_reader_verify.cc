// SPDX-License-Identifier: Apache-2.0
#include "daemon/store_reader_verify.h"

#include <algorithm>

#include <fmt/format.h>

#include "daemon/store_reader_stream.h"

namespace hydra::store_reader {

// --- The report ------------------------------------------------------------------------------

std::string_view FindingName(FindingKind kind) {
  static constexpr std::string_view kNames[] = {"identity", "segment header", "header",
                                                "gap",      "payload",        "record",
                                                "map",      "map row",        "presence"};
  return kNames[static_cast<size_t>(kind)];
}

std::string_view Advice(FindingKind kind) {
  switch (kind) {
    case FindingKind::kIdentity:
      return "Keep a copy of the directory; restore IDENTITY from a backup, or replace this "
             "replica.";
    case FindingKind::kSegmentHeader:
    case FindingKind::kBatchHeader:
    case FindingKind::kGap:
      return "Records of any group may be lost: let this node be readmitted from its peers, and "
             "check the device.";
    case FindingKind::kPayload:
      return "If the block is live, repair it from a peer; check the device.";
    case FindingKind::kRecord:
      return "The bytes are as they were written: report this, with a dump of the segment.";
    case FindingKind::kMap:
    case FindingKind::kMapRow:
      return "Keep a copy of map/ and replace this replica from its peers; check the device.";
    case FindingKind::kPresence:
      return "The bitmap can be made again from the rows; report this, with a dump of the map.";
  }
  return "";
}

void VerifyReport::Add(Finding finding) {
  if (findings.size() >= kMaxFindings) {
    ++findings_left_off;
    return;
  }
  if (finding.kind == FindingKind::kPayload) {
    rotten_payload.emplace(std::pair(finding.segment, finding.page), findings.size());
  }
  findings.push_back(std::move(finding));
}

void VerifyReport::Note(std::string note) {
  if (notes.size() < kMaxNotes) {
    notes.push_back(std::move(note));
  } else {
    ++notes_left_off;
  }
}

// --- The directory ---------------------------------------------------------------------------

Result<Identity> ReadIdentity(FileSystem* fs, const std::string& directory) {
  const std::string path = directory + "/IDENTITY";
  if (!fs->Exists(path)) {
    return Status::NotFound(directory + " has no IDENTITY: it is not a Hydra store");
  }
  auto text = fs->ReadSmallFile(path, kMaxIdentityBytes);
  if (text.status().code() == Code::kOutOfRange) {
    return Status::Corruption("IDENTITY: much longer than it can be");
  }
  if (!text.ok()) return text.status();
  return ParseIdentity(*text);
}

std::string SegmentPath(const std::string& directory, uint32_t number) {
  return directory + "/segments/" + SegmentName(number);
}

Result<std::vector<uint32_t>> ListSegments(FileSystem* fs, const std::string& directory,
                                           std::vector<std::string>* unknown) {
  HYDRA_ASSIGN_OR_RETURN(const auto names, fs->List(directory + "/segments"));
  std::vector<uint32_t> numbers;
  for (const std::string& name : names) {
    const uint32_t number = ParseSegmentName(name);
    if (number != 0) {
      numbers.push_back(number);
    } else if (unknown != nullptr && !name.starts_with("spare-") && !name.ends_with(".tmp")) {
      unknown->push_back(name);
    }
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

// --- Verifying -------------------------------------------------------------------------------

namespace {

void AddMapFinding(FindingKind kind, std::string what, VerifyReport* report) {
  Finding finding;
  finding.kind = kind;
  finding.what = std::move(what);
  report->Add(std::move(finding));
}

void ReadNodeRows(const StoreMap& map, VerifyReport* report) {
  auto checkpoint = map.Checkpoint();
  if (!checkpoint.ok()) {
    AddMapFinding(FindingKind::kMapRow, "row c: " + std::string(checkpoint.status().message()),
                  report);
  } else if (checkpoint->has_value()) {
    report->checkpoint = **checkpoint;
  } else {
    report->Note("the map has no checkpoint row: replay starts at batch 1");
    report->checkpoint.emplace().next_batch = 1;
  }
  auto intent = map.Intent();
  if (!intent.ok()) {
    AddMapFinding(FindingKind::kMapRow, "row i: " + std::string(intent.status().message()), report);
  } else {
    report->intent = std::move(*intent);
  }
}

// Null if the map cannot be opened, which is then in the report.
Result<std::unique_ptr<StoreMap>> OpenMap(FileSystem* fs, const std::string& directory,
                                          const VerifyOptions& options, VerifyReport* report) {
  auto map = StoreMap::CopyAndOpen(fs, directory + "/map", options.temporary_parent);
  if (!map.ok()) {
    const Code code = map.status().code();
    if (code != Code::kCorruption && code != Code::kNotFound) return map.status();
    AddMapFinding(FindingKind::kMap, std::string(map.status().message()), report);
    return std::unique_ptr<StoreMap>();
  }
  for (const std::string& log : (*map)->torn_logs()) {
    report->Note("LevelDB's log has a torn tail, as power loss leaves it: " + log);
  }
  for (const std::string& log : (*map)->rotten_logs()) {
    AddMapFinding(FindingKind::kMap, "LevelDB's log is rotten, valid records follow: " + log,
                  report);
  }
  ReadNodeRows(**map, report);
  return map;
}

}  // namespace

Result<VerifyReport> VerifyStore(FileSystem* fs, const std::string& directory,
                                 const VerifyOptions& options) {
  VerifyReport report;
  auto identity = ReadIdentity(fs, directory);
  if (identity.status().code() == Code::kCorruption) {
    // Without the store's UUID no header can be told from garbage: there is nothing else to do.
    AddMapFinding(FindingKind::kIdentity, std::string(identity.status().message()), &report);
    return report;
  }
  if (!identity.ok()) return identity.status();
  report.identity = *identity;
  HYDRA_ASSIGN_OR_RETURN(const auto map, OpenMap(fs, directory, options, &report));
  StreamVerifier stream(fs, directory, &report);
  HYDRA_RETURN_IF_ERROR(stream.Scan());
  stream.Judge();
  if (map != nullptr) VerifyMap(fs, directory, *map, stream.group_pages(), &report);
  return report;
}

}  // namespace hydra::store_reader
