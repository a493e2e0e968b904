// SPDX-License-Identifier: Apache-2.0
#include "iscsi/portal.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <set>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fmt/format.h>

#include "base/logging.h"
#include "iscsi/connection.h"

namespace hydra::iscsi {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using ErrorCode = boost::system::error_code;

constexpr std::chrono::milliseconds kPoll(5);
const auto kAsTuple = asio::as_tuple(asio::use_awaitable);

}  // namespace

class Portal::Impl : public Connection::Owner, public std::enable_shared_from_this<Impl> {
 public:
  Impl(asio::io_context* io, TargetDirectory* directory, PortalOptions options)
      : io_(io),
        directory_(directory),
        options_(std::move(options)),
        memory_(std::make_shared<BufferPool>(options_.memory_bytes)),
        acceptor_(*io) {}

  Status Listen();
  uint16_t port() const { return acceptor_.local_endpoint().port(); }
  void Stop(std::function<void()> done);
  std::vector<SessionInfo> sessions() const;

  // --- Connection::Owner ---
  const PortalOptions& options() const override { return options_; }
  TargetDirectory* directory() override { return directory_; }
  std::shared_ptr<BufferPool> memory() override { return memory_; }
  uint16_t NewTsih() override {
    if (++tsih_ == 0) tsih_ = 1;
    return tsih_;
  }
  void Reinstate(const std::string& key, const Connection* connection,
                 std::function<void()> done) override;
  bool Register(const std::string& key, std::shared_ptr<Connection> connection) override;
  void Gone(const std::shared_ptr<Connection>& connection) override;

 private:
  asio::awaitable<void> Accept();
  asio::awaitable<void> EndSessions(std::string key, const Connection* connection);
  asio::awaitable<void> StopStep();
  void CallStopped();

  asio::io_context* io_;
  TargetDirectory* directory_;
  PortalOptions options_;
  std::shared_ptr<BufferPool> memory_;
  tcp::acceptor acceptor_;
  std::set<std::shared_ptr<Connection>> connections_;
  // Sessions by initiator port and target, until they are drained.
  std::multimap<std::string, std::shared_ptr<Connection>> registered_;
  // Who logs in with that key and waits for its turn: whoever came last.
  std::map<std::string, const Connection*> logins_;
  uint16_t tsih_ = 0;
  bool stopping_ = false;
  bool stopped_ = false;
  std::vector<std::function<void()>> stop_calls_;
};

Status Portal::Impl::Listen() {
  const size_t colon = options_.listen.rfind(':');
  if (colon == std::string::npos) {
    return Status::InvalidArgument(fmt::format("'{}' is not HOST:PORT", options_.listen));
  }
  std::string host = options_.listen.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  ErrorCode error;
  tcp::resolver resolver(*io_);
  const auto found = resolver.resolve(host, options_.listen.substr(colon + 1), error);
  if (error || found.empty()) {
    return Status::InvalidArgument(
        fmt::format("cannot resolve {}: {}", options_.listen, error.message()));
  }
  const tcp::endpoint endpoint = *found.begin();
  acceptor_.open(endpoint.protocol(), error);
  if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor_.bind(endpoint, error);
  if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
  if (error) {
    return Status::IoError(
        fmt::format("cannot listen on {}: {}", options_.listen, error.message()));
  }
  asio::co_spawn(
      *io_, [self = shared_from_this()] { return self->Accept(); }, asio::detached);
  return Status::Ok();
}

asio::awaitable<void> Portal::Impl::Accept() {
  while (!stopping_) {
    auto [error, socket] = co_await acceptor_.async_accept(kAsTuple);
    if (stopping_ || error == asio::error::operation_aborted) co_return;
    if (error) {
      // Out of descriptors, most likely: let others end first.
      asio::steady_timer pause(*io_, std::chrono::milliseconds(100));
      co_await pause.async_wait(kAsTuple);
      continue;
    }
    if (connections_.size() >= options_.max_connections) {
      HYDRA_LOG_WARN("iSCSI: refused a connection: there are {}", connections_.size());
      continue;
    }
    const bool v6 = socket.local_endpoint(error).protocol() == tcp::v6();
    const int descriptor = error ? -1 : socket.release(error);
    if (error) continue;  // gone already
    connections_.insert(Connection::Start(io_, descriptor, v6, this));
  }
}

void Portal::Impl::Gone(const std::shared_ptr<Connection>& connection) {
  connections_.erase(connection);
  std::erase_if(registered_, [&](const auto& entry) { return entry.second == connection; });
}

void Portal::Impl::Reinstate(const std::string& key, const Connection* connection,
                             std::function<void()> done) {
  logins_[key] = connection;
  asio::co_spawn(
      *io_,
      [self = shared_from_this(), key, connection] { return self->EndSessions(key, connection); },
      [done = std::move(done)](std::exception_ptr) { done(); });
}

bool Portal::Impl::Register(const std::string& key, std::shared_ptr<Connection> connection) {
  const auto last = logins_.find(key);
  if (last == logins_.end() || last->second != connection.get()) return false;
  logins_.erase(last);
  registered_.emplace(key, std::move(connection));
  return true;
}

asio::awaitable<void> Portal::Impl::EndSessions(std::string key, const Connection* connection) {
  while (registered_.contains(key)) {
    const auto last = logins_.find(key);
    if (last == logins_.end() || last->second != connection) co_return;
    const auto [begin, end] = registered_.equal_range(key);
    std::vector<std::shared_ptr<Connection>> old;
    for (auto it = begin; it != end; ++it) old.push_back(it->second);
    for (const auto& other : old) other->Close("the initiator logged in anew");
    asio::steady_timer pause(*io_, kPoll);
    co_await pause.async_wait(kAsTuple);
  }
}

void Portal::Impl::Stop(std::function<void()> done) {
  stop_calls_.push_back(std::move(done));
  if (stopped_) return CallStopped();
  if (stopping_) return;
  stopping_ = true;
  ErrorCode ignored;
  acceptor_.close(ignored);
  asio::co_spawn(
      *io_, [self = shared_from_this()] { return self->StopStep(); }, asio::detached);
}

void Portal::Impl::CallStopped() {
  stopped_ = true;
  for (const auto& call : std::exchange(stop_calls_, {})) call();
}

asio::awaitable<void> Portal::Impl::StopStep() {
  const Nanos patience = options_.stop_patience;
  const auto ask = connections_;
  for (const auto& connection : ask) {
    connection->RequestLogout(static_cast<uint16_t>(patience / kSecond + 1));
  }
  const Nanos until = RealClock().Now() + patience;
  bool closed = false;
  while (!connections_.empty()) {
    if (!closed && RealClock().Now() >= until) {
      closed = true;
      const auto rest = connections_;
      for (const auto& connection : rest) connection->Close("the portal stops");
    }
    asio::steady_timer pause(*io_, kPoll);
    co_await pause.async_wait(kAsTuple);
  }
  CallStopped();
}

std::vector<SessionInfo> Portal::Impl::sessions() const {
  std::vector<SessionInfo> infos;
  for (const auto& connection : connections_) {
    const auto& session = connection->session();
    if (!session) continue;
    infos.push_back({session->parameters().initiator, session->parameters().target,
                     connection->peer(), session->stats(), session->tasks(),
                     session->latency().Snapshot()});
  }
  return infos;
}

// --- Portal -------------------------------------------------------------------------------------

Portal::Portal(asio::io_context* io, TargetDirectory* directory, PortalOptions options)
    : impl_(std::make_shared<Impl>(io, directory, std::move(options))) {}

Portal::~Portal() = default;

Status Portal::Listen() { return impl_->Listen(); }
uint16_t Portal::port() const { return impl_->port(); }
void Portal::Stop(std::function<void()> done) { impl_->Stop(std::move(done)); }
std::vector<SessionInfo> Portal::sessions() const { return impl_->sessions(); }

}  // namespace hydra::iscsi
