// SPDX-License-Identifier: Apache-2.0
//
// CHAP accounts of targets on their way from the node's catalogue to the portal in the same
// process: so their secrets are on no wire but that between nodes. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

#include "client/protocol.pb.h"
#include "iscsi/chap.h"

namespace hydra {

class TargetAccounts {
 public:
  // What the catalogue says now.
  void Take(const rpc::Catalogue& catalogue) {
    std::map<uint32_t, iscsi::RevisedAccounts> accounts;
    for (const rpc::CatalogueVolume& volume : catalogue.volumes()) {
      const rpc::TargetRules& rules = volume.target();
      if (rules.chap_revision() == 0) continue;
      iscsi::RevisedAccounts& entry = accounts[volume.id()];
      entry.revision = rules.chap_revision();
      if (rules.has_initiator()) {
        entry.accounts.initiator = {rules.initiator().name(), rules.initiator().secret()};
      }
      if (rules.has_target()) {
        entry.accounts.target = {rules.target().name(), rules.target().secret()};
      }
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    accounts_ = std::move(accounts);
  }

  // Nothing: the volume has none, as far as this node knows.
  std::optional<iscsi::RevisedAccounts> Find(uint32_t volume) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = accounts_.find(volume);
    if (found == accounts_.end()) return std::nullopt;
    return found->second;
  }

 private:
  mutable std::mutex mutex_;
  std::map<uint32_t, iscsi::RevisedAccounts> accounts_;  // by volume; guarded by mutex_
};

}  // namespace hydra
