// SPDX-License-Identifier: Apache-2.0
//
// What a node shows over HTTP: /metrics (Prometheus), /healthz, /api/status (JSON). Read-only, on
// the node's own thread.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "daemon/node.h"

namespace hydra {

class HttpServer {
 public:
  HttpServer(Node* node, std::string listen);
  ~HttpServer();

  Status Listen();

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace hydra
