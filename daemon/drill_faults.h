// SPDX-License-Identifier: Apache-2.0
//
// Faults that a node does to itself, so that `hydractl drill` can cut links and slow disks down
// without being root. Only a node that was started with --drill has one of these; the others hold a
// null pointer. They are set over HTTP, from this machine only:
//
//   POST /drill/faults   {"for_ms": 5000,
//                         "links": {"2": {"drop": true}, "3": {"delay_ms": 40, "loss_percent": 5}},
//                         "disk": {"write_delay_ms": 100, "fail_writes": false, "full": false}}
//   GET  /drill/faults   what is in force, and what it did so far
//
// A POST replaces everything that was in force; {} ends it all. Faults end by themselves after
// `for_ms`, so that a drill that dies leaves no broken node behind.
//
// A dropped link stays connected and is silent, in both directions: what a network that loses
// packets looks like, and harder to notice than a connection that is refused.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "base/file.h"
#include "base/ids.h"
#include "base/rng.h"
#include "base/status.h"

namespace hydra {

// Owned by the node, used on its thread; what says so is also used by the disk's threads.
class DrillFaults {
 public:
  explicit DrillFaults(boost::asio::io_context* io);
  ~DrillFaults();

  // Takes the body of a POST. kInvalidArgument: what is wrong with it; nothing has changed then.
  Status Set(const std::string& json);
  std::string Describe() const;
  // Ends all faults. What was delayed is delivered, or forgotten if the node stops.
  void Clear(bool deliver);

  // Whether messages to and from that peer have to take their way through Pass.
  bool faulty(NodeId peer) const { return !links_.empty() && links_.contains(peer); }
  // Loses the message, or calls `deliver`, now or later.
  void Pass(NodeId peer, std::function<void()> deliver);

  // Any thread: before a batch is written. Takes as long as the disk pretends to; not OK: the disk
  // pretends that the write failed.
  Status BeforeWrite();
  // Any thread.
  bool full() const { return full_.load(std::memory_order_relaxed); }

 private:
  struct Link {
    bool drop = false;
    std::chrono::milliseconds delay{};
    unsigned loss_percent = 0;
  };
  using TimePoint = std::chrono::steady_clock::time_point;

  void Arm();

  std::map<NodeId, Link> links_;
  std::multimap<TimePoint, std::function<void()>> delayed_;
  boost::asio::steady_timer timer_;   // of delayed_
  boost::asio::steady_timer expiry_;  // of all
  TimePoint until_{};
  Rng rng_;
  uint64_t dropped_ = 0;
  std::atomic<uint64_t> delayed_writes_{0};
  std::atomic<int64_t> write_delay_ms_{0};
  std::atomic<bool> fail_writes_{false};
  std::atomic<bool> full_{false};
};

// The disk as the store sees it: another file system, with no room left while the faults say so.
class DrillFileSystem final : public FileSystem {
 public:
  // What the map needs, and not enough for a segment.
  static constexpr uint64_t kLeftWhenFull = 48ull << 20;

  DrillFileSystem(FileSystem* real, const DrillFaults* faults) : real_(real), faults_(faults) {}

  Result<std::unique_ptr<File>> Open(const std::string& path, const OpenOptions& options) override {
    return real_->Open(path, options);
  }
  Status CreateDirectory(const std::string& path) override { return real_->CreateDirectory(path); }
  Status SyncDirectory(const std::string& path) override { return real_->SyncDirectory(path); }
  Status Rename(const std::string& from, const std::string& to) override {
    return real_->Rename(from, to);
  }
  Status Unlink(const std::string& path) override { return real_->Unlink(path); }
  Status RemoveDirectory(const std::string& path) override { return real_->RemoveDirectory(path); }
  Result<std::vector<std::string>> List(const std::string& path) override {
    return real_->List(path);
  }
  bool Exists(const std::string& path) override { return real_->Exists(path); }
  Result<uint64_t> FreeBytes(const std::string& path) override {
    HYDRA_ASSIGN_OR_RETURN(const uint64_t free, real_->FreeBytes(path));
    return faults_->full() ? std::min(free, kLeftWhenFull) : free;
  }
  Result<std::unique_ptr<FileLock>> Lock(const std::string& path) override {
    return real_->Lock(path);
  }

 private:
  FileSystem* const real_;
  const DrillFaults* const faults_;
};

}  // namespace hydra
