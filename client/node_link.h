// SPDX-License-Identifier: Apache-2.0
//
// The way to one node: a connection that is made when it is needed, and calls over it. Everything
// happens on the thread that runs the io_context. Internal to client/.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>

#include "base/buffer.h"
#include "base/ids.h"
#include "base/rng.h"
#include "base/status.h"
#include "client/connection.h"
#include "client/protocol.pb.h"

namespace hydra {

class NodeLink : public std::enable_shared_from_this<NodeLink> {
 public:
  struct Options {
    std::string name;     // of this client, for the node's log
    std::string cluster;  // 16 bytes; empty: whichever cluster the node is of
    std::chrono::milliseconds connect_timeout{2'000};
    std::chrono::milliseconds max_back_off{1'000};
    std::function<Result<Buffer>(size_t bytes)> allocate;
    // A connection to the address that needs no socket, or null. May be left out.
    std::function<std::shared_ptr<Connection>(const std::string& address)> dial;
    uint64_t seed = 1;
  };
  struct Answer {
    Status status;      // not OK: there is no reply
    bool sent = false;  // there is no reply, and the node may have got the request
    rpc::Reply reply;
    Buffer payload;
    uint32_t payload_bytes = 0;
  };
  using Done = std::function<void(Answer&& answer)>;

  NodeLink(boost::asio::io_context* context, std::string address, Options options);
  ~NodeLink();

  // `done` is called once, never from within. After a failed attempt to connect, calls fail at once
  // until the back-off is over.
  void Call(std::string header, std::vector<BufferSlice> payload, uint32_t payload_bytes,
            std::chrono::milliseconds patience, Done done);

  // Drops the connection if nothing at all came for as long as a call has patience: the node hangs,
  // or the network lost the connection without a word.
  void CheckSilence(std::chrono::steady_clock::time_point now);

  // All calls fail with `why`; later ones connect anew.
  void Drop(const Status& why);

  // Only a node of this cluster is accepted from now on.
  void set_cluster(const std::string& cluster) { options_.cluster = cluster; }

  const std::string& address() const { return address_; }
  NodeId node() const { return node_; }                  // 0: not known yet
  const std::string& cluster() const { return found_; }  // that the node said it is of
  bool ready() const { return state_ == State::kReady; }
  bool usable() const;  // connected, or a call would try to
  // Whether a call would leave at once. If not, connects, unless the back-off is not over.
  bool Reach();
  // Calls are out, and it has said nothing for so long.
  bool SilentFor(std::chrono::milliseconds time, std::chrono::steady_clock::time_point now) const;
  size_t outstanding() const { return calls_.size() + waiting_.size(); }

 private:
  using Clock = std::chrono::steady_clock;
  enum class State { kDown, kConnecting, kReady };
  struct Outgoing {
    std::string header;
    std::vector<BufferSlice> payload;
    uint32_t payload_bytes = 0;
    std::chrono::milliseconds patience{};
    Done done;
  };
  struct Waiting {
    Done done;
    Clock::time_point since;
    std::chrono::milliseconds patience{};
  };

  void Connect();
  void OnConnected(uint64_t attempt, std::shared_ptr<Connection> connection);
  void OnHandshake(Frame frame);
  void OnFrame(Frame frame);
  void OnReady();
  void Transmit(Outgoing call);
  void FailLater(Done done, Status why, bool sent);

  boost::asio::io_context* context_;
  const std::string address_;
  Options options_;
  Rng rng_;
  State state_ = State::kDown;
  NodeId node_ = 0;
  std::string found_;
  bool welcomed_ = false;
  uint64_t attempt_ = 0;   // tells late events of earlier attempts to connect
  unsigned failures_ = 0;  // attempts to connect since one worked
  Clock::time_point retry_at_{};
  Status last_error_;
  boost::asio::ip::tcp::resolver resolver_;
  boost::asio::steady_timer timer_;
  std::shared_ptr<boost::asio::ip::tcp::socket> connecting_;
  std::shared_ptr<Connection> connection_;
  std::deque<Outgoing> waiting_;  // for the connection
  std::unordered_map<uint64_t, Waiting> calls_;
  uint64_t next_id_ = 1;
  Clock::time_point last_received_{};  // or when the first call that is out left
};

}  // namespace hydra
