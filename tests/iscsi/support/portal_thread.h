// SPDX-License-Identifier: Apache-2.0
//
// A portal with disks in memory that runs on a thread of its own, for initiators on sockets. What
// belongs to the portal's thread, disks too, is touched by Run alone.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "iscsi/portal.h"
#include "tests/iscsi/support/memory_directory.h"

namespace hydra::iscsi {

class PortalThread {
 public:
  // So many portals of one directory, each a target portal group of its own. When they stop,
  // initiators have `patience` to log out.
  explicit PortalThread(size_t portals = 1, PortalOptions options = {}, Nanos patience = 0);
  ~PortalThread();  // whatever is under way is given up
  PortalThread(const PortalThread&) = delete;
  PortalThread& operator=(const PortalThread&) = delete;

  uint16_t port(size_t portal = 0) const { return ports_[portal]; }
  MemoryDirectory& directory() { return directory_; }

  // On the portal's thread; returns when it was done.
  void Run(const std::function<void()>& work);
  void Stop();  // as a portal does on SIGTERM; returns at once
  // How many sessions there are now, through all portals.
  size_t Sessions();
  // False: it is not so after a while. `so` is asked on the portal's thread.
  bool WaitUntil(const std::function<bool()>& so);
  bool WaitForSessions(size_t count);

 private:
  class Loop;
  MemoryDirectory directory_;
  std::unique_ptr<Loop> loop_;
  std::vector<uint16_t> ports_;
};

}  // namespace hydra::iscsi
