// SPDX-License-Identifier: Apache-2.0
//
// Connections to other nodes. Each node calls every other one and sends on the connection it made;
// what it receives comes on those that the others made. A link that is down drops messages: the
// protocol repeats what matters.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>

#include "base/ids.h"
#include "base/rng.h"
#include "base/uuid.h"
#include "client/connection.h"
#include "daemon/drill_faults.h"
#include "daemon/handshake.h"
#include "daemon/node_core.h"
#include "daemon/peer_wire.h"

namespace hydra {

namespace rpc {
class GroupReport;
class Unfit;
}  // namespace rpc

// What a node says of itself when it calls another.
struct NodeIdentity {
  NodeId node = 0;
  Uuid cluster;
  Uuid store;
  std::string secret;
  uint32_t feature_level = kFeatureLevel;
  std::string iscsi = {};  // where this node serves it; empty: not at all
  std::string http = {};
  bool joining = false;  // its store is new, and waits to be let in
};

class PeerLinks {
 public:
  struct Stats {
    uint64_t sent = 0;
    uint64_t dropped = 0;  // not connected, or too much queued
  };

  struct Handlers {
    // The incarnation that a peer says this node has in group 0, if it says so.
    std::function<void(uint32_t incarnation)> let_in;
    std::function<void(NodeId peer)> lost;  // a connection that worked
  };

  // `outbox`: of the thread, or null. `faults`: of a node that takes part in drills; else null.
  PeerLinks(boost::asio::io_context* io, NodeIdentity self, size_t queue_bytes, Handlers handlers,
            Outbox* outbox = nullptr, DrillFaults* faults = nullptr);
  ~PeerLinks();

  // Calls those that are new, hangs up on those that are gone. host:port by node.
  void SetPeers(const std::map<NodeId, std::string>& addresses);
  void Send(const PeerMessage& message);
  void Send(NodeId to, const rpc::GroupReport& report);
  void Send(NodeId to, const rpc::Unfit& unfit);
  bool connected(NodeId node) const;
  // What a peer said when it refused the last call; empty if it did not.
  std::string refusal(NodeId node) const;
  const Stats& stats() const { return stats_; }
  // This node is let in, and says so from the next call on.
  void Joined() { self_.joining = false; }
  // Hangs up on peers that take nothing any more, and calls them again. Now and then.
  void Tend();
  void Close();

 private:
  struct Link;

  void Send(NodeId to, FrameType type, std::string header);
  void Dial(const std::shared_ptr<Link>& link);
  void LimitCall(const std::shared_ptr<Link>& link, std::chrono::milliseconds time);
  void Greet(const std::shared_ptr<Link>& link, boost::asio::ip::tcp::socket socket);
  void OnFrame(const std::shared_ptr<Link>& link, const Frame& frame);
  void Redial(const std::shared_ptr<Link>& link, const Status& why);
  void SendNow(NodeId to, PeerFrame frame);

  boost::asio::io_context* const io_;
  NodeIdentity self_;
  const size_t queue_bytes_;
  const Handlers handlers_;
  Outbox* const outbox_;
  DrillFaults* const faults_;
  Rng rng_;
  std::map<NodeId, std::shared_ptr<Link>> links_;
  Stats stats_;
  bool closed_ = false;
};

}  // namespace hydra
