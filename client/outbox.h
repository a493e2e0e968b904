// SPDX-License-Identifier: Apache-2.0
//
// The connections of one thread that have frames to write. What is sent during one event goes out
// together when the event is over; a thread that knows the best moment itself (all is said, and it
// is about to wait for the disk) holds the outbox and flushes it.
#pragma once

#include <memory>
#include <vector>

#include <boost/asio/io_context.hpp>

namespace hydra {

class Connection;

// Outlives the connections that use it, and is used on the thread of its io_context alone.
class Outbox {
 public:
  explicit Outbox(boost::asio::io_context* io) : io_(io) {}
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;

  // Called by a connection that had nothing to write before.
  void Add(std::shared_ptr<Connection> connection);

  // From Hold to Release, nothing is written but by Flush.
  void Hold() { held_ = true; }
  void Release();
  void Flush();

 private:
  void Schedule();

  boost::asio::io_context* const io_;
  std::vector<std::shared_ptr<Connection>> waiting_;
  std::vector<std::shared_ptr<Connection>> flushing_;
  bool held_ = false;
  bool scheduled_ = false;
};

}  // namespace hydra
