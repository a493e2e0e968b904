// SPDX-License-Identifier: Apache-2.0
#include "paxos/invariants.h"

#include <algorithm>

#include <fmt/format.h>

namespace hydra::paxos {

Invariants::Snapshot Invariants::Take(const Replica& r) {
  return {r.promised_, r.durable_promise_, r.applied_, r.commit_, r.config_.instance(),
          r.mode_,     r.ballot_,          r.active_};
}

#define HYDRA_INVARIANT(number, condition) \
  if (!(condition)) return fmt::format("invariant {}: {}", number, #condition)

std::string Invariants::State(const Replica& r) {
  HYDRA_INVARIANT(1, r.durable_promise_ <= r.promised_);
  HYDRA_INVARIANT(2, r.applied_ <= r.commit_);
  HYDRA_INVARIANT(3, r.commit_ - r.applied_ <= r.slots_.size());
  HYDRA_INVARIANT(4, r.commit_ <= r.commit_heard_);
  // A restart may find more accepted than it finds applied.
  const uint64_t limit = r.options_.apply_backlog + uint64_t{4} * r.options_.window_instances;
  HYDRA_INVARIANT(5, r.slots_.size() <= std::max<uint64_t>(r.recovered_slots_, limit));
  for (size_t i = 0; i < r.slots_.size(); ++i) {
    const Replica::Slot& slot = r.slots_[i];
    const Instance instance = r.applied_ + 1 + i;
    HYDRA_INVARIANT(6, slot.ballot <= r.promised_);
    HYDRA_INVARIANT(7, instance > r.commit_ || slot.chosen);
    HYDRA_INVARIANT(8, !slot.chosen || (slot.ballot != Ballot{} && !slot.faulty));
    HYDRA_INVARIANT(9, slot.meta.kind != EntryKind::kConfig ||
                           (slot.meta.config && slot.meta.config->instance() == instance));
  }
  if (r.mode_ == Mode::kMaster) {
    HYDRA_INVARIANT(10, r.promised_ == r.ballot_ && r.ballot_.node == r.options_.self.node);
    HYDRA_INVARIANT(11, r.durable_promise_ == r.ballot_);
    HYDRA_INVARIANT(12, !r.active_ || (r.noop_ != 0 && r.commit_ >= r.noop_));
    HYDRA_INVARIANT(
        13, r.next_ > r.commit_ && r.next_ - 1 - r.commit_ <= uint64_t{r.options_.apply_backlog} +
                                                                  4 * r.options_.window_instances);
    HYDRA_INVARIANT(14, r.config_at_ == 0 || r.next_ == r.config_at_ + 1);
    HYDRA_INVARIANT(15, !r.suspect_ && !r.install_.active);
    HYDRA_INVARIANT(25, r.config_.IsVoter(r.options_.self));
    for (Instance i = r.commit_ + 1; i < r.next_; ++i) {
      HYDRA_INVARIANT(16, r.Find(i) != nullptr && r.Find(i)->ballot == r.ballot_);
    }
  } else {
    HYDRA_INVARIANT(17, !r.active_ && r.peers_.empty());
  }
  for (size_t i = 1; i < r.pending_.size(); ++i) {
    HYDRA_INVARIANT(18, r.pending_[i - 1].token < r.pending_[i].token);
  }
  return {};
}

std::string Invariants::Step(const Snapshot& before, const Replica& r) {
  HYDRA_INVARIANT(19, before.promised <= r.promised_);
  HYDRA_INVARIANT(20, before.durable_promise <= r.durable_promise_);
  HYDRA_INVARIANT(21, before.applied <= r.applied_);
  HYDRA_INVARIANT(22, before.commit <= r.commit_);
  HYDRA_INVARIANT(23, before.config <= r.config_.instance());
  // A ballot belongs to one mastership: once given up, it is never taken again.
  HYDRA_INVARIANT(24, !(before.mode == Mode::kFollower && r.mode_ == Mode::kMaster &&
                        before.ballot == r.ballot_ && before.promised == r.ballot_ &&
                        r.config_.majority() > 1));
  return {};
}

}  // namespace hydra::paxos
