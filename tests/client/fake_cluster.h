// SPDX-License-Identifier: Apache-2.0
//
// Nodes that speak the protocol and keep blocks in memory, with faults on demand: what a test of
// the client's retries needs and real daemons do not do when told to. Sessions are kept as a group
// keeps them, so that a request which is executed twice shows.
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>

#include "client/connection.h"
#include "client/hydra.h"
#include "client/protocol.pb.h"

namespace hydra::test {

// What happens to a request.
enum class Fault {
  kNone,
  kDropRequest,  // never arrives
  kDropReply,    // executed; the answer is lost
  kCloseBefore,  // the connection breaks, nothing was executed
  kCloseAfter,   // executed, then the connection breaks
  kBusy,
  kUnknown,    // executed, and answered UNKNOWN
  kNotMaster,  // answered NOT_MASTER without a hint
  kExpire,     // the session is dropped first
  kDamaged,
  kCorrupt,  // a read's payload is changed on its way
  kNoGroup,
  kDelay,  // answered after 300 ms
};

class FakeCluster {
 public:
  explicit FakeCluster(unsigned nodes = 3);
  ~FakeCluster();

  std::vector<std::string> addresses() const { return addresses_; }
  const std::string& address(uint32_t node) const { return addresses_[node - 1]; }

  // Runs on the nodes' thread and waits: everything below is to be used from there.
  template <typename Function>
  auto Do(Function function) {
    std::promise<decltype(function())> promise;
    boost::asio::post(context_, [&] {
      if constexpr (std::is_void_v<decltype(function())>) {
        function();
        promise.set_value();
      } else {
        promise.set_value(function());
      }
    });
    return promise.get_future().get();
  }

  // A volume of one group per shard; group g's master is node 1 + g % nodes.
  void AddVolume(const std::string& name, uint64_t bytes, uint32_t block_bytes, uint32_t shards);
  void SetMaster(uint32_t group, uint32_t node);
  void ExpireSessions();
  void StopNode(uint32_t node);  // closes its connections and listens no more
  void StartNode(uint32_t node);

  // Asked for each request that is not a question; null: no faults.
  using Chooser = std::function<Fault(uint32_t node, const rpc::Request& request)>;
  void SetFaults(Chooser chooser);

  struct Counts {
    uint64_t executed = 0;  // mutations
    uint64_t repeats = 0;   // answered with the first outcome
    uint64_t opened = 0;
    uint64_t keep_alives = 0;
    uint64_t closed = 0;
    uint64_t catalogues = 0;
    uint64_t max_span = 0;  // highest seq - lowest_unanswered
    uint64_t reads = 0;
  };
  Counts counts();

 private:
  struct Outcome {
    rpc::Reply::Answer answer = rpc::Reply::DONE;
    uint64_t version = 0;
  };
  struct Session {
    uint64_t lowest = 1;
    std::map<uint64_t, Outcome> outcomes;
  };
  struct Group {
    uint32_t master = 1;
    uint32_t block_bytes = 4096;
    uint64_t commit = 1;
    std::map<uint64_t, std::string> blocks;
    std::map<uint64_t, Session> sessions;
  };
  struct Node {
    uint32_t id = 0;
    uint16_t port = 0;
    std::unique_ptr<boost::asio::ip::tcp::acceptor> acceptor;
    std::set<std::shared_ptr<Connection>> connections;
  };

  void Listen(Node* node);
  void Accept(Node* node);
  void OnFrame(Node* node, const std::shared_ptr<Connection>& connection, const Frame& frame);
  void OnRequest(Node* node, const std::shared_ptr<Connection>& connection, const Frame& frame);
  rpc::Reply Execute(const Node& node, const rpc::Request& request, const Frame& frame,
                     std::string* payload);
  rpc::Reply ExecuteIo(const Node& node, const rpc::Io& io, const Frame& frame,
                       std::string* payload);
  Outcome Mutate(Group* group, const rpc::Io& io, const Frame& frame);
  rpc::Reply Read(const Group& group, const rpc::Io& io, std::string* payload);
  void Reply(const std::shared_ptr<Connection>& connection, uint64_t id, const rpc::Reply& reply,
             std::string payload);
  rpc::Reply Admin(const rpc::Request& request);

  boost::asio::io_context context_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<std::string> addresses_;
  rpc::Catalogue catalogue_;
  std::map<uint32_t, Group> groups_;
  Chooser chooser_;
  Counts counts_;
  std::thread thread_;
};

}  // namespace hydra::test
