// SPDX-License-Identifier: Apache-2.0
//
// SANITIZE through an initiator: afterwards no file of any node holds a byte of what was on the
// disk, and other volumes have everything.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <thread>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <gtest/gtest.h>

#include "iscsi/volume_disk.h"
#include "tests/cluster/fixture.h"
#include "tests/cluster/initiator.h"
#include "tests/support/gtest_status.h"

namespace hydra::cluster_test {
namespace {

constexpr int kSanitizing = 0x041b;
constexpr char kGone[] = "what-has-to-be-gone-afterwards/";
constexpr char kKept[] = "what-has-to-be-there-afterwards";

std::vector<uint8_t> Filled(const std::string& text, size_t bytes) {
  std::vector<uint8_t> data(bytes);
  for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<uint8_t>(text[i % text.size()]);
  return data;
}

class SoakClusterSanitize : public testing::Test {
 protected:
  SoakClusterSanitize()
      : cluster_(WithPortals()),
        disk_(cluster_.MakeVolume("disk", 32 * kMiB)),
        other_(cluster_.MakeVolume("other", 32 * kMiB)) {
    // Side by side in the same segments, some of it overwritten.
    for (uint64_t round = 0; round < 2; ++round) {
      for (uint64_t at = 0; at < 24 * kMiB; at += 512 * 1024) {
        EXPECT_OK(disk_.Write(at, Filled(kGone, 256 * 1024)));
        if (round > 0) continue;
        EXPECT_OK(other_.Write(at, Filled(kKept, 128 * 1024)));
      }
    }
  }

  // How often the text is in the files of that node; it may run.
  size_t Found(uint32_t node, const std::string& text) {
    size_t found = 0;
    std::error_code gone;  // LevelDB removes files all the time
    std::filesystem::recursive_directory_iterator it(cluster_.dir(node), gone);
    for (; it != std::filesystem::recursive_directory_iterator(); it.increment(gone)) {
      if (!it->is_regular_file(gone)) continue;
      const std::string bytes = ReadFile(it->path().string());
      for (size_t at = bytes.find(text); at != std::string::npos; at = bytes.find(text, at + 1)) {
        ++found;
      }
    }
    return found;
  }

  void ExpectErased() {
    for (uint32_t node = 1; node <= 3; ++node) {
      EXPECT_EQ(Found(node, kGone), 0u) << "node " << node;
      EXPECT_GT(Found(node, kKept), 1000u) << "node " << node;
    }
    std::vector<uint8_t> data(kMiB);
    for (uint64_t at = 0; at < 32 * kMiB; at += kMiB) {
      ASSERT_OK(disk_.Read(at, data));
      ASSERT_TRUE(std::all_of(data.begin(), data.end(), [](uint8_t b) { return b == 0; })) << at;
    }
    EXPECT_EQ(disk_.GetMap(0, 32 * kMiB)->size(), 1u);
    std::vector<uint8_t> kept(128 * 1024);
    for (uint64_t at = 0; at < 24 * kMiB; at += 512 * 1024) {
      ASSERT_OK(other_.Read(at, kept));
      ASSERT_TRUE(kept == Filled(kKept, kept.size())) << at;
    }
  }

  // Until the unit is ready; what it says before that.
  static void WaitReady(Initiator* initiator) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(90);
    int answer = initiator->NotReady();
    while (answer != 0 && std::chrono::steady_clock::now() < until) {
      ASSERT_EQ(answer, kSanitizing);
      std::this_thread::sleep_for(milliseconds(200));
      answer = initiator->NotReady();
    }
    ASSERT_EQ(answer, 0) << "it does not end";
  }

  TestCluster cluster_;
  Volume disk_;
  Volume other_;
};

TEST_F(SoakClusterSanitize, LeavesNothingOnAnyNode) {
  for (uint32_t node = 1; node <= 3; ++node) ASSERT_GT(Found(node, kGone), 1000u);
  Initiator initiator("iqn.test:a", 1, cluster_.iscsi_port(1), "disk");
  ASSERT_EQ(initiator.Sanitize(), 0);
  WaitReady(&initiator);
  ExpectErased();
  EXPECT_EQ(initiator.Write(3, 7), 0);
  EXPECT_EQ(initiator.Read(3), 7);
}

// A replica that is down still has everything: it is waited for.
TEST_F(SoakClusterSanitize, WaitsForANodeThatIsDown) {
  Initiator initiator("iqn.test:a", 1, cluster_.iscsi_port(1), "disk");
  cluster_.Kill(3);
  ASSERT_EQ(initiator.Sanitize(), 0);
  // Long enough for the other two.
  for (int i = 0; i < 30; ++i) {
    ASSERT_EQ(initiator.NotReady(), kSanitizing);
    std::this_thread::sleep_for(milliseconds(200));
  }
  EXPECT_GT(Found(3, kGone), 1000u);
  cluster_.Start(3);
  WaitReady(&initiator);
  ExpectErased();
}

// The portal that it came through dies with it: another goes on.
TEST_F(SoakClusterSanitize, AnotherPortalGoesOn) {
  auto first = std::make_unique<Initiator>("iqn.test:a", 1, cluster_.iscsi_port(1), "disk");
  Initiator second("iqn.test:a", 2, cluster_.iscsi_port(2), "disk");
  ASSERT_EQ(second.NotReady(), 0);
  cluster_.Kill(3);  // so that it cannot end before
  ASSERT_EQ(first->Sanitize(), 0);
  ASSERT_EQ(second.NotReady(), kSanitizing);
  first.reset();
  cluster_.Kill(1);
  cluster_.Start(3);
  cluster_.Start(1);
  ASSERT_TRUE(cluster_.WaitHealthy());
  WaitReady(&second);
  ExpectErased();
}

// A portal that goes on with it may be slow: what was written after it ended stays.
TEST_F(SoakClusterSanitize, AnErasingUnderAnOlderEpochIsFencedOff) {
  const Result<VolumeAccess> before = disk_.GetAccess();
  ASSERT_OK(before.status());
  ASSERT_OK(disk_.ChangeAccess(before->epoch, before->reservations).status());
  boost::asio::io_context io;
  iscsi::VolumeDisk late(&io, disk_, iscsi::IdentityOf({}, disk_.id(), "disk"));
  std::optional<Status> ended;
  late.Sanitize(
      before->epoch, before->epoch, [](double) {}, [&](const Status& status) { ended = status; });
  const auto work = boost::asio::make_work_guard(io);
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (!ended && std::chrono::steady_clock::now() < until) {
    io.run_one_for(std::chrono::milliseconds(100));
  }
  ASSERT_TRUE(ended.has_value());
  EXPECT_CODE(*ended, Code::kFenced);
  std::vector<uint8_t> data(256 * 1024);
  for (uint64_t at = 0; at < 24 * kMiB; at += 512 * 1024) {
    ASSERT_OK(disk_.Read(at, data));
    ASSERT_TRUE(data == Filled(kGone, data.size())) << at;
  }
}

}  // namespace
}  // namespace hydra::cluster_test
