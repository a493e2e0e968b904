// SPDX-License-Identifier: Apache-2.0
//
// A portal: the address where initiators connect. Everything happens on the thread that runs its
// io_context.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/metrics.h"
#include "base/status.h"
#include "iscsi/session.h"
#include "iscsi/target.h"

namespace boost::asio {
class io_context;
}

namespace hydra::iscsi {

struct PortalOptions {
  std::string listen = "127.0.0.1:3260";
  // What initiators are told of it; empty: the address that they found it at.
  std::string advertise = "";
  uint16_t group = 1;                // target portal group tag
  size_t memory_bytes = 128u << 20;  // data of commands under way
  size_t max_connections = 256;
  Nanos login_timeout = 15 * kSecond;
  // How long initiators are given to log out when the portal stops.
  Nanos stop_patience = 2 * kSecond;
  Offer offer;
  MetricsRegistry* metrics = nullptr;  // outlives the portal; null: nothing is counted there
};

struct SessionInfo {
  std::string initiator;
  std::string target;
  std::string address;  // of the initiator
  SessionStats stats;
  size_t tasks = 0;
  HistogramSnapshot latency;
};

class Portal {
 public:
  // The directory outlives the portal.
  Portal(boost::asio::io_context* io, TargetDirectory* directory, PortalOptions options);
  ~Portal();
  Portal(const Portal&) = delete;
  Portal& operator=(const Portal&) = delete;

  Status Listen();
  uint16_t port() const;  // once it listens
  // No new connections; initiators are asked to log out; after a while connections are closed.
  // `done` is called when no command is under way any more.
  void Stop(std::function<void()> done);

  std::vector<SessionInfo> sessions() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace hydra::iscsi
