// SPDX-License-Identifier: Apache-2.0
#include "client/connection.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <deque>
#include <optional>
#include <utility>

#include <boost/asio/defer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <fmt/format.h>

#include "base/crc32c.h"
#include "client/outbox.h"

namespace hydra {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using ErrorCode = boost::system::error_code;
using std::chrono::steady_clock;

constexpr size_t kReadBytes = 64u << 10;
// ... where large payload is expected, so that little of it is read into the wrong place.
constexpr size_t kReadBytesBeforePayload = 2048;
// Payload of at least this much is read where it will stay; less is cheaper to copy.
constexpr size_t kInPlaceBytes = 32u << 10;
constexpr size_t kMaxVectors = 64;
constexpr std::chrono::milliseconds kMemoryRetry(1);
constexpr std::chrono::milliseconds kCloseWait(200);

std::string AddressOf(const tcp::socket& socket) {
  ErrorCode error;
  const tcp::endpoint endpoint = socket.remote_endpoint(error);
  if (error) return "unknown";
  return fmt::format("{}:{}", endpoint.address().to_string(), endpoint.port());
}

size_t RoundUp(size_t bytes) { return (bytes + kPageSize - 1) / kPageSize * kPageSize; }

class SocketConnection final : public Connection,
                               public std::enable_shared_from_this<SocketConnection> {
 public:
  SocketConnection(tcp::socket socket, Options options);

  void Start(Handlers handlers) override;
  bool Send(FrameType type, uint64_t id, std::string header, std::vector<BufferSlice> payload,
            uint32_t payload_bytes) override;
  void SetLimits(const FrameLimits& limits) override { options_.limits = limits; }
  void Pause() override { paused_ = true; }
  void Resume() override;
  void Close() override;
  void Abort() override;
  void Flush() override {
    flush_scheduled_ = false;
    WriteOut();
  }
  bool open() const override { return socket_.is_open() && !closing_; }
  size_t queued_bytes() const override { return queued_bytes_; }
  steady_clock::duration blocked() const override {
    return blocked_since_ ? steady_clock::now() - *blocked_since_ : steady_clock::duration{};
  }
  const std::string& peer() const override { return peer_; }
  uint64_t copied_bytes() const override { return copied_bytes_; }

 private:
  struct Outgoing {
    uint8_t head[kFrameHeadBytes];
    std::string header;
    std::vector<BufferSlice> payload;
    uint32_t payload_bytes = 0;
    size_t size() const { return kFrameHeadBytes + header.size() + payload_bytes; }
  };

  void Read();
  void Received(size_t bytes);
  // Delivers frames that are whole. False if it is not for the caller to read on: paused, closed,
  // or a frame waits for memory or has begun a read of its own.
  bool Parse();
  bool BeginFrame(const FrameHead& head);
  void FinishFrame();
  void ScheduleFlush();
  void WriteOut();
  void WaitWritable();
  void Fail(const Status& why);

  tcp::socket socket_;
  Options options_;
  std::shared_ptr<const Handlers> handlers_;  // null: nobody is told anything
  std::string peer_;
  bool started_ = false;
  bool paused_ = false;
  bool closing_ = false;
  // A read is out: what is received goes behind in_end_ and into partial_, which stay as they are.
  bool reading_ = false;

  // Received bytes: in_[in_begin_, in_end_) are not parsed yet.
  std::vector<uint8_t> in_;
  size_t in_begin_ = 0;
  size_t in_end_ = 0;
  // A frame whose payload is being read in place.
  bool in_payload_ = false;
  Frame partial_;
  size_t payload_read_ = 0;
  bool expect_payload_ = false;  // the last frame had a large one
  uint64_t copied_bytes_ = 0;

  std::deque<Outgoing> out_;
  size_t out_offset_ = 0;  // of the first frame, written already
  size_t queued_bytes_ = 0;
  bool flush_scheduled_ = false;
  bool writing_ = false;  // a wait is out
  std::optional<steady_clock::time_point> blocked_since_;
};

}  // namespace

std::shared_ptr<Connection> Connection::Adopt(tcp::socket socket, Options options) {
  return std::make_shared<SocketConnection>(std::move(socket), std::move(options));
}

namespace {

SocketConnection::SocketConnection(tcp::socket socket, Options options)
    : socket_(std::move(socket)), options_(std::move(options)), peer_(AddressOf(socket_)) {
  ErrorCode ignored;
  socket_.non_blocking(true, ignored);
  socket_.set_option(tcp::no_delay(true), ignored);
  in_.resize(kReadBytes);
}

void SocketConnection::Start(Handlers handlers) {
  handlers_ = std::make_shared<const Handlers>(std::move(handlers));
  if (started_) return;
  started_ = true;
  Read();
}

void SocketConnection::Resume() {
  if (!paused_) return;
  paused_ = false;
  asio::post(socket_.get_executor(), [self = shared_from_this()] {
    if (self->open() && !self->reading_ && self->Parse()) self->Read();
  });
}

void SocketConnection::Fail(const Status& why) {
  if (!socket_.is_open()) return;
  ErrorCode ignored;
  socket_.close(ignored);
  out_.clear();
  queued_bytes_ = 0;
  blocked_since_.reset();
  const auto handlers = std::exchange(handlers_, nullptr);
  if (handlers && handlers->closed && !closing_) handlers->closed(why);
}

void SocketConnection::Close() {
  if (closing_ || !socket_.is_open()) return;
  closing_ = true;
  handlers_ = nullptr;
  WriteOut();
  if (!socket_.is_open()) return;
  if (out_.empty()) {
    Fail(Status::Ok());
    return;
  }
  auto timer = std::make_shared<asio::steady_timer>(socket_.get_executor(), kCloseWait);
  timer->async_wait(
      [self = shared_from_this(), timer](const ErrorCode&) { self->Fail(Status::Ok()); });
}

void SocketConnection::Abort() {
  closing_ = true;
  Fail(Status::Ok());
}

// --- Reading ------------------------------------------------------------------------------------

// (Asio needs no system call to wait for a read, as it does to wait until there is something.)
void SocketConnection::Read() {
  if (reading_ || paused_ || !open()) return;
  // Payload that stays where it is read, and whatever comes behind it.
  std::array<asio::mutable_buffer, 2> into;
  if (in_payload_) {
    into[0] = {partial_.payload.data() + payload_read_, partial_.payload_bytes - payload_read_};
  } else if (in_begin_ > 0) {
    std::memmove(in_.data(), in_.data() + in_begin_, in_end_ - in_begin_);
    in_end_ -= in_begin_;
    in_begin_ = 0;
  }
  size_t room = in_.size() - in_end_;
  if (expect_payload_) room = std::min(room, kReadBytesBeforePayload);
  into[1] = {in_.data() + in_end_, room};
  reading_ = true;
  auto received = [self = shared_from_this()](const ErrorCode& error, size_t bytes) {
    self->reading_ = false;
    if (self->closing_) return;  // what is queued is written, then it closes
    if (error == asio::error::eof) {
      self->Fail(Status::Unavailable("the other side closed the connection"));
    } else if (error) {
      self->Fail(Status::Unavailable(error.message()));
    } else {
      self->Received(bytes);
    }
  };
  if (in_payload_) {
    socket_.async_read_some(into, std::move(received));
  } else {  // one piece of memory is a cheaper system call
    socket_.async_read_some(into[1], std::move(received));
  }
}

void SocketConnection::Received(size_t bytes) {
  if (in_payload_) {
    const size_t here = std::min<size_t>(bytes, partial_.payload_bytes - payload_read_);
    payload_read_ += here;
    bytes -= here;
  }
  in_end_ += bytes;
  if (Parse()) Read();
}

bool SocketConnection::Parse() {
  while (open() && !paused_) {
    if (in_payload_) {
      if (payload_read_ < partial_.payload_bytes) return true;
      FinishFrame();
      continue;
    }
    const size_t have = in_end_ - in_begin_;
    if (have < kFrameHeadBytes) return true;
    const uint8_t* at = in_.data() + in_begin_;
    const auto head = DecodeFrameHead({at, kFrameHeadBytes}, options_.limits);
    if (!head.ok()) {
      Fail(head.status());
      return false;
    }
    const size_t needed = kFrameHeadBytes + head->header_bytes;
    if (have < needed) {
      if (in_.size() < needed) in_.resize(needed);
      return true;
    }
    if (!BeginFrame(*head)) return false;
  }
  return open() && !paused_;
}

// The head and the header are in memory; payload may be too, in part.
bool SocketConnection::BeginFrame(const FrameHead& head) {
  const uint8_t* header = in_.data() + in_begin_ + kFrameHeadBytes;
  if (Crc32c(header, head.header_bytes) != head.header_crc) {
    Fail(Status::Corruption("a frame's header does not match its checksum"));
    return false;
  }
  const size_t have = in_end_ - in_begin_ - kFrameHeadBytes - head.header_bytes;
  const bool in_place = head.payload_bytes >= kInPlaceBytes;
  expect_payload_ = in_place;
  if (!in_place && have < head.payload_bytes) {
    const size_t needed = kFrameHeadBytes + head.header_bytes + head.payload_bytes;
    if (in_.size() < needed) in_.resize(needed);
    // Wait for the whole of it. The rest is read behind what is here.
    Read();
    return false;
  }
  Frame& frame = partial_;
  frame.type = head.type;
  frame.id = head.id;
  frame.payload_bytes = head.payload_bytes;
  if (head.payload_bytes > 0) {
    const size_t room = RoundUp(head.payload_bytes);
    Result<Buffer> buffer = options_.allocate ? options_.allocate(room) : Buffer::Allocate(room);
    if (!buffer.ok()) {
      auto timer = std::make_shared<asio::steady_timer>(socket_.get_executor(), kMemoryRetry);
      timer->async_wait([self = shared_from_this(), timer](const ErrorCode&) {
        if (self->open() && !self->reading_ && self->Parse()) self->Read();
      });
      return false;
    }
    frame.payload = std::move(*buffer);
    std::memset(frame.payload.data() + head.payload_bytes, 0, room - head.payload_bytes);
  }
  frame.header.assign(reinterpret_cast<const char*>(header), head.header_bytes);
  const size_t here = std::min<size_t>(have, head.payload_bytes);
  if (here > 0) std::memcpy(frame.payload.data(), header + head.header_bytes, here);
  copied_bytes_ += here;
  in_begin_ += kFrameHeadBytes + head.header_bytes + here;
  if (in_begin_ == in_end_) in_begin_ = in_end_ = 0;
  payload_read_ = here;
  in_payload_ = true;
  return true;
}

void SocketConnection::FinishFrame() {
  in_payload_ = false;
  Frame frame = std::move(partial_);
  const auto handlers = handlers_;  // which the handler may replace or drop
  if (handlers && handlers->frame) handlers->frame(std::move(frame));
}

// --- Writing ------------------------------------------------------------------------------------

bool SocketConnection::Send(FrameType type, uint64_t id, std::string header,
                            std::vector<BufferSlice> payload, uint32_t payload_bytes) {
  if (!open()) return false;
  Outgoing frame;
  frame.header = std::move(header);
  frame.payload = std::move(payload);
  frame.payload_bytes = payload_bytes;
  const size_t size = frame.size();
  if (!out_.empty() && queued_bytes_ + size > options_.queue_bytes) return false;
  EncodeFrameHead(type, id, frame.header, payload_bytes, frame.head);
  queued_bytes_ += size;
  out_.push_back(std::move(frame));
  ScheduleFlush();
  return true;
}

void SocketConnection::ScheduleFlush() {
  if (flush_scheduled_ || writing_) return;
  flush_scheduled_ = true;
  if (options_.outbox != nullptr) return options_.outbox->Add(shared_from_this());
  asio::defer(socket_.get_executor(), [self = shared_from_this()] { self->Flush(); });
}

void SocketConnection::WriteOut() {
  const bool waited = !out_.empty();
  while (!out_.empty() && !writing_ && socket_.is_open()) {
    std::array<iovec, kMaxVectors> vectors;  // as many as are counted
    size_t count = 0;
    size_t skip = out_offset_;
    const auto add = [&](const void* data, size_t length) {
      if (skip >= length) {
        skip -= length;
        return;
      }
      vectors[count++] = {const_cast<uint8_t*>(static_cast<const uint8_t*>(data)) + skip,
                          length - skip};
      skip = 0;
    };
    for (const Outgoing& frame : out_) {
      if (count + 2 + frame.payload.size() > kMaxVectors && count > 0) break;
      add(frame.head, kFrameHeadBytes);
      add(frame.header.data(), frame.header.size());
      size_t left = frame.payload_bytes;
      for (const BufferSlice& slice : frame.payload) {
        if (count == kMaxVectors) break;  // a frame of very many slices goes in several calls
        const size_t length = std::min(left, slice.length);
        add(slice.data(), length);
        left -= length;
      }
    }
    msghdr message{};
    message.msg_iov = vectors.data();
    message.msg_iovlen = count;
    const ssize_t wrote = ::sendmsg(socket_.native_handle(), &message, MSG_NOSIGNAL);
    if (wrote < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN) {
        if (!blocked_since_) blocked_since_ = steady_clock::now();
        return WaitWritable();
      }
      return Fail(Status::Unavailable(std::strerror(errno)));
    }
    blocked_since_.reset();
    out_offset_ += static_cast<size_t>(wrote);
    queued_bytes_ -= static_cast<size_t>(wrote);
    while (!out_.empty() && out_offset_ >= out_.front().size()) {
      out_offset_ -= out_.front().size();
      out_.pop_front();
    }
  }
  if (closing_ && out_.empty()) return Fail(Status::Ok());
  if (!waited || !out_.empty()) return;
  const auto handlers = handlers_;
  if (handlers && handlers->drained) handlers->drained();
}

void SocketConnection::WaitWritable() {
  writing_ = true;
  socket_.async_wait(tcp::socket::wait_write, [self = shared_from_this()](const ErrorCode& error) {
    self->writing_ = false;
    if (error) return self->Fail(Status::Unavailable(error.message()));
    self->WriteOut();
  });
}

}  // namespace
}  // namespace hydra
