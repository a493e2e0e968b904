// SPDX-License-Identifier: Apache-2.0
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include <liburing.h>

#include "base/crc32c.h"
#include "tests/bench/light.h"

namespace hydra::light {
namespace {

constexpr size_t kBatchBytes = (1 + kMaxBatchBlocks) * kBlockBytes;
constexpr size_t kRequestBytes = sizeof(Request) + kBlockBytes;
constexpr size_t kInputBytes = 1u << 20;
constexpr uint64_t kReady = 0;  // what a server says first; batches are numbered from 1

// One batch is being written to the own log, what comes meanwhile is gathered in the other.
struct Batch {
  Pages pages = AllocatePages(kBatchBytes);
  std::vector<uint64_t> tags;
  uint64_t number = 0;  // 0: not under way
  unsigned durable = 0;
  bool own = false;  // on the own disk
  bool answered = false;

  uint8_t* Block(size_t index) { return pages.get() + (1 + index) * kBlockBytes; }
  bool under_way() const { return number != 0; }
  bool full() const { return tags.size() == kMaxBatchBlocks; }
};

class Leader {
 public:
  Leader(const Descriptor& client, const Descriptor (&followers)[kFollowers],
         const std::string& log)
      : client_(client), followers_(followers), log_(log), input_(kInputBytes) {
    if (io_uring_queue_init(8, &ring_, 0) != 0) Stop("io_uring");
    written_ = Descriptor(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    if (io_uring_register_eventfd(&ring_, written_.get()) != 0) Stop("io_uring: eventfd");
    poll_ = Descriptor(epoll_create1(EPOLL_CLOEXEC));
    Watch(client_, kClient);
    Watch(written_, kWritten);
    for (unsigned i = 0; i < kFollowers; ++i) Watch(followers_[i], kFirstFollower + i);
  }
  ~Leader() { io_uring_queue_exit(&ring_); }
  Leader(const Leader&) = delete;
  Leader& operator=(const Leader&) = delete;

  void Run() {
    epoll_event events[kFirstFollower + kFollowers];
    while (!over_) {
      const int count = epoll_wait(poll_.get(), events, std::size(events), -1);
      if (count < 0 && errno != EINTR) Stop("epoll_wait");
      for (int i = 0; i < count; ++i) Handle(events[i].data.u32);
      if (!over_) Begin();
    }
  }

  void AddTo(ServerFigures* figures) const {
    figures->batches = numbers_;
    figures->blocks = blocks_;
    figures->device_bytes = log_.taken_bytes();
  }

 private:
  enum Source : uint32_t { kClient, kWritten, kFirstFollower };

  void Watch(const Descriptor& what, uint32_t source) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u32 = source;
    if (epoll_ctl(poll_.get(), EPOLL_CTL_ADD, what.get(), &event) != 0) Stop("epoll_ctl");
  }

  void Handle(uint32_t source) {
    switch (source) {
      case kClient: Receive(); break;
      case kWritten: Written(); break;
      default: Acknowledged(followers_[source - kFirstFollower]);
    }
  }

  // As much as is there, in one call. 0: the other side is gone.
  size_t Take(const Descriptor& from, void* data, size_t room) {
    const ssize_t got = recv(from.get(), data, room, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    if (got <= 0) over_ = true;
    return got > 0 ? static_cast<size_t>(got) : 0;
  }

  void Receive() {
    if (held_ < input_.size()) held_ += Take(client_, input_.data() + held_, input_.size() - held_);
    Gather();
  }

  // From the input into the batch that is being gathered, unless both are under way.
  void Gather() {
    Batch* batch = gathering_;
    if (batch == nullptr) return;
    size_t used = 0;
    for (; held_ - used >= kRequestBytes && !batch->full(); used += kRequestBytes) {
      Request request;
      std::memcpy(&request, input_.data() + used, sizeof(request));
      std::memcpy(batch->Block(batch->tags.size()), input_.data() + used + sizeof(request),
                  kBlockBytes);
      batch->tags.push_back(request.tag);
    }
    held_ -= used;
    if (used > 0) std::memmove(input_.data(), input_.data() + used, held_);
  }

  void Begin() {
    if (writing_ != nullptr) return;
    Gather();
    Batch* batch = gathering_;
    if (batch == nullptr || batch->tags.empty()) return;
    const size_t payload = batch->tags.size() * kBlockBytes;
    const size_t length = kBlockBytes + payload;
    batch->number = ++numbers_;
    blocks_ += batch->tags.size();
    const BatchHeader header{batch->number, static_cast<uint32_t>(batch->tags.size()),
                             Crc32c(batch->Block(0), payload)};
    std::memcpy(batch->pages.get(), &header, sizeof(header));
    for (const Descriptor& follower : followers_) {
      if (!SendAll(follower, batch->pages.get(), length)) over_ = true;
    }
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    io_uring_prep_write(entry, log_.fd(), batch->pages.get(), static_cast<unsigned>(length),
                        log_.Take(length));
    if (io_uring_submit(&ring_) != 1) Stop("io_uring_submit");
    writing_ = batch;
    writing_bytes_ = length;
    Batch* other = batch == &batches_[0] ? &batches_[1] : &batches_[0];
    gathering_ = other->under_way() ? nullptr : other;
  }

  void Written() {
    uint64_t count = 0;
    if (read(written_.get(), &count, sizeof(count)) < 0 && errno != EAGAIN) Stop("eventfd");
    io_uring_cqe* done = nullptr;
    if (io_uring_peek_cqe(&ring_, &done) != 0) return;
    if (done->res != static_cast<int>(writing_bytes_)) {
      errno = done->res < 0 ? -done->res : EIO;
      Stop("writing the log");
    }
    io_uring_cqe_seen(&ring_, done);
    Batch* batch = writing_;
    writing_ = nullptr;
    batch->own = true;
    Durable(batch);
  }

  void Acknowledged(const Descriptor& follower) {
    uint64_t numbers[64];
    // A follower sends eight bytes at a time, over loopback: they are not torn.
    const size_t count = Take(follower, numbers, sizeof(numbers)) / sizeof(uint64_t);
    for (size_t i = 0; i < count; ++i) {
      // One that is answered and written already is under way no more, and has no number.
      for (Batch& batch : batches_) {
        if (batch.number == numbers[i]) Durable(&batch);
      }
    }
  }

  // On one more disk.
  void Durable(Batch* batch) {
    ++batch->durable;
    if (!batch->answered && batch->durable >= kMajority) {
      batch->answered = true;
      if (!SendAll(client_, batch->tags.data(), batch->tags.size() * sizeof(uint64_t))) {
        over_ = true;
      }
    }
    if (!batch->answered || !batch->own) return;
    batch->tags.clear();
    batch->number = 0;
    batch->durable = 0;
    batch->own = batch->answered = false;
    if (gathering_ == nullptr) gathering_ = batch;
  }

  const Descriptor& client_;
  const Descriptor (&followers_)[kFollowers];
  Log log_;
  std::vector<uint8_t> input_;
  size_t held_ = 0;  // bytes in input_
  Batch batches_[2];
  Batch* gathering_ = &batches_[0];  // nullptr: both are under way
  Batch* writing_ = nullptr;         // to the own log
  size_t writing_bytes_ = 0;
  uint64_t numbers_ = 0;
  uint64_t blocks_ = 0;
  bool over_ = false;
  io_uring ring_{};
  Descriptor written_;
  Descriptor poll_;
};

}  // namespace

void RunLeader(const Descriptor& client, const Descriptor (&followers)[kFollowers],
               const std::string& log, ServerFigures* figures) {
  Leader leader(client, followers, log);
  for (const Descriptor& follower : followers) {
    uint64_t ready = 1;
    if (!ReadAll(follower, &ready, sizeof(ready)) || ready != kReady) Stop("a follower is gone");
  }
  const double before = CpuSeconds();
  if (!SendAll(client, &kReady, sizeof(kReady))) Stop("the client is gone");
  leader.Run();
  leader.AddTo(figures);
  figures->cpu_seconds = CpuSeconds() - before;
}

void RunFollower(const Descriptor& leader, const std::string& path, ServerFigures* figures) {
  Log log(path);
  const Pages batch = AllocatePages(kBatchBytes);
  if (!SendAll(leader, &kReady, sizeof(kReady))) Stop("the leader is gone");
  const double before = CpuSeconds();
  while (ReadAll(leader, batch.get(), kBlockBytes)) {
    BatchHeader header;
    std::memcpy(&header, batch.get(), sizeof(header));
    errno = EBADMSG;
    if (header.blocks == 0 || header.blocks > kMaxBatchBlocks) Stop("a batch without sense");
    uint8_t* blocks = batch.get() + kBlockBytes;
    const size_t payload = header.blocks * kBlockBytes;
    if (!ReadAll(leader, blocks, payload)) break;
    errno = EBADMSG;
    if (Crc32c(blocks, payload) != header.crc) Stop("a batch with a wrong CRC");
    const size_t length = kBlockBytes + payload;
    if (pwrite(log.fd(), batch.get(), length, static_cast<off_t>(log.Take(length))) !=
        static_cast<ssize_t>(length)) {
      Stop(path);
    }
    ++figures->batches;
    figures->blocks += header.blocks;
    if (!SendAll(leader, &header.number, sizeof(header.number))) break;
  }
  figures->device_bytes = log.taken_bytes();
  figures->cpu_seconds = CpuSeconds() - before;
}

}  // namespace hydra::light
