// SPDX-License-Identifier: Apache-2.0
//
// An iSCSI initiator for tests (libiscsi): one session to one portal.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/cluster/process.h"

struct iscsi_context;

namespace hydra::cluster_test {

class Initiator {
 public:
  static constexpr uint32_t kBlock = 512;

  // Logs in; the test fails if it cannot. Initiators of the same name with other numbers are other
  // ports of one machine.
  Initiator(const std::string& name, uint32_t number, uint16_t port, const std::string& volume);
  ~Initiator();  // drops the connection, without a logout

  // SCSI status of one block's write, 0 if GOOD; tries again after unit attentions and while the
  // unit is not ready.
  int Write(uint32_t lba, uint8_t value);
  // The byte that fills the block; nothing if it cannot be read or is mixed.
  std::optional<uint8_t> Read(uint32_t lba);

  // Sends a write and does not wait for its end.
  void Send(uint32_t lba, uint8_t value);
  // Its SCSI status; nothing if it has none after that time. Answers NOPs meanwhile.
  std::optional<int> WaitForSent(milliseconds patience);

  // PERSISTENT RESERVE OUT; 0 if GOOD.
  enum Action { kRegister = 0, kReserve = 1, kPreempt = 4 };
  int Persistent(Action action, uint64_t key, uint64_t other);

 private:
  struct Sent {
    std::optional<int> status;
    std::vector<uint8_t> data;
  };
  void Serve(int milliseconds);

  iscsi_context* context_;
  std::shared_ptr<Sent> sent_;
};

}  // namespace hydra::cluster_test
