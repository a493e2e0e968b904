// SPDX-License-Identifier: Apache-2.0
#include "client/outbox.h"

#include <utility>

#include <boost/asio/defer.hpp>

#include "base/check.h"
#include "client/connection.h"

namespace hydra {

void Outbox::Add(std::shared_ptr<Connection> connection) {
  waiting_.push_back(std::move(connection));
  Schedule();
}

void Outbox::Release() {
  held_ = false;
  Schedule();
}

void Outbox::Schedule() {
  if (held_ || scheduled_ || waiting_.empty()) return;
  scheduled_ = true;
  boost::asio::defer(*io_, [this] {
    scheduled_ = false;
    if (!held_) Flush();
  });
}

// A connection that is drained may let another one send: that one is written too.
void Outbox::Flush() {
  HYDRA_CHECK(flushing_.empty());  // no handler flushes
  while (!waiting_.empty()) {
    flushing_.swap(waiting_);
    for (const auto& connection : flushing_) connection->Flush();
    flushing_.clear();
  }
}

}  // namespace hydra
