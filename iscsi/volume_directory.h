// SPDX-License-Identifier: Apache-2.0
//
// The volumes of the cluster as targets: "iqn.2026-11.io.hydra:<volume>", each with one unit,
// number 0. What it knows of the cluster is at most a few seconds old; a volume made meanwhile is
// found when it is asked for by name, and by discovery.
//
// A unit lives as long as its volume.
#pragma once

#include <memory>
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
    uint32_t logical_block = 512;
    ChapAccounts chap;  // of every initiator
    uint16_t portal_group = 1;
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
