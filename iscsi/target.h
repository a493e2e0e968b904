// SPDX-License-Identifier: Apache-2.0
//
// Which targets there are, and who may use them: what a portal asks whoever runs it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "iscsi/login.h"
#include "iscsi/scsi/unit.h"
#include "iscsi/target_name.h"

namespace hydra::iscsi {

struct PortalAddress {
  std::string address;  // host:port
  uint16_t tag = 1;     // target portal group: the node
  bool reachable = true;
};

// Called on the portal's thread, and calls back there.
class TargetDirectory {
 public:
  virtual ~TargetDirectory() = default;

  // Looks again at what there is. Calls back at the latest after a moment, whether it could or not.
  virtual void Refresh(std::function<void()> done) { done(); }
  virtual std::vector<std::string> Names() = 0;
  virtual std::vector<PortalAddress> Portals() = 0;
  // All sessions of a target share its unit. kNotFound: there is none of that name; kUnavailable:
  // perhaps later.
  virtual void Open(const std::string& name,
                    std::function<void(Result<std::shared_ptr<LogicalUnit>>)> done) = 0;
  // Whether the initiator may log in, and how it has to prove who it is. `target` is empty for
  // discovery.
  virtual LoginPolicy::Decision Decide(const std::string& initiator, const std::string& target) = 0;
};

}  // namespace hydra::iscsi
