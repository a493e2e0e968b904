// SPDX-License-Identifier: Apache-2.0
//
// Logical blocks of 4096 bytes: a property of a volume, which every portal serves alike.
#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/cluster/fixture.h"
#include "tests/cluster/initiator.h"
#include "tests/support/gtest_status.h"

namespace hydra::cluster_test {
namespace {

using testing::HasSubstr;
using Json = nlohmann::json;

constexpr uint32_t kLarge = 4096;

std::vector<std::string> CreateLarge(const std::string& name) {
  return {"volume", "create", name, "--size", "16M", "--logical-block", "4K"};
}

TEST(ClusterLogicalBlocks, EveryPortalServesThoseThatTheVolumeWasMadeWith) {
  TestCluster cluster(WithPortals());
  cluster.MakeVolume("small", 16 * kMiB);
  Outcome made;
  EXPECT_TRUE(Eventually([&] {
    made = cluster.Ctl(CreateLarge("large"));
    return made.code == 0;
  })) << made.err;
  EXPECT_THAT(made.out, HasSubstr("logical blocks of 4 KiB"));
  for (const auto& [name, block] : {std::pair("small", 512u), std::pair("large", kLarge)}) {
    for (const char* what : {"volume", "target"}) {
      const Outcome shown = cluster.Ctl({what, "show", name, "--json"});
      ASSERT_EQ(shown.code, 0) << shown.err;
      EXPECT_EQ(Json::parse(shown.out).at("logical_block"), block) << what;
    }
    for (uint32_t node = 1; node <= 3; ++node) {
      Initiator initiator("iqn.test:a", node, cluster.iscsi_port(node), name);
      EXPECT_EQ(initiator.Capacity(), std::pair(16 * kMiB / block, block)) << name << node;
    }
  }
  EXPECT_THAT(cluster.Ctl({"target", "show", "large"}).out,
              HasSubstr("logical blocks of 4 KiB, physical ones of 4 KiB"));

  Initiator first("iqn.test:a", 1, cluster.iscsi_port(1), "large");
  Initiator second("iqn.test:a", 2, cluster.iscsi_port(2), "large");
  first.set_block(kLarge);
  second.set_block(kLarge);
  ASSERT_EQ(first.Write(kLba, 7), 0);
  EXPECT_EQ(second.Read(kLba), 7);
  std::vector<uint8_t> bytes(3 * size_t{kLarge});
  ASSERT_OK(cluster.OpenVolume("large").Read((kLba - 1) * uint64_t{kLarge}, bytes));
  std::vector<uint8_t> expected(bytes.size());
  std::fill_n(expected.begin() + kLarge, kLarge, 7);
  EXPECT_EQ(bytes, expected);

  const Outcome odd =
      cluster.Ctl({"volume", "create", "odd", "--size", "16M", "--logical-block", "1024"});
  EXPECT_EQ(odd.code, 2);
  EXPECT_THAT(odd.err, HasSubstr("512 or 4096"));
}

TEST(ClusterLogicalBlocks, AreRefusedWhileNodesAreOfABuildThatWouldServeOthers) {
  TestCluster cluster(WithPortals({"--feature-level", "2"}));
  const Outcome refused = cluster.Ctl(CreateLarge("large"));
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.err, HasSubstr("every node of the cluster is of this version"));
  EXPECT_EQ(cluster.Ctl({"volume", "show", "large"}).code, 3);
}

}  // namespace
}  // namespace hydra::cluster_test
