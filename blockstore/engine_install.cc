// SPDX-License-Identifier: Apache-2.0
//
// Taking in a peer's blocks (blockstore/install.h), chunk by chunk.
//
// A chunk is compared with what is here when it is queued, because that takes look-ups in LevelDB.
// Its record holds the outcome: the rows that change, with their payload. When the record is
// durable they go into the overlay, in the order of the stream, as in replay: the same records in
// the same order, so the same map. Nothing else changes the group's blocks meanwhile, since Apply
// is refused and the next chunk waits. From the overlay on they are rows like any other:
// checkpoints write them, vacuum moves them, and no segment is freed that they refer to.
#include <algorithm>

#include <fmt/format.h>

#include "base/check.h"
#include "base/crc32c.h"
#include "base/logging.h"
#include "base/probe.h"
#include "base/sabotage.h"
#include "blockstore/engine_impl.h"
#include "blockstore/install_check.h"
#include "blockstore/payload.h"

namespace hydra {
namespace {

// Appends slices; adjacent ones become one.
void Append(const Payload& from, Payload* to) {
  for (const BufferSlice& slice : from) {
    if (!to->empty() && to->back().data() + to->back().length == slice.data()) {
      to->back().length += slice.length;
    } else {
      to->push_back(slice);
    }
  }
}

// Whether a row that erases takes the whole extent. (The last extent of all has no end.)
bool IsWithin(Extent extent, uint64_t blocks, const ChunkRow& row) {
  const Lba first = extent * blocks;
  return first >= row.number && first + (blocks - 1) < row.number + row.count;
}

// When the chunk itself says that the whole extent was zeroed; 0 if it does not.
Version ZeroedInChunk(const ImageChunk& chunk, Extent extent) {
  for (const ImageRow& row : chunk.rows) {
    if (!row.whole_extent || row.number > extent) break;  // extents come first, ascending
    if (row.number == extent) return row.version;
  }
  return 0;
}

}  // namespace

// --- Calls ------------------------------------------------------------------------------------

Result<Group*> EngineImpl::Installable(GroupId id) {
  HYDRA_ASSIGN_OR_RETURN(Group * group, Usable(id));
  if (group->install_queued) {
    return Status::Busy(fmt::format("group {}: the install's last record is not durable yet", id));
  }
  return group;
}

void EngineImpl::QueueInstall(Group* group, RecordType type, PendingInstall install,
                              std::string record, Payload payload, uint64_t token) {
  PendingRecord pending;
  pending.type = type;
  pending.group = group->id;
  pending.token = token;
  pending.install = std::make_shared<const PendingInstall>(std::move(install));
  group->install_queued = true;
  // In the group's own flow: behind what it has accepted so far.
  Queue(Urgency::kInstall, std::move(pending), std::move(record), std::move(payload));
}

Status EngineImpl::InstallBegin(GroupId id, InstallMode mode, Instance floor, uint64_t token) {
  HYDRA_ASSIGN_OR_RETURN(Group * group, Installable(id));
  if (mode != InstallMode::kImage && mode != InstallMode::kDelta) {
    return Status::InvalidArgument("an install is an image or a delta");
  }
  if (floor == 0) {
    return Status::InvalidArgument(
        fmt::format("group {}: an install of a state in which nothing is applied", id));
  }
  if (floor < group->applied || floor > kMaxInstance) {
    return Status::InvalidArgument(
        fmt::format("group {}: an install up to instance {}, but {} is applied already", id, floor,
                    group->applied));
  }
  PendingInstall pending;
  pending.record = {id, InstallAction::kBegin, mode, group->applied, floor, 0, 0};
  std::string record = Encode(pending.record);
  HYDRA_RETURN_IF_ERROR(volume_->CheckRoom(Urgency::kInstall, record.size(), 0));
  QueueInstall(group, RecordType::kInstall, std::move(pending), std::move(record), {}, token);
  return Status::Ok();
}

Status EngineImpl::InstallChunk(GroupId id, const ImageChunk& chunk, Payload payload,
                                uint64_t token) {
  HYDRA_ASSIGN_OR_RETURN(Group * group, Installable(id));
  HYDRA_RETURN_IF_ERROR(CheckChunk(*group, chunk));
  PendingInstall pending;
  Payload kept;
  ChunkRecord& record = pending.chunk;
  HYDRA_RETURN_IF_ERROR(ResolveChunk(group, chunk, payload, &record, &kept));
  const uint64_t rows = std::min<uint64_t>(OverlayRowsOf(*group, record), options_.overlay_rows);
  if (map_->rows() + rows > 2 * options_.overlay_rows) {
    checkpoint_requested_ = true;
    return Status::Busy("the overlay is full until a checkpoint has been written");
  }
  uint64_t bytes = 0;
  for (const BufferSlice& slice : kept) bytes += slice.length;
  std::string encoded = Encode(record);
  HYDRA_RETURN_IF_ERROR(volume_->CheckRoom(Urgency::kInstall, encoded.size(),
                                           static_cast<uint32_t>(bytes / kPageSize)));
  installed_bytes_ += bytes;
  group->chunk_as_of = record.as_of;
  QueueInstall(group, RecordType::kChunk, std::move(pending), std::move(encoded), std::move(kept),
               token);
  return Status::Ok();
}

Status EngineImpl::InstallFinish(GroupId id, Instance applied, std::string state, uint64_t token) {
  HYDRA_ASSIGN_OR_RETURN(Group * group, Installable(id));
  const InstallProgress& install = group->install;
  if (!install.active() || install.restart || !install.complete) {
    return Status::FailedPrecondition(
        fmt::format("group {}: no install that has its last chunk", id));
  }
  if (applied < std::max(install.floor, group->applied) || applied > install.as_of) {
    return Status::InvalidArgument(
        fmt::format("group {}: the install leads to an instance from {} to {}, not to {}", id,
                    std::max(install.floor, group->applied), install.as_of, applied));
  }
  if (state.size() > kMaxInstalledState) {
    return Status::InvalidArgument(
        fmt::format("a state of {} bytes; at most {}", state.size(), kMaxInstalledState));
  }
  Payload payload;
  uint32_t crc = 0;
  if (!state.empty()) {
    const Buffer pages = Buffer::Allocate(state.size());
    std::copy(state.begin(), state.end(), pages.data());
    crc = Crc32c(pages.span());
    payload.push_back({pages, 0, pages.size()});
  }
  PendingInstall pending;
  pending.record = {
      id, InstallAction::kFinish, install.mode, applied, 0, static_cast<uint32_t>(state.size()),
      crc};
  pending.state = std::move(state);
  std::string record = Encode(pending.record);
  const size_t pages = payload.empty() ? 0 : payload.front().length / kPageSize;
  HYDRA_RETURN_IF_ERROR(
      volume_->CheckRoom(Urgency::kInstall, record.size(), static_cast<uint32_t>(pages)));
  QueueInstall(group, RecordType::kInstall, std::move(pending), std::move(record),
               std::move(payload), token);
  return Status::Ok();
}

Status EngineImpl::InstallAbort(GroupId id, uint64_t token) {
  HYDRA_ASSIGN_OR_RETURN(Group * group, Installable(id));
  if (!group->install.active()) {
    return Status::FailedPrecondition(fmt::format("group {}: no install to give up", id));
  }
  PendingInstall pending;
  pending.record = {id, InstallAction::kAbort, group->install.mode, 0, 0, 0, 0};
  std::string record = Encode(pending.record);
  HYDRA_RETURN_IF_ERROR(volume_->CheckRoom(Urgency::kInstall, record.size(), 0));
  QueueInstall(group, RecordType::kInstall, std::move(pending), std::move(record), {}, token);
  return Status::Ok();
}

// --- Deciding what a chunk changes ------------------------------------------------------------

Status EngineImpl::CheckChunk(const Group& group, const ImageChunk& chunk) const {
  const InstallProgress& install = group.install;
  if (!install.active() || install.restart || install.complete) {
    return Status::FailedPrecondition(
        fmt::format("group {}: {}", group.id,
                    install.complete ? "the install has its last chunk already; finish it"
                                     : "no install under way; begin one"));
  }
  if (chunk.mode != install.mode)
    return BadChunk("of an image for a delta, or the other way round");
  if (chunk.block_pages != group.block_pages) {
    return BadChunk(fmt::format("in blocks of {} pages for a group with blocks of {}",
                                chunk.block_pages, group.block_pages));
  }
  HYDRA_RETURN_IF_ERROR(ValidateChunk(chunk));
  if (chunk.as_of < install.floor) {
    return BadChunk(fmt::format("as of instance {}; the install leads to {} at least", chunk.as_of,
                                install.floor));
  }
  if (chunk.mode == InstallMode::kImage && chunk.from != install.covered) {
    return BadChunk(
        fmt::format("that starts at block {} where {} is the next", chunk.from, install.covered));
  }
  if (chunk.mode == InstallMode::kDelta && chunk.since > LastVersionOf(group.applied)) {
    return BadChunk(
        fmt::format("of changes after version {}; this replica has only applied instance {}",
                    chunk.since, group.applied));
  }
  return Status::Ok();
}

Status EngineImpl::ResolveChunk(Group* group, const ImageChunk& chunk, const Payload& payload,
                                ChunkRecord* record, Payload* kept) {
  const size_t block_bytes = size_t{group->block_pages} * kPageSize;
  uint64_t expected = 0;
  for (const ImageRow& row : chunk.rows) expected += HasPayload(row) ? block_bytes : 0;
  HYDRA_RETURN_IF_ERROR(CheckSlices(payload, expected));
  record->group = group->id;
  record->as_of = chunk.as_of;
  record->newest = chunk.newest;
  record->covered = chunk.to;
  record->cursor = chunk.cursor;
  record->last = chunk.cursor.empty();
  record->block_pages = group->block_pages;
  PayloadWalk walk(payload);
  for (const ImageRow& row : chunk.rows) {
    if (row.whole_extent) {
      HYDRA_RETURN_IF_ERROR(ResolveExtent(group, row, record));
      continue;
    }
    Payload block;
    if (HasPayload(row)) {
      const uint32_t crc = walk.Next(block_bytes, &block);
      if (crc != row.crc) {
        return BadChunk(
            fmt::format("whose block {} has checksum {:08x} where its row says {:08x}. It "
                        "was damaged on its way here; send it again",
                        row.number, crc, row.crc));
      }
    }
    if (ZeroedInChunk(chunk, row.number / group->blocks_per_extent()) > row.version) continue;
    bool changes = false;
    HYDRA_RETURN_IF_ERROR(ResolveBlock(group, row, chunk.as_of, &changes));
    if (!changes) continue;
    const auto kind = row.bare ? ChunkRow::Kind::kBare : static_cast<ChunkRow::Kind>(row.kind);
    record->rows.push_back({kind, row.number, 0, row.version, row.crc});
    Append(block, kept);
  }
  if (chunk.mode == InstallMode::kImage) ResolveErasures(*group, chunk, record);
  return Status::Ok();
}

Status EngineImpl::ResolveBlock(Group* group, const ImageRow& row, Instance as_of, bool* changes) {
  HYDRA_ASSIGN_OR_RETURN(const MapRow local, map_->Newest(group->id, row.number));
  const bool owed_here =
      local.kind == BlockKind::kData && local.version == row.version && local.reference.owed();
  *changes = local.version < row.version || (owed_here && HasPayload(row));
  const bool data = row.kind == BlockKind::kData;
  const bool local_data = local.kind == BlockKind::kData;
  if (local.version == row.version &&
      (data != local_data || (data && local.reference.crc != row.crc))) {
    return BadChunk(
        fmt::format("whose block {} is not what version {} is here: the replicas differ",
                    row.number, row.version));
  }
  if (*changes && row.same && group->mixed_until > as_of) {
    // Deleted, or written again, where the last install came from, after the instance that this one
    // leads to (else its row would be newer than what is applied here): so it was never sent, and
    // is not missed. The log says what became of it before these blocks are no longer mixed.
    *changes = false;
    return Status::Ok();
  }
  if (*changes && row.same) {
    return Status::FailedPrecondition(
        fmt::format("group {} block {}: version {} is not here (but {}); send its payload",
                    group->id, row.number, row.version, local.version));
  }
  return Status::Ok();
}

// Zeroes a whole extent, unless blocks in it are newer: then only what lies between them.
Status EngineImpl::ResolveExtent(Group* group, const ImageRow& row, ChunkRecord* record) {
  HYDRA_ASSIGN_OR_RETURN(const Version zeroed, map_->ZeroedAt(group->id, row.number));
  if (zeroed >= row.version) return Status::Ok();
  const uint64_t blocks = group->blocks_per_extent();
  const Lba first = row.number * blocks;
  const ExtentTable& extents = map_->extents(group->id);
  std::vector<Lba> newer;
  for (Lba lba = first; lba < first + blocks; ++lba) {
    if (!extents.IsData(lba)) continue;
    HYDRA_ASSIGN_OR_RETURN(const MapRow local, map_->Newest(group->id, lba));
    if (local.version > row.version) newer.push_back(lba);
  }
  if (newer.empty()) {
    record->rows.push_back({ChunkRow::Kind::kExtent, row.number, 0, row.version, 0});
    return Status::Ok();
  }
  newer.push_back(first + blocks);
  Lba from = first;
  for (const Lba end : newer) {
    if (end > from) {
      record->rows.push_back({ChunkRow::Kind::kErase, from, end - from, row.version, 0});
    }
    from = end + 1;
  }
  return Status::Ok();
}

// What an image covers and does not list is gone: one row for each stretch between listed blocks
// in which there is anything to erase.
void EngineImpl::ResolveErasures(const Group& group, const ImageChunk& chunk,
                                 ChunkRecord* record) const {
  const Version version = LastVersionOf(chunk.as_of);
  const uint64_t blocks = group.blocks_per_extent();
  auto listed = std::find_if(chunk.rows.begin(), chunk.rows.end(),
                             [](const ImageRow& row) { return !row.whole_extent; });
  Lba from = chunk.from;
  bool emitted = false;  // the stretch that starts at `from`
  map_->extents(group.id).ForEachData(chunk.from, chunk.to, [&](Lba lba) {
    while (listed != chunk.rows.end() && listed->number < lba) {
      from = listed->number + 1;
      emitted = false;
      ++listed;
    }
    if (emitted || (listed != chunk.rows.end() && listed->number == lba) ||
        group.ahead.IsNewer(lba, lba / blocks, version)) {
      return;
    }
    const Lba end = listed == chunk.rows.end() ? chunk.to : listed->number;
    record->rows.push_back({ChunkRow::Kind::kErase, from, end - from, version, 0});
    emitted = true;
  });
}

uint64_t EngineImpl::OverlayRowsOf(const Group& group, const ChunkRecord& record) const {
  uint64_t rows = 0;
  for (const ChunkRow& row : record.rows) {
    if (row.kind != ChunkRow::Kind::kErase) {
      ++rows;
      continue;
    }
    const uint64_t blocks = group.blocks_per_extent();
    for (const Extent extent :
         map_->extents(group.id).ExtentsIn(row.number, row.number + row.count)) {
      rows += IsWithin(extent, blocks, row) ? 1 : blocks;
    }
  }
  return rows;
}

// --- Taking effect ----------------------------------------------------------------------------

void EngineImpl::CompleteInstall(Group* group, const PendingRecord& pending,
                                 const Placement& placement) {
  group->install_queued = false;
  group->chunk_as_of = 0;
  if (pending.type == RecordType::kChunk) {
    ApplyChunk(group, pending.install->chunk, placement);
  } else {
    ApplyInstallRecord(group, pending.install->record, pending.install->state);
  }
}

void EngineImpl::ApplyInstallRecord(Group* group, const InstallRecord& record, std::string state) {
  // Whatever was applied before the install began was queued before it, and is durable.
  HYDRA_CHECK(group->waiting.empty());
  InstallProgress& install = group->install;
  switch (record.action) {
    case InstallAction::kBegin: {
      InstallProgress begun;
      begun.mode = record.mode;
      begun.floor = record.floor;
      begun.dirty = install.dirty;
      install = begun;
      group->ahead.Forget(LastVersionOf(record.floor));
      group->noted_stable = std::max(group->noted_stable, record.instance);
      break;
    }
    case InstallAction::kFinish: FinishInstall(group, record.instance, std::move(state)); break;
    case InstallAction::kAbort:
      if (install.dirty) {
        VoidInstall(&install);
      } else {
        install = {};
      }
      break;
  }
}

void EngineImpl::ApplyChunk(Group* group, const ChunkRecord& record, const Placement& placement) {
  const GroupId id = group->id;
  const uint64_t blocks = group->blocks_per_extent();
  const Version floor = LastVersionOf(group->install.floor);
  uint32_t page = placement.payload_page;
  for (const ChunkRow& row : record.rows) {
    const bool bare = row.kind == ChunkRow::Kind::kBare;
    const bool data = row.kind == ChunkRow::Kind::kData || bare;
    const Reference reference =
        bare ? FindInOpenEntry(*group, row) : Reference{placement.segment, page, row.crc};
    page += row.kind == ChunkRow::Kind::kData ? record.block_pages : 0;
    if (row.kind == ChunkRow::Kind::kErase) {
      EraseRange(group, row);
    } else if (row.kind == ChunkRow::Kind::kExtent) {
      ZeroExtentUnlessNewer(group, row.number, row.version);
      if (row.version > floor) group->ahead.NoteExtent(row.number, row.version);
    } else {
      if (group->ahead.IsNewer(row.number, row.number / blocks, row.version)) continue;
      if (data) {
        map_->Write(id, row.number, row.version, reference);
        if (bare && !reference.owed()) volume_->NoteShared(reference.segment);
      } else {
        map_->Erase(id, row.number, static_cast<BlockKind>(row.kind), row.version);
      }
      if (row.version > floor) group->ahead.Note(row.number, row.version);
    }
  }
  group->mixed_until = std::max(group->mixed_until, record.newest);
  InstallProgress& install = group->install;
  install.dirty = true;
  // Its beginning was lost to rot, or a part of it: the rows are as true as ever, the rest is not.
  if (!install.active()) VoidInstall(&install);
  if (install.restart) return;
  install.as_of = install.mode == InstallMode::kDelta || install.as_of == 0
                      ? record.as_of
                      : std::min(install.as_of, record.as_of);
  install.covered = record.covered;
  install.cursor = record.cursor;
  install.complete = record.last;
}

// A row without payload. If this replica accepted the entry that wrote the block, it may be one of
// few that have the payload: the entry goes when the install is finished, the payload must not. So
// what is open decides as of here in the stream, in replay as at run time. (Another value than was
// chosen may have been accepted, so the sum decides.)
Reference EngineImpl::FindInOpenEntry(const Group& group, const ChunkRow& row) const {
  const Reference owed{kOwedSegment, 0, row.crc};
  if (HYDRA_SABOTAGE(kBareForgetsOpenEntry)) return owed;
  const auto found = group.live.find(VersionInstance(row.version));
  if (found == group.live.end()) return owed;
  const LiveEntry& entry = *found->second;
  if (!entry.durable || entry.faulty || entry.entry == nullptr || !entry.understood) return owed;
  uint32_t page = entry.placement.payload_page;
  const auto& operations = entry.entry->operations;
  for (size_t o = 0; o < operations.size(); ++o) {
    const Operation& op = operations[o];
    if (MakeVersion(entry.instance, static_cast<uint32_t>(o)) == row.version) {
      const bool same = op.kind == OpKind::kWrite && row.number >= op.lba &&
                        row.number - op.lba < op.count && op.crcs[row.number - op.lba] == row.crc;
      if (!same) return owed;
      HYDRA_PROBE("install: a bare block is in an open entry");
      const auto skipped = static_cast<uint32_t>((row.number - op.lba) * op.block_pages);
      return {entry.placement.segment, page + skipped, row.crc};
    }
    page += op.PayloadPages();
  }
  return owed;
}

void EngineImpl::EraseRange(Group* group, const ChunkRow& row) {
  const uint32_t blocks = group->blocks_per_extent();
  const Lba end = row.number + row.count;
  const bool ahead = row.version > LastVersionOf(group->install.floor);
  const ExtentTable& extents = map_->extents(group->id);
  for (const Extent extent : extents.ExtentsIn(row.number, end)) {
    if (IsWithin(extent, blocks, row) && !group->ahead.IsExtentNewer(extent, row.version) &&
        !group->ahead.HasNewerBlock(extent, blocks, row.version)) {
      map_->ZeroExtent(group->id, extent, row.version);
      if (ahead) group->ahead.NoteExtent(extent, row.version);
      continue;
    }
    const Lba first = extent * blocks;
    for (uint32_t i = 0; i < blocks; ++i) {
      const Lba lba = first + i;
      if (lba < row.number || lba >= end || !extents.IsData(lba) ||
          group->ahead.IsNewer(lba, extent, row.version)) {
        continue;
      }
      map_->Erase(group->id, lba, BlockKind::kUnmapped, row.version);
      if (ahead) group->ahead.Note(lba, row.version);
    }
  }
}

void EngineImpl::FinishInstall(Group* group, Instance applied, std::string state) {
  for (auto it = group->live.begin(); it != group->live.end() && it->first <= applied;) {
    if (const LogIndex::Slot* slot = group->log.Find(it->first)) {
      volume_->RemoveOpen(slot->segment, slot->payload_pages);
    }
    it = group->live.erase(it);
  }
  group->log.Truncate(applied);
  // Blocks that came and went elsewhere have left no trace here, so nobody can be told of all that
  // changed before. (FoldStable raises it again when the blocks are no longer mixed.)
  group->horizon = std::max(group->horizon, LastVersionOf(applied));
  group->install = {};
  group->applied = group->stable = applied;
  group->noted_stable = std::max(group->noted_stable, applied);
  group->halted = false;  // what it stumbled over may be behind it
  group->state = std::move(state);
  group->state_at = applied;
  group->state_installed = true;
  group->overlay_from = std::max({group->overlay_from, applied, group->mixed_until});
  if (group->mixed_until <= applied) {
    group->mixed_until = 0;
    group->ahead.Clear();
  } else {
    group->ahead.Forget(LastVersionOf(applied));
  }
  checkpoint_requested_ = true;  // only then can it serve images itself
}

// --- Recovery ---------------------------------------------------------------------------------

Status EngineImpl::ReplayInstall(const RecordView& view, const Placement& placement) {
  HYDRA_ASSIGN_OR_RETURN(const InstallRecord record, DecodeInstall(view));
  Group* group = FindGroup(record.group);
  if (group == nullptr) return Status::Ok();  // dropped since
  std::string state;
  if (record.action == InstallAction::kBegin) {
    HYDRA_RETURN_IF_ERROR(ReplayStable(record.group, record.instance));
  } else if (record.action == InstallAction::kFinish) {
    bool readable = true;
    if (record.state_bytes > 0) {
      Buffer pages = Buffer::Allocate(record.state_bytes);
      readable = ReadPagesDirect(*volume_->table(), placement.segment, placement.payload_page,
                                 pages.span())
                     .ok() &&
                 Crc32c(pages.span()) == record.state_crc;
      state.assign(reinterpret_cast<const char*>(pages.data()), record.state_bytes);
    }
    if (!group->install.active() || group->install.restart || !readable) {
      HYDRA_LOG_ERROR("group {}: the install up to {} has lost a part to rot; it has to start over",
                      record.group, record.instance);
      group->install.dirty = true;
      VoidInstall(&group->install);
      // It made them superfluous, chosen or not; what is said to be applied from now on is what it
      // brought.
      for (auto& [instance, entry] : group->live) {
        if (instance <= record.instance) entry->doubtful = true;
      }
      return Status::Ok();
    }
  }
  ApplyInstallRecord(group, record, std::move(state));
  // Entries that it built upon are lost: what it left out, because it was here, is not here.
  if (record.action == InstallAction::kBegin && group->stable < record.instance) {
    VoidInstall(&group->install);
  }
  return Status::Ok();
}

Status EngineImpl::ReplayChunk(const RecordView& view, const Placement& placement) {
  HYDRA_ASSIGN_OR_RETURN(const ChunkRecord record, DecodeChunk(view));
  Group* group = FindGroup(record.group);
  if (group == nullptr) return Status::Ok();  // dropped since
  if (record.block_pages != group->block_pages) {
    return Status::Corruption("a chunk record in blocks of another size than its group's");
  }
  ApplyChunk(group, record, placement);
  return Status::Ok();
}

// Which rows of the map are newer than the install's floor, or than what is applied: the change
// index knows.
Status EngineImpl::LoadAheadRows(Group* group) {
  const Version floor =
      LastVersionOf(group->install.active() ? group->install.floor : group->applied);
  Status bad;
  HYDRA_RETURN_IF_ERROR(
      store_->Scan(ChangeKey(group->id, floor + 1, 0), TagPrefix(group->id, 'v'),
                   [&](std::string_view key, std::string_view value) {
                     const auto change = ParseMapKey(key);
                     if (!change || value.size() != 1) {
                       bad = Status::Corruption("malformed change row in the map");
                       return false;
                     }
                     if (static_cast<ChangeKind>(value[0]) == ChangeKind::kExtent) {
                       group->ahead.NoteExtent(change->second, change->first);
                     } else {
                       group->ahead.Note(change->second, change->first);
                     }
                     return true;
                   }));
  return bad;
}

}  // namespace hydra
