// SPDX-License-Identifier: Apache-2.0
//
// light-bench --iodepth N --runtime S --dir D [--json]: the baseline of light.h, as a peer that
// scripts/bench holds the native client's writes against.
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tests/bench/light.h"
#include "tests/support/command_line.h"

namespace hydra::light {
namespace {

constexpr unsigned kServers = 1 + kFollowers;

struct Options {
  unsigned depth = 1;
  double seconds = 5;
  std::string dir;
  bool json = false;
};

std::string LogPath(const Options& options, unsigned server) {
  return fmt::format("{}/light-{}.log", options.dir, server);
}

// A process that does `work`, with every descriptor it does not need closed by it.
pid_t Fork(const std::function<void()>& work) {
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) Stop("fork");
  if (child > 0) return child;
  // None is left behind if the client is killed.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) std::_Exit(1);
  work();
  std::_Exit(0);
}

// The three servers run; the client's end of its connection is left. A connection ends when its
// last copy is closed, so each process closes what is not its own.
struct Servers {
  Descriptor client;
  std::vector<pid_t> processes;
  ServerFigures* figures = nullptr;  // one for each, shared with them
};

Servers Start(const Options& options) {
  void* shared = mmap(nullptr, kServers * sizeof(ServerFigures), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) Stop("mmap");
  Servers servers;
  servers.figures = static_cast<ServerFigures*>(shared);
  std::uninitialized_value_construct_n(servers.figures, kServers);
  Connection client = MakeConnection();
  Descriptor followers[kFollowers];
  for (unsigned i = 0; i < kFollowers; ++i) {
    Connection connection = MakeConnection();
    servers.processes.push_back(Fork([&] {
      client = Connection();
      connection.caller.Close();
      for (Descriptor& other : followers) other.Close();
      RunFollower(connection.callee, LogPath(options, 1 + i), &servers.figures[1 + i]);
    }));
    followers[i] = std::move(connection.caller);
  }
  servers.processes.push_back(Fork([&] {
    client.caller.Close();
    RunLeader(client.callee, followers, LogPath(options, 0), &servers.figures[0]);
  }));
  servers.client = std::move(client.caller);
  return servers;
}

void Await(const std::vector<pid_t>& processes) {
  for (const pid_t process : processes) {
    int status = 0;
    if (waitpid(process, &status, 0) != process || status != 0) Stop("a server failed");
  }
}

double Quantile(const std::vector<float>& sorted, double q) {
  return sorted.empty() ? 0
                        : sorted[static_cast<size_t>(q * static_cast<double>(sorted.size() - 1))];
}

void Report(const Options& options, const ServerFigures* servers, ClientFigures client) {
  std::sort(client.latency_us.begin(), client.latency_us.end());
  const auto operations = static_cast<double>(client.latency_us.size());
  const double iops = operations / client.seconds;
  const double p50 = Quantile(client.latency_us, 0.5);
  const double p99 = Quantile(client.latency_us, 0.99);
  const double batch = static_cast<double>(servers[0].blocks) /
                       static_cast<double>(std::max<uint64_t>(1, servers[0].batches));
  double cpu = 0;
  double device = 0;
  for (unsigned i = 0; i < kServers; ++i) {
    cpu += servers[i].cpu_seconds;
    device += static_cast<double>(servers[i].device_bytes);
  }
  const double payload = std::max(1.0, operations) * kBlockBytes;
  if (!options.json) {
    fmt::print(
        "light, iodepth={}: {:.0f} IOPS, p50 {:.0f} us, p99 {:.0f} us, {:.1f} blocks per batch\n",
        options.depth, iops, p50, p99, batch);
    return;
  }
  const nlohmann::json json = {
      {"rw", "randwrite"},
      {"bs", kBlockBytes},
      {"iodepth", options.depth},
      {"iops", iops},
      {"p50_us", p50},
      {"p90_us", Quantile(client.latency_us, 0.9)},
      {"p99_us", p99},
      {"p999_us", Quantile(client.latency_us, 0.999)},
      {"blocks_per_batch", batch},
      {"server_cpu_us_per_operation", cpu * 1e6 / std::max(1.0, operations)},
      {"client_cpu_us_per_operation", client.cpu_seconds * 1e6 / std::max(1.0, operations)},
      {"device_bytes_per_payload_byte", device / payload / kServers},
      {"seconds", client.seconds}};
  fmt::print("{}\n", json.dump());
}

int Run(const Options& options) {
  Servers servers = Start(options);
  ClientFigures client = RunClient(servers.client, options.depth, options.seconds);
  servers.client.Close();
  Await(servers.processes);
  for (unsigned i = 0; i < kServers; ++i) unlink(LogPath(options, i).c_str());
  Report(options, servers.figures, std::move(client));
  return 0;
}

}  // namespace
}  // namespace hydra::light

int main(int argc, char** argv) {
  hydra::light::Options options;
  hydra::test::CommandLine line("Measures three durable copies of 4 KiB writes, and nothing else.");
  line.Add("--iodepth", &options.depth, "writes under way").Between(1, hydra::light::kMaxDepth);
  line.Add("--runtime", &options.seconds, "seconds").BetweenReals(0.1, 600.0);
  line.Add("--dir", &options.dir, "where the three logs of 256 MiB go")
      .Required()
      .ExistingDirectory();
  line.Add("--json", &options.json);
  if (const std::optional<int> status = line.Parse(argc, argv)) return *status;
  return hydra::light::Run(options);
}
