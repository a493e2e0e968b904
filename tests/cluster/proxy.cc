// SPDX-License-Identifier: Apache-2.0
#include "tests/cluster/proxy.h"

#include <atomic>
#include <deque>
#include <set>
#include <string>
#include <thread>

#include <boost/asio.hpp>

#include "base/coding.h"
#include "base/rng.h"
#include "client/frame.h"
#include "client/protocol.pb.h"

namespace hydra::cluster_test {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using ErrorCode = boost::system::error_code;

constexpr FrameLimits kAnyLength = {.header_bytes = 64u << 20, .payload_bytes = 64u << 20};

}  // namespace

// Everything happens on `thread`, except that the counters and the faults are read and set by
// others.
struct Proxy::Impl {
  // One connection through the proxy.
  struct Pair : std::enable_shared_from_this<Pair> {
    Pair(Impl* owner, tcp::socket from) : proxy(owner), client(std::move(from)), node(owner->io) {}

    void Begin() {
      node.async_connect(proxy->target, [self = shared_from_this()](const ErrorCode& error) {
        if (error) return self->Close();
        self->Pump(&self->client, &self->node, &self->upward, false);
        self->Pump(&self->node, &self->client, &self->downward, true);
      });
    }

    void Close() {
      ErrorCode ignored;
      client.close(ignored);
      node.close(ignored);
    }

    struct Direction {
      char buffer[1 << 16];
      std::string held;  // received, not a whole frame yet
      std::string out;
    };

    void Pump(tcp::socket* from, tcp::socket* to, Direction* way, bool answers) {
      from->async_read_some(asio::buffer(way->buffer), [=, self = shared_from_this()](
                                                           const ErrorCode& error, size_t got) {
        if (error) return self->Close();
        const std::string_view bytes(way->buffer, got);
        bool cut = false;
        if (!answers) {
          self->LookAtHello(bytes);
          way->out.assign(bytes);
        } else {
          cut = self->Filter(bytes, way);
        }
        asio::async_write(*to, asio::buffer(way->out), [=](const ErrorCode& failed, size_t) {
          if (failed || cut) return self->Close();
          self->Pump(from, to, way, answers);
        });
      });
    }

    // The first frame of a caller says whether it is a client.
    void LookAtHello(std::string_view bytes) {
      if (known) return;
      hello.append(bytes);
      if (hello.size() < kFrameHeadBytes) return;
      const auto head = DecodeFrameHead(AsBytes(hello).first(kFrameHeadBytes), kAnyLength);
      if (head.ok() && hello.size() < kFrameHeadBytes + head->header_bytes) return;
      known = true;
      rpc::Hello message;
      is_client = head.ok() &&
                  message.ParseFromString(hello.substr(kFrameHeadBytes, head->header_bytes)) &&
                  message.kind() == rpc::Hello::CLIENT;
    }

    // Puts what may pass into `out`. True: cut the connection behind it.
    bool Filter(std::string_view bytes, Direction* way) {
      way->out.clear();
      if (!is_client) {
        way->out.assign(bytes);
        return false;
      }
      way->held.append(bytes);
      while (way->held.size() >= kFrameHeadBytes) {
        const auto head = DecodeFrameHead(AsBytes(way->held).first(kFrameHeadBytes), kAnyLength);
        if (!head.ok()) return true;
        const size_t length = kFrameHeadBytes + head->header_bytes + head->payload_bytes;
        if (way->held.size() < length) break;
        if (head->type == FrameType::kReply) {
          ++proxy->replies;
          const uint64_t dice = proxy->rng.Below(100);
          const bool cut = dice < proxy->cut;
          if (cut || dice < proxy->cut + proxy->drop) {
            ++proxy->lost;
            way->held.erase(0, length);
            if (cut) return true;
            continue;
          }
        }
        way->out.append(way->held, 0, length);
        way->held.erase(0, length);
      }
      return false;
    }

    Impl* const proxy;
    tcp::socket client;
    tcp::socket node;
    Direction upward;
    Direction downward;
    std::string hello;
    bool known = false;
    bool is_client = false;
  };

  Impl(uint16_t target_port, uint64_t seed)
      : target(asio::ip::address_v4::loopback(), target_port),
        acceptor(io, tcp::endpoint(asio::ip::address_v4::loopback(), 0)),
        rng(seed) {
    Accept();
    thread = std::thread([this] { io.run(); });
  }
  ~Impl() {
    io.stop();
    thread.join();
  }

  void Accept() {
    acceptor.async_accept([this](const ErrorCode& error, tcp::socket socket) {
      if (error) return;
      std::make_shared<Pair>(this, std::move(socket))->Begin();
      Accept();
    });
  }

  asio::io_context io;
  const tcp::endpoint target;
  tcp::acceptor acceptor;
  Rng rng;
  std::atomic<unsigned> drop{0};
  std::atomic<unsigned> cut{0};
  std::atomic<uint64_t> replies{0};
  std::atomic<uint64_t> lost{0};
  std::thread thread;
};

Proxy::Proxy(uint16_t target_port, uint64_t seed)
    : impl_(std::make_unique<Impl>(target_port, seed)) {}
Proxy::~Proxy() = default;

uint16_t Proxy::port() const { return impl_->acceptor.local_endpoint().port(); }
void Proxy::Set(const Faults& faults) {
  impl_->drop = faults.drop_percent;
  impl_->cut = faults.cut_percent;
}
uint64_t Proxy::replies() const { return impl_->replies; }
uint64_t Proxy::lost() const { return impl_->lost; }

}  // namespace hydra::cluster_test
