// SPDX-License-Identifier: Apache-2.0
//
// A connection that carries frames: over TCP, or within a process (client/local_connection.h).
// Everything happens on the thread that runs its io_context.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <boost/asio/ip/tcp.hpp>

#include "base/buffer.h"
#include "base/status.h"
#include "client/frame.h"

namespace hydra {

class Outbox;

class Connection {
 public:
  struct Options {
    FrameLimits limits;
    size_t queue_bytes = 64u << 20;  // frames that wait to be written; beyond them Send refuses
    // Memory for payload. kBusy: the connection stops reading and asks again shortly.
    std::function<Result<Buffer>(size_t bytes)> allocate;
    Outbox* outbox = nullptr;  // of the thread; null: frames go out when the event is over
  };
  struct Handlers {
    std::function<void(Frame frame)> frame;
    // Once, when nothing will be received any more. Not called after Close().
    std::function<void(const Status& why)> closed;
    // Everything that was sent is written. May be left out.
    std::function<void()> drained = nullptr;
  };

  // Over a connected socket.
  static std::shared_ptr<Connection> Adopt(boost::asio::ip::tcp::socket socket, Options options);
  virtual ~Connection() = default;
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Frames are delivered from here on. May be called again to change who gets them.
  virtual void Start(Handlers handlers) = 0;

  // Takes a frame to be written in its turn; what is sent during one event goes out together. The
  // slices' memory must not change until then, nor until the frame is answered: a receiver in the
  // same process gets this very memory. False: closed, or the queue is full.
  virtual bool Send(FrameType type, uint64_t id, std::string header,
                    std::vector<BufferSlice> payload = {}, uint32_t payload_bytes = 0) = 0;

  // Of the frames that follow the present one.
  virtual void SetLimits(const FrameLimits& limits) = 0;

  // Reads no further frames until Resume: how a receiver with enough to do pushes back.
  virtual void Pause() = 0;
  virtual void Resume() = 0;

  // Writes what is queued (for a moment at most), then closes. Handlers are forgotten at once.
  virtual void Close() = 0;

  // Closes at once: what is queued is not written, and its memory is let go.
  virtual void Abort() { Close(); }

  // Writes what waits; for the outbox.
  virtual void Flush() = 0;

  virtual bool open() const = 0;
  virtual size_t queued_bytes() const = 0;
  // For how long the other side has taken nothing of what is queued; zero: nothing keeps it there,
  // as always within a process.
  virtual std::chrono::steady_clock::duration blocked() const { return {}; }
  virtual const std::string& peer() const = 0;  // address, for logs
  virtual uint64_t copied_bytes() const = 0;    // payload that was not received in place

 protected:
  Connection() = default;
};

}  // namespace hydra
