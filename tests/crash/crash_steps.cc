// SPDX-License-Identifier: Apache-2.0
//
// What happens in a life: CrashRun's steps.
#include <algorithm>

#include <fmt/format.h>

#include "tests/crash/crash_run.h"

namespace hydra::test {
namespace {

constexpr size_t kMaxHeldJobs = 3;
constexpr size_t kMaxHeldReads = 4;
constexpr size_t kMaxGroups = 4;
constexpr Instance kWindow = 24;       // instances open at once, per group
constexpr Extent kExtents = 3;         // address space of a group
constexpr uint64_t kLongestRead = 16;  // blocks: an extent of the largest ones

}  // namespace

// Weights make most steps cheap ones; what costs a whole pass over the store is rare.
const std::vector<CrashRun::Step>& CrashRun::Steps() {
  static const std::vector<Step> kSteps = {
      {"propose", 180, &CrashRun::ProposeNext},
      {"propose ahead", 25, &CrashRun::ProposeAhead},
      {"fill a gap", 40, &CrashRun::FillGap},
      {"accept again", 25, &CrashRun::AcceptAgain},
      {"hard state", 25, &CrashRun::SaveHardState},
      {"apply", 150, &CrashRun::ApplySome},
      {"truncate", 10, &CrashRun::TruncateLog},
      {"batch", 260, &CrashRun::MoveBatch},
      {"job", 140, &CrashRun::MoveJob},
      {"run everything", 8, &CrashRun::RunEverything},
      {"checkpoint", 4, &CrashRun::CheckpointNow},
      {"request checkpoint", 8, &CrashRun::RequestCheckpoint},
      {"read", 40, &CrashRun::ReadSome},
      {"plan read", 15, &CrashRun::PlanRead},
      {"finish read", 12, &CrashRun::FinishRead},
      {"check log", 4, &CrashRun::CheckLog},
      {"newest version", 10, &CrashRun::CheckNewestVersion},
      {"create group", 4, &CrashRun::CreateGroup},
      {"drop group", 1, &CrashRun::DropGroup},
      {"scrub", 4, &CrashRun::Scrub},
      {"pass time", 15, &CrashRun::PassTime},
      {"toggle vacuum", 2, &CrashRun::ToggleVacuum},
      {"start install", 3, &CrashRun::StartInstall},
      {"move install", 30, &CrashRun::MoveInstall},
      {"abort install", 1, &CrashRun::AbortInstall},
      {"move peer", 8, &CrashRun::MovePeer},
  };
  return kSteps;
}

// --- Steps: records --------------------------------------------------------------------------

void CrashRun::ProposeNext() {
  const std::optional<GroupId> id = AnyGroup();
  if (!id.has_value()) return;
  const GroupModel& group = store_.model().group(*id);
  if (group.last() >= group.applied + kWindow) return;
  Accept(*id, group.last() + 1, store_.model().NewProposal(group, RandomOperations(group)));
}

void CrashRun::ProposeAhead() {
  const std::optional<GroupId> id = AnyGroup();
  if (!id.has_value()) return;
  const GroupModel& group = store_.model().group(*id);
  if (group.last() >= group.applied + kWindow) return;
  Accept(*id, group.last() + rng_.Between(2, 4),
         store_.model().NewProposal(group, RandomOperations(group)));
}

void CrashRun::FillGap() {
  const std::optional<GroupId> id = AnyGroup();
  if (!id.has_value()) return;
  const GroupModel& group = store_.model().group(*id);
  for (Instance i = group.chosen.size() + 1; i < group.last(); ++i) {
    if (group.Newest(i) != nullptr) continue;
    const bool noop = rng_.Percent(40);
    Accept(*id, i,
           store_.model().NewProposal(
               group, noop ? std::vector<Operation>{Operation()} : RandomOperations(group)));
    return;
  }
}

void CrashRun::AcceptAgain() {
  const std::optional<GroupId> id = AnyGroup();
  if (!id.has_value()) return;
  const GroupModel& group = store_.model().group(*id);
  if (group.last() <= group.applied) return;
  const Instance i = rng_.Between(group.applied + 1, group.last());
  const AcceptState* old = group.Newest(i);
  if (old == nullptr) return;
  if (rng_.Percent(70)) ++BallotOf(*id).round;
  // In a ballot there is one value; another value, or none, may follow in a higher one, until one
  // is chosen.
  const bool other = BallotOf(*id) > old->ballot && i > group.chosen.size() && rng_.Percent(60);
  if (other) return Accept(*id, i, store_.model().NewProposal(group, RandomOperations(group)));
  Accept(*id, i, i <= group.chosen.size() ? group.chosen[i - 1] : old->value);
}

void CrashRun::Accept(GroupId id, Instance instance, const Proposal* value) {
  Ballot& ballot = BallotOf(id);
  const AcceptState* old = store_.model().group(id).Newest(instance);
  if (old != nullptr && old->ballot >= ballot && old->value != value) {
    ballot = {old->ballot.round + 1, 1};
  }
  if (old != nullptr) ballot = std::max(ballot, old->ballot);
  const Status status = store_.Accept(id, instance, ballot, value);
  Trace(fmt::format("  {}.{} in ballot {} <- {} ({} operations, {} pages): {}", id, instance,
                    ballot.round, value->id, value->entry.operations.size(),
                    value->entry.PayloadPages(), status.ToString()));
  if (Worked(status, {Code::kBusy, Code::kNoSpace})) return;
  full_ |= status.code() == Code::kNoSpace;
  seen_.no_space += status.code() == Code::kNoSpace;
  seen_.queue_full += status.code() == Code::kBusy;
}

void CrashRun::SaveHardState() {
  const std::optional<GroupId> id = AnyGroup();
  if (!id.has_value()) return;
  Ballot& ballot = BallotOf(*id);
  if (rng_.Percent(60)) ++ballot.round;
  std::string opaque(rng_.Below(40), static_cast<char>('a' + rng_.Below(26)));
  opaque += std::to_string(rng_.Below(1000));
  Trace(fmt::format("  {}: {} {}", *id, ballot.round, opaque));
  Worked(store_.SaveHardState(*id, ballot, std::move(opaque)), {Code::kBusy, Code::kNoSpace});
}

void CrashRun::ApplySome() {
  const std::optional<GroupId> id = AnyGroup();
  if (!id.has_value() || store_.model().group(*id).Installing()) return;
  for (uint64_t n = rng_.Between(1, 8); n > 0; --n) {
    const Status status = store_.Apply(*id);
    if (!Worked(status, {Code::kBusy, Code::kNotFound, Code::kNoSpace})) {
      Trace(fmt::format("  {}: {}", *id, status.ToString()));
      seen_.overlay_full += status.code() == Code::kBusy;
      return;
    }
    Trace(fmt::format("  applied {}.{}", *id, store_.model().group(*id).applied));
  }
}

void CrashRun::TruncateLog() {
  const std::optional<GroupId> id = AnyGroup();
  if (!id.has_value()) return;
  const Result<GroupInfo> info = store_->Info(*id);
  if (!info.ok() || info->state_at <= info->truncated) return;
  const Instance to = rng_.Between(info->truncated + 1, info->state_at);
  Trace(fmt::format("  {}: up to {}", *id, to));
  Worked(store_.Truncate(*id, to), {Code::kBusy, Code::kNoSpace});
}

void CrashRun::CreateGroup() {
  if (store_.model().Usable().size() >= kMaxGroups) return;
  const GroupId id = next_group_;
  const Status status = store_.CreateGroup(id, Pick(&rng_, {1u, 1u, 2u, 16u}));
  Trace(fmt::format("  create {}: {}", id, status.ToString()));
  if (Worked(status, {Code::kBusy, Code::kNoSpace})) ++next_group_;
}

void CrashRun::DropGroup() {
  const std::optional<GroupId> id = AnyGroup();
  if (!id.has_value() || store_.model().Usable().size() < 2) return;
  const Status status = store_.DropGroup(*id);
  Trace(fmt::format("  drop {}: {}", *id, status.ToString()));
  seen_.dropped_groups += Worked(status, {Code::kBusy, Code::kNoSpace});
}

// --- Steps: the writer, jobs, time -----------------------------------------------------------

void CrashRun::MoveBatch() {
  if (batch_ == nullptr) {
    batch_ = store_->NextBatch(store_.clock().Now());
    batch_written_.reset();
    if (batch_ != nullptr && rng_.Percent(60)) MoveBatch();
  } else if (!batch_written_.has_value()) {
    batch_written_ = batch_->Write();
    Trace(fmt::format("  wrote {} bytes: {}", batch_->bytes(), batch_written_->ToString()));
    if (Worked(*batch_written_) && rng_.Percent(60)) MoveBatch();
  } else {
    Trace("  batch done");
    store_.Complete(batch_, *batch_written_);
    batch_ = nullptr;
  }
}

void CrashRun::MoveJob() {
  if (jobs_.empty() || (jobs_.size() < kMaxHeldJobs && rng_.Percent(30))) {
    std::unique_ptr<Job> job = store_->NextJob();
    if (job == nullptr) return;
    Trace(fmt::format("  took {}", job->name()));
    jobs_.push_back({std::move(job), false});
    return;
  }
  const size_t at = rng_.Below(jobs_.size());
  HeldJob& held = jobs_[at];
  Trace(fmt::format("  {} {}", held.ran ? "finish" : "run", held.job->name()));
  if (!held.ran) {
    held.job->Run();
    held.ran = true;
    return;
  }
  store_->FinishJob(std::move(held.job));
  jobs_.erase(jobs_.begin() + static_cast<ptrdiff_t>(at));
}

void CrashRun::LetGo() {
  while (batch_ != nullptr && failure_.empty()) MoveBatch();
  for (HeldJob& held : jobs_) {
    if (!held.ran) held.job->Run();
    store_->FinishJob(std::move(held.job));
  }
  jobs_.clear();
  while (!reads_.empty() && failure_.empty()) FinishRead();
}

void CrashRun::LoseGrip() {
  batch_ = nullptr;
  jobs_.clear();
  reads_.clear();
}

void CrashRun::RunEverything() {
  LetGo();
  if (Worked(store_.RunJobs())) full_ = false;
}

void CrashRun::CheckpointNow() {
  LetGo();
  if (failure_.empty()) Worked(store_.Checkpoint());
}

void CrashRun::RequestCheckpoint() { store_->RequestCheckpoint(); }

void CrashRun::PassTime() {
  store_.clock().Advance(static_cast<Nanos>(rng_.Below(20)) * kMillisecond);
}

void CrashRun::ToggleVacuum() {
  vacuum_ = !vacuum_;
  store_->RequestVacuum(vacuum_);
}

// --- Steps: reading --------------------------------------------------------------------------

void CrashRun::ReadSome() {
  const std::optional<GroupId> id = AnyGroup();
  if (!id.has_value() || store_.model().Mixed(store_.engine(), *id)) return;
  const GroupModel& group = store_.model().group(*id);
  const uint64_t space = kExtents * group.extent_blocks();
  const Lba lba = rng_.Below(space);
  const uint64_t count = 1 + rng_.Below(std::min<uint64_t>(space - lba, kLongestRead));
  Result<std::unique_ptr<ReadJob>> job = store_->PlanRead(*id, lba, count);
  if (!Worked(job.status())) return;
  (*job)->Run();
  std::vector<Lba> owed;
  const Result<ReadResult> read = StoreModel::FinishRead(store_.engine(), std::move(*job), &owed);
  if (Worked(read.status())) Check(StoreModel::CompareRead(group, lba, *read, owed));
}

void CrashRun::PlanRead() {
  const std::optional<GroupId> id = AnyGroup();
  if (!id.has_value() || reads_.size() >= kMaxHeldReads) return;
  if (store_.model().Mixed(store_.engine(), *id)) return;
  const GroupModel& group = store_.model().group(*id);
  const uint64_t space = kExtents * group.extent_blocks();
  const Lba lba = rng_.Below(space);
  const uint64_t count = 1 + rng_.Below(std::min<uint64_t>(space - lba, kLongestRead));
  Result<std::unique_ptr<ReadJob>> job = store_->PlanRead(*id, lba, count);
  if (!Worked(job.ok() ? Status::Ok() : job.status())) return;
  HeldRead& held = reads_.emplace_back();
  held.job = std::move(job).value();
  held.lba = lba;
  held.group = *id;
  held.applied = group.applied;
  held.blocks.insert(group.blocks.lower_bound(lba), group.blocks.lower_bound(lba + count));
}

void CrashRun::FinishRead() {
  if (reads_.empty()) return;
  HeldRead held = std::move(reads_.front());
  reads_.erase(reads_.begin());
  held.job->Run();
  std::vector<Lba> owed;
  const Result<ReadResult> read =
      StoreModel::FinishRead(store_.engine(), std::move(held.job), &owed);
  const std::vector<GroupId> usable = store_.model().Usable();
  if (std::find(usable.begin(), usable.end(), held.group) == usable.end()) return;
  if (!Worked(read.ok() ? Status::Ok() : read.status())) return;
  if (store_.model().Mixed(store_.engine(), held.group)) return;
  Check(StoreModel::CompareReadSince(store_.model().group(held.group), held.applied,
                                     std::move(held.blocks), held.lba, *read, owed));
}

void CrashRun::CheckLog() {
  const std::optional<GroupId> id = AnyGroup();
  if (!id.has_value()) return;
  const std::string problems = store_.model().VerifyLog(store_.engine(), *id) +
                               store_.model().VerifyInfo(store_.engine(), *id);
  if (powered()) Check(problems);
}

void CrashRun::CheckNewestVersion() {
  const std::optional<GroupId> id = AnyGroup();
  if (!id.has_value() || store_.model().Mixed(store_.engine(), *id)) return;
  const GroupModel& group = store_.model().group(*id);
  const Lba lba = rng_.Below(kExtents * group.extent_blocks());
  const Instance seen = rng_.Below(group.applied + 1);
  const Version floor = MakeVersion(seen, 0xffff);
  const Version truth = group.At(lba).version;
  bool known = false;
  const Version found = store_->NewestVersion(*id, lba, seen, &known);
  // What an image does not list is gone in a version of the image.
  const bool gone_by_image = group.installed && group.At(lba).kind != BlockKind::kData;
  if (known ? (truth > floor ? found != truth : found > floor)
            : (found != 0 && found > truth && !gone_by_image)) {
    Check(fmt::format("newest version of {}:{} is {}, not {} (floor {}, known {})", *id, lba, truth,
                      found, floor, known));
  }
}

void CrashRun::Scrub() {
  std::vector<Damage> damage;
  const Result<bool> round = store_->Scrub(64 * 1024, &damage);
  if (!Worked(round.ok() ? Status::Ok() : round.status()) || !powered()) return;
  for (const Damage& d : damage) {
    Check(
        fmt::format("scrub found damage where there is none: {} group {} block {} instance {} at "
                    "segment {} page {}",
                    d.what == Damage::What::kBlock ? "a block" : "an entry", d.group, d.lba,
                    d.instance, d.segment, d.page));
  }
}

// --- Steps: installs -------------------------------------------------------------------------

// A peer that has applied what this group has, and some more that was chosen without it.
void CrashRun::StartInstall() {
  if (!installs_) return;
  const std::optional<GroupId> id = AnyGroup();
  if (!id.has_value() || peers_.contains(*id) || !store_.model().group(*id).created) return;
  const GroupModel& group = store_.model().group(*id);
  Store::Options options;
  options.segment_bytes = 4 << 20;
  Peer peer;
  peer.store = std::make_unique<Store>(options);
  Store& source = *peer.store;
  if (!Worked(source.Create()) || !Worked(source.Open())) return;
  if (!Worked(source.CreateGroup(*id, group.block_pages))) return;
  peer.applied = group.chosen.size() + rng_.Between(1, 20);
  for (Instance i = 1; i <= peer.applied; ++i) {
    // What this replica accepted may be what was chosen.
    const AcceptState* ours = i <= group.chosen.size() ? nullptr : group.Newest(i);
    const Proposal* value = i <= group.chosen.size() ? group.chosen[i - 1]
                            : ours != nullptr && rng_.Percent(50)
                                ? ours->value
                                : store_.model().NewProposal(group, RandomOperations(group));
    if (!Worked(source.Accept(*id, i, kFirstBallot, value))) return;
    if (i % 8 == 0 && !Worked(source.Settle())) return;
  }
  if (!Worked(source.Settle()) || !Worked(source.Checkpoint())) return;
  store_.model().Learned(*id, source.model().group(*id));
  peer.options.mode = rng_.Percent(50) ? InstallMode::kImage : InstallMode::kDelta;
  // Like an entry, at most a quarter of the smallest segment: a larger record can need two spares
  // beyond the reserve, more than such a store keeps.
  peer.options.max_pages = Pick(&rng_, {1u, 8u, 16u});
  peer.options.max_rows = Pick<size_t>(&rng_, {2, 20, 200});
  peer.options.newer = rng_.Percent(30);
  peer.options.bare = rng_.Percent(50);
  Trace(fmt::format("  {}: {}{} from {} to {}", *id, peer.options.bare ? "bare " : "",
                    peer.options.mode == InstallMode::kImage ? "image" : "delta", group.applied,
                    peer.applied));
  peers_[*id] = std::move(peer);
}

void CrashRun::MoveInstall() {
  if (peers_.empty()) return;
  auto it = peers_.begin();
  std::advance(it, static_cast<ptrdiff_t>(rng_.Below(peers_.size())));
  const GroupId id = it->first;
  if (!store_.model().Has(id) || store_.model().group(id).dropped) {
    peers_.erase(it);
    return;
  }
  const GroupModel& group = store_.model().group(id);
  if (group.drop_queued) return;                  // death may undo that
  if (group.installing_next.has_value()) return;  // one record at a time
  InstallDriver driver(it->second.store.get(), &store_, id, it->second.options);
  const bool caught_up = !group.installing && group.applied >= it->second.applied;
  if (caught_up && !store_->MayOwe(id)) {
    ++seen_.installs;
    peers_.erase(it);
    return;
  }
  if (group.bare && (caught_up || rng_.Percent(20))) return DeliverSome(id, &driver);
  if (caught_up) return;  // the accounting says soon that nothing is owed
  // Without an install the group may also have caught up with a part of it by its log.
  const Status status = driver.QueueNext();
  Trace(fmt::format("  {}: {}", id, status.ToString()));
  if (Worked(status, {Code::kBusy, Code::kNoSpace})) return;
  full_ |= status.code() == Code::kNoSpace;
}

// Of what is owed, as far as this peer has it; for the rest the log has something newer.
void CrashRun::DeliverSome(GroupId id, InstallDriver* driver) {
  if (store_->OwedCount(id) > 0) ++seen_.installs_owing;
  const uint64_t most = peers_.at(id).options.max_pages / store_.model().group(id).block_pages;
  const Status status = driver->QueueDelivery(std::max<uint64_t>(1, most));
  Trace(fmt::format("  {}: deliver: {}", id, status.ToString()));
  if (Worked(status, {Code::kBusy, Code::kNoSpace, Code::kNotFound, Code::kFailedPrecondition})) {
    ++seen_.installs_delivered;
  }
  full_ |= status.code() == Code::kNoSpace;
}

// More is chosen while an install is under way, without the replica that is being installed.
void CrashRun::MovePeer() {
  if (peers_.empty()) return;
  auto& [id, peer] = *peers_.begin();
  const std::vector<GroupId> usable = store_.model().Usable();
  if (std::find(usable.begin(), usable.end(), id) == usable.end()) return;
  GroupModel& group = store_.model().group(id);
  if (!group.installing) return;
  Store& source = *peer.store;
  const Instance next = source.model().group(id).chosen.size() + 1;
  const Proposal* value = next <= group.chosen.size()
                              ? group.chosen[next - 1]
                              : store_.model().NewProposal(group, RandomOperations(group));
  if (!Worked(source.Accept(id, next, kFirstBallot, value)) || !Worked(source.Settle())) return;
  store_.model().Learned(id, source.model().group(id));
  if (rng_.Percent(30)) Worked(source.Checkpoint());
  Trace(fmt::format("  {}: {} is chosen elsewhere", id, next));
  group.raced = true;
  ++seen_.installs_raced;
}

void CrashRun::AbortInstall() {
  for (auto& [id, peer] : peers_) {
    const std::vector<GroupId> usable = store_.model().Usable();
    if (std::find(usable.begin(), usable.end(), id) == usable.end()) continue;
    const GroupModel& group = store_.model().group(id);
    if (!group.installing || group.installing_next.has_value()) continue;
    const Status status = store_.InstallAbort(id);
    Trace(fmt::format("  {}: {}", id, status.ToString()));
    seen_.installs_given_up += Worked(status, {Code::kBusy, Code::kNoSpace});
    if (rng_.Percent(50)) peer.options.mode = InstallMode::kImage;
    if (rng_.Percent(30)) peer.options.bare = !peer.options.bare;
    return;
  }
}

// --- Helpers ---------------------------------------------------------------------------------

std::optional<GroupId> CrashRun::AnyGroup() {
  const std::vector<GroupId> usable = store_.model().Usable();
  if (usable.empty()) return std::nullopt;
  return usable[rng_.Below(usable.size())];
}

Ballot& CrashRun::BallotOf(GroupId group) {
  return ballots_.try_emplace(group, kFirstBallot).first->second;
}

std::vector<Operation> CrashRun::RandomOperations(const GroupModel& group) {
  const uint64_t count = rng_.Percent(20) ? rng_.Between(2, 4) : 1;
  const uint64_t max_pages = store_.options().segment_bytes / kPageSize / 4 / count;
  std::vector<Operation> operations;
  for (uint64_t i = 0; i < count; ++i) operations.push_back(RandomOperation(group, max_pages));
  return operations;
}

Operation CrashRun::RandomOperation(const GroupModel& group, uint64_t max_pages) {
  const uint64_t space = kExtents * group.extent_blocks();
  const Lba lba = rng_.Percent(50) ? rng_.Below(space / 8) : rng_.Below(space);
  // The largest entry must fit into an empty overlay with room to spare.
  const uint64_t longest = std::min<uint64_t>(
      {space - lba, group.extent_blocks(), store_.options().engine.overlay_rows / 3});
  const uint64_t kind = rng_.Below(100);
  if (kind < (full_ ? 15 : greedy_ ? 96 : 75)) {
    const uint64_t most = std::min(longest, max_pages / group.block_pages);
    if (most == 0) return UnmapOp(lba, 1);
    return WriteOp(lba, 1 + rng_.Below(rng_.Percent(40) ? most : std::min<uint64_t>(most, 4)));
  }
  if (kind < 85) return UnmapOp(lba, 1 + rng_.Below(longest));
  if (kind < 91) return ZeroOp(lba, 1 + rng_.Below(std::min<uint64_t>(longest, 16)));
  if (kind < 94) return Operation();
  if (kind < 97) return OpaqueOp(std::string(1 + rng_.Below(100), 'x'));
  std::vector<Extent> extents;
  for (Extent e = 0; e < kExtents; ++e) {
    if (rng_.Percent(50)) extents.push_back(e);
  }
  if (extents.empty()) extents.push_back(0);
  return ZeroExtentsOp(std::move(extents));
}

}  // namespace hydra::test
