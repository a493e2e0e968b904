// SPDX-License-Identifier: Apache-2.0
//
// Just enough HTTP to talk to a node's own pages, blocking.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "base/status.h"

namespace hydra::drill {

struct HttpAnswer {
  int status = 0;
  std::string body;
};

// `address` is host:port. Posts JSON if `body` is not empty, else gets. kUnavailable: no answer in
// that time.
Result<HttpAnswer> HttpCall(const std::string& address, const std::string& target,
                            const std::string& body,
                            std::chrono::milliseconds patience = std::chrono::milliseconds(20'000));

// What node `node` says of itself (GET /api/status), as JSON. kInvalidArgument: another node
// answers there, as happens where nodes on several machines all listen at the same loopback
// address; kUnavailable: nobody does.
Result<std::string> StatusPage(
    uint32_t node, const std::string& address,
    std::chrono::milliseconds patience = std::chrono::milliseconds(20'000));

}  // namespace hydra::drill
