// SPDX-License-Identifier: Apache-2.0
#include "client/node_link.h"

#include <algorithm>
#include <utility>

#include <boost/asio/connect.hpp>
#include <boost/asio/post.hpp>
#include <fmt/format.h>

#include "base/logging.h"
#include "client/io_codec.h"

namespace hydra {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using ErrorCode = boost::system::error_code;

constexpr uint32_t kProtocol = 1;
// A catalogue is in a header, and grows with the number of volumes.
constexpr uint32_t kMaxHeaderBytes = 32u << 20;
constexpr size_t kMaxWaiting = 8192;
constexpr std::chrono::milliseconds kFirstBackOff(20);

}  // namespace

NodeLink::NodeLink(asio::io_context* context, std::string address, Options options)
    : context_(context),
      address_(std::move(address)),
      options_(std::move(options)),
      rng_(options_.seed),
      resolver_(*context),
      timer_(*context) {}

NodeLink::~NodeLink() {
  if (connection_) connection_->Close();
}

bool NodeLink::usable() const { return state_ != State::kDown || Clock::now() >= retry_at_; }

bool NodeLink::Reach() {
  if (state_ == State::kDown && usable()) Connect();
  return ready();
}

bool NodeLink::SilentFor(std::chrono::milliseconds time, Clock::time_point now) const {
  return state_ != State::kDown && outstanding() > 0 && now - last_received_ >= time;
}

void NodeLink::FailLater(Done done, Status why, bool sent) {
  asio::post(*context_, [done = std::move(done), why = std::move(why), sent] {
    Answer answer;
    answer.status = why;
    answer.sent = sent;
    done(std::move(answer));
  });
}

void NodeLink::Call(std::string header, std::vector<BufferSlice> payload, uint32_t payload_bytes,
                    std::chrono::milliseconds patience, Done done) {
  Outgoing call{std::move(header), std::move(payload), payload_bytes, patience, std::move(done)};
  if (state_ == State::kReady) return Transmit(std::move(call));
  if (!usable()) return FailLater(std::move(call.done), last_error_, false);
  if (waiting_.size() >= kMaxWaiting) {
    return FailLater(std::move(call.done),
                     Status::Busy(fmt::format("too many calls wait for {}", address_)), false);
  }
  waiting_.push_back(std::move(call));
  if (state_ == State::kDown) Connect();
}

void NodeLink::Transmit(Outgoing call) {
  const uint64_t id = next_id_++;
  if (!connection_->Send(FrameType::kRequest, id, std::move(call.header), std::move(call.payload),
                         call.payload_bytes)) {
    return FailLater(std::move(call.done),
                     Status::Busy(fmt::format("too much waits to be sent to {}", address_)), false);
  }
  const Clock::time_point now = Clock::now();
  if (calls_.empty()) last_received_ = now;
  calls_.emplace(id, Waiting{std::move(call.done), now, call.patience});
}

// --- Connecting ---------------------------------------------------------------------------------

void NodeLink::Connect() {
  state_ = State::kConnecting;
  last_received_ = Clock::now();
  welcomed_ = false;
  const uint64_t attempt = ++attempt_;
  if (auto connection = options_.dial ? options_.dial(address_) : nullptr) {
    return OnConnected(attempt, std::move(connection));
  }
  const size_t colon = address_.rfind(':');
  if (colon == std::string::npos) {
    asio::post(*context_, [self = shared_from_this()] {
      self->Drop(Status::InvalidArgument(
          fmt::format("'{}' is no address: give host:port", self->address_)));
    });
    return;
  }
  timer_.expires_after(options_.connect_timeout);
  timer_.async_wait([self = shared_from_this(), attempt](const ErrorCode& error) {
    if (error || attempt != self->attempt_ || self->state_ != State::kConnecting) return;
    self->Drop(Status::Unavailable(fmt::format("{} did not answer within {} ms", self->address_,
                                               self->options_.connect_timeout.count())));
  });
  std::string host = address_.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);  // [::1]:7101
  }
  resolver_.async_resolve(
      host, address_.substr(colon + 1),
      [self = shared_from_this(), attempt](const ErrorCode& error,
                                           const tcp::resolver::results_type& endpoints) {
        if (attempt != self->attempt_) return;
        if (error) {
          return self->Drop(Status::Unavailable(
              fmt::format("cannot resolve {}: {}", self->address_, error.message())));
        }
        auto socket = std::make_shared<tcp::socket>(*self->context_);
        self->connecting_ = socket;
        asio::async_connect(
            *socket, endpoints,
            [self, attempt, socket](const ErrorCode& failed, const tcp::endpoint&) {
              if (attempt != self->attempt_) return;
              self->connecting_.reset();
              if (failed) {
                return self->Drop(Status::Unavailable(
                    fmt::format("cannot connect to {}: {}", self->address_, failed.message())));
              }
              Connection::Options options;
              options.limits.header_bytes = kMaxHeaderBytes;
              options.allocate = self->options_.allocate;
              self->OnConnected(attempt, Connection::Adopt(std::move(*socket), std::move(options)));
            });
      });
}

void NodeLink::OnConnected(uint64_t attempt, std::shared_ptr<Connection> connection) {
  connection_ = std::move(connection);
  // The connection belongs to this link, so its handlers must not keep the link alive.
  const std::weak_ptr<NodeLink> weak = weak_from_this();
  connection_->Start(
      {[weak, attempt](Frame frame) {
         const auto self = weak.lock();
         if (!self || attempt != self->attempt_) return;
         self->last_received_ = Clock::now();
         if (self->state_ == State::kReady) {
           self->OnFrame(std::move(frame));
         } else {
           self->OnHandshake(std::move(frame));
         }
       },
       [weak, attempt](const Status& why) {
         const auto self = weak.lock();
         if (!self || attempt != self->attempt_) return;
         self->Drop(Status(why.code(), fmt::format("{}: {}", self->address_, why.message())));
       }});
  rpc::Hello hello;
  hello.set_kind(rpc::Hello::CLIENT);
  hello.set_protocol(kProtocol);
  hello.set_cluster(options_.cluster);
  hello.set_name(options_.name);
  connection_->Send(FrameType::kHello, 0, hello.SerializeAsString());
}

void NodeLink::OnHandshake(Frame frame) {
  if (frame.type == FrameType::kGoodbye) {
    rpc::Goodbye goodbye;
    const bool said = goodbye.ParseFromString(frame.header) && !goodbye.message().empty();
    return Drop(Status::Unavailable(fmt::format("{} refused the connection: {}", address_,
                                                said ? goodbye.message() : "it gave no reason")));
  }
  if (frame.type == FrameType::kWelcome && !welcomed_) {
    rpc::Welcome welcome;
    if (!welcome.ParseFromString(frame.header) || welcome.node() == 0) {
      return Drop(Status::Corruption(
          fmt::format("{} answered with a Welcome that makes no sense", address_)));
    }
    if (!options_.cluster.empty() && welcome.cluster() != options_.cluster) {
      return Drop(Status::FailedPrecondition(
          fmt::format("{} is a node of another cluster: correct the address", address_)));
    }
    if (welcome.protocol() != kProtocol) {
      return Drop(Status::Unsupported(
          fmt::format("{} speaks protocol {}, this client {}: upgrade the older of the two",
                      address_, welcome.protocol(), kProtocol)));
    }
    welcomed_ = true;
    node_ = welcome.node();
    found_ = welcome.cluster();
    return;
  }
  if (frame.type == FrameType::kReady && welcomed_) return OnReady();
  Drop(Status::Corruption(fmt::format("{} answered the greeting with a frame of type {}", address_,
                                      static_cast<int>(frame.type))));
}

void NodeLink::OnReady() {
  state_ = State::kReady;
  failures_ = 0;
  last_error_ = Status::Ok();
  timer_.cancel();
  std::deque<Outgoing> waiting;
  waiting.swap(waiting_);
  for (Outgoing& call : waiting) Transmit(std::move(call));
}

// --- Connected ----------------------------------------------------------------------------------

void NodeLink::OnFrame(Frame frame) {
  if (frame.type == FrameType::kGoodbye) {
    rpc::Goodbye goodbye;
    if (!goodbye.ParseFromString(frame.header)) goodbye.Clear();
    return Drop(
        Status::Unavailable(fmt::format("{} said goodbye: {}", address_, goodbye.message())));
  }
  if (frame.type != FrameType::kReply) {
    return Drop(Status::Corruption(fmt::format("{} sent a frame of type {} to a client", address_,
                                               static_cast<int>(frame.type))));
  }
  const auto found = calls_.find(frame.id);
  if (found == calls_.end()) {
    return Drop(Status::Corruption(
        fmt::format("{} answered call {}, which is not out", address_, frame.id)));
  }
  Answer answer;
  if (!DecodeReply(frame.header, &answer.reply)) {
    return Drop(Status::Corruption(fmt::format("{} sent a reply that cannot be read", address_)));
  }
  answer.payload = std::move(frame.payload);
  answer.payload_bytes = frame.payload_bytes;
  const Done done = std::move(found->second.done);
  calls_.erase(found);
  done(std::move(answer));
}

void NodeLink::CheckSilence(Clock::time_point now) {
  if (state_ != State::kReady) return;
  const auto silence = now - last_received_;
  for (const auto& [id, call] : calls_) {
    if (silence < call.patience || now - call.since < call.patience) continue;
    return Drop(Status::Unavailable(
        fmt::format("{} has been silent for {} ms", address_, call.patience.count())));
  }
}

void NodeLink::Drop(const Status& why) {
  ++attempt_;
  HYDRA_LOG_DEBUG("link: {}", why.ToString());
  // The first attempt after a connection that worked may come at once.
  std::chrono::milliseconds back_off(0);
  if (state_ == State::kConnecting) {
    back_off = std::min(options_.max_back_off, kFirstBackOff * (1 << std::min(failures_++, 8u)));
    back_off = back_off / 2 + std::chrono::milliseconds(rng_.Below(back_off.count() / 2 + 1));
  }
  retry_at_ = Clock::now() + back_off;
  state_ = State::kDown;
  last_error_ = why;
  resolver_.cancel();
  timer_.cancel();
  if (connecting_) {
    ErrorCode ignored;
    connecting_->close(ignored);
    connecting_.reset();
  }
  if (connection_) connection_->Close();
  connection_.reset();
  std::deque<Outgoing> waiting;
  waiting.swap(waiting_);
  std::unordered_map<uint64_t, Waiting> calls;
  calls.swap(calls_);
  for (Outgoing& call : waiting) FailLater(std::move(call.done), why, false);
  for (auto& [id, call] : calls) FailLater(std::move(call.done), why, true);
}

}  // namespace hydra
