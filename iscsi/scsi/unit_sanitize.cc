// SPDX-License-Identifier: Apache-2.0
//
// SANITIZE as all portals see it.
#include <algorithm>
#include <utility>

#include "base/logging.h"
#include "iscsi/scsi/unit.h"

namespace hydra::iscsi {

using Phase = SanitizeState::Phase;

Task<hydra::Status> LogicalUnit::BeginSanitize(std::optional<uint64_t> epoch, bool may_exit,
                                               uint64_t* key) {
  bool fenced = false;
  const auto begin = [&](SharedState* shared) {
    *key = 0;
    // Who sent it may have lost the right to since.
    fenced = epoch && *epoch != epoch_;
    if (fenced || shared->sanitize.phase == Phase::kUnderWay) return false;
    *key = epoch_ + 1;
    shared->sanitize = {Phase::kUnderWay, may_exit, *key};
    return true;
  };
  Task<hydra::Status> changing = ChangeShared(begin);
  const hydra::Status changed = co_await changing;
  if (changed.ok() && fenced) co_return hydra::Status::Fenced("access was changed");
  if (changed.ok() && *key != 0) ContinueSanitize();
  co_return changed;
}

void LogicalUnit::ContinueSanitize() {
  const uint64_t key = shared_.sanitize.key;
  if (shared_.sanitize.phase != Phase::kUnderWay || sanitizing_ == key) return;
  sanitizing_ = key;
  sanitize_progress_ = 0;
  RunSanitize(key);
}

// Whoever began it may have died before what was under way then was fenced off: it would be written
// behind the erasing.
void LogicalUnit::RunSanitize(uint64_t key) {
  const uint64_t epoch = epoch_;
  if (fenced_ >= epoch) return EraseDisk(key, epoch);
  const std::weak_ptr<bool> alive = alive_;
  disk_->Fence(epoch, [this, alive, key, epoch](const hydra::Status& fenced) {
    if (alive.expired()) return;
    if (fenced.ok()) fenced_ = std::max(fenced_, epoch);
    if (sanitizing_ != key) return;
    fenced.ok() ? EraseDisk(key, epoch) : SanitizeStopped(key, epoch, fenced);
  });
}

void LogicalUnit::EraseDisk(uint64_t key, uint64_t epoch) {
  const std::weak_ptr<bool> alive = alive_;
  disk_->Sanitize(
      key, epoch,
      [this, alive, key](double part) {
        if (alive.expired() || sanitizing_ != key) return;
        sanitize_progress_ = static_cast<uint16_t>(std::clamp(part, 0.0, 0.9999) * 65536);
        SanitizeMoved();
      },
      [this, alive, key, epoch](const hydra::Status& ended) {
        if (alive.expired() || sanitizing_ != key) return;
        SanitizeStopped(key, epoch, ended);
      });
}

// It may have been another change (a reset, a reservation) that fenced it off, or its end: who
// helped with it then has nothing to say about it.
void LogicalUnit::SanitizeStopped(uint64_t key, uint64_t epoch, const hydra::Status& how) {
  if (how.code() != Code::kFenced) return SanitizeEnded(key, how);
  const std::weak_ptr<bool> alive = alive_;
  RefreshShared([this, alive, key, epoch](const hydra::Status& refreshed) {
    if (alive.expired() || sanitizing_ != key) return;
    const bool goes_on = refreshed.ok() && epoch_ > epoch &&
                         shared_.sanitize.phase == Phase::kUnderWay && shared_.sanitize.key == key;
    if (goes_on) return RunSanitize(key);
    sanitizing_ = 0;
    SanitizeMoved();
  });
}

Task<hydra::Status> LogicalUnit::FenceSanitize() {
  const uint64_t epoch = epoch_;
  const hydra::Status fenced = co_await Await<hydra::Status>(
      [this, epoch](auto done) { disk_->Fence(epoch, std::move(done)); });
  if (fenced.ok()) fenced_ = std::max(fenced_, epoch);
  co_return fenced;
}

// Of what nobody can know the outcome (the portal stops, the cluster was out of reach) nothing is
// said: it stays under way, and whoever is asked next goes on with it.
void LogicalUnit::SanitizeEnded(uint64_t key, const hydra::Status& how) {
  if (!how.ok()) {
    HYDRA_LOG_WARN("{}: SANITIZE: {}", options_.target_name, how.ToString());
  }
  if (how.code() == Code::kAborted) {
    sanitizing_ = 0;
    return SanitizeMoved();
  }
  const bool good = how.ok();
  const auto end = [key, good](SharedState* shared) {
    SanitizeState* sanitize = &shared->sanitize;
    if (sanitize->phase != Phase::kUnderWay || sanitize->key != key) return true;
    if (good) {
      *sanitize = {};
    } else {
      sanitize->phase = Phase::kFailed;
    }
    return true;
  };
  Start<hydra::Status>(ChangeShared(end),
                       [this, self = weak_from_this().lock()](const hydra::Status&) {
                         sanitizing_ = 0;
                         SanitizeMoved();
                       });
}

void LogicalUnit::SanitizeMoved() {
  for (const auto& waiter : std::exchange(sanitize_waiters_, {})) waiter(true);
}

}  // namespace hydra::iscsi
