// SPDX-License-Identifier: Apache-2.0
#include "iscsi/volume_disk.h"

#include <algorithm>

#include <boost/asio/bind_executor.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <openssl/sha.h>

#include "base/coding.h"

namespace hydra::iscsi {
namespace {

namespace asio = boost::asio;

constexpr uint32_t kExtentBytes = 1 << 20;
// What GetMap asks about before it answers with what it has: a question to a shard for each MiB.
constexpr uint64_t kMapBytes = 1ull << 30;

// How long a sanitizing waits for a node that is down, or does not get on, before it has failed.
constexpr std::chrono::minutes kPurgePatience(10);

// Ends with the first failure of several operations, when the last of them has ended, or when their
// handlers are gone without having run.
class Joined {
 public:
  Joined(unsigned parts, Disk::Done done) : parts_(parts), done_(std::move(done)) {}
  ~Joined() { done_(parts_ == 0 ? status_ : Status::Aborted("the portal stops")); }
  Joined(const Joined&) = delete;
  Joined& operator=(const Joined&) = delete;
  void Add(const Status& status) {
    --parts_;
    if (status_.ok()) status_ = status;
  }

 private:
  unsigned parts_;  // that have not ended
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

AccessRules RulesOf(const TargetInfo& target) {
  return {target.offered, target.restricted, target.allowed};
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
  const unsigned parts = 1 + (offset < first ? 1 : 0) + (last < end ? 1 : 0);
  const auto joined = std::make_shared<Joined>(parts, std::move(done));
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

void VolumeDisk::GetMap(uint64_t offset, uint64_t length,
                        std::function<void(Result<std::vector<MappedRange>>)> done) {
  volume_.AsyncGetMap(
      offset, std::min(length, kMapBytes),
      asio::bind_executor(io_->get_executor(),
                          [done = std::move(done)](const Result<std::vector<MapRun>>& runs) {
                            if (!runs.ok()) return done(runs.status());
                            std::vector<MappedRange> ranges;
                            for (const MapRun& run : *runs) {
                              ranges.push_back({run.length, run.mapped});
                            }
                            done(std::move(ranges));
                          }));
}

// The blocks may be anyone's and have changed since, so nothing is seen; but whoever ends it fences
// off what others who help have under way.
void VolumeDisk::Sanitize(uint64_t key, uint64_t epoch, std::function<void(double)> progress,
                          Done done) {
  const auto here = [io = io_, progress = std::move(progress)](double part) {
    asio::post(*io, [progress, part] { progress(part); });
  };
  const auto purge = [volume = volume_, io = io_, key, here,
                      done = std::move(done)](const Status& discarded) mutable {
    if (!discarded.ok()) return done(discarded);
    volume.AsyncPurge(std::to_string(key), here, kPurgePatience,
                      asio::bind_executor(io->get_executor(), std::move(done)));
  };
  Guard guard;
  guard.epoch = epoch;
  volume_.Under(std::move(guard))
      .AsyncDiscard(0, volume_.size(), asio::bind_executor(io_->get_executor(), purge));
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
        done(DiskAccess{access->epoch, access->reservations, RulesOf(access->target),
                        access->target.chap_revision});
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
