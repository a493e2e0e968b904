// SPDX-License-Identifier: Apache-2.0
//
// Rot: finding it (scrub, the check of open entries at start) and taking in good copies (repair).
//
// A repair is a relocation record whose payload came from a peer instead of the old place: it says
// (group, lba, version, rotten reference -> new reference), and takes effect only if the row still
// is the rotten one, at run time as in replay. So it can neither bring back what was overwritten
// nor revive what was deleted, and a crash leaves the rotten row or the good one. Vacuum's look-up
// in memory is not enough here: the rotten copy may lie in a segment that is still being written,
// where a newer version of the block may lie as well.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/crc32c.h"
#include "base/logging.h"
#include "base/sabotage.h"
#include "blockstore/engine_impl.h"
#include "blockstore/payload.h"

namespace hydra {
namespace {

// What a row that is not read costs of a scrub's budget.
constexpr uint64_t kRowBytes = 64;
// Neighbours on disk are read together, up to so many pages.
constexpr uint32_t kScrubRunPages = 64;
// Damage that nobody has taken yet.
constexpr size_t kMaxUntold = 4096;

Damage BlockDamage(GroupId group, Lba lba, Version version, const Reference& reference) {
  return {Damage::What::kBlock, group,          lba,     VersionInstance(version),
          reference.segment,    reference.page, version, reference.crc};
}

}  // namespace

// --- Scrub --------------------------------------------------------------------------------------

// Reads past the page cache: it is the disk that is to be looked at. What it finds is judged by the
// owner: the row may have changed meanwhile, and what no row refers to may be what it likes.
class EngineImpl::ScrubJob final : public PinnedRead {
 public:
  struct Block {
    GroupId group;
    Lba lba;
    Version version;
    Reference reference;
    uint32_t pages;
  };

  ScrubJob(const MapStore* store, const NewestSegmentTable* tables, uint64_t round)
      : store_(store), tables_(tables), round_(round) {}

  void ScanStored(std::string cursor, uint64_t budget, std::map<GroupId, uint32_t> block_pages) {
    stored_ = true;
    cursor_ = std::move(cursor);
    budget_ = budget;
    block_pages_ = std::move(block_pages);
  }
  void Add(const Block& block) { blocks_.push_back(block); }
  void Add(LogRecordPlace place) { entries_.push_back(std::move(place)); }

  void Run() override {
    if (stored_) status = Scan();
    const SegmentTableRef table = tables_->Get();  // after the scan; the pin keeps what it found
    if (status.ok()) ReadBlocks(*table);
    for (const LogRecordPlace& place : entries_) ReadEntry(*table, place);
  }

  uint64_t round() const { return round_; }
  bool stored() const { return stored_; }
  const std::string& cursor() const { return cursor_; }

  Status status;  // of the map
  std::vector<Damage> blocks;
  struct RottenEntry {
    LogRecordPlace place;
    std::vector<Damage> blocks;  // those of its blocks that are; none if it cannot be read at all
  };
  std::vector<RottenEntry> entries;
  uint64_t bytes = 0;
  bool end = true;  // of the stored rows

 private:
  // Collects the data blocks behind the cursor.
  Status Scan() {
    uint64_t spent = 0;
    for (bool more = true; more;) {
      more = false;
      end = true;
      Status malformed;
      const std::string from = cursor_;
      HYDRA_RETURN_IF_ERROR(
          store_->Scan(from, "", [&](std::string_view key, std::string_view value) {
            const auto parsed = ParseMapKey(key);
            if (parsed && parsed->group == kNodeGroup) return false;
            if (spent >= budget_) {
              cursor_ = std::string(key);
              end = false;
              return false;
            }
            spent += kRowBytes;
            if (!parsed || parsed->tag < 'm') return true;
            if (parsed->tag > 'm') {
              // Rows of other kinds lie between: jump to the next group's blocks.
              if (parsed->group >= kNodeGroup - 1) return false;
              cursor_ = TagPrefix(parsed->group + 1, 'M');
              more = true;
              return false;
            }
            const auto pages = block_pages_.find(parsed->group);
            if (pages == block_pages_.end()) return true;  // dropped
            auto row = ParseBlockRow(value);
            if (!row.ok()) {
              malformed = row.status();
              return false;
            }
            if (row->kind != BlockKind::kData || row->reference.owed()) return true;
            Add({parsed->group, parsed->first, row->version, row->reference, pages->second});
            spent += uint64_t{pages->second} * kPageSize;
            return true;
          }));
      HYDRA_RETURN_IF_ERROR(malformed);
    }
    return Status::Ok();
  }

  void ReadBlocks(const SegmentTable& table) {
    std::ranges::sort(blocks_, {}, [](const Block& block) {
      return std::pair(block.reference.segment, block.reference.page);
    });
    for (size_t i = 0; i < blocks_.size();) {
      const Reference& start = blocks_[i].reference;
      uint32_t pages = blocks_[i].pages;
      size_t next = i + 1;
      while (next < blocks_.size() && blocks_[next].reference.segment == start.segment &&
             blocks_[next].reference.page == start.page + pages && pages < kScrubRunPages) {
        pages += blocks_[next++].pages;
      }
      const Buffer data = Buffer::Allocate(size_t{pages} * kPageSize);
      const bool whole = ReadPagesDirect(table, start.segment, start.page, data.span()).ok();
      bytes += data.size();
      for (; i < next; ++i) {
        const Block& block = blocks_[i];
        const auto content = data.span().subspan(
            size_t{block.reference.page - start.page} * kPageSize, size_t{block.pages} * kPageSize);
        if (whole && Crc32c(content) == block.reference.crc) continue;
        // Alone, once more: a neighbour may be what cannot be read.
        const Status again =
            ReadPagesDirect(table, block.reference.segment, block.reference.page, content);
        if (again.ok() && Crc32c(content) == block.reference.crc) continue;
        blocks.push_back(BlockDamage(block.group, block.lba, block.version, block.reference));
      }
    }
  }

  void ReadEntry(const SegmentTable& table, const LogRecordPlace& place) {
    LogEntry rotten;
    uint32_t page = 0;
    const auto read = ReadRecordAt(table, place, true, &rotten, &page);
    bytes += uint64_t{place.slot.payload_pages} * kPageSize;
    if (!IsRot(read.status())) return;
    RottenEntry found{place, {}};
    PayloadWalk walk(rotten.payload);
    const auto& operations = rotten.record.entry.operations;
    for (size_t o = 0; !rotten.payload.empty() && o < operations.size(); ++o) {
      const Operation& op = operations[o];
      if (op.kind != OpKind::kWrite) continue;
      const Version version = MakeVersion(place.instance, static_cast<uint32_t>(o));
      for (size_t b = 0; b < op.crcs.size(); ++b, page += place.block_pages) {
        if (walk.Next(size_t{place.block_pages} * kPageSize) == op.crcs[b]) continue;
        found.blocks.push_back(
            BlockDamage(place.group, op.lba + b, version, {place.slot.segment, page, op.crcs[b]}));
      }
    }
    entries.push_back(std::move(found));
  }

  const MapStore* const store_;
  const NewestSegmentTable* const tables_;
  const uint64_t round_;
  bool stored_ = false;
  std::string cursor_;
  uint64_t budget_ = 0;
  std::map<GroupId, uint32_t> block_pages_;
  std::vector<Block> blocks_;
  std::vector<LogRecordPlace> entries_;
};

void EngineImpl::RestartScrub() {
  const bool out = scrub_.out;
  scrub_ = {};
  scrub_.out = out;
  ++scrub_round_;  // what is out no longer counts
}

Result<std::unique_ptr<ReadJob>> EngineImpl::PlanScrub(uint64_t budget_bytes) {
  HYDRA_RETURN_IF_ERROR(poisoned_);
  if (scrub_.out) return Status::Busy("a piece is being scrubbed already");
  auto job = std::make_unique<ScrubJob>(store_.get(), volume_->newest_table(), scrub_round_);
  if (scrub_.phase == ScrubState::Phase::kStored) {
    std::map<GroupId, uint32_t> block_pages;
    for (const auto& [id, group] : groups_) block_pages.emplace(id, group.block_pages);
    job->ScanStored(scrub_.cursor, budget_bytes, std::move(block_pages));
  } else {
    AddToScrub(job.get(), budget_bytes);
  }
  scrub_.out = true;
  job->pin = pins_.Take();
  return std::unique_ptr<ReadJob>(std::move(job));
}

// The next ones of the list.
void EngineImpl::AddToScrub(ScrubJob* job, uint64_t budget_bytes) {
  uint64_t spent = 0;
  if (scrub_.phase == ScrubState::Phase::kOverlay) {
    for (; scrub_.next < scrub_.overlay.size() && spent < budget_bytes; ++scrub_.next) {
      const BlockKey& key = scrub_.overlay[scrub_.next];
      spent += kRowBytes;
      MapRow row;
      if (!map_->HasGroup(key.group) ||
          map_->Find(key.group, key.number, &row) != BlockMap::Where::kRow) {
        continue;  // gone, or in LevelDB by now: for the next round
      }
      if (row.reference.owed()) continue;
      const uint32_t pages = groups_.at(key.group).block_pages;
      job->Add({key.group, key.number, row.version, row.reference, pages});
      spent += uint64_t{pages} * kPageSize;
    }
    return;
  }
  for (; scrub_.next < scrub_.open.size() && spent < budget_bytes; ++scrub_.next) {
    const auto& [id, instance] = scrub_.open[scrub_.next];
    spent += kRowBytes;
    Group* group = FindGroup(id);
    const LogIndex::Slot* slot = group == nullptr ? nullptr : group->log.Find(instance);
    if (slot == nullptr) continue;
    job->Add(LogRecordPlace{identity_.store, volume_->segment_pages(), id, group->block_pages,
                            instance, *slot});
    spent += uint64_t{slot->payload_pages + 1u} * kPageSize;
  }
}

// What the next phase has to look at.
void EngineImpl::ListForScrub() {
  scrub_.next = 0;
  if (scrub_.phase == ScrubState::Phase::kOverlay) {
    scrub_.overlay = map_->OverlayBlocks();
    return;
  }
  scrub_.overlay = {};
  for (const auto& [id, group] : groups_) {
    for (const auto& [instance, entry] : group.live) scrub_.open.emplace_back(id, instance);
  }
}

Result<ScrubPiece> EngineImpl::FinishScrub(std::unique_ptr<ReadJob> job) {
  auto* scrub = static_cast<ScrubJob*>(job.get());
  Unpin(scrub);
  scrub_.out = false;
  HYDRA_RETURN_IF_ERROR(poisoned_);
  HYDRA_RETURN_IF_ERROR(scrub->status);
  ScrubPiece piece;
  piece.bytes = scrub->bytes;
  const auto keep = [&](const Damage& block) -> Status {
    HYDRA_ASSIGN_OR_RETURN(const bool there, IsStillThere(block));
    if (there) piece.found.push_back(block);
    return Status::Ok();
  };
  for (const Damage& block : scrub->blocks) HYDRA_RETURN_IF_ERROR(keep(block));
  for (const ScrubJob::RottenEntry& entry : scrub->entries) {
    const LogRecordPlace& was = entry.place;
    Group* group = FindGroup(was.group);
    LogIndex::Slot* slot = group == nullptr ? nullptr : group->log.Find(was.instance);
    const bool same = slot != nullptr && slot->segment == was.slot.segment &&
                      slot->batch_page == was.slot.batch_page &&
                      slot->record_offset == was.slot.record_offset;
    if (same) slot->faulty = true;
    if (group != nullptr && was.instance <= group->stable) {
      for (const Damage& block : entry.blocks) HYDRA_RETURN_IF_ERROR(keep(block));
    } else if (same) {
      piece.found.push_back({Damage::What::kRecordPayload, was.group, 0, was.instance,
                             slot->segment, slot->batch_page, 0, 0});
    }
  }
  rotten_blocks_ += piece.found.size();
  if (scrub->round() != scrub_round_) return piece;
  using Phase = ScrubState::Phase;
  if (scrub->stored()) {
    scrub_.cursor = scrub->end ? std::string() : scrub->cursor();
    if (!scrub->end) return piece;
    scrub_.phase = Phase::kOverlay;
    ListForScrub();
  }
  if (scrub_.phase == Phase::kOverlay && scrub_.next == scrub_.overlay.size()) {
    scrub_.phase = Phase::kOpen;
    ListForScrub();
  }
  if (scrub_.phase != Phase::kOpen || scrub_.next < scrub_.open.size()) return piece;
  piece.end = true;
  RestartScrub();
  return piece;
}

Result<bool> EngineImpl::Scrub(uint64_t budget_bytes, std::vector<Damage>* found) {
  HYDRA_ASSIGN_OR_RETURN(auto job, PlanScrub(budget_bytes));
  job->Run();
  HYDRA_ASSIGN_OR_RETURN(const ScrubPiece piece, FinishScrub(std::move(job)));
  found->insert(found->end(), piece.found.begin(), piece.found.end());
  return piece.end;
}

// --- Damage -------------------------------------------------------------------------------------

void EngineImpl::NoteDamage(const Damage& damage) {
  if (damage_.size() < kMaxUntold) damage_.push_back(damage);
}

// What was accepted and is not applied is what this replica may be asked to vote on next: it has to
// know now what of it is rotten.
void EngineImpl::VerifyOpenEntries() {
  for (auto& [id, group] : groups_) {
    for (auto& [instance, entry] : group.live) {
      LogIndex::Slot* slot = group.log.Find(instance);
      if (slot == nullptr || entry->faulty || slot->payload_pages == 0) continue;
      const auto read = ReadRecord(&group, instance, *slot, true);
      if (!IsRot(read.status())) continue;
      HYDRA_LOG_ERROR("{}; it will be fetched from a peer", read.status().message());
      entry->faulty = true;
      slot->faulty = true;
    }
  }
}

Result<Damage> EngineImpl::Locate(GroupId group, Lba lba) {
  HYDRA_RETURN_IF_ERROR(Readable(group, lba, 1).status());
  HYDRA_ASSIGN_OR_RETURN(const MapRow row, map_->Lookup(group, lba));
  if (row.kind == BlockKind::kData && !row.reference.owed()) {
    return BlockDamage(group, lba, row.version, row.reference);
  }
  return Status::NotFound(fmt::format("group {} block {} holds no data", group, lba));
}

Result<bool> EngineImpl::IsStillThere(const Damage& block) {
  HYDRA_RETURN_IF_ERROR(poisoned_);
  if (block.what != Damage::What::kBlock || !map_->HasGroup(block.group)) return false;
  HYDRA_ASSIGN_OR_RETURN(const MapRow row, map_->Lookup(block.group, block.lba));
  return row.kind == BlockKind::kData && row.version == block.version &&
         row.reference == Reference{block.segment, block.page, block.crc};
}

Status EngineImpl::Repair(const Damage& block, Payload payload, uint64_t token) {
  HYDRA_ASSIGN_OR_RETURN(const Group* group, Usable(block.group));
  const size_t bytes = size_t{group->block_pages} * kPageSize;
  HYDRA_RETURN_IF_ERROR(CheckSlices(payload, bytes));
  if (PayloadWalk(payload).Next(bytes) != block.crc && !HYDRA_SABOTAGE(kRepairAnyVersion)) {
    return Status::InvalidArgument(fmt::format(
        "group {} block {}: this is not the block that was rotten", block.group, block.lba));
  }
  HYDRA_ASSIGN_OR_RETURN(const bool there, IsStillThere(block));
  if (!there) {
    return Status::FailedPrecondition(fmt::format(
        "group {} block {}: it changed since it was found rotten", block.group, block.lba));
  }
  HYDRA_RETURN_IF_ERROR(MayTakeCopies());
  PendingRecord pending = RepairOf(block, group->block_pages);
  pending.token = token;
  std::string record = Encode(pending.relocate);
  HYDRA_RETURN_IF_ERROR(
      block.owed() ? volume_->CheckRoomForDelivery(record.size(), group->block_pages)
                   : volume_->CheckRoom(Urgency::kBackground, record.size(), group->block_pages));
  Queue(Urgency::kBackground, std::move(pending), std::move(record), std::move(payload));
  return Status::Ok();
}

Status EngineImpl::MayTakeCopies() {
  if (map_->rows() < 2 * options_.overlay_rows) return Status::Ok();
  checkpoint_requested_ = true;
  return Status::Busy("the overlay is full until a checkpoint has been written");
}

PendingRecord EngineImpl::RepairOf(const Damage& block, uint32_t block_pages) const {
  PendingRecord pending;
  pending.type = RecordType::kRelocate;
  pending.group = block.group;
  pending.repair = true;
  pending.relocate = {
      block.group, block.lba, block.version, {block.segment, block.page, block.crc}, block_pages};
  return pending;
}

// --- Owed blocks --------------------------------------------------------------------------------

uint64_t EngineImpl::OwedCount(GroupId group) const {
  return map_->HasGroup(group) ? map_->extents(group).owed_blocks() : 0;
}

Result<std::vector<BlockName>> EngineImpl::OwedBlocks(GroupId id, Lba from, size_t limit) {
  HYDRA_RETURN_IF_ERROR(Usable(id).status());
  std::vector<BlockName> owed;
  for (const Lba lba : map_->extents(id).OwedFrom(from, limit)) {
    HYDRA_ASSIGN_OR_RETURN(const MapRow row, map_->Lookup(id, lba));
    HYDRA_CHECK(row.reference.owed());
    owed.push_back({lba, row.version, row.reference.crc});
  }
  return owed;
}

Status EngineImpl::Deliver(GroupId id, const std::vector<BlockName>& blocks, Payload payload,
                           uint64_t token, bool* all) {
  HYDRA_ASSIGN_OR_RETURN(const Group* group, Usable(id));
  const size_t bytes = size_t{group->block_pages} * kPageSize;
  HYDRA_RETURN_IF_ERROR(CheckSlices(payload, blocks.size() * bytes));
  HYDRA_RETURN_IF_ERROR(MayTakeCopies());
  std::vector<std::pair<Damage, Payload>> wanted;
  PayloadWalk walk(payload);
  for (const BlockName& block : blocks) {
    Payload copy;
    if (walk.Next(bytes, &copy) != block.crc) {
      return Status::InvalidArgument(
          fmt::format("group {} block {}: this is not the block that is owed", id, block.lba));
    }
    const Damage owed = BlockDamage(id, block.lba, block.version, {kOwedSegment, 0, block.crc});
    HYDRA_ASSIGN_OR_RETURN(const bool still, IsStillThere(owed));
    if (still) wanted.emplace_back(owed, std::move(copy));
  }
  if (wanted.empty()) {
    return Status::FailedPrecondition(fmt::format("group {}: nothing of this is owed now", id));
  }
  uint64_t last = 0;
  if (all != nullptr) *all = true;
  for (auto& [block, copy] : wanted) {
    PendingRecord pending = RepairOf(block, group->block_pages);
    std::string record = Encode(pending.relocate);
    const Status room = volume_->CheckRoomForDelivery(record.size(), group->block_pages);
    if (!room.ok() && last == 0) return room;
    if (!room.ok()) {
      if (all != nullptr) *all = false;
      break;
    }
    pending.report = false;
    pending.token = token;
    last = Queue(Urgency::kBackground, std::move(pending), std::move(record), std::move(copy));
  }
  pending_[last - 1].report = true;  // they become durable in their order
  return Status::Ok();
}

void EngineImpl::CompleteRepair(const PendingRecord& pending, const Placement& placement) {
  const Reference copy{placement.segment, placement.payload_page,
                       pending.relocate.old_reference.crc};
  const auto moved = map_->Relocate(pending.relocate, copy, false);
  if (!moved.ok()) {
    // The map itself cannot be read: the block stays rotten until a restart replays the record.
    HYDRA_LOG_ERROR("group {} block {}: repaired in vain: {}", pending.group, pending.relocate.lba,
                    moved.status().ToString());
    return;
  }
  if (!*moved) return;
  if (pending.relocate.old_reference.owed()) {
    ++delivered_blocks_;
    return;
  }
  ++repaired_blocks_;
  HYDRA_LOG_INFO("group {} block {}: repaired, now in segment {}", pending.group,
                 pending.relocate.lba, copy.segment);
}

}  // namespace hydra
