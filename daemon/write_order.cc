// SPDX-License-Identifier: Apache-2.0
#include "daemon/write_order.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"

namespace hydra {

void WriteOrder::NotePending(Instance instance, Lba lba, uint64_t count) {
  HYDRA_CHECK(count >= 1 && lba + count > lba);
  HYDRA_CHECK(HasRoom(1));
  HYDRA_CHECK(instance >= 1 && (notes_.empty() || instance >= notes_.back().instance));
  const Lba end = lba + count;
  notes_.push_back({instance, lba, end});
  // The new stretch is the newest of all its blocks, so it replaces what is there.
  CutAt(lba);
  CutAt(end);
  auto at = stretches_.lower_bound(lba);
  if (at != stretches_.end() && at->first == lba) {
    at->second = {end, instance};
  } else {
    at = stretches_.emplace_hint(at, lba, Stretch{end, instance});
  }
  ++at;
  while (at != stretches_.end() && at->first < end) at = stretches_.erase(at);
}

// Makes a border at `lba`: the stretch across it, if any, becomes two.
void WriteOrder::CutAt(Lba lba) {
  const auto at = stretches_.lower_bound(lba);
  if (at == stretches_.begin()) return;
  Stretch& before = std::prev(at)->second;
  if (before.end <= lba) return;
  stretches_.emplace_hint(at, lba, before);
  before.end = lba;
}

void WriteOrder::Applied(Instance instance) {
  while (!notes_.empty() && notes_.front().instance <= instance) {
    const Note note = notes_.front();
    notes_.pop_front();
    // What is left of the note lies between its ends; newer notes have taken the rest.
    auto at = stretches_.lower_bound(note.begin);
    while (at != stretches_.end() && at->first < note.end) {
      at = at->second.newest <= instance ? stretches_.erase(at) : std::next(at);
    }
  }
  HYDRA_CHECK(!notes_.empty() || stretches_.empty());
}

void WriteOrder::Clear() {
  notes_.clear();
  stretches_.clear();
}

WriteOrder::Stretches::const_iterator WriteOrder::FirstBehind(Lba lba) const {
  const auto at = stretches_.upper_bound(lba);
  if (at == stretches_.begin()) return at;
  const auto before = std::prev(at);
  return before->second.end > lba ? before : at;
}

Instance WriteOrder::Newest(Lba lba, uint64_t count) const {
  HYDRA_CHECK(count >= 1 && lba + count > lba);
  Instance newest = 0;
  for (auto at = FirstBehind(lba); at != stretches_.end() && at->first < lba + count; ++at) {
    newest = std::max(newest, at->second.newest);
  }
  return newest;
}

}  // namespace hydra
