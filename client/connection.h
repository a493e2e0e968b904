// SPDX-License-Identifier: Apache-2.0
//
// A TCP connection that carries frames. Everything happens on the thread that runs its io_context.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>

#include "base/buffer.h"
#include "base/status.h"
#include "client/frame.h"

namespace hydra {

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  struct Options {
    FrameLimits limits;
    size_t queue_bytes = 64u << 20;  // frames that wait to be written; beyond them Send refuses
    // Memory for payload. kBusy: the connection stops reading and asks again shortly.
    std::function<Result<Buffer>(size_t bytes)> allocate;
  };
  struct Handlers {
    std::function<void(Frame frame)> frame;
    // Once, when nothing will be received any more. Not called after Close().
    std::function<void(const Status& why)> closed;
    // Everything that was sent is written. May be left out.
    std::function<void()> drained = nullptr;
  };

  static std::shared_ptr<Connection> Adopt(boost::asio::ip::tcp::socket socket, Options options);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Frames are delivered from here on. May be called again to change who gets them.
  void Start(Handlers handlers);

  // Takes a frame to be written in its turn; what is sent during one event goes out together. The
  // slices' memory must not change until then. False: closed, or the queue is full.
  bool Send(FrameType type, uint64_t id, std::string header, std::vector<BufferSlice> payload = {},
            uint32_t payload_bytes = 0);

  // Of the frames that follow the present one.
  void SetLimits(const FrameLimits& limits) { options_.limits = limits; }

  // Reads no further frames until Resume: how a receiver with enough to do pushes back.
  void Pause();
  void Resume();

  // Writes what is queued (for a moment at most), then closes. Handlers are forgotten at once.
  void Close();

  bool open() const { return socket_.is_open() && !closing_; }
  size_t queued_bytes() const { return queued_bytes_; }
  const std::string& peer() const { return peer_; }        // address, for logs
  uint64_t copied_bytes() const { return copied_bytes_; }  // payload that was not read in place

 private:
  struct Outgoing {
    uint8_t head[kFrameHeadBytes];
    std::string header;
    std::vector<BufferSlice> payload;
    uint32_t payload_bytes = 0;
    size_t size() const { return kFrameHeadBytes + header.size() + payload_bytes; }
  };

  Connection(boost::asio::ip::tcp::socket socket, Options options);

  void WaitReadable();
  void ReadSome();
  bool Parse();  // frames that are whole; false if one has to wait for memory
  bool BeginFrame(const FrameHead& head);
  void FinishFrame();
  void Deliver(Frame frame);
  void ScheduleFlush();
  void Flush();
  void WaitWritable();
  void Fail(const Status& why);

  boost::asio::ip::tcp::socket socket_;
  Options options_;
  Handlers handlers_;
  std::string peer_;
  bool started_ = false;
  bool paused_ = false;
  bool closing_ = false;
  bool reading_ = false;  // a wait is out

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
};

}  // namespace hydra
