// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/store_bench_system.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <system_error>

#include "base/buffer.h"
#include "base/clock.h"
#include "base/posix_file.h"
#include "base/rng.h"

extern char** environ;

namespace hydra::bench {

namespace {

volatile sig_atomic_t interrupted = 0;

Status FromErrno(const std::string& what) {
  return Status::IoError(what + ": " + std::generic_category().message(errno));
}

// Lines "Name: number [unit]" of a file of /proc.
Result<std::map<std::string, uint64_t>> ReadProc(const std::string& path) {
  std::ifstream in(path);
  if (!in) return Status::IoError("cannot read " + path);
  std::map<std::string, uint64_t> values;
  std::string line;
  while (std::getline(in, line)) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    values[line.substr(0, colon)] = std::strtoull(line.c_str() + colon + 1, nullptr, 10);
  }
  return values;
}

// A descriptor for reading that closes itself; -1 if the file is gone.
class ReadDescriptor {
 public:
  explicit ReadDescriptor(const std::string& path)
      : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
  ~ReadDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  ReadDescriptor(const ReadDescriptor&) = delete;
  ReadDescriptor& operator=(const ReadDescriptor&) = delete;
  int get() const { return fd_; }

 private:
  const int fd_;
};

// Calls `visit` for each regular file below `dir`; files may come and go meanwhile.
void ForEachFile(const std::string& dir, const std::function<void(const std::string&)>& visit) {
  std::error_code error;
  std::filesystem::recursive_directory_iterator it(dir, error);
  const std::filesystem::recursive_directory_iterator end;
  while (!error && it != end) {
    std::error_code ignored;
    if (it->is_regular_file(ignored)) visit(it->path().string());
    it.increment(error);
  }
}

uint64_t CachedBytesOfFile(int fd, uint64_t size) {
  if (size == 0) return 0;
  void* const map = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  if (map == MAP_FAILED) return 0;
  std::vector<unsigned char> resident((size + kPageSize - 1) / kPageSize);
  uint64_t pages = 0;
  if (::mincore(map, size, resident.data()) == 0) {
    for (const unsigned char r : resident) pages += r & 1;
  }
  ::munmap(map, size);
  return pages * kPageSize;
}

Result<std::string> ReadToEnd(int fd) {
  std::string text;
  char chunk[4096];
  for (;;) {
    const ssize_t n = ::read(fd, chunk, sizeof chunk);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return FromErrno("read from child");
    if (n == 0) return text;
    text.append(chunk, static_cast<size_t>(n));
  }
}

}  // namespace

IoCounters operator-(const IoCounters& a, const IoCounters& b) {
  return {a.read_bytes - b.read_bytes, a.write_bytes - b.write_bytes,
          a.cancelled_write_bytes - b.cancelled_write_bytes};
}

Result<IoCounters> SelfIo() {
  HYDRA_ASSIGN_OR_RETURN(auto values, ReadProc("/proc/self/io"));
  return IoCounters{values["read_bytes"], values["write_bytes"], values["cancelled_write_bytes"]};
}

Result<MemoryUse> SelfMemory() {
  HYDRA_ASSIGN_OR_RETURN(auto values, ReadProc("/proc/self/status"));
  return MemoryUse{values["VmRSS"] * kKiB, values["RssAnon"] * kKiB, values["VmHWM"] * kKiB};
}

double CpuPressure() {
  std::ifstream in("/proc/pressure/cpu");
  std::string word;
  while (in >> word) {
    if (word.starts_with("avg10=")) return std::strtod(word.c_str() + 6, nullptr);
  }
  return -1;
}

Status DropCaches(const std::string& dir) {
  Status result;
  ForEachFile(dir, [&](const std::string& path) {
    const ReadDescriptor fd(path);
    if (fd.get() < 0) return;
    // Dirty pages cannot be dropped.
    if (::fdatasync(fd.get()) != 0 && result.ok()) result = FromErrno("fdatasync " + path);
    ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
  });
  return result;
}

Result<uint64_t> CachedBytes(const std::string& dir) {
  uint64_t bytes = 0;
  ForEachFile(dir, [&](const std::string& path) {
    const ReadDescriptor fd(path);
    struct stat info;
    if (fd.get() < 0 || ::fstat(fd.get(), &info) != 0) return;
    bytes += CachedBytesOfFile(fd.get(), static_cast<uint64_t>(info.st_size));
  });
  return bytes;
}

uint64_t DiskUsage(const std::string& dir) {
  uint64_t bytes = 0;
  ForEachFile(dir, [&](const std::string& path) {
    struct stat info;
    if (::stat(path.c_str(), &info) != 0) return;
    // A file's blocks include those of the file system's own bookkeeping.
    bytes += std::min<uint64_t>(static_cast<uint64_t>(info.st_blocks) * 512,
                                static_cast<uint64_t>(info.st_size));
  });
  return bytes;
}

Result<std::string> RunChild(const std::vector<std::string>& arguments) {
  std::vector<char*> argv;
  argv.reserve(arguments.size() + 1);
  for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);

  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return FromErrno("pipe");
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  pid_t child = 0;
  const int spawned = ::posix_spawnp(&child, argv[0], &actions, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  if (spawned != 0) {
    ::close(ends[0]);
    return Status::IoError("cannot run " + arguments[0] + ": " +
                           std::generic_category().message(spawned));
  }
  Result<std::string> output = ReadToEnd(ends[0]);
  ::close(ends[0]);
  int how = 0;
  while (::waitpid(child, &how, 0) < 0 && errno == EINTR) {
  }
  HYDRA_RETURN_IF_ERROR(CheckInterrupted());
  if (!WIFEXITED(how) || WEXITSTATUS(how) != 0) {
    return Status::IoError(fmt::format("{} failed (wait status {})", arguments[0], how));
  }
  return output;
}

Status LayOutFile(const std::string& path, uint64_t bytes) {
  PosixFileSystem fs;
  OpenOptions options;
  options.create = true;
  options.direct = true;
  HYDRA_ASSIGN_OR_RETURN(auto file, fs.Open(path, options));
  const Buffer chunk = Buffer::Allocate(kMiB);
  Rng rng(bytes);
  for (size_t i = 0; i < chunk.size(); i += 8) {
    const uint64_t word = rng.Next();
    std::memcpy(chunk.data() + i, &word, 8);
  }
  for (uint64_t at = 0; at < bytes; at += chunk.size()) {
    HYDRA_RETURN_IF_ERROR(CheckInterrupted());
    const IoSlice slice{chunk.data(), std::min<uint64_t>(chunk.size(), bytes - at)};
    HYDRA_RETURN_IF_ERROR(file->PWriteV(at, {&slice, 1}, Durability::kBuffered));
  }
  return file->Sync();
}

Result<ScratchDirectory> ScratchDirectory::Make(const std::string& parent) {
  std::string path = parent + "/store-bench.XXXXXX";
  if (::mkdtemp(path.data()) == nullptr) return FromErrno("mkdtemp " + path);
  return ScratchDirectory(path);
}

ScratchDirectory::~ScratchDirectory() {
  if (!path_.empty()) RemoveAll(path_);
}

void RemoveAll(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  if (error) Progress("cannot remove {}: {}", path, error.message());
}

void CatchSignals() {
  struct sigaction action = {};
  action.sa_handler = [](int) { interrupted = 1; };
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
}

Status CheckInterrupted() {
  if (interrupted != 0) return Status(Code::kAborted, "interrupted");
  return Status::Ok();
}

void ProgressLine(const std::string& line) {
  static const Nanos start = RealClock().Now();
  const double seconds = static_cast<double>(RealClock().Now() - start) / kSecond;
  fmt::print(stderr, "[{:7.1f} s] {}\n", seconds, line);
}

}  // namespace hydra::bench
