// SPDX-License-Identifier: Apache-2.0
//
// Clocks that jump. The wall clock may go anywhere: nothing depends on it. The clock since boot
// leaps ahead when a machine was suspended: leases end that the node still believed in, and
// time-outs come all at once.
#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <map>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/check.h"
#include "base/rng.h"
#include "tests/cluster/fixture.h"
#include "tests/cluster/verified_load.h"
#include "tests/support/gtest_status.h"

namespace hydra::cluster_test {
namespace {

using ::testing::IsEmpty;

constexpr int64_t kSecondNs = 1'000'000'000;
constexpr int64_t kDay = 24 * 3600 * kSecondNs;

// The file behind a node's clocks (tests/cluster/preload/clock_jump.cc).
class Clocks {
 public:
  explicit Clocks(const std::string& path) {
    const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    HYDRA_CHECK(file >= 0 && ftruncate(file, kBytes) == 0);
    void* mapped = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    HYDRA_CHECK(mapped != MAP_FAILED);
    close(file);
    offsets_ = static_cast<volatile int64_t*>(mapped);
  }
  ~Clocks() { munmap(const_cast<int64_t*>(offsets_), kBytes); }
  Clocks(const Clocks&) = delete;
  Clocks& operator=(const Clocks&) = delete;

  void SetWall(int64_t offset) { offsets_[0] = offset; }
  void LeapSinceBoot(int64_t by) { offsets_[1] = offsets_[1] + by; }  // only ahead

 private:
  static constexpr size_t kBytes = 2 * sizeof(int64_t);
  volatile int64_t* offsets_;
};

class ClusterClock : public testing::Test {
 protected:
  ClusterClock() : cluster_({}, false) {
    for (uint32_t node = 1; node <= cluster_.nodes(); ++node) {
      const std::string path = fmt::format("{}/clocks{}", cluster_.path(), node);
      clocks_.push_back(std::make_unique<Clocks>(path));
      cluster_.RunUnder(node,
                        {"/usr/bin/env", "LD_PRELOAD=" + BinaryDirectory() + "/libclock-jump.so",
                         "HYDRA_TEST_CLOCKS=" + path});
    }
    cluster_.StartAll();
    EXPECT_TRUE(cluster_.WaitHealthy());
    cluster_.MakeVolume("data", 16 * kMiB);
  }
  Clocks& clocks(uint32_t node) { return *clocks_[node - 1]; }

  void ExpectAllRun() {
    for (uint32_t node = 1; node <= cluster_.nodes(); ++node) {
      EXPECT_TRUE(cluster_.process(node).running()) << cluster_.LogText(node);
    }
    EXPECT_TRUE(cluster_.WaitHealthy());
  }

  TestCluster cluster_;
  std::vector<std::unique_ptr<Clocks>> clocks_;
};

std::string Today() {
  const time_t now = time(nullptr);
  char text[16];
  tm parts;
  return {text, strftime(text, sizeof text, "%Y-%m-%d", gmtime_r(&now, &parts))};
}

std::map<uint32_t, uint64_t> Ballots(const TestCluster& cluster) {
  std::map<uint32_t, uint64_t> ballots;
  const auto nodes = cluster.Connect().GetStatus(true);
  EXPECT_OK(nodes.status());
  for (const NodeInfo& node : *nodes) {
    for (const ReplicaInfo& replica : node.replicas) {
      uint64_t& round = ballots[replica.group];
      round = std::max(round, replica.ballot_round);
    }
  }
  return ballots;
}

TEST_F(ClusterClock, TheWallClockMayJumpAnywhereAndNothingNotices) {
  VerifiedLoad load(cluster_, "data", 2, 256);
  ASSERT_TRUE(load.WaitFor(50, kPatience));
  const auto before = Ballots(cluster_);
  for (const int64_t offset : {kDay, -kDay, int64_t{0}, 30 * kDay}) {
    for (uint32_t node = 1; node <= 3; ++node) {
      clocks(node).SetWall(offset * (node == 2 ? -1 : 1));
      ASSERT_TRUE(load.WaitFor(20, kPatience));
    }
  }
  EXPECT_EQ(Ballots(cluster_), before) << "a mastership changed hands";
  EXPECT_THAT(load.Stop(), IsEmpty());
  EXPECT_THAT(load.Verify(), IsEmpty());
  ExpectAllRun();
  // The jumps were real: its last words are of another month.
  EXPECT_EQ(cluster_.Stop(1), 0);
  const std::string text = cluster_.LogText(1);
  const size_t last = text.rfind('\n', text.size() - 2);
  EXPECT_GT(text.substr(last + 1, 7), Today().substr(0, 7)) << text;
}

TEST_F(ClusterClock, LeapsOfTheClockSinceBootLoseNothing) {
  VerifiedLoad load(cluster_, "data", 2, 256);
  Rng rng(17);
  std::map<uint32_t, int64_t> leapt;
  for (int leap = 0; leap < 12; ++leap) {
    const auto node = static_cast<uint32_t>(rng.Between(1, 3));
    // From less than a lease to longer than any session lives; the longest on all at once.
    const int64_t by = kSecondNs / 10 << rng.Below(10);
    clocks(node).LeapSinceBoot(by);
    leapt[node] += by;
    if (leap % 4 == 3) {
      for (uint32_t other = 1; other <= 3; ++other) {
        clocks(other).LeapSinceBoot(by);
        leapt[other] += by;
      }
    }
    ASSERT_TRUE(load.WaitFor(rng.Between(10, 60), kPatience)) << "leap " << leap;
  }
  const auto nodes = cluster_.Connect().GetStatus();
  ASSERT_OK(nodes.status());
  for (const NodeInfo& node : *nodes) {
    EXPECT_GE(std::chrono::nanoseconds(node.uptime).count(), leapt[node.node]) << node.node;
  }
  EXPECT_THAT(load.Stop(), IsEmpty());
  EXPECT_THAT(load.Verify(), IsEmpty());
  ExpectAllRun();
}

}  // namespace
}  // namespace hydra::cluster_test
