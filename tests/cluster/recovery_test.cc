// SPDX-License-Identifier: Apache-2.0
//
// What a replica that was away is sent when it returns.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "daemon/handshake.h"
#include "tests/cluster/fixture.h"
#include "tests/support/gtest_status.h"

namespace hydra::cluster_test {
namespace {

constexpr uint64_t kPiece = 64 * kKiB;
constexpr uint64_t kHot = 2 * kMiB;

std::vector<uint8_t> Filled(int round, uint64_t offset) {
  std::vector<uint8_t> bytes(kPiece, static_cast<uint8_t>(round));
  bytes[0] = static_cast<uint8_t>(offset / kPiece);
  return bytes;
}

uint64_t Metric(const TestCluster& cluster, uint32_t node, const std::string& name) {
  const std::string page = cluster.Get(node, "/metrics").second;
  const size_t at = page.find("\n" + name + " ");
  EXPECT_NE(at, std::string::npos) << name;
  if (at == std::string::npos) return 0;
  return static_cast<uint64_t>(std::strtod(page.c_str() + at + name.size() + 2, nullptr));
}

uint64_t Sent(const TestCluster& cluster, const char* kind) {
  const std::string name = std::string("hydra_recovery_") + kind + "_bytes";
  return Metric(cluster, 1, name) + Metric(cluster, 2, name);
}

// At feature level 3 the blocks that changed; from 4 on first what they are, then the blocks.
class SoakClusterRecovery : public testing::TestWithParam<uint32_t> {};

TEST_P(SoakClusterRecovery, AReplicaThatWasAwayIsSentWhatChangedAndNotAllThatWasWritten) {
  TestClusterOptions options;
  options.extra = {"--recovery-rate", "8M",  // the log alone would take ten seconds
                   "--feature-level", std::to_string(GetParam())};
  TestCluster cluster(options);
  Volume volume = cluster.MakeVolume("data", 16 * kMiB, 1);
  const auto write = [&](int round) {
    for (uint64_t offset = 0; offset < kHot; offset += kPiece) {
      ASSERT_OK(volume.Write(offset, Filled(round, offset)));
    }
  };
  write(0);
  cluster.Kill(3);
  constexpr int kRounds = 40;
  for (int round = 1; round <= kRounds; ++round) write(round);
  cluster.Start(3);
  ASSERT_EQ(cluster.Ctl({"status", "--wait", "--timeout", "60s"}).code, 0);
  const uint64_t delta = Sent(cluster, "delta");
  const uint64_t owed = Sent(cluster, "owed");
  if (GetParam() < 4) {
    EXPECT_EQ(owed, 0u);
    EXPECT_GE(delta, kHot);
  } else {
    EXPECT_GE(owed, kHot);
    EXPECT_LE(delta, kHot / 8);
  }
  // It is sent of the log what it asks for before the lengths are known.
  EXPECT_LE(Sent(cluster, "log") + delta + owed + Sent(cluster, "image"), kRounds * kHot / 2);
  // What it has is right: it is needed now.
  cluster.Kill(1);
  for (uint64_t offset = 0; offset < kHot; offset += kPiece) {
    std::vector<uint8_t> bytes(kPiece);
    ASSERT_OK(volume.Read(offset, bytes));
    EXPECT_EQ(bytes, Filled(kRounds, offset)) << offset;
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, SoakClusterRecovery, testing::Values(3u, kFeatureLevel));

// All that a node has sent to replicas that were behind.
uint64_t SentBy(const TestCluster& cluster, uint32_t node) {
  uint64_t bytes = 0;
  for (const char* kind : {"log", "delta", "image", "owed"}) {
    bytes += Metric(cluster, node, std::string("hydra_recovery_") + kind + "_bytes");
  }
  return bytes;
}

// The bytes that node 3 was owed, each time that `status` was asked while it caught up.
std::vector<uint64_t> WatchRecovery(const TestCluster& cluster) {
  std::vector<uint64_t> owed;
  Eventually(
      [&] {
        const Outcome status = cluster.Ctl({"status", "--json"});
        const auto json = nlohmann::json::parse(status.out, nullptr, false);
        if (!json.is_object()) return false;
        for (const auto& entry : json.at("recovery")) {
          if (entry.at("node") == 3 && entry.at("groups_owed") > 0) {
            owed.push_back(entry.at("owed_bytes"));
          }
        }
        return json.at("healthy").get<bool>();
      },
      milliseconds(120'000));
  return owed;
}

TEST(SoakClusterRecoveryStatus, StatusShowsHowFarAReplicaIsAndItIsSentNoMoreThanTheRate) {
  constexpr uint64_t kRate = 2 * kMiB;
  constexpr uint64_t kChanged = 30 * kMiB;
  constexpr uint64_t kAtOnce = 9 * kMiB;  // what may be sent ahead, and what may not wait
  TestClusterOptions options;
  options.extra = {"--recovery-rate", "2M"};
  TestCluster cluster(options);
  Volume volume = cluster.MakeVolume("data", 64 * kMiB, 1);
  ASSERT_OK(volume.Write(0, Pattern(0, 1, kMiB)));
  ASSERT_EQ(cluster.Ctl({"status", "--wait", "--timeout", "60s"}).code, 0);
  cluster.Kill(3);
  // Several times, so that what changed is less than the log.
  for (uint64_t round = 1; round <= 4; ++round) {
    for (uint64_t at = kMiB; at <= kChanged; at += kMiB) {
      ASSERT_OK(volume.Write(at, Pattern(at, round, kMiB)));
    }
  }
  const uint64_t before[] = {0, SentBy(cluster, 1), SentBy(cluster, 2)};
  const auto began = std::chrono::steady_clock::now();
  cluster.Start(3);
  const std::vector<uint64_t> owed = WatchRecovery(cluster);
  ASSERT_EQ(cluster.Ctl({"status", "--wait", "--timeout", "60s"}).code, 0);
  ASSERT_GE(owed.size(), 2u) << "no recovery was to be seen";
  // (While it takes in what the blocks are, it is owed more and more.)
  const auto most = std::ranges::max_element(owed);
  EXPECT_TRUE(std::is_sorted(most, owed.end(), std::greater<>())) << testing::PrintToString(owed);
  EXPECT_GT(*most, owed.back());
  EXPECT_GE(Sent(cluster, "owed"), kChanged);
  for (const uint32_t node : {1u, 2u}) {
    const uint64_t sent = SentBy(cluster, node) - before[node];
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    EXPECT_LE(static_cast<double>(sent),
              took.count() * static_cast<double>(kRate) + static_cast<double>(kAtOnce))
        << "node " << node << " in " << took.count() << " s";
  }
}

}  // namespace
}  // namespace hydra::cluster_test
