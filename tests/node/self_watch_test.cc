// SPDX-License-Identifier: Apache-2.0
#include "daemon/self_watch.h"

#include <string>

#include <gtest/gtest.h>

namespace hydra {
namespace {

constexpr Nanos kLook = 250 * kMillisecond;

class SelfWatchTest : public testing::Test {
 protected:
  // So long, writes take this and answers that; 0: there are none.
  void Disk(Nanos time, Nanos write, Nanos answer) {
    for (const Nanos end = now_ + time; now_ < end;) {
      now_ += kLook;
      if (write > 0) {
        const auto writes = static_cast<uint64_t>(std::max<Nanos>(1, kLook / write));
        disk_.writes += writes;
        disk_.write_nanos += writes * static_cast<uint64_t>(write);
      }
      if (answer > 0) {
        disk_.answers += 20;
        disk_.answer_nanos += 20 * static_cast<uint64_t>(answer);
      }
      watch_.LookAtDisk(disk_, now_);
    }
  }
  // A heartbeat in 75 ms to each of `peers`; the first `lossy` answer `percent` of them.
  void Links(Nanos time, NodeId peers, NodeId lossy, uint64_t percent) {
    for (const Nanos end = now_ + time; now_ < end;) {
      now_ += kLook;
      for (NodeId peer = 1; peer <= peers; ++peer) {
        const uint64_t sent = 100 * kLook / (75 * kMillisecond);  // a hundredfold: exact percents
        beats_[peer].asked += sent;
        beats_[peer].answered += peer <= lossy ? percent * sent / 100 : sent;
      }
      watch_.LookAtLinks(beats_, now_);
    }
  }
  bool fit() const { return watch_.Complaint().empty(); }

  Nanos now_ = kSecond;
  SelfWatch::Disk disk_;
  std::map<NodeId, SelfWatch::Beats> beats_;
  SelfWatch watch_;
};

TEST_F(SelfWatchTest, AGoodDiskIsFitHoweverBusy) {
  Disk(60 * kSecond, 2 * kMillisecond, 3 * kMillisecond);
  Disk(60 * kSecond, 30 * kMillisecond, kMillisecond);
  EXPECT_TRUE(fit()) << watch_.Complaint();
}

TEST_F(SelfWatchTest, ADiskThatTurnedAHundredTimesSlowerThanTheOthersIsNoticedWithinSeconds) {
  Disk(60 * kSecond, 2 * kMillisecond, 3 * kMillisecond);
  Disk(kSecond, 200 * kMillisecond, 4 * kMillisecond);
  EXPECT_TRUE(fit()) << "a second may be chance";
  Disk(2 * kSecond, 200 * kMillisecond, 4 * kMillisecond);
  EXPECT_FALSE(fit());
}

TEST_F(SelfWatchTest, WhereAllDisksAreSlowNobodyLeaves) {
  Disk(60 * kSecond, 300 * kMillisecond, 400 * kMillisecond);
  EXPECT_TRUE(fit()) << watch_.Complaint();
}

TEST_F(SelfWatchTest, AMomentOfGoodWritesBeginsTheCountAnew) {
  for (int i = 0; i < 20; ++i) {
    Disk(kSecond + kLook, 200 * kMillisecond, 4 * kMillisecond);
    Disk(kLook, 2 * kMillisecond, 4 * kMillisecond);
  }
  EXPECT_TRUE(fit()) << watch_.Complaint();
}

TEST_F(SelfWatchTest, ADiskThatHangsIsNoticedAlthoughNothingIsAnswered) {
  disk_.writing_since = now_;
  Disk(3 * kSecond, 0, 0);
  EXPECT_TRUE(fit());
  Disk(2 * kSecond, 0, 0);
  EXPECT_FALSE(fit());
}

TEST_F(SelfWatchTest, ADiskThatHungIsNoticedAlsoByWhoCouldNotLookMeanwhile) {
  disk_.longest_write = 3 * kSecond;
  Disk(kLook, 2 * kMillisecond, 3 * kMillisecond);
  EXPECT_TRUE(fit());
  disk_.longest_write = 5 * kSecond;
  Disk(kLook, 2 * kMillisecond, 3 * kMillisecond);
  EXPECT_FALSE(fit());
  disk_.longest_write = 0;
  Disk(SelfWatch::kFitAfter + kSecond, 2 * kMillisecond, 3 * kMillisecond);
  EXPECT_TRUE(fit());
}

TEST_F(SelfWatchTest, AnIdleDiskIsFit) {
  Disk(60 * kSecond, 0, kMillisecond);
  EXPECT_TRUE(fit());
}

TEST_F(SelfWatchTest, TwoSlowWritesWithAnIdleHourBetweenThemAreNotSecondsWithoutABreak) {
  for (int i = 0; i < 5; ++i) {
    Disk(kLook, 200 * kMillisecond, 4 * kMillisecond);
    Disk(3600 * kSecond, 0, 0);
  }
  EXPECT_TRUE(fit()) << watch_.Complaint();
}

// It follows then, and answers nobody.
TEST_F(SelfWatchTest, WhoIsUnfitStaysSoUntilItsDiskWasGoodForHalfAMinute) {
  Disk(3 * kSecond, 200 * kMillisecond, 4 * kMillisecond);
  Disk(300 * kSecond, 200 * kMillisecond, 0);
  EXPECT_FALSE(fit());
  Disk(SelfWatch::kFitAfter - kSecond, 2 * kMillisecond, 0);
  EXPECT_FALSE(fit());
  Disk(2 * kSecond, 2 * kMillisecond, 0);
  EXPECT_TRUE(fit());
}

TEST_F(SelfWatchTest, LinksThatLoseEveryThirdPacketEachWayAreNoticed) {
  Links(60 * kSecond, 2, 0, 0);
  Links(8 * kSecond, 2, 2, 49);
  EXPECT_FALSE(fit());
  Links(SelfWatch::kFitAfter, 2, 0, 0);
  EXPECT_FALSE(fit());
  Links(SelfWatch::kLinkWindow + kSecond, 2, 0, 0);
  EXPECT_TRUE(fit());
}

TEST_F(SelfWatchTest, OneLossyPeerIsThePeersMatter) {
  Links(60 * kSecond, 2, 1, 10);
  EXPECT_TRUE(fit()) << watch_.Complaint();
  Links(60 * kSecond, 4, 2, 10);
  EXPECT_TRUE(fit()) << watch_.Complaint();
  Links(60 * kSecond, 4, 3, 10);
  EXPECT_FALSE(fit());
}

TEST_F(SelfWatchTest, AnOutageIsNoLossHoweverLongItLasts) {
  for (const Nanos outage :
       {kSecond / 2, 3 * kSecond / 2, 2 * kSecond, 5 * kSecond, 60 * kSecond}) {
    Links(5 * kSecond, 2, 0, 0);
    Links(outage, 2, 2, 0);
    Links(5 * kSecond, 2, 0, 0);
    EXPECT_TRUE(fit()) << outage << watch_.Complaint();
  }
}

TEST_F(SelfWatchTest, AFewLostHeartbeatsAreNoReason) {
  Links(60 * kSecond, 2, 2, 85);
  EXPECT_TRUE(fit()) << watch_.Complaint();
}

}  // namespace
}  // namespace hydra
