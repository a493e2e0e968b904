// SPDX-License-Identifier: Apache-2.0
//
// Watches a cluster through its nodes' own pages (GET /api/status), one thread per node, so that a
// node that hangs does not keep the others from being seen: who leads each group, and since when
// everything is well.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "daemon/drill_report.h"

namespace hydra::drill {

// Any thread may ask.
class Watch {
 public:
  // `http`: host:port of each node; `groups`: those that are watched; `now`: the clock of the
  // drill.
  Watch(std::map<uint32_t, std::string> http, std::set<uint32_t> groups,
        std::function<Nanos()> now);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  void Stop();

  // Nodes that came and went on purpose. By whoever made it, like Stop.
  void Add(uint32_t node, const std::string& address);
  void Remove(uint32_t node);
  // From now on so many replicas are expected as there are now: members were changed on purpose.
  void Recount();

  // Group -> node that serves as its master; groups without one are left out.
  std::map<uint32_t, uint32_t> masters() const;
  std::vector<MasterChange> changes() const;
  struct Life {
    Nanos began = 0;  // at the latest: when the process that answered last was started
    Nanos asked = 0;  // when it was asked what it answered last
  };
  Life life(uint32_t node) const;
  // When, after `since`, every node answered, every group had a master and every replica had
  // applied all that had been chosen by some moment after `since`. 0: not yet.
  Nanos HealthySince(Nanos since) const;
  // What is not well, in a few words.
  std::string Complaint() const;
  // Bytes that replicas took in as images and deltas, as far as metrics were read (ReadMetrics).
  void ReadMetrics();
  int64_t shipped_bytes() const { return shipped_known_ ? static_cast<int64_t>(shipped_) : -1; }

 private:
  struct Replica {
    bool leads = false;
    bool well = false;
    std::pair<uint64_t, uint32_t> ballot;
    uint64_t commit = 0;
    uint64_t applied = 0;
  };
  struct Seen {
    Nanos asked = 0;  // when this was asked for
    Nanos uptime = 0;
    bool healthy = false;
    std::map<uint32_t, Replica> replicas;  // by group
  };

  void Poll(uint32_t node, const std::string& address);
  std::optional<Seen> Parse(const std::string& json) const;
  void UpdateMasters();         // under mutex_
  void UpdateHealth();          // under mutex_
  std::string Missing() const;  // under mutex_

  const std::set<uint32_t> groups_;
  const std::function<Nanos()> now_;
  mutable std::mutex mutex_;  // of all below, up to the threads
  std::map<uint32_t, std::string> http_;
  std::condition_variable wake_;
  bool stop_ = false;
  std::map<uint32_t, Seen> seen_;  // nodes that answered the last time
  std::map<uint32_t, Life> lives_;
  std::map<uint32_t, uint32_t> masters_;
  std::map<uint32_t, size_t> replicas_;  // of each group, the most that were seen since Recount
  std::vector<MasterChange> changes_;
  // Everything chosen by then, by group; and since when all replicas have applied what was chosen
  // at the last such moment.
  Nanos mark_at_ = 0;
  std::map<uint32_t, uint64_t> mark_;
  std::vector<std::pair<Nanos, Nanos>> reached_;  // mark, when it was reached; the last ones
  uint64_t shipped_ = 0;
  bool shipped_known_ = false;
  std::map<uint32_t, uint64_t> sent_;  // by node, as last read
  std::vector<std::thread> threads_;
};

}  // namespace hydra::drill
