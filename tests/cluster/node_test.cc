// SPDX-License-Identifier: Apache-2.0
//
// Claims about hydrad: what it refuses to start with, whom it refuses to talk to, what it shows.
#include <algorithm>
#include <filesystem>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/cluster/fixture.h"
#include "tests/support/gtest_status.h"

namespace hydra::cluster_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;

// The same command with the value of `option` replaced.
std::vector<std::string> With(std::vector<std::string> command, const std::string& option,
                              const std::string& value) {
  const auto found = std::find(command.begin(), command.end(), option);
  EXPECT_NE(found, command.end()) << option;
  *(found + 1) = value;
  return command;
}

std::vector<std::string> Without(std::vector<std::string> command, const std::string& flag) {
  std::erase(command, flag);
  return command;
}

bool LogSays(const TestCluster& cluster, uint32_t node, const std::string& text) {
  return Eventually([&] { return cluster.LogText(node).find(text) != std::string::npos; },
                    milliseconds(10'000));
}

// At depth 1 the node's own thread writes; a failure there ends the node as any other does.
TEST(ClusterNode, ANodeWhoseDiskFailsEndsWithAnErrorAndTheOthersGoOn) {
  TestClusterOptions options;
  options.extra = {"--drill"};
  TestCluster cluster(options);
  Volume volume = cluster.MakeVolume("v", 16 * kMiB, 1);
  // So many that the disk is known to be quick again, after the segments that were made.
  for (int i = 0; i < 200; ++i) ASSERT_OK(volume.Write(0, Pattern(0, 1, 4 * kKiB)));
  RawSocket http(cluster.http_port(2));
  ASSERT_TRUE(http.connected());
  const std::string fault = R"({"disk":{"fail_writes":true}})";
  http.Send(
      fmt::format("POST /drill/faults HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                  "Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{}",
                  fault.size(), fault));
  EXPECT_THAT(http.ReceiveAll(milliseconds(5'000)), HasSubstr(" 200 "));
  EXPECT_OK(volume.Write(0, Pattern(0, 2, 4 * kKiB)));
  EXPECT_EQ(cluster.process(2).Wait(milliseconds(10'000)), 1);
  EXPECT_THAT(cluster.LogText(2), HasSubstr("stops serving"));
  // The last line says what to do.
  const std::string said = cluster.LogText(2);
  EXPECT_THAT(said.substr(said.rfind("ended: ")),
              AllOf(HasSubstr("smartctl"), HasSubstr("hydractl node replace 2")));
  EXPECT_OK(volume.Write(0, Pattern(0, 3, 4 * kKiB)));
}

TEST(ClusterNode, WrongOptionsAreExplained) {
  TestCluster cluster({}, false);
  const auto command = cluster.Command(1);
  const auto run = [&](const std::vector<std::string>& changed) {
    return RunCommand(changed, "", milliseconds(10'000));
  };
  EXPECT_EQ(run({command[0]}).code, 2);
  EXPECT_EQ(run(With(command, "--node", "one")).code, 2);
  EXPECT_EQ(run(With(command, "--peer", "nonsense")).code, 2);
  const Outcome secret = run(With(command, "--secret-file", "/nowhere"));
  EXPECT_EQ(secret.code, 2);
  EXPECT_THAT(secret.err, HasSubstr("openssl rand"));
  const Outcome exposed = run(With(command, "--listen", "0.0.0.0:0"));
  EXPECT_EQ(exposed.code, 2);
  EXPECT_THAT(exposed.err, HasSubstr("--insecure"));
  const auto add = [&](std::vector<std::string> words) {
    std::vector<std::string> longer = command;
    longer.insert(longer.end(), words.begin(), words.end());
    return run(longer);
  };
  for (const char* any : {"0.0.0.0:3260", "[::]:3260", ":3260"}) {
    const Outcome vague = add({"--insecure", "--iscsi", any});
    EXPECT_EQ(vague.code, 2) << any;
    EXPECT_THAT(vague.err, HasSubstr("--iscsi-advertise")) << any;
    const Outcome as_vague =
        add({"--insecure", "--iscsi", "127.0.0.1:3260", "--iscsi-advertise", any});
    EXPECT_EQ(as_vague.code, 2) << any;
    EXPECT_THAT(as_vague.err, HasSubstr("HOST:PORT")) << any;
  }
  EXPECT_EQ(add({"--iscsi-advertise", "10.1.2.3:3260"}).code, 2) << "there is no portal";
  const Outcome nobody = add({"--insecure", "--peer", "1=0.0.0.0:7100"});
  EXPECT_EQ(nobody.code, 2);
  EXPECT_THAT(nobody.err, HasSubstr("by which all nodes reach it"));
  // Nothing says how the others call it.
  std::vector<std::string> alone = With(command, "--listen", "0.0.0.0:7100");
  for (auto peer = std::find(alone.begin(), alone.end(), "--peer"); peer != alone.end();
       peer = std::find(alone.begin(), alone.end(), "--peer")) {
    alone.erase(peer, peer + 2);
  }
  alone.push_back("--insecure");
  const Outcome unknown = run(alone);
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("--peer 1=HOST:PORT"));
  const Outcome empty = run(Without(command, "--bootstrap"));
  EXPECT_EQ(empty.code, 1);
  EXPECT_THAT(empty.out + empty.err, HasSubstr("--bootstrap"));
}

// What is told to others can be called by them.
TEST(ClusterNode, ANodeThatListensOnEveryAddressIsKnownByOneOfThem) {
  TestClusterOptions options = WithPortals({"--insecure", "--iscsi-advertise", "10.1.2.3:3260"});
  options.nodes = 1;
  TestCluster cluster(options, false);
  std::vector<std::string> command = cluster.Command(1);
  const std::pair<const char*, uint16_t> listens[] = {{"--listen", cluster.rpc_port(1)},
                                                      {"--http", cluster.http_port(1)},
                                                      {"--iscsi", cluster.iscsi_port(1)}};
  for (const auto& [option, port] : listens) {
    command = With(command, option, fmt::format("0.0.0.0:{}", port));
  }
  cluster.process(1) = Process(command, cluster.log(1));
  ASSERT_TRUE(cluster.WaitHealthy());
  Json node;
  EXPECT_TRUE(Eventually([&] {
    const Json status = Json::parse(cluster.Ctl({"status", "--json"}).out, nullptr, false);
    if (!status.is_object()) return false;
    node = status.at("nodes").at(0);
    return node.at("iscsi") == "10.1.2.3:3260";
  })) << node.dump();
  EXPECT_EQ(node.at("http"), fmt::format("127.0.0.1:{}", cluster.http_port(1)));
}

TEST(ClusterNode, TomlFileGivesTheSameOptions) {
  TestCluster cluster({.nodes = 1, .extra = {}}, false);
  WriteFile(cluster.path() + "/hydrad.toml",
            fmt::format("node = 1\ndir = \"{}\"\nlisten = \"{}\"\nhttp = \"127.0.0.1:{}\"\n"
                        "cluster-id = \"7c9e6679-7425-40de-944b-e07fc1f90ae7\"\n"
                        "secret-file = \"{}/secret\"\nbootstrap = true\npeer = [\"1={}\"]\n"
                        "segment-size = \"16MiB\"\n",
                        cluster.dir(1), cluster.address(1), cluster.http_port(1), cluster.path(),
                        cluster.address(1)));
  Process node({BinaryDirectory() + "/hydrad", "--config", cluster.path() + "/hydrad.toml"},
               cluster.log(1));
  EXPECT_TRUE(Eventually([&] { return cluster.Healthy(1); })) << cluster.LogText(1);
}

TEST(ClusterNode, AloneItWaitsForAMajorityAndSaysSo) {
  TestCluster cluster({}, false);
  cluster.Start(1);
  EXPECT_TRUE(LogSays(cluster, 1, "waits for a majority")) << cluster.LogText(1);
  const auto [status, body] = cluster.Get(1, "/healthz");
  EXPECT_EQ(status, 503);
  EXPECT_THAT(body, HasSubstr("waiting for a majority"));
  EXPECT_EQ(cluster.Stop(1), 0);
  // With a second one there is a cluster.
  cluster.Start(1);
  cluster.Start(2);
  EXPECT_TRUE(cluster.WaitHealthy());
}

TEST(ClusterNode, AnotherSecretIsRefused) {
  TestCluster cluster({}, false);
  WriteFile(cluster.path() + "/other", "fedcba9876543210fedcba9876543210\n");
  cluster.Start(1);
  cluster.Start(2);
  Process stranger(With(cluster.Command(3), "--secret-file", cluster.path() + "/other"),
                   cluster.log(3));
  ASSERT_TRUE(cluster.WaitHealthy());
  EXPECT_TRUE(LogSays(cluster, 3, "secret")) << cluster.LogText(3);
  EXPECT_EQ(cluster.Get(3, "/healthz").first, 503);
}

TEST(ClusterNode, NodeOfAnotherClusterIsRefused) {
  TestCluster cluster({}, false);
  cluster.Start(1);
  cluster.Start(2);
  Process stranger(With(cluster.Command(3), "--cluster-id", "7c9e6679-7425-40de-944b-e07fc1f90ae7"),
                   cluster.log(3));
  ASSERT_TRUE(cluster.WaitHealthy());
  EXPECT_TRUE(LogSays(cluster, 3, "check the address and the cluster id")) << cluster.LogText(3);
  EXPECT_EQ(cluster.Get(3, "/healthz").first, 503);
}

TEST(ClusterNode, AnotherNodesDirectoryIsRefused) {
  TestCluster cluster;
  for (uint32_t node = 1; node <= 3; ++node) EXPECT_EQ(cluster.Stop(node), 0);
  const Outcome wrong =
      RunCommand(With(cluster.Command(1), "--dir", cluster.dir(2)), "", milliseconds(10'000));
  EXPECT_EQ(wrong.code, 1);
  EXPECT_THAT(wrong.out + wrong.err, HasSubstr("data directory of node 2"));
  const Outcome other =
      RunCommand(With(cluster.Command(1), "--cluster-id", "7c9e6679-7425-40de-944b-e07fc1f90ae7"),
                 "", milliseconds(10'000));
  EXPECT_EQ(other.code, 1);
  EXPECT_THAT(other.out + other.err, HasSubstr("cluster"));
}

TEST(ClusterNode, WipedNodeIsRefusedWithWordsAndTheOthersServeOn) {
  TestCluster cluster;
  Volume volume = cluster.MakeVolume("data", 16 * kMiB);
  ASSERT_OK(volume.Write(0, Pattern(0, 1, kMiB)));
  ASSERT_TRUE(Eventually([&] {  // everyone knows node 3's store
    for (const uint32_t node : {1u, 2u}) {
      const Json nodes = Json::parse(cluster.Get(node, "/api/status").second).at("nodes");
      if (nodes.size() != 3 || nodes.at(2).at("store") == "") return false;
    }
    return true;
  }));
  cluster.Kill(3);
  std::filesystem::remove_all(cluster.dir(3));
  cluster.Start(3);  // with --bootstrap, as the directory is not there
  EXPECT_TRUE(LogSays(cluster, 3, "another data directory")) << cluster.LogText(3);
  ASSERT_OK(volume.Write(0, Pattern(0, 2, kMiB)));
  std::vector<uint8_t> back(kMiB);
  ASSERT_OK(volume.Read(0, back));
  EXPECT_EQ(back, Pattern(0, 2, kMiB));
}

TEST(ClusterNode, HttpShowsMetricsHealthAndStatus) {
  TestCluster cluster;
  Volume volume = cluster.MakeVolume("data", 16 * kMiB);
  ASSERT_OK(volume.Write(0, Pattern(0, 1, kMiB)));
  for (uint32_t node = 1; node <= 3; ++node) {
    EXPECT_EQ(cluster.Get(node, "/healthz"), std::pair(200, std::string("ok\n")));
    const auto [code, metrics] = cluster.Get(node, "/metrics");
    EXPECT_EQ(code, 200);
    EXPECT_THAT(metrics, AllOf(HasSubstr("# TYPE hydra_requests_total counter"),
                               HasSubstr("hydra_request_seconds_bucket"),
                               HasSubstr("hydra_payload_copied_bytes")));
    const Json status = Json::parse(cluster.Get(node, "/api/status").second);
    EXPECT_EQ(status.at("node"), node);
    EXPECT_EQ(status.at("healthy"), true);
    EXPECT_EQ(status.at("groups").size(), 5u);
    EXPECT_EQ(status.at("volumes").at(0).at("name"), "data");
    EXPECT_EQ(cluster.Get(node, "/nothing").first, 404);
  }
}

TEST(ClusterNode, FullDiskRefusesWritesAndServesReadsAndDiscards) {
  TestCluster cluster({.nodes = 3, .extra = {"--capacity", "192MiB"}});
  Volume volume = cluster.MakeVolume("data", 1024 * kMiB);
  uint64_t written = 0;
  Status full;
  while (written < 512 && full.ok()) {
    full = volume.Write(written * kMiB, Pattern(written, 1, kMiB));
    if (full.ok()) ++written;
  }
  EXPECT_CODE(full, Code::kNoSpace);
  ASSERT_GT(written, 20u);
  std::vector<uint8_t> back(kMiB);
  for (uint64_t i = 0; i < written; i += 5) {
    ASSERT_OK(volume.Read(i * kMiB, back));
    EXPECT_EQ(back, Pattern(i, 1, kMiB));
  }
  ASSERT_OK(volume.Discard(0, (written - 5) * kMiB));
  EXPECT_TRUE(
      Eventually([&] { return volume.Write(0, Pattern(0, 2, kMiB)).ok(); }, milliseconds(30'000)));
  ASSERT_OK(volume.Read(0, back));
  EXPECT_EQ(back, Pattern(0, 2, kMiB));
  ASSERT_OK(volume.Read((written - 1) * kMiB, back));
  EXPECT_EQ(back, Pattern(written - 1, 1, kMiB));
}

// Also where not one more block fits: what deletes a volume must not need the room that it makes.
TEST(ClusterNode, AVolumeIsDeletedFromAFullClusterAndMakesRoom) {
  TestCluster cluster({.nodes = 3, .extra = {"--capacity", "192MiB"}});
  Volume kept = cluster.MakeVolume("kept", 16 * kMiB);
  Volume volume = cluster.MakeVolume("data", 1024 * kMiB);
  uint64_t extent = 0;
  while (extent < 512 && volume.Write(extent * kMiB, Pattern(extent, 1, kMiB)).ok()) ++extent;
  ASSERT_LT(extent, 512u);
  // In every shard, until none takes a block.
  for (uint64_t last = extent + 32; extent < last; ++extent) {
    uint64_t at = extent * kMiB;
    while (at < (extent + 1) * kMiB && volume.Write(at, Pattern(at, 1, 4096)).ok()) at += 4096;
  }
  EXPECT_CODE(kept.Write(0, Pattern(0, 1, 4096)), Code::kNoSpace);
  Cluster client = cluster.Connect();
  ASSERT_OK(client.DeleteVolume("data"));
  EXPECT_TRUE(Eventually([&] { return kept.Write(0, Pattern(0, 1, kMiB)).ok(); }, kPatience));
}

}  // namespace
}  // namespace hydra::cluster_test
