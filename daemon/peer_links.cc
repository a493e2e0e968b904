// SPDX-License-Identifier: Apache-2.0
#include "daemon/peer_links.h"

#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include <boost/asio/connect.hpp>
#include <fmt/format.h>

#include "base/logging.h"
#include "client/protocol.pb.h"
#include "daemon/handshake.h"

namespace hydra {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using ErrorCode = boost::system::error_code;
using std::chrono::milliseconds;

constexpr milliseconds kFirstRetry(50);
constexpr milliseconds kLongestRetry(2000);
// Of a call, from connecting to the end of the handshake: a peer that is switched off does not
// refuse, and TCP would wait for minutes. Looking a name up may take longer.
constexpr milliseconds kCallTime(2000);
constexpr milliseconds kLookUpTime(30'000);
// A peer that takes nothing of what is queued for so long is stopped or cut off. What is queued
// keeps the memory of clients' requests, which others need.
constexpr milliseconds kBlockedTime(2000);
// ... and one that is sent little, and acknowledges none of it, is noticed by TCP.
constexpr milliseconds kUnacknowledgedTime(3000);

}  // namespace

struct PeerLinks::Link {
  explicit Link(asio::io_context& io) : resolver(io), timer(io) {}

  NodeId node = 0;
  std::string address;
  tcp::resolver resolver;
  std::shared_ptr<tcp::socket> socket;  // while it connects
  uint64_t call = 0;                    // what comes of an earlier one is not meant any more
  asio::steady_timer timer;             // of the call, or until the next one
  std::shared_ptr<Connection> connection;
  HandshakeFacts facts;
  bool ready = false;
  bool gone = false;
  milliseconds retry = kFirstRetry;
  std::string refusal;
};

PeerLinks::PeerLinks(asio::io_context* io, NodeIdentity self, size_t queue_bytes, Handlers handlers,
                     Outbox* outbox, DrillFaults* faults)
    : io_(io),
      self_(std::move(self)),
      queue_bytes_(queue_bytes),
      handlers_(std::move(handlers)),
      outbox_(outbox),
      faults_(faults),
      rng_(self_.node) {}

PeerLinks::~PeerLinks() { Close(); }

void PeerLinks::Close() {
  closed_ = true;
  SetPeers({});
}

void PeerLinks::SetPeers(const std::map<NodeId, std::string>& addresses) {
  ErrorCode ignored;
  for (auto it = links_.begin(); it != links_.end();) {
    const auto wanted = addresses.find(it->first);
    if (wanted != addresses.end() && wanted->second == it->second->address) {
      ++it;
      continue;
    }
    Link& link = *it->second;
    link.gone = true;
    link.timer.cancel();
    link.resolver.cancel();
    if (link.socket) link.socket->close(ignored);
    if (link.connection) link.connection->Close();
    it = links_.erase(it);
  }
  for (const auto& [node, address] : addresses) {
    if (node == self_.node || links_.contains(node)) continue;
    auto link = std::make_shared<Link>(*io_);
    link->node = node;
    link->address = address;
    links_[node] = link;
    Dial(link);
  }
}

void PeerLinks::Dial(const std::shared_ptr<Link>& link) {
  if (link->gone) return;
  const size_t colon = link->address.rfind(':');
  const std::string host = link->address.substr(0, colon);
  const std::string port = colon == std::string::npos ? "" : link->address.substr(colon + 1);
  const uint64_t call = ++link->call;
  LimitCall(link, kLookUpTime);
  link->resolver.async_resolve(
      host, port,
      [this, link, call](const ErrorCode& error, const tcp::resolver::results_type& found) {
        if (link->gone || link->call != call) return;
        if (error) return Redial(link, Status::Unavailable(error.message()));
        LimitCall(link, kCallTime);
        // Each call begins with another address, because the first may take all of its time.
        std::vector<tcp::endpoint> addresses(found.begin(), found.end());
        std::rotate(addresses.begin(),
                    addresses.begin() + static_cast<ptrdiff_t>(call % addresses.size()),
                    addresses.end());
        link->socket = std::make_shared<tcp::socket>(*io_);
        asio::async_connect(*link->socket, addresses,
                            [this, link, call, socket = link->socket](const ErrorCode& failed,
                                                                      const tcp::endpoint&) {
                              if (link->gone || link->call != call) return;
                              if (failed) {
                                return Redial(link, Status::Unavailable(failed.message()));
                              }
                              link->socket.reset();
                              Greet(link, std::move(*socket));
                            });
      });
}

void PeerLinks::LimitCall(const std::shared_ptr<Link>& link, milliseconds time) {
  link->timer.expires_after(time);
  link->timer.async_wait([this, link, call = link->call](const ErrorCode& error) {
    if (error || link->gone || link->ready || link->call != call) return;
    Redial(link, Status::Unavailable(link->connection ? "no answer to the greeting"
                                                      : "the connection takes too long"));
  });
}

void PeerLinks::Greet(const std::shared_ptr<Link>& link, tcp::socket socket) {
  const unsigned unacknowledged = kUnacknowledgedTime.count();
  // Where it cannot be set, a peer that vanished is noticed later.
  (void)setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_USER_TIMEOUT, &unacknowledged,
                   sizeof(unacknowledged));
  Connection::Options options;
  options.queue_bytes = queue_bytes_;
  options.outbox = outbox_;
  link->connection = Connection::Adopt(std::move(socket), std::move(options));
  link->ready = false;
  link->facts = {self_.cluster, self_.node, link->node, MakeNonce(), {}};
  rpc::Hello hello;
  hello.set_kind(rpc::Hello::PEER);
  hello.set_protocol(kProtocolVersion);
  hello.set_cluster(self_.cluster.AsBytes());
  hello.set_node(self_.node);
  hello.set_callee(link->node);
  hello.set_nonce(link->facts.caller_nonce);
  hello.set_feature_level(self_.feature_level);
  hello.set_store(self_.store.AsBytes());
  hello.set_iscsi(self_.iscsi);
  hello.set_http(self_.http);
  hello.set_joining(self_.joining);
  link->connection->Start({[this, link](const Frame& frame) { OnFrame(link, frame); },
                           [this, link](const Status& why) { Redial(link, why); }});
  link->connection->Send(FrameType::kHello, 0, hello.SerializeAsString());
}

void PeerLinks::OnFrame(const std::shared_ptr<Link>& link, const Frame& frame) {
  if (link->gone || link->ready) return;  // nothing else is said on this side
  if (frame.type == FrameType::kGoodbye) {
    rpc::Goodbye goodbye;
    if (!goodbye.ParseFromString(frame.header)) return;
    if (goodbye.message() != link->refusal) {
      HYDRA_LOG_WARN("node {} refuses this node: {}", link->node, goodbye.message());
    }
    link->refusal = goodbye.message();
    return Redial(link, Status::Unavailable(goodbye.message()));
  }
  if (frame.type == FrameType::kReady) {
    link->ready = true;
    link->retry = kFirstRetry;
    link->refusal.clear();
    link->timer.cancel();
    HYDRA_LOG_INFO("connected to node {} at {}", link->node, link->address);
    rpc::Ready ready;
    if (handlers_.let_in && ready.ParseFromString(frame.header) && ready.incarnation() != 0) {
      handlers_.let_in(ready.incarnation());
    }
    return;
  }
  rpc::Welcome welcome;
  if (frame.type != FrameType::kWelcome || !welcome.ParseFromString(frame.header)) return;
  link->facts.callee_nonce = welcome.nonce();
  std::string wrong;
  if (welcome.cluster() != self_.cluster.AsBytes()) {
    wrong = "belongs to another cluster; check the list of peers and the cluster id";
  } else if (welcome.node() != link->node) {
    wrong = fmt::format("is node {}; check the list of peers", welcome.node());
  } else if (!ProofIsGood(self_.secret, ProofOf::kCallee, link->facts, welcome.proof())) {
    wrong = "does not have this node's secret; check --secret-file on both";
  }
  if (!wrong.empty()) {
    if (wrong != link->refusal) {
      HYDRA_LOG_WARN("who answers as node {} at {} {}", link->node, link->address, wrong);
    }
    link->refusal = wrong;
    return Redial(link, Status::FailedPrecondition(wrong));
  }
  rpc::Proof proof;
  proof.set_proof(MakeProof(self_.secret, ProofOf::kCaller, link->facts));
  link->connection->Send(FrameType::kProof, 0, proof.SerializeAsString());
}

void PeerLinks::Redial(const std::shared_ptr<Link>& link, const Status& why) {
  if (link->gone) return;
  if (link->ready) {
    HYDRA_LOG_WARN("lost the connection to node {}: {}", link->node, why.message());
    if (handlers_.lost) handlers_.lost(link->node);
  } else {
    HYDRA_LOG_DEBUG("node {} at {} cannot be reached: {}", link->node, link->address,
                    why.message());
  }
  link->ready = false;
  ++link->call;
  link->resolver.cancel();
  ErrorCode ignored;
  if (link->socket) link->socket->close(ignored);
  link->socket.reset();
  if (link->connection) link->connection->Abort();
  link->connection.reset();
  const auto wait = link->retry / 2 +
                    milliseconds(rng_.Below(static_cast<uint64_t>(link->retry.count()) / 2 + 1));
  link->retry = std::min(link->retry * 2, kLongestRetry);
  link->timer.expires_after(wait);
  link->timer.async_wait([this, link](const ErrorCode& error) {
    if (!error && !link->gone) Dial(link);
  });
}

void PeerLinks::Tend() {
  for (const auto& [node, link] : links_) {
    if (link->connection && link->connection->blocked() >= kBlockedTime) {
      Redial(link, Status::Unavailable("it takes nothing any more"));
    }
  }
}

void PeerLinks::Send(const PeerMessage& message) {
  const NodeId to = ReceiverOf(message);
  if (!connected(to)) {
    ++stats_.dropped;
    return;
  }
  PeerFrame frame = EncodePeerMessage(message);
  if (faults_ == nullptr || !faults_->faulty(to)) return SendNow(to, std::move(frame));
  auto later = std::make_shared<PeerFrame>(std::move(frame));
  faults_->Pass(to, [this, to, later] { SendNow(to, std::move(*later)); });
}

void PeerLinks::SendNow(NodeId to, PeerFrame frame) {
  const auto found = links_.find(to);
  if (found == links_.end() || !found->second->ready) {
    ++stats_.dropped;
    return;
  }
  if (found->second->connection->Send(frame.type, 0, std::move(frame.header),
                                      std::move(frame.payload), frame.payload_bytes)) {
    ++stats_.sent;
  } else {
    ++stats_.dropped;
  }
}

void PeerLinks::Send(NodeId to, const rpc::GroupReport& report) {
  Send(to, FrameType::kReport, report.SerializeAsString());
}

void PeerLinks::Send(NodeId to, const rpc::Unfit& unfit) {
  Send(to, FrameType::kUnfit, unfit.SerializeAsString());
}

void PeerLinks::Send(NodeId to, FrameType type, std::string header) {
  const auto found = links_.find(to);
  const bool sent = found != links_.end() && found->second->ready &&
                    found->second->connection->Send(type, 0, std::move(header));
  ++(sent ? stats_.sent : stats_.dropped);
}

bool PeerLinks::connected(NodeId node) const {
  const auto found = links_.find(node);
  return found != links_.end() && found->second->ready;
}

std::string PeerLinks::refusal(NodeId node) const {
  const auto found = links_.find(node);
  return found == links_.end() ? "" : found->second->refusal;
}

}  // namespace hydra
