// SPDX-License-Identifier: Apache-2.0
//
// A TCP proxy before a node that loses what the node answers to clients: some replies are
// swallowed, at some the connection is cut, before or after the reply went through. Peers pass
// unharmed.
#pragma once

#include <cstdint>
#include <memory>

namespace hydra::cluster_test {

class Proxy {
 public:
  struct Faults {
    unsigned drop_percent = 0;  // of the replies: swallowed
    unsigned cut_percent = 0;   // of the replies: swallowed, and the connection is closed
  };

  Proxy(uint16_t target_port, uint64_t seed);
  ~Proxy();

  uint16_t port() const;
  void Set(const Faults& faults);  // from now on
  uint64_t replies() const;        // that came from the node
  uint64_t lost() const;           // ... of them not passed on

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hydra::cluster_test
