// SPDX-License-Identifier: Apache-2.0
//
// Whether this node is fit to lead. A disk that turned slow and a link that loses every third
// packet leave a node alive: it answers heartbeats, keeps its leases, and everybody waits for it.
// Nobody sees that better than the node itself.
//
// Disk: its own writes take ten times as long as the requests that it answers as a master. A
// request waits for a majority of disks, so others do in a tenth of the time what this one cannot;
// if all disks are slow, as on a machine with too much to do, requests are slow too, and there is
// no reason to leave. Or a write hangs for seconds, whatever the others do: before long nothing
// would be answered. It may be that very thread that waits for it, which then looks too late.
//
// Links: to most peers, and at least to two, a quarter of the heartbeats is not answered. If it is
// one peer, it may be the peer's. If nothing is answered, it is no loss but an outage: leases end
// by themselves then, and when it is over all is well.
//
// It takes seconds of this without a break to be unfit, and half a minute without any of it to be
// fit again, so that a busy node does not flap.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>

#include "base/clock.h"
#include "base/ids.h"

namespace hydra {

// Pure; one thread. Looks are made in regular intervals, a few per second; counters count from the
// start of the node.
class SelfWatch {
 public:
  static constexpr Nanos kSlowWrite = 50 * kMillisecond;  // at least, whatever the others do
  static constexpr Nanos kSlowerThanOthers = 10;          // times
  static constexpr Nanos kHangingWrite = 2 * kSecond;
  static constexpr Nanos kUnfitAfter = 2 * kSecond;  // of nothing else
  static constexpr Nanos kFitAfter = 30 * kSecond;   // likewise
  static constexpr Nanos kLongestBreak = kSecond;    // between looks that say that it is bad
  static constexpr Nanos kLinkWindow = 2 * kSecond;
  static constexpr Nanos kOutage = kSecond / 2;  // without any answer
  static constexpr uint64_t kFewestBeats = 12;   // to judge a link by: half of those of a window
  static constexpr uint64_t kUnansweredPercent = 25;

  struct Disk {
    uint64_t writes = 0;
    uint64_t write_nanos = 0;
    Nanos writing_since = 0;  // 0: no write is under way
    Nanos longest_write = 0;  // of those that ended since the last look
    uint64_t answers = 0;     // to requests that change something
    uint64_t answer_nanos = 0;
  };
  void LookAtDisk(const Disk& disk, Nanos now);

  struct Beats {
    uint64_t asked = 0;
    uint64_t answered = 0;
  };
  // Of the peers that are there.
  void LookAtLinks(const std::map<NodeId, Beats>& beats, Nanos now);

  // Empty: it is fit to lead.
  std::string Complaint() const {
    const bool both = !disk_.complaint.empty() && !links_.complaint.empty();
    return disk_.complaint + (both ? "; " : "") + links_.complaint;
  }

 private:
  struct Verdict {
    Nanos bad_since = 0;  // 0: it is not
    Nanos last_bad = 0;
    std::string complaint;
  };
  // `bad`: reason enough to become unfit. `doubtful`: to stay so.
  static void Judge(Verdict* verdict, bool bad, bool doubtful, const std::string& complaint,
                    Nanos now);

  bool IsLossy(NodeId peer, const Beats& counts, Nanos now) const;

  Disk last_;
  Verdict disk_;
  std::deque<std::pair<Nanos, std::map<NodeId, Beats>>> beats_;  // of the last kLinkWindow
  Verdict links_;
};

}  // namespace hydra
