// SPDX-License-Identifier: Apache-2.0
//
// The frame of a shard: start, records on their way to disk, applying.
#include "daemon/shard.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/coding.h"
#include "base/logging.h"
#include "base/probe.h"
#include "base/sabotage.h"
#include "daemon/shard_install.h"
#include "daemon/shard_owed.h"
#include "daemon/shard_recovery.h"
#include "daemon/shard_repair.h"

namespace hydra {

namespace {

constexpr Nanos kIdleLook = 100 * kMillisecond;
constexpr Nanos kWarnEvery = 10 * kSecond;

uint64_t PayloadOf(const paxos::Body& body) {
  if (body == nullptr) return 0;
  return uint64_t{static_cast<const EntryBody*>(body.get())->entry.PayloadPages()} * kPageSize;
}

template <typename T>
void MoveAll(std::vector<T>* from, std::vector<T>* to) {
  if (to->empty()) {
    to->swap(*from);
  } else {
    std::move(from->begin(), from->end(), std::back_inserter(*to));
    from->clear();
  }
}

Status NotUnderstood(Instance instance) {
  return Status::Unsupported(
      fmt::format("instance {} holds an operation of a newer Hydra; upgrade this node", instance));
}

}  // namespace

Shard::Shard(const Options& options, Engine* engine, paxos::LeaseTable* leases, TokenTable* tokens,
             RecoveryBudget* budget, ActiveShards* active)
    : options_(options),
      store_group_(options.store_group.value_or(options.group)),
      engine_(engine),
      leases_(leases),
      tokens_(tokens),
      budget_(budget),
      active_(active),
      builder_(1),
      next_ticket_((options.life << kLifeShift) + 1),
      recovery_(std::make_unique<RecoveryWork>()),
      repair_(std::make_unique<RepairWork>()),
      owed_(std::make_unique<OwedWork>()) {
  HYDRA_CHECK(options.gather_entries > 0);  // or a small write would wait for ever
  if (options.may_use_reserve) engine_->LetUseReserve(store_group_);
  Touch();
}

Shard::~Shard() {
  for (const auto& [ticket, read] : recovery_->reading) {
    budget_->Return(read.serve.to.node, options_.catch_up_bytes);
    budget_->Settle(read.spent, 0, RecoveryBudget::Kind::kLog);
  }
  for (const auto& [peer, chunk] : recovery_->chunks) {
    budget_->Settle(chunk.spent, 0, RecoveryBudget::Kind::kImage);
  }
  for (const auto& [ticket, read] : owed_->reading) budget_->SettleOwed(read.spent, 0);
  if (owed_->slot) budget_->EndAsking();
  tokens_->RemoveWaiting(taken_in_);
  for (const paxos::Append& append : append_queue_) tokens_->RemoveWaiting(PayloadOf(append.body));
}

void Shard::Fail(const Status& status) {
  if (failed_.ok()) failed_ = status;
  active_->NoteFailed(status);
}

void Shard::Touch() {
  if (std::exchange(touched_, true)) return;
  active_->Add(options_.group);
}

// What the engine, or a full window, refused is tried again, and replicas that are behind are sent
// more as the budget allows.
bool Shard::HasWork() const {
  return identity_waits_ || !append_queue_.empty() || !apply_queue_.empty() || held_ != nullptr ||
         !recovery_->catch_ups.empty() || !recovery_->installs.empty() || HasOwedWork();
}

// --- Start --------------------------------------------------------------------------------------

Status Shard::StartNew(const ReplicaIdentity& identity, Nanos now) {
  identity_ = identity;
  durable_lease_ = options_.lease;
  state_ = GroupState(paxos::Config(0, identity.first_members));
  HYDRA_ASSIGN_OR_RETURN(const GroupInfo info, engine_->Info(store_group_));
  block_pages_ = info.block_pages;
  builder_ = EntryBuilder(block_pages_);
  HYDRA_RETURN_IF_ERROR(BuildReplica(now));
  SaveIdentity();
  return failed_;
}

Status Shard::StartRecovered(Nanos now) {
  HYDRA_ASSIGN_OR_RETURN(const GroupInfo info, engine_->Info(store_group_));
  block_pages_ = info.block_pages;
  builder_ = EntryBuilder(block_pages_);
  HYDRA_ASSIGN_OR_RETURN(identity_, ReplicaIdentity::Decode(AsBytes(info.opaque)));
  durable_lease_ = identity_.lease;
  if (info.state.empty()) {
    state_ = GroupState(paxos::Config(0, identity_.first_members));
  } else {
    HYDRA_ASSIGN_OR_RETURN(state_, GroupState::Decode(AsBytes(info.state)));
  }
  const Status rolled = RollForward();
  // An install under way replaces the state anyway.
  if (!rolled.ok() && !info.installing) return rolled;
  HYDRA_RETURN_IF_ERROR(BuildReplica(now));
  if (identity_.lease < options_.lease) SaveIdentity();
  // The process may have ended between the configuration and the identity that follows from it.
  OnConfigApplied();
  return failed_;
}

// The engine replayed the blocks up to `applied`; the state beside them follows.
Status Shard::RollForward() {
  HYDRA_ASSIGN_OR_RETURN(const GroupInfo info, engine_->Info(store_group_));
  for (Instance next = info.state_at + 1; next <= info.applied;) {
    // Many at a time: those of one batch share a read.
    constexpr Instance kAtATime = 1024;
    LogReadRequest request;
    request.group = store_group_;
    request.from = next;
    request.to = std::min(info.applied, next + kAtATime - 1);
    request.wanted = [](const AcceptRecord&) { return false; };
    HYDRA_ASSIGN_OR_RETURN(auto job, engine_->PlanLogRead(std::move(request)));
    job->Run();
    HYDRA_ASSIGN_OR_RETURN(const std::vector<LogEntry> entries,
                           engine_->FinishLogRead(std::move(job)));
    if (entries.empty()) {
      HYDRA_RETURN_IF_ERROR(engine_->ReadLogRecord(store_group_, next).status());
      return Status::IoError("an entry could be read only at the second attempt: start again");
    }
    for (const LogEntry& entry : entries) {
      const Instance i = next++;
      if (!entry.record.understood) return NotUnderstood(i);
      if (HYDRA_SABOTAGE(kForgetSessions) && i != info.applied) continue;
      const auto outcomes = state_.Apply(i, entry.record.entry);
      if (!outcomes.ok()) return outcomes.status();
    }
  }
  return Status::Ok();
}

Status Shard::RecoveredEntries(paxos::RecoveredState* out) {
  for (const LogEntryInfo& entry :
       engine_->LogEntries(store_group_, out->applied + 1, kMaxInstance)) {
    const auto record = engine_->ReadLogRecord(store_group_, entry.instance);
    if (!record.ok() || !record->understood) {
      // What was accepted is unknown, that something was is not. (An entry that ends before an
      // operation of a newer Hydra would pass for another, even for a no-op.)
      HYDRA_PROBE("shard: an accepted entry cannot be read at all");
      if (record.ok()) {
        HYDRA_LOG_ERROR("group {}: {}", options_.group, NotUnderstood(entry.instance).message());
      }
      out->suspect = true;
      // In which ballot is known all the same: the record that takes its place must not go back.
      out->entries.push_back({entry.instance, entry.ballot, {}, true});
      continue;
    }
    HYDRA_ASSIGN_OR_RETURN(paxos::EntryMeta meta, MetaOf(record->entry, entry.instance));
    out->entries.push_back({entry.instance, entry.ballot, std::move(meta), entry.faulty});
    accepted_[entry.instance] = {0, entry.ballot, true};
  }
  return Status::Ok();
}

Status Shard::BuildReplica(Nanos now) {
  HYDRA_ASSIGN_OR_RETURN(const GroupInfo info, engine_->Info(store_group_));
  paxos::RecoveredState recovered;
  recovered.promised = info.promised;
  // A replica that is reborn in the same process keeps what it promised last.
  if (replica_ != nullptr) recovered.promised = std::max(info.promised, replica_->promised());
  recovered.applied = info.applied;
  recovered.config = state_.config();
  recovered.fence = state_.fence();
  recovered.suspect = info.suspect;
  recovered.installing = info.installing;
  if (!info.install.restart && !info.install.cursor.empty()) {
    recovered.install_cursor = InstallCursor(info.install.mode, info.install.cursor);
  }
  accepted_.clear();
  HYDRA_RETURN_IF_ERROR(RecoveredEntries(&recovered));
  if (IsSole()) {
    recovered.config =
        paxos::Config(state_.config().instance(),
                      {{{options_.node, identity_.incarnation}, paxos::Role::kVoter}});
    // Nobody is left to ask whether a configuration above was chosen: there is none.
    for (paxos::RecoveredEntry& entry : recovered.entries) {
      if (entry.meta.kind == paxos::EntryKind::kConfig) entry.meta = {};
    }
  }
  paxos::ReplicaOptions options = options_.replica;
  options.group = options_.group;
  options.self = {options_.node, identity_.incarnation};
  options.seed = options_.seed;
  install_ = std::make_unique<InstallWork>();
  replica_ = std::make_unique<paxos::Replica>(options, recovered, leases_, now);
  replica_->MayAskBare(may_ask_bare_);
  replica_->SetOwes(Owes());
  return Status::Ok();
}

// Who this replica is, and how long its leases may last, before it says anything as such: the
// record goes before all of the core's.
void Shard::SaveIdentity() {
  identity_.lease = std::max(identity_.lease, options_.lease);
  if (outstanding_.empty() || outstanding_.front().token != kLocalIdentity) {
    outstanding_.push_front({kLocalIdentity, false});
  }
  const uint64_t token = tokens_->Add(options_.group, kLocalIdentity);
  const Status saved =
      engine_->SaveHardState(store_group_, replica_->promised(), identity_.Encode(), token);
  identity_waits_ = !saved.ok();
  if (saved.ok()) return;
  tokens_->Cancel(token);
  if (saved.code() != Code::kBusy && saved.code() != Code::kNoSpace) {
    Fail(saved.WithContext("save the replica's identity"));
  }
}

// --- Records ------------------------------------------------------------------------------------

void Shard::NoteAppend(paxos::Append append) {
  HYDRA_CHECK(outstanding_.empty() || outstanding_.back().token < append.token);
  outstanding_.push_back({append.token, false});
  if (append.kind == paxos::Append::Kind::kAccept) {
    accepted_[append.instance] = {append.token, append.ballot, false};
    const uint64_t bytes = PayloadOf(append.body);
    tokens_->AddWaiting(bytes);
    appended_bytes_ += bytes;
    ++appended_entries_;
  }
  append_queue_.push_back(std::move(append));
}

bool Shard::SubmitAppend(const paxos::Append& append) {
  if (HYDRA_SABOTAGE(kSkipBallotPersist) && append.kind == paxos::Append::Kind::kHardState) {
    Completed(append.token, now_);
    return true;
  }
  const uint64_t token = tokens_->Add(options_.group, append.token);
  Status status;
  if (append.kind == paxos::Append::Kind::kHardState) {
    status = engine_->SaveHardState(store_group_, append.ballot, identity_.Encode(), token);
  } else if (append.meta.kind == paxos::EntryKind::kNoop) {
    status = engine_->Accept(store_group_, append.instance, append.ballot, NoopEntry(append.meta),
                             {}, token);
  } else {
    const auto body = std::static_pointer_cast<const EntryBody>(append.body);
    HYDRA_CHECK(body != nullptr);
    status = engine_->AcceptShared(store_group_, append.instance, append.ballot,
                                   {body, &body->entry}, body->payload, token);
  }
  if (status.ok()) {
    const auto newest = accepted_.find(append.instance);
    if (append.kind == paxos::Append::Kind::kAccept && newest != accepted_.end() &&
        newest->second.token == append.token) {
      newest->second.taken = true;
    }
    return true;
  }
  tokens_->Cancel(token);
  if (status.code() != Code::kBusy && status.code() != Code::kNoSpace) Fail(status);
  return false;
}

// In order, except that hard states are handed over ahead of entries for which there is no space:
// the engine keeps room for them. What a promise says includes those entries, so it is said only
// when they are durable as well (Completed).
bool Shard::DrainAppends(Nanos now) {
  bool moved = false;
  bool dropped = false;
  if (identity_waits_) {
    SaveIdentity();
    if (identity_waits_) return false;
  }
  bool blocked = false;
  for (auto it = append_queue_.begin(); it != append_queue_.end() && failed_.ok();) {
    if (blocked && it->kind == paxos::Append::Kind::kAccept) {
      ++it;
      continue;
    }
    if (it->kind == paxos::Append::Kind::kAccept && it->instance <= replica_->applied()) {
      // Installed meanwhile: the engine no longer takes it, and nobody needs it. In no other way is
      // an instance applied whose record waits.
      const auto info = engine_->Info(store_group_);
      HYDRA_CHECK(info.ok() && it->instance <= info->truncated);
      NoteDurable(it->token);
      tokens_->RemoveWaiting(PayloadOf(it->body));
      it = append_queue_.erase(it);
      moved = dropped = true;
      continue;
    }
    if (SubmitAppend(*it)) {
      tokens_->RemoveWaiting(PayloadOf(it->body));
      it = append_queue_.erase(it);
      moved = true;
    } else {
      HYDRA_PROBE("shard: the engine refuses a record for now");
      blocked = true;
      ++it;
    }
  }
  if (dropped) ReportDurable(now);  // nothing else may ever complete
  return moved;
}

// The core hears of a record when all before it are durable as well: the engine writes hard state
// ahead of entries.
void Shard::Completed(uint64_t local_token, Nanos now) {
  Touch();
  now_ = std::max(now_, now);
  if (local_token >= kLocalRepair) return RepairDone(local_token, now);
  if (local_token == kLocalOwed) return OwedDone(now);
  if (local_token >= kLocalInstall) {
    InstallStepDone(now);
    return;
  }
  if (local_token == kLocalIdentity) durable_lease_ = identity_.lease;
  NoteDurable(local_token);
  ReportDurable(now);
}

void Shard::NoteDurable(uint64_t local_token) {
  const auto found =
      std::lower_bound(outstanding_.begin(), outstanding_.end(), local_token,
                       [](const Outstanding& record, uint64_t t) { return record.token < t; });
  if (found != outstanding_.end() && found->token == local_token) found->durable = true;
}

void Shard::ReportDurable(Nanos now) {
  uint64_t last = 0;
  while (!outstanding_.empty() && outstanding_.front().durable) {
    last = outstanding_.front().token;
    outstanding_.pop_front();
  }
  if (last != 0) replica_->Persisted(last, now);
}

// --- Applying -----------------------------------------------------------------------------------

bool Shard::DrainApplies(Nanos now) {
  bool moved = false;
  while (!apply_queue_.empty() && failed_.ok()) {
    paxos::Chosen chosen = std::move(apply_queue_.front());
    apply_queue_.pop_front();
    if (!ApplyOne(chosen, now)) {
      apply_queue_.push_front(std::move(chosen));
      break;
    }
    moved = true;
  }
  return moved;
}

void Shard::NoteChosen(Instance instance, Nanos now) {
  const auto ours = proposed_.find(instance);
  if (ours == proposed_.end()) return;
  for (Proposed& operation : ours->second) operation.chosen = now;
}

bool Shard::ApplyOne(const paxos::Chosen& chosen, Nanos now) {
  if (chosen.instance <= replica_->applied()) return true;  // installed meanwhile
  if (replica_->installing() && !HYDRA_SABOTAGE(kInstallNotExclusive)) {
    // What was chosen and not applied when the install began follows it, or comes with it.
    HYDRA_PROBE("shard: apply has to wait for an install");
    return false;
  }
  const auto accepted = accepted_.find(chosen.instance);
  if (accepted == accepted_.end() || !accepted->second.taken) {
    // The engine has not taken the record yet; what it has may be another value, of this or an
    // older ballot.
    HYDRA_PROBE("shard: apply has to wait for the record");
    return false;
  }
  HYDRA_CHECK(accepted->second.ballot == chosen.ballot);
  Entry made;  // where the core has none
  const Entry* entry = &made;
  if (chosen.meta.kind == paxos::EntryKind::kNoop) {
    made = NoopEntry(chosen.meta);
  } else if (chosen.body != nullptr) {
    entry = &static_cast<const EntryBody*>(chosen.body.get())->entry;
  } else {
    auto record = engine_->ReadLogRecord(store_group_, chosen.instance);
    if (!record.ok()) {
      Fail(record.status().WithContext("read an entry to apply"));
      return false;
    }
    HYDRA_CHECK(record->understood);  // RecoveredEntries takes no other
    made = std::move(record->entry);
    const auto meta = MetaOf(made, chosen.instance);
    HYDRA_CHECK(meta.ok() && meta->digest == chosen.meta.digest);
  }
  const Status status = engine_->Apply(store_group_, chosen.instance, chosen.ballot);
  if (status.code() == Code::kBusy) {
    HYDRA_PROBE("shard: apply has to wait for the engine");
    return false;
  }
  if (!status.ok()) {
    Fail(status.WithContext("apply"));
    return false;
  }
  auto outcomes = state_.Apply(chosen.instance, *entry);
  if (!outcomes.ok()) {
    Fail(outcomes.status());
    return false;
  }
  accepted_.erase(accepted_.begin(), accepted_.upper_bound(chosen.instance));
  replica_->Applied(chosen.instance);
  const uint64_t bytes = uint64_t{entry->PayloadPages()} * kPageSize;
  history_.Add(chosen.instance, bytes);
  if (ready()) written_ += bytes;
  order_.Applied(chosen.instance);
  if (!repair_->suspects.empty() && repair_->suspects.erase(chosen.instance) > 0) {
    VerifyBlocksOf(chosen.instance);
  }
  const auto ours = proposed_.find(chosen.instance);
  if (ours != proposed_.end()) {
    const std::vector<Proposed> operations = std::move(ours->second);
    proposed_.erase(ours);
    HYDRA_CHECK(operations.size() == outcomes->size());
    for (size_t i = 0; i < operations.size(); ++i) {
      AnswerAndSettle(operations[i], ShardAnswer::kDone, (*outcomes)[i]);
      if (operations[i].lock != 0) ReleaseLock(operations[i].lock, now);
    }
  }
  if (chosen.meta.kind == paxos::EntryKind::kConfig) OnConfigApplied();
  return true;
}

// A replica that lost records is readmitted as a new member; from here on it is that one. But if
// its node was replaced, the new member is a replica on another disk, and what that one promises
// this one does not know.
void Shard::OnConfigApplied() {
  const paxos::Member* member = state_.config().FindNode(options_.node);
  if (member == nullptr || member->id.incarnation <= identity_.incarnation) return;
  LoseMastership();
  if (member->id.incarnation > named_) {
    HYDRA_PROBE("shard: an incarnation that may be another store's");
    return;
  }
  next_incarnation_ = member->id.incarnation;
}

void Shard::MayAskBare(bool may) {
  // The catalogue is what a node begins with, and small.
  may_ask_bare_ = may && !options_.may_use_reserve;
  if (replica_ != nullptr) replica_->MayAskBare(may_ask_bare_);
}

void Shard::BeNamed(uint32_t incarnation) {
  if (incarnation <= named_) return;
  named_ = incarnation;
  OnConfigApplied();
  if (next_incarnation_ == 0) return;
  HYDRA_PROBE("shard: named when its group had readmitted it already");
  Touch();
}

bool Shard::serves_local() const {
  const auto from = engine_->ServesFrom(store_group_);
  return from && replica_->applied() >= *from;
}

uint64_t Shard::MissingBytes(Instance end) const {
  const Instance last = std::min(replica_->commit_heard(), end - 1);
  const uint64_t entries = last > replica_->commit() ? last - replica_->commit() : 0;
  return entries == 0
             ? 0
             : entries * (appended_bytes_ / std::max<uint64_t>(1, appended_entries_) + kPageSize);
}

// --- Inputs -------------------------------------------------------------------------------------

// What a full store cannot take is as good as lost on its way: it is not accepted, nothing waits
// behind it, and it comes again. (What a record replaces is here already.)
bool Shard::TakesIn(Instance instance, const paxos::Body& body) {
  const uint64_t bytes = PayloadOf(body);
  if (bytes == 0 || accepted_.contains(instance)) return true;
  // Nothing is applied before what is missing: to it, and to an install in its place, the room goes
  // first, or neither would ever end.
  if (!options_.may_use_reserve &&
      !engine_->TakesPayload(tokens_->waiting_bytes() + MissingBytes(instance) + bytes)) {
    HYDRA_PROBE("space: an entry is not taken in");
    return false;
  }
  tokens_->AddWaiting(bytes);
  taken_in_ += bytes;
  return true;
}

void Shard::LeaveOutWhatDoesNotFit(paxos::Accept* accept) {
  const std::vector<paxos::AcceptEntry>& all = *accept->entries;
  std::shared_ptr<std::vector<paxos::AcceptEntry>> kept;  // null: all so far
  for (size_t i = 0; i < all.size(); ++i) {
    if (!TakesIn(all[i].instance, all[i].body)) {
      if (!kept) {
        kept = std::make_shared<std::vector<paxos::AcceptEntry>>(all.begin(), all.begin() + i);
      }
    } else if (kept) {
      kept->push_back(all[i]);
    }
  }
  if (kept) accept->entries = std::move(kept);
}

void Shard::LeaveOutWhatDoesNotFit(paxos::CatchUpReply* reply) {
  size_t kept = 0;
  while (kept < reply->entries.size() &&
         TakesIn(reply->entries[kept].instance, reply->entries[kept].body)) {
    ++kept;
  }
  reply->entries.resize(kept);
}

void Shard::Tick(Nanos now) {
  now_ = std::max(now_, now);
  replica_->Tick(now);
  // Most groups of a node are idle: what waits for something else than input is looked at all the
  // same, though not in every tick.
  NoteOwedAfterAll();
  const bool waits = ready_at_ != 0 && !ready_;
  // (What a replica has yet to say of its own is only that which came of inputs.)
  if (replica_->has_output() || waits || !reads_.empty() || !repair_->blocks.empty() ||
      install_->queued != InstallWork::Step::kIdle || identity_.owes ||
      now >= looked_ + kIdleLook) {
    looked_ = now;
    Touch();
  }
  if (!repair_->blocks.empty()) Repair(now);
  // From here on the log says it, and not only this replica.
  if (IsSole() && ready() && !replica_->changing_members()) {
    ChangeMembers(replica_->config().members(), now).IgnoreError();
  }
  // A master whose store fills up unforeseen could not apply what the others have stored.
  if (!ready() || append_queue_.empty()) return;
  const uint64_t bytes = PayloadOf(append_queue_.front().body);
  if (bytes > 0 && !engine_->TakesPayload(bytes)) GiveWay(bytes, now);
}

void Shard::Step(paxos::Message message, Nanos now) {
  Touch();
  now_ = std::max(now_, now);
  if (next_incarnation_ != 0) return;  // for somebody who is about to be another
  // What the core would store must be what it is said to be.
  const auto good = [&](Instance instance, const Status& checked) {
    if (!checked.ok()) WarnOfDropped(message.from.node, instance, checked);
    return checked.ok();
  };
  if (auto* accept = std::get_if<paxos::Accept>(&message.body)) {
    for (const paxos::AcceptEntry& entry : *accept->entries) {
      if (!good(entry.instance, CheckBody(entry.meta, entry.body, entry.instance))) return;
    }
    LeaveOutWhatDoesNotFit(accept);
  } else if (auto* reply = std::get_if<paxos::CatchUpReply>(&message.body)) {
    for (const paxos::ChosenEntry& entry : reply->entries) {
      if (entry.same) continue;
      if (!good(entry.instance, CheckBody(entry.meta, entry.body, entry.instance))) return;
    }
    LeaveOutWhatDoesNotFit(reply);
  } else if (const auto* fetched = std::get_if<paxos::FetchedBody>(&message.body)) {
    if (fetched->found &&
        !good(fetched->instance, CheckBody(fetched->digest, fetched->body, fetched->instance))) {
      return;
    }
  } else if (const auto* chunk = std::get_if<paxos::InstallChunk>(&message.body)) {
    if (chunk->body == nullptr) return;  // asked for again, in time elsewhere
  }
  replica_->Step(std::move(message), now);
}

// What is sent again may be good; if it never is, the group makes no progress.
void Shard::WarnOfDropped(NodeId from, Instance instance, const Status& why) {
  if (warned_ != 0 && now_ < warned_ + kWarnEvery) return;
  warned_ = now_;
  HYDRA_LOG_WARN(
      "group {}: instance {} from node {} was dropped: {}; if this goes on and all nodes have the "
      "same version, look at that node's memory and the network",
      options_.group, instance, from, why.ToString());
}

void Shard::OnNotice(NodeId from, const paxos::Notice& notice, Nanos now) {
  Touch();
  now_ = std::max(now_, now);
  replica_->OnNotice(from, notice, now);
}

Status Shard::ChangeMembers(const std::vector<paxos::Member>& members, Nanos now) {
  Touch();
  now_ = std::max(now_, now);
  auto body = std::make_shared<EntryBody>();
  body->entry = ConfigEntry(members);
  return replica_->ProposeConfig(members, EntryDigest(body->entry), body, now);
}

void Shard::Pump(Nanos now, ShardOutput* out) {
  now_ = std::max(now_, now);
  touched_ = false;
  // Bounded: each round consumes output that only inputs or applied entries can make.
  for (bool moved = true; moved && failed_.ok();) {
    moved = !Gathers() && FlushBuilder(now);
    replica_->TakeOutput(&core_);
    moved = moved || !core_.empty();
    tokens_->RemoveWaiting(std::exchange(taken_in_, 0));
    for (paxos::Append& append : core_.appends) NoteAppend(std::move(append));
    for (paxos::Chosen& chosen : core_.chosen) {
      NoteChosen(chosen.instance, now);
      apply_queue_.push_back(std::move(chosen));
    }
    MoveAll(&core_.messages, &out_.messages);
    for (paxos::ServeCatchUp& serve : core_.catch_ups) {
      recovery_->catch_ups[serve.to.node] = {std::move(serve), now_};
    }
    for (const paxos::ServeBody& serve : core_.bodies) Serve(serve, now);
    for (paxos::ServeInstall& serve : core_.installs) {
      recovery_->installs[serve.to.node] = {std::move(serve), now_};
    }
    if (core_.piece) TakePiece(core_.piece->chunk);
    for (const paxos::ReadAnswer& read : core_.reads) {
      const auto found = reads_.find(read.id);
      if (found == reads_.end()) continue;
      if (read.ok) {
        found->second.after = read.instance;
        found->second.answered = true;
      } else {
        Answer(found->second.request, ShardAnswer::kNotMaster);
        reads_.erase(found);
      }
    }
    if (core_.mastership_changed) OnMastership(now);
    moved = DrainAppends(now) || moved;
    InstallStep(now);
    moved = DrainApplies(now) || moved;
    moved = BeReborn(now) || BeSole(now) || moved;
    BecomeReadyIfApplied(now);
    ServeReads(now);
  }
  ServeCatchUps();
  ServeInstalls();
  FetchOwed(now);
  ServeOwed();
  if (!failed_.ok()) {  // a failed node says nothing
    out_.messages.clear();
    out_.blocks.clear();
    out_.owed.clear();
  }
  MoveAll(&out_.messages, &out->messages);
  MoveAll(&out_.blocks, &out->blocks);
  MoveAll(&out_.owed, &out->owed);
  MoveAll(&out_.replies, &out->replies);
  MoveAll(&out_.reads, &out->reads);
  if (HasWork()) Touch();
}

}  // namespace hydra
