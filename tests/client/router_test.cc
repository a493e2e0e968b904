// SPDX-License-Identifier: Apache-2.0
//
// What the client does when nodes fail it: redirects, lost answers, expired sessions, damage. Every
// fault is one that the cluster may show; what a mutation did is counted by the nodes.
#include <atomic>
#include <chrono>
#include <future>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/rng.h"
#include "client/hydra.h"
#include "client/layout.h"
#include "client/protocol.pb.h"
#include "tests/client/fake_cluster.h"
#include "tests/support/gtest_status.h"

namespace hydra {
namespace {

using std::chrono::milliseconds;
using test::FakeCluster;
using test::Fault;

constexpr uint64_t kMiB = 1u << 20;

class RouterTest : public testing::Test {
 protected:
  void SetUp() override {
    nodes_.Do([&] { nodes_.AddVolume("v", 64 * kMiB, 4096, 4); });
  }

  Volume Open(ClusterOptions options = Quick()) {
    auto cluster = Cluster::Connect(nodes_.addresses(), options);
    EXPECT_OK(cluster.status());
    cluster_ = std::make_unique<Cluster>(*cluster);
    auto volume = Volume::Open(*cluster, "v");
    EXPECT_OK(volume.status());
    return *volume;
  }
  static ClusterOptions Quick() {
    ClusterOptions options;
    options.timeout = milliseconds(10'000);
    options.attempt_timeout = milliseconds(200);
    options.connect_timeout = milliseconds(500);
    return options;
  }

  static std::vector<uint8_t> Bytes(size_t length, unsigned seed) {
    std::vector<uint8_t> bytes(length);
    Rng rng(seed);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(rng.Next());
    return bytes;
  }
  static bool Mutates(const rpc::Request& request) {
    return request.has_io() && request.io().kind() != rpc::Io::READ;
  }
  static bool Reads(const rpc::Request& request) {
    return request.has_io() && request.io().kind() == rpc::Io::READ;
  }
  // The first `count` mutations get `fault`.
  void FailFirst(int count, Fault fault) {
    nodes_.SetFaults([=, left = count](uint32_t, const rpc::Request& request) mutable {
      return Mutates(request) && left-- > 0 ? fault : Fault::kNone;
    });
  }
  void MoveMasters(uint32_t node) {
    nodes_.Do([&] {
      for (uint32_t group = 1; group <= 4; ++group) nodes_.SetMaster(group, node);
    });
  }
  // Whether reads come to ask that node alone.
  bool ReadsReach(Volume volume, uint32_t node) {
    std::atomic<uint32_t> asked = 0;
    nodes_.SetFaults([&](uint32_t to, const rpc::Request& request) {
      if (Reads(request)) asked = to;
      return Fault::kNone;
    });
    std::vector<uint8_t> got(4096);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    int in_a_row = 0;
    while (in_a_row < 10 && std::chrono::steady_clock::now() < end) {
      EXPECT_OK(volume.Read(0, got));
      in_a_row = asked == node ? in_a_row + 1 : 0;
    }
    nodes_.SetFaults({});
    return in_a_row == 10;
  }

  FakeCluster nodes_;
  std::unique_ptr<Cluster> cluster_;
};

TEST_F(RouterTest, WhatWasWrittenIsReadAcrossShardsAndParts) {
  Volume volume = Open();
  const auto data = Bytes(5 * kMiB + 1536, 1);
  ASSERT_OK(volume.Write(3 * kMiB - 512, data));
  std::vector<uint8_t> got(data.size());
  ASSERT_OK(volume.Read(3 * kMiB - 512, got));
  EXPECT_EQ(got, data);
  // Around it is nothing.
  std::vector<uint8_t> before(4096, 1);
  ASSERT_OK(volume.Read(3 * kMiB - 512 - 4096, before));
  EXPECT_EQ(before, std::vector<uint8_t>(4096, 0));
}

TEST_F(RouterTest, RandomOperationsAgreeWithAnArray) {
  Volume volume = Open();
  std::vector<uint8_t> model(8 * kMiB, 0);
  Rng rng(7);
  for (int i = 0; i < 300; ++i) {
    const uint64_t offset = rng.Below(model.size() / 512) * 512;
    const uint64_t most =
        std::min<uint64_t>(model.size() - offset, rng.Percent(20) ? 3 * kMiB : 20'480);
    const uint64_t length = (1 + rng.Below(most / 512)) * 512;
    switch (rng.Below(4)) {
      case 0: {
        const auto data = Bytes(length, static_cast<unsigned>(i));
        ASSERT_OK(volume.Write(offset, data));
        std::copy(data.begin(), data.end(), model.begin() + static_cast<ptrdiff_t>(offset));
        break;
      }
      case 1:
        ASSERT_OK(volume.WriteZeroes(offset, length));
        std::fill_n(model.begin() + static_cast<ptrdiff_t>(offset), length, 0);
        break;
      case 2: {
        ASSERT_OK(volume.Discard(offset, length));
        const uint64_t first = (offset + 4095) / 4096 * 4096;
        const uint64_t last = (offset + length) / 4096 * 4096;
        if (first < last) {
          std::fill(model.begin() + static_cast<ptrdiff_t>(first),
                    model.begin() + static_cast<ptrdiff_t>(last), 0);
        }
        break;
      }
      default: {
        std::vector<uint8_t> got(length);
        ASSERT_OK(volume.Read(offset, got));
        ASSERT_TRUE(
            std::equal(got.begin(), got.end(), model.begin() + static_cast<ptrdiff_t>(offset)));
      }
    }
  }
  std::vector<uint8_t> all(model.size());
  ASSERT_OK(volume.Read(0, all));
  EXPECT_TRUE(all == model);
}

TEST_F(RouterTest, BadArgumentsAreRefusedWithTheRightCode) {
  Volume volume = Open();
  std::vector<uint8_t> block(4096);
  EXPECT_CODE(volume.Read(1, block), Code::kInvalidArgument);
  EXPECT_CODE(volume.Read(0, std::span(block).first(100)), Code::kInvalidArgument);
  EXPECT_CODE(volume.Read(0, {}), Code::kInvalidArgument);
  EXPECT_CODE(volume.Write(0, {}), Code::kInvalidArgument);
  EXPECT_CODE(volume.Write(511, block), Code::kInvalidArgument);
  EXPECT_CODE(volume.Read(64 * kMiB, block), Code::kOutOfRange);
  EXPECT_CODE(volume.Write(64 * kMiB - 512, block), Code::kOutOfRange);
  EXPECT_CODE(volume.Discard(0, 65 * kMiB), Code::kOutOfRange);
  EXPECT_CODE(volume.WriteZeroes(UINT64_MAX - 511, 1024), Code::kOutOfRange);
  EXPECT_CODE(volume.FetchAdd(4, 1).status(), Code::kInvalidArgument);
  EXPECT_CODE(volume.FetchAdd(64 * kMiB, 1).status(), Code::kOutOfRange);
  EXPECT_CODE(volume.CompareAndWrite(0, block, std::span(block).first(512)).status(),
              Code::kInvalidArgument);
  EXPECT_CODE(
      volume.CompareAndWrite(kMiB - 512, std::span(block).first(1024), std::span(block).first(1024))
          .status(),
      Code::kInvalidArgument);
  EXPECT_CODE(Volume::Open(*cluster_, "none").status(), Code::kNotFound);
  EXPECT_CODE(Cluster::Connect({}).status(), Code::kInvalidArgument);
  EXPECT_CODE(Cluster::Connect({"nowhere"}).status(), Code::kInvalidArgument);
  EXPECT_EQ(nodes_.counts().executed, 0u);
}

TEST_F(RouterTest, NoNodeThereIsAnErrorInTime) {
  nodes_.Do([&] { nodes_.StopNode(1); });
  ClusterOptions options = Quick();
  options.timeout = milliseconds(300);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_CODE(Cluster::Connect({nodes_.address(1)}, options).status(), Code::kUnavailable);
  EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(20'000));
}

TEST_F(RouterTest, RedirectsLeadToTheMasterAndAreRemembered) {
  Volume volume = Open();
  ASSERT_OK(volume.Write(0, Bytes(4096, 1)));
  nodes_.Do([&] {
    for (uint32_t group = 1; group <= 4; ++group) nodes_.SetMaster(group, 3);
  });
  ASSERT_OK(volume.Write(0, Bytes(4096, 2)));
  const uint64_t redirects = cluster_->stats().redirects;
  EXPECT_GT(redirects, 0u);
  for (int i = 0; i < 10; ++i) ASSERT_OK(volume.Write(0, Bytes(4096, 3)));
  EXPECT_EQ(cluster_->stats().redirects, redirects);
}

// A follower answers reads too, one round trip later than its master would.
TEST_F(RouterTest, WhoOnlyReadsFollowsTheMasterWhenItMoves) {
  ClusterOptions options = Quick();
  options.attempt_timeout = options.connect_timeout = milliseconds(5'000);
  Volume volume = Open(options);
  ASSERT_OK(volume.Write(0, Bytes(4096, 1)));
  MoveMasters(3);
  EXPECT_TRUE(ReadsReach(volume, 3));
  // Also when it was away, and nobody wrote since it came back.
  nodes_.Do([&] { nodes_.StopNode(3); });
  MoveMasters(2);
  EXPECT_TRUE(ReadsReach(volume, 2));
  nodes_.Do([&] { nodes_.StartNode(3); });
  MoveMasters(3);
  EXPECT_TRUE(ReadsReach(volume, 3));
}

// The others still reach it, or have not noticed yet that it is gone.
TEST_F(RouterTest, WhoOnlyReadsIsNotSentBackToAMasterThatItCannotReach) {
  Volume volume = Open();
  ASSERT_OK(volume.Write(0, Bytes(4096, 1)));
  nodes_.Do([&] {
    for (uint32_t group = 1; group <= 4; ++group) nodes_.SetMaster(group, 3);
    nodes_.StopNode(3);
  });
  std::vector<uint8_t> got(4096);
  ASSERT_OK(volume.Read(0, got));
  for (const Consistency how : {Consistency::kLinearizable, Consistency::kLocal}) {
    const uint64_t before = cluster_->stats().attempts;
    for (int i = 0; i < 30; ++i) ASSERT_OK(volume.Read(0, got, how));
    EXPECT_LT(cluster_->stats().attempts - before, 45u);
  }
}

// It leads, but what it says to this client is lost.
TEST_F(RouterTest, WhoOnlyReadsWaitsOnceForAMasterThatDoesNotAnswer) {
  Volume volume = Open();
  ASSERT_OK(volume.Write(0, Bytes(4096, 1)));
  MoveMasters(3);
  EXPECT_TRUE(ReadsReach(volume, 3));
  std::atomic<int> asked = 0;
  nodes_.SetFaults([&](uint32_t node, const rpc::Request& request) {
    if (node != 3 || !Reads(request)) return Fault::kNone;
    ++asked;
    return Fault::kDropReply;
  });
  std::vector<uint8_t> got(4096);
  for (int i = 0; i < 30; ++i) ASSERT_OK(volume.Read(0, got));
  nodes_.SetFaults({});
  EXPECT_GE(asked, 1);
  EXPECT_LE(asked, 3);
}

// Each of these happens to a write, and the write happens once.
class OnceTest : public RouterTest, public testing::WithParamInterface<Fault> {};

TEST_P(OnceTest, AWriteThatFailsAFewTimesHappensOnce) {
  Volume volume = Open();
  ASSERT_OK(volume.Write(0, Bytes(4096, 1)));
  const uint64_t before = nodes_.counts().executed;
  FailFirst(4, GetParam());
  const auto data = Bytes(4096, 2);
  ASSERT_OK(volume.Write(0, data));
  EXPECT_EQ(nodes_.counts().executed, before + 1);
  std::vector<uint8_t> got(4096);
  ASSERT_OK(volume.Read(0, got));
  EXPECT_EQ(got, data);
}

INSTANTIATE_TEST_SUITE_P(Faults, OnceTest,
                         testing::Values(Fault::kDropRequest, Fault::kDropReply,
                                         Fault::kCloseBefore, Fault::kCloseAfter, Fault::kBusy,
                                         Fault::kUnknown, Fault::kNotMaster, Fault::kNoGroup,
                                         Fault::kDelay, Fault::kDamaged));

TEST_F(RouterTest, AnExpiredSessionIsReopenedIfNothingWasInDoubt) {
  Volume volume = Open();
  ASSERT_OK(volume.Write(0, Bytes(4096, 1)));
  nodes_.Do([&] { nodes_.ExpireSessions(); });
  ASSERT_OK(volume.Write(0, Bytes(4096, 2)));
  EXPECT_EQ(nodes_.counts().executed, 2u);
  EXPECT_EQ(cluster_->stats().expired, 1u);
}

TEST_F(RouterTest, AWriteInDoubtWhenItsSessionExpiresIsReportedAndNeverRepeated) {
  Volume volume = Open();
  ASSERT_OK(volume.Write(0, Bytes(4096, 1)));
  // Executed, answer lost; when it is sent again, the session is gone.
  nodes_.SetFaults([step = 0](uint32_t, const rpc::Request& request) mutable {
    if (!Mutates(request)) return Fault::kNone;
    ++step;
    return step == 1 ? Fault::kDropReply : step == 2 ? Fault::kExpire : Fault::kNone;
  });
  const Status status = volume.Write(0, Bytes(4096, 2));
  EXPECT_CODE(status, Code::kAborted);
  EXPECT_NE(std::string(status.message()).find("may or may not"), std::string::npos);
  EXPECT_EQ(nodes_.counts().executed, 2u);
  EXPECT_EQ(cluster_->stats().unknown, 1u);
  nodes_.SetFaults(nullptr);
  ASSERT_OK(volume.Write(0, Bytes(4096, 3)));
  EXPECT_EQ(nodes_.counts().executed, 3u);
}

TEST_F(RouterTest, TimeUpSaysWhetherItMayHaveHappened) {
  ClusterOptions options = Quick();
  options.timeout = milliseconds(1000);
  Volume volume = Open(options);
  ASSERT_OK(volume.Write(0, Bytes(4096, 1)));
  FailFirst(1'000'000, Fault::kBusy);
  EXPECT_CODE(volume.Write(0, Bytes(4096, 2)), Code::kBusy);
  FailFirst(1'000'000, Fault::kNotMaster);
  EXPECT_CODE(volume.Write(0, Bytes(4096, 2)), Code::kUnavailable);
  EXPECT_EQ(nodes_.counts().executed, 1u);
  nodes_.SetFaults(nullptr);
  ASSERT_OK(volume.Write(0, Bytes(4096, 1)));  // finds the master
  FailFirst(1'000'000, Fault::kDropReply);
  EXPECT_CODE(volume.Write(0, Bytes(4096, 2)), Code::kAborted);
  EXPECT_EQ(nodes_.counts().executed, 3u);
}

TEST_F(RouterTest, ANumberGivenUpIsNeverExecutedLater) {
  ClusterOptions options = Quick();
  options.timeout = milliseconds(300);
  Volume volume = Open(options);
  ASSERT_OK(volume.Write(0, Bytes(4096, 1)));
  FailFirst(1'000'000, Fault::kDropRequest);
  EXPECT_CODE(volume.Write(0, Bytes(4096, 2)), Code::kAborted);
  nodes_.SetFaults(nullptr);
  uint64_t lowest = 0;
  nodes_.SetFaults([&](uint32_t, const rpc::Request& request) {
    if (Mutates(request)) lowest = request.io().lowest_unanswered();
    return Fault::kNone;
  });
  ASSERT_OK(volume.Write(0, Bytes(4096, 3)));
  nodes_.SetFaults(nullptr);
  EXPECT_EQ(lowest, 3u);  // 1 was answered, 2 given up
}

TEST_F(RouterTest, ANodeThatStopsIsReplacedByAnother) {
  Volume volume = Open();
  for (uint64_t i = 0; i < 8; ++i) ASSERT_OK(volume.Write(i * kMiB, Bytes(4096, 1)));
  nodes_.Do([&] {
    nodes_.StopNode(1);
    for (uint32_t group = 1; group <= 4; ++group) nodes_.SetMaster(group, 2);
  });
  for (uint64_t i = 0; i < 8; ++i) ASSERT_OK(volume.Write(i * kMiB, Bytes(4096, 2)));
  nodes_.Do([&] {
    nodes_.StartNode(1);
    nodes_.StopNode(2);
    for (uint32_t group = 1; group <= 4; ++group) nodes_.SetMaster(group, 1);
  });
  for (uint64_t i = 0; i < 8; ++i) ASSERT_OK(volume.Write(i * kMiB, Bytes(4096, 3)));
  EXPECT_EQ(nodes_.counts().executed, 24u);
}

TEST_F(RouterTest, ADamagedOrChangedCopyIsReadElsewhereUntilNoneIsLeft) {
  Volume volume = Open();
  const auto data = Bytes(8192, 1);
  ASSERT_OK(volume.Write(0, data));
  for (const Fault fault : {Fault::kDamaged, Fault::kCorrupt}) {
    nodes_.SetFaults(
        [=, bad = std::set<uint32_t>()](uint32_t node, const rpc::Request& request) mutable {
          if (!Reads(request)) return Fault::kNone;
          if (bad.size() < 2) bad.insert(node);
          return bad.contains(node) ? fault : Fault::kNone;
        });
    std::vector<uint8_t> got(8192);
    ASSERT_OK(volume.Read(0, got));
    EXPECT_EQ(got, data);
    nodes_.SetFaults([=](uint32_t, const rpc::Request& request) {
      return Reads(request) ? fault : Fault::kNone;
    });
    EXPECT_CODE(volume.Read(0, got), Code::kCorruption);
  }
  EXPECT_GE(cluster_->stats().damaged, 6u);
}

TEST_F(RouterTest, CompareAndWriteSaysWhatItDid) {
  Volume volume = Open();
  const auto one = Bytes(4096, 1);
  const auto two = Bytes(4096, 2);
  ASSERT_OK(volume.Write(0, one));
  auto done = volume.CompareAndWrite(0, two, one);
  ASSERT_OK(done.status());
  EXPECT_FALSE(*done);
  FailFirst(3, Fault::kDropReply);  // the outcome is the first one's
  done = volume.CompareAndWrite(0, one, two);
  ASSERT_OK(done.status());
  EXPECT_TRUE(*done);
  done = volume.CompareAndWrite(512, std::span(two).subspan(512, 512), std::span(one).first(512));
  ASSERT_OK(done.status());
  EXPECT_TRUE(*done);
  std::vector<uint8_t> got(1024);
  ASSERT_OK(volume.Read(0, got));
  EXPECT_TRUE(std::equal(got.begin(), got.begin() + 512, two.begin()));
  EXPECT_TRUE(std::equal(got.begin() + 512, got.end(), one.begin()));
}

TEST_F(RouterTest, CountersAreExactThoughAnswersAreLost) {
  ClusterOptions options = Quick();
  options.attempt_timeout = milliseconds(50);
  options.timeout = milliseconds(60'000);
  Volume volume = Open(options);
  nodes_.SetFaults([rng = Rng(5)](uint32_t, const rpc::Request&) mutable {
    if (!rng.Percent(20)) return Fault::kNone;
    return rng.Percent(70) ? Fault::kDropReply : Fault::kCloseAfter;
  });
  constexpr int kThreads = 4;
  constexpr int kEach = 30;
  std::vector<std::thread> threads;
  std::atomic<uint64_t> failed{0};
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kEach; ++i) {
        if (!volume.FetchAdd(kMiB + 40, 3).ok()) ++failed;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  nodes_.SetFaults(nullptr);
  EXPECT_EQ(failed, 0u);
  const auto total = volume.FetchAdd(kMiB + 40, 0);
  ASSERT_OK(total.status());
  EXPECT_EQ(*total, 3u * kThreads * kEach);
  EXPECT_GT(nodes_.counts().repeats, 0u);
}

TEST_F(RouterTest, NoMoreNumbersAreInUseThanTheWindowAllows) {
  ClusterOptions options = Quick();
  options.attempt_timeout = milliseconds(2'000);
  Volume volume = Open(options);
  ASSERT_OK(volume.Write(0, Bytes(512, 1)));
  // The first stays unanswered for long while many others come and go.
  nodes_.SetFaults([first = uint64_t{0}](uint32_t, const rpc::Request& request) mutable {
    if (!Mutates(request)) return Fault::kNone;
    if (first == 0) first = request.io().seq();
    return request.io().seq() == first ? Fault::kDelay : Fault::kNone;
  });
  const auto data = Bytes(512, 2);
  std::atomic<int> left{1000};
  std::promise<void> all;
  for (int i = 0; i < 1000; ++i) {
    volume.AsyncWrite(0, data, [&](const Status& status) {
      EXPECT_OK(status);
      if (--left == 0) all.set_value();
    });
  }
  all.get_future().wait();
  EXPECT_LT(nodes_.counts().max_span, 256u);
  EXPECT_EQ(nodes_.counts().executed, 1001u);
}

// The client's thread stalls until the time of all is up. What waited behind the window ends one
// after the other then, each without a deeper stack.
TEST_F(RouterTest, ThousandsOfWritesWhoseTimeIsUpEndAtOnce) {
  constexpr int kWrites = 12'000;
  nodes_.Do([&] { nodes_.AddVolume("one", 64 * kMiB, 4096, 1); });
  ClusterOptions options = Quick();
  options.timeout = milliseconds(1'500);
  options.attempt_timeout = milliseconds(1'500);
  Open(options);
  auto volume = Volume::Open(*cluster_, "one");
  ASSERT_OK(volume.status());
  const auto data = Bytes(4096, 2);
  ASSERT_OK(volume->Write(0, data));
  std::atomic<int> left{kWrites};
  std::promise<void> all;
  std::promise<void> never;
  const auto stall = never.get_future().share();
  std::atomic<bool> stalled{false};
  for (int i = 0; i < kWrites; ++i) {
    volume->AsyncWrite(static_cast<uint64_t>(i) * 4096, data, [&, stall](const Status&) {
      if (!stalled.exchange(true)) stall.wait_for(options.timeout + milliseconds(300));
      if (--left == 0) all.set_value();
    });
  }
  EXPECT_EQ(all.get_future().wait_for(std::chrono::seconds(30)), std::future_status::ready);
}

TEST_F(RouterTest, TooMuchAtOnceIsRefusedAsBusyAndNothingIsLost) {
  ClusterOptions options = Quick();
  options.max_in_flight_bytes = 64u << 10;
  options.max_queued = 16;
  Volume volume = Open(options);
  const auto data = Bytes(32u << 10, 2);
  std::atomic<int> done{0};
  std::atomic<int> busy{0};
  std::promise<void> all;
  for (int i = 0; i < 100; ++i) {
    volume.AsyncWrite(static_cast<uint64_t>(i) * 65536, data, [&](const Status& status) {
      if (status.code() == Code::kBusy) ++busy;
      if (++done == 100) all.set_value();
    });
  }
  all.get_future().wait();
  EXPECT_GT(busy, 0);
  EXPECT_EQ(nodes_.counts().executed, static_cast<uint64_t>(100 - busy));
  const ClusterStats stats = cluster_->stats();
  EXPECT_EQ(stats.in_flight_bytes, 0u);
  EXPECT_EQ(stats.queued, 0u);
  // A single call may be longer than all that may be under way.
  ASSERT_OK(volume.Write(0, Bytes(24 * kMiB, 1)));
}

TEST_F(RouterTest, SessionsAreKeptAliveWhileInUseAndOpenedOncePerGroup) {
  ClusterOptions options = Quick();
  options.session_timeout = milliseconds(1'000);
  Volume volume = Open(options);
  ASSERT_OK(volume.Write(0, Bytes(8 * kMiB, 1)));
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (nodes_.counts().keep_alives < 4 && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(milliseconds(20));
  }
  EXPECT_GE(nodes_.counts().keep_alives, 4u);
  EXPECT_LE(nodes_.counts().opened, 4u);
}

TEST_F(RouterTest, FlushWaitsForWhatWasStartedBefore) {
  Volume volume = Open();
  ASSERT_OK(volume.Flush());
  FailFirst(1, Fault::kDelay);
  std::atomic<bool> written{false};
  const auto data = Bytes(4096, 1);
  volume.AsyncWrite(0, data, [&](const Status&) { written = true; });
  ASSERT_OK(volume.Flush());
  EXPECT_TRUE(written);
}

TEST_F(RouterTest, ManyClientsShareABlockWithoutLosingSectors) {
  std::vector<std::thread> threads;
  Volume first = Open();
  for (unsigned t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      auto cluster = Cluster::Connect(nodes_.addresses(), Quick());
      ASSERT_OK(cluster.status());
      auto volume = Volume::Open(*cluster, "v");
      ASSERT_OK(volume.status());
      for (unsigned i = 0; i < 10; ++i) {
        ASSERT_OK(volume->Write(t * 512, std::vector<uint8_t>(512, static_cast<uint8_t>(t + 1))));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<uint8_t> block(4096);
  ASSERT_OK(first.Read(0, block));
  for (size_t i = 0; i < block.size(); ++i) ASSERT_EQ(block[i], i / 512 + 1);
}

}  // namespace
}  // namespace hydra
