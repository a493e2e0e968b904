// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>

#include "blockstore/types.h"

namespace hydra {

// Where a group's accepted entries lie: instance -> record, for the instances after the truncation
// point. 32 bytes an entry; instances that were never accepted leave a hole, unless it is a large
// one (a replica that installs an image goes on accepting, far ahead of what it has applied): what
// lies before a large hole is kept in a tree. One thread.
class LogIndex {
 public:
  struct Slot {
    Ballot ballot;
    SegmentNumber segment = 0;  // 0: nothing accepted here
    uint32_t batch_page = 0;
    uint32_t record_offset = 0;
    uint16_t payload_pages = 0;
    bool faulty = false;
  };

  Instance truncated() const { return truncated_; }
  // Highest instance with an entry; truncated() if there is none.
  Instance last() const {
    if (!slots_.empty()) return base_ + slots_.size();
    return before_.empty() ? truncated_ : before_.rbegin()->first;
  }

  const Slot* Find(Instance instance) const {
    if (instance <= base_) {
      const auto found = before_.find(instance);
      return found == before_.end() ? nullptr : &found->second;
    }
    if (instance > base_ + slots_.size()) return nullptr;
    const Slot& slot = slots_[instance - base_ - 1];
    return slot.segment == 0 ? nullptr : &slot;
  }
  Slot* Find(Instance instance) {
    return const_cast<Slot*>(static_cast<const LogIndex*>(this)->Find(instance));
  }

  // Replaces what was there. Instances up to the truncation point are ignored.
  void Put(Instance instance, const Slot& slot) {
    if (instance <= truncated_) return;
    if (instance > base_ + slots_.size() + kLargestHole) MoveBase(instance - 1);
    if (instance <= base_) {
      before_[instance] = slot;
      return;
    }
    if (instance > base_ + slots_.size()) slots_.resize(instance - base_);
    slots_[instance - base_ - 1] = slot;
  }

  void Truncate(Instance instance) {
    before_.erase(before_.begin(), before_.upper_bound(instance));
    while (base_ < instance && !slots_.empty()) {
      slots_.pop_front();
      ++base_;
    }
    base_ = std::max(base_, instance);
    truncated_ = std::max(truncated_, instance);
  }

  // Calls `each(instance, slot)` for the entries in [from, to], in order.
  template <typename Each>
  void ForEach(Instance from, Instance to, Each each) const {
    for (auto it = before_.lower_bound(from); it != before_.end() && it->first <= to; ++it) {
      each(it->first, it->second);
    }
    const Instance end = std::min(to, base_ + slots_.size());
    for (Instance i = std::max(from, base_ + 1); i <= end; ++i) {
      if (slots_[i - base_ - 1].segment != 0) each(i, slots_[i - base_ - 1]);
    }
  }

  // Highest instance up to `limit` whose record lies in `segment`; 0 if none.
  Instance HighestIn(SegmentNumber segment, Instance limit) const {
    for (Instance i = std::min(limit, base_ + slots_.size()); i > base_; --i) {
      if (slots_[i - base_ - 1].segment == segment) return i;
    }
    for (auto it = before_.upper_bound(limit); it != before_.begin();) {
      if ((--it)->second.segment == segment) return it->first;
    }
    return 0;
  }

 private:
  static constexpr Instance kLargestHole = 2 * kMaxOpenInstances;

  // From now on the entries up to `base` are in the tree.
  void MoveBase(Instance base) {
    for (; base_ < base && !slots_.empty(); ++base_) {
      if (slots_.front().segment != 0)
        before_.emplace_hint(before_.end(), base_ + 1, slots_.front());
      slots_.pop_front();
    }
    base_ = std::max(base_, base);
  }

  Instance truncated_ = 0;
  Instance base_ = 0;  // slots_[0] is the entry behind it; at least truncated_
  std::deque<Slot> slots_;
  std::map<Instance, Slot> before_;  // entries up to base_
};

}  // namespace hydra
