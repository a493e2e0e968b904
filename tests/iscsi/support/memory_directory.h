// SPDX-License-Identifier: Apache-2.0
//
// Targets on disks in memory.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "iscsi/target.h"
#include "tests/iscsi/support/memory_disk.h"

namespace hydra::iscsi {

class MemoryDirectory : public TargetDirectory {
 public:
  // Returns the disk, which its unit owns.
  MemoryDisk* Add(const std::string& volume, uint64_t bytes, uint32_t logical_block = 512) {
    auto disk = std::make_unique<MemoryDisk>(bytes, volume);
    MemoryDisk* raw = disk.get();
    UnitOptions options;
    options.target_name = std::string(kTargetPrefix) + volume;
    options.logical_block = logical_block;
    const std::string name = options.target_name;
    units_[name] = std::make_shared<LogicalUnit>(std::move(disk), std::move(options));
    return raw;
  }

  std::vector<std::string> Names() override {
    ++listed;
    std::vector<std::string> names;
    for (const auto& [name, unit] : units_) names.push_back(name);
    return names;
  }
  std::vector<PortalAddress> Portals() override { return portals; }
  void Open(const std::string& name,
            std::function<void(Result<std::shared_ptr<LogicalUnit>>)> done) override {
    const auto found = units_.find(name);
    if (found == units_.end()) return done(Status::NotFound("no target " + name));
    done(found->second);
  }
  LoginPolicy::Decision Decide(const std::string& initiator, const std::string& target) override {
    (void)target;
    if (!forbidden.empty() && initiator == forbidden) return {LoginStatus::kForbidden, {}};
    return {LoginStatus::kSuccess, chap};
  }

  std::vector<PortalAddress> portals;
  size_t listed = 0;  // how often
  ChapAccounts chap;
  std::string forbidden;

 private:
  std::map<std::string, std::shared_ptr<LogicalUnit>> units_;
};

}  // namespace hydra::iscsi
