// SPDX-License-Identifier: Apache-2.0
#include "tests/cluster/process.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/check.h"

namespace hydra::cluster_test {
namespace {

using std::chrono::steady_clock;

std::vector<char*> Arguments(const std::vector<std::string>& command) {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  return arguments;
}

// In the child, between fork and exec.
[[noreturn]] void Become(char* const* arguments, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);
  signal(SIGPIPE, SIG_DFL);
  execv(arguments[0], arguments);
  _exit(127);
}

int StatusOf(int wait_status) {
  return WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 128 + WTERMSIG(wait_status);
}

}  // namespace

std::string BinaryDirectory() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path().string();
}

// The socket stays bound, so that the kernel gives its port to no other test and to no outgoing
// connection; that it may be shared is said afterwards, so that hydrad can listen there.
uint16_t FreePort() {
  const int holder = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  HYDRA_CHECK(holder >= 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  HYDRA_CHECK(bind(holder, reinterpret_cast<sockaddr*>(&address), length) == 0);
  HYDRA_CHECK(getsockname(holder, reinterpret_cast<sockaddr*>(&address), &length) == 0);
  const int yes = 1;
  HYDRA_CHECK(setsockopt(holder, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) == 0);
  return ntohs(address.sin_port);
}

// --- Process ------------------------------------------------------------------------------------

Process::Process(const std::vector<std::string>& command, const std::string& log) {
  const std::vector<char*> arguments = Arguments(command);
  const int out = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  HYDRA_CHECK(out >= 0);
  const pid_t parent = getpid();
  pid_ = fork();
  HYDRA_CHECK(pid_ >= 0);
  if (pid_ == 0) {
    const int in = open("/dev/null", O_RDONLY);
    dup2(in, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    dup2(out, STDERR_FILENO);
    Become(arguments.data(), parent);
  }
  close(out);
}

Process::~Process() { Kill(); }

Process::Process(Process&& other) noexcept : pid_(other.pid_), status_(other.status_) {
  other.pid_ = 0;
}

Process& Process::operator=(Process&& other) noexcept {
  if (this == &other) return *this;
  Kill();
  pid_ = other.pid_;
  status_ = other.status_;
  other.pid_ = 0;
  return *this;
}

bool Process::running() { return pid_ != 0 && !Wait(milliseconds(0)).has_value(); }

void Process::Signal(int signal) {
  if (!running()) return;
  kill(pid_, signal);
  if (signal != SIGSTOP) return;
  // One thread takes the signal and tells the others: on a busy machine they work on for a while.
  siginfo_t stopped{};
  HYDRA_CHECK(waitid(P_PID, static_cast<id_t>(pid_), &stopped, WSTOPPED | WEXITED | WNOWAIT) == 0);
}

std::optional<int> Process::Wait(milliseconds patience) {
  if (pid_ == 0 || status_) return status_;
  const auto deadline = steady_clock::now() + patience;
  while (true) {
    int status = 0;
    const pid_t ended = waitpid(pid_, &status, WNOHANG);
    if (ended == pid_) return status_ = StatusOf(status);
    if (steady_clock::now() >= deadline) return std::nullopt;
    std::this_thread::sleep_for(milliseconds(2));
  }
}

void Process::Kill() {
  if (pid_ == 0 || status_) return;
  kill(pid_, SIGKILL);
  Wait(milliseconds(60'000));
}

// --- Commands -----------------------------------------------------------------------------------

namespace {

struct Pipe {
  int read = -1;
  int write = -1;
  Pipe() {
    int ends[2];
    HYDRA_CHECK(pipe2(ends, O_CLOEXEC) == 0);
    read = ends[0];
    write = ends[1];
  }
  ~Pipe() {
    CloseRead();
    CloseWrite();
  }
  void CloseRead() {
    if (read >= 0) close(read);
    read = -1;
  }
  void CloseWrite() {
    if (write >= 0) close(write);
    write = -1;
  }
};

// Moves bytes between the pipes and the texts until the child closed both of its outputs.
bool Converse(const std::string& input, steady_clock::time_point deadline, Pipe* in, Pipe* out,
              Pipe* err, Outcome* outcome) {
  size_t sent = 0;
  fcntl(in->write, F_SETFL, O_NONBLOCK);
  while (out->read >= 0 || err->read >= 0) {
    if (sent == input.size()) in->CloseWrite();
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - steady_clock::now());
    if (left.count() <= 0) return false;
    pollfd polled[3] = {{in->write, POLLOUT, 0}, {out->read, POLLIN, 0}, {err->read, POLLIN, 0}};
    poll(polled, 3, static_cast<int>(left.count()));
    if (polled[0].revents != 0) {
      const ssize_t wrote = write(in->write, input.data() + sent, input.size() - sent);
      if (wrote > 0) sent += static_cast<size_t>(wrote);
      if (wrote < 0 && errno != EAGAIN) sent = input.size();  // it does not want more
    }
    for (Pipe* from : {out, err}) {
      if (polled[from == out ? 1 : 2].revents == 0) continue;
      char buffer[1 << 16];
      const ssize_t got = read(from->read, buffer, sizeof(buffer));
      if (got > 0) (from == out ? outcome->out : outcome->err).append(buffer, size_t(got));
      if (got <= 0) from->CloseRead();
    }
  }
  return true;
}

}  // namespace

Outcome RunCommand(const std::vector<std::string>& command, const std::string& input,
                   milliseconds patience) {
  signal(SIGPIPE, SIG_IGN);
  const auto deadline = steady_clock::now() + patience;
  const std::vector<char*> arguments = Arguments(command);
  Pipe in;
  Pipe out;
  Pipe err;
  const pid_t parent = getpid();
  const pid_t child = fork();
  HYDRA_CHECK(child >= 0);
  if (child == 0) {
    dup2(in.read, STDIN_FILENO);
    dup2(out.write, STDOUT_FILENO);
    dup2(err.write, STDERR_FILENO);
    Become(arguments.data(), parent);
  }
  in.CloseRead();
  out.CloseWrite();
  err.CloseWrite();
  Outcome outcome;
  const bool ended = Converse(input, deadline, &in, &out, &err, &outcome);
  if (!ended) kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  if (ended) outcome.code = StatusOf(status);
  return outcome;
}

// --- Files --------------------------------------------------------------------------------------

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

void WriteFile(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

TemporaryDirectory::TemporaryDirectory() {
  path_ = (std::filesystem::temp_directory_path() / "hydra-cluster-XXXXXX").string();
  HYDRA_CHECK(mkdtemp(path_.data()) != nullptr);
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace hydra::cluster_test
