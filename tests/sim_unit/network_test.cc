// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/network.h"

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace hydra::sim {
namespace {

// Three nodes; remembers what arrived.
class NetworkTest : public testing::Test {
 protected:
  struct Arrival {
    Nanos time;
    NodeId from;
    NodeId to;
    int number;
  };

  void Start(const Network::Options& options) {
    network_ = std::make_unique<Network>(&scheduler_, options);
    for (const NodeId node : {1, 2, 3}) {
      network_->AddNode(node, [this, node](const Packet& p) {
        EXPECT_EQ(p.to, node);
        arrived_.push_back({scheduler_.now(), p.from, p.to, p.As<int>()});
      });
    }
  }

  void Send(NodeId from, NodeId to, int number = 0, uint64_t bytes = 100) {
    Packet packet;
    packet.from = from;
    packet.to = to;
    packet.bytes = bytes;
    packet.fingerprint = static_cast<uint64_t>(number);
    packet.body = std::make_shared<const int>(number);
    network_->Send(packet);
  }

  std::set<std::pair<NodeId, NodeId>> WhoHears() {
    arrived_.clear();
    for (const NodeId from : {1, 2, 3}) {
      for (const NodeId to : {1, 2, 3}) {
        if (from != to) Send(from, to);
      }
    }
    scheduler_.Run();
    std::set<std::pair<NodeId, NodeId>> heard;
    for (const Arrival& a : arrived_) heard.insert({a.from, a.to});
    return heard;
  }

  static Network::Options Plain() {
    Network::Options options;
    options.hold_percent = 0;
    return options;
  }

  Scheduler scheduler_;
  std::unique_ptr<Network> network_;
  std::vector<Arrival> arrived_;
};

TEST_F(NetworkTest, DelaysWithinBoundsAndKeepsALinkInOrder) {
  Network::Options options = Plain();
  options.weather.delay_min = 100;
  options.weather.delay_max = 10'000;
  Start(options);
  std::map<int, Nanos> sent;
  for (int i = 0; i < 200; ++i) {
    scheduler_.At(i * 50, {"send"}, [&, i] {
      sent[i] = scheduler_.now();
      Send(1, 2, i);
    });
  }
  scheduler_.Run();
  ASSERT_EQ(arrived_.size(), 200u);
  bool differs = false;
  for (int i = 0; i < 200; ++i) {
    const Arrival& a = arrived_[static_cast<size_t>(i)];
    EXPECT_EQ(a.number, i);
    EXPECT_GE(a.time - sent[i], 100);
    differs |= a.time - sent[i] != arrived_[0].time - sent[0];
  }
  EXPECT_TRUE(differs);
  EXPECT_EQ(network_->counters().delivered, 200u);
  EXPECT_EQ(network_->in_flight(1, 2), 0u);
}

TEST_F(NetworkTest, LosesAboutAsMuchAsTold) {
  Network::Options options = Plain();
  options.weather.loss_permille = 300;
  options.max_packets = 100'000;
  Start(options);
  for (int i = 0; i < 10'000; ++i) Send(1, 2, i);
  scheduler_.Run();
  EXPECT_NEAR(static_cast<double>(arrived_.size()), 7000, 200);
  EXPECT_EQ(network_->counters().lost + network_->counters().delivered, 10'000u);
}

TEST_F(NetworkTest, DuplicatesComeLaterAndAreTheSame) {
  Network::Options options = Plain();
  options.weather.duplicate_permille = 200;
  options.max_packets = 100'000;
  Start(options);
  for (int i = 0; i < 1'000; ++i) Send(1, 2, i);
  scheduler_.Run();
  std::map<int, int> times;
  for (const Arrival& a : arrived_) ++times[a.number];
  EXPECT_EQ(times.size(), 1'000u);
  uint64_t twice = 0;
  for (const auto& [number, count] : times) {
    EXPECT_LE(count, 2);
    twice += count == 2 ? 1 : 0;
  }
  EXPECT_EQ(twice, network_->counters().duplicated);
  EXPECT_NEAR(static_cast<double>(twice), 200, 60);
}

TEST_F(NetworkTest, ReordersOnlyWhenTold) {
  Network::Options options = Plain();
  options.weather.reorder_permille = 100;
  Start(options);
  for (int i = 0; i < 1'000; ++i) {
    scheduler_.At(i * 10'000, {"send"}, [this, i] { Send(1, 2, i); });
  }
  scheduler_.Run();
  ASSERT_EQ(arrived_.size(), 1'000u);
  int inversions = 0;
  for (size_t i = 1; i < arrived_.size(); ++i) {
    inversions += arrived_[i].number < arrived_[i - 1].number ? 1 : 0;
  }
  EXPECT_GT(inversions, 20);
  EXPECT_NEAR(static_cast<double>(network_->counters().reordered), 100, 40);
}

TEST_F(NetworkTest, CutsAreOneWayOrTwoWayAndHeal) {
  Start(Plain());
  EXPECT_EQ(WhoHears().size(), 6u);
  network_->CutOneWay(1, 2);
  EXPECT_FALSE(network_->connected(1, 2));
  EXPECT_TRUE(network_->connected(2, 1));
  auto heard = WhoHears();
  EXPECT_EQ(heard.size(), 5u);
  EXPECT_FALSE(heard.contains({1, 2}));
  network_->Isolate(3);
  heard = WhoHears();
  EXPECT_EQ(heard, (std::set<std::pair<NodeId, NodeId>>{{2, 1}}));
  network_->Heal({1, 3});
  EXPECT_EQ(WhoHears(), (std::set<std::pair<NodeId, NodeId>>{{2, 1}, {1, 3}, {3, 1}}));
  network_->Heal();
  EXPECT_EQ(WhoHears().size(), 6u);
}

TEST_F(NetworkTest, ANodeCanBeDeafOrDumb) {
  Start(Plain());
  network_->IsolateOneWay(1, /*inbound=*/true);
  EXPECT_EQ(WhoHears(), (std::set<std::pair<NodeId, NodeId>>{{1, 2}, {1, 3}, {2, 3}, {3, 2}}));
  network_->Heal();
  network_->IsolateOneWay(1, /*inbound=*/false);
  EXPECT_EQ(WhoHears(), (std::set<std::pair<NodeId, NodeId>>{{2, 1}, {3, 1}, {2, 3}, {3, 2}}));
}

TEST_F(NetworkTest, ACutAlsoStopsWhatIsOnItsWay) {
  Start(Plain());
  Send(1, 2, 7);
  network_->Cut(1, 2);
  scheduler_.Run();
  EXPECT_TRUE(arrived_.empty());
  EXPECT_EQ(network_->counters().blocked, 1u);
  EXPECT_EQ(network_->in_flight(1, 2), 0u);
}

TEST_F(NetworkTest, HeldPacketsArriveAfterTheHealing) {
  Network::Options options = Plain();
  options.hold_percent = 100;
  Start(options);
  network_->Cut(1, 2);
  Send(1, 2, 7);
  Send(1, 2, 8);
  scheduler_.RunUntil(kSecond);
  EXPECT_TRUE(arrived_.empty());
  EXPECT_EQ(network_->in_flight(1, 2), 2u);
  network_->Heal();
  scheduler_.Run();
  ASSERT_EQ(arrived_.size(), 2u);
  EXPECT_EQ(arrived_[0].number, 7);
  EXPECT_GT(arrived_[0].time, kSecond);
  EXPECT_EQ(network_->in_flight(1, 2), 0u);
}

TEST_F(NetworkTest, ALinkHoldsOnlySoMuch) {
  Network::Options options = Plain();
  options.max_packets = 10;
  options.max_bytes = 5'000;
  Start(options);
  for (int i = 0; i < 15; ++i) Send(1, 2, i);
  EXPECT_EQ(network_->in_flight(1, 2), 10u);
  for (int i = 0; i < 3; ++i) Send(1, 3, i, 2'000);
  EXPECT_EQ(network_->in_flight(1, 3), 2u);
  scheduler_.Run();
  EXPECT_EQ(arrived_.size(), 12u);
  EXPECT_EQ(network_->counters().overflowed, 6u);
  Send(1, 2, 99);
  scheduler_.Run();
  EXPECT_EQ(arrived_.size(), 13u);
}

TEST_F(NetworkTest, SlowLinksAndBandwidthTakeTime) {
  Network::Options options = Plain();
  options.weather.delay_min = 100;
  options.weather.delay_max = 100;
  Start(options);
  network_->Slow(1, 2, 50);
  Send(1, 2);
  scheduler_.Run();
  EXPECT_EQ(arrived_.back().time, 5'000);
  Weather thin = options.weather;
  thin.bytes_per_second = 1'000'000;
  network_->SetWeather(1, 3, thin);
  const Nanos began = scheduler_.now();
  Send(1, 3, 1, 1'000);
  Send(1, 3, 2, 1'000);
  scheduler_.Run();
  EXPECT_EQ(arrived_[1].time - began, kMillisecond + 100);
  EXPECT_EQ(arrived_[2].time - began, 2 * kMillisecond + 100);
  network_->Heal();
  Send(1, 2);
  const Nanos healed = scheduler_.now();
  scheduler_.Run();
  EXPECT_EQ(arrived_.back().time - healed, 100);
}

TEST_F(NetworkTest, TheDeadGetNothing) {
  Start(Plain());
  Send(1, 2);
  network_->SetUp(2, false);
  scheduler_.Run();
  EXPECT_TRUE(arrived_.empty());
  EXPECT_EQ(network_->counters().to_the_dead, 1u);
  network_->SetUp(2, true);
  Send(1, 2);
  scheduler_.Run();
  EXPECT_EQ(arrived_.size(), 1u);
}

TEST_F(NetworkTest, ANodeAlwaysReachesItself) {
  Network::Options options = Plain();
  options.weather.loss_permille = 1000;
  Start(options);
  network_->Isolate(1);
  Send(1, 1, 5);
  Send(2, 3, 6);
  scheduler_.Run();
  ASSERT_EQ(arrived_.size(), 1u);
  EXPECT_EQ(arrived_[0].number, 5);
}

TEST_F(NetworkTest, EveryDisturbanceHealsAndCalms) {
  Network::Options options = Plain();
  options.hold_percent = 30;
  Start(options);
  std::set<std::string> kinds;
  for (int i = 0; i < 200; ++i) {
    const Network::Counters before = network_->counters();
    const std::string what = network_->Disturb();
    kinds.insert(what.substr(0, what.find_first_of("0123456789")));
    EXPECT_GT(network_->counters().cuts + network_->counters().storms, before.cuts + before.storms);
    for (int k = 0; k < 5; ++k) WhoHears();
    network_->Heal();
    network_->Calm();
    scheduler_.Run();
    ASSERT_EQ(WhoHears().size(), 6u) << what;
  }
  EXPECT_GE(kinds.size(), 6u);
  const Network::Counters& c = network_->counters();
  EXPECT_GT(c.lost, 0u);
  EXPECT_GT(c.blocked, 0u);
  EXPECT_GT(c.held, 0u);
  EXPECT_GT(c.faults(), c.lost + c.blocked);
}

uint64_t HashOfStorm(uint64_t seed) {
  Scheduler scheduler;
  Network::Options options;
  options.seed = seed;
  options.weather = {.loss_permille = 100, .duplicate_permille = 100, .reorder_permille = 100};
  Network network(&scheduler, options);
  for (const NodeId node : {1, 2, 3}) {
    network.AddNode(node, [&network, node](const Packet& p) {
      if (p.fingerprint == 0) return;
      network.Send({node, node % 3 + 1, 10, p.fingerprint - 1, nullptr});
      network.Send({node, p.from, 10, p.fingerprint / 2, nullptr});
    });
  }
  for (int i = 0; i < 20; ++i) {
    scheduler.At(i * kMillisecond, {"disturb"}, [&network] { network.Disturb(); });
    scheduler.At(i * kMillisecond + kMillisecond / 2, {"heal"}, [&network] { network.Heal(); });
    network.Send({1, 2, 10, 12, nullptr});
  }
  scheduler.Run();
  return scheduler.trace().hash();
}

TEST(Network, TheSameSeedMakesTheSameRun) {
  EXPECT_EQ(HashOfStorm(1), HashOfStorm(1));
  EXPECT_NE(HashOfStorm(1), HashOfStorm(2));
}

}  // namespace
}  // namespace hydra::sim
