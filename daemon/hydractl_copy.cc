// SPDX-License-Identifier: Apache-2.0
#include "daemon/hydractl_copy.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <future>
#include <memory>
#include <mutex>
#include <vector>

#include <fmt/format.h>

namespace hydra::ctl {
namespace {

constexpr uint64_t kPiece = 1u << 20;  // an extent: what the volume takes as one request

Status Failed(const char* what) {
  return Status::IoError(fmt::format("{}: {}", what, std::strerror(errno)));
}

bool IsZero(std::span<const uint8_t> bytes) {
  return bytes.empty() ||
         (bytes[0] == 0 && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0);
}

// Requests under way, a bounded number of them. After the first failure no more begin.
class Window {
 public:
  explicit Window(size_t places) : places_(places) {}

  bool Enter() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return taken_ < places_; });
    if (!failed_.ok()) return false;
    ++taken_;
    return true;
  }
  void Leave(const Status& status) {
    const std::lock_guard lock(mutex_);
    --taken_;
    if (failed_.ok() && !status.ok()) failed_ = status;
    changed_.notify_all();
  }
  Status Drain() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return taken_ == 0; });
    return failed_;
  }

 private:
  const size_t places_;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t taken_ = 0;
  Status failed_;
};

// --- Import -------------------------------------------------------------------------------------

class Importer {
 public:
  Importer(Volume volume, int file, const CopyOptions& options)
      : volume_(std::move(volume)),
        file_(file),
        options_(options),
        block_(volume_.block_bytes()),
        window_(std::make_shared<Window>(options.depth)) {}

  Result<CopyReport> Run() {
    if (options_.offset % block_ != 0) {
      return Status::InvalidArgument(
          fmt::format("offset {}: it must be a multiple of the volume's block size ({})",
                      options_.offset, block_));
    }
    HYDRA_RETURN_IF_ERROR(MeasureInput());
    const Status copied = Copy();
    const Status drained = window_->Drain();
    HYDRA_RETURN_IF_ERROR(copied);
    HYDRA_RETURN_IF_ERROR(drained);
    return report_;
  }

 private:
  uint64_t room() const {
    return volume_.size() < options_.offset ? 0 : volume_.size() - options_.offset;
  }

  Status TooLong(uint64_t bytes) const {
    return Status::OutOfRange(fmt::format(
        "the input has {}{} bytes, and {} has {} behind offset {}; make it larger with: hydractl "
        "volume resize {} --size {}",
        sized_ ? "" : "at least ", bytes, volume_.name(), room(), options_.offset, volume_.name(),
        (options_.offset + bytes + block_ - 1) / block_ * block_));
  }

  Status MeasureInput() {
    struct stat about;
    if (fstat(file_, &about) != 0) return Failed("cannot look at the input");
    if (S_ISDIR(about.st_mode)) return Status::InvalidArgument("the input is a directory");
    if (S_ISREG(about.st_mode)) {
      const off_t at = lseek(file_, 0, SEEK_CUR);
      if (at < 0) return Failed("cannot look at the input");
      start_ = static_cast<uint64_t>(at);
      const auto size = static_cast<uint64_t>(about.st_size);
      all_ = size < start_ ? 0 : size - start_;
      sized_ = true;
    }
    if (options_.length != 0) all_ = sized_ ? std::min(all_, options_.length) : options_.length;
    if (sized_ && all_ > room()) return TooLong(all_);
    return Status::Ok();
  }

  // The next bytes of the input, up to `wanted`; fewer only at its end.
  Result<size_t> Fill(uint8_t* to, size_t wanted) {
    size_t filled = 0;
    while (filled < wanted) {
      const ssize_t got = read(file_, to + filled, wanted - filled);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return Failed("cannot read the input");
      if (got == 0) break;
      filled += static_cast<size_t>(got);
    }
    return filled;
  }

  // Where the input's next data begins, at a whole block; the hole before it need not be read.
  uint64_t SkipHole(uint64_t at) const {
    if (!sized_) return at;
    const off_t data = lseek(file_, static_cast<off_t>(start_ + at), SEEK_DATA);
    uint64_t next = data < 0 ? all_ : static_cast<uint64_t>(data) - start_;
    if (data < 0 && errno != ENXIO) next = at;  // this file system does not know
    next = std::max(at, std::min(next, all_) / block_ * block_);
    lseek(file_, static_cast<off_t>(start_ + next), SEEK_SET);
    return next;
  }

  Status Copy() {
    while (true) {
      const uint64_t next = SkipHole(report_.bytes);
      if (next > report_.bytes) AddZeroes(report_.bytes, next - report_.bytes);
      report_.bytes = next;
      const uint64_t place = options_.offset + next;
      uint64_t wanted = kPiece - place % kPiece;
      if (all_ != 0 || sized_) wanted = std::min(wanted, all_ - next);
      if (wanted == 0) break;
      auto piece = std::make_shared<std::vector<uint8_t>>(
          static_cast<size_t>((wanted + block_ - 1) / block_ * block_));
      HYDRA_ASSIGN_OR_RETURN(const size_t got, Fill(piece->data(), static_cast<size_t>(wanted)));
      if (got == 0) break;
      if (next + got > room()) return TooLong(next + got);
      const size_t padded = (got + block_ - 1) / block_ * block_;
      piece->resize(padded);
      report_.padding = padded - got;
      HYDRA_RETURN_IF_ERROR(WritePiece(next, piece));
      report_.bytes += got;
      if (options_.progress) options_.progress(report_.bytes, all_);
      if (got < wanted) break;
    }
    return FlushZeroes();
  }

  // Data is written, zero blocks are collected.
  Status WritePiece(uint64_t at, const std::shared_ptr<std::vector<uint8_t>>& piece) {
    const std::span<const uint8_t> bytes(*piece);
    size_t begin = 0;
    while (begin < bytes.size()) {
      const bool zero = IsZero(bytes.subspan(begin, block_));
      size_t end = begin + block_;
      while (end < bytes.size() && IsZero(bytes.subspan(end, block_)) == zero) end += block_;
      if (zero) {
        AddZeroes(at + begin, end - begin);
      } else {
        HYDRA_RETURN_IF_ERROR(FlushZeroes());
        report_.data += end - begin;
        if (!window_->Enter()) return Status::Ok();  // Drain knows why
        volume_.AsyncWrite(
            options_.offset + at + begin, bytes.subspan(begin, end - begin),
            [window = window_, piece](const Status& status) { window->Leave(status); });
      }
      begin = end;
    }
    return Status::Ok();
  }

  void AddZeroes(uint64_t at, uint64_t length) {
    if (zeroes_ == 0) zeroes_at_ = at;
    zeroes_ += length;
  }

  Status FlushZeroes() {
    if (zeroes_ == 0) return Status::Ok();
    const uint64_t length = (zeroes_ + block_ - 1) / block_ * block_;
    zeroes_ = 0;
    if (!window_->Enter()) return Status::Ok();
    volume_.AsyncWriteZeroes(options_.offset + zeroes_at_, length,
                             [window = window_](const Status& status) { window->Leave(status); });
    return Status::Ok();
  }

  Volume volume_;
  const int file_;
  const CopyOptions& options_;
  const uint64_t block_;
  const std::shared_ptr<Window> window_;
  bool sized_ = false;
  uint64_t start_ = 0;  // of the input, where its descriptor stood
  uint64_t all_ = 0;    // bytes to copy; 0 and not sized: until it ends
  uint64_t zeroes_at_ = 0;
  uint64_t zeroes_ = 0;
  CopyReport report_;
};

// --- Export -------------------------------------------------------------------------------------

// Writes in order; zeroes become holes where the descriptor can have some.
class Output {
 public:
  explicit Output(int file) : file_(file) {
    struct stat about;
    const off_t at = lseek(file, 0, SEEK_CUR);
    const int flags = fcntl(file, F_GETFL);
    // Only behind the end does a hole read as zeroes.
    sparse_ = fstat(file, &about) == 0 && S_ISREG(about.st_mode) && at >= about.st_size &&
              flags >= 0 && (flags & O_APPEND) == 0;
  }

  Status Put(std::span<const uint8_t> bytes, uint64_t block, uint64_t* data) {
    size_t begin = 0;
    while (begin < bytes.size()) {
      const auto rest = [&](size_t at) { return std::min<size_t>(block, bytes.size() - at); };
      const bool zero = IsZero(bytes.subspan(begin, rest(begin)));
      size_t end = begin + rest(begin);
      while (end < bytes.size() && IsZero(bytes.subspan(end, rest(end))) == zero) end += rest(end);
      if (!zero) *data += end - begin;
      if (zero && sparse_) {
        if (lseek(file_, static_cast<off_t>(end - begin), SEEK_CUR) < 0) {
          return Failed("cannot write the output");
        }
      } else {
        HYDRA_RETURN_IF_ERROR(WriteAll(bytes.subspan(begin, end - begin)));
      }
      begin = end;
    }
    return Status::Ok();
  }

  // A hole at the end has to be given a length.
  Status Finish() {
    if (!sparse_) return Status::Ok();
    const off_t at = lseek(file_, 0, SEEK_CUR);
    if (at < 0 || ftruncate(file_, at) != 0) return Failed("cannot write the output");
    return Status::Ok();
  }

 private:
  Status WriteAll(std::span<const uint8_t> bytes) {
    while (!bytes.empty()) {
      const ssize_t wrote = write(file_, bytes.data(), bytes.size());
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote < 0) return Failed("cannot write the output");
      bytes = bytes.subspan(static_cast<size_t>(wrote));
    }
    return Status::Ok();
  }

  const int file_;
  bool sparse_ = false;
};

struct Pending {
  std::vector<uint8_t> bytes;
  std::promise<Status> done;
};

}  // namespace

Result<CopyReport> Import(Volume volume, int file, const CopyOptions& options) {
  return Importer(std::move(volume), file, options).Run();
}

Result<CopyReport> Export(Volume volume, int file, const CopyOptions& options) {
  if (options.offset > volume.size() ||
      (options.length != 0 && options.length > volume.size() - options.offset)) {
    return Status::OutOfRange(fmt::format("{} has {} bytes", volume.name(), volume.size()));
  }
  const uint64_t all = options.length != 0 ? options.length : volume.size() - options.offset;
  Output output(file);
  CopyReport report;
  std::deque<std::shared_ptr<Pending>> pending;
  uint64_t asked = 0;
  while (asked < all || !pending.empty()) {
    while (asked < all && pending.size() < options.depth) {
      const uint64_t place = options.offset + asked;
      const uint64_t length = std::min(kPiece - place % kPiece, all - asked);
      auto next = std::make_shared<Pending>();
      next->bytes.resize(static_cast<size_t>(length));
      pending.push_back(next);
      volume.AsyncRead(place, next->bytes,
                       [next](const Status& status) { next->done.set_value(status); });
      asked += length;
    }
    const std::shared_ptr<Pending> first = pending.front();
    pending.pop_front();
    HYDRA_RETURN_IF_ERROR(first->done.get_future().get());
    HYDRA_RETURN_IF_ERROR(output.Put(first->bytes, volume.block_bytes(), &report.data));
    report.bytes += first->bytes.size();
    if (options.progress) options.progress(report.bytes, all);
  }
  HYDRA_RETURN_IF_ERROR(output.Finish());
  return report;
}

}  // namespace hydra::ctl
