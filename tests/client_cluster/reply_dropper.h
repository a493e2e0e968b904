// SPDX-License-Identifier: Apache-2.0
//
// Stands between clients and nodes and loses a share of the answers.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>

#include "base/rng.h"
#include "client/connection.h"

namespace hydra::test {

class ReplyDropper {
 public:
  ReplyDropper(const std::vector<std::string>& nodes, unsigned percent, uint64_t seed);
  ~ReplyDropper();

  // Where to call instead of a node's own address.
  std::string Translate(const std::string& node) const { return fronts_.at(node); }
  uint64_t dropped() const { return dropped_; }

 private:
  struct Front {
    boost::asio::ip::tcp::endpoint node;
    std::unique_ptr<boost::asio::ip::tcp::acceptor> acceptor;
  };
  struct Pair {
    std::shared_ptr<Connection> client;
    std::shared_ptr<Connection> node;
  };

  void Accept(Front* front);

  boost::asio::io_context context_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  const unsigned percent_;
  Rng rng_;
  std::list<Front> listening_;
  std::map<std::string, std::string> fronts_;
  std::list<std::shared_ptr<Pair>> pairs_;
  std::atomic<uint64_t> dropped_{0};
  std::thread thread_;
};

}  // namespace hydra::test
