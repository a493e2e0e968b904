// SPDX-License-Identifier: Apache-2.0
//
// What store-bench asks of the machine: counters of this process, page cache, disk use, child
// processes, a scratch directory. Linux only.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/status.h"

namespace hydra::bench {

inline constexpr uint64_t kKiB = 1024;
inline constexpr uint64_t kMiB = 1024 * kKiB;
inline constexpr uint64_t kGiB = 1024 * kMiB;

// /proc/self/io. `write_bytes` counts a direct write when it is submitted and a buffered one when
// it dirties a page, whether or not the page ever reaches the disk (`cancelled_write_bytes` are
// those that did not). The file system's journal is written by the kernel and is not in here.
// Children are added when they are waited for, so none may end between two looks.
struct IoCounters {
  uint64_t read_bytes = 0;
  uint64_t write_bytes = 0;
  uint64_t cancelled_write_bytes = 0;
};
IoCounters operator-(const IoCounters& a, const IoCounters& b);
Result<IoCounters> SelfIo();

// /proc/self/status, in bytes. VmRSS contains the mapped binary and libraries; RssAnon is heap and
// stacks; VmHWM is the highest VmRSS so far. The page cache is in none of them.
struct MemoryUse {
  uint64_t vm_rss = 0;
  uint64_t rss_anon = 0;
  uint64_t vm_hwm = 0;
};
Result<MemoryUse> SelfMemory();

// The share of the last ten seconds, in percent, in which some task waited for a processor
// (/proc/pressure/cpu); negative if the kernel does not say. Figures about latency mean little when
// others use the machine.
double CpuPressure();

// Syncs every file below `dir` and drops its pages from the page cache.
Status DropCaches(const std::string& dir);
// How much of the files below `dir` is in the page cache now.
Result<uint64_t> CachedBytes(const std::string& dir);
// What the contents of the files below `dir` take on disk: holes do not count, nor does the file
// system's bookkeeping, nor do files that vanish meanwhile.
uint64_t DiskUsage(const std::string& dir);

// Runs a program to its end and returns its standard output; its errors go to ours. Fails unless
// it exits with 0.
Result<std::string> RunChild(const std::vector<std::string>& arguments);

// Makes `path` a file of `bytes` bytes, each of them written and synced, of incompressible data.
Status LayOutFile(const std::string& path, uint64_t bytes);

// A fresh directory below `parent` that goes away, with all contents, at the end.
class ScratchDirectory {
 public:
  static Result<ScratchDirectory> Make(const std::string& parent);
  ScratchDirectory(ScratchDirectory&& other) noexcept : path_(std::exchange(other.path_, "")) {}
  ScratchDirectory& operator=(ScratchDirectory&&) = delete;
  ~ScratchDirectory();

  const std::string& path() const { return path_; }

 private:
  explicit ScratchDirectory(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

// Removes a file or a directory with its contents; a missing one is fine.
void RemoveAll(const std::string& path);

// Interrupt and termination signals are noted instead of ending the process, so that the scratch
// directory is removed. Long loops ask CheckInterrupted().
void CatchSignals();
Status CheckInterrupted();

// A line on stderr with the time since the start.
void ProgressLine(const std::string& line);
template <typename... Args>
void Progress(fmt::format_string<Args...> format, Args&&... args) {
  ProgressLine(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace hydra::bench
