// SPDX-License-Identifier: Apache-2.0
//
// What nodes say about the room that is left.
#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cluster/fixture.h"
#include "tests/support/gtest_status.h"

namespace hydra::cluster_test {
namespace {

// Of the node that has least; 0: not all of them say.
uint64_t LeastFree(const TestCluster& cluster) {
  const Result<std::vector<NodeInfo>> nodes = cluster.Connect().GetStatus(false);
  if (!nodes.ok()) return 0;
  uint64_t least = UINT64_MAX;
  for (const NodeInfo& node : *nodes) least = std::min(least, node.free_bytes);
  return least;
}

TEST(ClusterSpace, WhatIsFreeShrinksByWhatIsWritten) {
  constexpr uint64_t kWritten = 24 * kMiB;
  TestClusterOptions options;
  options.extra = {"--capacity", "384M"};
  TestCluster cluster(options);
  Volume volume = cluster.MakeVolume("data", 64 * kMiB);
  ASSERT_TRUE(Eventually([&] { return LeastFree(cluster) > 2 * kWritten; }));
  const uint64_t before = LeastFree(cluster);
  EXPECT_LT(before, 384 * kMiB);
  for (uint64_t at = 0; at < kWritten; at += kMiB) {
    ASSERT_OK(volume.Write(at, Pattern(at, 1, kMiB)));
  }
  EXPECT_TRUE(Eventually([&] { return LeastFree(cluster) + kWritten <= before; }))
      << LeastFree(cluster) << " of " << before;
  EXPECT_GT(LeastFree(cluster), 0u);
  const std::string metrics = cluster.Get(1, "/metrics").second;
  const std::string name = "\nhydra_store_room_bytes ";
  const size_t at = metrics.find(name);
  ASSERT_NE(at, std::string::npos);
  const double room = std::strtod(metrics.c_str() + at + name.size(), nullptr);
  EXPECT_GT(room, 0);
  EXPECT_LT(room, static_cast<double>(before));
}

}  // namespace
}  // namespace hydra::cluster_test
