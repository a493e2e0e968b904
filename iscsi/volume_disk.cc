// SPDX-License-Identifier: Apache-2.0
#include "iscsi/volume_disk.h"

#include <algorithm>

#include <boost/asio/bind_executor.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <openssl/sha.h>

#include "base/buffer.h"
#include "base/coding.h"

namespace hydra::iscsi {
namespace {

namespace asio = boost::asio;

constexpr uint32_t kExtentBytes = 1 << 20;
// What GetMap looks at before it answers with what it has: much if nothing is there, which costs
// little to read and is worth knowing; else little.
constexpr uint64_t kScanEmptyBytes = 256u << 20;
constexpr uint64_t kScanBytes = 2u << 20;

// Ends with the first failure of several operations, when the last of them has ended.
class Joined {
 public:
  explicit Joined(Disk::Done done) : done_(std::move(done)) {}
  ~Joined() { done_(status_); }
  Joined(const Joined&) = delete;
  Joined& operator=(const Joined&) = delete;
  void Add(const Status& status) {
    if (status_.ok()) status_ = status;
  }

 private:
  Disk::Done done_;
  Status status_;
};

}  // namespace

DiskIdentity IdentityOf(const Uuid& cluster, uint32_t volume, const std::string& name) {
  std::string text(reinterpret_cast<const char*>(cluster.bytes.data()), cluster.bytes.size());
  PutFixed32(&text, volume);
  uint8_t digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const uint8_t*>(text.data()), text.size(), digest);
  DiskIdentity identity;
  std::copy_n(digest, identity.id.size(), identity.id.begin());
  identity.name = name;
  return identity;
}

VolumeDisk::VolumeDisk(asio::io_context* io, Volume volume, DiskIdentity identity)
    : io_(io), volume_(volume), identity_(std::move(identity)), plain_(io, std::move(volume)) {}

VolumeDisk::~VolumeDisk() {
  WatchSize({});
  WatchAccess({});
}

std::shared_ptr<DiskIo> VolumeDisk::Arrive(uint64_t epoch) {
  return std::make_shared<VolumeIo>(io_, volume_.Under(volume_.MakeGuard(epoch)));
}

uint32_t VolumeDisk::atomic_bytes() const { return kExtentBytes; }

void VolumeIo::Read(uint64_t offset, std::span<uint8_t> data, Done done) {
  volume_.AsyncRead(offset, data, asio::bind_executor(io_->get_executor(), std::move(done)));
}

void VolumeIo::Write(uint64_t offset, std::span<const uint8_t> data, Done done) {
  volume_.AsyncWrite(offset, data, asio::bind_executor(io_->get_executor(), std::move(done)));
}

void VolumeIo::WriteZeroes(uint64_t offset, uint64_t length, Done done) {
  volume_.AsyncWriteZeroes(offset, length,
                           asio::bind_executor(io_->get_executor(), std::move(done)));
}

// Whole blocks are given back; of those at the ends, what was asked for becomes zero.
void VolumeIo::Unmap(uint64_t offset, uint64_t length, Done done) {
  const uint64_t block = volume_.block_bytes();
  const uint64_t end = offset + length;
  const uint64_t first = (offset + block - 1) / block * block;
  const uint64_t last = end / block * block;
  if (first >= last) return WriteZeroes(offset, length, std::move(done));
  const auto joined = std::make_shared<Joined>(std::move(done));
  const auto part = [&] {
    return asio::bind_executor(io_->get_executor(),
                               [joined](const Status& status) { joined->Add(status); });
  };
  if (offset < first) volume_.AsyncWriteZeroes(offset, first - offset, part());
  volume_.AsyncDiscard(first, last - first, part());
  if (last < end) volume_.AsyncWriteZeroes(last, end - last, part());
}

void VolumeIo::CompareAndWrite(uint64_t offset, std::span<const uint8_t> expected,
                               std::span<const uint8_t> desired,
                               std::function<void(Result<bool>)> done) {
  volume_.AsyncCompareAndWrite(offset, expected, desired,
                               asio::bind_executor(io_->get_executor(), std::move(done)));
}

void VolumeDisk::Flush(Done done) {
  volume_.AsyncFlush(asio::bind_executor(io_->get_executor(), std::move(done)));
}

// The client does not tell what is mapped. A block that reads as zeroes is as good as not mapped to
// whoever asks: it need not be read.
Task<Result<std::vector<MappedRange>>> VolumeDisk::Scan(uint64_t offset, uint64_t length) {
  const uint64_t block = volume_.block_bytes();
  const uint64_t stop = offset + std::min(length, kScanEmptyBytes);
  Buffer buffer = Buffer::Allocate(kExtentBytes);
  std::vector<MappedRange> ranges;
  bool empty = true;
  for (uint64_t at = offset; at < stop && (empty || at - offset < kScanBytes);) {
    const uint64_t now = std::min(stop - at, kExtentBytes - at % kExtentBytes);
    const std::span<uint8_t> data = buffer.span().first(static_cast<size_t>(now));
    const Status read =
        co_await Await<Status>([this, at, data](auto done) { Read(at, data, std::move(done)); });
    if (!read.ok()) co_return read;
    for (uint64_t done = 0; done < now;) {
      const uint64_t piece = std::min(now - done, block - (at + done) % block);
      const auto bytes = data.subspan(static_cast<size_t>(done), static_cast<size_t>(piece));
      const bool mapped =
          std::any_of(bytes.begin(), bytes.end(), [](uint8_t byte) { return byte != 0; });
      empty = empty && !mapped;
      ranges.push_back({piece, mapped});
      done += piece;
    }
    at += now;
  }
  co_return ranges;
}

void VolumeDisk::GetMap(uint64_t offset, uint64_t length,
                        std::function<void(Result<std::vector<MappedRange>>)> done) {
  Start<Result<std::vector<MappedRange>>>(Scan(offset, length), std::move(done));
}

// Calls of the library's thread, brought to this one.
std::function<void(uint64_t)> VolumeDisk::Begin(std::function<void()> changed, Watching* watching) {
  watching->watch.reset();
  if (watching->call) *watching->call = {};
  if (!changed) return {};
  watching->call = std::make_shared<std::function<void()>>(std::move(changed));
  return [io = io_, call = watching->call](uint64_t) {
    asio::post(*io, [call] {
      if (*call) (*call)();
    });
  };
}

void VolumeDisk::WatchSize(std::function<void()> changed) {
  if (auto call = Begin(std::move(changed), &size_)) size_.watch = volume_.WatchSize(call);
}

void VolumeDisk::WatchAccess(std::function<void()> changed) {
  if (auto call = Begin(std::move(changed), &access_)) access_.watch = volume_.WatchAccess(call);
}

void VolumeDisk::LoadAccess(std::function<void(Result<DiskAccess>)> done) {
  volume_.AsyncGetAccess(asio::bind_executor(
      io_->get_executor(), [done = std::move(done)](const Result<VolumeAccess>& access) {
        if (!access.ok()) return done(access.status());
        done(DiskAccess{access->epoch, access->reservations});
      }));
}

void VolumeDisk::Fence(uint64_t epoch, Done done) {
  volume_.AsyncFence(epoch, asio::bind_executor(io_->get_executor(), std::move(done)));
}

// Whether it narrows or not, every shard is fenced: a change is rare.
void VolumeDisk::ChangeAccess(uint64_t expected, std::string state, bool,
                              std::function<void(Result<uint64_t>)> done) {
  volume_.AsyncChangeAccess(expected, std::move(state),
                            asio::bind_executor(io_->get_executor(), std::move(done)));
}

}  // namespace hydra::iscsi
