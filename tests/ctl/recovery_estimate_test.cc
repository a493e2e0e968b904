// SPDX-License-Identifier: Apache-2.0
#include "daemon/recovery_estimate.h"

#include <gtest/gtest.h>

namespace hydra::ctl {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uint64_t kMiB = 1 << 20;

ReplicaProgress Image(uint64_t have, uint64_t of) {
  return {.installing = true, .have_bytes = have * kMiB, .of_bytes = of * kMiB, .expected = 50};
}
ReplicaProgress Log(uint64_t applied, uint64_t expected) {
  return {.have_bytes = kMiB, .of_bytes = kMiB, .applied = applied, .expected = expected};
}

TEST(RecoveryEstimate, NobodyRecoversWhoIsUpToDate) {
  const RecoveryLook look = {{{1, 5}, Log(50, 50)}, {{2, 5}, Log(51, 50)}};
  EXPECT_TRUE(EstimateRecovery(look, look, milliseconds(500)).empty());
}

TEST(RecoveryEstimate, BlocksOfAllGroupsOfANodeTogether) {
  const RecoveryLook before = {{{2, 5}, Image(10, 100)}, {{2, 6}, Image(0, 100)}};
  const RecoveryLook now = {
      {{1, 5}, Log(50, 50)}, {{2, 5}, Image(30, 100)}, {{2, 6}, Image(0, 100)}};
  const auto nodes = EstimateRecovery(before, now, milliseconds(500));
  ASSERT_EQ(nodes.size(), 1u);
  const NodeRecovery& node = nodes.at(2);
  EXPECT_EQ(node.installing, 2u);
  EXPECT_EQ(node.have_bytes, 30 * kMiB);
  EXPECT_EQ(node.of_bytes, 200 * kMiB);
  EXPECT_EQ(node.bytes_per_second, 40 * kMiB);
  EXPECT_EQ(node.left, seconds(5));  // 170 at 40
}

TEST(RecoveryEstimate, EntriesOfALog) {
  const RecoveryLook before = {{{3, 5}, Log(100, 1000)}};
  const RecoveryLook now = {{{3, 5}, Log(200, 1000)}};
  const NodeRecovery node = EstimateRecovery(before, now, milliseconds(1000)).at(3);
  EXPECT_EQ(node.behind, 1u);
  EXPECT_EQ(node.entries, 800u);
  EXPECT_EQ(node.entries_per_second, 100u);
  EXPECT_EQ(node.left, seconds(8));
}

TEST(RecoveryEstimate, OwedBlocksAreAllThatIsLeftOfThem) {
  const auto owed = [](uint64_t bytes) {
    ReplicaProgress replica = Log(50, 50);
    replica.owed_bytes = bytes * kMiB;
    return replica;
  };
  const RecoveryLook before = {{{3, 5}, owed(100)}, {{3, 6}, owed(30)}};
  const RecoveryLook now = {{{3, 5}, owed(90)}, {{3, 6}, owed(30)}, {{3, 7}, owed(0)}};
  const NodeRecovery node = EstimateRecovery(before, now, milliseconds(500)).at(3);
  EXPECT_EQ(node.owed, 2u);
  EXPECT_EQ(node.owed_bytes, 120 * kMiB);
  EXPECT_EQ(node.owed_per_second, 20 * kMiB);
  EXPECT_EQ(node.installing, 0u);
  EXPECT_EQ(node.behind, 0u);
  EXPECT_EQ(node.left, seconds(6));
}

TEST(RecoveryEstimate, TheSlowerOfTheTwoCounts) {
  const RecoveryLook before = {{{3, 5}, Log(100, 1000)}, {{3, 6}, Image(0, 100)}};
  const RecoveryLook now = {{{3, 5}, Log(900, 1000)}, {{3, 6}, Image(1, 100)}};
  EXPECT_EQ(EstimateRecovery(before, now, milliseconds(1000)).at(3).left, seconds(99));
}

TEST(RecoveryEstimate, WithoutProgressThereIsNoEstimate) {
  const RecoveryLook look = {{{3, 5}, Image(5, 100)}};
  EXPECT_EQ(EstimateRecovery(look, look, milliseconds(1000)).at(3).left, std::nullopt);
  EXPECT_EQ(EstimateRecovery({}, look, milliseconds(1000)).at(3).left, std::nullopt);
}

TEST(RecoveryEstimate, BlocksThatReplaceOthersCannotBeForetold) {
  const RecoveryLook look = {{{3, 5}, Image(120, 100)}};
  const NodeRecovery node = EstimateRecovery(look, look, milliseconds(1000)).at(3);
  EXPECT_EQ(node.have_bytes, 100 * kMiB);
  EXPECT_EQ(node.left, std::nullopt);
}

}  // namespace
}  // namespace hydra::ctl
