// SPDX-License-Identifier: Apache-2.0
#include "daemon/session_table.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/coding.h"
#include "tests/support/gtest_status.h"

namespace hydra {
namespace {

constexpr Nanos kTimeout = 30 * kSecond;

class Sessions : public testing::Test {
 protected:
  Instance Open(Nanos timeout = kTimeout) {
    const Result<Instance> opened = table_.Open(++instance_, timeout);
    EXPECT_OK(opened.status());
    EXPECT_TRUE(opened.ok() && *opened == instance_);
    return instance_;
  }

  // As apply does it: decides, executes and finishes.
  Decision Run(Instance id, uint64_t seq, uint64_t lowest = 1, uint64_t epoch = 0) {
    const Verdict verdict = table_.Begin({id, seq, lowest, epoch});
    const Decision decision = verdict.decision;
    EXPECT_EQ(verdict.first != nullptr, decision == Decision::kRepeat);
    if (decision == Decision::kExecute) {
      ++executed_;
      table_.Finish(id, seq, OutcomeFor(seq));
    }
    return decision;
  }

  static Outcome OutcomeFor(uint64_t seq) {
    return {seq % 2 ? Code::kOk : Code::kFailedPrecondition, seq * 10,
            "detail " + std::to_string(seq)};
  }

  void Fill(Instance id, uint64_t count, uint64_t from = 1) {
    for (uint64_t seq = from; seq < from + count; ++seq) {
      ASSERT_EQ(Run(id, seq), Decision::kExecute) << seq;
    }
  }

  // Time in steps that one entry may carry.
  void Pass(Nanos time) {
    for (; time > SessionTable::kMaxInterval; time -= SessionTable::kMaxInterval) {
      table_.Advance(SessionTable::kMaxInterval);
    }
    table_.Advance(time);
  }

  SessionTable table_;
  Instance instance_ = 100;
  int executed_ = 0;
};

// --- Exactly once ---------------------------------------------------------------------------

TEST_F(Sessions, ARepeatGetsTheFirstOutcomeAndIsNotExecutedAgain) {
  const Instance id = Open();
  for (uint64_t seq : {1, 2, 3}) EXPECT_EQ(Run(id, seq), Decision::kExecute);
  for (uint64_t seq : {2, 1, 3, 2}) {
    const Verdict again = table_.Begin({id, seq, 1, 0});
    ASSERT_EQ(again.decision, Decision::kRepeat);
    EXPECT_EQ(*again.first, OutcomeFor(seq));
  }
  EXPECT_EQ(executed_, 3);
}

TEST_F(Sessions, RequestsExecuteInWhateverOrderTheyCome) {
  const Instance id = Open();
  for (uint64_t seq : {900, 3, 17, 1, 899, ~0}) EXPECT_EQ(Run(id, seq), Decision::kExecute);
  for (uint64_t seq : {1, 3, 17, 899, 900, ~0}) {
    const Verdict again = table_.Begin({id, seq, 1, 0});
    ASSERT_EQ(again.decision, Decision::kRepeat) << seq;
    EXPECT_EQ(*again.first, OutcomeFor(seq));
  }
}

TEST_F(Sessions, SessionsDoNotShareSequences) {
  const Instance a = Open();
  const Instance b = Open();
  EXPECT_EQ(Run(a, 1), Decision::kExecute);
  EXPECT_EQ(Run(b, 1), Decision::kExecute);
  EXPECT_EQ(Run(a, 1), Decision::kRepeat);
}

TEST_F(Sessions, AnAcknowledgedOutcomeIsDroppedAndTheRequestNeverExecutesAgain) {
  const Instance id = Open();
  Fill(id, 3);
  EXPECT_EQ(Run(id, 4, 3), Decision::kExecute);
  EXPECT_EQ(table_.outcomes(), 2u);
  EXPECT_EQ(Run(id, 1, 1), Decision::kForgotten) << "a delayed copy with its old lowest_unanswered";
  EXPECT_EQ(Run(id, 2, 1), Decision::kForgotten);
  EXPECT_EQ(Run(id, 3, 1), Decision::kRepeat);
  EXPECT_EQ(executed_, 4);
}

TEST_F(Sessions, ARequestThatWasSkippedAndAcknowledgedNeverExecutes) {
  const Instance id = Open();
  EXPECT_EQ(Run(id, 9, 9), Decision::kExecute);
  EXPECT_EQ(Run(id, 5, 1), Decision::kForgotten);
  EXPECT_EQ(Run(id, 7, 8), Decision::kForgotten) << "below what it says itself";
  EXPECT_EQ(Run(id, 0, 0), Decision::kForgotten) << "sequences count from 1";
}

TEST_F(Sessions, AnUnknownSessionNeverExecutes) {
  EXPECT_EQ(Run(0, 1), Decision::kExpired);
  EXPECT_EQ(Run(7, 1), Decision::kExpired);
  const Instance id = Open();
  EXPECT_EQ(Run(id + 1, 1), Decision::kExpired);
  EXPECT_TRUE(table_.Close(id));
  EXPECT_FALSE(table_.Close(id));
  EXPECT_EQ(Run(id, 1), Decision::kExpired);
  EXPECT_EQ(executed_, 0);
}

TEST_F(Sessions, ADuplicateDelayedPastExpiryIsRefusedEvenAfterNewSessionsOpened) {
  const Instance id = Open();
  EXPECT_EQ(Run(id, 1), Decision::kExecute);
  Pass(kTimeout + 1);
  const Instance next = Open();
  EXPECT_NE(next, id);
  EXPECT_EQ(Run(id, 1), Decision::kExpired);
  EXPECT_EQ(Run(id, 2), Decision::kExpired);
  EXPECT_EQ(executed_, 1);
}

TEST_F(Sessions, AnIdIsNeverUsedTwice) {
  const Instance id = Open();
  EXPECT_CODE(table_.Open(id, kTimeout).status(), Code::kAlreadyExists);
  EXPECT_TRUE(table_.Close(id));
  EXPECT_CODE(table_.Open(id, kTimeout).status(), Code::kAlreadyExists);
  EXPECT_CODE(table_.Open(id - 1, kTimeout).status(), Code::kAlreadyExists);
  Result<SessionTable> restored = SessionTable::Decode(AsBytes(table_.Encode()));
  ASSERT_OK(restored.status());
  EXPECT_CODE(restored->Open(id, kTimeout).status(), Code::kAlreadyExists);
}

TEST_F(Sessions, LookingSaysWhatBeginWillSayAndChangesNothing) {
  const Instance id = Open();
  Fill(id, SessionTable::kMaxOutcomes);
  const std::string before = table_.Encode();
  EXPECT_EQ(table_.Look({id, 7, 1, 0}).decision, Decision::kRepeat);
  EXPECT_EQ(table_.Look({id, 7, 8, 0}).decision, Decision::kForgotten);
  EXPECT_EQ(table_.Look({id, 5000, 1, 0}).decision, Decision::kWindowFull);
  EXPECT_EQ(table_.Look({id, 5000, 2, 0}).decision, Decision::kExecute);
  EXPECT_EQ(table_.Encode(), before);
}

// --- Time -----------------------------------------------------------------------------------

TEST_F(Sessions, ASessionLivesForItsTimeoutAndNoLonger) {
  const Instance short_one = Open(2 * kSecond);
  const Instance long_one = Open(5 * kSecond);
  EXPECT_EQ(table_.Advance(2 * kSecond), 0u);
  EXPECT_EQ(table_.Look({short_one, 1, 1, 0}).decision, Decision::kExecute);
  EXPECT_EQ(table_.Advance(1), 1u);
  EXPECT_EQ(Run(short_one, 1), Decision::kExpired);
  EXPECT_EQ(table_.Advance(3 * kSecond - 1), 0u);
  EXPECT_EQ(table_.Advance(1), 1u);
  EXPECT_EQ(Run(long_one, 1), Decision::kExpired);
  EXPECT_EQ(table_.sessions(), 0u);
}

TEST_F(Sessions, EveryRequestKeepsItsSessionAliveWhateverTheAnswer) {
  const Instance id = Open();
  ASSERT_TRUE(table_.SetFence(5));
  const std::vector<std::pair<RequestId, Decision>> requests = {
      {{id, 2, 1, 5}, Decision::kExecute},   {{id, 2, 1, 5}, Decision::kRepeat},
      {{id, 1, 2, 5}, Decision::kForgotten}, {{id, 3, 2, 4}, Decision::kFenced},
      {{id, 4, 2, 5}, Decision::kExecute},
  };
  for (const auto& [request, expected] : requests) {
    EXPECT_EQ(table_.Advance(kTimeout), 0u);
    EXPECT_EQ(Run(id, request.seq, request.lowest_unanswered, request.epoch), expected);
  }
  EXPECT_EQ(table_.Advance(kTimeout), 0u);
  EXPECT_TRUE(table_.Touch(id, 1));
  EXPECT_EQ(table_.Advance(kTimeout), 0u);
  EXPECT_EQ(table_.Cancel(id, 9, 1).result, CancelResult::kCancelled);
  EXPECT_EQ(table_.Advance(kTimeout), 0u);
  EXPECT_EQ(table_.Advance(1), 1u);
  EXPECT_FALSE(table_.Touch(id, 1));
}

TEST_F(Sessions, LookingDoesNotKeepASessionAlive) {
  const Instance id = Open();
  table_.Advance(kTimeout);
  EXPECT_EQ(table_.Look({id, 1, 1, 0}).decision, Decision::kExecute);
  EXPECT_EQ(table_.Advance(1), 1u);
}

TEST_F(Sessions, AKeepAliveDropsWhatTheClientHas) {
  const Instance id = Open();
  Fill(id, 20);
  EXPECT_TRUE(table_.Touch(id, 21));
  EXPECT_EQ(table_.outcomes(), 0u);
  EXPECT_EQ(Run(id, 20), Decision::kForgotten);
}

TEST_F(Sessions, TimeoutsAreBroughtWithinTheLimits) {
  const Instance impatient = Open(-5);
  const Instance eternal = Open(std::numeric_limits<Nanos>::max());
  table_.Advance(SessionTable::kMinTimeout);
  EXPECT_EQ(table_.Look({impatient, 1, 1, 0}).decision, Decision::kExecute);
  table_.Advance(1);
  EXPECT_EQ(table_.Look({impatient, 1, 1, 0}).decision, Decision::kExpired);
  Pass(SessionTable::kMaxTimeout - SessionTable::kMinTimeout - 1);
  EXPECT_EQ(table_.Look({eternal, 1, 1, 0}).decision, Decision::kExecute);
  table_.Advance(1);
  EXPECT_EQ(table_.Look({eternal, 1, 1, 0}).decision, Decision::kExpired);
}

TEST_F(Sessions, TimeStopsBeforeItOverflows) {
  Nanos before = -1;
  while (table_.now() != before) {
    before = table_.now();
    table_.Advance(SessionTable::kMaxInterval);
  }
  const Instance id = Open(SessionTable::kMaxTimeout);
  table_.Advance(SessionTable::kMaxInterval);
  EXPECT_EQ(Run(id, 1), Decision::kExecute);
  EXPECT_OK(SessionTable::Decode(AsBytes(table_.Encode())).status());
}

// --- Fences ---------------------------------------------------------------------------------

TEST_F(Sessions, ARequestCheckedBeforeTheFenceExecutesNothing) {
  const Instance id = Open();
  EXPECT_EQ(Run(id, 1, 1, 3), Decision::kExecute);
  EXPECT_TRUE(table_.SetFence(4));
  EXPECT_EQ(Run(id, 2, 1, 3), Decision::kFenced);
  EXPECT_EQ(table_.outcomes(), 1u);
  EXPECT_EQ(executed_, 1);
  EXPECT_EQ(Run(id, 3, 1, 4), Decision::kExecute);
  EXPECT_EQ(Run(id, 4, 1, 9), Decision::kExecute) << "the gateway may know before the shard does";
}

TEST_F(Sessions, AFencedRequestMayComeAgainUnderTheNewRights) {
  const Instance id = Open();
  ASSERT_TRUE(table_.SetFence(4));
  EXPECT_EQ(Run(id, 1, 1, 3), Decision::kFenced);
  EXPECT_EQ(Run(id, 1, 1, 4), Decision::kExecute);
  EXPECT_EQ(Run(id, 1, 1, 3), Decision::kRepeat) << "it did happen";
}

TEST_F(Sessions, AFenceNeverGoesBack) {
  EXPECT_TRUE(table_.SetFence(7));
  EXPECT_TRUE(table_.SetFence(7)) << "chosen twice, stands";
  EXPECT_FALSE(table_.SetFence(6));
  EXPECT_EQ(table_.fence(), 7u);
}

// --- Cancelling -----------------------------------------------------------------------------

TEST_F(Sessions, WhatWasCancelledBeforeItCameIsNeverExecuted) {
  const Instance id = Open();
  EXPECT_EQ(table_.Cancel(id, 5, 1).result, CancelResult::kCancelled);
  EXPECT_EQ(table_.Cancel(id, 5, 1).result, CancelResult::kCancelled);
  EXPECT_EQ(Run(id, 5), Decision::kCancelled);
  EXPECT_EQ(Run(id, 5), Decision::kCancelled);
  EXPECT_EQ(Run(id, 6, 6), Decision::kExecute);
  EXPECT_EQ(Run(id, 5), Decision::kForgotten);
  EXPECT_EQ(executed_, 1);
}

TEST_F(Sessions, CancellingSaysWhenItComesTooLate) {
  const Instance id = Open();
  EXPECT_EQ(Run(id, 3), Decision::kExecute);
  const CancelVerdict late = table_.Cancel(id, 3, 1);
  ASSERT_EQ(late.result, CancelResult::kExecuted);
  EXPECT_EQ(*late.first, OutcomeFor(3));
  EXPECT_EQ(Run(id, 3), Decision::kRepeat);
  EXPECT_EQ(table_.Cancel(id, 3, 4).result, CancelResult::kForgotten);
  EXPECT_EQ(table_.Cancel(id + 1, 3, 1).result, CancelResult::kExpired);
}

TEST_F(Sessions, ACancelThatCannotBeNotedSaysSo) {
  const Instance id = Open();
  Fill(id, SessionTable::kMaxOutcomes);
  EXPECT_EQ(table_.Cancel(id, 5000, 1).result, CancelResult::kWindowFull);
  EXPECT_EQ(table_.Cancel(id, 5000, 2).result, CancelResult::kCancelled);
  EXPECT_EQ(Run(id, 5000, 3), Decision::kCancelled);
}

// --- The whole decision table ------------------------------------------------------------------

TEST_F(Sessions, TheDecisionTableHolds) {
  enum Sequence { kBelowLowest, kBelowItsOwnLowest, kDone, kCancelledBefore, kNew };
  for (const bool known : {true, false}) {
    for (const Sequence sequence :
         {kBelowLowest, kBelowItsOwnLowest, kDone, kCancelledBefore, kNew}) {
      for (const uint64_t epoch : {6, 7, 8}) {
        for (const bool room : {true, false}) {
          table_ = SessionTable();
          const Instance id = Open();
          ASSERT_EQ(Run(id, 10, 10), Decision::kExecute);
          ASSERT_EQ(table_.Cancel(id, 11, 10).result, CancelResult::kCancelled);
          if (!room) Fill(id, SessionTable::kMaxOutcomes - 2, 100);
          ASSERT_TRUE(table_.SetFence(7));

          RequestId request{known ? id : id + 1, 0, 10, epoch};
          Decision expected = Decision::kExpired;
          switch (sequence) {
            case kBelowLowest:
              request.seq = 9;
              if (known) expected = Decision::kForgotten;
              break;
            case kBelowItsOwnLowest:
              request.seq = 5000;
              request.lowest_unanswered = 5001;
              if (known) expected = Decision::kForgotten;
              break;
            case kDone:
              request.seq = 10;
              if (known) expected = Decision::kRepeat;
              break;
            case kCancelledBefore:
              request.seq = 11;
              if (known) expected = Decision::kCancelled;
              break;
            case kNew:
              request.seq = 5000;
              if (known) expected = Decision::kExecute;
              if (known && !room) expected = Decision::kWindowFull;
              if (known && epoch < 7) expected = Decision::kFenced;
              break;
          }
          EXPECT_EQ(table_.Look(request).decision, expected);
          EXPECT_EQ(table_.Begin(request).decision, expected)
              << "known " << known << " sequence " << sequence << " epoch " << epoch << " room "
              << room;
        }
      }
    }
  }
}

// --- Limits -----------------------------------------------------------------------------------

TEST_F(Sessions, AFullWindowRefusesNewRequestsAndStillAnswersRepeats) {
  const Instance id = Open();
  Fill(id, SessionTable::kMaxOutcomes);
  EXPECT_EQ(Run(id, 2000), Decision::kWindowFull);
  EXPECT_EQ(Run(id, 1), Decision::kRepeat);
  EXPECT_EQ(table_.outcomes(), SessionTable::kMaxOutcomes);
  EXPECT_EQ(Run(id, 2000, 2), Decision::kExecute) << "acknowledging one makes room for one";
  EXPECT_EQ(Run(id, 2001, 2), Decision::kWindowFull);
}

TEST_F(Sessions, WhatWasExecutedInSpiteOfTheTableIsKeptWhereItCanBe) {
  const Instance id = Open();
  Fill(id, SessionTable::kMaxOutcomes);
  table_.Keep(id, 2000, OutcomeFor(2000));
  EXPECT_EQ(table_.outcomes(), SessionTable::kMaxOutcomes + 1);
  EXPECT_EQ(Run(id, 2000), Decision::kRepeat);
  const std::string before = table_.Encode();
  table_.Keep(id, 2000, OutcomeFor(7));   // the first outcome stands
  table_.Keep(id + 1, 1, OutcomeFor(1));  // no such session
  EXPECT_EQ(table_.Encode(), before);
  ASSERT_TRUE(table_.Touch(id, 5));
  table_.Keep(id, 4, OutcomeFor(4));  // nobody will ask
  EXPECT_EQ(Run(id, 4), Decision::kForgotten);
}

TEST_F(Sessions, GreedySessionsCannotTakeWhatAnotherNeedsToGoOn) {
  constexpr size_t kEach = SessionTable::kMaxOutcomes - SessionTable::kGuaranteedOutcomes;
  const Instance modest = Open();
  for (size_t left = SessionTable::kSharedOutcomes; left > 0;) {
    const size_t take = std::min(left, kEach);
    const Instance greedy = Open();
    Fill(greedy, SessionTable::kGuaranteedOutcomes + take);
    left -= take;
  }
  EXPECT_EQ(Run(instance_, 5000), Decision::kWindowFull) << "the last one, below its own limit";
  EXPECT_EQ(table_.Look({instance_, 5000, 2, 0}).decision, Decision::kExecute) << "one for one";
  EXPECT_EQ(Run(instance_, 5000, 2), Decision::kExecute);
  EXPECT_EQ(Run(instance_, 5001, 2), Decision::kWindowFull);
  Fill(modest, SessionTable::kGuaranteedOutcomes);
  EXPECT_EQ(Run(modest, 100), Decision::kWindowFull);
  EXPECT_EQ(Run(modest, 100, 2), Decision::kExecute);
  ASSERT_TRUE(table_.Close(instance_)) << "a greedy one leaves";
  EXPECT_EQ(Run(modest, 101, 2), Decision::kExecute);
  Result<SessionTable> restored = SessionTable::Decode(AsBytes(table_.Encode()));
  ASSERT_OK(restored.status());
  EXPECT_EQ(restored->outcomes(), table_.outcomes());
}

TEST_F(Sessions, AFullTableRefusesNewSessionsWhileAllAreInUse) {
  for (size_t i = 0; i < SessionTable::kMaxSessions; ++i) Open(SessionTable::kMaxTimeout);
  table_.Advance(SessionTable::kEvictableAfter - 1);
  EXPECT_CODE(table_.Open(++instance_, kTimeout).status(), Code::kBusy);
  EXPECT_EQ(table_.sessions(), SessionTable::kMaxSessions);
  EXPECT_TRUE(table_.Close(instance_ - 1));
  Open();
}

TEST_F(Sessions, AFullTableGivesUpTheSessionThatWasIdleForLongest) {
  const Instance first = instance_ + 1;
  for (size_t i = 0; i < SessionTable::kMaxSessions; ++i) Open(SessionTable::kMaxTimeout);
  table_.Advance(1);
  for (Instance id = first; id <= instance_; ++id) {
    if (id != first + 40 && id != first + 50) table_.Touch(id, 1);
  }
  table_.Advance(SessionTable::kEvictableAfter - 1);
  const Instance a = Open(SessionTable::kMaxTimeout);
  EXPECT_EQ(Run(first + 40, 1), Decision::kExpired) << "the lowest id of two equals";
  EXPECT_EQ(table_.Look({first + 50, 1, 1, 0}).decision, Decision::kExecute);
  Open(SessionTable::kMaxTimeout);
  EXPECT_EQ(Run(first + 50, 1), Decision::kExpired);
  EXPECT_CODE(table_.Open(++instance_, kTimeout).status(), Code::kBusy);
  table_.Advance(1);
  Open(SessionTable::kMaxTimeout);
  EXPECT_EQ(Run(first, 1), Decision::kExpired);
  EXPECT_EQ(Run(a, 1), Decision::kExecute);
  EXPECT_EQ(table_.sessions(), SessionTable::kMaxSessions);
}

// --- Broken callers ------------------------------------------------------------------------------

using SessionsDeathTest = Sessions;

TEST_F(SessionsDeathTest, ARequestIsFinishedOnceRightAfterItBegan) {
  const Instance id = Open();
  EXPECT_DEATH(table_.Finish(id, 1, {}), "check failed");
  ASSERT_EQ(table_.Begin({id, 1, 1, 0}).decision, Decision::kExecute);
  EXPECT_DEATH(table_.Finish(id, 2, {}), "check failed");
  EXPECT_DEATH((void)table_.Begin({id, 2, 1, 0}), "check failed");
  EXPECT_DEATH((void)table_.Encode(), "check failed");
  EXPECT_DEATH(table_.Advance(1), "check failed");
  EXPECT_DEATH(table_.Finish(id, 1, {Code::kOk, 1, std::string(kMaxDetailBytes + 1, 'x')}),
               "check failed");
  table_.Finish(id, 1, {Code::kOk, 1, std::string(kMaxDetailBytes, 'x')});
  EXPECT_DEATH(table_.Finish(id, 1, {}), "check failed");
}

TEST_F(SessionsDeathTest, TimeDoesNotGoBackOrJump) {
  EXPECT_DEATH(table_.Advance(-1), "check failed");
  EXPECT_DEATH(table_.Advance(SessionTable::kMaxInterval + 1), "check failed");
}

}  // namespace
}  // namespace hydra
