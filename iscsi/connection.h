// SPDX-License-Identifier: Apache-2.0
//
// One TCP connection of an initiator: reads PDUs for the login and then for the session, writes
// what they answer. A coroutine reads; what is sent in one turn of the loop goes out together.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "iscsi/portal.h"
#include "iscsi/session.h"

namespace hydra::iscsi {

class Connection {
 public:
  // What a connection needs of its portal, which outlives it.
  class Owner {
   public:
    virtual ~Owner() = default;
    virtual const PortalOptions& options() const = 0;
    virtual TargetDirectory* directory() = 0;
    virtual std::shared_ptr<BufferPool> memory() = 0;
    virtual uint16_t NewTsih() = 0;
    // Ends sessions of the same initiator port with the same target, and calls back when their last
    // command has ended, so that none of them can overwrite what the new session writes; or when
    // another connection has asked for the same since.
    virtual void Reinstate(const std::string& key, const Connection* connection,
                           std::function<void()> done) = 0;
    // After that, once. False: another connection has asked since, and its session is to be.
    [[nodiscard]] virtual bool Register(const std::string& key,
                                        std::shared_ptr<Connection> connection) = 0;
    // The connection is closed and its session drained.
    virtual void Gone(const std::shared_ptr<Connection>& connection) = 0;
  };

  // Takes over an open socket. It lives until it is closed.
  static std::shared_ptr<Connection> Start(boost::asio::io_context* io, int socket, bool v6,
                                           Owner* owner);
  virtual ~Connection() = default;

  // Asks the initiator to leave within that time.
  virtual void RequestLogout(uint16_t seconds) = 0;
  // After what was sent.
  virtual void Close(const std::string& why) = 0;

  virtual const std::shared_ptr<Session>& session() const = 0;  // null before the login is complete
  virtual const std::string& peer() const = 0;                  // address of the initiator
};

}  // namespace hydra::iscsi
