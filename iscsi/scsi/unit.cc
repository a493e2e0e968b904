// SPDX-License-Identifier: Apache-2.0
#include "iscsi/scsi/unit.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/logging.h"

namespace hydra::iscsi {
namespace {

// Times that another portal may be faster before a change is given up.
constexpr int kMaxChangeAttempts = 16;

void Add(Asc asc, Nexus* nexus) {
  std::deque<Asc>& waiting = nexus->attentions;
  if (std::find(waiting.begin(), waiting.end(), asc) != waiting.end()) return;
  if (waiting.size() == LogicalUnit::kMaxAttentions) waiting.pop_front();
  waiting.push_back(asc);
}

hydra::Status NotReached() { return hydra::Status::Unavailable("the cluster does not answer"); }

}  // namespace

std::string Nexus::id() const { return fmt::format("{},t,0x{:04x}", initiator, portal_group); }

std::string Nexus::name() const { return initiator.substr(0, initiator.rfind(",i,0x")); }

LogicalUnit::LogicalUnit(std::unique_ptr<Disk> disk, UnitOptions options)
    : disk_(std::move(disk)), options_(std::move(options)) {
  NotePortalGroups();
  disk_->WatchSize([this] { Attention(Asc::kCapacityChanged); });
  disk_->WatchAccess([this] { RefreshShared([](const hydra::Status&) {}); });
}

LogicalUnit::~LogicalUnit() {
  disk_->WatchSize({});
  disk_->WatchAccess({});
}

// Rules may have changed since the login began, and accounts since one that could not be known.
// What became of the unit while the initiator was not there, or of what an earlier session of it
// had, it is not told one by one.
void LogicalUnit::Join(Nexus* nexus) {
  nexuses_.insert(nexus);
  Add(Asc::kResetOccurred, nexus);
  nexus->joined = ++joins_;
  nexus->expelled = !rules_.Allows(nexus->name()) || !IsProven(*nexus);
}

bool LogicalUnit::unconfirmed() const {
  return std::any_of(nexuses_.begin(), nexuses_.end(),
                     [](const Nexus* nexus) { return !nexus->confirmed && !nexus->expelled; });
}

void LogicalUnit::Expel() {
  const std::set<Nexus*> nexuses = nexuses_;
  for (Nexus* nexus : nexuses) {
    const bool allowed = rules_.Allows(nexus->name());
    if (nexus->expelled || (allowed && IsProven(*nexus))) continue;
    nexus->expelled = true;
    if (!nexus->disconnect) continue;
    nexus->disconnect(allowed ? "it logged in by a CHAP account that did not count any more"
                              : "the initiator is not allowed any more");
  }
}

void LogicalUnit::Leave(Nexus* nexus) {
  nexuses_.erase(nexus);
  const std::string id = nexus->id();
  std::erase_if(copies, [&](const CopyResult& copy) { return copy.nexus == id; });
}

void LogicalUnit::Release(const std::string& nexus, std::function<void()> done) {
  const auto mine = [nexus](SharedState* shared) {
    if (shared->reserved_by == nexus) shared->reserved_by.clear();
    return true;
  };
  if (shared_.reserved_by != nexus) return done();
  Start<hydra::Status>(
      ChangeShared(mine), [this, done = std::move(done)](const hydra::Status& changed) {
        if (!changed.ok()) {
          HYDRA_LOG_WARN("{}: a reservation of an initiator that is gone stays: {}",
                         options_.target_name, changed.ToString());
        }
        done();
      });
}

void LogicalUnit::Attention(Asc asc, const Nexus* except) {
  for (Nexus* nexus : nexuses_) {
    if (nexus != except) Add(asc, nexus);
  }
}

void LogicalUnit::NotePortalGroups() {
  if (!options_.portal_groups) return;
  bool changed = false;
  for (const PortalGroup& group : options_.portal_groups()) {
    const auto [known, added] = groups_.try_emplace(group.tag, group);
    changed = changed || known->second != group;
    known->second = group;
  }
  if (changed) Attention(Asc::kAccessStateChanged);
}

void LogicalUnit::AttentionTo(const std::string& id, Asc asc) {
  for (Nexus* nexus : nexuses_) {
    if (nexus->id() == id) Add(asc, nexus);
  }
}

void LogicalUnit::AbortTasks(const std::set<std::string>* ids, std::function<void()> done) {
  // The last of them to end calls back, also if all end at once or there is none.
  const auto last = std::shared_ptr<void>(nullptr, [done = std::move(done)](void*) { done(); });
  const std::set<Nexus*> nexuses = nexuses_;
  for (Nexus* nexus : nexuses) {
    if (ids != nullptr && !ids->contains(nexus->id())) continue;
    if (nexus->abort_tasks) nexus->abort_tasks([last] {});
  }
}

void LogicalUnit::Disconnect() {
  const std::set<Nexus*> nexuses = nexuses_;
  for (Nexus* nexus : nexuses) {
    if (nexus->disconnect) nexus->disconnect("target cold reset");
  }
}

// --- What all portals share ---------------------------------------------------------------------

void LogicalUnit::BeginTurn(std::function<void(bool)> turn) {
  if (changing_) {
    turns_.push_back(std::move(turn));
    return;
  }
  changing_ = true;
  turn(true);
}

void LogicalUnit::EndTurn(bool reached) {
  changing_ = false;
  if (!reached) {
    const auto self = weak_from_this().lock();  // until the last of them was told
    const auto waited = std::exchange(turns_, {});
    for (const auto& turn : waited) turn(false);
    return;
  }
  if (turns_.empty()) return;
  const auto next = std::move(turns_.front());
  turns_.pop_front();
  changing_ = true;
  next(true);
}

// Between two changes of our own, which would else come back as someone else's.
void LogicalUnit::RefreshShared(Disk::Done done) {
  refreshes_.push_back(std::move(done));
  if (refreshes_.size() > 1) return;  // the one that waits for its turn is as good
  BeginTurn([this](bool reached) {
    const std::weak_ptr<bool> alive = alive_;
    const auto asked = std::make_shared<std::vector<Disk::Done>>(std::exchange(refreshes_, {}));
    if (!reached) {
      for (const Disk::Done& call : *asked) call(NotReached());
      return;
    }
    disk_->LoadAccess([this, alive, asked, joins = joins_](const Result<DiskAccess>& access) {
      hydra::Status taken = hydra::Status::Aborted("the unit is gone");
      if (!alive.expired()) {
        taken = access.ok() ? TakeShared(*access, joins) : access.status();
        EndTurn(access.status().code() != Code::kUnavailable);
      }
      for (const Disk::Done& call : *asked) call(taken);
    });
  });
}

void LogicalUnit::CheckReady(Disk::Done done) {
  if (!options_.with_patience) return RefreshShared(std::move(done));
  const auto ready = std::make_shared<hydra::Status>(NotReached());
  options_.with_patience([ready, done = std::move(done)] { done(*ready); },
                         [this, ready](std::function<void()> end) {
                           RefreshShared([ready, end = std::move(end)](const hydra::Status& how) {
                             *ready = how;
                             end();
                           });
                         });
}

Task<hydra::Status> LogicalUnit::ChangeShared(std::function<bool(SharedState*)> change) {
  bool reached = co_await Await<bool>([this](auto turn) { BeginTurn(std::move(turn)); });
  if (!reached) co_return NotReached();
  const std::shared_ptr<void> turn(nullptr, [this, &reached](void*) { EndTurn(reached); });
  for (int attempt = 0; attempt < kMaxChangeAttempts; ++attempt) {
    const uint64_t joins = joins_;
    const auto now = co_await Await<Result<DiskAccess>>(
        [this](auto done) { disk_->LoadAccess(std::move(done)); });
    reached = now.status().code() != Code::kUnavailable;
    const hydra::Status taken = now.ok() ? TakeShared(*now, joins) : now.status();
    if (!taken.ok()) co_return taken;
    SharedState next = shared_;
    // Also who is refused must not see what is not true everywhere.
    if (!change(&next) || next == shared_) {
      // Whoever made it so may have died before it was true everywhere.
      if (fenced_ == epoch_) co_return hydra::Status::Ok();
      const uint64_t epoch = epoch_;
      const hydra::Status fenced = co_await Await<hydra::Status>(
          [this, epoch](auto done) { disk_->Fence(epoch, std::move(done)); });
      if (fenced.ok()) fenced_ = epoch;
      co_return fenced;
    }
    const std::string bytes = next.Encode();
    const bool narrows = next.Narrows(shared_);
    // By pointer: GCC 12 destroys twice what a closure in such an expression owns.
    const auto changed =
        co_await Await<Result<uint64_t>>([this, from = &bytes, narrows](auto done) {
          disk_->ChangeAccess(epoch_, *from, narrows, std::move(done));
        });
    if (changed.status().code() == Code::kFailedPrecondition) continue;
    if (!changed.ok()) co_return changed.status();
    HYDRA_CHECK(*changed > epoch_);
    epoch_ = fenced_ = *changed;
    shared_ = std::move(next);
    co_return hydra::Status::Ok();
  }
  co_return hydra::Status::Busy("others change it all the time");
}

hydra::Status LogicalUnit::TakeShared(const DiskAccess& access, uint64_t joins) {
  if (access.epoch > epoch_) {
    if (hydra::Status taken = TakeNews(access); !taken.ok()) return taken;
  }
  Expel();
  // Who was there when the cluster was asked, and has not been expelled, is there by right.
  for (Nexus* nexus : nexuses_) nexus->confirmed = nexus->confirmed || nexus->joined <= joins;
  return hydra::Status::Ok();
}

hydra::Status LogicalUnit::TakeNews(const DiskAccess& access) {
  Result<SharedState> now = SharedState::Decode(access.state);
  if (!now.ok()) {
    HYDRA_LOG_ERROR("{}: {}", options_.target_name, now.status().ToString());
    return hydra::Status::IoError("what portals share of the disk cannot be read");
  }
  for (Nexus* nexus : nexuses_) {
    const Asc news = now->reservations.NewsFor(nexus->id(), shared_.reservations);
    if (news != Asc::kNone) Add(news, nexus);
  }
  const bool reset = now->resets != shared_.resets;
  // Whoever ended it may have died before that was true everywhere.
  using Phase = SanitizeState::Phase;
  const bool ended = shared_.sanitize.phase != Phase::kNone && now->sanitize.phase == Phase::kNone;
  if (ended) sanitize_end_ = access.epoch;
  epoch_ = access.epoch;
  shared_ = std::move(*now);
  chap_revision_ = access.chap_revision;
  rules_ = access.rules;
  // Commands that are under way here were fenced; each says so when it hears of it (Execute). Who
  // just learned of the reset by a command of its own must not lose that one.
  if (reset) ForgetStates(shared_.last_reset);
  if (!sanitize_waiters_.empty()) SanitizeMoved();
  return hydra::Status::Ok();
}

// --- Resets -------------------------------------------------------------------------------------

void LogicalUnit::ForgetStates(Asc asc) {
  write_protected = false;
  descriptor_sense = false;
  Attention(asc);
}

// Nobody's tasks end for one who is not allowed any more, which the change of what all share tells.
void LogicalUnit::Reset(Asc asc, Disk::Done done, const Nexus* by) {
  const hydra::Status not_allowed = hydra::Status::Fenced("the initiator is not allowed any more");
  if (by != nullptr && by->expelled) return done(not_allowed);
  const auto refused = std::make_shared<bool>(false);
  const auto count = [asc, by, refused](SharedState* shared) {
    *refused = by != nullptr && by->expelled;
    if (*refused) return false;
    ++shared->resets;
    shared->reserved_by.clear();
    shared->last_reset = asc;
    return true;
  };
  const auto counted = [this, self = weak_from_this().lock(), asc, refused, not_allowed,
                        done = std::move(done)](const hydra::Status& changed) {
    if (*refused) return done(not_allowed);
    ForgetStates(asc);
    AbortTasks(nullptr, [done, changed] { done(changed); });
  };
  Start<hydra::Status>(ChangeShared(count), counted);
}

}  // namespace hydra::iscsi
