// SPDX-License-Identifier: Apache-2.0
#include "daemon/range_locks.h"

#include <algorithm>

#include "base/check.h"

namespace hydra {

RangeLocks::Answer RangeLocks::Acquire(Ticket ticket, Lba lba, uint64_t count) {
  HYDRA_CHECK(count >= 1 && lba + count > lba);
  if (locks_.size() >= kMaxLocks) return Answer::kBusy;
  Lock lock{ticket, lba, lba + count, 0};
  for (const Lock& earlier : locks_) {
    HYDRA_CHECK(earlier.ticket != ticket);
    if (earlier.Overlaps(lock.begin, lock.end)) ++lock.waits_for;
  }
  locks_.push_back(lock);
  return lock.waits_for == 0 ? Answer::kGranted : Answer::kQueued;
}

std::vector<RangeLocks::Ticket> RangeLocks::Release(Ticket ticket) {
  std::vector<Ticket> granted;
  const auto gone = std::find_if(locks_.begin(), locks_.end(),
                                 [ticket](const Lock& lock) { return lock.ticket == ticket; });
  if (gone == locks_.end()) return granted;
  for (auto later = gone + 1; later != locks_.end(); ++later) {
    if (!later->Overlaps(gone->begin, gone->end)) continue;
    HYDRA_CHECK(later->waits_for > 0);
    if (--later->waits_for == 0) granted.push_back(later->ticket);
  }
  locks_.erase(gone);
  return granted;
}

std::vector<RangeLocks::Ticket> RangeLocks::Clear() {
  std::vector<Ticket> tickets;
  tickets.reserve(locks_.size());
  for (const Lock& lock : locks_) tickets.push_back(lock.ticket);
  locks_.clear();
  return tickets;
}

bool RangeLocks::IsFree(Lba lba, uint64_t count) const {
  HYDRA_CHECK(count >= 1 && lba + count > lba);
  return std::none_of(locks_.begin(), locks_.end(),
                      [lba, count](const Lock& lock) { return lock.Overlaps(lba, lba + count); });
}

bool RangeLocks::Holds(Ticket ticket) const {
  return std::any_of(locks_.begin(), locks_.end(), [ticket](const Lock& lock) {
    return lock.ticket == ticket && lock.waits_for == 0;
  });
}

}  // namespace hydra
