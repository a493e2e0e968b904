// SPDX-License-Identifier: Apache-2.0
//
// What gateways rely on: no old write after a newer one, and nothing that was checked against
// access rights which are gone. Two clients are two gateways.
#include <atomic>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/cluster/fixture.h"
#include "tests/support/gtest_status.h"

namespace hydra::cluster_test {
namespace {

std::vector<uint8_t> ReadBlock(Volume volume, uint64_t offset) {
  std::vector<uint8_t> bytes(4096);
  EXPECT_OK(volume.Read(offset, bytes));
  return bytes;
}

TEST(ClusterAccess, WhatAGatewayHeldWhileAnotherWroteIsRefused) {
  TestCluster cluster;
  Volume stalled = cluster.MakeVolume("data", 16 * kMiB);
  Volume quick = cluster.OpenVolume("data");
  ASSERT_OK(stalled.Write(0, Pattern(0, 1, 4096)));
  const Guard arrived = stalled.MakeGuard(0);
  // The initiator loses patience: the same write through the other gateway, then a newer one.
  ASSERT_OK(quick.Write(0, Pattern(0, 2, 4096)));
  ASSERT_OK(quick.Write(0, Pattern(0, 3, 4096)));
  Volume held = stalled.Under(arrived);
  EXPECT_CODE(held.Write(0, Pattern(0, 2, 4096)), Code::kStale);
  EXPECT_CODE(held.Write(512, Pattern(0, 2, 512)), Code::kStale);
  EXPECT_CODE(held.WriteZeroes(0, 4096), Code::kStale);
  EXPECT_CODE(held.Discard(0, kMiB), Code::kStale);
  EXPECT_CODE(held.CompareAndWrite(0, Pattern(0, 3, 4096), Pattern(0, 2, 4096)).status(),
              Code::kStale);
  EXPECT_EQ(ReadBlock(quick, 0), Pattern(0, 3, 4096));
  // Other blocks are not concerned, and with a new guard it may go on.
  EXPECT_OK(held.Write(8192, Pattern(2, 1, 4096)));
  EXPECT_OK(stalled.Under(stalled.MakeGuard(0)).Write(0, Pattern(0, 4, 4096)));
  EXPECT_EQ(ReadBlock(quick, 0), Pattern(0, 4, 4096));
}

TEST(ClusterAccess, AGatewayThatKnowsNothingYetIsRefusedOnceAndThenKnows) {
  TestCluster cluster;
  Volume writer = cluster.MakeVolume("data", 16 * kMiB, 1);
  ASSERT_OK(writer.Write(0, Pattern(0, 1, 8192)));
  Volume fresh = cluster.OpenVolume("data");
  EXPECT_CODE(fresh.Under(fresh.MakeGuard(0)).Write(0, Pattern(0, 2, 4096)), Code::kStale);
  EXPECT_OK(fresh.Under(fresh.MakeGuard(0)).Write(0, Pattern(0, 2, 4096)));
  EXPECT_OK(fresh.Under(fresh.MakeGuard(0)).Write(4096, Pattern(0, 2, 4096)));
}

TEST(ClusterAccess, WhatWasCheckedAgainstOlderRightsIsNeitherReadNorWritten) {
  TestCluster cluster;
  Volume one = cluster.MakeVolume("data", 16 * kMiB);
  Volume other = cluster.OpenVolume("data");
  const Result<VolumeAccess> before = one.GetAccess();
  ASSERT_OK(before.status());
  EXPECT_EQ(before->reservations, "");
  Volume checked = other.Under({{}, before->epoch});
  std::vector<uint8_t> bytes(4096);
  for (uint64_t block = 0; block < 4; ++block) {
    ASSERT_OK(checked.Write(block * kMiB, Pattern(block, 1, 4096)));
    ASSERT_OK(checked.Read(block * kMiB, bytes));
  }
  const Result<uint64_t> changed = one.ChangeAccess(before->epoch, "held by one");
  ASSERT_OK(changed.status());
  for (uint64_t block = 0; block < 4; ++block) {
    EXPECT_CODE(checked.Write(block * kMiB, Pattern(block, 2, 4096)), Code::kFenced);
    EXPECT_CODE(checked.WriteZeroes(block * kMiB, kMiB), Code::kFenced);
    EXPECT_CODE(checked.Read(block * kMiB, bytes), Code::kFenced);
    EXPECT_EQ(ReadBlock(one, block * kMiB), Pattern(block, 1, 4096));
  }
  // Whoever looks again may go on, and who never asked is not bound.
  const Result<VolumeAccess> now = other.GetAccess();
  ASSERT_OK(now.status());
  EXPECT_EQ(now->epoch, *changed);
  EXPECT_EQ(now->reservations, "held by one");
  EXPECT_OK(other.Under({{}, now->epoch}).Write(0, Pattern(0, 3, 4096)));
  EXPECT_OK(other.Write(0, Pattern(0, 4, 4096)));
  // Rights, and fences, outlive every process.
  for (uint32_t node = 1; node <= cluster.nodes(); ++node) cluster.Kill(node);
  cluster.StartAll();
  ASSERT_TRUE(cluster.WaitHealthy());
  EXPECT_CODE(checked.Write(kMiB, Pattern(1, 2, 4096)), Code::kFenced);
  const Result<VolumeAccess> later = other.GetAccess();
  ASSERT_OK(later.status());
  EXPECT_EQ(later->reservations, "held by one");
}

TEST(ClusterAccess, OfTwoChangesAtOnceOneWinsAndTheOtherSeesIt) {
  TestCluster cluster;
  Volume volume = cluster.MakeVolume("data", 16 * kMiB);
  constexpr int kGateways = 4;
  constexpr int kRounds = 5;
  std::atomic<int> wins{0};
  std::vector<std::thread> gateways;
  for (int gateway = 0; gateway < kGateways; ++gateway) {
    gateways.emplace_back([&, gateway] {
      Volume own = cluster.OpenVolume("data");
      for (int won = 0; won < kRounds;) {
        const Result<VolumeAccess> access = own.GetAccess();
        ASSERT_OK(access.status());
        const Result<uint64_t> changed = own.ChangeAccess(
            access->epoch, access->reservations + static_cast<char>('a' + gateway));
        if (!changed.ok()) {
          ASSERT_EQ(changed.status().code(), Code::kFailedPrecondition);
          continue;
        }
        ++won;
        ++wins;
      }
    });
  }
  for (std::thread& gateway : gateways) gateway.join();
  EXPECT_EQ(wins, kGateways * kRounds);
  const Result<VolumeAccess> access = volume.GetAccess();
  ASSERT_OK(access.status());
  EXPECT_EQ(access->reservations.size(), size_t{kGateways * kRounds});
  EXPECT_EQ(access->epoch, 1u + kGateways * kRounds);
}

TEST(ClusterAccess, WrongChangesAreRefusedInWords) {
  TestCluster cluster;
  Volume volume = cluster.MakeVolume("data", 16 * kMiB);
  EXPECT_CODE(volume.ChangeAccess(7, "x").status(), Code::kFailedPrecondition);
  EXPECT_CODE(volume.ChangeAccess(1, std::string(17 * 1024, 'x')).status(), Code::kNoSpace);
  // A fence from nowhere locks nobody out.
  ClusterOptions hasty;
  hasty.timeout = milliseconds(500);
  Result<Volume> impatient = Volume::Open(cluster.Connect(hasty), "data");
  ASSERT_OK(impatient.status());
  EXPECT_FALSE(impatient->Fence(1'000'000).ok());
  EXPECT_OK(volume.Write(0, Pattern(0, 1, 4096)));
}

// A master that has not heard of a shrink yet checks against the old end, and says so by the epoch.
TEST(ClusterAccess, WhatWasCheckedBeforeAShrinkDoesNotComeBackByGrowing) {
  TestCluster cluster;
  Volume volume = cluster.MakeVolume("data", 16 * kMiB);
  const Result<VolumeAccess> before = volume.GetAccess();
  ASSERT_OK(before.status());
  Cluster client = cluster.Connect();
  ASSERT_OK(client.ResizeVolume("data", 4 * kMiB, true));
  ASSERT_OK(client.ResizeVolume("data", 16 * kMiB));
  ASSERT_OK(volume.Refresh().status());
  Volume late = volume.Under({{}, before->epoch});
  for (uint64_t offset = 8 * kMiB; offset < 12 * kMiB; offset += kMiB) {
    EXPECT_CODE(late.Write(offset, Pattern(offset, 1, 4096)), Code::kFenced);
    EXPECT_EQ(ReadBlock(volume, offset), std::vector<uint8_t>(4096, 0));
    EXPECT_OK(volume.Write(offset, Pattern(offset, 2, 4096)));
  }
}

}  // namespace
}  // namespace hydra::cluster_test
