// SPDX-License-Identifier: Apache-2.0
#include "daemon/stage_times.h"

#include <string>
#include <utility>

#include <gtest/gtest.h>

namespace hydra {
namespace {

constexpr Nanos kStart = 100 * kSecond;

class StageTimesTest : public testing::Test {
 protected:
  // How often the stage was observed, and milliseconds in all.
  std::pair<uint64_t, int> Seen(const std::string& kind, const std::string& stage) {
    for (const MetricFamilySnapshot& family : metrics_.Snapshot()) {
      for (const auto& series : family.series) {
        if (series.labels == MetricLabels{{"kind", kind}, {"stage", stage}}) {
          return {series.histogram.count, static_cast<int>(series.histogram.sum * 1000 + 0.5)};
        }
      }
    }
    return {0, -1};
  }

  static paxos::Message Between(NodeId from, NodeId to, GroupId group, paxos::MessageBody body) {
    return {group, {from, 1}, {to, 1}, 1, std::move(body)};
  }
  void Send(NodeId to, GroupId group, Instance instance, Nanos now) {
    auto entries = std::make_shared<std::vector<paxos::AcceptEntry>>();
    entries->push_back({instance, {}, nullptr});
    stages_.Sent(Between(1, to, group, paxos::Accept{{1, 1}, 0, entries}), now);
  }
  void Confirm(NodeId from, GroupId group, Instance first, Instance last, Nanos now) {
    stages_.Received(Between(from, 1, group, paxos::Accepted{{1, 1}, {{first, last}}, 0}), now);
  }

  using Times = std::pair<uint64_t, int>;
  MetricsRegistry metrics_;
  StageTimes stages_{&metrics_};
};

TEST_F(StageTimesTest, TheStagesOfAWriteAddUp) {
  ShardReply reply;
  reply.begun = kStart + 2 * kMillisecond;
  reply.chosen = kStart + 10 * kMillisecond;
  reply.ended = kStart + 11 * kMillisecond;
  stages_.Answered(kStart, reply, kStart + 15 * kMillisecond);
  EXPECT_EQ(Seen("write", "queue"), Times(1, 2));
  EXPECT_EQ(Seen("write", "replicate"), Times(1, 8));
  EXPECT_EQ(Seen("write", "apply"), Times(1, 1));
  EXPECT_EQ(Seen("write", "reply"), Times(1, 4));
  EXPECT_EQ(Seen("read", "queue"), Times(0, 0));
}

TEST_F(StageTimesTest, TheStagesOfAReadAddUp) {
  ShardReply reply;
  reply.data.emplace();
  reply.begun = kStart + 1 * kMillisecond;
  reply.ended = kStart + 4 * kMillisecond;
  stages_.Answered(kStart, reply, kStart + 5 * kMillisecond);
  EXPECT_EQ(Seen("read", "queue"), Times(1, 1));
  EXPECT_EQ(Seen("read", "disk"), Times(1, 3));
  EXPECT_EQ(Seen("read", "reply"), Times(1, 1));
}

TEST_F(StageTimesTest, WhatWasNotProposedHasNoStages) {
  stages_.Answered(kStart, ShardReply{}, kStart + kSecond);
  EXPECT_EQ(Seen("write", "queue"), Times(0, 0));
}

TEST_F(StageTimesTest, ARoundEndsWhenThatPeerConfirmsThatEntry) {
  Send(2, 7, 40, kStart);
  Send(2, 7, 41, kStart + 1 * kMillisecond);  // one at a time
  Send(3, 7, 40, kStart);
  Confirm(2, 8, 40, 40, kStart + 2 * kMillisecond);  // of another group
  Confirm(2, 7, 41, 49, kStart + 2 * kMillisecond);  // other entries
  EXPECT_EQ(Seen("peer", "round"), Times(0, 0));
  Confirm(2, 7, 30, 40, kStart + 3 * kMillisecond);
  EXPECT_EQ(Seen("peer", "round"), Times(1, 3));
  Confirm(2, 7, 30, 40, kStart + 5 * kMillisecond);  // again
  Confirm(3, 7, 40, 40, kStart + 7 * kMillisecond);
  EXPECT_EQ(Seen("peer", "round"), Times(2, 10));
}

TEST_F(StageTimesTest, AnEntryThatIsNeverConfirmedIsGivenUp) {
  Send(2, 7, 40, kStart);
  Send(2, 7, 99, kStart + 5 * kSecond);
  Confirm(2, 7, 99, 99, kStart + 5 * kSecond + 4 * kMillisecond);
  EXPECT_EQ(Seen("peer", "round"), Times(1, 4));
}

}  // namespace
}  // namespace hydra
