// SPDX-License-Identifier: Apache-2.0
//
// The volumes of the cluster as targets: "iqn.2026-11.io.hydra:<volume>", each with one unit,
// number 0. What it knows of the cluster is at most a few seconds old; a volume made meanwhile is
// found when it is asked for by name, and by discovery.
//
// A unit lives as long as its volume.
//
// Who may log in is decided by the rules as they are then, if the cluster can say so within a
// second. If it cannot, by those last heard of; nothing that is done in such a session takes place
// before the present ones were looked at (LogicalUnit::TakeShared).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/uuid.h"
#include "client/hydra.h"
#include "iscsi/target.h"

namespace hydra::iscsi {

class VolumeDirectory : public TargetDirectory {
 public:
  struct Options {
    Uuid cluster;
    ChapAccounts chap;  // for discovery, and for targets without accounts of their own
    uint16_t portal_group = 1;
    // The accounts of a volume, by its id, as last heard of here. Null: there are none.
    std::function<std::optional<RevisedAccounts>(uint32_t volume)> accounts;
  };

  // On the thread of the io_context, like everything else.
  VolumeDirectory(boost::asio::io_context* io, Options options);
  ~VolumeDirectory() override;

  // From here on there are targets. Before, they are said to be unavailable.
  void Connect(Cluster cluster);
  // Looks no further. Call it before the io_context ends.
  void Stop();

  void Refresh(std::function<void()> done) override;
  std::vector<std::string> Names() override;
  std::vector<PortalAddress> Portals() override;
  void Open(const std::string& name,
            std::function<void(Result<std::shared_ptr<LogicalUnit>>)> done) override;
  LoginPolicy::Decision Decide(const std::string& initiator, const std::string& target) override;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace hydra::iscsi
