// SPDX-License-Identifier: Apache-2.0
#include "daemon/linearizability.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "daemon/register_search.h"

namespace hydra::history {
namespace {

using Ops = std::vector<const Op*>;

std::string List(Ops ops) {
  std::sort(ops.begin(), ops.end(), [](const Op* a, const Op* b) { return a->id < b->id; });
  ops.erase(std::unique(ops.begin(), ops.end()), ops.end());
  std::string text;
  for (const Op* op : ops) text += "  " + op->ToString() + "\n";
  return text;
}

bool Changes(const Op& op) {
  return op.kind != OpKind::kRead && op.outcome != Outcome::kRefused &&
         op.outcome != Outcome::kMismatch;
}

// What the operation is known to have found in its i-th block.
std::optional<Value> Found(const Op& op, size_t i) {
  if (op.outcome == Outcome::kMismatch && !op.found.empty()) return op.found[i];
  if (op.outcome != Outcome::kOk) return std::nullopt;
  if (op.kind == OpKind::kRead) return op.accesses[i].value;
  if (op.kind == OpKind::kCompareAndWrite) return op.accesses[i].expected;
  return std::nullopt;
}

// --- Intervals -----------------------------------------------------------------------------------
//
// A value's write and all reads of it must be neighbours in the order. Let f be the first return
// among them and s the last invocation. If f < s, the value was in the register all the time from f
// to s; else it must have been, at least for a moment, some time from s to f. So no two intervals
// of the first kind may overlap, and none of the second kind may lie within one of the first; and
// that is enough.

struct ValueZone {
  Value value = kAbsent;
  const Op* write = nullptr;  // null: what was there at first
  const Op* first_returned = nullptr;
  const Op* last_invoked = nullptr;
  uint64_t f = 0;
  uint64_t s = 0;

  bool forward() const { return f < s; }
  void Add(const Op* op) {
    if (op->returned < f) {
      f = op->returned;
      first_returned = op;
    }
    if (op->invoked > s) {
      s = op->invoked;
      last_invoked = op;
    }
  }
  Ops Witnesses() const {
    Ops ops;
    for (const Op* op : {write, first_returned, last_invoked}) {
      if (op != nullptr) ops.push_back(op);
    }
    return ops;
  }
};

std::string Conflict(const ValueZone& a, const ValueZone& b) {
  Ops ops = a.Witnesses();
  for (const Op* op : b.Witnesses()) ops.push_back(op);
  const auto name = [](const ValueZone& c) {
    return c.value == kAbsent ? std::string("absent") : fmt::to_string(c.value);
  };
  return fmt::format("values {} and {} must have been there at the same time:\n{}", name(a),
                     name(b), List(std::move(ops)));
}

// "" or why not. Only for reads and writes, no value written twice, kAbsent never.
std::string CheckIntervals(Block block, const Ops& ops) {
  std::map<Value, ValueZone> zones;
  zones[kAbsent];  // in the register at position 0
  for (const Op* op : ops) {
    if (!Changes(*op)) continue;
    for (const Access& access : op->accesses) {
      if (access.block != block) continue;
      ValueZone& zone = zones[access.value];
      zone.value = access.value;
      zone.write = op;
      zone.f = Op::kNever;
      zone.s = 0;
      zone.Add(op);
    }
  }
  for (const Op* op : ops) {
    for (size_t i = 0; i < op->accesses.size(); ++i) {
      if (op->accesses[i].block != block || op->kind != OpKind::kRead || !Found(*op, i)) continue;
      ValueZone& zone = zones.at(*Found(*op, i));
      if (zone.write != nullptr && op->returned < zone.write->invoked) {
        return "read before it was written:\n" + List({zone.write, op});
      }
      zone.Add(op);
    }
  }
  // Unknown writes that nobody saw need not have happened.
  std::vector<const ValueZone*> forward;
  for (const auto& [value, zone] : zones) {
    if (zone.forward()) forward.push_back(&zone);
  }
  std::sort(forward.begin(), forward.end(),
            [](const ValueZone* a, const ValueZone* b) { return a->f < b->f; });
  for (size_t i = 1; i < forward.size(); ++i) {
    if (forward[i]->f < forward[i - 1]->s) return Conflict(*forward[i - 1], *forward[i]);
  }
  for (const auto& [value, zone] : zones) {
    if (zone.forward() || zone.f == Op::kNever) continue;
    const auto after =
        std::upper_bound(forward.begin(), forward.end(), zone.s,
                         [](uint64_t s, const ValueZone* other) { return s < other->f; });
    if (after == forward.begin()) continue;
    const ValueZone& other = **(after - 1);
    if (zone.f < other.s) return Conflict(other, zone);
  }
  return "";
}

// --- The checker
// -----------------------------------------------------------------------------------

class Checker {
 public:
  Checker(const History& history, const CheckOptions& options)
      : history_(history), options_(options) {}

  CheckResult Run() {
    if (Index() && CheckBlocks()) CheckAtomicity();
    return result_;
  }

 private:
  struct BlockHistory {
    Ops ops;
    std::map<Value, const Op*> writers;
    bool simple = true;  // reads and writes of its own values only
  };

  bool Index();
  bool CheckKnown(const Op& op);
  bool CheckBlocks();
  bool CheckBlock(Block block, const BlockHistory& history);
  void CheckAtomicity();
  bool CheckPair(Block x, Block y);
  bool Fail(const std::string& where, const std::string& why) {
    result_.ok = false;
    result_.explanation = where + ": " + why;
    return false;
  }
  // The write that op found in its i-th block also wrote the j-th, but op found another there.
  bool SawPartOfWrite(const Op& op, size_t i, size_t j) const;
  std::string Unexplained(const std::vector<RegisterOp>& ops) const;

  const History& history_;
  const CheckOptions options_;
  std::map<Block, BlockHistory> blocks_;
  CheckResult result_;
};

bool Checker::Index() {
  for (const Op& op : history_.ops()) {
    if (op.outcome != Outcome::kUnknown) ++result_.operations;
    for (const Access& access : op.accesses) {
      BlockHistory& block = blocks_[access.block];
      if (!block.ops.empty() && block.ops.back() == &op) {
        return Fail(fmt::format("block {}", access.block),
                    "twice in one operation:\n" + List({&op}));
      }
      block.ops.push_back(&op);
      if (op.kind == OpKind::kCompareAndWrite) block.simple = false;
      if (!Changes(op)) continue;
      if (access.value == kAbsent) {
        block.simple = false;
      } else if (const auto [old, fresh] = block.writers.emplace(access.value, &op); !fresh) {
        return Fail(fmt::format("block {}", access.block),
                    "the test wrote the same value twice:\n" + List({old->second, &op}));
      }
    }
  }
  result_.blocks = blocks_.size();
  for (const Op& op : history_.ops()) {
    if (!CheckKnown(op)) return false;
  }
  return true;
}

// Whatever was found had been written by somebody who was not refused.
bool Checker::CheckKnown(const Op& op) {
  for (size_t i = 0; i < op.accesses.size(); ++i) {
    const std::optional<Value> found = Found(op, i);
    if (!found.has_value() || *found == kAbsent) continue;
    const BlockHistory& block = blocks_.at(op.accesses[i].block);
    if (block.writers.contains(*found)) continue;
    Ops involved = {&op};
    for (const Op* other : block.ops) {
      if (other->kind == OpKind::kRead) continue;
      for (const Access& a : other->accesses) {
        if (a.block == op.accesses[i].block && a.value == *found) involved.push_back(other);
      }
    }
    const char* why = involved.size() > 1 ? "was refused" : "nobody wrote";
    return Fail(fmt::format("block {}", op.accesses[i].block),
                fmt::format("{} was found, which {}:\n{}", *found, why, List(involved)));
  }
  if (op.outcome == Outcome::kMismatch && !op.found.empty()) {
    bool differs = false;
    for (size_t i = 0; i < op.accesses.size(); ++i) {
      differs |= op.found[i] != op.accesses[i].expected;
    }
    if (!differs) return Fail("a mismatch", "all was as expected:\n" + List({&op}));
  }
  return true;
}

bool Checker::CheckBlocks() {
  for (const auto& [block, history] : blocks_) {
    if (!CheckBlock(block, history)) return false;
  }
  return true;
}

bool Checker::CheckBlock(Block block, const BlockHistory& history) {
  if (history.simple && !options_.always_search) {
    const std::string problem = CheckIntervals(block, history.ops);
    return problem.empty() || Fail(fmt::format("block {}", block), problem);
  }
  ++result_.searched;
  const std::vector<RegisterOp> ops = Project(history.ops, {block});
  const SearchResult result = SearchOrder(ops, options_.max_steps);
  if (result.verdict == SearchResult::Verdict::kUndecided) ++result_.undecided;
  if (result.verdict != SearchResult::Verdict::kViolation) return true;
  return Fail(fmt::format("block {}", block), Unexplained(ops));
}

std::string Checker::Unexplained(const std::vector<RegisterOp>& ops) const {
  Ops few;
  for (const size_t id : Minimize(ops, options_.max_steps)) few.push_back(&history_.ops()[id]);
  return "no order explains these:\n" + List(std::move(few));
}

bool Checker::SawPartOfWrite(const Op& op, size_t i, size_t j) const {
  const BlockHistory& block = blocks_.at(op.accesses[i].block);
  const auto writer = block.writers.find(*Found(op, i));
  if (writer == block.writers.end()) return false;
  for (const Access& other : writer->second->accesses) {
    if (other.block == op.accesses[j].block) return other.value != *Found(op, j);
  }
  return false;
}

void Checker::CheckAtomicity() {
  using Pair = std::pair<Block, Block>;
  std::set<Pair> mixed;       // either write should have hidden the other
  std::set<Pair> suspicious;  // one of them should have come later
  std::set<Pair> others;
  for (const Op& op : history_.ops()) {
    const bool found = Found(op, 0).has_value();
    for (size_t i = 0; i < op.accesses.size(); ++i) {
      for (size_t j = i + 1; j < op.accesses.size(); ++j) {
        const Pair pair = std::minmax(op.accesses[i].block, op.accesses[j].block);
        const bool one = found && SawPartOfWrite(op, i, j);
        const bool other = found && SawPartOfWrite(op, j, i);
        (one && other ? mixed : one || other ? suspicious : others).insert(pair);
      }
    }
  }
  std::set<Pair> done;
  for (const std::set<Pair>* pairs : {&mixed, &suspicious}) {
    for (const Pair& pair : *pairs) {
      if (!done.insert(pair).second) continue;
      if (result_.pairs >= options_.max_pairs) {
        ++result_.undecided;
      } else if (!CheckPair(pair.first, pair.second)) {
        return;
      }
    }
  }
  const size_t stride = others.size() / std::max<size_t>(1, options_.sampled_pairs) + 1;
  size_t index = 0;
  for (const Pair& pair : others) {
    if (index++ % stride != 0 || !done.insert(pair).second) continue;
    if (!CheckPair(pair.first, pair.second)) return;
  }
}

bool Checker::CheckPair(Block x, Block y) {
  ++result_.pairs;
  Ops both;
  const Ops& a = blocks_.at(x).ops;
  const Ops& b = blocks_.at(y).ops;
  std::set_union(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both),
                 [](const Op* one, const Op* other) { return one->id < other->id; });
  const std::vector<RegisterOp> ops = Project(both, {x, y});
  const SearchResult result = SearchOrder(ops, options_.max_steps);
  if (result.verdict == SearchResult::Verdict::kUndecided) ++result_.undecided;
  if (result.verdict != SearchResult::Verdict::kViolation) return true;
  return Fail(fmt::format("blocks {} and {} together", x, y), Unexplained(ops));
}

}  // namespace

CheckResult CheckLinearizable(const History& history, const CheckOptions& options) {
  return Checker(history, options).Run();
}

}  // namespace hydra::history
