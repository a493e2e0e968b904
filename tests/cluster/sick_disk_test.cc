// SPDX-License-Identifier: Apache-2.0
//
// The disk of the node that leads hangs, or fails: another one leads, and clients notice a pause.
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cluster/fixture.h"
#include "tests/cluster/verified_load.h"
#include "tests/support/gtest_status.h"

namespace hydra::cluster_test {
namespace {

constexpr uint64_t kLoadBlocks = 64;

class SoakClusterSickDisk : public testing::Test {
 protected:
  void SetUp() override {
    TestClusterOptions options;
    options.extra = {"--drill"};
    cluster_.emplace(options);
    cluster_->MakeVolume("data", 16 * kMiB, 1);
    ASSERT_TRUE(Eventually([&] { return Leader(0) != 0; }, kPatience));
    sick_ = Leader(0);
    load_.emplace(*cluster_, "data", 4, kLoadBlocks);
    ASSERT_TRUE(load_->WaitFor(200, kPatience));
    ASSERT_EQ(Leader(0), sick_);
  }

  // Who leads the volume's group and is not `except`, as the nodes say; 0: nobody.
  uint32_t Leader(uint32_t except) const {
    ClusterOptions quick;
    quick.timeout = milliseconds(2'000);
    Cluster client = cluster_->Connect(quick);
    const Result<std::vector<VolumeInfo>> volumes = client.volumes();
    const Result<std::vector<NodeInfo>> nodes = client.GetStatus(true);
    if (!volumes.ok() || volumes->empty() || !nodes.ok()) return 0;
    for (const NodeInfo& node : *nodes) {
      if (node.node == except) continue;
      for (const ReplicaInfo& replica : node.replicas) {
        const bool leads = replica.role == "master" && replica.ready;
        if (leads && replica.group == volumes->front().groups.front()) return node.node;
      }
    }
    return 0;
  }

  bool Fault(const std::string& faults) const {
    RawSocket http(cluster_->http_port(sick_));
    if (!http.connected()) return false;
    http.Send(
        fmt::format("POST /drill/faults HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                    "Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{}",
                    faults.size(), faults));
    return http.ReceiveAll(milliseconds(5'000)).find(" 200 ") != std::string::npos;
  }

  // Another node leads, clients' writes went on all the while, and nothing is lost.
  void ExpectThatOthersGoOn() {
    EXPECT_TRUE(Eventually([&] { return Leader(sick_) != 0; }, kPatience)) << "nobody else leads";
    EXPECT_TRUE(load_->WaitFor(200, kPatience)) << "writes do not go on";
  }
  void ExpectNoError() {
    EXPECT_THAT(load_->Stop(), testing::IsEmpty());
    EXPECT_THAT(load_->Verify(), testing::IsEmpty());
  }

  std::optional<TestCluster> cluster_;
  std::optional<VerifiedLoad> load_;
  uint32_t sick_ = 0;
};

TEST_F(SoakClusterSickDisk, OfAMasterWhoseWritesHangAnotherLeadsWithinSeconds) {
  ASSERT_TRUE(Fault(R"({"for_ms":300000,"disk":{"write_delay_ms":10000}})"));
  ExpectThatOthersGoOn();
  EXPECT_TRUE(cluster_->process(sick_).running());
  // It hears that between two writes.
  EXPECT_TRUE(Eventually([&] { return Fault("{}"); }, 2 * kPatience));
  ExpectNoError();
  EXPECT_EQ(cluster_->Ctl({"status", "--wait", "--timeout", "50s"}).code, 0);
}

TEST_F(SoakClusterSickDisk, AMasterWhoseDiskFailsEndsAndClientsSeeNoError) {
  ASSERT_TRUE(Fault(R"({"for_ms":300000,"disk":{"fail_writes":true}})"));
  EXPECT_EQ(cluster_->process(sick_).Wait(kPatience), 1);
  ExpectThatOthersGoOn();
  ExpectNoError();
  cluster_->Start(sick_);
  EXPECT_EQ(cluster_->Ctl({"status", "--wait", "--timeout", "50s"}).code, 0);
}

}  // namespace
}  // namespace hydra::cluster_test
