// SPDX-License-Identifier: Apache-2.0
//
// What initiators are told when the cluster cannot do what they ask, and how it goes on when it can
// again.
#include <signal.h>

#include <algorithm>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/cluster/fixture.h"
#include "tests/cluster/initiator.h"
#include "tests/support/gtest_status.h"

namespace hydra::cluster_test {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr int kCheckCondition = 2;
constexpr int kNotReadyKey = 2;
constexpr int kDataProtectKey = 7;
constexpr int kBecomingReady = 0x0401;
constexpr int kSpaceAllocationFailed = 0x2707;
constexpr int kOptimized = 0;
constexpr int kNonOptimized = 1;

// Linux waits so long for TEST UNIT READY when it looks whether a path is worth more commands, and
// for other commands.
constexpr seconds kHandlerPatience(10);
constexpr seconds kCommandPatience(30);

struct Timed {
  Initiator::End end;
  steady_clock::duration took{};
};

template <typename Command>
Timed Time(Command command) {
  const auto begun = steady_clock::now();
  Timed timed;
  timed.end = command();
  timed.took = steady_clock::now() - begun;
  return timed;
}

void ExpectNotReady(const Initiator::End& end) {
  EXPECT_EQ(end.status, kCheckCondition);
  EXPECT_EQ(end.key, kNotReadyKey);
  EXPECT_EQ(end.code, kBecomingReady);
}

// The node leads nothing any more: nobody answers on a lease.
bool LeadsNothing(const TestCluster& cluster, uint32_t node) {
  const auto status =
      nlohmann::json::parse(cluster.Get(node, "/api/status").second, nullptr, false);
  if (!status.is_object()) return false;
  const auto& groups = status["groups"];
  return std::none_of(groups.begin(), groups.end(),
                      [](const auto& group) { return group["ready"].template get<bool>(); });
}

TEST(SoakClusterMajority, WithoutOneTheUnitIsNotReadyBeforeInitiatorsLosePatience) {
  TestCluster cluster(WithPortals());
  cluster.MakeVolume("disk", 16 * kMiB, 1);
  const uint16_t port = cluster.iscsi_port(1);
  Initiator asks("iqn.test:a", 1, port, "disk");
  Initiator reads("iqn.test:a", 2, port, "disk");
  Initiator writes("iqn.test:a", 3, port, "disk");
  Initiator reserves("iqn.test:a", 4, port, "disk");
  for (Initiator* initiator : {&asks, &reads, &writes, &reserves}) {
    initiator->set_patience(seconds(60));
  }
  ASSERT_EQ(reads.Read(kLba), 0);
  EXPECT_TRUE(Eventually([&] { return asks.PortGroups().size() == 3; }));
  EXPECT_EQ(asks.PortGroups()[1], kOptimized);
  for (const uint32_t node : {2u, 3u}) cluster.process(node).Signal(SIGSTOP);
  ASSERT_TRUE(Eventually([&] { return LeadsNothing(cluster, 1); }));

  Timed read;
  Timed written;
  Timed reserved;
  std::thread reader([&] { read = Time([&] { return reads.ReadOnce(kLba); }); });
  std::thread writer([&] { written = Time([&] { return writes.WriteOnce(kLba, 1); }); });
  std::thread reserver([&] { reserved = Time([&] { return reserves.ReserveOnce(); }); });
  const Timed asked = Time([&] { return asks.TestUnitReadyOnce(); });
  ExpectNotReady(asked.end);
  EXPECT_LT(asked.took, kHandlerPatience);
  // Other portals may be better off.
  EXPECT_TRUE(Eventually([&] { return asks.PortGroups()[1] == kNonOptimized; }));
  reader.join();
  writer.join();
  reserver.join();
  for (const Timed& held : {read, written, reserved}) {
    ExpectNotReady(held.end);
    EXPECT_GT(held.took, kHandlerPatience) << "held, in case that the majority comes back";
    EXPECT_LT(held.took, kCommandPatience);
  }

  for (const uint32_t node : {2u, 3u}) cluster.process(node).Signal(SIGCONT);
  ASSERT_TRUE(cluster.WaitHealthy());
  EXPECT_TRUE(Eventually([&] { return asks.TestUnitReadyOnce().status == 0; }, kPatience));
  EXPECT_EQ(writes.Write(kLba, 2), 0);
  EXPECT_EQ(reads.Read(kLba), 2);
  EXPECT_TRUE(Eventually([&] { return asks.PortGroups()[1] == kOptimized; }));
}

TEST(SoakClusterFullDisk, WritesAreDataProtectUntilThereIsRoom) {
  TestCluster cluster(WithPortals({"--capacity", "192MiB"}));
  Volume volume = cluster.MakeVolume("disk", 1024 * kMiB, 1);
  Initiator initiator("iqn.test:a", 1, cluster.iscsi_port(2), "disk");
  ASSERT_EQ(initiator.Write(kLba, 1), 0);
  uint64_t extent = 1;
  while (extent < 512 && volume.Write(extent * kMiB, Pattern(extent, 1, kMiB)).ok()) ++extent;
  ASSERT_LT(extent, 512u);
  // Where a MiB does not fit, some blocks may.
  Initiator::End full;
  for (uint32_t block = 0; block < 2048; ++block) {
    full = initiator.WriteOnce(static_cast<uint32_t>(extent * kMiB / 512) + block * 8, 2);
    if (full.status != 0) break;
  }
  EXPECT_EQ(full.status, kCheckCondition);
  EXPECT_EQ(full.key, kDataProtectKey);
  EXPECT_EQ(full.code, kSpaceAllocationFailed);
  EXPECT_EQ(initiator.Read(kLba), 1) << "reading goes on";
  ASSERT_OK(volume.Discard(kMiB, (extent - 1) * kMiB));
  EXPECT_TRUE(Eventually([&] { return initiator.WriteOnce(kLba, 3).status == 0; }, kPatience));
  EXPECT_EQ(initiator.Read(kLba), 3);
}

}  // namespace
}  // namespace hydra::cluster_test
