// SPDX-License-Identifier: Apache-2.0
//
// What a replica that was away is sent when it returns.
#include <cstdlib>
#include <string>
#include <vector>

#include <gtest/gtest.h>

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

TEST(SoakClusterRecovery, AReplicaThatWasAwayIsSentWhatChangedAndNotAllThatWasWritten) {
  TestClusterOptions options;
  options.extra = {"--recovery-rate", "8M"};  // the log alone would take ten seconds
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
  EXPECT_GE(delta, kHot);
  // It is sent of the log what it asks for before the lengths are known.
  EXPECT_LE(Sent(cluster, "log") + delta + Sent(cluster, "image"), kRounds * kHot / 2);
  // What it has is right: it is needed now.
  cluster.Kill(1);
  for (uint64_t offset = 0; offset < kHot; offset += kPiece) {
    std::vector<uint8_t> bytes(kPiece);
    ASSERT_OK(volume.Read(offset, bytes));
    EXPECT_EQ(bytes, Filled(kRounds, offset)) << offset;
  }
}

}  // namespace
}  // namespace hydra::cluster_test
