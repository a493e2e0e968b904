// SPDX-License-Identifier: Apache-2.0
#include "daemon/recovery_budget.h"

#include <gtest/gtest.h>

namespace hydra {
namespace {

using Kind = RecoveryBudget::Kind;

constexpr Nanos kTick = 10 * kMillisecond;
constexpr uint64_t kMiB = 1u << 20;
constexpr uint64_t kPiece = 64u << 10;

class RecoveryBudgetTest : public testing::Test {
 protected:
  // Sends all it may; clients write so much per second, if they are there. Returns bytes per
  // second.
  uint64_t SendFor(Nanos time, bool clients, uint64_t written) {
    uint64_t sent = 0;
    for (Nanos passed = 0; passed < time; passed += kTick) {
      budget_.Tick(now_ += kTick, clients, written / (kSecond / kTick));
      for (; budget_.MaySend(); sent += kPiece) {
        budget_.Spend(2, 2 * kPiece);
        budget_.Settle(2 * kPiece, kPiece, Kind::kDelta);
      }
    }
    return sent * kSecond / static_cast<uint64_t>(time);
  }

  // After what was saved up is gone.
  uint64_t RateOf(bool clients, uint64_t written) {
    SendFor(3 * kSecond, clients, written);
    return SendFor(10 * kSecond, clients, written);
  }

  Nanos now_ = kSecond;
  RecoveryBudget budget_{100 * kMiB};
};

TEST_F(RecoveryBudgetTest, AloneItSendsAtItsRate) {
  EXPECT_NEAR(static_cast<double>(RateOf(false, 0)), 100 * kMiB, kMiB);
}

TEST_F(RecoveryBudgetTest, BesideClientsItSendsAsMuchAsTheyWriteWithinBounds) {
  EXPECT_NEAR(static_cast<double>(RateOf(true, 40 * kMiB)), 40 * kMiB, kMiB);
  EXPECT_NEAR(static_cast<double>(RateOf(true, kMiB)), RecoveryBudget::kBesideClients, kMiB);
  EXPECT_NEAR(static_cast<double>(RateOf(true, 0)), RecoveryBudget::kBesideClients, kMiB)
      << "they read";
  EXPECT_NEAR(static_cast<double>(RateOf(true, 120 * kMiB)), 100 * kMiB, kMiB);
}

TEST_F(RecoveryBudgetTest, OwedBlocksGetLessBesideClientsAndNothingAboveTheRate) {
  const auto owed_rate = [&](bool clients, uint64_t written) {
    uint64_t sent = 0;
    constexpr Nanos kSettle = 3 * kSecond;
    constexpr Nanos kMeasure = 10 * kSecond;
    for (Nanos passed = 0; passed < kSettle + kMeasure; passed += kTick) {
      budget_.Tick(now_ += kTick, clients, written / (kSecond / kTick));
      for (; budget_.MaySendOwed(); sent += passed < kSettle ? 0 : kPiece) {
        budget_.SpendOwed(2, 2 * kPiece);
        budget_.SettleOwed(2 * kPiece, kPiece);
      }
    }
    return static_cast<double>(sent * kSecond / static_cast<uint64_t>(kMeasure));
  };
  EXPECT_NEAR(owed_rate(false, 0), 100 * kMiB, kMiB);
  EXPECT_NEAR(owed_rate(true, 40 * kMiB), RecoveryBudget::kOwedShare * 40 * kMiB, kMiB);
  EXPECT_NEAR(owed_rate(true, 0), RecoveryBudget::kBesideClients, kMiB);
  EXPECT_GT(budget_.sent(Kind::kOwed), 0u);
  // Both kinds together stay below the rate.
  uint64_t sent = 0;
  for (int i = 0; i < 1000; ++i) {
    budget_.Tick(now_ += kTick, false, 0);
    if (i == 500) sent = 0;
    while (budget_.MaySend() || budget_.MaySendOwed()) {
      if (budget_.MaySendOwed()) budget_.SpendOwed(2, kPiece);
      if (budget_.MaySend()) budget_.Spend(2, kPiece);
      sent += 2 * kPiece;
    }
  }
  EXPECT_LE(sent, 5 * 101 * kMiB);
}

TEST_F(RecoveryBudgetTest, WhatTakesLongIsSentMoreAndMoreUpToTwiceAsMuch) {
  SendFor(RecoveryBudget::kGentleFor, true, 40 * kMiB);
  double before = static_cast<double>(SendFor(kSecond, true, 40 * kMiB));
  EXPECT_NEAR(before, 40 * kMiB, kMiB);
  for (int minute = 1; minute <= 4; ++minute) {
    SendFor(59 * kSecond, true, 40 * kMiB);
    const double rate = static_cast<double>(SendFor(kSecond, true, 40 * kMiB));
    EXPECT_NEAR(rate - before, 10 * kMiB, kMiB) << minute;
    before = rate;
  }
  SendFor(120 * kSecond, true, 40 * kMiB);
  EXPECT_NEAR(static_cast<double>(SendFor(kSecond, true, 40 * kMiB)), 80 * kMiB, kMiB);
  // The next one begins anew.
  for (Nanos passed = 0; passed <= RecoveryBudget::kOverAfter; passed += kTick) {
    budget_.Tick(now_ += kTick, true, 40 * kMiB / 100);
  }
  EXPECT_NEAR(static_cast<double>(RateOf(true, 40 * kMiB)), 40 * kMiB, kMiB);
}

TEST_F(RecoveryBudgetTest, SoIsTheLeastThatIsSentBesideClientsThatOnlyRead) {
  SendFor(RecoveryBudget::kGentleFor, true, 0);
  EXPECT_NEAR(static_cast<double>(SendFor(kSecond, true, 0)), RecoveryBudget::kBesideClients, kMiB);
  SendFor(360 * kSecond, true, 0);
  EXPECT_NEAR(static_cast<double>(SendFor(kSecond, true, 0)), 2 * RecoveryBudget::kBesideClients,
              kMiB);
}

TEST_F(RecoveryBudgetTest, ItTakesItsRateBackWhenClientsAreGone) {
  RateOf(true, kMiB);
  EXPECT_NEAR(static_cast<double>(RateOf(false, 0)), 100 * kMiB, kMiB);
}

TEST_F(RecoveryBudgetTest, ALowRateBindsBesideClientsToo) {
  RecoveryBudget slow(kMiB);
  uint64_t sent = 0;
  for (int i = 0; i < 1000; ++i) {
    slow.Tick(now_ += kTick, true, kMiB);
    for (; slow.MaySend(); sent += kPiece) {
      slow.Spend(2, kPiece);
      slow.Settle(kPiece, kPiece, Kind::kLog);
    }
  }
  EXPECT_LE(sent, RecoveryBudget::kBurst + 10 * kMiB + kPiece);
  EXPECT_EQ(slow.sent(Kind::kLog), sent);
  EXPECT_EQ(slow.sent(Kind::kDelta), 0u);
}

TEST_F(RecoveryBudgetTest, SavesUpNoMoreThanABurst) {
  SendFor(3 * kSecond, false, 0);
  for (int i = 0; i < 1000; ++i) budget_.Tick(now_ += kTick, false, 0);
  uint64_t sent = 0;
  for (; budget_.MaySend(); sent += kPiece) budget_.Spend(2, kPiece);
  EXPECT_EQ(sent, RecoveryBudget::kBurst);
}

TEST_F(RecoveryBudgetTest, EachNodeThatIsBehindIsSentAsMuchAsClientsWrite) {
  uint64_t sent = 0;
  for (int i = 0; i < 1000; ++i) {
    budget_.Tick(now_ += kTick, true, 20 * kMiB / (kSecond / kTick));
    for (NodeId peer = 2; budget_.MaySend(); peer = 5 - peer, sent += kPiece) {
      budget_.Spend(peer, kPiece);
    }
  }
  EXPECT_NEAR(static_cast<double>(sent) / 10, 40 * kMiB, 3 * kMiB);
}

TEST_F(RecoveryBudgetTest, WhatMayNotWaitHoldsUpOthersForAMomentOnly) {
  budget_.Tick(now_ += kTick, false, 0);
  for (int i = 0; i < 1000; ++i) budget_.Settle(0, kMiB, Kind::kLog);
  for (int i = 0; i < 10; ++i) budget_.Tick(now_ += kTick, false, 0);
  EXPECT_TRUE(budget_.MaySend());
}

TEST_F(RecoveryBudgetTest, WithoutALimitThereIsNone) {
  RecoveryBudget free(0);
  free.Tick(now_, true, kMiB);
  free.Spend(2, 1000 * kMiB);
  EXPECT_TRUE(free.MaySend());
}

TEST(PayloadHistory, KnowsAboutHowMuchCameAfterAnInstance) {
  PayloadHistory history;
  EXPECT_EQ(history.Since(0), 0u);
  for (Instance i = 1001; i <= 5000; ++i) history.Add(i, 10);
  for (const Instance since : {Instance{1000}, Instance{1001}, Instance{3210}, Instance{4999}}) {
    const uint64_t exact = (5000 - since) * 10;
    EXPECT_GE(history.Since(since), exact) << since;
    EXPECT_LE(history.Since(since), exact + 64 * 10) << since;
  }
  EXPECT_EQ(history.Since(3), 40'000u) << "what it knows";
}

TEST(PayloadHistory, ForgetsWhatIsLongAgo) {
  PayloadHistory history;
  for (Instance i = 1; i <= 1'000'000; ++i) history.Add(i, 1);
  EXPECT_LE(history.Since(1), 200'000u);
  EXPECT_GE(history.Since(1), 65'536u) << "as far as a log reaches";
}

}  // namespace
}  // namespace hydra
