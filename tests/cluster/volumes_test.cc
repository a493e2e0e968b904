// SPDX-License-Identifier: Apache-2.0
//
// Claims about volumes on a cluster of real processes.
#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cluster/fixture.h"
#include "tests/support/gtest_status.h"

namespace hydra::cluster_test {
namespace {

using ::testing::HasSubstr;

std::vector<uint8_t> ReadBytes(Volume volume, uint64_t offset, size_t length) {
  std::vector<uint8_t> bytes(length, 0xee);
  const Status read = volume.Read(offset, bytes);
  EXPECT_TRUE(read.ok()) << read.ToString();
  return bytes;
}

std::vector<uint8_t> Zeroes(size_t length) { return std::vector<uint8_t>(length, 0); }

TEST(ClusterVolumes, WhatIsWrittenIsReadFromEveryShardAndByOtherClients) {
  TestCluster cluster;
  Volume volume = cluster.MakeVolume("data", 64 * kMiB);
  for (uint64_t offset = 0; offset < 8 * kMiB; offset += kMiB) {
    ASSERT_OK(volume.Write(offset + 8192, Pattern(offset, 1, 12288)));
  }
  // Across extents, and so across shards.
  ASSERT_OK(volume.Write(12 * kMiB - 8192, Pattern(12, 1, 3 * kMiB)));
  Volume other = cluster.OpenVolume("data");
  for (uint64_t offset = 0; offset < 8 * kMiB; offset += kMiB) {
    EXPECT_EQ(ReadBytes(other, offset + 8192, 12288), Pattern(offset, 1, 12288));
    EXPECT_EQ(ReadBytes(other, offset, 8192), Zeroes(8192));
  }
  EXPECT_EQ(ReadBytes(other, 12 * kMiB - 8192, 3 * kMiB), Pattern(12, 1, 3 * kMiB));
}

TEST(ClusterVolumes, EveryOperationDoesWhatItSays) {
  TestCluster cluster;
  Volume volume = cluster.MakeVolume("data", 16 * kMiB);
  ASSERT_OK(volume.Write(0, Pattern(0, 1, 4 * kMiB)));
  ASSERT_OK(volume.WriteZeroes(4096, 8192));
  EXPECT_EQ(ReadBytes(volume, 4096, 8192), Zeroes(8192));
  EXPECT_NE(ReadBytes(volume, 12288, 4096), Zeroes(4096));
  ASSERT_OK(volume.Discard(2 * kMiB, 2 * kMiB));
  EXPECT_EQ(ReadBytes(volume, 2 * kMiB, 2 * kMiB), Zeroes(2 * kMiB));
  const auto before = ReadBytes(volume, 65536, 4096);
  const auto after = Pattern(65536, 2, 4096);
  const Result<bool> refused = volume.CompareAndWrite(65536, after, before);
  ASSERT_OK(refused.status());
  EXPECT_FALSE(*refused);
  EXPECT_EQ(ReadBytes(volume, 65536, 4096), before);
  const Result<bool> swapped = volume.CompareAndWrite(65536, before, after);
  ASSERT_OK(swapped.status());
  EXPECT_TRUE(*swapped);
  EXPECT_EQ(ReadBytes(volume, 65536, 4096), after);
  ASSERT_OK(volume.Flush());
}

TEST(ClusterVolumes, PartsOfBlocksAreMergedAtTheMaster) {
  TestCluster cluster;
  Volume volume = cluster.MakeVolume("data", 16 * kMiB);
  std::vector<uint8_t> block = Pattern(0, 1, 8192);
  ASSERT_OK(volume.Write(0, block));
  const auto part = Pattern(1, 1, 1024);
  ASSERT_OK(volume.Write(512, part));
  ASSERT_OK(volume.Write(3584, part));  // the end of one block and the start of the next
  std::copy(part.begin(), part.end(), block.begin() + 512);
  std::copy(part.begin(), part.end(), block.begin() + 3584);
  EXPECT_EQ(ReadBytes(volume, 0, 8192), block);
  const Result<uint64_t> was = volume.FetchAdd(kMiB, 5);
  ASSERT_OK(was.status());
  EXPECT_EQ(*was, 0u);
  const Result<uint64_t> next = volume.FetchAdd(kMiB, 7);
  ASSERT_OK(next.status());
  EXPECT_EQ(*next, 5u);
}

TEST(ClusterVolumes, GrowShowsZeroesAndShrinkForgetsForGood) {
  TestCluster cluster;
  Cluster client = cluster.Connect();
  Volume volume = cluster.MakeVolume("data", 16 * kMiB);
  ASSERT_OK(volume.Write(12 * kMiB, Pattern(12, 1, 4 * kMiB)));
  ASSERT_OK(volume.Write(0, Pattern(0, 1, kMiB)));
  ASSERT_OK(client.ResizeVolume("data", 32 * kMiB));
  ASSERT_OK(volume.Refresh().status());
  EXPECT_EQ(volume.size(), 32 * kMiB);
  EXPECT_EQ(ReadBytes(volume, 16 * kMiB, 16 * kMiB), Zeroes(16 * kMiB));
  EXPECT_EQ(ReadBytes(volume, 12 * kMiB, 4 * kMiB), Pattern(12, 1, 4 * kMiB));
  EXPECT_FALSE(client.ResizeVolume("data", 13 * kMiB + 4096).ok());  // not without force
  ASSERT_OK(client.ResizeVolume("data", 13 * kMiB + 4096, true));
  // Every master hears of the new size a moment later.
  EXPECT_TRUE(Eventually(
      [&] { return volume.Write(14 * kMiB, Zeroes(4096)).code() == Code::kOutOfRange; }));
  ASSERT_OK(client.ResizeVolume("data", 32 * kMiB));
  Volume again = cluster.OpenVolume("data");
  EXPECT_EQ(ReadBytes(again, 13 * kMiB + 4096, 3 * kMiB), Zeroes(3 * kMiB));
  const auto kept = Pattern(12, 1, 4 * kMiB);
  EXPECT_EQ(ReadBytes(again, 12 * kMiB, kMiB + 4096),
            std::vector<uint8_t>(kept.begin(), kept.begin() + kMiB + 4096));
  EXPECT_EQ(ReadBytes(again, 0, kMiB), Pattern(0, 1, kMiB));
}

TEST(ClusterVolumes, DeletedVolumeIsGoneAndItsNameMayBeUsedAgain) {
  TestCluster cluster;
  Cluster client = cluster.Connect();
  Volume volume = cluster.MakeVolume("data", 16 * kMiB);
  ASSERT_OK(volume.Write(0, Pattern(0, 1, kMiB)));
  ASSERT_OK(client.DeleteVolume("data"));
  EXPECT_CODE(client.DeleteVolume("data"), Code::kNotFound);
  EXPECT_CODE(Volume::Open(client, "data").status(), Code::kNotFound);
  Volume fresh = cluster.MakeVolume("data", 16 * kMiB);
  EXPECT_EQ(ReadBytes(fresh, 0, kMiB), Zeroes(kMiB));
}

TEST(SoakClusterVolumes, SixtyFourVolumesAtOnceHaveTheirOwnData) {
  TestCluster cluster;
  Cluster client = cluster.Connect();
  std::vector<Volume> volumes;
  for (int i = 0; i < 64; ++i) {
    VolumeSpec spec;
    spec.name = fmt::format("volume-{}", i);
    spec.bytes = 4 * kMiB;
    spec.shards = 2;
    ASSERT_OK(client.CreateVolume(spec));
    Result<Volume> volume = Volume::Open(client, spec.name);
    ASSERT_OK(volume.status());
    volumes.push_back(*volume);
  }
  for (uint64_t i = 0; i < 64; ++i) ASSERT_OK(volumes[i].Write(kMiB, Pattern(i, 1, 8192)));
  for (uint64_t i = 0; i < 64; ++i)
    EXPECT_EQ(ReadBytes(volumes[i], kMiB, 8192), Pattern(i, 1, 8192));
  const auto listed = client.volumes();
  ASSERT_OK(listed.status());
  EXPECT_EQ(listed->size(), 64u);
}

TEST(ClusterVolumes, MastersAreSpreadAndAnyNodeLeadsToThem) {
  TestCluster cluster;
  cluster.MakeVolume("data", 64 * kMiB, 6);
  std::set<uint32_t> masters;
  EXPECT_TRUE(Eventually([&] {
    masters.clear();
    const auto nodes = cluster.Connect().GetStatus(true);
    for (const NodeInfo& node : *nodes) {
      for (const ReplicaInfo& replica : node.replicas) {
        if (replica.group != 0 && replica.ready) masters.insert(node.node);
      }
    }
    return masters.size() == 3;
  })) << masters.size();
  // A client that knows one node only reaches all shards through what that node tells it.
  for (uint32_t node = 1; node <= 3; ++node) {
    const Result<Cluster> client = Cluster::Connect({cluster.address(node)});
    ASSERT_OK(client.status());
    Result<Volume> volume = Volume::Open(*client, "data");
    ASSERT_OK(volume.status());
    ASSERT_OK(volume->Write(0, Pattern(node, 1, 12 * kMiB)));
    EXPECT_EQ(ReadBytes(*volume, 0, 12 * kMiB), Pattern(node, 1, 12 * kMiB));
  }
}

TEST(ClusterVolumes, MovedMasterRedirectsClientsThatDoNotKnow) {
  TestCluster cluster;
  Volume volume = cluster.MakeVolume("data", 16 * kMiB, 1);
  Cluster client = cluster.Connect();
  const uint32_t group = client.volumes()->front().groups.front();
  Result<Volume> used = Volume::Open(client, "data");
  ASSERT_OK(used.status());
  ASSERT_OK(used->Write(0, Pattern(0, 1, 4096)));
  const uint64_t before = client.stats().redirects;
  for (const uint32_t to : {1u, 2u, 3u, 1u}) {
    const Outcome moved =
        cluster.Ctl({"master", "move", std::to_string(group), std::to_string(to)});
    ASSERT_EQ(moved.code, 0) << moved.err;
    ASSERT_OK(used->Write(0, Pattern(0, 1 + to, 4096)));
    EXPECT_EQ(ReadBytes(*used, 0, 4096), Pattern(0, 1 + to, 4096));
  }
  EXPECT_GT(client.stats().redirects, before);
}

TEST(ClusterVolumes, CallsThatCannotWorkSaySo) {
  TestCluster cluster;
  Cluster client = cluster.Connect();
  const auto create = [&](const std::string& name, uint64_t bytes, uint32_t block = 0,
                          uint32_t shards = 0, uint32_t replicas = 0) {
    return client.CreateVolume({name, bytes, block, shards, replicas});
  };
  EXPECT_CODE(create("", kMiB), Code::kInvalidArgument);
  EXPECT_CODE(create("UPPER", kMiB), Code::kInvalidArgument);
  EXPECT_CODE(create("data", 0), Code::kInvalidArgument);
  EXPECT_CODE(create("data", 1000), Code::kInvalidArgument);
  EXPECT_CODE(create("data", kMiB, 1000), Code::kInvalidArgument);
  EXPECT_CODE(create("data", kMiB, 0, 100'000), Code::kInvalidArgument);
  EXPECT_CODE(create("data", kMiB, 0, 1, 2), Code::kInvalidArgument);
  EXPECT_CODE(create("data", kMiB, 0, 1, 5), Code::kInvalidArgument);
  ASSERT_OK(create("data", kMiB));
  EXPECT_CODE(create("data", kMiB), Code::kAlreadyExists);
  EXPECT_CODE(client.ResizeVolume("none", kMiB), Code::kNotFound);
  EXPECT_CODE(client.ResizeVolume("data", 1000, true), Code::kInvalidArgument);
  Result<Volume> volume = Volume::Open(client, "data");
  ASSERT_OK(volume.status());
  std::vector<uint8_t> block(4096);
  EXPECT_CODE(volume->Read(100, block), Code::kInvalidArgument);
  EXPECT_CODE(volume->Write(0, std::span(block).first(100)), Code::kInvalidArgument);
  EXPECT_CODE(volume->Read(kMiB, block), Code::kOutOfRange);
  EXPECT_CODE(volume->Write(kMiB - 512, block), Code::kOutOfRange);
  EXPECT_CODE(volume->Discard(UINT64_MAX - 511, 512), Code::kOutOfRange);
  EXPECT_CODE(volume->FetchAdd(4, 1).status(), Code::kInvalidArgument);
  EXPECT_FALSE(volume->Read(0, std::span<uint8_t>()).ok());
}

}  // namespace
}  // namespace hydra::cluster_test
