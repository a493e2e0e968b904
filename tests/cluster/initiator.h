// SPDX-License-Identifier: Apache-2.0
//
// An iSCSI initiator for tests (libiscsi): one session to one portal.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/cluster/process.h"

struct iscsi_context;

namespace hydra::cluster_test {

inline constexpr uint32_t kLba = 24;  // of logical blocks of 512 bytes; any will do

// What an initiator says to be and knows, and whom it wants the target to be. Empty: no CHAP.
struct ChapUser {
  std::string user;
  std::string secret;
  std::string mutual_user;
  std::string mutual_secret;
};

class Initiator {
 public:
  static constexpr uint32_t kBlock = 512;

  // The status of a refused login (RFC 7143, 11.13.5: 0x0202 is forbidden), 0 if it is not refused,
  // -1 if there is no answer.
  static int TryLogin(const std::string& name, uint16_t port, const std::string& volume,
                      const ChapUser& chap = {});
  // Names of targets; nothing if the portal does not let it ask.
  static std::optional<std::vector<std::string>> Discover(const std::string& name, uint16_t port,
                                                          const ChapUser& chap = {});

  // Logs in, and waits for the unit unless that cannot be `ready` now; the test fails if it cannot.
  // Initiators of the same name with other numbers are other ports of one machine.
  Initiator(const std::string& name, uint32_t number, uint16_t port, const std::string& volume,
            bool ready = true);
  ~Initiator();  // drops the connection, without a logout

  // Of what is read and written from now on.
  void set_block(uint32_t bytes) { block_ = bytes; }
  // How long a command may take, before its end counts as none.
  void set_patience(std::chrono::seconds patience);

  // SCSI status of one block's write, 0 if GOOD; tries again after unit attentions and while the
  // unit is not ready.
  int Write(uint32_t lba, uint8_t value);
  // The byte that fills the block; nothing if it cannot be read or is mixed.
  std::optional<uint8_t> Read(uint32_t lba);

  // How a command ended that is sent once: SCSI status (-1: it has no end), sense key, and
  // additional sense code and qualifier.
  struct End {
    int status = -1;
    int key = 0;
    int code = 0;
  };
  End TestUnitReadyOnce();
  End ReadOnce(uint32_t lba);
  End WriteOnce(uint32_t lba, uint8_t value);
  End ReserveOnce();

  // Number and size of logical blocks; zeroes if it does not say.
  std::pair<uint64_t, uint32_t> Capacity();
  // ALUA states by the number of the target port group.
  std::map<int, int> PortGroups();

  // Sends a write and does not wait for its end.
  void Send(uint32_t lba, uint8_t value);
  // Its SCSI status; nothing if it has none after that time. Answers NOPs meanwhile.
  std::optional<int> WaitForSent(milliseconds patience);

  // Whether the portal closes the connection within that time.
  bool WaitUntilClosed(milliseconds patience);
  // SANITIZE, BLOCK ERASE, to be answered at once; 0 if GOOD.
  int Sanitize();
  // TEST UNIT READY: additional sense code and qualifier; 0 if it is, -1 if there is no answer.
  // Unit attentions are passed over.
  int NotReady();

  // PERSISTENT RESERVE OUT; 0 if GOOD.
  enum Action { kRegister = 0, kReserve = 1, kPreempt = 4 };
  int Persistent(Action action, uint64_t key, uint64_t other);

 private:
  struct Sent {
    std::optional<int> status;
    std::vector<uint8_t> data;
  };
  bool Serve(int milliseconds);  // false: the connection is gone
  int size() const { return static_cast<int>(block_); }

  iscsi_context* context_;
  uint32_t block_ = kBlock;
  std::shared_ptr<Sent> sent_;
};

}  // namespace hydra::cluster_test
