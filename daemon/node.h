// SPDX-License-Identifier: Apache-2.0
//
// A running node: the core (daemon/node_core.h) with an engine on a real disk, peers and clients on
// real sockets, and a real clock. One thread runs all of it; the disk has threads of its own.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include <boost/asio/io_context.hpp>

#include "base/clock.h"
#include "base/metrics.h"
#include "base/status.h"
#include "base/uuid.h"
#include "blockstore/engine.h"
#include "client/protocol.pb.h"
#include "daemon/node_core.h"

namespace hydra {

struct NodeOptions {
  NodeId node = 0;
  std::string dir;
  Uuid cluster;        // may be nil if the directory knows it
  std::string secret;  // of the cluster; not empty
  std::string listen = "127.0.0.1:7100";
  std::string http_listen;   // empty: none
  std::string iscsi_listen;  // told to the catalogue
  // Address (host:port) of every node of the cluster, this one included. Later ones come from the
  // catalogue.
  std::map<NodeId, std::string> peers;
  bool bootstrap = false;  // make the store and the system group if the directory is empty

  uint64_t capacity_bytes = 0;  // 0: what the file system has
  uint64_t segment_bytes = 256ull << 20;
  unsigned readers = 4;
  Nanos slow_request = 100 * kMillisecond;  // logged with the time of each stage; 0: none
  NodeCore::Options core;                   // node, boot and seed are filled in
};

class Node {
 public:
  // Opens, or makes, the store and starts its groups. Says what to do if it cannot.
  static Result<std::unique_ptr<Node>> Open(const NodeOptions& options);
  ~Node();

  // Serves until Stop. OK after a graceful stop.
  Status Run();
  // From any thread, or a signal handler's io_context: hands over masterships, checkpoints, ends.
  void Stop();

  boost::asio::io_context& io() { return *io_; }
  const Uuid& cluster() const;  // that it is part of

  // --- On the node's thread, for administration. ---
  void FillStatus(bool groups, rpc::NodeStatus* status);
  const rpc::Catalogue* catalogue() const;  // null: not known yet
  MetricsRegistry& metrics() { return metrics_; }
  void UpdateMetrics();
  Status health();

 private:
  class Impl;
  Node();

  std::unique_ptr<boost::asio::io_context> io_;
  MetricsRegistry metrics_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hydra
