// SPDX-License-Identifier: Apache-2.0
#include "daemon/store_reader_dump.h"

#include <fmt/format.h>
#include <leveldb/iterator.h>
#include <nlohmann/json.hpp>

#include "base/coding.h"
#include "daemon/store_reader.h"
#include "daemon/store_reader_map.h"
#include "daemon/store_reader_segment.h"
#include "daemon/store_reader_verify.h"

namespace hydra::store_reader {

namespace {

using Json = nlohmann::ordered_json;

// Bytes of contexts and opaque parts that are printed; the rest is counted.
constexpr size_t kShownBytes = 32;

std::string Hex(std::string_view bytes) {
  std::string hex;
  for (const char c : bytes.substr(0, kShownBytes)) {
    hex += fmt::format("{:02x}", static_cast<uint8_t>(c));
  }
  if (bytes.size() > kShownBytes) hex += fmt::format("...({} bytes)", bytes.size());
  return hex;
}

std::string Crc(uint32_t crc) { return fmt::format("{:08x}", crc); }

std::string Version(uint64_t version) {
  return fmt::format("{}.{}", version >> 16, version & 0xffff);
}

std::string_view InstallName(uint8_t mode) {
  return mode == 1 ? "image" : mode == 2 ? "delta" : "none";
}

// --- Structures as lines ---------------------------------------------------------------------

Json ToJson(const Operation& op) {
  Json json{{"kind", OperationName(op.kind)}};
  if (op.version != 1 || op.kind > 5) {
    json["kind"] = "unknown";
    json["kind number"] = op.kind;
    json["version"] = op.version;
    return json;
  }
  const auto kind = static_cast<OperationKind>(op.kind);
  if (kind == OperationKind::kWrite || kind == OperationKind::kZero ||
      kind == OperationKind::kUnmap) {
    json["lba"] = op.lba;
    json["count"] = op.count;
  }
  if (kind == OperationKind::kWrite) {
    json["pages per block"] = op.pages_per_block;
    for (const uint32_t crc : op.crcs) json["crcs"].push_back(Crc(crc));
  }
  if (kind == OperationKind::kZeroExtents) json["extents"] = op.extents;
  if (op.has_context) json["context"] = Hex(op.context);
  return json;
}

struct BodyToJson {
  Json& json;

  void operator()(const UnknownBody&) const {}
  void operator()(const Accept& accept) const {
    json["group"] = accept.group;
    json["instance"] = accept.instance;
    json["ballot"] = fmt::format("{}.{}", accept.round, accept.node);
    json["stable"] = accept.stable;
    json["operations"] = Json::array();
    for (const Operation& op : accept.operations) json["operations"].push_back(ToJson(op));
    if (!accept.complete) json["not decoded"] = accept.operation_count - accept.operations.size();
  }
  void operator()(const HardState& hard) const {
    json["group"] = hard.group;
    json["ballot"] = fmt::format("{}.{}", hard.round, hard.node);
    json["opaque"] = Hex(hard.opaque);
  }
  void operator()(const Truncate& truncate) const {
    json["group"] = truncate.group;
    json["instance"] = truncate.instance;
  }
  void operator()(const CheckpointNote& note) const {
    json["id"] = note.id;
    json["first batch"] = note.first_batch;
  }
  void operator()(const Relocate& move) const {
    json["group"] = move.group;
    json["lba"] = move.lba;
    json["version"] = Version(move.version);
    if (move.old_segment == kOwedSegment) {
      json["owed"] = true;
    } else {
      json["old segment"] = move.old_segment;
      json["old page"] = move.old_page;
    }
    json["crc"] = Crc(move.crc);
    json["pages per block"] = move.pages_per_block;
  }
  void operator()(const GroupChange& change) const {
    json["group"] = change.group;
    json["action"] = change.action == 1 ? "create" : change.action == 2 ? "drop" : "unknown";
    json["pages per block"] = change.pages_per_block;
  }
  void operator()(const Stable& stable) const {
    json["marks"] = Json::array();
    for (const auto& mark : stable.marks) {
      json["marks"].push_back({{"group", mark.group}, {"instance", mark.instance}});
    }
  }
  void operator()(const Install& install) const {
    static constexpr std::string_view kActions[] = {"unknown", "begin", "finish", "abort"};
    json["group"] = install.group;
    json["action"] = kActions[install.action];
    if (install.action == 1) {
      json["mode"] = InstallName(install.mode);
      json["applied"] = install.instance;
      json["floor"] = install.floor;
    } else if (install.action == 2) {
      json["instance"] = install.instance;
      json["state bytes"] = install.state_bytes;
      json["crc"] = Crc(install.state_crc);
    }
  }
  void operator()(const Chunk& chunk) const {
    json["group"] = chunk.group;
    json["as of"] = chunk.as_of;
    json["newest"] = chunk.newest;
    json["covered"] = chunk.covered;
    json["cursor"] = Hex(chunk.cursor);
    json["last"] = chunk.last;
    json["pages per block"] = chunk.pages_per_block;
    json["rows"] = Json::array();
    for (const ChunkRow& row : chunk.rows) {
      Json line{{"kind", ChunkRowName(row.kind)}, {row.kind == 4 ? "extent" : "lba", row.number}};
      if (row.kind == 5) line["count"] = row.count;
      line["version"] = Version(row.version);
      if (row.kind == 1 || row.kind == 6) line["crc"] = Crc(row.crc);
      json["rows"].push_back(std::move(line));
    }
  }
};

Json ToJson(const Record& record) {
  const auto type = std::holds_alternative<UnknownBody>(record.body) ? 0 : record.type;
  Json json{{"type", RecordName(static_cast<uint8_t>(type))}, {"offset", record.offset}};
  if (type == 0) {
    json["type number"] = record.type;
    json["record version"] = record.version;
  }
  if (record.payload_pages != 0) {
    json["payload page"] = record.payload_page;
    json["payload pages"] = record.payload_pages;
  }
  std::visit(BodyToJson{json}, record.body);
  return json;
}

bool Concerns(const Record& record, uint32_t group) {
  return std::visit(
      [&](const auto& body) {
        if constexpr (requires { body.group; }) {
          return body.group == group;
        } else if constexpr (requires { body.marks; }) {
          for (const auto& mark : body.marks) {
            if (mark.group == group) return true;
          }
          return false;
        } else {
          return false;
        }
      },
      record.body);
}

Json ToJson(const BatchHeader& batch) {
  return {{"number", batch.number},
          {"lane", batch.lane},
          {"segment", batch.segment},
          {"page", batch.page},
          {"header pages", batch.header_pages},
          {"payload pages", batch.payload_pages},
          {"seal", batch.seal},
          {"generation", batch.generation},
          {"crc", Crc(batch.crc)},
          {"chain", Crc(batch.chain)},
          {"records", batch.records}};
}

Json ToJson(const CheckpointRow& row) {
  Json json{{"id", row.id},
            {"next batch", row.next_batch},
            {"chain", Crc(row.chain)},
            {"generation", row.generation},
            {"highest segment", row.highest_segment}};
  for (size_t lane = 0; lane < row.lanes.size(); ++lane) {
    json[fmt::format("lane {}", lane)] = {{"segment", row.lanes[lane].segment},
                                          {"page", row.lanes[lane].page}};
  }
  json["clean"] = row.clean;
  return json;
}

Json ToJson(const IntentRow& row) {
  Json json{{"id", row.id}, {"groups", Json::array()}};
  for (const auto& group : row.groups) {
    json["groups"].push_back({{"group", group.group}, {"applied", group.applied}});
  }
  return json;
}

Json ToJson(const MetaRow& row) {
  Json json{{"pages per block", row.pages_per_block},
            {"suspect", row.suspect},
            {"halted", row.halted},
            {"applied", row.applied},
            {"truncated", row.truncated},
            {"ballot", fmt::format("{}.{}", row.round, row.node)},
            {"hard state", Hex(row.hard_state)},
            {"horizon", Version(row.horizon)},
            {"state", Hex(row.state)},
            {"open", Json::array()}};
  for (const auto& entry : row.open) {
    json["open"].push_back({{"instance", entry.instance},
                            {"ballot", fmt::format("{}.{}", entry.round, entry.node)},
                            {"faulty", entry.faulty},
                            {"segment", entry.segment},
                            {"batch page", entry.batch_page},
                            {"record offset", entry.record_offset}});
  }
  if (row.mixed_until != 0) json["mixed until"] = row.mixed_until;
  if (row.install_mode == 0) return json;
  json["install"] = {{"mode", InstallName(row.install_mode)},
                     {"complete", row.install_complete},
                     {"dirty", row.install_dirty},
                     {"restart", row.install_restart},
                     {"floor", row.install_floor},
                     {"as of", row.install_as_of},
                     {"covered", row.install_covered},
                     {"cursor", Hex(row.install_cursor)}};
  return json;
}

std::string_view KindName(BlockKind kind) {
  static constexpr std::string_view kNames[] = {"", "data", "zero", "unmapped", "extent"};
  return kNames[static_cast<size_t>(kind)];
}

// --- Dumping ---------------------------------------------------------------------------------

class Dumper {
 public:
  Dumper(FileSystem* fs, const std::string& directory, const DumpOptions& options,
         std::ostream& out)
      : fs_(fs), directory_(directory), options_(options), out_(out) {}

  Status Run() {
    HYDRA_ASSIGN_OR_RETURN(identity_, ReadIdentity(fs_, directory_));
    Line("identity", {{"format", kFormatVersion},
                      {"store", identity_.store.ToString()},
                      {"cluster", identity_.cluster.ToString()},
                      {"node", identity_.node},
                      {"segment bytes", identity_.segment_bytes}});
    auto map = StoreMap::CopyAndOpen(fs_, directory_ + "/map", options_.temporary_parent);
    if (map.ok()) {
      NodeRows(**map);
    } else {
      Damage("map", map.status());
    }
    HYDRA_RETURN_IF_ERROR(Segments());
    if (map.ok() && options_.map) MapRows(**map);
    if (damage_ == 0) return Status::Ok();
    return Status::Corruption(
        fmt::format("{} places could not be read; `store-tool verify` says more", damage_));
  }

 private:
  // "batch number=7 lane=0 ...", or {"batch": {...}}.
  void Line(std::string_view what, const Json& fields) {
    if (options_.json) {
      out_ << Json{{std::string(what), fields}}.dump(-1, ' ', false, Json::error_handler_t::replace)
           << '\n';
      return;
    }
    out_ << what;
    for (const auto& [key, value] : fields.items()) {
      std::string name = key;
      std::replace(name.begin(), name.end(), ' ', '-');
      out_ << ' ' << name << '='
           << (value.is_string() ? value.get<std::string>()
                                 : value.dump(-1, ' ', false, Json::error_handler_t::replace));
    }
    out_ << '\n';
  }

  void Damage(std::string_view where, const Status& status) {
    ++damage_;
    Line("damage", {{"where", where}, {"what", status.ToString()}});
  }

  void NodeRows(const StoreMap& map) {
    auto checkpoint = map.Checkpoint();
    if (!checkpoint.ok()) {
      Damage("row c", checkpoint.status());
    } else if (checkpoint->has_value()) {
      Line("checkpoint", ToJson(**checkpoint));
    }
    auto intent = map.Intent();
    if (!intent.ok()) {
      Damage("row i", intent.status());
    } else if (intent->has_value()) {
      Line("intent", ToJson(**intent));
    }
  }

  Status Segments() {
    HYDRA_ASSIGN_OR_RETURN(const auto numbers, ListSegments(fs_, directory_, nullptr));
    bool found = false;
    for (const uint32_t number : numbers) {
      if (options_.segment.has_value() && *options_.segment != number) continue;
      found = true;
      auto file =
          SegmentFile::Open(fs_, SegmentPath(directory_, number), identity_.segment_pages());
      if (!file.ok()) {
        Damage(fmt::format("segment {}", number), file.status());
        continue;
      }
      Segment(file->get(), number);
    }
    if (options_.segment.has_value() && !found) {
      return Status::NotFound(fmt::format("there is no segment {}", *options_.segment));
    }
    return Status::Ok();
  }

  void Segment(SegmentFile* file, uint32_t number) {
    ScanOptions scan;
    scan.check_payload = false;
    scan.on_header = [&](const SegmentSummary& summary) {
      if (!summary.header_status.ok()) {
        Damage(fmt::format("segment {} header", number), summary.header_status);
        return;
      }
      Line("segment", {{"number", number},
                       {"lane", summary.header.lane},
                       {"first batch", summary.header.first_batch},
                       {"chain", Crc(summary.header.chain)}});
    };
    scan.on_batch = [&](const ScannedBatch& batch) { Batch(batch); };
    scan.on_rotten = [&](const RottenPages& rotten) {
      Damage(fmt::format("segment {} pages {} to {}", number, rotten.first, rotten.end - 1),
             Status::Corruption("no valid batch: " + rotten.why));
    };
    const SegmentSummary summary = ScanSegment(file, identity_, number, scan);
    Json end{{"number", number},
             {"batches", summary.batches},
             {"pages used", summary.end_page},
             {"pages", summary.pages}};
    if (!summary.end_why.empty()) end["behind"] = summary.end_why;
    Line("segment-end", end);
  }

  void Batch(const ScannedBatch& batch) {
    Line("batch", ToJson(batch.header));
    if (!batch.records_status.ok()) {
      Damage(fmt::format("records of batch {}", batch.header.number), batch.records_status);
    }
    if (!options_.records) return;
    for (const Record& record : batch.records) {
      if (options_.group.has_value() && !Concerns(record, *options_.group)) continue;
      Json line{{"batch", batch.header.number}};
      line.update(ToJson(record));
      Line("record", line);
    }
  }

  void MapRows(const StoreMap& map) {
    const auto it = map.NewIterator();
    std::string from;
    if (options_.group.has_value()) PutBig32(&from, *options_.group);
    const leveldb::Slice prefix(from);
    for (it->Seek(prefix); it->Valid() && it->key().starts_with(prefix); it->Next()) {
      const std::string_view key(it->key().data(), it->key().size());
      const Status status = MapRow(key, {it->value().data(), it->value().size()});
      if (!status.ok()) Damage("map row with key " + Hex(key), status);
    }
    if (!it->status().ok()) Damage("map", Status::Corruption(it->status().ToString()));
  }

  Status MapRow(std::string_view raw_key, std::string_view value) {
    HYDRA_ASSIGN_OR_RETURN(const MapKey key, ParseMapKey(raw_key));
    Json line{{"tag", std::string(1, key.tag)}};
    if (key.group != kNodeGroup) line["group"] = key.group;
    HYDRA_RETURN_IF_ERROR(FillRow(key, value, &line));
    Line("row", line);
    return Status::Ok();
  }

  static Status FillRow(const MapKey& key, std::string_view value, Json* line) {
    Json& json = *line;
    switch (key.tag) {
      case 'm': {
        HYDRA_ASSIGN_OR_RETURN(const auto row, ParseBlockRow(value));
        json["lba"] = key.first;
        json["kind"] = KindName(row.kind);
        json["version"] = Version(row.version);
        if (row.kind != BlockKind::kData) break;
        if (row.segment == kOwedSegment) {
          json["owed"] = true;
        } else {
          json["segment"] = row.segment;
          json["page"] = row.page;
        }
        json["crc"] = Crc(row.crc);
        break;
      }
      case 'z': {
        HYDRA_ASSIGN_OR_RETURN(const uint64_t version, ParseExtentRow(value));
        json["extent"] = key.first;
        json["version"] = Version(version);
        break;
      }
      case 'v': {
        HYDRA_ASSIGN_OR_RETURN(const auto kind, ParseVersionRow(value));
        json["version"] = Version(key.first);
        json[kind == BlockKind::kExtent ? "extent" : "lba"] = key.second;
        json["kind"] = KindName(kind);
        break;
      }
      case 'p':
        json["extent"] = key.first;
        json["bitmap"] = Hex(value);
        break;
      case 'M': {
        HYDRA_ASSIGN_OR_RETURN(const auto row, ParseMetaRow(value));
        json.update(ToJson(row));
        break;
      }
      case 'c': {
        HYDRA_ASSIGN_OR_RETURN(const auto row, ParseCheckpointRow(value));
        json.update(ToJson(row));
        break;
      }
      case 'i': {
        HYDRA_ASSIGN_OR_RETURN(const auto row, ParseIntentRow(value));
        json.update(ToJson(row));
        break;
      }
      case 'd': {
        json["dropped group"] = key.first;
        HYDRA_ASSIGN_OR_RETURN(json["swept"], ParseDroppedRow(value));
        break;
      }
      default: json["value"] = Hex(value);
    }
    return Status::Ok();
  }

  FileSystem* const fs_;
  const std::string& directory_;
  const DumpOptions& options_;
  std::ostream& out_;
  Identity identity_;
  uint64_t damage_ = 0;
};

}  // namespace

Status Dump(FileSystem* fs, const std::string& directory, const DumpOptions& options,
            std::ostream& out) {
  return Dumper(fs, directory, options, out).Run();
}

}  // namespace hydra::store_reader
