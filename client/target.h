// SPDX-License-Identifier: Apache-2.0
//
// A volume as an iSCSI target: who may use it, and who does. Part of client/hydra.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace hydra {

// Secrets are not part of it: the nodes keep them.
struct TargetInfo {
  bool offered = true;               // false: not over iSCSI
  bool restricted = false;           // false: every initiator may use it; true: those listed
  std::vector<std::string> allowed;  // names of initiators; a '*' at the end stands for any rest
  std::string chap_user;             // empty: no account of its own
  std::string mutual_user;           // what the target proves to be; empty: nothing
  uint64_t chap_revision = 0;        // one higher with each change of the accounts

  friend bool operator==(const TargetInfo&, const TargetInfo&) = default;
};

// What is not set stays as it is; what is so already is all right.
struct TargetChange {
  struct Account {
    std::string user;
    std::string secret;
  };
  std::optional<bool> offered;
  bool open = false;                // every initiator may; goes with none of the next three
  bool close = false;               // none may: the list is empty, and then
  std::vector<std::string> remove;  // these are taken off,
  std::vector<std::string> allow;   // and these are on it
  bool set_chap = false;            // the accounts are replaced by these; by none: taken away
  std::optional<Account> chap;
  std::optional<Account> mutual;
};

struct IscsiSessionInfo {
  std::string initiator;
  std::string target;   // empty: discovery
  std::string address;  // of the initiator
  uint64_t commands = 0;
  uint64_t read_bytes = 0;
  uint64_t written_bytes = 0;
  uint64_t failed = 0;   // commands not answered with GOOD
  uint64_t aborted = 0;  // ... aborted by task management
  uint64_t damaged = 0;  // data digests or sequences that were wrong
  uint32_t tasks = 0;    // commands under way
};

}  // namespace hydra
