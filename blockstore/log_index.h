// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>

#include "blockstore/types.h"

namespace hydra {

// Where a group's accepted entries lie: instance -> record, for the instances after the truncation
// point. 32 bytes an entry; instances that were never accepted leave a hole. One thread.
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
  Instance last() const { return truncated_ + slots_.size(); }

  const Slot* Find(Instance instance) const {
    if (instance <= truncated_ || instance > last()) return nullptr;
    const Slot& slot = slots_[instance - truncated_ - 1];
    return slot.segment == 0 ? nullptr : &slot;
  }
  Slot* Find(Instance instance) {
    return const_cast<Slot*>(static_cast<const LogIndex*>(this)->Find(instance));
  }

  // Replaces what was there. Instances up to the truncation point are ignored.
  void Put(Instance instance, const Slot& slot) {
    if (instance <= truncated_) return;
    if (instance > last()) slots_.resize(instance - truncated_);
    slots_[instance - truncated_ - 1] = slot;
  }

  void Truncate(Instance instance) {
    while (truncated_ < instance && !slots_.empty()) {
      slots_.pop_front();
      ++truncated_;
    }
    if (truncated_ < instance) truncated_ = instance;
  }

  // Highest instance up to `limit` whose record lies in `segment`; 0 if none.
  Instance HighestIn(SegmentNumber segment, Instance limit) const {
    for (Instance i = std::min(limit, last()); i > truncated_; --i) {
      if (slots_[i - truncated_ - 1].segment == segment) return i;
    }
    return 0;
  }

 private:
  Instance truncated_ = 0;
  std::deque<Slot> slots_;
};

}  // namespace hydra
