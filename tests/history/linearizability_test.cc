// SPDX-License-Identifier: Apache-2.0
//
// Histories made by hand: what the checker must accept, and what it must not.
#include "daemon/linearizability.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hydra::history {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr Block kX = 10;
constexpr Block kY = 20;

// Each call is one moment; times are counted up.
class Story {
 public:
  using Id = History::OpId;

  // Begun now, to be ended later.
  Id BeginWrite(Block block, Value value) {
    return history_.Write(Client(), {{.block = block, .value = value}}, ++now_);
  }
  Id BeginWrites(std::vector<Access> accesses) {
    return history_.Write(Client(), std::move(accesses), ++now_);
  }
  Id BeginDelete(Block block) { return history_.Delete(Client(), {block}, ++now_); }
  Id BeginRead(std::vector<Block> blocks) { return history_.Read(Client(), blocks, ++now_); }
  Id BeginSwap(Block block, Value expected, Value value) {
    return history_.CompareAndWrite(
        Client(), {{.block = block, .value = value, .expected = expected}}, ++now_);
  }
  void End(Id op) { history_.Ok(op, ++now_); }
  void EndRead(Id op, std::vector<Value> values) { history_.ReadOk(op, values, ++now_); }
  void EndMismatch(Id op, std::vector<Value> found = {}) {
    history_.Mismatch(op, ++now_, std::move(found));
  }
  void Lose(Id op) { history_.Unknown(op, ++now_); }

  // Begun and ended.
  void Write(Block block, Value value) { End(BeginWrite(block, value)); }
  void Writes(std::vector<Access> accesses) { End(BeginWrites(std::move(accesses))); }
  void Delete(Block block) { End(BeginDelete(block)); }
  void Read(Block block, Value value) { EndRead(BeginRead({block}), {value}); }
  void Reads(std::vector<Block> blocks, std::vector<Value> values) {
    EndRead(BeginRead(std::move(blocks)), std::move(values));
  }
  void Swap(Block block, Value expected, Value value) { End(BeginSwap(block, expected, value)); }
  void Mismatch(Block block, Value expected, Value value) {
    EndMismatch(BeginSwap(block, expected, value));
  }
  void Refuse(Block block, Value value) {
    const Id op = BeginWrite(block, value);
    history_.Refused(op, ++now_);
  }

  History& history() { return history_; }

 private:
  uint32_t Client() { return ++client_; }

  History history_;
  uint32_t client_ = 0;
  Nanos now_ = 0;
};

// "" or the explanation; both ways of checking must agree.
std::string Explain(Story* story) {
  const CheckResult fast = CheckLinearizable(story->history());
  const CheckResult searched = CheckLinearizable(story->history(), {.always_search = true});
  EXPECT_EQ(fast.ok, searched.ok) << fast.explanation << searched.explanation;
  EXPECT_EQ(fast.undecided, 0u);
  EXPECT_EQ(searched.undecided, 0u);
  EXPECT_EQ(fast.ok, fast.explanation.empty());
  return fast.explanation;
}

TEST(Linearizability, AnEmptyHistoryIsFine) {
  Story s;
  EXPECT_EQ(Explain(&s), "");
}

TEST(Linearizability, SequentialReadsSeeTheLastWrite) {
  Story s;
  s.Read(kX, kAbsent);
  s.Write(kX, 1);
  s.Read(kX, 1);
  s.Write(kX, 2);
  s.Read(kX, 2);
  EXPECT_EQ(Explain(&s), "");
}

TEST(Linearizability, AStaleReadIsFoundAndExplained) {
  Story s;
  s.Write(kY, 77);
  s.Write(kX, 1);
  s.Read(kX, 1);
  s.Write(kX, 2);
  s.Read(kX, 1);
  const std::string why = Explain(&s);
  EXPECT_THAT(why, HasSubstr("block 10"));
  EXPECT_THAT(why, HasSubstr("write 10<-1"));
  EXPECT_THAT(why, HasSubstr("write 10<-2"));
  EXPECT_THAT(why, HasSubstr("read 10=1"));
  EXPECT_THAT(why, HasSubstr("[0.000000009 .. 0.000000010]"));
  EXPECT_THAT(why, Not(HasSubstr("77")));
}

TEST(Linearizability, ALostWriteIsFound) {
  Story s;
  s.Write(kX, 1);
  s.Read(kX, kAbsent);
  EXPECT_THAT(Explain(&s), HasSubstr("read 10=absent"));
}

TEST(Linearizability, AReadBesideAWriteMaySeeEither) {
  for (const Value seen : {1, 2}) {
    Story s;
    s.Write(kX, 1);
    const auto write = s.BeginWrite(kX, 2);
    s.Read(kX, seen);
    s.End(write);
    EXPECT_EQ(Explain(&s), "");
  }
}

TEST(Linearizability, TwoReadsBesideAWriteMayNotSeeItGoBack) {
  Story s;
  s.Write(kX, 1);
  const auto write = s.BeginWrite(kX, 2);
  s.Read(kX, 2);
  s.Read(kX, 1);
  s.End(write);
  EXPECT_THAT(Explain(&s), HasSubstr("read 10=1"));
}

TEST(Linearizability, AValueIsNotReadBeforeItIsWritten) {
  Story s;
  s.Read(kX, 5);
  s.Write(kX, 5);
  EXPECT_THAT(Explain(&s), HasSubstr("#1"));
}

TEST(Linearizability, AValueNobodyWroteIsFound) {
  Story s;
  s.Write(kX, 1);
  s.Read(kX, 9);
  EXPECT_THAT(Explain(&s), HasSubstr("nobody wrote"));
}

TEST(Linearizability, ARefusedWriteNeverAppears) {
  Story s;
  s.Refuse(kX, 1);
  s.Read(kX, kAbsent);
  EXPECT_EQ(Explain(&s), "");
  s.Read(kX, 1);
  EXPECT_THAT(Explain(&s), HasSubstr("was refused"));
}

TEST(Linearizability, ADeletedValueStaysDeleted) {
  Story s;
  s.Write(kX, 1);
  s.Delete(kX);
  s.Read(kX, kAbsent);
  EXPECT_EQ(Explain(&s), "");
  s.Read(kX, 1);
  const std::string why = Explain(&s);
  EXPECT_THAT(why, HasSubstr("write 10<-absent"));
  EXPECT_THAT(why, HasSubstr("read 10=1"));
}

TEST(Linearizability, TheSecondDeleteIsNotTheFirst) {
  Story s;
  s.Delete(kX);
  s.Write(kX, 1);
  s.Read(kX, kAbsent);  // only a later delete could explain it
  EXPECT_NE(Explain(&s), "");
  Story t;
  t.Delete(kX);
  t.Write(kX, 1);
  const auto lost = t.BeginDelete(kX);
  t.Read(kX, kAbsent);
  t.Lose(lost);
  EXPECT_EQ(Explain(&t), "");
  t.Write(kX, 2);
  t.Read(kX, kAbsent);  // it is used up: nobody saw it yet, but it can happen only once
  EXPECT_NE(Explain(&t), "");
}

TEST(Linearizability, AnUnknownWriteMayAppearLateOrNever) {
  Story s;
  s.Write(kX, 1);
  s.Lose(s.BeginWrite(kX, 2));
  s.Read(kX, 1);
  s.Read(kX, 1);
  EXPECT_EQ(Explain(&s), "");
  s.Read(kX, 2);
  EXPECT_EQ(Explain(&s), "");
}

TEST(Linearizability, AnUnknownWriteMayNotDisappearAgain) {
  Story s;
  s.Write(kX, 1);
  s.Lose(s.BeginWrite(kX, 2));
  s.Read(kX, 2);
  s.Read(kX, 1);
  EXPECT_THAT(Explain(&s), HasSubstr("unknown"));
}

TEST(Linearizability, AnUnknownWriteMayNotReturnAfterItWasOverwritten) {
  Story s;
  s.Lose(s.BeginWrite(kX, 1));
  s.Read(kX, 1);
  s.Write(kX, 2);
  s.Read(kX, 2);
  EXPECT_EQ(Explain(&s), "");
  s.Read(kX, 1);
  EXPECT_NE(Explain(&s), "");
}

TEST(Linearizability, AnOpenWriteIsAnUnknownOne) {
  Story s;
  s.BeginWrite(kX, 1);
  s.BeginRead({kX});
  s.Read(kX, kAbsent);
  s.Read(kX, 1);
  EXPECT_EQ(Explain(&s), "");
  EXPECT_EQ(s.history().open(), 2u);
}

TEST(Linearizability, CompareAndWriteNeedsWhatItExpected) {
  Story s;
  s.Write(kX, 1);
  s.Swap(kX, 1, 2);
  s.Read(kX, 2);
  s.Mismatch(kX, 1, 3);
  s.Swap(kX, 2, 4);
  s.Read(kX, 4);
  EXPECT_EQ(Explain(&s), "");
  s.Swap(kX, 2, 5);
  EXPECT_THAT(Explain(&s), HasSubstr("10:2<-5"));
}

TEST(Linearizability, AMismatchNeedsADifference) {
  Story s;
  s.Write(kX, 1);
  s.Mismatch(kX, 1, 2);
  EXPECT_THAT(Explain(&s), HasSubstr("mismatch"));
  Story t;
  t.Write(kX, 1);
  const auto other = t.BeginWrite(kX, 7);
  t.Mismatch(kX, 1, 2);
  t.End(other);
  EXPECT_EQ(Explain(&t), "");
}

TEST(Linearizability, AnUnknownWriteThatNobodyReadCanExplainAMismatchOnce) {
  Story s;
  s.Write(kX, 1);
  s.Lose(s.BeginWrite(kX, 7));
  s.Mismatch(kX, 1, 2);
  EXPECT_EQ(Explain(&s), "");
  s.Write(kX, 3);
  s.Mismatch(kX, 3, 4);
  EXPECT_NE(Explain(&s), "");
}

TEST(Linearizability, WhatAMismatchFoundCountsAsRead) {
  Story s;
  s.Write(kX, 1);
  s.EndMismatch(s.BeginSwap(kX, 5, 6), {1});
  EXPECT_EQ(Explain(&s), "");
  s.Write(kX, 2);
  s.EndMismatch(s.BeginSwap(kX, 5, 7), {1});
  EXPECT_NE(Explain(&s), "");
  Story t;
  t.Write(kX, 1);
  t.EndMismatch(t.BeginSwap(kX, 1, 2), {1});
  EXPECT_THAT(Explain(&t), HasSubstr("all was as expected"));
}

// A request whose reply was lost is sent again and executed twice: 1 -> 2 by the first, back to 1
// by somebody else, and 2 once more by the second.
TEST(Linearizability, ACompareAndWriteExecutedTwiceIsFound) {
  Story s;
  s.Write(kX, 1);
  const auto repeated = s.BeginSwap(kX, 1, 2);
  s.Read(kX, 2);
  s.Delete(kX);
  s.Read(kX, kAbsent);
  s.Read(kX, 2);
  s.End(repeated);
  EXPECT_NE(Explain(&s), "");
  Story t;
  const auto twice = t.BeginWrite(kX, 1);
  t.Swap(kX, 1, 2);
  t.Swap(kX, 1, 3);  // the write came again
  t.End(twice);
  const std::string why = Explain(&t);
  EXPECT_THAT(why, HasSubstr("10:1<-2"));
  EXPECT_THAT(why, HasSubstr("10:1<-3"));
}

TEST(Linearizability, OnlyOneOfTwoCompareAndWritesWins) {
  Story s;
  s.Write(kX, 1);
  const auto a = s.BeginSwap(kX, 1, 2);
  const auto b = s.BeginSwap(kX, 1, 3);
  s.End(a);
  s.End(b);
  EXPECT_NE(Explain(&s), "");
}

TEST(Linearizability, AnUnknownCompareAndWriteThatWasSeenHappened) {
  Story s;
  s.Write(kX, 1);
  s.Lose(s.BeginSwap(kX, 1, 2));
  s.Lose(s.BeginSwap(kX, 2, 3));
  s.Read(kX, 3);
  EXPECT_EQ(Explain(&s), "");
  s.Read(kX, 2);
  EXPECT_NE(Explain(&s), "");
}

TEST(Linearizability, AReadOfTwoBlocksSeesNoHalfOfAWrite) {
  Story s;
  s.Writes({{kX, 1}, {kY, 1}});
  s.Writes({{kX, 2}, {kY, 2}});
  s.Reads({kX, kY}, {2, 2});
  EXPECT_EQ(Explain(&s), "");
  Story t;
  t.Writes({{kX, 1}, {kY, 1}});
  const auto second = t.BeginWrites({{kX, 2}, {kY, 2}});
  t.Reads({kX, kY}, {2, 1});
  t.End(second);
  const std::string why = Explain(&t);
  EXPECT_THAT(why, HasSubstr("blocks 10 and 20 together"));
  EXPECT_THAT(why, HasSubstr("read 10=2 20=1"));
}

TEST(Linearizability, ABlockMayBeOverwrittenAlone) {
  Story s;
  s.Writes({{kX, 1}, {kY, 1}});
  s.Write(kY, 5);
  s.Reads({kX, kY}, {1, 5});
  EXPECT_EQ(Explain(&s), "");
  Story t;  // but not before the write of both
  t.Write(kY, 5);
  t.Writes({{kX, 1}, {kY, 1}});
  t.Reads({kX, kY}, {1, 5});
  EXPECT_NE(Explain(&t), "");
}

TEST(Linearizability, AnUnknownWriteOfTwoBlocksHappensWhollyOrNotAtAll) {
  Story s;
  s.Lose(s.BeginWrites({{kX, 1}, {kY, 1}}));
  s.Reads({kX, kY}, {kAbsent, kAbsent});
  s.Reads({kX, kY}, {1, 1});
  EXPECT_EQ(Explain(&s), "");
  Story t;
  t.Lose(t.BeginWrites({{kX, 1}, {kY, 1}}));
  t.Reads({kX, kY}, {1, kAbsent});
  EXPECT_NE(Explain(&t), "");
}

TEST(Linearizability, AWriteSeenInOneBlockIsThereInTheOther) {
  Story s;
  const auto write = s.BeginWrites({{kX, 1}, {kY, 1}});
  s.Read(kX, 1);
  s.Read(kY, kAbsent);
  s.End(write);
  EXPECT_THAT(Explain(&s), HasSubstr("together"));
}

TEST(Linearizability, AMismatchOfTwoBlocksNeedsOneDifference) {
  const auto compare = [](Story* s, Value x, Value y) {
    const auto op = s->history().CompareAndWrite(9, {{kX, 8, x}, {kY, 8, y}},
                                                 s->history().ops().back().returned_at);
    s->EndMismatch(op);
  };
  Story s;
  s.Writes({{kX, 1}, {kY, 1}});
  compare(&s, 1, 2);
  EXPECT_EQ(Explain(&s), "");
  compare(&s, 1, 1);
  EXPECT_THAT(Explain(&s), HasSubstr("together"));
}

TEST(Linearizability, AValueWrittenTwiceIsAMistakeOfTheTest) {
  Story s;
  s.Write(kX, 1);
  s.Write(kX, 1);
  EXPECT_THAT(Explain(&s), HasSubstr("same value twice"));
}

TEST(Linearizability, AnExplanationIsShortHoweverLongTheHistory) {
  Story s;
  Value value = 0;
  for (int i = 0; i < 200; ++i) {
    s.Write(kX, ++value);
    s.Read(kX, value);
    if (i % 10 == 0) s.Delete(kX);
    if (i % 7 == 0) s.Lose(s.BeginWrite(kX, 100'000 + value));
  }
  const Value stale = value;
  s.Write(kX, ++value);
  s.Swap(kX, value, 50'000);
  s.Read(kX, stale);
  for (int i = 0; i < 50; ++i) s.Write(kX, 60'000 + static_cast<Value>(i));
  const std::string why = Explain(&s);
  EXPECT_THAT(why, HasSubstr("10=200"));
  EXPECT_LE(std::count(why.begin(), why.end(), '\n'), 4) << why;
}

TEST(Linearizability, WhatCannotBeDecidedIsSaid) {
  Story s;
  std::vector<Story::Id> open;
  for (Value v = 1; v <= 70; ++v) open.push_back(s.BeginWrite(kX, v));
  s.Delete(kX);  // so that it is searched
  for (const Story::Id op : open) s.End(op);
  EXPECT_EQ(CheckLinearizable(s.history()).undecided, 1u);
  Story t;
  for (Value v = 1; v <= 50; ++v) {
    t.Delete(kX);
    t.Write(kX, v);
    t.Read(kX, v);
  }
  EXPECT_EQ(CheckLinearizable(t.history()).undecided, 0u);
  const CheckResult hasty = CheckLinearizable(t.history(), {.max_steps = 100});
  EXPECT_TRUE(hasty.ok);
  EXPECT_EQ(hasty.undecided, 1u);
}

}  // namespace
}  // namespace hydra::history
