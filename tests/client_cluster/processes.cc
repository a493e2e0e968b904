// SPDX-License-Identifier: Apache-2.0
#include "tests/client_cluster/processes.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <random>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/check.h"

namespace hydra::test {
namespace {

namespace fs = std::filesystem;
using boost::asio::ip::tcp;

// Ports that nobody uses now, below those that the system gives to outgoing connections, which
// would take one while its node is down. All are held until the last is found, so that they differ.
std::vector<uint16_t> FreePorts(unsigned count) {
  boost::asio::io_context context;
  std::vector<tcp::acceptor> held;
  std::vector<uint16_t> ports;
  std::random_device random;
  while (ports.size() < count) {
    const auto port = static_cast<uint16_t>(10'000 + random() % 22'000);
    boost::system::error_code taken;
    tcp::acceptor acceptor(context);
    acceptor.open(tcp::v4());
    acceptor.bind(tcp::endpoint(boost::asio::ip::address_v4::loopback(), port), taken);
    if (taken) continue;
    held.push_back(std::move(acceptor));
    ports.push_back(port);
  }
  return ports;
}

// Starts a program with its output in a file; it dies with this process.
pid_t Spawn(const std::vector<std::string>& command, const std::string& output) {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const pid_t pid = fork();
  HYDRA_CHECK(pid >= 0);
  if (pid > 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int out = open(output.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  dup2(out, STDOUT_FILENO);
  dup2(out, STDERR_FILENO);
  execv(arguments[0], arguments.data());
  _exit(127);
}

}  // namespace

Processes::Processes(unsigned nodes) {
  std::string name = (fs::path(testing::TempDir()) / "hydra-cluster-XXXXXX").string();
  HYDRA_CHECK(mkdtemp(name.data()) != nullptr);
  dir_ = name;
  std::ofstream(dir_ / "secret") << "a secret of the tests alone";
  for (const uint16_t port : FreePorts(nodes)) {
    addresses_.push_back(fmt::format("127.0.0.1:{}", port));
  }
  pids_.resize(nodes, 0);
  formed_.resize(nodes, false);
  for (unsigned node = 1; node <= nodes; ++node) Start(node);
}

Processes::~Processes() {
  if (testing::Test::HasFailure()) {
    for (unsigned node = 1; node <= pids_.size(); ++node) {
      fmt::print("--- node {}\n{}\n", node, Log(node));
    }
  }
  for (unsigned node = 1; node <= pids_.size(); ++node) Kill(node);
  std::error_code ignored;
  fs::remove_all(dir_, ignored);
}

void Processes::Start(unsigned node) {
  const std::string own = (dir_ / fmt::format("node{}", node)).string();
  std::vector<std::string> command = {HYDRA_HYDRAD,
                                      "--node",
                                      std::to_string(node),
                                      "--dir",
                                      own,
                                      "--listen",
                                      addresses_[node - 1],
                                      "--cluster-id",
                                      "11111111-2222-4333-8444-555555555555",
                                      "--secret-file",
                                      (dir_ / "secret").string(),
                                      "--segment-size",
                                      "16MiB"};
  for (size_t i = 0; i < addresses_.size(); ++i) {
    command.insert(command.end(), {"--peer", fmt::format("{}={}", i + 1, addresses_[i])});
  }
  if (!formed_[node - 1]) command.emplace_back("--bootstrap");
  formed_[node - 1] = true;
  pids_[node - 1] = Spawn(command, own + ".log");
}

void Processes::Signal(unsigned node, int signal) const {
  if (pids_[node - 1] > 0) kill(pids_[node - 1], signal);
}

void Processes::Kill(unsigned node) {
  Signal(node, SIGKILL);
  if (pids_[node - 1] > 0) waitpid(pids_[node - 1], nullptr, 0);
  pids_[node - 1] = 0;
}

void Processes::Stop(unsigned node) {
  Signal(node, SIGTERM);
  if (pids_[node - 1] > 0) waitpid(pids_[node - 1], nullptr, 0);
  pids_[node - 1] = 0;
}

void Processes::Pause(unsigned node) {
  Signal(node, SIGSTOP);
  // Its threads work on until the last of them has heard of it.
  siginfo_t stopped{};
  const auto pid = static_cast<id_t>(pids_[node - 1]);
  HYDRA_CHECK(waitid(P_PID, pid, &stopped, WSTOPPED | WEXITED | WNOWAIT) == 0);
}
void Processes::Resume(unsigned node) { Signal(node, SIGCONT); }

std::string Processes::Log(unsigned node) const {
  std::ifstream file((dir_ / fmt::format("node{}.log", node)).string());
  std::string text{std::istreambuf_iterator<char>(file), {}};
  return text.size() > 2000 ? text.substr(text.size() - 2000) : text;
}

int Processes::Run(const std::vector<std::string>& command, std::string* out) {
  std::string name = (fs::path(testing::TempDir()) / "hydra-output-XXXXXX").string();
  const int file = mkstemp(name.data());
  HYDRA_CHECK(file >= 0);
  close(file);
  int status = 0;
  waitpid(Spawn(command, name), &status, 0);
  std::ifstream in(name);
  out->assign(std::istreambuf_iterator<char>(in), {});
  unlink(name.c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace hydra::test
