// SPDX-License-Identifier: Apache-2.0
#include "tests/cluster/fixture.h"

#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/check.h"
#include "base/coding.h"
#include "base/rng.h"
#include "base/uuid.h"

namespace hydra::cluster_test {

TestCluster::TestCluster(TestClusterOptions options, bool start) : options_(std::move(options)) {
  std::string id = ReadFile("/proc/sys/kernel/random/uuid");
  id.pop_back();
  cluster_id_ = id;
  WriteFile(path() + "/secret", "0123456789abcdef0123456789abcdef\n");
  for (uint32_t node = 1; node <= options_.nodes; ++node) {
    rpc_[node] = FreePort();
    http_[node] = FreePort();
    iscsi_[node] = FreePort();
  }
  if (!start) return;
  StartAll();
  if (!WaitHealthy()) {
    for (uint32_t node = 1; node <= options_.nodes; ++node) {
      ADD_FAILURE() << "node " << node << ":\n" << LogText(node);
    }
  }
}

TestCluster::~TestCluster() {
  processes_.clear();
  const auto* info = testing::UnitTest::GetInstance()->current_test_info();
  if (info == nullptr || !info->result()->Failed()) return;
  for (uint32_t node = 1; node <= options_.nodes; ++node) {
    const std::string text = LogText(node);
    const size_t from = text.size() > 3000 ? text.size() - 3000 : 0;
    std::cerr << "--- the end of node " << node << "'s log:\n" << text.substr(from);
  }
}

std::string TestCluster::dir(uint32_t node) const { return fmt::format("{}/node{}", path(), node); }
std::string TestCluster::log(uint32_t node) const { return dir(node) + ".log"; }
std::string TestCluster::address(uint32_t node) const {
  const auto advertised = advertised_.find(node);
  return fmt::format("127.0.0.1:{}",
                     advertised == advertised_.end() ? rpc_.at(node) : advertised->second);
}

std::vector<std::string> TestCluster::seeds() const {
  std::vector<std::string> seeds;
  for (const auto& [node, port] : rpc_) seeds.push_back(address(node));
  return seeds;
}

std::vector<std::string> TestCluster::Command(uint32_t node) const {
  std::vector<std::string> command = {BinaryDirectory() + "/hydrad",
                                      "--node",
                                      std::to_string(node),
                                      "--dir",
                                      dir(node),
                                      "--listen",
                                      fmt::format("127.0.0.1:{}", rpc_.at(node)),
                                      "--http",
                                      fmt::format("127.0.0.1:{}", http_.at(node)),
                                      "--cluster-id",
                                      cluster_id_,
                                      "--secret-file",
                                      path() + "/secret",
                                      "--segment-size",
                                      "16MiB"};
  for (const auto& [peer, port] : rpc_) {
    command.push_back("--peer");
    command.push_back(fmt::format("{}={}", peer, address(peer)));
  }
  if (!std::filesystem::exists(dir(node))) command.push_back("--bootstrap");
  if (options_.iscsi) {
    command.push_back("--iscsi");
    command.push_back(fmt::format("127.0.0.1:{}", iscsi_.at(node)));
  }
  command.insert(command.end(), options_.extra.begin(), options_.extra.end());
  const auto under = under_.find(node);
  if (under != under_.end()) {
    command.insert(command.begin(), under->second.begin(), under->second.end());
  }
  return command;
}

void TestCluster::Start(uint32_t node) { processes_[node] = Process(Command(node), log(node)); }

void TestCluster::StartAll() {
  for (uint32_t node = 1; node <= options_.nodes; ++node) Start(node);
}

int TestCluster::Stop(uint32_t node) {
  Process& process = processes_[node];
  process.Signal(SIGTERM);
  const std::optional<int> status = process.Wait(milliseconds(5'000));
  process.Kill();
  return status.value_or(-1);
}

void TestCluster::Kill(uint32_t node) { processes_[node].Kill(); }

bool TestCluster::Healthy(uint32_t node) { return Get(node, "/healthz").first == 200; }

bool TestCluster::WaitHealthy(milliseconds patience) {
  return Eventually(
      [&] {
        for (auto& [node, process] : processes_) {
          if (process.running() && !Healthy(node)) return false;
        }
        return true;
      },
      patience);
}

Cluster TestCluster::Connect(ClusterOptions options) const {
  Result<Cluster> cluster = Cluster::Connect(seeds(), std::move(options));
  HYDRA_CHECK(cluster.ok());
  return *cluster;
}

Volume TestCluster::MakeVolume(const std::string& name, uint64_t bytes, uint32_t shards) const {
  Cluster cluster = Connect();
  VolumeSpec spec;
  spec.name = name;
  spec.bytes = bytes;
  spec.shards = shards;
  const Status created = cluster.CreateVolume(spec);
  EXPECT_TRUE(created.ok()) << created.ToString();
  Result<Volume> volume = Volume::Open(cluster, name);
  HYDRA_CHECK(volume.ok());
  return *volume;
}

Volume TestCluster::OpenVolume(const std::string& name) const {
  Result<Volume> volume = Volume::Open(Connect(), name);
  HYDRA_CHECK(volume.ok());
  return *volume;
}

Outcome TestCluster::Ctl(std::vector<std::string> arguments, const std::string& input) const {
  arguments.insert(arguments.begin(), BinaryDirectory() + "/hydractl");
  arguments.push_back("--cluster");
  arguments.push_back(fmt::format("{}", fmt::join(seeds(), ",")));
  return RunCommand(arguments, input);
}

std::pair<int, std::string> TestCluster::Get(uint32_t node, const std::string& target) const {
  RawSocket socket(http_.at(node));
  if (!socket.connected()) return {0, ""};
  socket.Send(
      fmt::format("GET {} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", target));
  const std::string answer = socket.ReceiveAll(milliseconds(5'000));
  const size_t body = answer.find("\r\n\r\n");
  if (!answer.starts_with("HTTP/1.1 ") || body == std::string::npos) return {0, answer};
  return {std::atoi(answer.c_str() + 9), answer.substr(body + 4)};
}

// --- RawSocket ----------------------------------------------------------------------------------

RawSocket::RawSocket(uint16_t port) {
  number_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  if (connect(number_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) return;
  close(number_);
  number_ = -1;
}

RawSocket::~RawSocket() {
  if (number_ >= 0) close(number_);
}

bool RawSocket::Send(const std::string& bytes) {
  const timeval bound = {5, 0};
  setsockopt(number_, SOL_SOCKET, SO_SNDTIMEO, &bound, sizeof(bound));
  size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t wrote = send(number_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (wrote <= 0) return false;
    sent += static_cast<size_t>(wrote);
  }
  return true;
}

std::string RawSocket::ReceiveAll(milliseconds patience, bool* closed) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  std::string bytes;
  if (closed != nullptr) *closed = false;
  while (std::chrono::steady_clock::now() < deadline) {
    const timeval bound = {0, 50'000};
    setsockopt(number_, SOL_SOCKET, SO_RCVTIMEO, &bound, sizeof(bound));
    char buffer[1 << 16];
    const ssize_t got = recv(number_, buffer, sizeof(buffer), 0);
    if (got > 0) bytes.append(buffer, static_cast<size_t>(got));
    if (got == 0 || (got < 0 && errno == ECONNRESET)) {
      if (closed != nullptr) *closed = true;
      break;
    }
  }
  return bytes;
}

std::vector<uint8_t> Pattern(uint64_t offset, uint64_t version, size_t bytes) {
  std::vector<uint8_t> block(bytes);
  Rng rng(offset * 1'000'003 + version);
  for (size_t at = 0; at + 8 <= bytes; at += 8) EncodeFixed64(block.data() + at, rng.Next());
  return block;
}

}  // namespace hydra::cluster_test
