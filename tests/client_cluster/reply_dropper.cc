// SPDX-License-Identifier: Apache-2.0
#include "tests/client_cluster/reply_dropper.h"

#include <atomic>
#include <list>
#include <map>
#include <thread>
#include <utility>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <fmt/format.h>

#include "base/rng.h"
#include "client/connection.h"

namespace hydra::test {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

void Forward(const std::shared_ptr<Connection>& to, Frame frame) {
  std::vector<BufferSlice> payload;
  if (frame.payload_bytes > 0) payload.push_back({frame.payload, 0, frame.payload.size()});
  to->Send(frame.type, frame.id, std::move(frame.header), std::move(payload), frame.payload_bytes);
}

}  // namespace

struct ReplyDropper::Impl {
  Impl(const std::vector<std::string>& nodes, unsigned percent, uint64_t seed);
  ~Impl();

  struct Front {
    boost::asio::ip::tcp::endpoint node;
    std::unique_ptr<boost::asio::ip::tcp::acceptor> acceptor;
  };
  struct Pair {
    std::shared_ptr<Connection> client;
    std::shared_ptr<Connection> node;
  };

  void Accept(Front* front);

  boost::asio::io_context context_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  const unsigned percent_;
  Rng rng_;
  std::list<Front> listening_;
  std::map<std::string, std::string> fronts_;
  std::list<std::shared_ptr<Pair>> pairs_;
  std::atomic<uint64_t> dropped_{0};
  std::thread thread_;
};

ReplyDropper::Impl::Impl(const std::vector<std::string>& nodes, unsigned percent, uint64_t seed)
    : work_(context_.get_executor()), percent_(percent), rng_(seed) {
  for (const std::string& node : nodes) {
    const size_t colon = node.rfind(':');
    Front& front = listening_.emplace_back();
    front.node = {asio::ip::make_address(node.substr(0, colon)),
                  static_cast<uint16_t>(std::stoul(node.substr(colon + 1)))};
    front.acceptor = std::make_unique<tcp::acceptor>(
        context_, tcp::endpoint(asio::ip::address_v4::loopback(), 0));
    fronts_[node] = fmt::format("127.0.0.1:{}", front.acceptor->local_endpoint().port());
    Accept(&front);
  }
  thread_ = std::thread([this] { context_.run(); });
}

ReplyDropper::Impl::~Impl() {
  asio::post(context_, [this] {
    for (const auto& pair : pairs_) {
      pair->client->Close();
      pair->node->Close();
    }
    context_.stop();
  });
  thread_.join();
}

void ReplyDropper::Impl::Accept(Front* front) {
  front->acceptor->async_accept(
      [this, front](const boost::system::error_code& error, tcp::socket client) {
        if (error) return;
        tcp::socket node(context_);
        boost::system::error_code refused;
        node.connect(front->node, refused);  // loopback: at once, or not at all
        if (!refused) {
          Connection::Options options;
          options.limits = {.header_bytes = 32u << 20, .payload_bytes = 4u << 20};
          auto pair = std::make_shared<Pair>();
          pair->client = Connection::Adopt(std::move(client), options);
          pair->node = Connection::Adopt(std::move(node), options);
          pairs_.push_back(pair);
          const std::weak_ptr<Pair> weak = pair;
          const auto end = [this, weak](const Status&) {
            const auto held = weak.lock();
            if (!held) return;
            held->client->Close();
            held->node->Close();
            pairs_.remove(held);
          };
          pair->client->Start({[weak](Frame frame) {
                                 if (const auto held = weak.lock()) {
                                   Forward(held->node, std::move(frame));
                                 }
                               },
                               end});
          pair->node->Start({[this, weak](Frame frame) {
                               const auto held = weak.lock();
                               if (!held) return;
                               if (frame.type == FrameType::kReply && rng_.Percent(percent_)) {
                                 ++dropped_;
                                 return;
                               }
                               Forward(held->client, std::move(frame));
                             },
                             end});
        }
        Accept(front);
      });
}

ReplyDropper::ReplyDropper(const std::vector<std::string>& nodes, unsigned percent, uint64_t seed)
    : impl_(std::make_unique<Impl>(nodes, percent, seed)) {}
ReplyDropper::~ReplyDropper() = default;

std::string ReplyDropper::Translate(const std::string& node) const {
  return impl_->fronts_.at(node);
}
uint64_t ReplyDropper::dropped() const { return impl_->dropped_; }

}  // namespace hydra::test
