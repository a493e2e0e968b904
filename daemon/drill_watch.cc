// SPDX-License-Identifier: Apache-2.0
#include "daemon/drill_watch.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "daemon/drill_http.h"

namespace hydra::drill {
namespace {

using Json = nlohmann::json;
using std::chrono::milliseconds;

constexpr milliseconds kInterval(40);
constexpr milliseconds kPollPatience(250);
constexpr size_t kKept = 64;

}  // namespace

Watch::Watch(std::map<uint32_t, std::string> http, std::set<uint32_t> groups,
             std::function<Nanos()> now)
    : groups_(std::move(groups)), now_(std::move(now)) {
  for (const auto& [node, address] : http) Add(node, address);
}

Watch::~Watch() { Stop(); }

void Watch::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void Watch::Add(uint32_t node, const std::string& address) {
  {
    const std::lock_guard lock(mutex_);
    if (!http_.emplace(node, address).second) return;
  }
  threads_.emplace_back([this, node, address] { Poll(node, address); });
}

void Watch::Remove(uint32_t node) {
  const std::lock_guard lock(mutex_);
  http_.erase(node);
  seen_.erase(node);
  lives_.erase(node);
  sent_.erase(node);
}

void Watch::Recount() {
  const std::lock_guard lock(mutex_);
  replicas_.clear();
  UpdateMasters();
}

void Watch::Poll(uint32_t node, const std::string& address) {
  std::unique_lock lock(mutex_);
  while (!stop_ && http_.contains(node)) {
    const Nanos asked = now_();
    lock.unlock();
    const Result<std::string> page = StatusPage(node, address, kPollPatience);
    std::optional<Seen> seen;
    if (page.ok()) seen = Parse(*page);
    lock.lock();
    if (!http_.contains(node)) break;
    if (seen) {
      seen->asked = asked;
      lives_[node] = {now_() - seen->uptime, asked};
      seen_[node] = std::move(*seen);
    } else {
      seen_.erase(node);
    }
    UpdateMasters();
    UpdateHealth();
    wake_.wait_for(lock, kInterval, [&] { return stop_; });
  }
}

std::optional<Watch::Seen> Watch::Parse(const std::string& text) const {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains("groups")) return std::nullopt;
  Seen seen;
  seen.healthy = json.value("healthy", false);
  seen.uptime = json.value("uptime_ms", Nanos{0}) * kMillisecond;
  for (const Json& group : json["groups"]) {
    Replica replica;
    const std::string role = group.value("role", "");
    replica.leads = role == "master" && group.value("ready", false);
    replica.well = (role == "master" || role == "follower" || role == "learner") &&
                   group.value("owed_bytes", uint64_t{0}) == 0;
    const std::string ballot = group.value("ballot", "0.0");
    char* point = nullptr;
    replica.ballot.first = std::strtoull(ballot.c_str(), &point, 10);
    if (*point == '.') {
      replica.ballot.second = static_cast<uint32_t>(std::strtoul(point + 1, nullptr, 10));
    }
    replica.commit = group.value("commit", uint64_t{0});
    replica.applied = group.value("applied", uint64_t{0});
    const uint32_t id = group.value("group", 0u);
    if (groups_.contains(id)) seen.replicas[id] = replica;
  }
  return seen;
}

void Watch::UpdateMasters() {
  std::map<uint32_t, std::pair<std::pair<uint64_t, uint32_t>, uint32_t>> best;
  std::map<uint32_t, size_t> replicas;
  for (const auto& [node, seen] : seen_) {
    for (const auto& [group, replica] : seen.replicas) {
      ++replicas[group];
      if (!replica.leads) continue;
      // One that was deposed and does not know it yet has a lower ballot.
      auto& known = best[group];
      known = std::max(known, std::pair(replica.ballot, node));
    }
  }
  for (const auto& [group, count] : replicas) {
    replicas_[group] = std::max(replicas_[group], count);
  }
  for (const auto& [group, count] : replicas_) {
    const auto found = best.find(group);
    const uint32_t master = found == best.end() ? 0 : found->second.second;
    const auto before = masters_.find(group);
    const uint32_t old = before == masters_.end() ? 0 : before->second;
    if (master == old) continue;
    changes_.push_back({now_(), group, old, master});
    if (master == 0) {
      masters_.erase(group);
    } else {
      masters_[group] = master;
    }
  }
}

std::string Watch::Missing() const {
  for (const auto& [node, address] : http_) {
    const auto found = seen_.find(node);
    if (found == seen_.end()) return fmt::format("node {} does not answer", node);
    if (!found->second.healthy) return fmt::format("node {} is not healthy", node);
    if (found->second.asked <= mark_at_) return fmt::format("node {} has not answered yet", node);
    for (const auto& [group, replica] : found->second.replicas) {
      const auto mark = mark_.find(group);
      if (!replica.well || (mark != mark_.end() && replica.applied < mark->second)) {
        return fmt::format("group {} on node {} is catching up", group, node);
      }
    }
  }
  std::map<uint32_t, size_t> replicas;
  for (const auto& [node, seen] : seen_) {
    for (const auto& [group, replica] : seen.replicas) ++replicas[group];
  }
  for (const auto& [group, count] : replicas_) {
    if (!masters_.contains(group)) return fmt::format("group {} has no master", group);
    if (replicas[group] < count) return fmt::format("group {} lacks a replica", group);
  }
  return replicas_.empty() ? "nothing is known yet" : "";
}

void Watch::UpdateHealth() {
  if (!Missing().empty()) return;
  reached_.emplace_back(mark_at_, now_());
  if (reached_.size() > kKept) reached_.erase(reached_.begin());
  mark_at_ = now_();
  mark_.clear();
  for (const auto& [node, seen] : seen_) {
    for (const auto& [group, replica] : seen.replicas) {
      mark_[group] = std::max({mark_[group], replica.commit, replica.applied});
    }
  }
}

std::map<uint32_t, uint32_t> Watch::masters() const {
  const std::lock_guard lock(mutex_);
  return masters_;
}

std::vector<MasterChange> Watch::changes() const {
  const std::lock_guard lock(mutex_);
  return changes_;
}

Watch::Life Watch::life(uint32_t node) const {
  const std::lock_guard lock(mutex_);
  const auto found = lives_.find(node);
  return found == lives_.end() ? Life{} : found->second;
}

Nanos Watch::HealthySince(Nanos since) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [mark, reached] : reached_) {
    if (mark > since) return reached;
  }
  return 0;
}

std::string Watch::Complaint() const {
  const std::lock_guard lock(mutex_);
  return Missing();
}

// The counter begins anew when a node does.
void Watch::ReadMetrics() {
  std::map<uint32_t, std::string> nodes;
  {
    const std::lock_guard lock(mutex_);
    nodes = http_;
  }
  for (const auto& [node, address] : nodes) {
    const Result<HttpAnswer> answer = HttpCall(address, "/metrics", "");
    if (!answer.ok()) continue;
    uint64_t bytes = 0;
    bool told = false;
    for (const char* kind : {"log", "delta", "image", "owed"}) {
      const std::string name = fmt::format("\nhydra_recovery_{}_bytes ", kind);
      const size_t at = answer->body.find(name);
      if (at == std::string::npos) continue;
      told = true;
      bytes += static_cast<uint64_t>(std::strtod(answer->body.c_str() + at + name.size(), nullptr));
    }
    if (!told) continue;  // an older build
    const std::lock_guard lock(mutex_);
    const auto [known, first] = sent_.emplace(node, bytes);
    if (!first) shipped_ += bytes >= known->second ? bytes - known->second : bytes;
    known->second = bytes;
    shipped_known_ = true;
  }
}

}  // namespace hydra::drill
