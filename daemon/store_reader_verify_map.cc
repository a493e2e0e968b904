// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <set>

#include <fmt/format.h>
#include <leveldb/iterator.h>

#include "base/coding.h"
#include "base/crc32c.h"
#include "daemon/store_reader_verify.h"

namespace hydra::store_reader {

namespace {

// Segment files that are kept open at a time.
constexpr size_t kMaxOpenSegments = 64;

std::string_view View(const leveldb::Slice& slice) { return {slice.data(), slice.size()}; }
leveldb::Slice Slice(const std::string& s) { return {s.data(), s.size()}; }

// Walks the map once in key order. Within a group that is M, m, p, v, z; what an m row needs of
// the others is looked up, so memory does not grow with the map.
class MapVerifier {
 public:
  MapVerifier(FileSystem* fs, std::string directory, const StoreMap& map,
              const std::map<uint32_t, uint8_t>& group_pages, VerifyReport* report)
      : fs_(fs),
        directory_(std::move(directory)),
        map_(map),
        group_pages_(group_pages),
        report_(report) {
    // After a crash within a checkpoint rows may be newer than row c, p rows not yet.
    mid_checkpoint_ = report->intent.has_value() && report->checkpoint.has_value() &&
                      report->intent->id > report->checkpoint->id;
    if (mid_checkpoint_) {
      report->Note(
          fmt::format("checkpoint {} was begun and not finished: rows may be newer than "
                      "row c, replay makes them whole",
                      report->intent->id));
    }
  }

  void Run() {
    FindDropped();
    const auto it = map_.NewIterator();
    for (it->SeekToFirst(); it->Valid(); it->Next()) {
      ++report_->map_rows;
      OnRow(View(it->key()), View(it->value()));
    }
    FinishGroup();
    if (!it->status().ok()) {
      Add(FindingKind::kMap, {}, "LevelDB cannot read all rows: " + it->status().ToString());
    }
  }

 private:
  void Add(FindingKind kind, const MapKey& key, std::string what, uint64_t version = 0,
           uint32_t segment = 0, uint32_t page = 0) {
    Finding finding;
    finding.kind = kind;
    finding.group = key.group;
    finding.lba = key.first;
    finding.version = version;
    finding.segment = segment;
    finding.page = page;
    finding.what = key.tag == 0 ? std::move(what) : fmt::format("row {}: {}", key.tag, what);
    report_->Add(std::move(finding));
  }

  // Groups whose rows are being swept: what those point at may be gone.
  void FindDropped() {
    const std::string prefix = MapKeyPrefix(kNodeGroup, 'd');
    const auto it = map_.NewIterator();
    for (it->Seek(Slice(prefix)); it->Valid() && it->key().starts_with(Slice(prefix)); it->Next()) {
      auto key = ParseMapKey(View(it->key()));
      const auto swept = ParseDroppedRow(View(it->value()));
      if (!key.ok()) continue;
      const auto group = static_cast<uint32_t>(key->first);
      (swept.ok() && *swept ? swept_ : dropped_).insert(group);
    }
  }

  void OnRow(std::string_view raw_key, std::string_view value) {
    auto key = ParseMapKey(raw_key);
    if (!key.ok()) {
      MapKey where;
      if (raw_key.size() >= 4) where.group = DecodeBig32(AsBytes(raw_key).data());
      if (key.status().code() == Code::kUnsupported) {
        report_->Note(
            fmt::format("group {}: a map row with {}", where.group, key.status().message()));
      } else {
        Add(FindingKind::kMapRow, where, std::string(key.status().message()));
      }
      return;
    }
    if (!has_group_ || key->group != group_) EnterGroup(key->group);
    if (key->tag != 'm') FinishExtent();
    const Status status = Dispatch(*key, value);
    if (!status.ok()) Add(FindingKind::kMapRow, *key, std::string(status.message()));
  }

  Status Dispatch(const MapKey& key, std::string_view value) {
    switch (key.tag) {
      case 'M': return OnMeta(key, value);
      case 'm': return OnBlock(key, value);
      case 'p': return OnPresence(key, value);
      case 'z': return ParseExtentRow(value).status();
      case 'v': return ParseVersionRow(value).status();
      case 'd': return ParseDroppedRow(value).status();
      default:  // c and i were read before; s is reserved
        return Status::Ok();
    }
  }

  void EnterGroup(uint32_t group) {
    FinishGroup();
    has_group_ = true;
    group_ = group;
    pages_per_block_ = 0;
    if (group == kNodeGroup) return;
    auto meta = map_.Get(MapKeyPrefix(group, 'M'));
    if (meta.ok()) {
      auto row = ParseMetaRow(*meta);
      if (row.ok()) pages_per_block_ = row->pages_per_block;
    }
    const auto known = group_pages_.find(group);
    if (pages_per_block_ == 0 && known != group_pages_.end()) pages_per_block_ = known->second;
    if (swept_.contains(group)) {
      MapKey where;
      where.group = group;
      Add(FindingKind::kMapRow, where, "rows of a dropped group that were swept");
    }
    if (dropped_.contains(group)) {
      report_->Note(
          fmt::format("group {} is dropped, its rows are being swept: not checked", group));
    } else if (pages_per_block_ == 0) {
      report_->Note(fmt::format("group {}: block size unknown, its blocks are not checked", group));
    }
  }

  void FinishGroup() {
    FinishExtent();
    if (owed_ == 0) return;
    report_->owed_blocks += owed_;
    report_->Note(
        fmt::format("group {}: peers still owe the payload of {} blocks, of which only version and "
                    "CRC are here",
                    group_, owed_));
    owed_ = 0;
  }

  bool Checked() const { return pages_per_block_ != 0 && !dropped_.contains(group_); }

  // --- m and p ---------------------------------------------------------------------------------

  Status OnBlock(const MapKey& key, std::string_view value) {
    HYDRA_ASSIGN_OR_RETURN(const BlockRow row, ParseBlockRow(value));
    if (!Checked()) return Status::Ok();
    const uint64_t per_extent = BlocksPerExtent(pages_per_block_);
    const uint64_t extent = key.first / per_extent;
    if (!in_extent_ || extent != extent_) {
      FinishExtent();
      HYDRA_RETURN_IF_ERROR(EnterExtent(extent));
    }
    if (row.kind != BlockKind::kData || zeroed_at_ > row.version) return Status::Ok();
    const uint64_t block = key.first % per_extent;
    bitmap_[block / 8] |= static_cast<uint8_t>(1u << (block % 8));
    ++report_->live_blocks;
    if (row.segment == kOwedSegment) {
      ++owed_;
    } else {
      CheckBlock(key, row);
    }
    return Status::Ok();
  }

  Status EnterExtent(uint64_t extent) {
    in_extent_ = true;
    extent_ = extent;
    zeroed_at_ = 0;
    bitmap_.assign(PresenceBytes(pages_per_block_), 0);
    auto zero = map_.Get(ExtentKey(group_, 'z', extent));
    if (zero.status().code() == Code::kNotFound) return Status::Ok();
    if (!zero.ok()) return zero.status();
    auto version = ParseExtentRow(*zero);
    if (version.ok()) zeroed_at_ = *version;  // otherwise the row itself is reported
    return Status::Ok();
  }

  void FinishExtent() {
    if (!in_extent_) return;
    in_extent_ = false;
    auto row = map_.Get(ExtentKey(group_, 'p', extent_));
    if (!row.ok() && row.status().code() != Code::kNotFound) return;  // the iterator reports it
    const std::string none(bitmap_.size(), '\0');
    ComparePresence(row.ok() ? *row : none);
  }

  void ComparePresence(std::string_view stored) {
    if (stored.size() != bitmap_.size()) return;  // OnPresence() reports it
    if (std::equal(bitmap_.begin(), bitmap_.end(), AsBytes(stored).begin())) return;
    BadPresence("its bitmap differs from the data rows");
  }

  void BadPresence(std::string what) {
    if (mid_checkpoint_) {
      report_->Note(fmt::format("group {} extent {}: {} (allowed: a checkpoint was interrupted)",
                                group_, extent_, what));
      return;
    }
    Add(FindingKind::kPresence, {group_, 'p', extent_, 0}, std::move(what));
  }

  // Extents that have data rows were compared when those ended.
  Status OnPresence(const MapKey& key, std::string_view value) {
    if (!Checked()) return Status::Ok();
    if (value.size() != PresenceBytes(pages_per_block_)) {
      return Status::Corruption("a bitmap of the wrong length");
    }
    extent_ = key.first;
    const uint64_t per_extent = BlocksPerExtent(pages_per_block_);
    if (key.first > ~uint64_t{0} / per_extent) return Status::Corruption("an extent out of range");
    const auto it = map_.NewIterator();
    it->Seek(Slice(ExtentKey(group_, 'm', key.first * per_extent)));
    auto found = it->Valid() ? ParseMapKey(View(it->key())) : Result<MapKey>(MapKey{});
    const bool has_rows = found.ok() && found->group == group_ && found->tag == 'm' &&
                          found->first / per_extent == key.first;
    const bool empty = std::all_of(value.begin(), value.end(), [](char c) { return c == 0; });
    if (!has_rows && !empty) BadPresence("its bitmap names blocks that have no row");
    return Status::Ok();
  }

  void CheckBlock(const MapKey& key, const BlockRow& row) {
    const auto bad = [&](std::string what) {
      Add(FindingKind::kMapRow, key, std::move(what), row.version, row.segment, row.page);
    };
    SegmentFile* file = Segment(row.segment);
    if (file == nullptr) return bad("it points into a segment that does not exist");
    const uint32_t pages = report_->identity.segment_pages();
    if (row.page == 0 || row.page >= pages || pages_per_block_ > pages - row.page) {
      return bad("it points outside of its segment");
    }
    const auto rotten = report_->rotten_payload.find({row.segment, row.page});
    if (rotten != report_->rotten_payload.end()) {
      report_->findings[rotten->second].live = true;
      return;
    }
    if (!file->Read(row.page, pages_per_block_, &block_)) {
      return bad("the device does not return the block that it points at");
    }
    if (Crc32c(block_) != row.crc) bad("the block that it points at does not match its CRC");
  }

  // Null if there is no such segment.
  SegmentFile* Segment(uint32_t number) {
    const auto it = open_.find(number);
    if (it != open_.end()) return it->second.get();
    if (open_.size() >= kMaxOpenSegments) open_.clear();
    auto file =
        SegmentFile::Open(fs_, SegmentPath(directory_, number), report_->identity.segment_pages());
    return open_.emplace(number, file.ok() ? std::move(*file) : nullptr).first->second.get();
  }

  // --- M ---------------------------------------------------------------------------------------

  Status OnMeta(const MapKey& key, std::string_view value) {
    HYDRA_ASSIGN_OR_RETURN(const MetaRow row, ParseMetaRow(value));
    if (row.suspect) {
      report_->Note(
          fmt::format("group {} is suspect: its replica does not vote until it is "
                      "readmitted",
                      key.group));
    }
    if (row.halted) {
      report_->Note(
          fmt::format("group {} is halted by an operation that the engine did not know: "
                      "use a newer build",
                      key.group));
    }
    if (row.install_mode != 0) {
      report_->Note(
          fmt::format("group {} is being installed from a peer: it serves nobody until that is "
                      "finished",
                      key.group));
    } else if (row.mixed_until > row.applied) {
      report_->Note(
          fmt::format("group {} was installed from a peer: it serves nobody until instance {} is "
                      "applied",
                      key.group, row.mixed_until));
    }
    if (dropped_.contains(key.group)) return Status::Ok();
    for (const OpenEntry& entry : row.open) {
      if (entry.faulty) {
        report_->Note(
            fmt::format("group {} instance {} is marked faulty", key.group, entry.instance));
        continue;
      }
      const std::string problem = CheckOpenEntry(key.group, row, entry);
      if (problem.empty()) continue;
      Add(FindingKind::kMapRow, key, fmt::format("open entry {}: {}", entry.instance, problem), 0,
          entry.segment, entry.batch_page);
    }
    return Status::Ok();
  }

  // Empty if the entry's record is where the row says.
  std::string CheckOpenEntry(uint32_t group, const MetaRow& row, const OpenEntry& entry) {
    if (entry.instance <= row.applied) return "it is not above the applied instance";
    SegmentFile* file = Segment(entry.segment);
    if (file == nullptr) return "its segment does not exist";
    std::vector<uint8_t> header;
    auto batch = ReadBatchAt(file, report_->identity, entry.segment, entry.batch_page, &header);
    if (!batch.ok()) return "no batch where it points: " + std::string(batch.status().message());
    if (report_->checkpoint.has_value() && batch->number >= report_->checkpoint->next_batch) {
      return "its batch is behind the replay position";
    }
    auto records = ParseRecords(*batch, header);
    if (!records.ok()) return std::string(records.status().message());
    for (const Record& record : *records) {
      const auto* accept = std::get_if<Accept>(&record.body);
      if (record.offset != entry.record_offset || accept == nullptr) continue;
      const bool same = accept->group == group && accept->instance == entry.instance &&
                        accept->round == entry.round && accept->node == entry.node;
      return same ? "" : "the accept there is another one";
    }
    return "no accept starts at its offset";
  }

  FileSystem* const fs_;
  const std::string directory_;
  const StoreMap& map_;
  const std::map<uint32_t, uint8_t>& group_pages_;
  VerifyReport* const report_;
  bool mid_checkpoint_ = false;
  std::set<uint32_t> dropped_;  // ... and their rows are being swept
  std::set<uint32_t> swept_;    // ... were
  std::map<uint32_t, std::unique_ptr<SegmentFile>> open_;
  std::vector<uint8_t> block_;

  bool has_group_ = false;
  uint32_t group_ = 0;
  uint8_t pages_per_block_ = 0;  // 0: unknown
  uint64_t owed_ = 0;            // blocks of the group so far
  bool in_extent_ = false;       // m rows of extent_ are being read
  uint64_t extent_ = 0;
  uint64_t zeroed_at_ = 0;       // version of the extent's z row
  std::vector<uint8_t> bitmap_;  // data blocks of the extent so far
};

}  // namespace

void VerifyMap(FileSystem* fs, const std::string& directory, const StoreMap& map,
               const std::map<uint32_t, uint8_t>& group_pages, VerifyReport* report) {
  MapVerifier(fs, directory, map, group_pages, report).Run();
}

}  // namespace hydra::store_reader
