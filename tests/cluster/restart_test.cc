// SPDX-License-Identifier: Apache-2.0
//
// Nodes stop, die and come back: nothing that was acknowledged is lost, nothing wrong is read.
#include <signal.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/rng.h"
#include "tests/cluster/fixture.h"
#include "tests/cluster/verified_load.h"
#include "tests/support/gtest_status.h"

namespace hydra::cluster_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(SoakClusterRestart, EachNodeStopsOnSigtermWithin5SecondsAndComesBack) {
  TestCluster cluster;
  cluster.MakeVolume("data", 16 * kMiB);
  VerifiedLoad load(cluster, "data", 2, 256);
  for (uint32_t node = 1; node <= 3; ++node) {
    ASSERT_TRUE(load.WaitFor(50, kPatience));
    EXPECT_EQ(cluster.Stop(node), 0) << cluster.LogText(node);
    EXPECT_THAT(cluster.LogText(node), HasSubstr("stopped"));
    ASSERT_TRUE(load.WaitFor(50, kPatience)) << "without node " << node;
    cluster.Start(node);
    ASSERT_TRUE(cluster.WaitHealthy());
  }
  EXPECT_THAT(load.Stop(), IsEmpty());
  EXPECT_THAT(load.Verify(), IsEmpty());
}

TEST(SoakClusterRestart, AllNodesStopAndStartWithAllData) {
  TestCluster cluster;
  cluster.MakeVolume("data", 16 * kMiB);
  VerifiedLoad load(cluster, "data", 2, 256);
  ASSERT_TRUE(load.WaitFor(300, kPatience));
  EXPECT_THAT(load.Stop(), IsEmpty());
  for (uint32_t node = 1; node <= 3; ++node) EXPECT_EQ(cluster.Stop(node), 0);
  cluster.StartAll();
  ASSERT_TRUE(cluster.WaitHealthy());
  EXPECT_THAT(load.Verify(), IsEmpty());
}

TEST(SoakClusterRestart, AllNodesKilledAtOnceDuringWritesLoseNothingAcknowledged) {
  TestCluster cluster;
  cluster.MakeVolume("data", 16 * kMiB);
  VerifiedLoad load(cluster, "data", 3, 256);
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(load.WaitFor(200, kPatience));
    for (uint32_t node = 1; node <= 3; ++node) cluster.process(node).Signal(SIGKILL);
    for (uint32_t node = 1; node <= 3; ++node) cluster.Kill(node);
    cluster.StartAll();
    ASSERT_TRUE(cluster.WaitHealthy());
  }
  ASSERT_TRUE(load.WaitFor(50, kPatience));
  EXPECT_THAT(load.Stop(), IsEmpty());
  EXPECT_THAT(load.Verify(), IsEmpty());
}

// The newest catalogue is still open on every disk then (as long as others write, nothing says that
// it was chosen): a node that starts knows an older one.
TEST(SoakClusterRestart, AVolumeMadeJustBeforeAllNodesAreKilledIsWholeAfterwards) {
  TestCluster cluster;
  cluster.MakeVolume("data", 16 * kMiB);
  VerifiedLoad load(cluster, "data", 6, 256);
  constexpr uint64_t kBytes = 256 * kKiB;
  for (uint64_t round = 0; round < 3; ++round) {
    ASSERT_TRUE(load.WaitFor(100, kPatience));
    const auto name = [](uint64_t number) { return "late" + std::to_string(number); };
    {
      Volume late = cluster.MakeVolume(name(round), kBytes, 2);
      ASSERT_OK(late.Write(0, Pattern(0, round, kBytes)));
    }
    for (uint32_t node = 1; node <= 3; ++node) cluster.process(node).Signal(SIGKILL);
    for (uint32_t node = 1; node <= 3; ++node) cluster.Kill(node);
    cluster.StartAll();
    ASSERT_TRUE(cluster.WaitHealthy());
    for (uint64_t made = 0; made <= round; ++made) {
      std::vector<uint8_t> bytes(kBytes);
      ASSERT_OK(cluster.OpenVolume(name(made)).Read(0, bytes));
      ASSERT_TRUE(bytes == Pattern(0, made, kBytes)) << name(made) << " in round " << round;
    }
  }
  EXPECT_THAT(load.Stop(), IsEmpty());
  EXPECT_THAT(load.Verify(), IsEmpty());
}

// Kills a random node, waits for writes without it, starts it, waits for it and for more writes.
void KillAndRestart(TestCluster* cluster, VerifiedLoad* load, Rng* rng, int times) {
  for (int i = 0; i < times; ++i) {
    const auto node = static_cast<uint32_t>(rng->Between(1, 3));
    ASSERT_TRUE(load->WaitFor(rng->Between(1, 60), kPatience)) << "before kill " << i;
    cluster->Kill(node);
    ASSERT_TRUE(load->WaitFor(rng->Between(1, 40), kPatience)) << "kill " << i << " of " << node;
    cluster->Start(node);
    ASSERT_TRUE(cluster->WaitHealthy(kPatience)) << "node " << node << " after kill " << i;
    ASSERT_TRUE(cluster->process(node).running()) << cluster->LogText(node);
  }
}

TEST(SoakClusterRestart, KilledNodesDuringWritesLoseNothingAcknowledged) {
  TestCluster cluster;
  cluster.MakeVolume("data", 32 * kMiB);
  VerifiedLoad load(cluster, "data", 4, 512);
  Rng rng(7);
  KillAndRestart(&cluster, &load, &rng, 6);
  EXPECT_THAT(load.Stop(), IsEmpty());
  EXPECT_THAT(load.Verify(), IsEmpty());
}

TEST(SoakClusterRestart, PausedMasterIsReplacedAndItsStaleLeaseServesNothing) {
  TestCluster cluster;
  cluster.MakeVolume("data", 16 * kMiB);
  VerifiedLoad load(cluster, "data", 2, 256);
  for (uint32_t node = 1; node <= 3; ++node) {
    ASSERT_TRUE(load.WaitFor(20, kPatience));
    cluster.process(node).Signal(SIGSTOP);
    ASSERT_TRUE(load.WaitFor(50, kPatience)) << "with node " << node << " paused";
    cluster.process(node).Signal(SIGCONT);
  }
  ASSERT_TRUE(load.WaitFor(50, kPatience));
  EXPECT_THAT(load.Stop(), IsEmpty());
  EXPECT_THAT(load.Verify(), IsEmpty());
}

TEST(NightlyClusterRestart, TwoHundredKillsOfRandomNodesUnderVerifiedLoad) {
  TestCluster cluster;
  cluster.MakeVolume("data", 64 * kMiB);
  VerifiedLoad load(cluster, "data", 4, 1024);
  Rng rng(11);
  KillAndRestart(&cluster, &load, &rng, 200);
  EXPECT_THAT(load.Stop(), IsEmpty());
  EXPECT_THAT(load.Verify(), IsEmpty());
}

}  // namespace
}  // namespace hydra::cluster_test
