// SPDX-License-Identifier: Apache-2.0
//
// A running node: the core (daemon/node_core.h) with an engine on a real disk, peers and clients on
// real sockets, and a real clock. One thread runs all of it; the disk has threads of its own.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "base/clock.h"
#include "base/metrics.h"
#include "base/status.h"
#include "base/uuid.h"
#include "blockstore/engine.h"
#include "client/protocol.pb.h"
#include "daemon/handshake.h"
#include "daemon/node_core.h"
#include "daemon/target_accounts.h"

namespace hydra {

class Connection;
class DrillFaults;
class DrillRot;

struct NodeOptions {
  NodeId node = 0;
  std::string dir;
  Uuid cluster;        // may be nil if the directory knows it
  std::string secret;  // of the cluster; not empty
  std::string listen = "127.0.0.1:7100";
  std::string http_listen;   // empty: none
  std::string iscsi_listen;  // likewise
  // What the catalogue is told of these two, where others are to call another address. Empty: it is
  // that one.
  std::string http_advertise;
  std::string iscsi_advertise;
  const std::string& http() const { return http_advertise.empty() ? http_listen : http_advertise; }
  const std::string& iscsi() const {
    return iscsi_advertise.empty() ? iscsi_listen : iscsi_advertise;
  }
  // Address (host:port) of every node of the cluster, this one included. Later ones come from the
  // catalogue.
  std::map<NodeId, std::string> peers;
  bool bootstrap = false;  // make the store and the system group if the directory is empty
  bool join = false;       // make the store if the directory is empty, and ask to be let in

  uint64_t capacity_bytes = 0;  // 0: what the file system has
  uint64_t segment_bytes = 256ull << 20;
  unsigned readers = 4;
  uint64_t scrub_rate = 8u << 20;        // bytes per second
  uint64_t scrub_every = 7 * 24 * 3600;  // seconds; 0: only when told to
  Nanos busy_wait =
      50 * kMicrosecond;  // looks so long for more before its thread sleeps; 0: not at all
  Nanos slow_request = 100 * kMillisecond;  // logged with the time of each stage; 0: none
  // What it knows, or pretends to: an older build, for drills of upgrades.
  uint32_t feature_level = kFeatureLevel;
  bool drill = false;      // takes faults: daemon/drill_faults.h
  NodeCore::Options core;  // node, boot and seed are filled in
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
  // A client's connection from within this process, for the thread that runs `caller`, which
  // outlives it. From any thread.
  std::shared_ptr<Connection> Dial(boost::asio::io_context* caller);
  const Uuid& cluster() const;  // that it is part of
  // Thread-safe, and valid as long as the node.
  const TargetAccounts& accounts() const { return accounts_; }
  // Before Run: asked, on the node's thread, for what the status is to show.
  void SetSessions(std::function<std::vector<rpc::IscsiSession>()> sessions) {
    sessions_ = std::move(sessions);
  }

  // --- On the node's thread, for administration. ---
  void FillStatus(bool groups, rpc::NodeStatus* status);
  const rpc::Catalogue* catalogue() const;  // null: not known yet
  MetricsRegistry& metrics() { return metrics_; }
  void UpdateMetrics();
  Status health();
  DrillFaults* drill_faults();  // null unless NodeOptions::drill
  DrillRot* drill_rot();        // likewise

 private:
  class Impl;
  Node();

  std::unique_ptr<boost::asio::io_context> io_;
  MetricsRegistry metrics_;
  TargetAccounts accounts_;
  std::function<std::vector<rpc::IscsiSession>()> sessions_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hydra
