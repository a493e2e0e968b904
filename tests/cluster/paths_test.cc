// SPDX-License-Identifier: Apache-2.0
//
// Several iSCSI paths to one volume, one of which stalls with a write in it: whatever goes on
// through another path meanwhile stays.
#include <signal.h>

#include <gtest/gtest.h>

#include "tests/cluster/fixture.h"
#include "tests/cluster/initiator.h"
#include "tests/support/gtest_status.h"

namespace hydra::cluster_test {
namespace {

constexpr milliseconds kLongStall(3'500);

class ClusterPaths : public testing::Test {
 protected:
  ClusterPaths() : cluster_(WithPortals()) { cluster_.MakeVolume("disk", 16 * kMiB); }

  // Nothing changes any more: looked at for a while.
  static void ExpectStays(Initiator* reader, uint8_t value) {
    for (int i = 0; i < 15; ++i) {
      ASSERT_EQ(reader->Read(kLba), value) << "look " << i;
      std::this_thread::sleep_for(milliseconds(200));
    }
  }

  TestCluster cluster_;
};

// With long pauses.
class SoakClusterPaths : public ClusterPaths {};

TEST_F(SoakClusterPaths, AWriteThatAStalledPathHeldDoesNotComeAfterNewerOnes) {
  for (const milliseconds stall : {milliseconds(500), kLongStall}) {
    auto first = std::make_unique<Initiator>("iqn.test:a", 1, cluster_.iscsi_port(1), "disk");
    Initiator second("iqn.test:a", 2, cluster_.iscsi_port(2), "disk");
    ASSERT_EQ(first->Write(kLba, 1), 0);
    cluster_.process(1).Signal(SIGSTOP);
    first->Send(kLba, 2);
    std::this_thread::sleep_for(stall);
    // The initiator loses patience, and goes on.
    ASSERT_EQ(second.Write(kLba, 2), 0);
    ASSERT_EQ(second.Write(kLba, 3), 0);
    first.reset();
    cluster_.process(1).Signal(SIGCONT);
    ExpectStays(&second, 3);
    ASSERT_TRUE(cluster_.WaitHealthy());
  }
}

TEST_F(ClusterPaths, AnInitiatorThatStillWaitsGetsItsWriteDone) {
  Initiator first("iqn.test:a", 1, cluster_.iscsi_port(1), "disk");
  ASSERT_EQ(first.Write(kLba, 1), 0);
  cluster_.process(1).Signal(SIGSTOP);
  first.Send(kLba, 2);
  std::this_thread::sleep_for(kLongStall);
  cluster_.process(1).Signal(SIGCONT);
  EXPECT_EQ(first.WaitForSent(milliseconds(20'000)), 0);
  EXPECT_EQ(first.Read(kLba), 2);
}

TEST_F(SoakClusterPaths, APausedPathDoesNotWriteAfterItsReservationWasPreempted) {
  for (const milliseconds stall : {milliseconds(500), kLongStall}) {
    Initiator first("iqn.test:a", 1, cluster_.iscsi_port(1), "disk");
    Initiator second("iqn.test:b", 1, cluster_.iscsi_port(2), "disk");
    ASSERT_EQ(first.Persistent(Initiator::kRegister, 0, 0xa), 0);
    ASSERT_EQ(first.Persistent(Initiator::kReserve, 0xa, 0), 0);
    ASSERT_EQ(first.Write(kLba, 1), 0);
    EXPECT_NE(second.Write(kLba, 9), 0) << "reserved by another";
    cluster_.process(1).Signal(SIGSTOP);
    first.Send(kLba, 2);
    std::this_thread::sleep_for(stall);
    ASSERT_EQ(second.Persistent(Initiator::kRegister, 0, 0xb), 0);
    ASSERT_EQ(second.Persistent(Initiator::kPreempt, 0xb, 0xa), 0);
    ASSERT_EQ(second.Write(kLba, 3), 0);
    cluster_.process(1).Signal(SIGCONT);
    const std::optional<int> late = first.WaitForSent(milliseconds(20'000));
    ASSERT_TRUE(late.has_value()) << "never answered";
    EXPECT_NE(*late, 0) << "executed, though preempted";
    ExpectStays(&second, 3);
    EXPECT_NE(first.Write(kLba, 4), 0);
    // Everyone out, for the next round.
    ASSERT_EQ(second.Persistent(Initiator::kRegister, 0xb, 0), 0);
    ASSERT_TRUE(cluster_.WaitHealthy());
  }
}

// They are the cluster's: a node that dies takes none with it.
TEST_F(ClusterPaths, AReservationOutlivesTheNodeItWasMadeThrough) {
  Initiator second("iqn.test:b", 1, cluster_.iscsi_port(2), "disk");
  {
    Initiator first("iqn.test:a", 1, cluster_.iscsi_port(1), "disk");
    ASSERT_EQ(first.Persistent(Initiator::kRegister, 0, 0xa), 0);
    ASSERT_EQ(first.Persistent(Initiator::kReserve, 0xa, 0), 0);
    ASSERT_EQ(first.Write(kLba, 1), 0);
    cluster_.Kill(1);
  }
  EXPECT_NE(second.Write(kLba, 2), 0);
  cluster_.Start(1);
  ASSERT_TRUE(cluster_.WaitHealthy());
  EXPECT_NE(second.Write(kLba, 2), 0);
  Initiator first("iqn.test:a", 1, cluster_.iscsi_port(1), "disk");
  EXPECT_EQ(first.Write(kLba, 3), 0) << "it is the same nexus";
  EXPECT_EQ(first.Read(kLba), 3);
}

}  // namespace
}  // namespace hydra::cluster_test
