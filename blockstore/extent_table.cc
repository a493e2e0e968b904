// SPDX-License-Identifier: Apache-2.0
#include "blockstore/extent_table.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "base/check.h"

namespace hydra {

SegmentSlots::Slot SegmentSlots::Of(SegmentNumber segment) {
  const auto [it, inserted] = slots_.try_emplace(segment, kUnknown);
  if (!inserted) return it->second;
  if (free_.empty()) {
    HYDRA_CHECK(segments_.size() <= std::numeric_limits<Slot>::max());
    free_.push_back(static_cast<Slot>(segments_.size()));
    segments_.push_back(0);
  }
  const Slot slot = free_.back();
  free_.pop_back();
  segments_[slot] = segment;
  it->second = slot;
  return slot;
}

void SegmentSlots::Release(SegmentNumber segment) {
  const auto found = slots_.find(segment);
  if (found == slots_.end()) return;
  segments_[found->second] = 0;
  free_.push_back(found->second);
  slots_.erase(found);
}

ExtentTable::ExtentTable(uint32_t block_pages, SegmentSlots* slots)
    : blocks_per_extent_(kExtentPages / block_pages), slots_(slots) {}

ExtentTable::State& ExtentTable::At(Extent extent) {
  State& state = extents_[extent];
  if (!state.slots) {
    state.slots = std::make_unique<SegmentSlots::Slot[]>(blocks_per_extent_);
  }
  return state;
}

void ExtentTable::MarkDirty(Extent extent, State* state) {
  if (state->dirty) return;
  state->dirty = true;
  dirty_.push_back(extent);
}

void ExtentTable::NoteMoved(Extent extent, SegmentNumber from, SegmentNumber to) {
  if (from == to) return;
  if (to == kOwedSegment) {
    ++owed_[extent];
    ++owed_blocks_;
  } else if (from == kOwedSegment) {
    const auto found = owed_.find(extent);
    if (--found->second == 0) owed_.erase(found);
    --owed_blocks_;
  }
}

std::vector<Lba> ExtentTable::OwedFrom(Lba from, size_t limit) const {
  std::vector<Lba> owed;
  for (auto it = owed_.lower_bound(from / blocks_per_extent_);
       it != owed_.end() && owed.size() < limit; ++it) {
    const Lba first = it->first * blocks_per_extent_;
    for (uint32_t i = 0; i < blocks_per_extent_ && owed.size() < limit; ++i) {
      if (first + i >= from && SegmentOf(first + i) == kOwedSegment) owed.push_back(first + i);
    }
  }
  return owed;
}

bool ExtentTable::IsData(Lba lba) const {
  const auto found = extents_.find(lba / blocks_per_extent_);
  return found != extents_.end() && found->second.Has(lba % blocks_per_extent_);
}

SegmentNumber ExtentTable::SegmentOf(Lba lba) const {
  const auto found = extents_.find(lba / blocks_per_extent_);
  const auto i = static_cast<uint32_t>(lba % blocks_per_extent_);
  if (found == extents_.end() || !found->second.Has(i)) return 0;
  return slots_->Segment(found->second.slots[i]);
}

SegmentNumber ExtentTable::SetData(Lba lba, SegmentNumber segment) {
  const Extent extent = lba / blocks_per_extent_;
  const auto i = static_cast<uint32_t>(lba % blocks_per_extent_);
  State& state = At(extent);
  SegmentNumber before = 0;
  if (state.Has(i)) {
    before = slots_->Segment(state.slots[i]);
  } else {
    state.present[i / 64] |= uint64_t{1} << (i % 64);
    MarkDirty(extent, &state);
    ++data_blocks_;
  }
  state.slots[i] = slots_->Of(segment);
  NoteMoved(extent, before, segment);
  return before;
}

SegmentNumber ExtentTable::Clear(Lba lba) {
  const Extent extent = lba / blocks_per_extent_;
  const auto i = static_cast<uint32_t>(lba % blocks_per_extent_);
  const auto found = extents_.find(extent);
  if (found == extents_.end() || !found->second.Has(i)) return 0;
  State& state = found->second;
  const SegmentNumber before = slots_->Segment(state.slots[i]);
  state.present[i / 64] &= ~(uint64_t{1} << (i % 64));
  state.slots[i] = SegmentSlots::kUnknown;
  MarkDirty(extent, &state);
  NoteMoved(extent, before, 0);
  --data_blocks_;
  return before;
}

std::vector<Extent> ExtentTable::ExtentsIn(Lba from, Lba to) const {
  std::vector<Extent> found;
  if (from >= to) return found;
  const Extent first = from / blocks_per_extent_;
  const Extent last = (to - 1) / blocks_per_extent_;
  const auto has_data = [](const State& state) {
    return state.present != decltype(state.present){};
  };
  if (last - first < extents_.size()) {
    for (Extent extent = first; extent <= last; ++extent) {
      const auto it = extents_.find(extent);
      if (it != extents_.end() && has_data(it->second)) found.push_back(extent);
    }
    return found;
  }
  for (const auto& [extent, state] : extents_) {
    if (extent >= first && extent <= last && has_data(state)) found.push_back(extent);
  }
  std::sort(found.begin(), found.end());
  return found;
}

void ExtentTable::LoadPresence(Extent extent, std::string_view bitmap) {
  State& state = At(extent);
  // A row is the words of `present` as they lie in memory (little-endian).
  std::array<uint64_t, 4> words{};
  std::memcpy(words.data(), bitmap.data(), std::min(bitmap.size(), BitmapBytes()));
  for (size_t w = 0; w < words.size(); ++w) {
    data_blocks_ += static_cast<uint64_t>(std::popcount(words[w] & ~state.present[w]));
    state.present[w] |= words[w];
  }
}

bool ExtentTable::LoadSegment(Lba lba, SegmentNumber segment) {
  const auto found = extents_.find(lba / blocks_per_extent_);
  const auto i = static_cast<uint32_t>(lba % blocks_per_extent_);
  if (found == extents_.end() || !found->second.Has(i)) return false;
  if (found->second.slots[i] != SegmentSlots::kUnknown) return false;
  found->second.slots[i] = slots_->Of(segment);
  NoteMoved(lba / blocks_per_extent_, 0, segment);
  return true;
}

std::vector<std::pair<Extent, std::string>> ExtentTable::TakeDirty() {
  std::sort(dirty_.begin(), dirty_.end());
  std::vector<std::pair<Extent, std::string>> rows;
  rows.reserve(dirty_.size());
  for (Extent extent : dirty_) {
    const auto found = extents_.find(extent);
    State& state = found->second;
    state.dirty = false;
    const bool any = state.present != decltype(state.present){};
    const auto* bytes = reinterpret_cast<const char*>(state.present.data());
    rows.emplace_back(extent, any ? std::string(bytes, BitmapBytes()) : std::string());
    if (!any) extents_.erase(found);
  }
  dirty_.clear();
  return rows;
}

}  // namespace hydra
