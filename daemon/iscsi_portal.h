// SPDX-License-Identifier: Apache-2.0
//
// The iSCSI portal of a node, on a thread of its own. It reaches the cluster as any client does,
// its own node first.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/metrics.h"
#include "base/status.h"
#include "base/uuid.h"
#include "daemon/target_accounts.h"
#include "iscsi/chap.h"
#include "iscsi/portal.h"

namespace boost::asio {
class io_context;
}

namespace hydra {

class Connection;

class IscsiPortal {
 public:
  struct Options {
    std::string listen;
    std::string advertise;  // empty: what it listens on
    NodeId node = 0;        // the target portal group
    Uuid cluster;
    std::vector<std::string> nodes;  // where to find the cluster; the first is this node
    // A connection to this node without a socket, for the thread that runs the context.
    std::function<std::shared_ptr<Connection>(boost::asio::io_context*)> dial;
    iscsi::ChapAccounts chap;  // for discovery, and for targets without accounts of their own
    const TargetAccounts* accounts = nullptr;  // of targets; outlives the portal
    MetricsRegistry* metrics = nullptr;        // likewise
    Nanos busy_wait = 0;                       // of its thread: NodeOptions::busy_wait
  };

  explicit IscsiPortal(Options options);
  // Closes whatever Stop left.
  ~IscsiPortal();
  IscsiPortal(const IscsiPortal&) = delete;
  IscsiPortal& operator=(const IscsiPortal&) = delete;

  // Listens. Targets are there once the cluster answers.
  Status Start();
  // Asks initiators to leave, and calls back, on the portal's thread, when they have or were made
  // to.
  void Stop(std::function<void()> done);

  // From any thread, without waiting: as they were a moment ago.
  std::vector<iscsi::SessionInfo> sessions() const;

  // A file of "NAME SECRET", and on a second line the target's own for mutual CHAP.
  static Result<iscsi::ChapAccounts> ReadChapFile(const std::string& path);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hydra
