// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/exam.h"

#include <string>

#include <gtest/gtest.h>

namespace hydra::sim {
namespace {

TEST(Exam, AComplaintThatHasNothingToDoWithTheBugDoesNotCount) {
  const std::string stale = "at 3.1 s: not linearizable: block 7: no order explains these:";
  const std::string stuck = "at 142.0 s: does not recover: 3 operations are open";
  EXPECT_TRUE(Fits(Sabotage::kStaleReadRound, stale));
  EXPECT_FALSE(Fits(Sabotage::kStaleReadRound, stuck));
  EXPECT_FALSE(Fits(Sabotage::kUseShortSpare, stale));
  EXPECT_TRUE(Fits(Sabotage::kLogOutlivesSegment, stuck));
}

TEST(Exam, WhatTheLastEventsSayIsNoComplaint) {
  EXPECT_FALSE(Fits(Sabotage::kStaleReadRound,
                    "at 9.0 s: does not recover: all\nlast events:\nnot linearizable"));
}

TEST(Exam, AProcessThatDiedOfItsOwnCheckSaysSoOnItsSecondLine) {
  EXPECT_TRUE(Fits(Sabotage::kInstallNotExclusive,
                   "died of signal 6 (Aborted)\nfatal: paxos/x.cc:1: check failed: !active"));
  EXPECT_FALSE(Fits(Sabotage::kInstallNotExclusive, "died of signal 11 (Segmentation fault)\n"));
}

}  // namespace
}  // namespace hydra::sim
