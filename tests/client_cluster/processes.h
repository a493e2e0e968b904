// SPDX-License-Identifier: Apache-2.0
//
// Three real hydrad processes on loopback, in a directory of their own, gone with the object.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace hydra::test {

class Processes {
 public:
  explicit Processes(unsigned nodes = 3);
  ~Processes();  // kills what it started

  std::vector<std::string> addresses() const { return addresses_; }

  void Start(unsigned node);  // from 1
  void Kill(unsigned node);   // kill -9
  void Stop(unsigned node);   // SIGTERM, waits
  void Pause(unsigned node);
  void Resume(unsigned node);
  std::string Log(unsigned node) const;  // its end

  // Runs a program to its end; returns its exit status, and what it printed.
  static int Run(const std::vector<std::string>& command, std::string* out);

 private:
  void Signal(unsigned node, int signal) const;

  std::filesystem::path dir_;
  std::vector<std::string> addresses_;
  std::vector<pid_t> pids_;
  std::vector<bool> formed_;
};

}  // namespace hydra::test
