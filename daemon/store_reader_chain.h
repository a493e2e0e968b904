// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

namespace hydra::store_reader {

// What the chain needs to know of a batch.
struct Link {
  uint64_t number = 0;
  uint32_t crc = 0;
  uint32_t chain = 0;
  uint32_t generation = 0;
  uint32_t segment = 0;
  uint32_t page = 0;
};

// Batch numbers that are nowhere: from `first` up to, not including, `end`.
struct Hole {
  uint64_t first = 0;
  uint64_t end = 0;
};

// Puts the batches of both lanes, which come in any order, back into one chain and checks each
// joint. Batches that follow each other are kept as one run, so a healthy store of any size needs
// a handful of runs. One thread.
class ChainSet {
 public:
  using OnBreak = std::function<void(const Link& before, const Link& after)>;

  // `on_break` hears of each joint where the chain does not fit or the generation goes back.
  explicit ChainSet(OnBreak on_break) : on_break_(std::move(on_break)) {}

  // False, and nothing happens, if the number is there already.
  bool Add(const Link& link) {
    auto right = runs_.upper_bound(link.number);
    auto left = right == runs_.begin() ? runs_.end() : std::prev(right);
    if (left != runs_.end() && left->second.last.number >= link.number) return false;
    const bool joins_left = left != runs_.end() && left->second.last.number + 1 == link.number;
    const bool joins_right = right != runs_.end() && right->first == link.number + 1;
    if (joins_left) Check(left->second.last, link);
    if (joins_right) Check(link, right->second.first);
    const Run merged{joins_left ? left->second.first : link,
                     joins_right ? right->second.last : link};
    if (joins_right) runs_.erase(right);
    if (joins_left) runs_.erase(left);
    runs_.emplace(merged.first.number, merged);
    return true;
  }

  // Generation of the batch before this number, 0 if that is not there or not the end of a run.
  uint32_t GenerationBefore(uint64_t number) const {
    auto it = runs_.lower_bound(number);
    if (it == runs_.begin()) return 0;
    const Link& last = std::prev(it)->second.last;
    return last.number + 1 == number ? last.generation : 0;
  }

  // Holes among the numbers from 1 up to, not including, `end`.
  std::vector<Hole> Holes(uint64_t end) const {
    std::vector<Hole> holes;
    uint64_t next = 1;
    for (const auto& [first, run] : runs_) {
      if (first > next) holes.push_back({next, first});
      next = run.last.number + 1;
    }
    if (next < end) holes.push_back({next, end});
    return holes;
  }

  uint64_t greatest() const { return runs_.empty() ? 0 : runs_.rbegin()->second.last.number; }

 private:
  struct Run {
    Link first;
    Link last;
  };

  void Check(const Link& before, const Link& after) const {
    if (after.chain != before.crc || after.generation < before.generation) {
      on_break_(before, after);
    }
  }

  OnBreak on_break_;
  std::map<uint64_t, Run> runs_;  // by first number
};

}  // namespace hydra::store_reader
