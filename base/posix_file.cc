// SPDX-License-Identifier: Apache-2.0
#include "base/posix_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <set>
#include <system_error>
#include <utility>

#include "base/buffer.h"
#include "base/check.h"
#include "base/logging.h"

namespace hydra {

namespace {

constexpr mode_t kFileMode = 0640;
constexpr mode_t kDirectoryMode = 0750;

Status FromErrno(const char* call, const std::string& path, int error) {
  std::string message =
      std::string(call) + " " + path + ": " + std::generic_category().message(error);
  switch (error) {
    case ENOENT: return Status::NotFound(std::move(message));
    case EEXIST: return Status::AlreadyExists(std::move(message));
    case ENOSPC:
    case EDQUOT: return Status::NoSpace(std::move(message));
    case EROFS:
      return Status::FailedPrecondition(
          message + " (mounted read-only: look for earlier disk errors in the kernel log)");
    case EACCES:
    case EPERM:
      return Status::FailedPrecondition(message +
                                        " (does the user that runs this process own the path?)");
    case ENOTEMPTY: return Status::FailedPrecondition(std::move(message));
    default: return Status::IoError(std::move(message));
  }
}

template <typename Call>
auto RetryInterrupted(Call call) {
  decltype(call()) result;
  do {
    result = call();
  } while (result == -1 && errno == EINTR);
  return result;
}

Status CheckCall(int result, const char* call, const std::string& path) {
  return result == 0 ? Status::Ok() : FromErrno(call, path, errno);
}

// Closes on destruction. Errors of close() are not looked at: what had to be durable was synced.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

Result<Descriptor> OpenDescriptor(const std::string& path, int flags) {
  const int fd =
      RetryInterrupted([&] { return ::open(path.c_str(), flags | O_CLOEXEC, kFileMode); });
  if (fd < 0) return FromErrno("open", path, errno);
  return Descriptor(fd);
}

void WarnOnceWithoutDirect(int fd, const std::string& path) {
  static std::mutex mutex;
  static std::set<dev_t>* const warned = new std::set<dev_t>;  // guarded by mutex; never destroyed
  struct stat info;
  if (::fstat(fd, &info) != 0) return;
  {
    std::lock_guard<std::mutex> lock(mutex);
    if (!warned->insert(info.st_dev).second) return;
  }
  HYDRA_LOG_WARN(
      "the file system of {} refuses O_DIRECT: it is used through the page cache, as durable but "
      "with one more copy of every byte and memory taken from other caches",
      path);
}

// Where slices stand in a write that may go out in several calls.
class SliceCursor {
 public:
  explicit SliceCursor(std::span<const IoSlice> slices) : slices_(slices) { SkipEmpty(); }

  bool done() const { return next_ == slices_.size(); }

  int Fill(iovec* out, int max) const {
    int n = 0;
    size_t skip = consumed_;
    for (size_t i = next_; i < slices_.size() && n < max; ++i) {
      if (slices_[i].length == skip) continue;
      out[n++] = {const_cast<uint8_t*>(slices_[i].data) + skip, slices_[i].length - skip};
      skip = 0;
    }
    return n;
  }

  void Advance(size_t bytes) {
    consumed_ += bytes;
    SkipEmpty();
  }

 private:
  void SkipEmpty() {
    while (next_ < slices_.size() && consumed_ >= slices_[next_].length) {
      consumed_ -= slices_[next_++].length;
    }
    HYDRA_CHECK(next_ < slices_.size() || consumed_ == 0);
  }

  std::span<const IoSlice> slices_;
  size_t next_ = 0;
  size_t consumed_ = 0;  // of slices_[next_]
};

thread_local unsigned no_wait_reads = 0;

class PosixFile final : public File {
 public:
  PosixFile(Descriptor fd, std::string path, bool direct)
      : fd_(std::move(fd)), path_(std::move(path)), direct_(direct) {}

  Result<size_t> PRead(uint64_t offset, std::span<uint8_t> out) override {
    size_t done = 0;
    while (done < out.size()) {
      const ssize_t n = NoWaitReads::on() ? ReadNow(offset + done, out.subspan(done))
                                          : Read(offset + done, out.subspan(done));
      if (n < 0 && errno == EAGAIN) return Status::Busy("not in memory");
      if (n < 0) return FromErrno("pread", path_, errno);
      done += static_cast<size_t>(n);
      // A direct read of a partial page is the end of the file; going on from there would be
      // unaligned.
      if (n == 0 || (direct_ && n % kPageSize != 0)) break;
    }
    return done;
  }

  ssize_t Read(uint64_t offset, std::span<uint8_t> out) const {
    return RetryInterrupted(
        [&] { return ::pread(fd_.get(), out.data(), out.size(), static_cast<off_t>(offset)); });
  }
  // File systems that cannot tell whether they would wait count as waiting.
  ssize_t ReadNow(uint64_t offset, std::span<uint8_t> out) const {
    if (direct_) {
      errno = EAGAIN;
      return -1;
    }
    const iovec vector{out.data(), out.size()};
    const ssize_t n = RetryInterrupted(
        [&] { return ::preadv2(fd_.get(), &vector, 1, static_cast<off_t>(offset), RWF_NOWAIT); });
    if (n < 0 && errno == EOPNOTSUPP) errno = EAGAIN;
    return n;
  }

  // Every call carries RWF_DSYNC: of a write that takes several, each part is durable by itself.
  // Batches fit one call, so nothing is saved by syncing only the last.
  Status PWriteV(uint64_t offset, std::span<const IoSlice> slices, Durability durability) override {
    const int flags = durability == Durability::kDsync ? RWF_DSYNC : 0;
    SliceCursor cursor(slices);
    iovec vectors[IOV_MAX];
    while (!cursor.done()) {
      const int count = cursor.Fill(vectors, IOV_MAX);
      const ssize_t n = RetryInterrupted(
          [&] { return ::pwritev2(fd_.get(), vectors, count, static_cast<off_t>(offset), flags); });
      if (n < 0) return FromErrno("pwritev2", path_, errno);
      if (n == 0) return Status::IoError("pwritev2 " + path_ + ": nothing was written");
      offset += static_cast<uint64_t>(n);
      cursor.Advance(static_cast<size_t>(n));
    }
    return Status::Ok();
  }

  Status Sync() override { return CheckCall(::fdatasync(fd_.get()), "fdatasync", path_); }

  // The length stays: what is read there must not change, not even from "end of file" to zeroes.
  Status Allocate(uint64_t length) override {
    if (length == 0) return Status::Ok();
    const int result = RetryInterrupted(
        [&] { return ::fallocate(fd_.get(), FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(length)); });
    return CheckCall(result, "fallocate", path_);
  }

  Status Truncate(uint64_t length) override {
    const int result =
        RetryInterrupted([&] { return ::ftruncate(fd_.get(), static_cast<off_t>(length)); });
    return CheckCall(result, "ftruncate", path_);
  }

  Result<uint64_t> Size() override {
    struct stat info;
    if (::fstat(fd_.get(), &info) != 0) return FromErrno("fstat", path_, errno);
    return static_cast<uint64_t>(info.st_size);
  }

  void WillRead(uint64_t offset, uint64_t length) override {
    if (direct_) return;
    ::posix_fadvise(fd_.get(), static_cast<off_t>(offset), static_cast<off_t>(length),
                    POSIX_FADV_WILLNEED);
  }

  void StartWriting(uint64_t offset, uint64_t length) override {
    if (direct_ || length == 0) return;
    ::sync_file_range(fd_.get(), static_cast<off64_t>(offset), static_cast<off64_t>(length),
                      SYNC_FILE_RANGE_WRITE);
  }

  void DropCache() override { ::posix_fadvise(fd_.get(), 0, 0, POSIX_FADV_DONTNEED); }

 private:
  const Descriptor fd_;
  const std::string path_;
  const bool direct_;
};

// flock() belongs to the open description, so a second Lock() of the same process is refused too.
class PosixFileLock final : public FileLock {
 public:
  explicit PosixFileLock(Descriptor fd) : fd_(std::move(fd)) {}

 private:
  const Descriptor fd_;
};

}  // namespace

NoWaitReads::NoWaitReads() { ++no_wait_reads; }
NoWaitReads::~NoWaitReads() { --no_wait_reads; }
bool NoWaitReads::on() { return no_wait_reads > 0; }

Result<std::unique_ptr<File>> PosixFileSystem::Open(const std::string& path,
                                                    const OpenOptions& options) {
  if (options.read_only && options.truncate) {
    return Status::InvalidArgument("open " + path + ": truncating needs write access");
  }
  int flags = options.read_only ? O_RDONLY : O_RDWR;
  if (options.create) flags |= O_CREAT;
  if (options.create && options.exclusive) flags |= O_EXCL;
  if (options.truncate) flags |= O_TRUNC;
  HYDRA_ASSIGN_OR_RETURN(Descriptor fd, OpenDescriptor(path, flags));

  // Set afterwards instead of in open(): a refused open() with O_CREAT may leave the file behind,
  // and the second attempt would then trip over O_EXCL.
  bool direct = options.direct;
  if (direct) {
    const int current = ::fcntl(fd.get(), F_GETFL);
    if (current < 0) return FromErrno("fcntl", path, errno);
    if (::fcntl(fd.get(), F_SETFL, current | O_DIRECT) != 0) {
      if (errno != EINVAL) return FromErrno("fcntl(O_DIRECT)", path, errno);
      WarnOnceWithoutDirect(fd.get(), path);
      direct = false;
    }
  }
  if (options.random) (void)::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_RANDOM);  // a hint
  return std::unique_ptr<File>(new PosixFile(std::move(fd), path, direct));
}

Status PosixFileSystem::CreateDirectory(const std::string& path) {
  return CheckCall(::mkdir(path.c_str(), kDirectoryMode), "mkdir", path);
}

Status PosixFileSystem::SyncDirectory(const std::string& path) {
  HYDRA_ASSIGN_OR_RETURN(const Descriptor fd, OpenDescriptor(path, O_RDONLY | O_DIRECTORY));
  return CheckCall(::fsync(fd.get()), "fsync", path);
}

Status PosixFileSystem::Rename(const std::string& from, const std::string& to) {
  return CheckCall(::rename(from.c_str(), to.c_str()), "rename", from + " to " + to);
}

Status PosixFileSystem::Unlink(const std::string& path) {
  return CheckCall(::unlink(path.c_str()), "unlink", path);
}

Status PosixFileSystem::RemoveDirectory(const std::string& path) {
  return CheckCall(::rmdir(path.c_str()), "rmdir", path);
}

Result<std::vector<std::string>> PosixFileSystem::List(const std::string& path) {
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir(path.c_str()), ::closedir);
  if (directory == nullptr) return FromErrno("opendir", path, errno);
  std::vector<std::string> names;
  for (;;) {
    errno = 0;
    const dirent* entry = ::readdir(directory.get());
    if (entry == nullptr) break;
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  if (errno != 0) return FromErrno("readdir", path, errno);
  std::sort(names.begin(), names.end());
  return names;
}

bool PosixFileSystem::Exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

Result<uint64_t> PosixFileSystem::FreeBytes(const std::string& path) {
  struct statvfs info;
  if (::statvfs(path.c_str(), &info) != 0) return FromErrno("statvfs", path, errno);
  return static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
}

Result<std::unique_ptr<FileLock>> PosixFileSystem::Lock(const std::string& path) {
  HYDRA_ASSIGN_OR_RETURN(Descriptor fd, OpenDescriptor(path, O_RDWR | O_CREAT));
  if (RetryInterrupted([&] { return ::flock(fd.get(), LOCK_EX | LOCK_NB); }) != 0) {
    if (errno == EWOULDBLOCK) return Status::Busy("flock " + path + ": in use by another holder");
    return FromErrno("flock", path, errno);
  }
  return std::unique_ptr<FileLock>(new PosixFileLock(std::move(fd)));
}

}  // namespace hydra
