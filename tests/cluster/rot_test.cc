// SPDX-License-Identifier: Apache-2.0
//
// Disks of real nodes rot: clients read what was written, and the copies are mended.
#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/cluster/fixture.h"
#include "tests/support/gtest_status.h"

namespace hydra::cluster_test {
namespace {

using Json = nlohmann::json;

constexpr size_t kBlockBytes = 4096;
constexpr uint64_t kBlocksWritten = 512;
constexpr milliseconds kRepairPatience(60'000);

class ClusterRot : public testing::Test {
 protected:
  void Start(std::vector<std::string> extra) {
    TestClusterOptions options;
    options.extra = std::move(extra);
    cluster_ = std::make_unique<TestCluster>(options);
    Volume volume = cluster_->MakeVolume("data", 16 * kMiB);
    constexpr uint64_t kAtATime = 32;
    std::vector<uint8_t> bytes(kAtATime * kBlockBytes);
    for (uint64_t first = 0; first < kBlocksWritten; first += kAtATime) {
      for (uint64_t b = 0; b < kAtATime; ++b) {
        const std::vector<uint8_t> block = Content(first + b);
        std::memcpy(bytes.data() + b * kBlockBytes, block.data(), kBlockBytes);
      }
      ASSERT_OK(volume.Write(first * kBlockBytes, bytes));
    }
    for (uint64_t b = 0; b < kBlocksWritten; ++b) {
      const std::vector<uint8_t> block = Content(b);
      numbers_[std::string(block.begin(), block.begin() + 16)] = b;
    }
    // What a follower has not applied is not in use yet.
    ASSERT_EQ(cluster_->Ctl({"status", "--wait", "--timeout", "30s"}).code, 0);
  }
  static std::vector<uint8_t> Content(uint64_t block) {
    return Pattern(block * kBlockBytes, 1, kBlockBytes);
  }

  // Flips a byte of every copy that the node has of one in `every` blocks; returns how many blocks.
  size_t Rot(uint32_t node, uint64_t every) {
    std::set<uint64_t> rotten;
    for (const auto& entry :
         std::filesystem::directory_iterator(cluster_->dir(node) + "/segments")) {
      if (entry.path().extension() != ".seg") continue;
      const int file = open(entry.path().c_str(), O_RDWR | O_CLOEXEC);
      EXPECT_GE(file, 0);
      std::vector<char> page(kBlockBytes);
      for (off_t at = 0; pread(file, page.data(), kBlockBytes, at) == kBlockBytes;
           at += kBlockBytes) {
        const auto found = numbers_.find(std::string(page.data(), 16));
        if (found == numbers_.end() || found->second % every != 0) continue;
        const char flipped = static_cast<char>(page[1234] ^ 0x20);
        EXPECT_EQ(pwrite(file, &flipped, 1, at + 1234), 1);
        rotten.insert(found->second);
      }
      EXPECT_EQ(fsync(file), 0);
      close(file);
    }
    return rotten.size();
  }

  void ReadAll() {
    Volume volume = cluster_->OpenVolume("data");
    for (const Consistency consistency : {Consistency::kLinearizable, Consistency::kLocal}) {
      std::vector<uint8_t> bytes(kBlockBytes);
      for (uint64_t b = 0; b < kBlocksWritten; ++b) {
        ASSERT_OK(volume.Read(b * kBlockBytes, bytes, consistency)) << "block " << b;
        ASSERT_EQ(bytes, Content(b)) << "block " << b;
      }
    }
  }

  Json Scrub(uint32_t node) {
    const Outcome outcome =
        cluster_->Ctl({"scrub", "status", "--node", std::to_string(node), "--json"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    const Json list = Json::parse(outcome.out, nullptr, false);
    return list.is_array() && list.size() == 1 ? list[0] : Json::object();
  }
  // Lets the node scrub all it has; what it says in the end.
  Json ScrubAll(uint32_t node) {
    const Outcome begun =
        cluster_->Ctl({"scrub", "start", "--node", std::to_string(node), "--rate", "1G", "--json"});
    EXPECT_EQ(begun.code, 0) << begun.err;
    Json status;
    EXPECT_TRUE(Eventually(
        [&] {
          status = Scrub(node);
          return status.value("complete", false) && status.value("under repair", 1) == 0;
        },
        kRepairPatience))
        << status.dump();
    return status;
  }
  // Blocks in the map of a node that does not run that cannot be read.
  size_t LiveDamage(uint32_t node) {
    const Outcome verify = cluster_->Ctl(
        {"debug", "verify", cluster_->dir(node), "--temp", cluster_->path(), "--json"});
    const Json report = Json::parse(verify.out, nullptr, false);
    EXPECT_TRUE(report.is_object()) << verify.out << verify.err;
    size_t live = 0;
    for (const Json& finding : report["findings"]) {
      // What no row refers to is what a repaired block leaves behind, until its segment is reused.
      if (finding["kind"] != "payload" || finding["live"].get<bool>()) ++live;
    }
    return live;
  }
  uint64_t Metric(uint32_t node, const std::string& name) {
    const auto [status, body] = cluster_->Get(node, "/metrics");
    const size_t at = body.find("\n" + name + " ");
    return at == std::string::npos ? 0 : std::stoull(body.substr(at + name.size() + 2));
  }

  std::unique_ptr<TestCluster> cluster_;
  std::map<std::string, uint64_t> numbers_;  // of blocks, by their first bytes
};

TEST_F(ClusterRot, ANodeWhoseDiskRottedWhileItWasStoppedIsMendedByReadsAndAScrub) {
  Start({"--scrub-every", "0"});
  ASSERT_EQ(cluster_->Stop(2), 0);
  ASSERT_EQ(LiveDamage(2), 0u);
  const size_t rotten = Rot(2, 5);
  ASSERT_GE(rotten, kBlocksWritten / 5);
  ASSERT_EQ(LiveDamage(2), rotten) << "the test must damage what is in use";
  cluster_->Start(2);
  ASSERT_TRUE(cluster_->WaitHealthy());
  ReadAll();
  const Json first = ScrubAll(2);
  EXPECT_EQ(first["given up total"], 0) << first.dump();
  EXPECT_EQ(first["repaired total"], rotten) << first.dump();
  EXPECT_GT(first["last completed"], 0u) << first.dump();
  const Json second = ScrubAll(2);
  EXPECT_EQ(second["found"], 0) << second.dump();
  EXPECT_GE(second["bytes"], kBlocksWritten * kBlockBytes);
  ReadAll();
  ASSERT_EQ(cluster_->Stop(2), 0);
  EXPECT_EQ(LiveDamage(2), 0u);
  // It is remembered.
  cluster_->Start(2);
  ASSERT_TRUE(cluster_->WaitHealthy());
  EXPECT_GE(Scrub(2)["last completed"], second["last completed"]);
}

TEST_F(ClusterRot, ANodeWhoseDiskRotsWhileItServesIsMendedByReads) {
  Start({"--scrub-every", "0"});
  // One node after the other: a good copy of everything is left.
  for (uint32_t node = 1; node <= 3; ++node) {
    const size_t rotten = Rot(node, 7);
    ASSERT_GT(rotten, 0u);
    ReadAll();
    const Json status = ScrubAll(node);
    EXPECT_EQ(status["repaired total"], rotten) << "node " << node << ": " << status.dump();
    EXPECT_EQ(Metric(node, "hydra_rot_repaired"), rotten);
  }
  ReadAll();
  for (uint32_t node = 1; node <= 3; ++node) {
    ASSERT_EQ(cluster_->Stop(node), 0);
    EXPECT_EQ(LiveDamage(node), 0u) << "node " << node;
  }
}

TEST_F(ClusterRot, TheScheduleFindsWhatNobodyReads) {
  Start({"--scrub-every", "2s", "--scrub-rate", "256MiB"});
  const size_t rotten = Rot(3, 9);
  ASSERT_GT(rotten, 0u);
  EXPECT_TRUE(
      Eventually([&] { return Metric(3, "hydra_rot_repaired") >= rotten; }, kRepairPatience));
  EXPECT_GT(Metric(3, "hydra_scrub_rounds") + Metric(3, "hydra_scrub_running"), 0u);
}

TEST_F(ClusterRot, AScrubIsStartedWatchedAndStopped) {
  Start({"--scrub-every", "0"});
  EXPECT_EQ(cluster_->Ctl({"scrub", "start", "--rate", "64K"}).code, 0);
  for (uint32_t node = 1; node <= 3; ++node) {
    const Json status = Scrub(node);
    EXPECT_TRUE(status["running"].get<bool>());
    EXPECT_EQ(status["rate"], 64 * kKiB);
    EXPECT_LT(status["percent"], 100.0);
    EXPECT_EQ(status["next"], 0) << "not scheduled";
  }
  const Outcome text = cluster_->Ctl({"scrub", "status"});
  EXPECT_EQ(text.code, 0);
  EXPECT_THAT(text.out, testing::HasSubstr("64 KiB/s"));
  EXPECT_EQ(cluster_->Ctl({"scrub", "stop", "--node", "2"}).code, 0);
  EXPECT_FALSE(Scrub(2)["running"].get<bool>());
  EXPECT_FALSE(Scrub(2)["complete"].get<bool>());
  EXPECT_TRUE(Scrub(1)["running"].get<bool>());
  EXPECT_EQ(cluster_->Ctl({"scrub", "start", "--node", "9"}).code, 3);
}

}  // namespace
}  // namespace hydra::cluster_test
