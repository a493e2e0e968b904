// SPDX-License-Identifier: Apache-2.0
//
// A node that hangs, with all its connections open, harms nobody else.
#include <signal.h>

#include <atomic>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cluster/fixture.h"
#include "tests/support/gtest_status.h"

namespace hydra::cluster_test {
namespace {

// A few seconds each: less than what TCP gives a peer that does not take anything.
constexpr milliseconds kEachWrite(8'000);

// Writes from a few threads; how many failed.
int WriteMany(const TestCluster& cluster, uint64_t count, uint64_t bytes) {
  constexpr uint64_t kThreads = 8;
  std::atomic<int> failed{0};
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      ClusterOptions options;
      options.timeout = kEachWrite;
      Result<Volume> volume = Volume::Open(cluster.Connect(options), "data");
      ASSERT_OK(volume.status());
      const std::vector<uint8_t> data = Pattern(thread, 1, bytes);
      for (uint64_t i = thread; i < count; i += kThreads) {
        const Status written = volume->Write(i % 64 * kMiB, data);
        if (written.ok()) continue;
        ++failed;
        ADD_FAILURE() << "write " << i << " of " << bytes << " bytes: " << written.ToString();
        return;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return failed;
}

TEST(SoakClusterStall, AFollowerThatHangsDoesNotKeepTheMemoryOfClientsWrites) {
  TestCluster cluster;
  Volume volume = cluster.MakeVolume("data", 64 * kMiB);
  ASSERT_EQ(WriteMany(cluster, 64, kMiB), 0);
  cluster.process(3).Signal(SIGSTOP);
  // What it led is led by others.
  for (uint64_t i = 0; i < 64; ++i) ASSERT_OK(volume.Write(i * kMiB, Pattern(i, 1, 4 * kKiB)));
  EXPECT_EQ(WriteMany(cluster, 300, kMiB), 0);
  EXPECT_EQ(WriteMany(cluster, 4000, 36 * kKiB), 0);
  // Who led most of it.
  EXPECT_TRUE(Eventually([&] {
    const std::string said = cluster.LogText(1) + cluster.LogText(2);
    return said.find("node 3: it takes nothing any more") != std::string::npos;
  }));
  cluster.process(3).Signal(SIGCONT);
  EXPECT_TRUE(Eventually(
      [&] {
        const Result<std::vector<NodeInfo>> nodes = cluster.Connect().GetStatus();
        if (!nodes.ok()) return false;
        for (const NodeInfo& node : *nodes) {
          if (!node.reachable.ok() || node.connected.size() != 2) return false;
        }
        return true;
      },
      kPatience));
}

}  // namespace
}  // namespace hydra::cluster_test
