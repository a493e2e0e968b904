// SPDX-License-Identifier: Apache-2.0
//
// Child processes of a test: started, watched and ended by pid, and never left behind.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace hydra::cluster_test {

using std::chrono::milliseconds;

// The folder of this test's binary: hydrad and hydractl are beside it.
std::string BinaryDirectory();

// A port of the loopback address that is kept for children of this process, until it ends.
uint16_t FreePort();

class Process {
 public:
  Process() = default;
  // Standard output and error go to the end of `log`. The child is killed when this process dies.
  Process(const std::vector<std::string>& command, const std::string& log);
  ~Process();
  Process(Process&& other) noexcept;
  Process& operator=(Process&& other) noexcept;

  bool running();
  pid_t pid() const { return pid_; }
  void Signal(int signal);
  // Its exit status (128 + signal where a signal ended it); nothing if it still runs after that
  // time.
  std::optional<int> Wait(milliseconds patience);
  void Kill();  // kill -9, and waits

 private:
  pid_t pid_ = 0;
  std::optional<int> status_;
};

struct Outcome {
  int code = -1;
  std::string out;
  std::string err;
};

// Runs a command to its end with `input` as its standard input, and kills it when that takes longer
// than `patience` (then the code is -1).
Outcome RunCommand(const std::vector<std::string>& command, const std::string& input = "",
                   milliseconds patience = milliseconds(60'000));

std::string ReadFile(const std::string& path);
void WriteFile(const std::string& path, const std::string& text);

// A directory that is gone with the object.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Tries `condition` until it holds, for at most that long.
template <typename Condition>
bool Eventually(Condition condition, milliseconds patience = milliseconds(15'000)) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(milliseconds(20));
  }
  return true;
}

}  // namespace hydra::cluster_test
