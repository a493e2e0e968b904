// SPDX-License-Identifier: Apache-2.0
#include "iscsi/connection.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/defer.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <fmt/format.h>

#include "base/logging.h"

namespace hydra::iscsi {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using ErrorCode = boost::system::error_code;

constexpr size_t kInputBytes = 64 << 10;
// Data of at least this much is read where it will stay; less is cheaper to copy.
constexpr size_t kInPlaceBytes = 16 << 10;
constexpr size_t kMaxVectors = 60;
// An initiator that does not take its answers is not asked for more: so many bytes of answers
// outside the portal's memory for data. (What is inside it has a limit of its own.) A full window
// of commands needs far less.
constexpr size_t kMaxQueuedBytes = 1u << 20;
// Of what is written at a time, as Asio has it.
constexpr size_t kWriteBytes = 64 << 10;
constexpr std::chrono::milliseconds kQueuePause(2);
constexpr std::chrono::seconds kTick(1);
constexpr Nanos kCloseWait = 3 * kSecond;

const auto kAwait = asio::as_tuple(asio::use_awaitable);

std::string TextOf(const tcp::endpoint& endpoint) {
  const std::string host = endpoint.address().to_string();
  return fmt::format(fmt::runtime(endpoint.address().is_v6() ? "[{}]:{}" : "{}:{}"), host,
                     endpoint.port());
}

Nanos Now() { return RealClock().Now(); }

LoginStatus StatusFor(const Status& status) {
  switch (status.code()) {
    case Code::kNotFound: return LoginStatus::kNotFound;
    case Code::kUnavailable: return LoginStatus::kUnavailable;
    case Code::kBusy: return LoginStatus::kOutOfResources;
    default: return LoginStatus::kTargetError;
  }
}

class TcpConnection final : public Connection,
                            private Session::Output,
                            private PduReader::Sink,
                            public std::enable_shared_from_this<TcpConnection> {
 public:
  TcpConnection(tcp::socket socket, Owner* owner);

  void Run();

  // --- Connection ---
  void RequestLogout(uint16_t seconds) override;
  void Close(const std::string& why) override;
  const std::shared_ptr<Session>& session() const override { return session_; }
  const std::string& peer() const override { return peer_; }

 private:
  struct Outgoing {
    OutPdu pdu;
    Framing framing;
    // What it takes outside the memory for data; beside data, that is little.
    size_t extra_bytes() const { return pdu.length > 0 ? 0 : sizeof(Outgoing) + pdu.text.size(); }
  };

  // --- Session::Output; Close is the connection's own ---
  void Send(OutPdu pdu) override;
  std::optional<Nanos> StuckSince() const override;

  // --- PduReader::Sink ---
  Result<std::span<uint8_t>> Begin(const Header& header, std::span<const uint8_t> ahs) override;
  void HeaderDamaged() override {
    if (session_) session_->HeaderDamaged();
  }
  Status End(bool intact) override;

  asio::awaitable<void> Serve();
  asio::awaitable<Status> Read();
  asio::awaitable<Status> Feed();
  asio::awaitable<void> Watch();
  asio::awaitable<Status> LoginStep();
  asio::awaitable<void> FindTarget();
  asio::awaitable<bool> Enter();
  asio::awaitable<Result<std::shared_ptr<LogicalUnit>>> Open(std::string target);
  asio::awaitable<void> Refresh();
  std::string ListTargets(const std::string& target);
  void Flush();
  void DropOutput();
  void Shut();

  tcp::socket socket_;
  Owner* owner_;
  std::string peer_;
  std::string local_;
  asio::steady_timer tick_;
  Nanos started_;

  PduReader reader_;
  std::vector<uint8_t> input_;
  size_t input_begin_ = 0;
  size_t input_end_ = 0;

  std::optional<Login> login_;
  Header login_header_;
  std::vector<uint8_t> login_data_;
  bool login_ready_ = false;         // a request waits to be answered
  std::vector<uint8_t> first_text_;  // of the first request, which may take several PDUs
  bool first_whole_ = false;
  Status target_;  // why the target cannot be opened
  std::shared_ptr<LogicalUnit> unit_;
  std::shared_ptr<Session> session_;

  Digests digests_;
  std::deque<Outgoing> out_;
  size_t extra_bytes_ = 0;  // of those
  Nanos written_ = 0;       // when the last of them, or a part of it, went out
  bool flush_scheduled_ = false;
  bool writing_ = false;
  bool closing_ = false;  // when everything is written
  std::string why_;
  bool shut_ = false;
};

TcpConnection::TcpConnection(tcp::socket socket, Owner* owner)
    : socket_(std::move(socket)),
      owner_(owner),
      tick_(socket_.get_executor()),
      started_(Now()),
      reader_(this),
      input_(kInputBytes) {
  ErrorCode ignored;
  socket_.set_option(tcp::no_delay(true), ignored);
  socket_.set_option(asio::socket_base::keep_alive(true), ignored);
  peer_ = TextOf(socket_.remote_endpoint(ignored));
  local_ = TextOf(socket_.local_endpoint(ignored));
}

void TcpConnection::Run() {
  asio::co_spawn(
      socket_.get_executor(), [self = shared_from_this()] { return self->Serve(); },
      asio::detached);
  asio::co_spawn(
      socket_.get_executor(), [self = shared_from_this()] { return self->Watch(); },
      asio::detached);
}

asio::awaitable<void> TcpConnection::Serve() {
  const Status ended = co_await Read();
  if (!ended.ok() && why_.empty()) why_ = ended.ToString();
  if (session_) {
    HYDRA_LOG_INFO("iSCSI: {} ({}) is gone from {}: {}", session_->parameters().initiator, peer_,
                   session_->parameters().discovery ? "discovery" : session_->parameters().target,
                   why_);
  } else {
    HYDRA_LOG_INFO("iSCSI: no login from {}: {}", peer_, why_);
  }
  Shut();
}

// Time: for the login, for pings, for what is left to be written.
asio::awaitable<void> TcpConnection::Watch() {
  while (!shut_) {
    tick_.expires_after(kTick);
    co_await tick_.async_wait(kAwait);
    if (shut_) co_return;
    const Nanos now = Now();
    if (session_) {
      session_->Tick(now);
    } else if (now - started_ > owner_->options().login_timeout) {
      why_ = "the login took too long";
      ErrorCode ignored;
      socket_.close(ignored);
    }
    if (closing_ && now - started_ > kCloseWait) {
      ErrorCode ignored;
      socket_.close(ignored);
    }
  }
}

// Once: the end.
void TcpConnection::Shut() {
  if (shut_) return;
  shut_ = true;
  tick_.cancel();
  ErrorCode ignored;
  socket_.close(ignored);
  DropOutput();
  const auto self = shared_from_this();
  if (!session_) {
    return owner_->Gone(self);
  }
  session_->OnDrained([self] { self->owner_->Gone(self); });
  session_->Closed();
}

void TcpConnection::Close(const std::string& why) {
  if (closing_ || shut_) return;
  closing_ = true;
  why_ = why;
  started_ = Now();  // from here on it counts the closing
  Flush();
}

void TcpConnection::RequestLogout(uint16_t seconds) {
  if (session_) return session_->RequestLogout(seconds);
  Close("the portal stops");
}

// --- Reading ------------------------------------------------------------------------------------

asio::awaitable<Status> TcpConnection::Read() {
  while (true) {
    Status fed = co_await Feed();
    if (!fed.ok()) {
      // What was said so far, a reject for example, still goes out.
      Close(fed.ToString());
    }
    if (closing_) {
      // Until the writer closes; what still comes is of no interest.
      const auto [error, got] = co_await socket_.async_read_some(asio::buffer(input_), kAwait);
      if (error) co_return Status::Unavailable(why_);
      continue;
    }
    input_begin_ = input_end_ = 0;
    const std::span<uint8_t> want = reader_.Want();
    const bool in_place = reader_.in_data() && want.size() >= kInPlaceBytes;
    const std::array<asio::mutable_buffer, 2> buffers = {
        in_place ? asio::buffer(want.data(), want.size()) : asio::mutable_buffer(),
        asio::buffer(input_)};
    const auto [error, got] = co_await socket_.async_read_some(buffers, kAwait);
    if (error) co_return Status::Unavailable(error.message());
    const size_t here = in_place ? std::min(got, want.size()) : 0;
    input_end_ = got - here;
    if (here > 0) {
      const Status taken = reader_.Got(here);
      if (!taken.ok()) Close(taken.ToString());
    }
  }
}

// Gives the reader what was received. A login request is answered before what follows it is looked
// at.
asio::awaitable<Status> TcpConnection::Feed() {
  while (!closing_) {
    if (login_ready_) {
      login_ready_ = false;
      const Status stepped = co_await LoginStep();
      if (!stepped.ok()) co_return stepped;
      continue;
    }
    if (input_begin_ == input_end_) co_return Status::Ok();
    // Between any two requests, of which one may have a long answer.
    if (extra_bytes_ > kMaxQueuedBytes && socket_.is_open()) {
      asio::steady_timer pause(socket_.get_executor(), kQueuePause);
      co_await pause.async_wait(kAwait);
      continue;
    }
    const std::span<uint8_t> want = reader_.Want();
    const size_t bytes = std::min(want.size(), input_end_ - input_begin_);
    std::memcpy(want.data(), input_.data() + input_begin_, bytes);
    input_begin_ += bytes;
    const Status taken = reader_.Got(bytes);
    if (!taken.ok()) co_return taken;
  }
  co_return Status::Ok();
}

Result<std::span<uint8_t>> TcpConnection::Begin(const Header& header,
                                                std::span<const uint8_t> ahs) {
  if (session_) return session_->Begin(header, ahs);
  login_header_ = header;
  login_data_.assign(header.data_bytes(), 0);
  return std::span(login_data_);
}

Status TcpConnection::End(bool intact) {
  if (session_) return session_->End(intact);
  login_ready_ = true;
  return Status::Ok();
}

// --- Login --------------------------------------------------------------------------------------

asio::awaitable<Result<std::shared_ptr<LogicalUnit>>> TcpConnection::Open(std::string target) {
  using Opened = Result<std::shared_ptr<LogicalUnit>>;
  co_return co_await asio::async_initiate<decltype(asio::use_awaitable), void(Opened)>(
      [](auto handler, TargetDirectory* directory, std::string name) {
        auto shared = std::make_shared<decltype(handler)>(std::move(handler));
        directory->Open(name, [shared](Opened opened) {
          auto executor = asio::get_associated_executor(*shared);
          asio::post(executor, [shared, opened = std::move(opened)]() mutable {
            std::move (*shared)(std::move(opened));
          });
        });
      },
      asio::use_awaitable, owner_->directory(), std::move(target));
}

// A discovery shows what there is now.
asio::awaitable<void> TcpConnection::Refresh() {
  co_await asio::async_initiate<decltype(asio::use_awaitable), void()>(
      [](auto handler, TargetDirectory* directory) {
        auto shared = std::make_shared<decltype(handler)>(std::move(handler));
        directory->Refresh([shared] {
          asio::post(asio::get_associated_executor(*shared), [shared] { std::move (*shared)(); });
        });
      },
      asio::use_awaitable, owner_->directory());
}

// Looks up the target that the first request names, once all of its text is there: of a name that
// comes in two PDUs, the first may hold another.
asio::awaitable<void> TcpConnection::FindTarget() {
  first_text_.insert(first_text_.end(), login_data_.begin(), login_data_.end());
  first_whole_ = !Login::TextGoesOn(login_header_);
  if (!first_whole_) co_return;
  const std::string target = Login::TargetNameIn(std::exchange(first_text_, {}));
  if (target.empty()) co_return co_await Refresh();
  auto opened = co_await Open(target);
  if (opened.ok()) {
    unit_ = std::move(*opened);
  } else {
    target_ = opened.status();
  }
}

asio::awaitable<Status> TcpConnection::LoginStep() {
  if (!first_whole_) co_await FindTarget();
  if (!login_) {
    LoginPolicy policy;
    policy.portal_group = owner_->options().group;
    policy.new_tsih = owner_->NewTsih();
    policy.decide = [this](const std::string& initiator, const std::string& name) {
      if (!name.empty() && !target_.ok()) {
        return LoginPolicy::Decision{StatusFor(target_), {}};
      }
      if (!name.empty() && !unit_) return LoginPolicy::Decision{LoginStatus::kNotFound, {}};
      return owner_->directory()->Decide(initiator, name);
    };
    login_.emplace(std::move(policy), owner_->options().offer);
  }
  OutPdu response;
  const Login::Outcome outcome = login_->Step(login_header_, login_data_, &response);
  if (outcome == Login::Outcome::kDone) {
    const bool entered = co_await Enter();
    if (closing_ || !socket_.is_open()) co_return Status::Unavailable("closed during login");
    if (!entered) co_return Status::Aborted("the initiator logged in anew meanwhile");
  }
  Send(std::move(response));
  if (outcome == Login::Outcome::kDone) {
    digests_ = session_->parameters().digests;
    reader_.SetDigests(digests_);
    reader_.SetMaxData(session_->parameters().max_recv_data);
    HYDRA_LOG_INFO("iSCSI: {} ({}) logged in to {}", session_->parameters().initiator, peer_,
                   session_->parameters().discovery ? "discovery" : session_->parameters().target);
  }
  if (outcome == Login::Outcome::kFailed) {
    co_return Status::FailedPrecondition(target_.ok() ? login_->why()
                                                      : std::string(target_.message()));
  }
  co_return Status::Ok();
}

// False: a later login of the same initiator port takes its place.
asio::awaitable<bool> TcpConnection::Enter() {
  const SessionParameters& parameters = login_->parameters();
  const std::string key = parameters.PortName() + " " + parameters.target;
  if (!parameters.discovery) {
    co_await asio::async_initiate<decltype(asio::use_awaitable), void()>(
        [](auto handler, TcpConnection* self, std::string name) {
          auto shared = std::make_shared<decltype(handler)>(std::move(handler));
          self->owner_->Reinstate(name, self, [shared] {
            asio::post(asio::get_associated_executor(*shared), [shared] { std::move (*shared)(); });
          });
        },
        asio::use_awaitable, this, key);
    if (!owner_->Register(key, shared_from_this())) co_return false;
  }
  Session::Environment environment;
  environment.unit = parameters.discovery ? nullptr : unit_;
  environment.memory = owner_->memory();
  environment.portal_group = owner_->options().group;
  static const RealClock kClock;
  environment.clock = &kClock;
  if (owner_->options().metrics != nullptr) {
    environment.metrics = SessionMetrics::Of(parameters.discovery ? "discovery" : parameters.target,
                                             owner_->options().metrics);
  }
  environment.list_targets = [this](const std::string& target) { return ListTargets(target); };
  session_ = Session::Create(parameters, std::move(environment), this, Now());
  co_return true;
}

// Every target with every portal of the cluster; this one by the address that the initiator found
// it at, unless it was told which one to use.
std::string TcpConnection::ListTargets(const std::string& target) {
  std::vector<PortalAddress> portals = owner_->directory()->Portals();
  const uint16_t here = owner_->options().group;
  const std::string& advertised = owner_->options().advertise;
  const std::string& own = advertised.empty() ? local_ : advertised;
  bool listed = false;
  for (PortalAddress& portal : portals) {
    if (portal.tag != here) continue;
    portal.address = own;
    listed = true;
  }
  if (!listed) portals.insert(portals.begin(), {own, here, true});
  const std::string& initiator = session_->parameters().initiator;
  std::string text;
  for (const std::string& name : owner_->directory()->Names()) {
    if (!target.empty() && name != target) continue;
    const LoginStatus allowed = owner_->directory()->Decide(initiator, name).status;
    if (allowed != LoginStatus::kSuccess && allowed != LoginStatus::kUnavailable) continue;
    AppendText("TargetName", name, &text);
    for (const PortalAddress& portal : portals) {
      if (portal.address.empty()) continue;
      AppendText("TargetAddress", fmt::format("{},{}", portal.address, portal.tag), &text);
    }
  }
  return text;
}

// --- Writing ------------------------------------------------------------------------------------

void TcpConnection::Send(OutPdu pdu) {
  if (shut_ || closing_) return;
  Outgoing outgoing{std::move(pdu), {}};
  outgoing.framing = Frame(&outgoing.pdu, digests_);
  extra_bytes_ += outgoing.extra_bytes();
  out_.push_back(std::move(outgoing));
  if (flush_scheduled_ || writing_) return;
  flush_scheduled_ = true;
  asio::defer(socket_.get_executor(), [self = shared_from_this()] {
    self->flush_scheduled_ = false;
    self->Flush();
  });
}

void TcpConnection::Flush() {
  if (writing_ || shut_) return;
  if (out_.empty()) {
    if (closing_) {
      ErrorCode ignored;
      socket_.shutdown(tcp::socket::shutdown_both, ignored);
      socket_.close(ignored);
    }
    return;
  }
  std::vector<asio::const_buffer> buffers;
  size_t count = 0;
  for (const Outgoing& outgoing : out_) {
    if (buffers.size() + 3 > kMaxVectors) break;
    buffers.push_back(asio::buffer(outgoing.framing.head.data(), outgoing.framing.head_bytes));
    const std::span<const uint8_t> data = outgoing.pdu.data();
    if (!data.empty()) buffers.push_back(asio::buffer(data.data(), data.size()));
    if (outgoing.framing.tail_bytes > 0) {
      buffers.push_back(asio::buffer(outgoing.framing.tail.data(), outgoing.framing.tail_bytes));
    }
    ++count;
  }
  writing_ = true;
  // Called before the first piece, and after each.
  const auto moved = [self = shared_from_this()](const ErrorCode& error, size_t) -> size_t {
    self->written_ = Now();
    return error ? 0 : kWriteBytes;
  };
  asio::async_write(socket_, buffers, moved,
                    [self = shared_from_this(), count](const ErrorCode& error, size_t) {
                      self->writing_ = false;
                      if (error) {
                        ErrorCode ignored;
                        self->socket_.close(ignored);
                        return self->DropOutput();
                      }
                      for (size_t i = 0; i < count; ++i) {
                        self->extra_bytes_ -= self->out_.front().extra_bytes();
                        self->out_.pop_front();
                      }
                      self->Flush();
                    });
}

std::optional<Nanos> TcpConnection::StuckSince() const {
  if (!writing_) return std::nullopt;
  return written_;
}

// Nobody takes it any more, and its memory is needed before the last command has ended.
void TcpConnection::DropOutput() {
  if (writing_) return;  // whose end comes here
  out_.clear();
  extra_bytes_ = 0;
}

}  // namespace

std::shared_ptr<Connection> Connection::Start(asio::io_context* io, int socket, bool v6,
                                              Owner* owner) {
  auto connection =
      std::make_shared<TcpConnection>(tcp::socket(*io, v6 ? tcp::v6() : tcp::v4(), socket), owner);
  connection->Run();
  return connection;
}

}  // namespace hydra::iscsi
