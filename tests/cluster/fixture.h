// SPDX-License-Identifier: Apache-2.0
//
// A cluster of real hydrad processes on loopback, in a temporary directory, for one test.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "client/hydra.h"
#include "tests/cluster/process.h"

namespace hydra::cluster_test {

inline constexpr uint64_t kKiB = 1024;
inline constexpr uint64_t kMiB = 1024 * kKiB;
// What a cluster is given to get well again, on a busy machine.
inline constexpr std::chrono::milliseconds kPatience(30'000);

struct TestClusterOptions {
  uint32_t nodes = 3;
  std::vector<std::string> extra;  // arguments of every hydrad
  bool iscsi = false;              // portals
};

inline TestClusterOptions WithPortals(std::vector<std::string> extra = {}) {
  TestClusterOptions options;
  options.extra = std::move(extra);
  options.iscsi = true;
  return options;
}

class TestCluster {
 public:
  // Starts all nodes and waits until they serve, unless `start` is false.
  explicit TestCluster(TestClusterOptions options = {}, bool start = true);
  ~TestCluster();

  uint32_t nodes() const { return options_.nodes; }
  void Start(uint32_t node);
  void StartAll();
  // SIGTERM; its exit status, -1 if it took longer than 5 s (then it is killed).
  int Stop(uint32_t node);
  void Kill(uint32_t node);
  Process& process(uint32_t node) { return processes_[node]; }
  // Until each node that runs is healthy. False: not in that time.
  bool WaitHealthy(milliseconds patience = milliseconds(20'000));
  bool Healthy(uint32_t node);

  std::string dir(uint32_t node) const;
  std::string log(uint32_t node) const;
  std::string LogText(uint32_t node) const { return ReadFile(log(node)); }
  std::string address(uint32_t node) const;  // where others call it
  uint16_t rpc_port(uint32_t node) const { return rpc_.at(node); }
  uint16_t http_port(uint32_t node) const { return http_.at(node); }
  uint16_t iscsi_port(uint32_t node) const { return iscsi_.at(node); }
  std::vector<std::string> seeds() const;
  const std::string& path() const { return directory_.path(); }

  // Others call this node at that port instead of its own: a proxy's. Before the first start.
  void Advertise(uint32_t node, uint16_t port) { advertised_[node] = port; }
  // Words before the command line of this node, such as env and its variables. Before the first
  // start.
  void RunUnder(uint32_t node, std::vector<std::string> words) { under_[node] = std::move(words); }

  // The command line that Start uses, to be changed and started by hand.
  std::vector<std::string> Command(uint32_t node) const;

  // A client; the test ends if there is none.
  Cluster Connect(ClusterOptions options = {}) const;
  Volume MakeVolume(const std::string& name, uint64_t bytes, uint32_t shards = 4) const;
  Volume OpenVolume(const std::string& name) const;

  // hydractl of this build, on this cluster.
  Outcome Ctl(std::vector<std::string> arguments, const std::string& input = "") const;

  // GET over HTTP: status and body. Status 0: no answer.
  std::pair<int, std::string> Get(uint32_t node, const std::string& target) const;

 private:
  const TestClusterOptions options_;
  TemporaryDirectory directory_;
  std::string cluster_id_;
  std::map<uint32_t, uint16_t> rpc_;
  std::map<uint32_t, uint16_t> http_;
  std::map<uint32_t, uint16_t> iscsi_;
  std::map<uint32_t, uint16_t> advertised_;
  std::map<uint32_t, std::vector<std::string>> under_;
  std::map<uint32_t, Process> processes_;
};

// A socket to 127.0.0.1, blocking with a bound on each read and write; -1 if nobody listens.
class RawSocket {
 public:
  explicit RawSocket(uint16_t port);
  ~RawSocket();
  RawSocket(const RawSocket&) = delete;
  RawSocket& operator=(const RawSocket&) = delete;

  bool connected() const { return number_ >= 0; }
  int number() const { return number_; }
  bool Send(const std::string& bytes);
  // Whatever comes until the other side closes or that time is up.
  std::string ReceiveAll(milliseconds patience, bool* closed = nullptr);

 private:
  int number_ = -1;
};

// Blocks that say what they are: the content of one block as write `version` leaves it.
std::vector<uint8_t> Pattern(uint64_t offset, uint64_t version, size_t bytes);

}  // namespace hydra::cluster_test
