// SPDX-License-Identifier: Apache-2.0
//
// Who calls this node: greets peers and clients, hands on what they say, and answers clients.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>

#include "base/buffer.h"
#include "base/status.h"
#include "client/connection.h"
#include "client/protocol.pb.h"
#include "daemon/node_core.h"
#include "daemon/peer_links.h"

namespace hydra {

class Server {
 public:
  struct Options {
    std::string listen;  // host:port
    NodeIdentity self;
    size_t max_clients = 1024;
    // Per client: beyond these nothing more is read from it until something was answered. Bytes are
    // those of requests, of the answers expected, and of answers that it has not taken yet.
    size_t max_requests = 1024;
    size_t max_request_bytes = 32u << 20;
    // The same bytes of all clients together. Beyond these each may only have a small share, which
    // keeps none from going on, whatever the others do.
    size_t max_all_bytes = 256u << 20;
    size_t share_bytes = 1u << 20;
    // Memory for payload, apart from each other so that clients cannot keep peers from talking.
    size_t client_pool_bytes = 128u << 20;
    size_t peer_pool_bytes = 256u << 20;
    Outbox* outbox = nullptr;       // of the thread
    DrillFaults* faults = nullptr;  // of a node that takes part in drills
  };
  struct Client;
  using ClientPtr = std::shared_ptr<Client>;
  // What is left of a request until it is answered.
  struct Question {
    Question(const Frame& request) : id(request.id), charged(request.charged) {}
    uint64_t id;
    size_t charged;  // as the frame's
  };
  struct Handlers {
    // Whether to talk to a peer that says this of itself, and knows the secret; if not, why.
    std::function<Result<rpc::Ready>(const rpc::Hello& hello)> admit;
    std::function<void(PeerMessage message)> peer;
    std::function<void(const ClientPtr& client, const Frame& frame)> request;
    std::function<void(const rpc::GroupReport& report)> report = {};
    std::function<void(NodeId peer, const rpc::Unfit& unfit)> unfit = {};
    std::function<void(NodeId peer)> lost = {};  // its connection, after all that came on it
  };

  Server(boost::asio::io_context* io, Options options, Handlers handlers);
  ~Server();

  Status Listen();
  // Someone in this process calls.
  void Accept(std::shared_ptr<Connection> connection);
  // Counts the answer that will be given against the client, until it has taken it.
  void Expect(const ClientPtr& client, Question* request, size_t answer_bytes);
  // Every request is answered once, unless its client is gone.
  void Reply(const ClientPtr& client, const Question& request, const rpc::Reply& reply,
             std::vector<BufferSlice> payload = {});
  // Hangs up on a peer: who it said to be is another now.
  void DropPeer(NodeId node);
  // Hangs up on clients that do not take their answers. Now and then.
  void Tend();
  bool HasPeer(NodeId node) const { return peers_.contains(node); }
  // No new callers; those that are there are told why.
  void Close(const std::string& why);
  size_t clients() const { return clients_.size(); }
  uint64_t copied_bytes() const;

 private:
  struct Caller;

  void AcceptNext();
  void Greet(boost::asio::ip::tcp::socket socket);
  void Greet(const std::shared_ptr<Caller>& caller);
  void OnHello(const std::shared_ptr<Caller>& caller, const Frame& frame);
  void OnProof(const std::shared_ptr<Caller>& caller, const Frame& frame);
  void Refuse(const std::shared_ptr<Connection>& connection, const std::string& why);
  void BecomePeer(const std::shared_ptr<Caller>& caller);
  void OnReport(NodeId node, const Frame& frame);
  void BecomeClient(const std::shared_ptr<Caller>& caller);
  void Throttle(const ClientPtr& client);
  void Drop(const ClientPtr& client);

  boost::asio::io_context* const io_;
  const Options options_;
  const Handlers handlers_;
  boost::asio::ip::tcp::acceptor acceptor_;
  BufferPool client_pool_;
  BufferPool peer_pool_;
  std::list<ClientPtr> clients_;
  size_t all_bytes_ = 0;                                 // counted of them
  std::map<NodeId, std::shared_ptr<Connection>> peers_;  // their latest call
  size_t greeting_ = 0;                                  // callers that have not said who they are
  bool closed_ = false;
};

}  // namespace hydra
