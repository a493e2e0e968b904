// SPDX-License-Identifier: Apache-2.0
#include "daemon/register_search.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/check.h"

namespace hydra::history {
namespace {

constexpr size_t kRegisters = RegisterOp::kRegisters;
constexpr uint64_t kMinimizeFactor = 16;  // how much more work than a search it may be
constexpr size_t kMaxOpen = 64;           // certain operations open at once: bits of a mask
// A value that nobody asks for, or will ask for any more.
constexpr Value kUnasked = 1;
constexpr Value kFirstAsked = 2;

using Values = std::array<Value, kRegisters>;

bool Bit(uint8_t mask, size_t i) { return (mask >> i & 1) != 0; }

// Whether an operation may take effect on registers that hold `state`.
bool Allowed(const RegisterOp& op, const Values& state) {
  bool equal = true;
  for (size_t r = 0; r < kRegisters; ++r) {
    if (Bit(op.needs, r) && state[r] != op.need[r]) equal = false;
  }
  return op.differs ? !equal : equal;
}

// Unknown operations that do the same. They never return.
struct Alike {
  RegisterOp op;
  std::vector<uint64_t> invoked;  // ascending
  // Index into Situation::used; -1 if they need a value that is written only once: whichever takes
  // effect overwrites it, so no other can.
  int counter = -1;
};

struct Situation {
  Values state{};
  uint64_t done = 0;           // bit s: the operation in slot s has taken effect
  std::vector<uint16_t> used;  // how many of each class of unknown operations
  friend auto operator<=>(const Situation&, const Situation&) = default;
};

// Situations, without those that another one is better than: one in which the same is done and
// held, and no more unknown operations are used up.
class Situations {
 public:
  bool Add(const Situation& s) {
    std::vector<std::vector<uint16_t>>& all = map_[{s.state, s.done}];
    for (const std::vector<uint16_t>& used : all) {
      if (NoneGreater(used, s.used)) return false;
    }
    std::erase_if(all, [&](const auto& used) { return NoneGreater(s.used, used); });
    all.push_back(s.used);
    return true;
  }

  template <typename Call>
  void ForEach(const Call& call) const {
    for (const auto& [key, all] : map_) {
      for (const std::vector<uint16_t>& used : all) call(Situation{key.first, key.second, used});
    }
  }
  bool empty() const { return map_.empty(); }

 private:
  static bool NoneGreater(const std::vector<uint16_t>& a, const std::vector<uint16_t>& b) {
    for (size_t i = 0; i < a.size(); ++i) {
      if (a[i] > b[i]) return false;
    }
    return true;
  }

  std::map<std::pair<Values, uint64_t>, std::vector<std::vector<uint16_t>>> map_;
};

// Which unknown operations that nobody saw are considered. Fewer make a quicker search, and if it
// finds an order, that is an order. Only if it does not, more are needed.
enum class Unseen {
  kNone,
  kPlainDeletes,  // those that can explain an absent value, whatever was there
  kDeletes,       // ... and those that need a value, and those they build upon
  kAll,           // those that can explain a mismatch as well
};

class Search {
 public:
  Search(const std::vector<RegisterOp>& ops, Unseen unseen, uint64_t max_steps)
      : ops_(ops), unseen_(unseen), max_steps_(max_steps) {
    FindCertain();
    LeaveOutNeedless();
    NumberValues();
    Sort();
  }

  SearchResult Run();

 private:
  struct Event {
    uint64_t time;  // twice the position in the history, to make room between
    bool is_return;
    size_t op;
  };

  void FindCertain();
  void LeaveOutNeedless();
  void NumberValues();
  void Sort();

  bool Open(size_t op);
  void Close(size_t op);
  // Lets an operation take effect. False if that overwrites a value that somebody has yet to see:
  // nobody writes it a second time.
  bool Take(const RegisterOp& op, Situation* s) const;
  // Adds the situations reachable from `from` in which the operation in `slot` took effect.
  bool Reach(const Situation& from, size_t slot, Situations* visited, Situations* reached);
  void DoReads(Situation* s) const;
  void DoHidden(const RegisterOp& by, Situation* s) const;
  bool MayHelp(const RegisterOp& unknown, const Situation& s) const;
  bool Step() { return ++result_.steps <= max_steps_; }
  size_t Available(const Alike& alike) const {
    return static_cast<size_t>(std::upper_bound(alike.invoked.begin(), alike.invoked.end(), now_) -
                               alike.invoked.begin());
  }

  // Of a value in a register: who asks for it.
  struct Asked {
    size_t seers = 0;     // operations that certainly found it there, and did not return yet
    size_t mentions = 0;  // ... or to which it makes any difference
  };

  std::vector<RegisterOp> ops_;
  const Unseen unseen_;
  std::vector<bool> kept_;
  bool mismatches_ = false;
  std::array<std::vector<Asked>, kRegisters> asked_;  // by number of the value
  const uint64_t max_steps_;
  std::vector<Alike> unknown_;
  int counters_ = 0;
  std::vector<Event> events_;

  uint64_t now_ = 0;
  std::array<const RegisterOp*, kMaxOpen> slots_{};
  std::map<size_t, size_t> slot_of_;
  uint64_t taken_ = 0;  // slots
  uint64_t reads_ = 0;  // slots of operations that set nothing
  Situations situations_;
  SearchResult result_;
};

// An unknown write whose value was seen took effect, before the one who saw it returned.
void Search::FindCertain() {
  std::map<std::pair<size_t, Value>, size_t> writer;
  for (size_t i = 0; i < ops_.size(); ++i) {
    ops_[i].invoked *= 2;
    if (ops_[i].returned != Op::kNever) ops_[i].returned *= 2;
    for (size_t r = 0; r < kRegisters; ++r) {
      if (Bit(ops_[i].sets, r) && ops_[i].set[r] != kAbsent) writer[{r, ops_[i].set[r]}] = i;
    }
  }
  std::vector<size_t> worklist;
  for (size_t i = 0; i < ops_.size(); ++i) {
    if (ops_[i].certain) worklist.push_back(i);
  }
  while (!worklist.empty()) {
    const RegisterOp seer = ops_[worklist.back()];
    worklist.pop_back();
    if (seer.differs) continue;
    for (size_t r = 0; r < kRegisters; ++r) {
      const auto seen = Bit(seer.needs, r) ? writer.find({r, seer.need[r]}) : writer.end();
      if (seen == writer.end() || seer.returned == Op::kNever) continue;
      RegisterOp& op = ops_[seen->second];
      // Only unknown ones gain: for the others it is known when they returned.
      if (op.certain && op.returned <= seer.returned + 1) continue;
      if (op.certain && op.returned % 2 == 0) continue;
      op.certain = true;
      op.returned = seer.returned + 1;
      worklist.push_back(seen->second);
    }
  }
}

void Search::LeaveOutNeedless() {
  kept_.assign(ops_.size(), false);
  mismatches_ =
      std::any_of(ops_.begin(), ops_.end(), [](const RegisterOp& op) { return op.differs; });
  for (size_t i = 0; i < ops_.size(); ++i) {
    kept_[i] = ops_[i].certain || (unseen_ == Unseen::kAll && mismatches_);
  }
  if (unseen_ == Unseen::kNone) return;
  std::set<std::pair<size_t, Value>> built_upon;
  bool more = true;
  while (more) {
    more = false;
    for (size_t i = 0; i < ops_.size(); ++i) {
      const RegisterOp& op = ops_[i];
      if (kept_[i]) continue;
      bool keep = false;
      for (size_t r = 0; r < kRegisters; ++r) {
        if (!Bit(op.sets, r) || (unseen_ == Unseen::kPlainDeletes && op.needs != 0)) continue;
        if (op.set[r] == kAbsent || built_upon.contains({r, op.set[r]})) keep = true;
      }
      if (!keep) continue;
      kept_[i] = true;
      more = true;
      for (size_t r = 0; r < kRegisters; ++r) {
        if (Bit(op.needs, r)) built_upon.insert({r, op.need[r]});
      }
    }
  }
}

// Replaces values by small numbers. Those that are written but not asked for are all alike.
void Search::NumberValues() {
  for (size_t r = 0; r < kRegisters; ++r) {
    std::map<Value, Value> numbers = {{kAbsent, kAbsent}};
    asked_[r].resize(kFirstAsked);
    for (size_t i = 0; i < ops_.size(); ++i) {
      RegisterOp& op = ops_[i];
      if (!kept_[i] || !Bit(op.needs, r)) continue;
      const Value number = numbers.emplace(op.need[r], asked_[r].size()).first->second;
      if (number == asked_[r].size()) asked_[r].emplace_back();
      op.need[r] = number;
      ++asked_[r][number].mentions;
      if (op.certain && !op.differs) ++asked_[r][number].seers;
    }
    for (RegisterOp& op : ops_) {
      if (!Bit(op.sets, r)) continue;
      const auto number = numbers.find(op.set[r]);
      op.set[r] = number == numbers.end() ? kUnasked : number->second;
    }
  }
}

void Search::Sort() {
  std::map<std::tuple<uint8_t, uint8_t, Values, Values>, std::vector<uint64_t>> alike;
  for (size_t i = 0; i < ops_.size(); ++i) {
    const RegisterOp& op = ops_[i];
    if (!kept_[i]) continue;
    if (op.certain) {
      events_.push_back({op.invoked, false, i});
      if (op.returned != Op::kNever) events_.push_back({op.returned, true, i});
    } else {
      alike[{op.needs, op.sets, op.need, op.set}].push_back(op.invoked);
    }
  }
  std::sort(events_.begin(), events_.end(), [](const Event& a, const Event& b) {
    return std::tie(a.time, a.is_return, a.op) < std::tie(b.time, b.is_return, b.op);
  });
  for (auto& [what, invoked] : alike) {
    Alike group;
    group.op.certain = false;
    std::tie(group.op.needs, group.op.sets, group.op.need, group.op.set) = what;
    std::sort(invoked.begin(), invoked.end());
    group.invoked = std::move(invoked);
    bool once = false;
    for (size_t r = 0; r < kRegisters; ++r) {
      once |= Bit(group.op.needs & group.op.sets, r) && group.op.need[r] >= kFirstAsked;
    }
    if (!once) group.counter = counters_++;
    unknown_.push_back(std::move(group));
  }
}

SearchResult Search::Run() {
  Situation first;
  first.used.assign(static_cast<size_t>(counters_), 0);
  situations_.Add(first);
  for (const Event& event : events_) {
    now_ = event.time;
    if (!event.is_return) {
      if (!Open(event.op)) {
        result_.verdict = SearchResult::Verdict::kUndecided;
        return result_;
      }
      continue;
    }
    const size_t slot = slot_of_.at(event.op);
    Situations visited;
    Situations reached;
    bool in_time = true;
    situations_.ForEach([&](const Situation& s) {
      if (in_time && !Reach(s, slot, &visited, &reached)) in_time = false;
    });
    if (!in_time) {
      result_.verdict = SearchResult::Verdict::kUndecided;
      return result_;
    }
    if (reached.empty()) {
      result_.verdict = SearchResult::Verdict::kViolation;
      result_.stuck = ops_[event.op].id;
      return result_;
    }
    situations_ = std::move(reached);
    Close(event.op);
  }
  return result_;
}

bool Search::Open(size_t op) {
  if (~taken_ == 0) return false;
  const auto slot = static_cast<size_t>(__builtin_ctzll(~taken_));
  taken_ |= 1ull << slot;
  slots_[slot] = &ops_[op];
  slot_of_[op] = slot;
  if (ops_[op].sets != 0) return Step();
  reads_ |= 1ull << slot;
  Situations next;
  situations_.ForEach([&](Situation s) {
    DoReads(&s);
    next.Add(s);
  });
  situations_ = std::move(next);
  return Step();
}

void Search::Close(size_t op) {
  const size_t slot = slot_of_.at(op);
  slot_of_.erase(op);
  taken_ &= ~(1ull << slot);
  reads_ &= ~(1ull << slot);
  bool forgotten = false;
  for (size_t r = 0; r < kRegisters; ++r) {
    if (!Bit(ops_[op].needs, r)) continue;
    Asked& asked = asked_[r][ops_[op].need[r]];
    if (!ops_[op].differs) --asked.seers;
    forgotten |= --asked.mentions == 0;
  }
  if (!forgotten) return;
  Situations next;
  situations_.ForEach([&](Situation s) {
    for (size_t r = 0; r < kRegisters; ++r) {
      if (s.state[r] >= kFirstAsked && asked_[r][s.state[r]].mentions == 0) s.state[r] = kUnasked;
    }
    next.Add(s);
  });
  situations_ = std::move(next);
}

bool Search::Take(const RegisterOp& op, Situation* s) const {
  for (size_t r = 0; r < kRegisters; ++r) {
    if (!Bit(op.sets, r) || s->state[r] < kFirstAsked) continue;
    size_t seers = asked_[r][s->state[r]].seers;
    if (seers == 0) continue;
    for (uint64_t done = s->done; done != 0; done &= done - 1) {
      const RegisterOp& seer = *slots_[static_cast<size_t>(__builtin_ctzll(done))];
      if (!seer.differs && Bit(seer.needs, r) && seer.need[r] == s->state[r]) --seers;
    }
    if (!op.differs && Bit(op.needs, r) && op.certain) --seers;
    if (seers > 0) return false;
  }
  for (size_t r = 0; r < kRegisters; ++r) {
    if (Bit(op.sets, r)) s->state[r] = op.set[r];
  }
  return true;
}

bool Search::Reach(const Situation& from, size_t slot, Situations* visited, Situations* reached) {
  std::vector<Situation> worklist = {from};
  while (!worklist.empty()) {
    Situation s = std::move(worklist.back());
    worklist.pop_back();
    if (!Step()) return false;
    if ((s.done >> slot & 1) != 0) {
      s.done &= ~(1ull << slot);
      reached->Add(s);
      continue;
    }
    if (!visited->Add(s)) continue;
    for (uint64_t open = taken_ & ~reads_ & ~s.done; open != 0; open &= open - 1) {
      const auto next_slot = static_cast<size_t>(__builtin_ctzll(open));
      const RegisterOp& op = *slots_[next_slot];
      Situation next = s;
      if (!Allowed(op, s.state) || !Take(op, &next)) continue;
      next.done |= 1ull << next_slot;
      if (op.needs == 0) DoHidden(op, &next);
      DoReads(&next);
      worklist.push_back(std::move(next));
    }
    for (const Alike& alike : unknown_) {
      const size_t used = alike.counter < 0 ? 0 : s.used[static_cast<size_t>(alike.counter)];
      if (used >= Available(alike) || !Allowed(alike.op, s.state)) continue;
      if (!MayHelp(alike.op, s)) continue;
      Situation next = s;
      if (!Take(alike.op, &next) || next.state == s.state) continue;
      if (alike.counter >= 0) ++next.used[static_cast<size_t>(alike.counter)];
      DoReads(&next);
      worklist.push_back(std::move(next));
    }
  }
  return true;
}

// Open writes that nobody asks for may as well have happened just before a write that hid them.
void Search::DoHidden(const RegisterOp& by, Situation* s) const {
  if (mismatches_ && unseen_ == Unseen::kAll) return;  // what they hide might explain one
  for (uint64_t open = taken_ & ~reads_ & ~s->done; open != 0; open &= open - 1) {
    const auto slot = static_cast<size_t>(__builtin_ctzll(open));
    const RegisterOp& op = *slots_[slot];
    if (op.needs != 0 || (op.sets & ~by.sets) != 0) continue;
    bool asked = false;
    for (size_t r = 0; r < kRegisters; ++r) asked |= Bit(op.sets, r) && op.set[r] != kUnasked;
    if (!asked) s->done |= 1ull << slot;
  }
}

// An unknown operation on one register may as well happen just before the first one that cannot do
// without it: nobody asks for the register in between, and if it is overwritten, nobody ever does.
bool Search::MayHelp(const RegisterOp& unknown, const Situation& s) const {
  const unsigned registers = unknown.needs | unknown.sets;
  if ((registers & (registers - 1)) != 0) return true;
  for (uint64_t open = taken_ & ~s.done; open != 0; open &= open - 1) {
    const RegisterOp& op = *slots_[static_cast<size_t>(__builtin_ctzll(open))];
    if ((op.needs & registers) != 0 && !Allowed(op, s.state)) return true;
  }
  return false;
}

void Search::DoReads(Situation* s) const {
  for (uint64_t open = reads_ & ~s->done; open != 0; open &= open - 1) {
    const auto slot = static_cast<size_t>(__builtin_ctzll(open));
    if (Allowed(*slots_[slot], s->state)) s->done |= 1ull << slot;
  }
}

}  // namespace

std::vector<RegisterOp> Project(const std::vector<const Op*>& ops,
                                const std::vector<Block>& blocks) {
  HYDRA_CHECK(!blocks.empty() && blocks.size() <= kRegisters);
  std::vector<RegisterOp> projected;
  for (const Op* op : ops) {
    if (op->outcome == Outcome::kRefused) continue;
    if (op->kind == OpKind::kRead && op->outcome != Outcome::kOk) continue;
    RegisterOp r;
    r.id = op->id;
    r.invoked = op->invoked;
    r.returned = op->returned;
    r.certain = op->outcome != Outcome::kUnknown;
    const bool mismatch = op->outcome == Outcome::kMismatch;
    r.differs = mismatch && op->found.empty();
    size_t inside = 0;
    for (size_t a = 0; a < op->accesses.size(); ++a) {
      const Access& access = op->accesses[a];
      const auto block = std::find(blocks.begin(), blocks.end(), access.block);
      if (block == blocks.end()) continue;
      ++inside;
      const auto i = static_cast<size_t>(block - blocks.begin());
      if (op->kind != OpKind::kWrite) {
        r.needs |= static_cast<uint8_t>(1 << i);
        r.need[i] = op->kind == OpKind::kRead ? access.value : access.expected;
        if (mismatch && !r.differs) r.need[i] = op->found[a];  // as good as a read
      }
      if (op->kind != OpKind::kRead && !mismatch) {
        r.sets |= static_cast<uint8_t>(1 << i);
        r.set[i] = access.value;
      }
    }
    // What differed may lie outside.
    if (inside == 0 || (r.differs && inside < op->accesses.size())) continue;
    projected.push_back(r);
  }
  return projected;
}

SearchResult SearchOrder(const std::vector<RegisterOp>& ops, uint64_t max_steps) {
  SearchResult result;
  uint64_t steps = 0;
  for (const Unseen unseen :
       {Unseen::kNone, Unseen::kPlainDeletes, Unseen::kDeletes, Unseen::kAll}) {
    result = Search(ops, unseen, max_steps).Run();
    steps += result.steps;
    if (result.verdict == SearchResult::Verdict::kLinearizable) break;
  }
  result.steps = steps;
  return result;
}

namespace {

// Operation `op` and all that cannot be explained without it. What remains of a linearizable
// history without these is linearizable.
void RemoveWithSeers(const std::vector<RegisterOp>& ops, size_t op, std::vector<bool>* removed) {
  std::vector<size_t> worklist = {op};
  while (!worklist.empty()) {
    const size_t gone = worklist.back();
    worklist.pop_back();
    if ((*removed)[gone]) continue;
    (*removed)[gone] = true;
    for (size_t i = 0; i < ops.size(); ++i) {
      for (size_t r = 0; r < kRegisters && !(*removed)[i]; ++r) {
        if (!Bit(ops[gone].sets, r) || !Bit(ops[i].needs, r)) continue;
        if (ops[i].differs || ops[i].need[r] == ops[gone].set[r]) worklist.push_back(i);
      }
    }
  }
}

std::vector<RegisterOp> Without(const std::vector<RegisterOp>& ops, size_t first, size_t count) {
  std::vector<bool> removed(ops.size(), false);
  const size_t end = std::min(first + count, ops.size());
  for (size_t i = first; i < end; ++i) RemoveWithSeers(ops, i, &removed);
  std::vector<RegisterOp> rest;
  for (size_t i = 0; i < ops.size(); ++i) {
    if (!removed[i]) rest.push_back(ops[i]);
  }
  return rest;
}

// When the search got stuck at the return of operation `id`. An unknown one counts as returned when
// the first one that saw its value does.
uint64_t EndOf(const std::vector<RegisterOp>& ops, size_t id) {
  const auto stuck =
      std::find_if(ops.begin(), ops.end(), [&](const RegisterOp& op) { return op.id == id; });
  uint64_t end = stuck->returned;
  if (end != Op::kNever) return end;
  for (const RegisterOp& op : ops) {
    for (size_t r = 0; r < kRegisters; ++r) {
      const bool saw = Bit(op.needs, r) && Bit(stuck->sets, r) && op.need[r] == stuck->set[r];
      if (saw && op.certain && !op.differs) end = std::min(end, op.returned);
    }
  }
  return end;
}

// The history as it was at `end`.
std::vector<RegisterOp> UpTo(const std::vector<RegisterOp>& ops, uint64_t end) {
  std::vector<RegisterOp> cut;
  for (RegisterOp op : ops) {
    if (op.invoked > end) continue;
    if (op.returned > end) {
      if (op.sets == 0) continue;
      op.returned = Op::kNever;
      op.certain = false;
    }
    cut.push_back(op);
  }
  return cut;
}

}  // namespace

std::vector<size_t> Minimize(const std::vector<RegisterOp>& all, uint64_t max_steps) {
  std::vector<RegisterOp> ops = all;
  const SearchResult whole = SearchOrder(all, max_steps);
  if (whole.verdict == SearchResult::Verdict::kViolation) {
    std::vector<RegisterOp> cut = UpTo(all, EndOf(all, whole.stuck));
    const SearchResult still = SearchOrder(cut, max_steps);
    if (still.verdict == SearchResult::Verdict::kViolation) ops = std::move(cut);
  }
  // Ever smaller pieces are left out, as long as what remains is a violation.
  uint64_t steps_left = kMinimizeFactor * max_steps;
  size_t piece = std::max<size_t>(1, ops.size() / 2);
  while (steps_left > 0) {
    const size_t before = ops.size();
    for (size_t at = 0; at < ops.size() && steps_left > 0;) {
      std::vector<RegisterOp> fewer = Without(ops, at, piece);
      const SearchResult result = SearchOrder(fewer, std::min(max_steps, steps_left));
      steps_left -= std::min(steps_left, result.steps + ops.size());
      if (result.verdict == SearchResult::Verdict::kViolation) {
        ops = std::move(fewer);
      } else {
        at += piece;
      }
    }
    if (piece == 1 && ops.size() == before) break;
    piece = std::max<size_t>(1, piece / 2);
  }
  std::vector<size_t> ids;
  for (const RegisterOp& op : ops) ids.push_back(op.id);
  return ids;
}

}  // namespace hydra::history
