// SPDX-License-Identifier: Apache-2.0
//
// One TCP connection of an initiator: reads PDUs for the login and then for the session, writes what they
// answer. A coroutine reads; what is sent in one turn of the loop goes out together.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>

#include "iscsi/login.h"
#include "iscsi/pdu.h"
#include "iscsi/portal.h"
#include "iscsi/session.h"

namespace hydra::iscsi {

class Connection : public Session::Output,
                   private PduReader::Sink,
                   public std::enable_shared_from_this<Connection> {
 public:
  // What a connection needs of its portal, which outlives it.
  class Owner {
   public:
    virtual ~Owner() = default;
    virtual const PortalOptions& options() const = 0;
    virtual TargetDirectory* directory() = 0;
    virtual std::shared_ptr<BufferPool> memory() = 0;
    virtual uint16_t NewTsih() = 0;
    // Ends sessions of the same initiator port with the same target; returns when their last command has
    // ended, so that none of them can overwrite what the new session writes.
    virtual boost::asio::awaitable<void> Reinstate(std::string key) = 0;
    virtual void Registered(const std::string& key, std::shared_ptr<Connection> connection) = 0;
    virtual void Gone(const std::shared_ptr<Connection>& connection) = 0;
  };

  Connection(boost::asio::ip::tcp::socket socket, Owner* owner);
  ~Connection() override;

  void Start();
  void RequestLogout(uint16_t seconds);

  // --- Session::Output ---
  void Send(OutPdu pdu) override;
  void Close(const std::string& why) override;

  // Null before the login is complete.
  const std::shared_ptr<Session>& session() const { return session_; }
  const std::string& peer() const { return peer_; }
  bool drained() const { return drained_; }

 private:
  struct Outgoing {
    OutPdu pdu;
    Framing framing;
    size_t size() const { return framing.head_bytes + pdu.data().size() + framing.tail_bytes; }
  };

  // --- PduReader::Sink ---
  Result<std::span<uint8_t>> Begin(const Header& header, std::span<const uint8_t> ahs) override;
  Status End(bool intact) override;

  boost::asio::awaitable<void> Run();
  boost::asio::awaitable<Status> Read();
  boost::asio::awaitable<Status> Feed();
  boost::asio::awaitable<void> Watch();
  boost::asio::awaitable<Status> LoginStep();
  boost::asio::awaitable<void> Enter();
  boost::asio::awaitable<Result<std::shared_ptr<LogicalUnit>>> Open(std::string target);
  std::string ListTargets(const std::string& target);
  void Flush();
  void Shut();

  boost::asio::ip::tcp::socket socket_;
  Owner* owner_;
  std::string peer_;
  std::string local_;
  boost::asio::steady_timer tick_;
  Nanos started_;

  PduReader reader_;
  std::vector<uint8_t> input_;
  size_t input_begin_ = 0;
  size_t input_end_ = 0;

  std::optional<Login> login_;
  Header login_header_;
  std::vector<uint8_t> login_data_;
  bool login_ready_ = false;  // a request waits to be answered
  Status target_;             // why the target cannot be opened
  std::shared_ptr<LogicalUnit> unit_;
  std::shared_ptr<Session> session_;

  Digests digests_;
  std::deque<Outgoing> out_;
  size_t out_bytes_ = 0;
  bool flush_scheduled_ = false;
  bool writing_ = false;
  bool closing_ = false;  // when everything is written
  std::string why_;
  bool shut_ = false;
  bool drained_ = false;
};

}  // namespace hydra::iscsi
