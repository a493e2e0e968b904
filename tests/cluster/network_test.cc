// SPDX-License-Identifier: Apache-2.0
//
// Lost replies, many clients, rude clients.
#include <sys/socket.h>

#include <atomic>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/rng.h"
#include "client/frame.h"
#include "client/protocol.pb.h"
#include "tests/cluster/fixture.h"
#include "tests/cluster/proxy.h"
#include "tests/support/gtest_status.h"

namespace hydra::cluster_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Le;

// --- Exactly once -------------------------------------------------------------------------------

// A cluster whose nodes can only be reached through proxies.
struct ProxiedCluster {
  explicit ProxiedCluster(uint64_t seed) : cluster({}, false) {
    for (uint32_t node = 1; node <= 3; ++node) {
      proxies.push_back(std::make_unique<Proxy>(cluster.rpc_port(node), seed * 10 + node));
      cluster.Advertise(node, proxies.back()->port());
    }
    cluster.StartAll();
    EXPECT_TRUE(cluster.WaitHealthy());
  }
  void Set(const Proxy::Faults& faults) {
    for (const auto& proxy : proxies) proxy->Set(faults);
  }
  uint64_t lost() const {
    uint64_t sum = 0;
    for (const auto& proxy : proxies) sum += proxy->lost();
    return sum;
  }
  TestCluster cluster;
  std::vector<std::unique_ptr<Proxy>> proxies;
};

// Several clients increment the same counters; the sums must be what was acknowledged.
void CountExactly(ProxiedCluster* proxied, const std::string& volume_name, int increments) {
  constexpr int kClients = 5;
  constexpr uint64_t kCounters = 4;  // one per shard
  proxied->cluster.MakeVolume(volume_name, 16 * kMiB);
  proxied->Set({.drop_percent = 12, .cut_percent = 8});
  std::atomic<int> left{increments};
  std::atomic<uint64_t> sum{0};
  std::atomic<int> failures{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.emplace_back([&, i] {
      ClusterOptions options;
      options.attempt_timeout = milliseconds(200);
      Result<Cluster> cluster = Cluster::Connect(proxied->cluster.seeds(), options);
      if (!cluster.ok()) {
        ++failures;
        return;
      }
      Result<Volume> volume = Volume::Open(*cluster, volume_name);
      Rng rng(static_cast<uint64_t>(i) + 1);
      while (volume.ok() && left-- > 0) {
        const uint64_t add = rng.Between(1, 1000);
        const Result<uint64_t> was = volume->FetchAdd(rng.Below(kCounters) * kMiB, add);
        if (was.ok()) {
          sum += add;
        } else {
          ++failures;
          ADD_FAILURE() << was.status().ToString();
        }
      }
    });
  }
  for (std::thread& client : clients) client.join();
  proxied->Set({});
  EXPECT_EQ(failures, 0);
  EXPECT_LE(left, 0);
  uint64_t total = 0;
  Volume volume = proxied->cluster.OpenVolume(volume_name);
  for (uint64_t counter = 0; counter < kCounters; ++counter) {
    const Result<uint64_t> value = volume.FetchAdd(counter * kMiB, 0);
    ASSERT_OK(value.status());
    total += *value;
  }
  EXPECT_EQ(total, sum);
}

TEST(ClusterNetwork, FiveHundredIncrementsAreExactThoughRepliesAreLost) {
  ProxiedCluster proxied(1);
  CountExactly(&proxied, "counters", 500);
  EXPECT_GT(proxied.lost(), 50u);
}

TEST(NightlyClusterNetwork, TenTimesFiveHundredIncrementsAreExact) {
  ProxiedCluster proxied(2);
  for (int round = 0; round < 10; ++round) {
    CountExactly(&proxied, fmt::format("counters-{}", round), 500);
  }
}

// --- Many clients -------------------------------------------------------------------------------

TEST(ClusterNetwork, ManyClientsWriteAndReadAtOnce) {
  TestCluster cluster;
  cluster.MakeVolume("data", 64 * kMiB);
  constexpr uint64_t kClients = 48;
  std::vector<std::thread> clients;
  std::atomic<int> good{0};
  for (uint64_t i = 0; i < kClients; ++i) {
    clients.emplace_back([&, i] {
      Volume volume = cluster.OpenVolume("data");
      std::vector<uint8_t> back(8192);
      for (uint64_t round = 0; round < 4; ++round) {
        const uint64_t offset = (i + round * kClients) * 8192;
        const Status written = volume.Write(offset, Pattern(offset, 1, 8192));
        const Status read = volume.Read(offset, back);
        if (written.ok() && read.ok() && back == Pattern(offset, 1, 8192)) ++good;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(good, kClients * 4);
}

// --- Raw frames ---------------------------------------------------------------------------------

std::string FrameBytes(FrameType type, uint64_t id, const std::string& header) {
  std::string bytes(kFrameHeadBytes, '\0');
  EncodeFrameHead(type, id, header, 0, reinterpret_cast<uint8_t*>(bytes.data()));
  return bytes + header;
}

std::string ClientHello() {
  rpc::Hello hello;
  hello.set_kind(rpc::Hello::CLIENT);
  hello.set_protocol(1);
  hello.set_name("test");
  return FrameBytes(FrameType::kHello, 0, hello.SerializeAsString());
}

// The cluster still serves, and node 1 has not restarted.
void ExpectAlive(TestCluster* cluster) {
  for (uint32_t node = 1; node <= 3; ++node) {
    EXPECT_TRUE(cluster->process(node).running()) << cluster->LogText(node);
    EXPECT_EQ(cluster->Get(node, "/healthz").first, 200);
  }
  Volume volume = cluster->OpenVolume("data");
  EXPECT_TRUE(volume.Write(0, Pattern(0, 1, 4096)).ok());
}

TEST(ClusterNetwork, MalformedFramesEndTheConnectionAndNotTheNode) {
  TestCluster cluster;
  cluster.MakeVolume("data", 16 * kMiB);
  Rng rng(3);
  std::string noise(100'000, '\0');
  for (char& byte : noise) byte = static_cast<char>(rng.Next());
  std::string huge = FrameBytes(FrameType::kHello, 0, "x");
  {
    FrameHead head;
    huge.assign(kFrameHeadBytes, '\0');
    EncodeFrameHead(FrameType::kRequest, 1, "", 0xffffffff,
                    reinterpret_cast<uint8_t*>(huge.data()));
  }
  std::string bad_crc = ClientHello();
  bad_crc.back() = static_cast<char>(bad_crc.back() ^ 1);
  const std::string not_hello = FrameBytes(FrameType::kRequest, 1, "");
  const std::string garbage_hello = FrameBytes(FrameType::kHello, 0, "\xff\xff\xff\xff");
  const std::string long_hello = FrameBytes(FrameType::kHello, 0, std::string(60'000, 'x'));
  const std::string unknown_type = FrameBytes(static_cast<FrameType>(99), 0, "");
  const std::string http = "GET / HTTP/1.1\r\nHost: localhost\r\nAccept: everything\r\n\r\n";
  for (const std::string& bytes :
       {noise, huge, ClientHello() + huge, bad_crc, ClientHello() + noise, not_hello, garbage_hello,
        long_hello, unknown_type, ClientHello() + unknown_type, http}) {
    RawSocket socket(cluster.rpc_port(1));
    ASSERT_TRUE(socket.connected());
    socket.Send(bytes);
    bool closed = false;
    socket.ReceiveAll(milliseconds(3'000), &closed);
    EXPECT_TRUE(closed) << bytes.size() << " bytes";
  }
  ExpectAlive(&cluster);
}

TEST(ClusterNetwork, RequestsThatMakeNoSenseAreRefusedInWords) {
  TestCluster cluster;
  cluster.MakeVolume("data", 16 * kMiB);
  Rng rng(4);
  for (int i = 0; i < 200; ++i) {
    rpc::Request request;
    rpc::Io* io = request.mutable_io();
    io->set_kind(static_cast<rpc::Io::Kind>(rng.Below(9)));
    io->set_group(static_cast<uint32_t>(rng.Below(8)));
    io->set_lba(rng.Percent(50) ? rng.Next() : rng.Below(10'000));
    io->set_count(rng.Percent(50) ? rng.Next() : rng.Below(1000));
    for (uint64_t n = rng.Below(4); n > 0; --n) io->add_extents(rng.Next());
    for (uint64_t n = rng.Below(4); n > 0; --n) io->add_crcs(static_cast<uint32_t>(rng.Next()));
    io->set_part_offset(static_cast<uint32_t>(rng.Next()));
    io->set_part_bytes(static_cast<uint32_t>(rng.Next()));
    io->set_session(rng.Next());
    io->set_seq(rng.Next());
    RawSocket socket(cluster.rpc_port(1 + static_cast<uint32_t>(rng.Below(3))));
    ASSERT_TRUE(socket.connected());
    socket.Send(ClientHello() + FrameBytes(FrameType::kRequest, 7, request.SerializeAsString()));
    if (i >= 20) continue;
    EXPECT_GE(socket.ReceiveAll(milliseconds(100)).size(), 3 * kFrameHeadBytes);
  }
  ExpectAlive(&cluster);
}

// A client that asks for 1000 MiB and takes nothing of it.
std::unique_ptr<RawSocket> AskForMuch(uint16_t port, uint32_t group) {
  auto socket = std::make_unique<RawSocket>(port);
  std::string bytes = ClientHello();
  for (uint64_t id = 1; id <= 1000; ++id) {
    rpc::Request request;
    request.mutable_io()->set_group(group);
    request.mutable_io()->set_lba((id % 4) * 256);
    request.mutable_io()->set_count(256);
    request.mutable_io()->set_local(true);
    bytes += FrameBytes(FrameType::kRequest, id, request.SerializeAsString());
  }
  socket->Send(bytes);
  return socket;
}

// In bytes, as it is now.
uint64_t MemoryOf(const Process& process) {
  const std::string status = ReadFile(fmt::format("/proc/{}/status", process.pid()));
  const size_t at = status.find("VmRSS:");
  EXPECT_NE(at, std::string::npos);
  return at == std::string::npos ? 0 : std::strtoull(status.c_str() + at + 6, nullptr, 10) * kKiB;
}

TEST(ClusterNetwork, ClientThatDoesNotReadItsAnswersHarmsNobody) {
  TestCluster cluster;
  Volume volume = cluster.MakeVolume("data", 16 * kMiB, 1);
  ASSERT_OK(volume.Write(0, Pattern(0, 1, 4 * kMiB)));
  const uint32_t group = cluster.Connect().volumes()->front().groups.front();
  std::vector<std::unique_ptr<RawSocket>> rude;
  for (uint32_t node = 1; node <= 3; ++node) {
    for (int i = 0; i < 3; ++i) rude.push_back(AskForMuch(cluster.rpc_port(node), group));
  }
  // Others go on, at a sane pace.
  const auto begin = std::chrono::steady_clock::now();
  for (uint64_t i = 0; i < 50; ++i) ASSERT_OK(volume.Write(i * 4096, Pattern(i, 2, 4096)));
  const auto took = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(std::chrono::duration_cast<milliseconds>(took).count(), 40'000);
  ExpectAlive(&cluster);
  // 1000 MiB of answers wait for each of nine clients, or rather do not: that much is not kept.
  for (uint32_t node = 1; node <= 3; ++node) {
    EXPECT_THAT(MemoryOf(cluster.process(node)), Le(300 * kMiB));
  }
}

TEST(SoakClusterNetwork, ManyClientsThatDoNotReadTheirAnswersShareABoundAndAreHungUpOn) {
  TestCluster cluster({.nodes = 1, .extra = {}});
  Volume volume = cluster.MakeVolume("data", 16 * kMiB, 1);
  ASSERT_OK(volume.Write(0, Pattern(0, 1, 4 * kMiB)));
  const uint32_t group = cluster.Connect().volumes()->front().groups.front();
  std::vector<std::unique_ptr<RawSocket>> rude;
  for (int i = 0; i < 32; ++i) rude.push_back(AskForMuch(cluster.rpc_port(1), group));
  // Each by itself would be given 32 MiB.
  uint64_t most = 0;
  std::vector<uint8_t> back(kMiB);
  const auto until = std::chrono::steady_clock::now() + milliseconds(10'000);
  while (std::chrono::steady_clock::now() < until) {
    most = std::max(most, MemoryOf(cluster.process(1)));
    ASSERT_OK(volume.Read(kMiB, back));  // others go on
    std::this_thread::sleep_for(milliseconds(50));
  }
  EXPECT_THAT(most, Le(600 * kMiB));
  const std::string hung_up = "it does not take its answers";
  const auto count = [&] {
    const std::string text = cluster.LogText(1);
    size_t lines = 0;
    for (size_t at = text.find(hung_up); at != std::string::npos; at = text.find(hung_up, at + 1)) {
      ++lines;
    }
    return lines;
  };
  EXPECT_TRUE(Eventually([&] { return count() == rude.size(); }, milliseconds(40'000))) << count();
  ASSERT_OK(volume.Read(kMiB, back));
}

}  // namespace
}  // namespace hydra::cluster_test
