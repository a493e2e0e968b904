// SPDX-License-Identifier: Apache-2.0
#include "daemon/server.h"

#include <chrono>
#include <utility>

#include <boost/asio/steady_timer.hpp>
#include <fmt/format.h>

#include "base/logging.h"
#include "client/io_codec.h"
#include "daemon/handshake.h"
#include "daemon/peer_wire.h"
#include "daemon/request_wire.h"

namespace hydra {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using ErrorCode = boost::system::error_code;

constexpr std::chrono::seconds kGreetingTime(5);
constexpr size_t kMaxGreeting = 256;
// A client that takes no byte of its answers for so long is hung or gone, and they are kept for it.
constexpr std::chrono::seconds kBlockedTime(30);
constexpr FrameLimits kGreetingLimits = {.header_bytes = 1024, .payload_bytes = 0};

}  // namespace

// Someone who has not shown yet who it is.
struct Server::Caller {
  explicit Caller(asio::io_context& io) : timer(io) {}
  std::shared_ptr<Connection> connection;
  asio::steady_timer timer;
  HandshakeFacts facts;
  rpc::Hello hello;  // of a peer
  bool done = false;
};

struct Server::Client {
  std::shared_ptr<Connection> connection;
  std::string name;
  size_t requests = 0;  // not answered yet
  size_t bytes = 0;     // their payload, and that of their answers
  size_t counted = 0;   // in all_bytes_: these, and what waits to be taken
  bool paused = false;
};

Server::Server(asio::io_context* io, Options options, Handlers handlers)
    : io_(io),
      options_(std::move(options)),
      handlers_(std::move(handlers)),
      acceptor_(*io),
      client_pool_(options_.client_pool_bytes),
      peer_pool_(options_.peer_pool_bytes) {}

Server::~Server() { Close("the node stops"); }

Status Server::Listen() {
  const size_t colon = options_.listen.rfind(':');
  ErrorCode error;
  tcp::resolver resolver(*io_);
  const auto found = colon == std::string::npos
                         ? tcp::resolver::results_type()
                         : resolver.resolve(options_.listen.substr(0, colon),
                                            options_.listen.substr(colon + 1), error);
  if (error || found.empty()) {
    return Status::InvalidArgument(
        fmt::format("'{}' is no address to listen on: use host:port", options_.listen));
  }
  const tcp::endpoint endpoint = found.begin()->endpoint();
  acceptor_.open(endpoint.protocol(), error);
  if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor_.bind(endpoint, error);
  if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
  if (error) {
    return Status::IoError(fmt::format("cannot listen on {}: {}; is another process using it?",
                                       options_.listen, error.message()));
  }
  AcceptNext();
  return Status::Ok();
}

void Server::AcceptNext() {
  acceptor_.async_accept([this](const ErrorCode& error, tcp::socket socket) {
    if (closed_) return;
    if (!error) {
      Greet(std::move(socket));
    } else if (error == boost::system::errc::too_many_files_open) {
      HYDRA_LOG_WARN("cannot accept a connection: {}", error.message());
    }
    AcceptNext();
  });
}

void Server::Refuse(const std::shared_ptr<Connection>& connection, const std::string& why) {
  rpc::Goodbye goodbye;
  goodbye.set_message(why);
  connection->Send(FrameType::kGoodbye, 0, goodbye.SerializeAsString());
  connection->Close();
}

// --- Greeting -----------------------------------------------------------------------------------

void Server::Greet(tcp::socket socket) {
  if (greeting_ >= kMaxGreeting) return;  // closes the socket
  auto caller = std::make_shared<Caller>(*io_);
  Connection::Options options;
  // Small until it is known who calls; then the limits and the memory of its kind hold.
  options.limits = kGreetingLimits;
  options.outbox = options_.outbox;
  options.allocate = [this, weak = std::weak_ptr<Caller>(caller)](size_t bytes) {
    const auto known = weak.lock();
    return known != nullptr && known->facts.caller != 0 ? peer_pool_.Get(bytes)
                                                        : client_pool_.Get(bytes);
  };
  caller->connection = Connection::Adopt(std::move(socket), std::move(options));
  Greet(caller);
}

void Server::Accept(std::shared_ptr<Connection> connection) {
  if (closed_) return connection->Close();
  auto caller = std::make_shared<Caller>(*io_);
  caller->connection = std::move(connection);
  Greet(caller);
}

void Server::Greet(const std::shared_ptr<Caller>& caller) {
  ++greeting_;
  caller->connection->Start({[this, caller](const Frame& frame) {
                               if (frame.type == FrameType::kHello) return OnHello(caller, frame);
                               if (frame.type == FrameType::kProof) return OnProof(caller, frame);
                               Refuse(caller->connection, "say hello first");
                             },
                             [caller](const Status&) { caller->timer.cancel(); }});
  caller->timer.expires_after(kGreetingTime);
  caller->timer.async_wait([this, caller](const ErrorCode& error) {
    if (!caller->done) --greeting_;
    if (!error && !caller->done) caller->connection->Close();
    caller->done = true;
  });
}

void Server::OnHello(const std::shared_ptr<Caller>& caller, const Frame& frame) {
  rpc::Hello hello;
  if (!hello.ParseFromString(frame.header)) return Refuse(caller->connection, "what was that?");
  if (!hello.cluster().empty() && hello.cluster() != options_.self.cluster.AsBytes()) {
    return Refuse(
        caller->connection,
        fmt::format("this is node {} of cluster {}, not of the one that was called; check "
                    "the address and the cluster id",
                    options_.self.node, options_.self.cluster.ToString()));
  }
  rpc::Welcome welcome;
  welcome.set_protocol(std::min(hello.protocol(), kProtocolVersion));
  welcome.set_cluster(options_.self.cluster.AsBytes());
  welcome.set_node(options_.self.node);
  welcome.set_feature_level(options_.self.feature_level);
  if (hello.kind() == rpc::Hello::CLIENT) {
    if (clients_.size() >= options_.max_clients) {
      return Refuse(caller->connection,
                    fmt::format("node {} has {} clients, the most it takes; try another node",
                                options_.self.node, clients_.size()));
    }
    caller->connection->Send(FrameType::kWelcome, 0, welcome.SerializeAsString());
    caller->connection->Send(FrameType::kReady, 0, rpc::Ready().SerializeAsString());
    return BecomeClient(caller);
  }
  if (hello.cluster().empty() || hello.node() == 0 || hello.callee() != options_.self.node) {
    return Refuse(caller->connection,
                  fmt::format("this is node {}, not node {}; check the list of peers",
                              options_.self.node, hello.callee()));
  }
  caller->facts = {options_.self.cluster, hello.node(), options_.self.node, hello.nonce(),
                   MakeNonce()};
  caller->hello = hello;
  if (hello.nonce().size() != kNonceBytes) return Refuse(caller->connection, "what was that?");
  welcome.set_nonce(caller->facts.callee_nonce);
  welcome.set_proof(MakeProof(options_.self.secret, ProofOf::kCallee, caller->facts));
  caller->connection->Send(FrameType::kWelcome, 0, welcome.SerializeAsString());
}

void Server::OnProof(const std::shared_ptr<Caller>& caller, const Frame& frame) {
  rpc::Proof proof;
  if (caller->facts.caller == 0 || !proof.ParseFromString(frame.header) ||
      !ProofIsGood(options_.self.secret, ProofOf::kCaller, caller->facts, proof.proof())) {
    HYDRA_LOG_WARN("{} called as node {} and does not know the cluster's secret",
                   caller->connection->peer(), caller->facts.caller);
    return Refuse(caller->connection, "that is not this cluster's secret; check --secret-file");
  }
  // Only now: what a stranger says of a node's store must not be believed.
  const Result<rpc::Ready> admitted = handlers_.admit(caller->hello);
  if (!admitted.ok()) return Refuse(caller->connection, std::string(admitted.status().message()));
  caller->connection->Send(FrameType::kReady, 0, admitted->SerializeAsString());
  BecomePeer(caller);
}

// --- Traffic ------------------------------------------------------------------------------------

void Server::BecomePeer(const std::shared_ptr<Caller>& caller) {
  caller->done = true;
  --greeting_;
  caller->timer.cancel();
  const NodeId node = caller->facts.caller;
  const std::shared_ptr<Connection> connection = caller->connection;
  auto& latest = peers_[node];
  if (latest) latest->Close();
  latest = connection;
  connection->SetLimits(kPeerFrameLimits);
  // `caller` stays with the handlers: its memory comes from the peers' pool.
  connection->Start(
      {[this, caller, node, weak = std::weak_ptr<Connection>(connection)](const Frame& frame) {
         if (frame.type != FrameType::kPeer && frame.type != FrameType::kHeartbeat &&
             frame.type != FrameType::kBlock && frame.type != FrameType::kOwed) {
           return OnReport(node, frame);
         }
         Result<PeerMessage> message = DecodePeerMessage(frame);
         if (!message.ok()) {
           HYDRA_LOG_WARN("node {} sent what makes no sense: {}", node,
                          message.status().ToString());
           return;
         }
         if (SenderOf(*message) != node) return;
         DrillFaults* const faults = options_.faults;
         if (faults == nullptr || !faults->faulty(node)) {
           return handlers_.peer(std::move(*message));
         }
         auto later = std::make_shared<PeerMessage>(std::move(*message));
         faults->Pass(node, [this, later] { handlers_.peer(std::move(*later)); });
       },
       [this, node, weak = std::weak_ptr<Connection>(connection)](const Status&) {
         const auto found = peers_.find(node);
         if (found == peers_.end() || found->second != weak.lock()) return;
         peers_.erase(found);
         if (handlers_.lost) handlers_.lost(node);
       }});
}

// What a peer says now and then, of its groups and of itself.
void Server::OnReport(NodeId node, const Frame& frame) {
  if (frame.type == FrameType::kReport && handlers_.report) {
    rpc::GroupReport report;
    if (report.ParseFromString(frame.header)) handlers_.report(report);
  } else if (frame.type == FrameType::kUnfit && handlers_.unfit) {
    rpc::Unfit unfit;
    if (unfit.ParseFromString(frame.header)) handlers_.unfit(node, unfit);
  }
}

void Server::BecomeClient(const std::shared_ptr<Caller>& caller) {
  caller->done = true;
  --greeting_;
  caller->timer.cancel();
  auto client = std::make_shared<Client>();
  client->connection = caller->connection;
  client->connection->SetLimits(kClientFrameLimits);
  clients_.push_back(client);
  client->connection->Start({[this, weak = std::weak_ptr<Client>(client)](Frame frame) {
                               const ClientPtr known = weak.lock();
                               if (known == nullptr) return;
                               if (frame.type != FrameType::kRequest) {
                                 Refuse(known->connection, "that is no request");
                                 return Drop(known);
                               }
                               ++known->requests;
                               frame.charged = frame.payload_bytes;
                               known->bytes += frame.charged;
                               Throttle(known);
                               handlers_.request(known, frame);
                             },
                             [this, weak = std::weak_ptr<Client>(client)](const Status&) {
                               if (const ClientPtr known = weak.lock()) Drop(known);
                             },
                             [this, weak = std::weak_ptr<Client>(client)] {
                               if (const ClientPtr known = weak.lock()) Throttle(known);
                             }});
}

void Server::Expect(const ClientPtr& client, Question* request, size_t answer_bytes) {
  request->charged += answer_bytes;
  client->bytes += answer_bytes;
  Throttle(client);
}

void Server::Throttle(const ClientPtr& client) {
  const size_t bytes = client->bytes + client->connection->queued_bytes();
  all_bytes_ = all_bytes_ - client->counted + bytes;
  client->counted = bytes;
  // Who is paused has something to be answered or to take, and is looked at again then.
  const size_t most =
      all_bytes_ < options_.max_all_bytes ? options_.max_request_bytes : options_.share_bytes;
  const bool enough = client->requests >= options_.max_requests || bytes >= most;
  if (enough == client->paused) return;
  client->paused = enough;
  enough ? client->connection->Pause() : client->connection->Resume();
}

void Server::Reply(const ClientPtr& client, const Question& request, const rpc::Reply& reply,
                   std::vector<BufferSlice> payload) {
  size_t bytes = 0;
  for (const BufferSlice& slice : payload) bytes += slice.length;
  --client->requests;
  client->bytes -= request.charged;
  if (!client->connection->Send(FrameType::kReply, request.id, EncodeReply(reply),
                                std::move(payload), static_cast<uint32_t>(bytes))) {
    // It does not read its answers: better gone than a queue without end.
    client->connection->Close();
    Drop(client);
    return;
  }
  Throttle(client);
}

void Server::DropPeer(NodeId node) {
  const auto found = peers_.find(node);
  if (found == peers_.end()) return;
  const std::shared_ptr<Connection> connection = found->second;
  peers_.erase(found);
  connection->Close();
}

void Server::Tend() {
  for (auto it = clients_.begin(); it != clients_.end();) {
    const ClientPtr client = *it++;  // Drop takes it out
    if (client->connection->blocked() < kBlockedTime) continue;
    HYDRA_LOG_INFO("hanging up on the client at {}: it does not take its answers",
                   client->connection->peer());
    client->connection->Abort();
    Drop(client);
  }
}

void Server::Drop(const ClientPtr& client) {
  all_bytes_ -= std::exchange(client->counted, 0);
  clients_.remove(client);
}

void Server::Close(const std::string& why) {
  if (closed_) return;
  closed_ = true;
  ErrorCode ignored;
  acceptor_.close(ignored);
  for (const ClientPtr& client : clients_) Refuse(client->connection, why);
  for (const auto& [node, connection] : peers_) connection->Close();
  clients_.clear();
  all_bytes_ = 0;
  peers_.clear();
}

uint64_t Server::copied_bytes() const {
  uint64_t bytes = 0;
  for (const ClientPtr& client : clients_) bytes += client->connection->copied_bytes();
  for (const auto& [node, connection] : peers_) bytes += connection->copied_bytes();
  return bytes;
}

}  // namespace hydra
