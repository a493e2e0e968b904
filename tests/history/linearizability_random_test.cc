// SPDX-License-Identifier: Apache-2.0
//
// The checker against the definition, on small random histories; and against histories of a correct
// store, whole and spoiled.
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/rng.h"
#include "daemon/linearizability.h"

namespace hydra::history {
namespace {

// --- The definition, tried out
// ---------------------------------------------------------------------

class ByDefinition {
 public:
  explicit ByDefinition(const History& history) {
    for (const Op& op : history.ops()) {
      const bool read = op.kind == OpKind::kRead;
      if (op.outcome == Outcome::kRefused || (read && op.outcome == Outcome::kUnknown)) continue;
      ops_.push_back(&op);
    }
  }

  bool Linearizable() { return Try(std::vector<bool>(ops_.size(), false), {}); }

 private:
  using State = std::map<Block, Value>;

  // Whether what is not done yet can be done from here.
  bool Try(const std::vector<bool>& done, const State& state) const {
    bool finished = true;
    uint64_t first_return = Op::kNever;
    for (size_t i = 0; i < ops_.size(); ++i) {
      if (done[i]) continue;
      if (ops_[i]->outcome != Outcome::kUnknown) finished = false;
      first_return = std::min(first_return, ops_[i]->returned);
    }
    if (finished) return true;
    for (size_t i = 0; i < ops_.size(); ++i) {
      if (done[i] || ops_[i]->invoked > first_return) continue;
      State next = state;
      if (!Do(*ops_[i], &next)) continue;
      std::vector<bool> and_this = done;
      and_this[i] = true;
      if (Try(and_this, next)) return true;
    }
    return false;
  }

  static bool Do(const Op& op, State* state) {
    bool equal = true;
    for (size_t i = 0; i < op.accesses.size(); ++i) {
      const Access& a = op.accesses[i];
      const Value held = (*state)[a.block];
      if (op.kind == OpKind::kRead && held != a.value) return false;
      if (!op.found.empty() && held != op.found[i]) return false;
      equal &= held == a.expected;
    }
    if (op.kind == OpKind::kRead) return true;
    if (op.kind == OpKind::kCompareAndWrite) {
      if (op.outcome == Outcome::kMismatch) return !equal;
      if (!equal) return false;
    }
    for (const Access& a : op.accesses) (*state)[a.block] = a.value;
    return true;
  }

  std::vector<const Op*> ops_;
};

struct Kinds {
  bool deletes = false;
  bool swaps = false;
  bool unknown = false;
  bool pairs = false;
};

std::vector<Access> RandomAccesses(Rng* rng, const Kinds& kinds) {
  if (!kinds.pairs) return {{.block = 1}};
  if (rng->Percent(40)) return {{.block = 1}, {.block = 2}};
  return {{.block = rng->Between(1, 2)}};
}

// Operations at random moments with random answers: mostly nonsense, but only just.
History RandomHistory(Rng* rng, const Kinds& kinds) {
  History history;
  const size_t count = rng->Between(2, kinds.pairs ? 6 : 7);
  std::vector<History::OpId> open;
  Nanos now = 0;
  Value values = 0;
  const auto any_value = [&] { return rng->Below(values + 1); };
  for (size_t begun = 0; begun < count || !open.empty();) {
    ++now;
    if (begun < count && (open.empty() || rng->Percent(50))) {
      ++begun;
      std::vector<Access> accesses = RandomAccesses(rng, kinds);
      const uint64_t kind = rng->Below(100);
      if (kind < 45) {
        std::vector<Block> blocks;
        for (const Access& a : accesses) blocks.push_back(a.block);
        open.push_back(history.Read(1, blocks, now));
        continue;
      }
      for (Access& a : accesses) a.expected = any_value();
      const bool deletes = kinds.deletes && rng->Percent(30);
      if (!deletes) ++values;
      for (Access& a : accesses) a.value = deletes ? kAbsent : values;
      open.push_back(kinds.swaps && rng->Percent(40) ? history.CompareAndWrite(1, accesses, now)
                                                     : history.Write(1, accesses, now));
      continue;
    }
    const size_t at = rng->Below(open.size());
    const Op& op = history.ops()[open[at]];
    std::vector<Value> found;
    for (size_t i = 0; i < op.accesses.size(); ++i) found.push_back(any_value());
    if (kinds.unknown && rng->Percent(25)) {
      history.Unknown(op.id, now);
    } else if (op.kind == OpKind::kRead) {
      history.ReadOk(op.id, found, now);
    } else if (op.kind == OpKind::kCompareAndWrite && rng->Percent(40)) {
      history.Mismatch(op.id, now, rng->Percent(30) ? found : std::vector<Value>());
    } else if (rng->Percent(3)) {
      history.Refused(op.id, now);
    } else {
      history.Ok(op.id, now);
    }
    open.erase(open.begin() + static_cast<ptrdiff_t>(at));
  }
  return history;
}

std::string Dump(const History& history) {
  std::string text;
  for (const Op& op : history.ops()) text += op.ToString() + "\n";
  return text;
}

void CompareWithDefinition(uint64_t seed, int histories, const Kinds& kinds) {
  Rng rng(seed);
  int good = 0;
  for (int i = 0; i < histories; ++i) {
    const History history = RandomHistory(&rng, kinds);
    const bool expected = ByDefinition(history).Linearizable();
    good += expected ? 1 : 0;
    for (const bool always_search : {false, true}) {
      const CheckResult result = CheckLinearizable(history, {.always_search = always_search});
      ASSERT_EQ(result.undecided, 0u);
      ASSERT_EQ(result.ok, expected) << Dump(history) << result.explanation;
    }
  }
  EXPECT_GT(good, histories / 20) << "nearly all were bad: no test of accepting";
  EXPECT_GT(histories - good, histories / 20) << "nearly all were good: no test of finding";
}

TEST(LinearizabilityRandom, AgreesWithTheDefinitionOnReadsAndWrites) {
  CompareWithDefinition(1, 20'000, {});
  CompareWithDefinition(2, 20'000, {.unknown = true});
}

TEST(LinearizabilityRandom, AgreesWithTheDefinitionOnDeletes) {
  CompareWithDefinition(3, 20'000, {.deletes = true, .unknown = true});
}

TEST(LinearizabilityRandom, AgreesWithTheDefinitionOnCompareAndWrites) {
  CompareWithDefinition(4, 20'000, {.swaps = true});
  CompareWithDefinition(5, 30'000, {.deletes = true, .swaps = true, .unknown = true});
}

TEST(LinearizabilityRandom, AgreesWithTheDefinitionOnTwoBlocks) {
  CompareWithDefinition(6, 15'000, {.unknown = true, .pairs = true});
  CompareWithDefinition(7, 25'000,
                        {.deletes = true, .swaps = true, .unknown = true, .pairs = true});
}

// --- A correct store
// -------------------------------------------------------------------------------

// What happened, in order: enough to tell it again with another answer.
struct Happening {
  enum class What { kInvoke, kOk, kMismatch, kUnknown } what = What::kInvoke;
  size_t op = 0;
  OpKind kind = OpKind::kRead;
  std::vector<Access> accesses;  // kInvoke
  std::vector<Value> values;     // kOk of a read
};

History Tell(const std::vector<Happening>& story) {
  History history;
  Nanos now = 0;
  for (const Happening& h : story) {
    ++now;
    switch (h.what) {
      case Happening::What::kInvoke: {
        std::vector<Block> blocks;
        for (const Access& a : h.accesses) blocks.push_back(a.block);
        if (h.kind == OpKind::kRead) history.Read(1, blocks, now);
        if (h.kind == OpKind::kWrite) history.Write(1, h.accesses, now);
        if (h.kind == OpKind::kCompareAndWrite) history.CompareAndWrite(1, h.accesses, now);
        break;
      }
      case Happening::What::kOk:
        h.kind == OpKind::kRead ? history.ReadOk(h.op, h.values, now) : history.Ok(h.op, now);
        break;
      case Happening::What::kMismatch: history.Mismatch(h.op, now); break;
      case Happening::What::kUnknown: history.Unknown(h.op, now); break;
    }
  }
  return history;
}

// Clients of an atomic store: an operation takes effect at some moment between its begin and its
// end; one whose client gave up, at any later moment or never.
class CorrectStore {
 public:
  CorrectStore(uint64_t seed, const Kinds& kinds, size_t clients, Block blocks)
      : rng_(seed), kinds_(kinds), clients_(clients), blocks_(blocks) {}

  std::vector<Happening> Run(size_t steps) {
    for (size_t i = 0; i < steps; ++i) Step();
    return std::move(story_);
  }

 private:
  struct Client {
    bool busy = false;
    Happening op;
    bool applied = false;
    bool matched = true;
    std::vector<Value> values;
  };

  void Step() {
    if (!ghosts_.empty() && rng_.Percent(5)) {
      const size_t at = rng_.Below(ghosts_.size());
      if (rng_.Percent(60)) Apply(&ghosts_[at]);
      ghosts_.erase(ghosts_.begin() + static_cast<ptrdiff_t>(at));
    }
    Client& client = clients_[rng_.Below(clients_.size())];
    if (!client.busy) return Invoke(&client);
    if (kinds_.unknown && rng_.Percent(4)) return GiveUp(&client);
    if (!client.applied) return Apply(&client);
    Happening end = client.op;
    end.what = client.matched ? Happening::What::kOk : Happening::What::kMismatch;
    end.values = client.values;
    story_.push_back(end);
    client.busy = false;
  }

  void Invoke(Client* client) {
    Happening& op = client->op;
    op = Happening();
    op.op = invoked_++;
    op.accesses = {{.block = rng_.Below(blocks_)}};
    if (kinds_.pairs && rng_.Percent(30)) {
      op.accesses.push_back({.block = (op.accesses[0].block + 1) % blocks_});
    }
    const uint64_t kind = rng_.Below(100);
    op.kind = kind < 40 || (kind < 50 && !kinds_.swaps) ? OpKind::kRead
              : kind < 50                               ? OpKind::kCompareAndWrite
                                                        : OpKind::kWrite;
    const bool deletes = kinds_.deletes && op.kind == OpKind::kWrite && rng_.Percent(15);
    if (op.kind != OpKind::kRead && !deletes) ++values_;
    for (Access& a : op.accesses) {
      if (op.kind != OpKind::kRead) a.value = deletes ? kAbsent : values_;
      if (op.kind == OpKind::kCompareAndWrite) {
        a.expected = rng_.Percent(80) ? state_[a.block] : rng_.Below(values_);
      }
    }
    client->busy = true;
    client->applied = false;
    client->matched = true;
    story_.push_back(op);
  }

  void Apply(Client* client) {
    client->applied = true;
    client->values.clear();
    for (const Access& a : client->op.accesses) {
      client->values.push_back(state_[a.block]);
      if (client->op.kind == OpKind::kCompareAndWrite) {
        client->matched &= state_[a.block] == a.expected;
      }
    }
    if (client->op.kind == OpKind::kRead || !client->matched) return;
    for (const Access& a : client->op.accesses) state_[a.block] = a.value;
  }

  void GiveUp(Client* client) {
    Happening end = client->op;
    end.what = Happening::What::kUnknown;
    story_.push_back(end);
    if (!client->applied) ghosts_.push_back(*client);
    client->busy = false;
  }

  Rng rng_;
  const Kinds kinds_;
  std::vector<Client> clients_;
  const Block blocks_;
  std::map<Block, Value> state_;
  std::vector<Client> ghosts_;
  std::vector<Happening> story_;
  size_t invoked_ = 0;
  Value values_ = 0;
};

// A read that found `old` although a later write of the block had returned before it began.
bool MakeStale(Rng* rng, std::vector<Happening>* story) {
  const History history = Tell(*story);
  std::vector<Happening*> reads;
  for (Happening& h : *story) {
    if (h.what == Happening::What::kOk && h.kind == OpKind::kRead) reads.push_back(&h);
  }
  for (int attempt = 0; attempt < 200 && !reads.empty(); ++attempt) {
    Happening& read = *reads[rng->Below(reads.size())];
    const Op& op = history.ops()[read.op];
    const Block block = op.accesses[0].block;
    const Op* newer = nullptr;  // the last write that ended before the read began
    for (const Op& w : history.ops()) {
      if (w.kind != OpKind::kWrite || w.outcome != Outcome::kOk) continue;
      if (w.accesses[0].block == block && w.returned < op.invoked) newer = &w;
    }
    if (newer == nullptr) continue;
    for (const Op& w : history.ops()) {
      if (w.kind != OpKind::kWrite || w.outcome != Outcome::kOk) continue;
      if (w.accesses[0].block != block || w.accesses[0].value == kAbsent) continue;
      if (w.returned >= newer->invoked) continue;
      read.values[0] = w.accesses[0].value;
      return true;
    }
  }
  return false;
}

// Swaps what one read found for what is written only after it ended.
bool MakeProphetic(Rng* rng, std::vector<Happening>* story) {
  const History history = Tell(*story);
  for (int attempt = 0; attempt < 2000; ++attempt) {
    Happening& h = (*story)[rng->Below(story->size())];
    if (h.what != Happening::What::kOk || h.kind != OpKind::kRead) continue;
    const Op& op = history.ops()[h.op];
    for (const Op& w : history.ops()) {
      if (w.kind == OpKind::kRead || w.outcome != Outcome::kOk || w.invoked < op.returned) continue;
      if (w.accesses[0].block != op.accesses[0].block || w.accesses[0].value == kAbsent) continue;
      h.values[0] = w.accesses[0].value;
      return true;
    }
  }
  return false;
}

constexpr Kinds kAllKinds[] = {
    {},
    {.unknown = true},
    {.deletes = true, .unknown = true},
    {.swaps = true},
    {.deletes = true, .swaps = true, .unknown = true},
    {.deletes = true, .swaps = true, .unknown = true, .pairs = true},
};

TEST(LinearizabilityRandom, ACorrectStorePasses) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    for (const Kinds& kinds : kAllKinds) {
      const size_t clients = 2 + seed % 9;
      const std::vector<Happening> story =
          CorrectStore(seed, kinds, clients, 2 + seed % 13).Run(3000);
      const CheckResult result = CheckLinearizable(Tell(story));
      ASSERT_TRUE(result.ok) << "seed " << seed << "\n" << result.explanation;
      ASSERT_EQ(result.undecided, 0u) << "seed " << seed;
      EXPECT_GT(result.operations, 700u);
      EXPECT_EQ(result.pairs > 0, kinds.pairs);
    }
  }
}

TEST(LinearizabilityRandom, ASpoiledAnswerIsFound) {
  int spoiled = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    for (const Kinds& kinds : kAllKinds) {
      std::vector<Happening> story = CorrectStore(seed, kinds, 2 + seed % 5, 4).Run(600);
      Rng rng(seed);
      if (!(seed % 2 == 0 ? MakeStale(&rng, &story) : MakeProphetic(&rng, &story))) continue;
      ++spoiled;
      const CheckResult result = CheckLinearizable(Tell(story));
      ASSERT_FALSE(result.ok) << "seed " << seed;
      EXPECT_LE(std::count(result.explanation.begin(), result.explanation.end(), '\n'), 12)
          << result.explanation;
    }
  }
  EXPECT_GT(spoiled, 200);
}

// A block that everybody uses, and long histories: the checker must keep up with the simulator.
TEST(LinearizabilityRandom, LongHistoriesAreDecided) {
  const std::vector<Happening> hot =
      CorrectStore(1, {.deletes = true, .swaps = true, .unknown = true}, 8, 1).Run(10'000);
  const CheckResult one = CheckLinearizable(Tell(hot));
  EXPECT_TRUE(one.ok) << one.explanation;
  EXPECT_EQ(one.undecided, 0u);
  const std::vector<Happening> wide =
      CorrectStore(2, {.deletes = true, .swaps = true, .unknown = true, .pairs = true}, 16, 200)
          .Run(200'000);
  const CheckResult many = CheckLinearizable(Tell(wide));
  EXPECT_TRUE(many.ok) << many.explanation;
  EXPECT_EQ(many.undecided, 0u);
  const std::vector<Happening> simple = CorrectStore(3, {.unknown = true}, 16, 2).Run(300'000);
  EXPECT_TRUE(CheckLinearizable(Tell(simple)).ok);
}

}  // namespace
}  // namespace hydra::history
