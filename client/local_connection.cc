// SPDX-License-Identifier: Apache-2.0
#include "client/local_connection.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <utility>

#include <boost/asio/defer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

#include "client/outbox.h"

namespace hydra {
namespace {

constexpr size_t kLocalQueueBytes = 64u << 20;

class LocalConnection final : public Connection,
                              public std::enable_shared_from_this<LocalConnection> {
 public:
  LocalConnection(boost::asio::io_context* io, Outbox* outbox) : io_(io), outbox_(outbox) {}

  void set_other(const std::shared_ptr<LocalConnection>& other) { other_ = other; }

  void Start(Handlers handlers) override {
    handlers_ = std::make_shared<const Handlers>(std::move(handlers));
    started_ = true;
    if (!paused_) Resume();
  }

  bool Send(FrameType type, uint64_t id, std::string header, std::vector<BufferSlice> payload,
            uint32_t payload_bytes) override {
    if (!open_) return false;
    const size_t size = kFrameHeadBytes + header.size() + payload_bytes;
    if (queued_bytes_ > 0 && queued_bytes_ + size > kLocalQueueBytes) return false;
    queued_bytes_ += size;
    Frame& frame = waiting_.emplace_back();
    frame.type = type;
    frame.id = id;
    frame.header = std::move(header);
    frame.payload_bytes = payload_bytes;
    frame.payload = Whole(std::move(payload), payload_bytes);
    if (waiting_.size() > 1) return true;
    if (outbox_ != nullptr) {
      outbox_->Add(shared_from_this());
      return true;
    }
    boost::asio::defer(*io_, [self = shared_from_this()] { self->Flush(); });
    return true;
  }

  void SetLimits(const FrameLimits&) override {}  // the other end is no stranger

  void Pause() override { paused_ = true; }
  void Resume() override {
    paused_ = false;
    boost::asio::post(*io_, [self = shared_from_this()] { self->Deliver(); });
  }

  void Close() override {
    if (!open_) return;
    handlers_ = nullptr;
    Flush();
    open_ = false;
    inbox_.clear();
    ToOther([](LocalConnection* other) { other->OnClosed(); });
  }

  void Flush() override {
    if (waiting_.empty()) return;
    queued_bytes_ = 0;
    ToOther([frames = std::exchange(waiting_, {})](LocalConnection* other) mutable {
      std::move(frames.begin(), frames.end(), std::back_inserter(other->inbox_));
      other->Deliver();
    });
    const auto handlers = handlers_;
    if (handlers && handlers->drained) handlers->drained();
  }

  bool open() const override { return open_; }
  size_t queued_bytes() const override { return queued_bytes_; }
  const std::string& peer() const override { return peer_; }
  uint64_t copied_bytes() const override { return copied_bytes_; }

 private:
  // Runs `what` on the other end's thread, where the other end then also may end.
  template <typename What>
  void ToOther(What what) {
    auto other = other_.lock();
    if (!other) return;
    boost::asio::io_context* const io = other->io_;
    boost::asio::post(
        *io, [other = std::move(other), what = std::move(what)]() mutable { what(other.get()); });
  }

  Buffer Whole(std::vector<BufferSlice> payload, uint32_t bytes) {
    if (bytes == 0) return {};
    if (payload.size() == 1 && payload[0].offset == 0 && bytes % kPageSize == 0) {
      return std::move(payload[0].buffer);
    }
    Buffer whole = Buffer::Allocate(bytes);
    size_t at = 0;
    for (const BufferSlice& slice : payload) {
      const size_t length = std::min<size_t>(slice.length, bytes - at);
      std::memcpy(whole.data() + at, slice.data(), length);
      at += length;
    }
    copied_bytes_ += at;
    return whole;
  }

  void Deliver() {
    while (open_ && started_ && !paused_ && !inbox_.empty()) {
      Frame frame = std::move(inbox_.front());
      inbox_.pop_front();
      const auto handlers = handlers_;  // which the handler may replace or drop
      if (handlers && handlers->frame) handlers->frame(std::move(frame));
    }
    if (!open_) inbox_.clear();
  }

  void OnClosed() {
    if (!open_) return;
    open_ = false;
    inbox_.clear();
    const auto handlers = std::exchange(handlers_, nullptr);
    if (handlers && handlers->closed) {
      handlers->closed(Status::Unavailable("the other side closed"));
    }
  }

  boost::asio::io_context* const io_;
  const std::string peer_ = "this process";
  std::weak_ptr<LocalConnection> other_;
  std::shared_ptr<const Handlers> handlers_;  // null: nobody is told anything
  bool open_ = true;
  bool started_ = false;
  bool paused_ = false;
  Outbox* const outbox_;
  std::vector<Frame> waiting_;  // to go together
  size_t queued_bytes_ = 0;
  std::deque<Frame> inbox_;  // while paused; what there can be of it is the sender's to bound
  uint64_t copied_bytes_ = 0;
};

}  // namespace

std::pair<std::shared_ptr<Connection>, std::shared_ptr<Connection>> MakeLocalConnection(
    boost::asio::io_context* first, boost::asio::io_context* second, Outbox* second_outbox) {
  auto one = std::make_shared<LocalConnection>(first, nullptr);
  auto two = std::make_shared<LocalConnection>(second, second_outbox);
  one->set_other(two);
  two->set_other(one);
  return {std::move(one), std::move(two)};
}

}  // namespace hydra
