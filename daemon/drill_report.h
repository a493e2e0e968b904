// SPDX-License-Identifier: Apache-2.0
//
// What came of a drill: measured from the history that its clients recorded, and shown as a page
// that needs nothing but itself. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "daemon/history.h"
#include "daemon/linearizability.h"

namespace hydra::drill {

// Times count from the start of the load.
struct FaultRecord {
  std::string what;
  Nanos begin = 0;
  Nanos restored = 0;        // 0: never
  Nanos healthy = 0;         // all nodes, masters and replicas are well again; 0: never
  bool writes_stop = false;  // by design: the gap says nothing about how good the cluster is

  // Longest time in which no write of some group was acknowledged, from `begin` to the next fault.
  Nanos gap = 0;
  uint32_t gap_group = 0;
  // The same time, of reads: how many were answered while the fault lasted, and the longest that
  // one waited for its answer. Reads never stop by design.
  uint64_t reads = 0;
  Nanos read_wait = 0;
};

struct MasterChange {
  Nanos at = 0;
  uint32_t group = 0;
  uint32_t from = 0;  // 0: nobody
  uint32_t to = 0;
};

// What happened in one slice of time.
struct Slot {
  uint32_t writes = 0;  // acknowledged changes
  uint32_t reads = 0;
  uint32_t failed = 0;              // refused or unknown
  Nanos p50 = 0, p99 = 0, max = 0;  // of all that was answered; 0: nothing was
};

struct Totals {
  uint64_t operations = 0;
  uint64_t writes = 0, reads = 0, discards = 0, compares = 0, mismatches = 0;  // answered
  uint64_t refused = 0, unknown = 0;                                           // of changes
  uint64_t failed_reads = 0;
  Nanos p50 = 0, p99 = 0, max = 0;
};

struct Report {
  std::string drill;
  std::string summary;  // what it does
  std::string started;  // "2026-11-16 21:30:00 UTC"
  std::string volume;
  uint64_t seed = 0;
  Nanos length = 0;
  Nanos max_gap = 0;
  bool errors_fail = false;  // clients are to see a pause, and no error
  std::vector<FaultRecord> faults;
  std::vector<MasterChange> changes;
  // Of each group of the volume: who led it at first.
  std::vector<std::pair<uint32_t, uint32_t>> first_masters;
  std::vector<std::pair<std::string, std::string>> environment;

  // Filled in by Measure.
  Nanos slot = 0;
  std::vector<Slot> slots;
  Totals totals;
  Nanos calm_gap = 0;             // the same as FaultRecord::gap, before the first fault
  std::vector<std::string> lost;  // acknowledged writes that are not there any more, a line each

  uint64_t told_damaged = 0;  // operations of blocks of which nobody has a good copy

  history::CheckResult check;
  std::vector<std::string> damage;  // blocks with bytes that nobody wrote
  std::string broken_off;           // why the drill did not run to its end; empty: it did
  int64_t shipped_bytes = -1;       // to replicas that were behind; -1: not known

  bool data_is_good() const {
    return check.ok && check.undecided == 0 && damage.empty() && lost.empty();
  }
  std::vector<std::string> Problems() const;  // empty: it passed
  bool passed() const { return Problems().empty(); }
  std::string Verdict() const;  // one line
  size_t NewMasters() const;    // changes that ended with a master
  Nanos WorstGap() const;       // of the faults that have to do with max_gap
  Nanos MedianGap() const;
  Nanos WorstReadWait() const;
  Nanos WorstRecovery() const;  // from the fault on; 0: some fault never ended
};

// Fills in what a history tells. `final_client`: who read every block after the end.
void Measure(const history::History& history,
             const std::function<uint32_t(history::Block)>& group_of, uint32_t final_client,
             Report* report);

// Acknowledged writes that a read by `final_client`, which came after everything else, proves to be
// lost: it found what had certainly been overwritten before. One line per block.
std::vector<std::string> FindLost(const history::History& history, uint32_t final_client);

// The page, as XHTML: styles and pictures inside, no script.
std::string RenderHtml(const Report& report);

// "380 ms", "2.1 s"
std::string TimeText(Nanos time);

}  // namespace hydra::drill
