// SPDX-License-Identifier: Apache-2.0
#include "iscsi/scsi/unit.h"

#include <algorithm>

#include <fmt/format.h>

namespace hydra::iscsi {

std::string Nexus::id() const { return fmt::format("{},t,0x{:04x}", initiator, portal_group); }

LogicalUnit::LogicalUnit(std::unique_ptr<Disk> disk, UnitOptions options)
    : disk_(std::move(disk)), options_(std::move(options)) {
  disk_->WatchSize([this] { Attention(Asc::kCapacityChanged); });
}

LogicalUnit::~LogicalUnit() { disk_->WatchSize({}); }

void LogicalUnit::Join(Nexus* nexus) { nexuses_.insert(nexus); }

void LogicalUnit::Leave(Nexus* nexus) {
  nexuses_.erase(nexus);
  if (reserved_by_ == nexus) reserved_by_ = nullptr;
  std::erase_if(copies, [id = nexus->id()](const CopyResult& copy) { return copy.nexus == id; });
}

namespace {

void Add(Asc asc, Nexus* nexus) {
  std::deque<Asc>& waiting = nexus->attentions;
  if (std::find(waiting.begin(), waiting.end(), asc) != waiting.end()) return;
  if (waiting.size() == LogicalUnit::kMaxAttentions) waiting.pop_front();
  waiting.push_back(asc);
}

}  // namespace

void LogicalUnit::Attention(Asc asc, const Nexus* except) {
  for (Nexus* nexus : nexuses_) {
    if (nexus != except) Add(asc, nexus);
  }
}

void LogicalUnit::AttentionTo(const std::string& id, Asc asc) {
  for (Nexus* nexus : nexuses_) {
    if (nexus->id() == id) Add(asc, nexus);
  }
}

void LogicalUnit::AbortTasks(const std::set<std::string>* ids, std::function<void()> done) {
  // The last of them to end calls back, also if all end at once or there is none.
  const auto last = std::shared_ptr<void>(nullptr, [done = std::move(done)](void*) { done(); });
  const std::set<Nexus*> nexuses = nexuses_;
  for (Nexus* nexus : nexuses) {
    if (ids != nullptr && !ids->contains(nexus->id())) continue;
    if (nexus->abort_tasks) nexus->abort_tasks([last] {});
  }
}

void LogicalUnit::Disconnect() {
  const std::set<Nexus*> nexuses = nexuses_;
  for (Nexus* nexus : nexuses) {
    if (nexus->disconnect) nexus->disconnect();
  }
}

void LogicalUnit::Reset(Asc asc, std::function<void()> done) {
  reserved_by_ = nullptr;
  write_protected = false;
  descriptor_sense = false;
  Attention(asc);
  AbortTasks(nullptr, std::move(done));
}

}  // namespace hydra::iscsi
