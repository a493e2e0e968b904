// SPDX-License-Identifier: Apache-2.0
//
// Records in, batches out. Durable before said: a token is completed, and the engine's own idea of
// the log and the hard state changes, only in BatchDone.
#include <algorithm>

#include <fmt/format.h>

#include "base/check.h"
#include "base/logging.h"
#include "blockstore/engine_impl.h"
#include "blockstore/payload.h"

namespace hydra {
namespace {

// What the layers above may put into one hard state or one operation.
constexpr size_t kMaxOpaqueBytes = 16u << 10;

}  // namespace

Group* EngineImpl::FindGroup(GroupId id) {
  const auto found = groups_.find(id);
  return found == groups_.end() ? nullptr : &found->second;
}

Result<Group*> EngineImpl::Usable(GroupId id) {
  HYDRA_RETURN_IF_ERROR(poisoned_);
  Group* group = FindGroup(id);
  if (group == nullptr) return Status::NotFound(fmt::format("no group {} on this node", id));
  return group;
}

Status EngineImpl::Poison(const Status& cause, std::string_view why) {
  if (poisoned_.ok()) {
    poisoned_ = Status::Poisoned(fmt::format(
        "the store stopped because {} ({}). Nothing acknowledged is lost, but nothing more can be "
        "trusted to this disk: restart the node, and replace the disk if it fails again",
        why, cause.ToString()));
    HYDRA_LOG_ERROR("{}: {}", options_.dir, poisoned_.ToString());
  }
  return poisoned_;
}

uint64_t EngineImpl::Queue(Urgency urgency, PendingRecord&& pending, std::string record,
                           Payload payload) {
  if (free_cookies_.empty()) {
    pending_.emplace_back();
    free_cookies_.push_back(pending_.size());
  }
  const uint64_t cookie = free_cookies_.back();
  free_cookies_.pop_back();
  const GroupId flow = pending.group;
  pending.sequence = ++queued_;
  pending_[cookie - 1] = std::move(pending);
  volume_->Enqueue(urgency, flow, std::move(record), std::move(payload), cookie);
  return cookie;
}

Status EngineImpl::CreateGroup(GroupId id, uint32_t block_pages, uint64_t token) {
  HYDRA_RETURN_IF_ERROR(poisoned_);
  if (id == kNodeGroup) return Status::InvalidArgument("this group id is reserved");
  if (block_pages == 0 || block_pages > kMaxBlockPages || kExtentPages % block_pages != 0) {
    return Status::InvalidArgument(
        fmt::format("blocks of {} pages: use 1, 2, 4, 8 or 16 (4 to 64 KiB)", block_pages));
  }
  if (groups_.contains(id)) return Status::AlreadyExists(fmt::format("group {} exists", id));
  if (dropped_.contains(id)) {
    return Status::FailedPrecondition(
        fmt::format("group {} was dropped; ids are never used again", id));
  }
  std::string record = Encode(GroupRecord{id, GroupAction::kCreate, block_pages});
  HYDRA_RETURN_IF_ERROR(volume_->CheckRoom(Urgency::kHardState, record.size(), 0));
  Group& group = groups_[id];
  group.id = id;
  group.block_pages = block_pages;
  // It may have existed: its records, this one's predecessor included, may lie in the gap.
  group.suspect = report_.gaps > 0;
  map_->AddGroup(id, block_pages);
  PendingRecord pending;
  pending.type = RecordType::kGroup;
  pending.group = id;
  pending.token = token;
  Queue(Urgency::kHardState, std::move(pending), std::move(record), {});
  return Status::Ok();
}

Status EngineImpl::DropGroup(GroupId id, uint64_t token) {
  HYDRA_RETURN_IF_ERROR(Usable(id).status());
  std::string record = Encode(GroupRecord{id, GroupAction::kDrop, 1});
  HYDRA_RETURN_IF_ERROR(volume_->CheckRoom(Urgency::kHardState, record.size(), 0));
  PendingRecord pending;
  pending.type = RecordType::kGroup;
  pending.group = id;
  pending.token = token;
  pending.action = GroupAction::kDrop;
  Queue(Urgency::kHardState, std::move(pending), std::move(record), {});
  return Status::Ok();
}

Status EngineImpl::Accept(GroupId id, Instance instance, const Ballot& ballot, Entry entry,
                          Payload payload, uint64_t token) {
  return AcceptShared(id, instance, ballot, std::make_shared<const Entry>(std::move(entry)),
                      std::move(payload), token);
}

Status EngineImpl::AcceptShared(GroupId id, Instance instance, const Ballot& ballot,
                                std::shared_ptr<const Entry> entry, Payload payload,
                                uint64_t token) {
  HYDRA_ASSIGN_OR_RETURN(Group * group, Usable(id));
  if (instance == 0 || instance > kMaxInstance) {
    return Status::InvalidArgument(fmt::format("instance {}: use 1 to 2^48 - 1", instance));
  }
  if (instance <= group->applied) {
    return Status::FailedPrecondition(fmt::format(
        "instance {} of group {} is applied already (up to {})", instance, id, group->applied));
  }
  if (!group->MayBeOpen(instance)) {
    return Status::FailedPrecondition(
        fmt::format("instance {} of group {} is more than {} beyond what is applied ({}); catch up "
                    "first",
                    instance, id, kMaxOpenInstances, group->stable));
  }
  const auto existing = group->live.find(instance);
  if (existing != group->live.end() && ballot < existing->second->ballot) {
    return Status::FailedPrecondition(
        fmt::format("instance {} of group {} was accepted in a higher ballot", instance, id));
  }
  // What is open up to there is what the chunk finds payload in. A record that is to take the place
  // of a durable one would hide it.
  if (instance <= group->chunk_as_of) {
    return Status::Busy(fmt::format(
        "group {}: a chunk that leads to instance {} is not durable yet", id, group->chunk_as_of));
  }
  HYDRA_RETURN_IF_ERROR(ValidateEntry(*entry, group->block_pages));
  for (const Operation& op : entry->operations) {
    if (op.context.size() > kMaxOpaqueBytes) {
      return Status::InvalidArgument(fmt::format("an operation's context of {} bytes; at most {}",
                                                 op.context.size(), kMaxOpaqueBytes));
    }
  }
  std::string record = EncodeAccept(id, instance, ballot, group->stable, *entry);
  const uint32_t pages = entry->PayloadPages();
  // A new master proposes again what is here already: that needs no more space in the end.
  const LogIndex::Slot* before = group->log.Find(instance);
  const Urgency room = use_reserve_.contains(id) ? Urgency::kInstall : Urgency::kLog;
  HYDRA_RETURN_IF_ERROR(volume_->CheckRoom(room, record.size(), pages,
                                           before == nullptr ? 0 : before->payload_pages));
  HYDRA_RETURN_IF_ERROR(CheckEntryPayload(*entry, payload, group->block_pages));

  auto live = std::make_shared<LiveEntry>();
  live->instance = instance;
  live->ballot = ballot;
  live->entry = std::move(entry);
  live->payload = payload;
  group->live[instance] = live;
  group->noted_stable = std::max(group->noted_stable, group->stable);
  payload_bytes_ += uint64_t{pages} * kPageSize;
  PendingRecord pending;
  pending.type = RecordType::kAccept;
  pending.group = id;
  pending.token = token;
  pending.entry = std::move(live);
  Queue(Urgency::kLog, std::move(pending), std::move(record), std::move(payload));
  return Status::Ok();
}

Status EngineImpl::SaveHardState(GroupId id, const Ballot& promised, std::string opaque,
                                 uint64_t token) {
  HYDRA_RETURN_IF_ERROR(Usable(id).status());
  if (opaque.size() > kMaxOpaqueBytes) {
    return Status::InvalidArgument(
        fmt::format("a hard state of {} bytes; at most {}", opaque.size(), kMaxOpaqueBytes));
  }
  PendingRecord pending;
  pending.type = RecordType::kHardState;
  pending.group = id;
  pending.token = token;
  pending.hard_state = {id, promised, std::move(opaque)};
  std::string record = Encode(pending.hard_state);
  HYDRA_RETURN_IF_ERROR(volume_->CheckRoom(Urgency::kHardState, record.size(), 0));
  Queue(Urgency::kHardState, std::move(pending), std::move(record), {});
  return Status::Ok();
}

Status EngineImpl::TruncateLog(GroupId id, Instance instance, uint64_t token) {
  HYDRA_ASSIGN_OR_RETURN(Group * group, Usable(id));
  if (instance > group->stable) {
    return Status::FailedPrecondition(
        fmt::format("group {}: cannot truncate up to {}, only {} is applied and durable", id,
                    instance, group->stable));
  }
  if (state_source_ && instance > group->state_at) {
    return Status::FailedPrecondition(
        fmt::format("group {}: cannot truncate up to {}, the state in the last checkpoint is that "
                    "at {}; checkpoint first",
                    id, instance, group->state_at));
  }
  std::string record = Encode(TruncateRecord{id, instance});
  HYDRA_RETURN_IF_ERROR(volume_->CheckRoom(Urgency::kHardState, record.size(), 0));
  PendingRecord pending;
  pending.type = RecordType::kTruncate;
  pending.group = id;
  pending.token = token;
  pending.instance = instance;
  Queue(Urgency::kHardState, std::move(pending), std::move(record), {});
  return Status::Ok();
}

Status EngineImpl::Readmit(GroupId id) {
  HYDRA_ASSIGN_OR_RETURN(Group * group, Usable(id));
  group->suspect = false;
  // Durable with the next checkpoint; until then a restart finds the gap, and the doubt, again.
  checkpoint_requested_ = true;
  return Status::Ok();
}

// --- The writer -------------------------------------------------------------------------------

Batch* EngineImpl::NextBatch(Nanos now) {
  now_ = std::max(now_, now);
  if (!poisoned_.ok()) return nullptr;
  return volume_->NextBatch(now);
}

std::optional<Nanos> EngineImpl::NextDeadline() const {
  return poisoned_.ok() ? volume_->SealDue() : std::nullopt;
}

void EngineImpl::BatchDone(Batch* batch, const Status& written, Nanos now,
                           std::vector<Completion>* completions) {
  if (!written.ok()) {
    (void)Poison(written);
    return;
  }
  if (!poisoned_.ok()) return;
  if (completions != &held_ && !held_.empty()) {
    completions->insert(completions->end(), held_.begin(), held_.end());
    held_.clear();
  }
  std::vector<PhysicalVolume::Placed> placed;
  volume_->BatchDone(batch, now, &placed);
  for (const PhysicalVolume::Placed& record : placed) {
    PendingRecord pending = std::move(pending_[record.cookie - 1]);
    free_cookies_.push_back(record.cookie);
    if (pending.sequence <= purge_.barrier) --purge_.awaited;
    Complete(std::move(pending), record.placement, completions);
  }
}

void EngineImpl::Complete(PendingRecord&& pending, const Placement& placement,
                          std::vector<Completion>* completions) {
  Group* group = FindGroup(pending.group);
  switch (pending.type) {
    case RecordType::kAccept:
      if (group != nullptr) {
        pending.moved ? CompleteMovedAccept(group, pending, placement)
                      : CompleteAccept(pending, placement);
      }
      if (pending.moved) --vacuum_.outstanding;
      break;
    case RecordType::kHardState:
      if (group != nullptr) {
        group->promised = pending.hard_state.promised;
        group->opaque = std::move(pending.hard_state.opaque);
      }
      break;
    case RecordType::kTruncate:
      if (group != nullptr) group->log.Truncate(pending.instance);
      break;
    case RecordType::kRelocate: {
      if (pending.repair) {
        CompleteRepair(pending, placement);
        break;
      }
      const Reference copy{placement.segment, placement.payload_page,
                           pending.relocate.old_reference.crc};
      auto moved = map_->Relocate(pending.relocate, copy, true);
      HYDRA_CHECK(moved.ok());  // asks LevelDB nothing
      --vacuum_.outstanding;
      break;
    }
    case RecordType::kGroup:
      if (pending.action == GroupAction::kDrop) DropGroupState(pending.group);
      break;
    case RecordType::kInstall:
    case RecordType::kChunk:
      if (group != nullptr) CompleteInstall(group, pending, placement);
      break;
    case RecordType::kCheckpoint:
    case RecordType::kStable: break;
  }
  if (pending.report && completions != nullptr) completions->push_back({pending.token});
}

// Enters a durable record into the log, in the place of what was accepted there before.
void EngineImpl::IndexEntry(Group* group, const LiveEntry& entry) {
  if (const LogIndex::Slot* before = group->log.Find(entry.instance)) {
    volume_->RemoveOpen(before->segment, before->payload_pages);
  }
  const uint32_t pages = entry.pages();
  group->log.Put(entry.instance,
                 {entry.ballot, entry.placement.segment, entry.placement.batch_page,
                  entry.placement.record_offset, static_cast<uint16_t>(pages), entry.faulty});
  volume_->AddOpen(entry.placement.segment, pages);
}

void EngineImpl::CompleteAccept(const PendingRecord& pending, const Placement& placement) {
  Group* group = FindGroup(pending.group);
  LiveEntry& entry = *pending.entry;
  entry.placement = placement;
  entry.durable = true;
  entry.payload.clear();  // from here on the disk serves it
  // Superseded and already applied: its pages are dead on arrival.
  if (entry.instance <= group->stable) return;
  IndexEntry(group, entry);
  FoldStable(group);
}

// A record that vacuum copied. It counts only while the original is still the one in force.
void EngineImpl::CompleteMovedAccept(Group* group, const PendingRecord& pending,
                                     const Placement& placement) {
  LiveEntry& entry = *pending.entry;
  entry.moving = false;
  const LogIndex::Slot* slot = group->log.Find(entry.instance);
  if (slot == nullptr || slot->segment != entry.placement.segment ||
      slot->batch_page != entry.placement.batch_page ||
      slot->record_offset != entry.placement.record_offset || entry.instance <= group->stable) {
    return;
  }
  entry.placement = placement;
  IndexEntry(group, entry);
}

void EngineImpl::DropGroupState(GroupId id) {
  if (dropped_.insert(id).second) dropped_now_.push_back(id);
  Group* group = FindGroup(id);
  if (group == nullptr) return;
  for (const auto& [instance, entry] : group->live) {
    if (const LogIndex::Slot* slot = group->log.Find(instance)) {
      volume_->RemoveOpen(slot->segment, slot->payload_pages);
    }
  }
  map_->DropGroup(id);
  groups_.erase(id);
}

// What the stream does not yet say about how far groups have applied: a restart after an idle
// moment then needs no peer to find it out.
std::string EngineImpl::SealNote() {
  // What surely fits one page: two varints of at most 15 bytes together.
  constexpr size_t kMaxGroups = 250;
  StableRecord note;
  for (auto& [id, group] : groups_) {
    if (group.stable <= group.noted_stable || note.groups.size() == kMaxGroups) continue;
    note.groups.emplace_back(id, group.stable);
    group.noted_stable = group.stable;
  }
  return note.groups.empty() ? std::string() : Encode(note);
}

// --- Looking at the log -----------------------------------------------------------------------

Result<GroupInfo> EngineImpl::Info(GroupId id) const {
  const auto found = groups_.find(id);
  if (found == groups_.end()) {
    return Status::NotFound(fmt::format("no group {} on this node", id));
  }
  const Group& group = found->second;
  GroupInfo info;
  info.group = id;
  info.block_pages = group.block_pages;
  info.applied = group.applied;
  info.stable = group.stable;
  info.truncated = group.log.truncated();
  info.last = std::max(group.log.last(), group.stable);
  info.promised = group.promised;
  info.opaque = group.opaque;
  info.state = group.state;
  info.state_at = group.state_at;
  info.suspect = group.suspect;
  info.halted = group.halted;
  info.horizon = group.horizon;
  info.data_blocks = map_->extents(id).data_blocks();
  info.owed_blocks = map_->extents(id).owed_blocks();
  info.installing = group.install.active();
  info.install = group.install;
  info.mixed_until = group.mixed_until;
  return info;
}

std::optional<Instance> EngineImpl::ServesFrom(GroupId id) const {
  const auto found = groups_.find(id);
  if (found == groups_.end() || found->second.install.active()) return std::nullopt;
  return found->second.mixed_until;
}

std::vector<GroupId> EngineImpl::Groups() const {
  std::vector<GroupId> ids;
  for (const auto& [id, group] : groups_) ids.push_back(id);
  return ids;
}

std::vector<LogEntryInfo> EngineImpl::LogEntries(GroupId id, Instance from, Instance to) const {
  std::vector<LogEntryInfo> entries;
  const auto found = groups_.find(id);
  if (found == groups_.end()) return entries;
  found->second.log.ForEach(from, to, [&](Instance instance, const LogIndex::Slot& slot) {
    entries.push_back({instance, slot.ballot, slot.faulty});
  });
  return entries;
}

}  // namespace hydra
