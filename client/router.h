// SPDX-License-Identifier: Apache-2.0
//
// Finds the node that can do a thing, and keeps asking until it is done: connections, sessions,
// redirects, retries. Internal; programs use client/hydra.h, and hydrad uses this for its gateways.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "client/group_request.h"
#include "client/target.h"

namespace boost::asio {
class io_context;
}

namespace hydra {

class Connection;
namespace rpc {
class Request;
class Reply;
}  // namespace rpc

// What clients need of the catalogue (rpc::Catalogue).
struct CatalogueView {
  struct Volume {
    uint32_t id = 0;
    std::string name;
    uint64_t bytes = 0;
    uint32_t block_bytes = 0;
    uint32_t logical_block = 512;
    bool active = false;
    bool shrinking = false;
    uint64_t shrink_to = 0;
    uint64_t epoch = 1;  // of access rights
    std::string reservations;
    TargetInfo target;
    std::vector<GroupId> shards;
    uint32_t replicas = 0;  // wanted; 0: not said
  };
  struct Group {
    std::vector<NodeId> replicas;
    NodeId preferred_master = 0;
    uint64_t changes = 0;  // grows with every change of its replicas
  };
  struct Node {
    std::string rpc;
    std::string iscsi;
    std::string http;
    std::string state;  // active, joining, lost, draining
    uint32_t incarnation = 1;
    bool has_store = false;  // a data directory speaks for it
  };
  uint64_t version = 0;
  std::string cluster;  // 16 bytes
  std::map<NodeId, Node> nodes;
  std::map<GroupId, Group> groups;
  std::map<std::string, Volume> volumes;
};

struct RouterOptions {
  std::vector<std::string> seeds;  // host:port of some nodes; empty if SetDirectory says it all
  std::string name;                // of this client, for the nodes' logs
  std::string cluster;             // 16 bytes; empty: whichever the seeds are of
  std::function<std::string(const std::string&)> translate;             // of addresses; null: none
  std::function<std::shared_ptr<Connection>(const std::string&)> dial;  // NodeLink::Options
  std::chrono::milliseconds connect_timeout{2'000};
  // A node that has not answered after this is given up for another; the call goes on.
  std::chrono::milliseconds attempt_timeout{3'000};
  // The other replicas are asked whether there is a new master when a node has been silent for
  // this.
  std::chrono::milliseconds look_around_after{250};
  std::chrono::milliseconds session_timeout{30'000};
  size_t max_in_flight_bytes = 64u << 20;  // of payload, in both directions
  size_t max_queued = 4096;                // requests that wait for the above; then kBusy
  uint64_t seed = 0;                       // of jitter; 0: any
};

struct RouterStats {
  uint64_t requests = 0;
  uint64_t attempts = 0;       // requests sent, including again
  uint64_t redirects = 0;      // answered NOT_MASTER
  uint64_t busy = 0;           // answered BUSY
  uint64_t lost = 0;           // connections lost or silent with the request out
  uint64_t repeated_safe = 0;  // sent again though the outcome was not known
  uint64_t looks = 0;          // replicas asked for the master while a node was silent
  uint64_t damaged = 0;        // reads that went to another replica
  uint64_t sessions = 0;       // opened
  uint64_t expired = 0;        // sessions lost
  uint64_t unknown = 0;        // mutations given up with an unknown outcome
  size_t in_flight_bytes = 0;
  size_t queued = 0;
};

// Everything happens on the thread that runs the io_context, which must not end before the router:
// calls come from there, and `done` is called there, never from within the call.
//
// Exactly once. A mutation gets a number in a session of its group before it is first sent, and
// keeps both whatever happens: lost connections, redirects, time-outs. The group executes it once
// and answers every copy with the first outcome. If the session is gone before any answer came,
// nobody can know any more, and that is what the caller is told (kAborted): it is never sent again
// under another session.
class Router {
 public:
  Router(boost::asio::io_context* context, RouterOptions options);
  ~Router();
  Router(const Router&) = delete;
  Router& operator=(const Router&) = delete;

  // Says where things are, instead of a catalogue. Seeds are not asked then.
  void SetDirectory(CatalogueView directory);

  void Submit(GroupRequest request, GroupDone done);

  // Administration: to any node, with redirects and retries until the time-out. `maybe_repeated`:
  // an earlier copy of the request may have been executed as well.
  using AdminDone =
      std::function<void(Status status, const rpc::Reply& reply, bool maybe_repeated)>;
  void Call(const rpc::Request& request, std::chrono::milliseconds timeout, AdminDone done);
  // To this node and no other.
  void CallNode(NodeId node, const rpc::Request& request, std::chrono::milliseconds timeout,
                AdminDone done);

  // Asks for the catalogue: the node that answered the last call if possible, so that a change that
  // was just made is seen.
  void Refresh(std::chrono::milliseconds timeout, std::function<void(Status)> done);
  // The same; what it ends with has every change that was made before.
  void RefreshToCurrent(std::chrono::milliseconds timeout, std::function<void(Status)> done);
  std::shared_ptr<const CatalogueView> catalogue() const;  // never null
  // Called whenever the catalogue changed.
  void OnCatalogue(std::function<void()> changed);

  void After(std::chrono::milliseconds delay, std::function<void()> then);
  Result<Buffer> Allocate(size_t bytes);  // contents are unspecified
  RouterStats stats() const;

  // Everything outstanding fails with kAborted; nothing works afterwards.
  void Stop();

 private:
  class Core;
  friend class GroupClient;
  friend struct GroupOp;
  std::shared_ptr<Core> core_;
};

}  // namespace hydra
