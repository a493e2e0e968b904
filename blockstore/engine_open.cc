// SPDX-License-Identifier: Apache-2.0
//
// Creating, opening and recovering a store.
#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <leveldb/write_batch.h>

#include "base/check.h"
#include "base/coding.h"
#include "base/logging.h"
#include "blockstore/engine_impl.h"

namespace hydra {
namespace {

constexpr char kLockName[] = "LOCK";
constexpr char kBallastName[] = "BALLAST";
constexpr char kSegmentsName[] = "segments";
constexpr char kMapName[] = "map";
constexpr size_t kIdentityLimit = 4096;
// Besides the ballast: what LevelDB may need while it compacts.
constexpr uint64_t kMapHeadroom = 16u << 20;

Status EnsureDirectory(FileSystem* fs, const std::string& path) {
  const Status made = fs->CreateDirectory(path);
  return made.code() == Code::kAlreadyExists ? Status::Ok() : made;
}

std::string ParentOf(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

Result<std::unique_ptr<FileLock>> LockStore(FileSystem* fs, const std::string& dir) {
  auto lock = fs->Lock(dir + "/" + kLockName);
  if (lock.status().code() == Code::kBusy) {
    return Status::Busy(fmt::format(
        "{} is in use by another process; stop it first, or give each node a directory of its own",
        dir));
  }
  return lock;
}

MapStore::Options MapOptions(const EngineOptions& options, bool create) {
  MapStore::Options map;
  map.fs = options.fs;
  map.dir = options.dir + "/" + kMapName;
  map.inline_compactions = options.inline_map;
  map.write_buffer = options.map_write_buffer;
  map.cache = options.map_cache;
  map.create = create;
  return map;
}

// The state of the layers above is stored behind the instance it belongs to.
std::string PackState(Instance at, const std::string& state) {
  std::string packed;
  PutVarint64(&packed, at);
  return packed + state;
}

}  // namespace

std::string RecoveryReport::ToString() const {
  return fmt::format("{} batches with {} records replayed, {} entries applied{}{}{}{}", batches,
                     records, applied, torn ? ", an unfinished last batch cut" : "",
                     payload_rotten ? ", payload of the last batch unreadable" : "",
                     gaps > 0 ? fmt::format(", {} GAPS in the stream (rot)", gaps) : "",
                     faulty > 0 ? fmt::format(", {} accepted entries unreadable", faulty) : "");
}

Status Engine::Create(FileSystem* fs, const std::string& dir, const CreateOptions& options) {
  HYDRA_RETURN_IF_ERROR(ValidateSegmentBytes(options.segment_bytes));
  if (options.node == 0 || options.node > 65'535) {
    return Status::InvalidArgument(fmt::format("node id {}: use 1 to 65535", options.node));
  }
  HYDRA_RETURN_IF_ERROR(EnsureDirectory(fs, dir));
  if (fs->Exists(dir + "/" + kIdentityName)) {
    return Status::AlreadyExists(
        fmt::format("{} holds a store already; open it, or choose another directory", dir));
  }
  HYDRA_ASSIGN_OR_RETURN(const auto names, fs->List(dir));
  for (const std::string& name : names) {
    // What an interrupted creation may have left.
    if (name != kLockName && name != kSegmentsName && name != kMapName &&
        !name.starts_with(kIdentityName)) {
      return Status::FailedPrecondition(fmt::format(
          "{} is not empty (it has {}); choose an empty directory for the store", dir, name));
    }
  }
  HYDRA_ASSIGN_OR_RETURN(const auto lock, LockStore(fs, dir));
  HYDRA_RETURN_IF_ERROR(EnsureDirectory(fs, dir + "/" + kSegmentsName));
  HYDRA_RETURN_IF_ERROR(EnsureDirectory(fs, dir + "/" + kMapName));
  HYDRA_ASSIGN_OR_RETURN(const auto segments, fs->List(dir + "/" + kSegmentsName));
  if (!segments.empty()) {
    return Status::FailedPrecondition(fmt::format(
        "{}/{} is not empty: a store whose IDENTITY was lost? Choose an empty directory", dir,
        kSegmentsName));
  }
  {
    EngineOptions engine;
    engine.fs = fs;
    engine.dir = dir;
    engine.inline_map = true;  // one small write; no thread needed
    HYDRA_ASSIGN_OR_RETURN(auto store, MapStore::Open(MapOptions(engine, true)));
    leveldb::WriteBatch batch;
    batch.Put(CheckpointKey(), EncodeCheckpointRow({}));
    HYDRA_RETURN_IF_ERROR(store->Write(&batch));
  }
  HYDRA_RETURN_IF_ERROR(fs->SyncDirectory(dir));
  HYDRA_RETURN_IF_ERROR(fs->SyncDirectory(ParentOf(dir)));
  StoreIdentity identity;
  identity.store = options.store.value_or(Uuid::Random());
  identity.cluster = options.cluster;
  identity.node = options.node;
  identity.segment_bytes = options.segment_bytes;
  return fs->ReplaceFile(dir, kIdentityName, EncodeIdentity(identity));
}

Result<std::unique_ptr<Engine>> Engine::Open(const EngineOptions& options,
                                             std::optional<Uuid> cluster) {
  FileSystem* fs = options.fs;
  const std::string& dir = options.dir;
  auto text = fs->ReadSmallFile(dir + "/" + kIdentityName, kIdentityLimit);
  if (text.status().code() == Code::kNotFound) {
    return Status::NotFound(
        fmt::format("{} is not a Hydra store (it has no IDENTITY); create one there first", dir));
  }
  if (text.status().code() == Code::kOutOfRange) return ParseIdentity("").status();
  HYDRA_RETURN_IF_ERROR(text.status().WithContext("open the store"));
  auto identity = ParseIdentity(*text);
  if (!identity.ok()) return identity.status().WithContext(dir);
  if (cluster && *cluster != identity->cluster) {
    return Status::FailedPrecondition(fmt::format(
        "{} belongs to cluster {}, not to {}: give this node the directory it had, or an empty one",
        dir, identity->cluster.ToString(), cluster->ToString()));
  }
  if (options.overlay_rows == 0 || options.checkpoint_batches == 0 || options.queue_records == 0 ||
      options.queue_bytes == 0) {
    return Status::InvalidArgument(
        "overlay_rows, checkpoint_batches, queue_records and queue_bytes must not be 0");
  }
  HYDRA_ASSIGN_OR_RETURN(auto lock, LockStore(fs, dir));
  auto engine = std::make_unique<EngineImpl>(options, *identity, std::move(lock));
  HYDRA_RETURN_IF_ERROR(engine->Recover());
  return std::unique_ptr<Engine>(std::move(engine));
}

EngineImpl::EngineImpl(const EngineOptions& options, StoreIdentity identity,
                       std::unique_ptr<FileLock> lock)
    : options_(options), identity_(std::move(identity)), lock_(std::move(lock)) {}

EngineImpl::~EngineImpl() = default;

Status EngineImpl::Recover() {
  if (!options_.fs->Exists(options_.dir + "/" + kMapName)) {
    return Status::Corruption(fmt::format(
        "{}/{} is missing: the block map is lost, and with it this replica. Replace this node",
        options_.dir, kMapName));
  }
  MapStore::Options map_options = MapOptions(options_, false);
  map_options.make_room = [this] { ReleaseBallast(); };
  auto map = MapStore::Open(map_options);
  HYDRA_RETURN_IF_ERROR(map.status());
  store_ = std::move(map).value();
  PhysicalVolume::Options volume;
  volume.fs = options_.fs;
  volume.dir = options_.dir + "/" + kSegmentsName;
  volume.store = identity_.store;
  volume.segment_bytes = identity_.segment_bytes;
  volume.capacity_bytes = options_.capacity_bytes;
  volume.reserve_segments = options_.reserve_segments;
  volume.spare_segments = options_.spare_segments;
  volume.idle_spare_bytes = options_.idle_spare_bytes;
  volume.queue_bytes = options_.queue_bytes;
  volume.queue_records = options_.queue_records;
  volume.seal_after = options_.seal_after;
  if (options_.ballast_bytes != 0) {
    // Segments never give way while they are full, so they leave what a checkpoint of a full
    // overlay needs.
    volume.keep_free_bytes =
        std::max(options_.ballast_bytes + kMapHeadroom, CheckpointBytes(2 * options_.overlay_rows));
  }
  HYDRA_ASSIGN_OR_RETURN(volume_, PhysicalVolume::Open(volume));
  volume_->SetSealNote([this] { return SealNote(); });
  map_ = std::make_unique<BlockMap>(store_.get(), volume_.get(), options_.map_cached_rows);

  CheckpointRow row;
  std::optional<IntentRow> intent;
  HYDRA_RETURN_IF_ERROR(LoadCheckpoint(&row, &intent));
  replay_from_ = row.position.next_batch;
  HYDRA_RETURN_IF_ERROR(volume_->Recover(row.position, row.highest_segment, this, &report_));
  if (intent && intent->id > row.id) {
    // A checkpoint was cut short: some of its rows are in the map. All it was to cover is durable
    // in the stream, so apply that far, and the rest of its rows are in the overlay.
    for (const auto& [id, applied] : intent->applied) {
      HYDRA_RETURN_IF_ERROR(ReplayStable(id, applied));
      // Unless rot took a part of it: then blocks are newer than what can be applied here, as after
      // an install.
      Group* group = FindGroup(id);
      if (group == nullptr || group->stable >= applied) continue;
      group->mixed_until = std::max(group->mixed_until, applied);
      group->overlay_from = std::max(group->overlay_from, applied);
      HYDRA_RETURN_IF_ERROR(LoadAheadRows(group));
    }
    checkpoint_id_ = std::max(checkpoint_id_, intent->id);
  }
  VerifyOpenEntries();
  for (auto& [id, group] : groups_) {
    group.applied = group.stable;
    group.noted_stable = 0;
    for (const auto& [instance, entry] : group.live) report_.faulty += entry->faulty ? 1 : 0;
  }
  EnsureBallast();
  // A new store is to be written to at once; later, jobs keep spares ahead.
  while (volume_->segments().empty() && volume_->spares() <= options_.reserve_segments) {
    auto spare = volume_->NextSpareJob();
    if (spare == nullptr) break;  // no room: writes will be refused, and say so
    spare->Run();
    HYDRA_RETURN_IF_ERROR(volume_->FinishSpareJob(spare.get()));
  }
  HYDRA_LOG_INFO("{}: {}", options_.dir, report_.ToString());
  return Status::Ok();
}

Status EngineImpl::LoadCheckpoint(CheckpointRow* row, std::optional<IntentRow>* intent) {
  auto value = store_->Get(CheckpointKey());
  if (value.status().code() == Code::kNotFound) {
    return Status::Corruption(
        "the block map has no checkpoint row: it was lost or replaced. Replace this node");
  }
  HYDRA_RETURN_IF_ERROR(value.status());
  HYDRA_ASSIGN_OR_RETURN(*row, ParseCheckpointRow(*value));
  checkpoint_id_ = row->id;
  auto planned = store_->Get(IntentKey());
  if (planned.ok()) {
    HYDRA_ASSIGN_OR_RETURN(*intent, ParseIntentRow(*planned));
  } else if (planned.status().code() != Code::kNotFound) {
    return planned.status();
  }

  const std::string dropped = TagPrefix(kNodeGroup, 'd');
  HYDRA_RETURN_IF_ERROR(
      store_->Scan(dropped, dropped, [&](std::string_view key, std::string_view value) {
        const auto parsed = ParseMapKey(key);
        if (!parsed) return true;
        const auto group = static_cast<GroupId>(parsed->first);
        dropped_.insert(group);
        if (value.empty() || value[0] == 0) dropped_before_.push_back(group);
        return true;
      }));

  // One seek per group: behind a group's meta row, go to the next group.
  GroupId next = 0;
  while (next != kNodeGroup) {
    std::optional<GroupId> found;
    HYDRA_RETURN_IF_ERROR(
        store_->Scan(GroupPrefix(next), "", [&](std::string_view key, std::string_view) {
          const auto parsed = ParseMapKey(key);
          found = parsed ? parsed->group : kNodeGroup;
          return false;
        }));
    if (!found || *found == kNodeGroup) break;
    auto meta_row = store_->Get(GroupMetaKey(*found));
    if (meta_row.ok()) {
      HYDRA_ASSIGN_OR_RETURN(const GroupMeta meta, ParseGroupMeta(*meta_row));
      HYDRA_RETURN_IF_ERROR(LoadGroup(*found, meta));
    } else if (meta_row.status().code() != Code::kNotFound) {
      return meta_row.status();
    }
    next = *found + 1;
  }
  return Status::Ok();
}

Status EngineImpl::LoadGroup(GroupId id, const GroupMeta& meta) {
  Group& group = groups_[id];
  group.id = id;
  group.block_pages = meta.block_pages;
  group.promised = meta.promised;
  group.opaque = meta.opaque;
  group.stable = group.applied = group.checkpointed = meta.applied;
  group.horizon = group.durable_horizon = meta.horizon;
  group.suspect = meta.suspect;
  // `halted` is not taken over: this build may know what the last one did not.
  // Entries before the replay position are not indexed again; those that peers may still need
  // travel as a delta.
  group.log.Truncate(meta.applied);
  Decoder state(AsBytes(meta.state));
  if (!meta.state.empty()) {
    if (!state.Varint64(&group.state_at)) return Status::Corruption("malformed group state");
    group.state = meta.state.substr(state.position());
  }
  HYDRA_RETURN_IF_ERROR(map_->LoadGroup(id, meta.block_pages));
  group.install = meta.install;
  group.mixed_until = group.overlay_from = meta.mixed_until;
  if (group.mixed_until > group.applied) HYDRA_RETURN_IF_ERROR(LoadAheadRows(&group));
  for (const OpenEntry& open : meta.open) HYDRA_RETURN_IF_ERROR(LoadOpenEntry(&group, open));
  return Status::Ok();
}

// An entry accepted before the checkpoint and not applied by it. If its record cannot be read, it
// is faulty, not absent: the replica remembers that it accepted something in that ballot.
Status EngineImpl::LoadOpenEntry(Group* group, const OpenEntry& open) {
  auto entry = std::make_shared<LiveEntry>();
  entry->instance = open.instance;
  entry->ballot = open.ballot;
  entry->placement = open.placement;
  entry->durable = true;
  entry->faulty = true;
  auto batch = ReadBatchHeader(identity_.store, *volume_->table(), volume_->segment_pages(),
                               open.placement.segment, open.placement.batch_page);
  for (size_t i = 0; batch.ok() && i < batch->records.size(); ++i) {
    if (batch->records[i].offset != open.placement.record_offset) continue;
    auto record = DecodeAccept(batch->records[i]);
    if (record.status().code() == Code::kUnsupported) return record.status();
    if (!record.ok() || record->instance != open.instance || record->ballot != open.ballot) break;
    entry->entry = std::make_shared<const Entry>(std::move(record->entry));
    entry->understood = record->understood;
    entry->placement.payload_page = batch->PayloadPage(i);
    entry->faulty = false;
  }
  group->live[open.instance] = entry;
  IndexEntry(group, *entry);
  return Status::Ok();
}

// --- Replay -----------------------------------------------------------------------------------

Status EngineImpl::OnGap(uint64_t from, uint64_t to) {
  ++report_.gaps;
  for (auto& [id, group] : groups_) {
    group.suspect = true;
    if (group.install.active()) {
      group.install.dirty = true;  // a chunk may have been there
      VoidInstall(&group.install);
    }
    for (auto& [instance, entry] : group.live) entry->doubtful = true;
  }
  HYDRA_LOG_ERROR("batches {} to {} are lost: {} groups will not vote until readmitted", from,
                  to - 1, groups_.size());
  return Status::Ok();
}

Status EngineImpl::OnBatch(const ScannedBatch& batch, const StreamPosition&) {
  ++report_.batches;
  if (Segment* segment = volume_->Find(batch.header.segment)) {
    segment->used_pages =
        std::min(segment->used_pages + batch.header.payload_pages, volume_->segment_pages());
  }
  for (size_t i = 0; i < batch.records.size(); ++i) {
    ++report_.records;
    HYDRA_RETURN_IF_ERROR(ReplayRecord(batch, i));
  }
  return Status::Ok();
}

Status EngineImpl::ReplayRecord(const ScannedBatch& batch, size_t index) {
  const RecordView& view = batch.records[index];
  const Placement placement{batch.header.segment, batch.header.page, view.offset,
                            batch.PayloadPage(index)};
  switch (static_cast<RecordType>(view.type)) {
    case RecordType::kAccept: return ReplayAccept(view, placement, batch.header.lane);
    case RecordType::kHardState: {
      HYDRA_ASSIGN_OR_RETURN(HardStateRecord record, DecodeHardState(view));
      if (Group* group = FindGroup(record.group)) {
        group->promised = record.promised;
        group->opaque = std::move(record.opaque);
      }
      return Status::Ok();
    }
    case RecordType::kTruncate: {
      HYDRA_ASSIGN_OR_RETURN(const TruncateRecord record, DecodeTruncate(view));
      if (Group* group = FindGroup(record.group)) {
        HYDRA_RETURN_IF_ERROR(ReplayStable(record.group, record.instance));
        group->log.Truncate(std::min(record.instance, group->stable));
      }
      return Status::Ok();
    }
    case RecordType::kCheckpoint: return DecodeCheckpoint(view).status();
    case RecordType::kRelocate: {
      HYDRA_ASSIGN_OR_RETURN(const RelocateRecord record, DecodeRelocate(view));
      const Reference copy{placement.segment, placement.payload_page, record.old_reference.crc};
      return map_->Relocate(record, copy, false).status();
    }
    case RecordType::kGroup: {
      HYDRA_ASSIGN_OR_RETURN(const GroupRecord record, DecodeGroup(view));
      return ReplayGroup(record);
    }
    case RecordType::kStable: {
      HYDRA_ASSIGN_OR_RETURN(const StableRecord record, DecodeStable(view));
      for (const auto& [group, stable] : record.groups) {
        HYDRA_RETURN_IF_ERROR(ReplayStable(group, stable));
      }
      return Status::Ok();
    }
    case RecordType::kInstall: return ReplayInstall(view, placement);
    case RecordType::kChunk: return ReplayChunk(view, placement);
  }
  return Status::Unsupported(
      fmt::format("the stream has a record of type {}, which this build does not know: it was "
                  "written by a newer Hydra; upgrade this node",
                  view.type));
}

Status EngineImpl::ReplayAccept(const RecordView& view, const Placement& placement, uint32_t lane) {
  HYDRA_ASSIGN_OR_RETURN(AcceptRecord record, DecodeAccept(view));
  Group* group = FindGroup(record.group);
  if (group == nullptr) return Status::Ok();  // dropped since
  // What the record knew to be stable is older than the record itself.
  HYDRA_RETURN_IF_ERROR(ReplayStable(record.group, record.stable));
  if (record.instance <= group->stable) return Status::Ok();
  const auto existing = group->live.find(record.instance);
  if (existing == group->live.end() && !group->MayBeOpen(record.instance)) {
    // Only behind something that cannot be applied. The memory is bounded; the group catches up
    // from its peers.
    group->suspect = true;
    return Status::Ok();
  }
  // Vacuum may have moved a record that a higher ballot had replaced by then.
  if (existing != group->live.end() && record.ballot < existing->second->ballot) {
    return Status::Ok();
  }
  auto entry = std::make_shared<LiveEntry>();
  if (lane == kRelocationLane) {
    // What vacuum moved was accepted before, so the copy takes no doubt away; and behind a gap,
    // nobody knows what was accepted in it since.
    const bool here = existing != group->live.end() && existing->second->ballot == record.ballot;
    entry->doubtful = here ? existing->second->doubtful : report_.gaps > 0;
  }
  entry->instance = record.instance;
  entry->ballot = record.ballot;
  entry->entry = std::make_shared<const Entry>(std::move(record.entry));
  entry->understood = record.understood;
  entry->placement = placement;
  entry->durable = true;
  group->live[record.instance] = entry;
  IndexEntry(group, *entry);
  return Status::Ok();
}

Status EngineImpl::ReplayGroup(const GroupRecord& record) {
  if (record.action == GroupAction::kDrop) {
    DropGroupState(record.group);
    return Status::Ok();
  }
  if (groups_.contains(record.group) || dropped_.contains(record.group)) return Status::Ok();
  Group& group = groups_[record.group];
  group.id = record.group;
  group.block_pages = record.block_pages;
  group.suspect = report_.gaps > 0;
  map_->AddGroup(record.group, record.block_pages);
  return Status::Ok();
}

// Applies what is known to have been chosen and durable, as far as the records are there.
Status EngineImpl::ReplayStable(GroupId id, Instance stable) {
  Group* group = FindGroup(id);
  if (group == nullptr) return Status::Ok();
  while (group->stable < stable) {
    const auto next = group->live.find(group->stable + 1);
    if (next == group->live.end() || next->second->faulty || next->second->doubtful) break;
    if (!next->second->understood) {
      if (std::exchange(group->halted, true)) break;  // it was said
      HYDRA_LOG_ERROR(
          "group {}: instance {} holds an operation of a newer Hydra: upgrade this node", id,
          next->first);
      break;
    }
    group->waiting.push_back(next->second);
    FoldStable(group);
    ++report_.applied;
  }
  return Status::Ok();
}

// --- Ballast ----------------------------------------------------------------------------------

void EngineImpl::EnsureBallast() {
  if (options_.ballast_bytes == 0) return;
  const std::lock_guard lock(ballast_mutex_);
  const std::string path = options_.dir + "/" + kBallastName;
  auto free = options_.fs->FreeBytes(options_.dir);
  if (!free.ok() || *free < 4 * options_.ballast_bytes) return;
  auto file = options_.fs->Open(path, {.create = true});
  // One that is whole already stays as it is; a crash may have left a part.
  const Status made = file.ok() ? (*file)->Allocate(options_.ballast_bytes) : file.status();
  ballast_released_ = !made.ok();
  if (!made.ok()) HYDRA_LOG_WARN("no ballast file: {}", made.ToString());
}

void EngineImpl::ReleaseBallast() {
  const std::string path = options_.dir + "/" + kBallastName;
  if (options_.ballast_bytes == 0) return;
  const std::lock_guard lock(ballast_mutex_);
  if (!options_.fs->Exists(path)) return;
  ballast_released_ = true;
  HYDRA_LOG_WARN("the disk is nearly full: releasing the ballast so that checkpoints go on");
  // If it fails, whoever needs the space is refused it.
  options_.fs->Unlink(path).IgnoreError();
}

// --- Closing ----------------------------------------------------------------------------------

GroupMeta EngineImpl::MetaOf(Group* group) {
  GroupMeta meta;
  meta.block_pages = group->block_pages;
  meta.suspect = group->suspect;
  meta.halted = group->halted;
  meta.applied = group->stable;
  meta.truncated = group->log.truncated();
  meta.promised = group->promised;
  meta.opaque = group->opaque;
  const Instance retention = options_.change_retention;
  if (retention != 0 && group->stable > retention) {
    group->horizon = std::max(group->horizon, MakeVersion(group->stable - retention + 1, 0) - 1);
  }
  meta.horizon = group->horizon;
  const bool ask = state_source_ && !group->state_installed;
  group->next_state = ask ? state_source_(group->id) : group->state;
  group->next_state_at = ask ? group->stable : group->state_at;
  if (!group->next_state.empty()) {
    meta.state = PackState(group->next_state_at, group->next_state);
  }
  meta.install = group->install;
  meta.mixed_until = group->mixed_until;
  for (const auto& [instance, entry] : group->live) {
    // The durable record of the instance: `entry` itself may be a newer one that is still queued.
    const LogIndex::Slot* slot = group->log.Find(instance);
    if (slot == nullptr) continue;
    meta.open.push_back({instance, slot->ballot, slot->faulty,
                         Placement{slot->segment, slot->batch_page, slot->record_offset, 0}});
  }
  return meta;
}

Status EngineImpl::Close() {
  HYDRA_RETURN_IF_ERROR(poisoned_);
  if (checkpoint_running_ || vacuum_.job_running) {
    return Status::Busy("a job is running; finish it first");
  }
  vacuum_enabled_ = false;
  HYDRA_RETURN_IF_ERROR(Drain(nullptr));
  // Seal, so that rot of the last batch can never look like a tear.
  const auto due = volume_->SealDue();
  if (due) {
    if (Batch* batch = NextBatch(*due)) {
      std::vector<Completion> none;
      BatchDone(batch, batch->Write(), *due, &none);
    }
  }
  HYDRA_RETURN_IF_ERROR(poisoned_);
  const Status checkpointed = CheckpointNow(true);
  if (checkpointed.code() == Code::kNoSpace) {
    return Status::Unavailable("the last checkpoint found no room on the disk");
  }
  HYDRA_RETURN_IF_ERROR(checkpointed);
  store_->Settle();
  return Status::Ok();
}

}  // namespace hydra
