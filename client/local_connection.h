// SPDX-License-Identifier: Apache-2.0
//
// A connection between two parts of one process: frames change hands, nothing is encoded, and
// payload stays where it is.
#pragma once

#include <memory>
#include <utility>

#include "client/connection.h"

namespace boost::asio {
class io_context;
}

namespace hydra {

// Two ends, each for the thread that runs its io_context, which may be the same. Both contexts
// outlive both ends. Payload of several pieces, or that does not begin its buffer or fill whole
// pages, is copied together. `second_outbox`: of the second end's thread; may be null.
std::pair<std::shared_ptr<Connection>, std::shared_ptr<Connection>> MakeLocalConnection(
    boost::asio::io_context* first, boost::asio::io_context* second,
    Outbox* second_outbox = nullptr);

}  // namespace hydra
