// SPDX-License-Identifier: Apache-2.0
//
// Stands between clients and nodes and loses a share of the answers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace hydra::test {

class ReplyDropper {
 public:
  ReplyDropper(const std::vector<std::string>& nodes, unsigned percent, uint64_t seed);
  ~ReplyDropper();

  // Where to call instead of a node's own address. Any thread.
  std::string Translate(const std::string& node) const;
  uint64_t dropped() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hydra::test
