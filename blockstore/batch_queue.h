// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "blockstore/types.h"

namespace hydra {

// How a record is queued. Hard state goes first; log records share fairly between flows (a flow
// is a group or a volume); background records (what vacuum moves) go to a lane of their own. An
// install goes with the log, and may use room that is kept from entries: they wait for it.
enum class Urgency : uint8_t { kHardState, kInstall, kLog, kBackground };

struct QueuedRecord {
  std::string bytes;
  Payload payload;
  uint32_t payload_pages = 0;
  uint64_t cookie = 0;
};

// What fits into one batch.
struct BatchBudget {
  uint32_t pages = 0;  // header and payload together
  uint32_t header_pages = 0;
  uint32_t payload_pages = 0;
};

// Records waiting for the writer. Within a flow first come, first served; between flows deficit
// round robin by payload, so a flow of large writes cannot starve one of small writes. Unbounded
// by itself: the volume checks its limits before it pushes. One thread.
class BatchQueue {
 public:
  void Push(Urgency urgency, uint32_t flow, QueuedRecord record);

  // Takes what goes into the next batch of that lane; empty if the first record in line does not
  // fit the budget.
  std::vector<QueuedRecord> Fill(bool background, const BatchBudget& budget);

  bool HasForeground() const { return !hard_.empty() || log_records_ > 0; }
  bool HasBackground() const { return !background_.empty(); }
  bool empty() const { return !HasForeground() && !HasBackground(); }

  size_t records() const { return hard_.size() + log_records_ + background_.size(); }
  uint64_t bytes() const { return bytes_; }
  uint64_t foreground_pages() const { return foreground_pages_; }
  uint64_t background_pages() const { return background_pages_; }

 private:
  struct Flow {
    std::deque<QueuedRecord> records;
    uint32_t deficit = 0;
    bool in_line = false;
  };
  class Filler;

  void FillLog(Filler* filler);

  std::deque<QueuedRecord> hard_;
  std::deque<QueuedRecord> background_;
  std::unordered_map<uint32_t, Flow> flows_;
  std::deque<uint32_t> line_;  // flows that have records, in turn
  size_t log_records_ = 0;
  uint64_t bytes_ = 0;
  uint64_t foreground_pages_ = 0;
  uint64_t background_pages_ = 0;
};

}  // namespace hydra
