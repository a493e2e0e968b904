// SPDX-License-Identifier: Apache-2.0
//
// The state machine: applying chosen entries, and reading blocks.
//
// An entry may be applied before its record is durable here (a majority elsewhere chose it). It
// then waits, in order, and its buffer serves reads; only when it and everything before it is
// durable does it become stable and reach the overlay, which a checkpoint may write out.
#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "base/check.h"
#include "base/crc32c.h"
#include "blockstore/engine_impl.h"

namespace hydra {
namespace {

bool Touches(const Operation& op, Lba lba, Extent extent) {
  switch (op.kind) {
    case OpKind::kNoop:
    case OpKind::kOpaque: return false;
    case OpKind::kWrite:
    case OpKind::kZero:
    case OpKind::kUnmap: return lba >= op.lba && lba - op.lba < op.count;
    case OpKind::kZeroExtents:
      return std::binary_search(op.extents.begin(), op.extents.end(), extent);
  }
  return false;
}

}  // namespace

Status EngineImpl::Apply(GroupId id, Instance instance, const Ballot& ballot) {
  HYDRA_ASSIGN_OR_RETURN(Group * group, Usable(id));
  if (group->installing()) {
    return Status::FailedPrecondition(
        fmt::format("group {}: its blocks are being installed; nothing is applied meanwhile", id));
  }
  if (instance != group->applied + 1) {
    return Status::FailedPrecondition(fmt::format(
        "group {}: instance {} cannot be applied after {}", id, instance, group->applied));
  }
  const auto found = group->live.find(instance);
  if (found == group->live.end()) {
    return Status::FailedPrecondition(
        fmt::format("group {}: instance {} was not accepted here", id, instance));
  }
  const std::shared_ptr<LiveEntry>& entry = found->second;
  if (entry->ballot != ballot) {
    return Status::FailedPrecondition(
        fmt::format("group {}: instance {} was accepted in ballot ({}, {}), not in ({}, {})", id,
                    instance, entry->ballot.round, entry->ballot.node, ballot.round, ballot.node));
  }
  if (entry->faulty) {
    return Status::Corruption(
        fmt::format("group {}: the record of instance {} is rotten; fetch it from a peer and "
                    "accept it again",
                    id, instance));
  }
  if (!entry->understood) {
    group->halted = true;
    return Status::Unsupported(fmt::format(
        "group {}: instance {} holds an operation this build does not know. Upgrade Hydra on this "
        "node",
        id, instance));
  }
  uint64_t rows = 0;
  for (const Operation& op : entry->entry->operations) rows += op.count + op.extents.size();
  // An entry larger than a whole generation waits for room as for one.
  rows = std::min<uint64_t>(rows, options_.overlay_rows);
  if (map_->rows() + rows > 2 * options_.overlay_rows) {
    checkpoint_requested_ = true;  // a large entry may not fit long before one is due
    return Status::Busy("the overlay is full until a checkpoint has been written");
  }
  const bool direct = entry->durable && group->waiting.empty();
  if (!direct && draining_) {
    return Status::Busy("a checkpoint waits for applied entries to become durable");
  }
  group->waiting.push_back(entry);
  group->applied = instance;
  FoldStable(group);
  return Status::Ok();
}

void EngineImpl::FoldStable(Group* group) {
  while (!group->waiting.empty() && group->waiting.front()->durable) {
    const std::shared_ptr<LiveEntry> entry = std::move(group->waiting.front());
    group->waiting.pop_front();
    HYDRA_CHECK(entry->instance == group->stable + 1);
    ApplyToMap(group, *entry);
    group->stable = entry->instance;
    group->applied = std::max(group->applied, group->stable);
    if (const LogIndex::Slot* slot = group->log.Find(entry->instance)) {
      volume_->RemoveOpen(slot->segment, slot->payload_pages);
    }
    group->live.erase(entry->instance);
    group->state_installed = false;
  }
  if (group->mixed_until != 0 && group->stable >= group->mixed_until) {
    group->horizon = std::max(group->horizon, LastVersionOf(group->mixed_until));
    group->mixed_until = 0;
    group->ahead.Clear();
  }
  const Instance kept = options_.log_entries_kept;
  // The layers above roll their state forward from the checkpoint by reading what follows it.
  const Instance old =
      std::min(group->checkpointed, group->stable > kept ? group->stable - kept : 0);
  if (group->log.truncated() < old) group->log.Truncate(old);
}

// What an install brought in a newer version stays as it is.
void EngineImpl::ApplyToMap(Group* group, const LiveEntry& entry) {
  const bool ahead = !group->ahead.empty();
  const auto newer = [&](Lba lba, Version version) {
    return ahead && group->ahead.IsNewer(lba, lba / group->blocks_per_extent(), version);
  };
  uint32_t page = entry.placement.payload_page;
  for (size_t i = 0; i < entry.entry->operations.size(); ++i) {
    const Operation& op = entry.entry->operations[i];
    const Version version = MakeVersion(entry.instance, static_cast<uint32_t>(i));
    switch (op.kind) {
      case OpKind::kNoop:
      case OpKind::kOpaque: break;
      case OpKind::kWrite:
        for (size_t b = 0; b < op.crcs.size(); ++b) {
          if (!newer(op.lba + b, version)) {
            map_->Write(group->id, op.lba + b, version,
                        Reference{entry.placement.segment, page, op.crcs[b]});
          }
          page += op.block_pages;
        }
        break;
      case OpKind::kZero:
      case OpKind::kUnmap:
        for (uint64_t b = 0; b < op.count; ++b) {
          if (newer(op.lba + b, version)) continue;
          map_->Erase(group->id, op.lba + b,
                      op.kind == OpKind::kZero ? BlockKind::kZero : BlockKind::kUnmapped, version);
        }
        break;
      case OpKind::kZeroExtents:
        for (Extent extent : op.extents) ZeroExtentUnlessNewer(group, extent, version);
        break;
    }
  }
}

void EngineImpl::ZeroExtentUnlessNewer(Group* group, Extent extent, Version version) {
  const AheadRows& ahead = group->ahead;
  if (ahead.IsExtentNewer(extent, version)) return;
  const uint32_t blocks = group->blocks_per_extent();
  if (!ahead.HasNewerBlock(extent, blocks, version)) {
    return map_->ZeroExtent(group->id, extent, version);
  }
  // One row for the whole extent would hide newer ones that are in LevelDB already.
  const ExtentTable& extents = map_->extents(group->id);
  for (Lba lba = extent * blocks; lba < (extent + 1) * blocks; ++lba) {
    if (!extents.IsData(lba) || ahead.IsNewer(lba, extent, version)) continue;
    map_->Erase(group->id, lba, BlockKind::kZero, version);
  }
}

// The newest applied entry not yet in the overlay that touches `lba`, and which of its operations
// does so last.
const LiveEntry* EngineImpl::FindWaiting(const Group& group, Lba lba, uint32_t* operation) const {
  const uint64_t extent = lba / (kExtentPages / group.block_pages);
  for (auto it = group.waiting.rbegin(); it != group.waiting.rend(); ++it) {
    const auto& operations = (*it)->entry->operations;
    for (size_t i = operations.size(); i > 0; --i) {
      const Operation& op = operations[i - 1];
      if (!Touches(op, lba, extent)) continue;
      *operation = static_cast<uint32_t>(i - 1);
      // The map has a newer version, which an install brought.
      if (group.ahead.IsNewer(lba, extent, MakeVersion((*it)->instance, *operation))) {
        return nullptr;
      }
      return it->get();
    }
  }
  return nullptr;
}

Version EngineImpl::NewestVersion(GroupId id, Lba lba, Instance seen, bool* known) {
  const Group* group = FindGroup(id);
  *known = group != nullptr && seen >= group->checkpointed && seen >= group->overlay_from &&
           !group->install.active();
  if (group == nullptr) return 0;
  uint32_t operation = 0;
  if (const LiveEntry* entry = FindWaiting(*group, lba, &operation)) {
    return MakeVersion(entry->instance, operation);
  }
  return map_->OverlayVersion(id, lba);
}

// --- Reads ------------------------------------------------------------------------------------

// What each block of a read needs: nothing (a hole), a copy from an entry's buffer, a row that
// was in the overlay, or a look-up in LevelDB first.
class EngineImpl::BlockReadJob final : public PinnedRead {
 public:
  BlockReadJob(const BlockMap* map, const NewestSegmentTable* tables, ReadAround* around,
               GroupId group, Lba lba, uint32_t block_pages, uint64_t count)
      : map_(map),
        tables_(tables),
        around_(around),
        group_(group),
        lba_(lba),
        epoch_(map->epoch()),
        block_bytes_(size_t{block_pages} * kPageSize) {
    steps_.resize(count);
    result_.data = Buffer::Allocate(block_bytes_ * count);
    result_.blocks.resize(count);
  }

  void AddRow(size_t block, const MapRow& row) { steps_[block] = {Step::kRead, false, row}; }
  void AddLookup(size_t block) {
    steps_[block].kind = Step::kLookup;
    steps_[block].looked_up = true;
  }
  // What the look-ups found, for the next read of these blocks.
  void Remember(BlockMap* map) const {
    for (size_t i = 0; i < steps_.size(); ++i) {
      if (!steps_[i].looked_up || steps_[i].kind != Step::kRead) continue;
      map->Remember(group_, lba_ + i, steps_[i].row, epoch_);
    }
  }
  void AddBuffer(size_t block, Version version, uint32_t crc, const LiveEntry* entry,
                 uint64_t offset) {
    steps_[block].kind = Step::kDone;
    result_.blocks[block] = {version, BlockKind::kData, crc};
    CopyFrom(*entry, offset, Out(block));
  }

  void Run() override {
    damaged_.clear();
    if (!regions_.empty()) ReadRegions();
    status_ = ReadAll();
  }

  // What memory does not have, or has wrong, is left to Run.
  bool TryRun() override {
    const NoWaitReads no_wait;
    if (ReadAll().ok()) {
      const auto read = [](const Step& step) { return step.kind == Step::kRead; };
      around_->Hit(block_bytes_ * std::count_if(steps_.begin(), steps_.end(), read));
      return true;
    }
    std::set<std::pair<SegmentNumber, uint32_t>> missed;  // a read misses a region once
    for (const Damage& damage : damaged_) {
      if (damage.owed()) continue;
      missed.emplace(damage.segment, damage.page / ReadAround::kRegionPages);
    }
    for (const auto& [segment, region] : missed) {
      if (around_->Miss(segment, region)) regions_.emplace_back(segment, region);
    }
    return false;
  }

  // Where its blocks are, as far as look-ups succeed; the rest is Run's to say.
  void Locate(std::vector<Reference>* references) {
    if (!LookUp().ok()) return;
    for (const Step& step : steps_) {
      if (step.kind == Step::kRead) references->push_back(step.row.reference);
    }
  }

  // Blocks that could not be read right, and the rest.
  const std::vector<Damage>& damaged() const { return damaged_; }
  Lba lba() const { return lba_; }
  ReadResult TakeRest() { return std::move(result_); }

  Result<ReadResult> Take() {
    HYDRA_RETURN_IF_ERROR(status_);
    return std::move(result_);
  }
  const Status& status() const { return status_; }

 private:
  struct Step {
    enum Kind : uint8_t { kHole, kDone, kRead, kLookup } kind = kHole;
    bool looked_up = false;
    MapRow row;
  };

  std::span<uint8_t> Out(size_t block, size_t count = 1) {
    return result_.data.span().subspan(block * block_bytes_, count * block_bytes_);
  }

  static void CopyFrom(const LiveEntry& entry, uint64_t offset, std::span<uint8_t> out) {
    size_t copied = 0;
    for (const BufferSlice& slice : entry.payload) {
      if (offset >= slice.length) {
        offset -= slice.length;
        continue;
      }
      const size_t piece = std::min<size_t>(slice.length - offset, out.size() - copied);
      std::memcpy(out.data() + copied, slice.data() + offset, piece);
      copied += piece;
      offset = 0;
      if (copied == out.size()) return;
    }
    HYDRA_CHECK(copied == out.size());
  }

  Status LookUp() {
    for (size_t i = 0; i < steps_.size(); ++i) {
      if (steps_[i].kind != Step::kLookup) continue;
      HYDRA_ASSIGN_OR_RETURN(steps_[i].row, map_->GetStored(group_, lba_ + i, snapshot));
      // Without a snapshot it may have been erased since the read was planned: as good, if alone.
      steps_[i].kind = steps_[i].row.kind == BlockKind::kData ? Step::kRead : Step::kHole;
    }
    return Status::Ok();
  }

  Status ReadAll() {
    HYDRA_RETURN_IF_ERROR(LookUp());
    table_ = tables_->Get();           // after the look-ups; the pin keeps what they found
    std::optional<uint32_t> hole_crc;  // of zeroes: the same for all
    Status first;                      // that went wrong; the rest is read all the same
    for (size_t i = 0; i < steps_.size();) {
      if (steps_[i].kind == Step::kHole) {
        if (!hole_crc.has_value()) hole_crc = Crc32c(Out(i));
        result_.blocks[i].crc = *hole_crc;
        ++i;
      } else if (steps_[i].kind == Step::kDone) {
        ++i;
      } else {
        const size_t run = RunLength(i);
        const Status read = ReadRun(i, run);
        if (first.ok()) first = read;
        i += run;
      }
    }
    return first;
  }

  // Into the page cache, where ReadAll finds what it wants of them.
  void ReadRegions() {
    const SegmentTableRef table = tables_->Get();
    for (const auto& [number, region] : regions_) {
      const auto segment = table->find(number);
      if (segment == table->end()) continue;
      segment->second->cached->WillRead(region * ReadAround::kRegionBytes,
                                        ReadAround::kRegionBytes);
    }
  }

  // Blocks from `first` on that lie one behind the other on disk.
  size_t RunLength(size_t first) const {
    const auto pages = static_cast<uint32_t>(block_bytes_ / kPageSize);
    size_t run = 1;
    while (first + run < steps_.size() && steps_[first + run].kind == Step::kRead) {
      const Reference& a = steps_[first + run - 1].row.reference;
      const Reference& b = steps_[first + run].row.reference;
      if (b.segment != a.segment || b.page != a.page + pages) break;
      ++run;
    }
    return run;
  }

  Status ReadRun(size_t first, size_t run) {
    const Reference& start = steps_[first].row.reference;
    const auto segment = table_->find(start.segment);
    bool whole = false;
    if (run > 1 && segment != table_->end()) {
      auto read = segment->second->cached->PRead(uint64_t{start.page} * kPageSize, Out(first, run));
      whole = read.ok() && *read == run * block_bytes_;
    }
    Status bad;
    for (size_t i = first; i < first + run; ++i) {
      const MapRow& row = steps_[i].row;
      result_.blocks[i] = {row.version, BlockKind::kData, row.reference.crc};
      if (whole && Crc32c(Out(i)) == row.reference.crc) continue;
      const Status read = ReadBlock(*table_, row.reference, Out(i));
      if (read.ok()) continue;
      if (bad.ok()) bad = read.WithContext(fmt::format("group {} block {}", group_, lba_ + i));
      std::ranges::fill(Out(i), uint8_t{0});  // nobody is to take it for the block
      damaged_.push_back({Damage::What::kBlock, group_, lba_ + i, VersionInstance(row.version),
                          row.reference.segment, row.reference.page, row.version,
                          row.reference.crc});
    }
    return bad;
  }

  const BlockMap* map_;
  const NewestSegmentTable* tables_;
  ReadAround* around_;                                       // the engine's thread only
  std::vector<std::pair<SegmentNumber, uint32_t>> regions_;  // to read along
  SegmentTableRef table_;
  GroupId group_;
  Lba lba_;
  const uint64_t epoch_;  // of the map, when the read was planned
  size_t block_bytes_;
  std::vector<Step> steps_;
  std::vector<Damage> damaged_;
  ReadResult result_;
  Status status_;
};

Result<Group*> EngineImpl::Readable(GroupId id, Lba lba, uint64_t count) {
  HYDRA_ASSIGN_OR_RETURN(Group * group, Usable(id));
  if (count == 0) return Status::InvalidArgument("a read of no blocks");
  if (lba + count < lba) {
    return Status::InvalidArgument(fmt::format("blocks {} + {} reach past 2^64", lba, count));
  }
  if (count > kExtentPages / group->block_pages) {
    return Status::InvalidArgument(
        fmt::format("{} blocks in one read; at most {} (1 MiB): split it", count,
                    kExtentPages / group->block_pages));
  }
  return group;
}

Result<std::vector<BlockKind>> EngineImpl::ReadMap(GroupId id, Lba lba, uint64_t count) {
  HYDRA_ASSIGN_OR_RETURN(Group * group, Readable(id, lba, count));
  const ExtentTable& extents = map_->extents(id);
  std::vector<BlockKind> kinds(count, BlockKind::kUnmapped);
  for (uint64_t i = 0; i < count; ++i) {
    uint32_t operation = 0;
    const LiveEntry* entry = FindWaiting(*group, lba + i, &operation);
    const bool data = entry != nullptr ? entry->entry->operations[operation].kind == OpKind::kWrite
                                       : extents.IsData(lba + i);
    if (data) kinds[i] = BlockKind::kData;
  }
  return kinds;
}

Result<std::unique_ptr<ReadJob>> EngineImpl::PlanRead(GroupId id, Lba lba, uint64_t count) {
  HYDRA_ASSIGN_OR_RETURN(Group * group, Readable(id, lba, count));
  auto job = std::make_unique<BlockReadJob>(map_.get(), volume_->newest_table(), &around_, id, lba,
                                            group->block_pages, count);
  bool looks_up = false;
  for (uint64_t i = 0; i < count; ++i) {
    uint32_t operation = 0;
    if (const LiveEntry* entry = FindWaiting(*group, lba + i, &operation)) {
      const Operation& op = entry->entry->operations[operation];
      if (op.kind != OpKind::kWrite) continue;
      uint64_t pages = (lba + i - op.lba) * op.block_pages;
      for (uint32_t o = 0; o < operation; ++o) pages += entry->entry->operations[o].PayloadPages();
      const Version version = MakeVersion(entry->instance, operation);
      const uint32_t crc = op.crcs[lba + i - op.lba];
      if (entry->durable) {
        // Durable but behind one that is not: its payload is on disk already.
        const auto page = static_cast<uint32_t>(entry->placement.payload_page + pages);
        job->AddRow(i, {version, {entry->placement.segment, page, crc}, BlockKind::kData, false});
      } else {
        job->AddBuffer(i, version, crc, entry, pages * kPageSize);
      }
      continue;
    }
    MapRow row;
    switch (map_->Find(id, lba + i, &row)) {
      case BlockMap::Where::kHole: break;
      case BlockMap::Where::kRow: job->AddRow(i, row); break;
      case BlockMap::Where::kStored:
        if (map_->Recall(id, lba + i, &row)) {
          ++map_recalled_;
          job->AddRow(i, row);
        } else {
          ++map_lookups_;
          job->AddLookup(i);
          looks_up = true;
        }
        break;
    }
  }
  // A write of several blocks that is applied and checkpointed before the job runs must not be seen
  // in some of them only.
  if (looks_up && count > 1) job->snapshot = store_->TakeSnapshot();
  job->pin = pins_.Take();
  return std::unique_ptr<ReadJob>(std::move(job));
}

void EngineImpl::DropRead(std::unique_ptr<ReadJob> job) {
  Unpin(static_cast<PinnedRead*>(job.get()));
}

void EngineImpl::Unpin(PinnedRead* read) {
  if (!read->parts.empty()) {
    for (const auto& part : read->parts) Unpin(static_cast<PinnedRead*>(part.get()));
    return;
  }
  pins_.Release(read->pin);
  if (read->snapshot != nullptr) store_->ReleaseSnapshot(read->snapshot);
  FreeCondemned();
}

Result<ReadResult> EngineImpl::FinishRead(std::unique_ptr<ReadJob> job, DamagedRead* damaged) {
  auto* read = static_cast<BlockReadJob*>(job.get());
  Unpin(read);
  HYDRA_RETURN_IF_ERROR(poisoned_);
  if (read->status().ok()) {
    read->Remember(map_.get());
    return read->Take();
  }
  const auto is_rot = [](const Damage& block) { return !block.owed(); };
  rotten_blocks_ += static_cast<uint64_t>(std::ranges::count_if(read->damaged(), is_rot));
  if (damaged != nullptr) {
    damaged->lba = read->lba();
    damaged->blocks = read->damaged();
    damaged->rest = read->TakeRest();
  } else {
    for (const Damage& block : read->damaged()) {
      if (is_rot(block)) NoteDamage(block);
    }
  }
  return read->status();
}

// Blocks that were written at about the same time lie close together, whatever their numbers are: a
// region that has many of them is read at once.
class EngineImpl::ManyReadsJob final : public PinnedRead {
 public:
  explicit ManyReadsJob(const NewestSegmentTable* tables) : tables_(tables) {}

  void Run() override {
    std::vector<Reference> references;
    for (const auto& part : parts) static_cast<BlockReadJob*>(part.get())->Locate(&references);
    std::map<std::pair<SegmentNumber, uint32_t>, size_t> wanted;
    for (const Reference& block : references) {
      ++wanted[{block.segment, block.page / ReadAround::kRegionPages}];
    }
    const SegmentTableRef table = tables_->Get();
    for (const auto& [region, blocks] : wanted) {
      const auto segment = table->find(region.first);
      if (blocks < kMany || segment == table->end()) continue;
      segment->second->cached->WillRead(region.second * ReadAround::kRegionBytes,
                                        ReadAround::kRegionBytes);
    }
    for (const auto& part : parts) part->Run();
  }

 private:
  static constexpr size_t kMany = 6;  // blocks, of the 64 pages of a region

  const NewestSegmentTable* tables_;
};

Result<std::unique_ptr<ReadJob>> EngineImpl::PlanReads(GroupId id,
                                                       const std::vector<LbaRange>& ranges) {
  auto job = std::make_unique<ManyReadsJob>(volume_->newest_table());
  for (const LbaRange& range : ranges) {
    auto part = PlanRead(id, range.lba, range.count);
    if (!part.ok()) {
      if (!job->parts.empty()) Unpin(job.get());
      return part.status();
    }
    job->parts.push_back(std::move(*part));
  }
  if (job->parts.empty()) return Status::InvalidArgument("a read of no blocks");
  return std::unique_ptr<ReadJob>(std::move(job));
}

// All are finished, whatever becomes of one.
Result<std::vector<ReadResult>> EngineImpl::FinishReads(std::unique_ptr<ReadJob> job) {
  std::vector<ReadResult> results;
  Status first;
  for (auto& part : static_cast<ManyReadsJob*>(job.get())->parts) {
    auto result = FinishRead(std::move(part), nullptr);
    if (result.ok()) {
      results.push_back(std::move(*result));
    } else if (first.ok()) {
      first = result.status();
    }
  }
  if (!first.ok()) return first;
  return results;
}

std::vector<DamagedRead> EngineImpl::FinishPartialReads(std::unique_ptr<ReadJob> job) {
  std::vector<DamagedRead> results;
  for (auto& part : static_cast<ManyReadsJob*>(job.get())->parts) {
    DamagedRead& found = results.emplace_back();
    auto whole = FinishRead(std::move(part), &found);
    if (whole.ok()) {
      found.rest = std::move(*whole);
    } else if (found.blocks.empty()) {
      found.rest = {};
    }
    for (const Damage& block : found.blocks) {
      if (!block.owed()) NoteDamage(block);
    }
  }
  return results;
}

Result<ReadResult> EngineImpl::Read(GroupId id, Lba lba, uint64_t count) {
  HYDRA_ASSIGN_OR_RETURN(auto job, PlanRead(id, lba, count));
  job->Run();
  return FinishRead(std::move(job), nullptr);
}

}  // namespace hydra
