// SPDX-License-Identifier: Apache-2.0
//
// Scheduler: virtual time and everything that will happen in it. Events run in the order of their
// times, those of the same time in the order they were made, and each takes no time itself. The
// whole simulation is one scheduler on one thread, so the same seed gives the same run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "tests/sim/trace.h"

namespace hydra::sim {

// Names an event that has not run yet. Never reused: cancelling a past event does nothing.
struct EventId {
  uint64_t sequence = 0;  // 0 = none
  uint32_t slot = 0;
};

class Scheduler {
 public:
  // A run that goes on for ever is a failure with a name, not a hung test.
  struct Limits {
    uint64_t events = 1ull << 40;
    uint64_t events_at_one_time = 200'000;  // more: a loop that takes no time
    size_t pending = 1u << 20;
  };
  enum class Stop {
    kIdle,        // nothing left to do
    kDeadline,    // reached the time asked for
    kAsked,       // RequestStop
    kEvents,      // a limit
    kStandstill,  // a limit: time does not move
    kPending,     // a limit
  };
  static const char* StopName(Stop stop);
  static bool IsLimit(Stop stop) { return stop >= Stop::kEvents; }

  Scheduler() = default;
  explicit Scheduler(const Limits& limits) : limits_(limits) {}
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  Nanos now() const { return now_; }
  uint64_t events() const { return events_; }
  size_t pending() const { return pending_; }
  Trace& trace() { return trace_; }

  // A time in the past means now: after everything already made for now.
  EventId At(Nanos time, const Label& label, std::function<void()> run);
  EventId After(Nanos delay, const Label& label, std::function<void()> run) {
    return At(now_ + delay, label, std::move(run));
  }
  // False if it ran or was cancelled before.
  bool Cancel(EventId event);

  // Puts something that happened just now into the trace.
  void Note(const Label& label, std::string_view detail = {}) { trace_.Add(now_, label, detail); }

  // Runs events up to and including `deadline`. Time then is `deadline`, unless the run stopped
  // before.
  Stop RunUntil(Nanos deadline);
  // Runs until there is nothing left.
  Stop Run();
  // Runs one event; nullopt if it did, else why not.
  std::optional<Stop> Step();
  // The running event is the last one of this RunUntil or Run.
  void RequestStop() { stop_ = true; }

 private:
  struct Slot {
    uint64_t sequence = 0;  // of the event in it; 0 = free
    Label label;
    std::function<void()> run;
  };
  struct Due {
    Nanos time;
    uint64_t sequence;
    uint32_t slot;
    bool operator>(const Due& other) const {
      return time != other.time ? time > other.time : sequence > other.sequence;
    }
  };

  void Release(uint32_t slot);
  const Due* Next();  // the next event that was not cancelled; null if none
  void DropCancelled();

  const Limits limits_;
  Nanos now_ = 0;
  uint64_t sequence_ = 0;
  uint64_t events_ = 0;
  uint64_t events_now_ = 0;  // run at the present time
  size_t pending_ = 0;
  bool stop_ = false;
  Trace trace_;
  std::vector<Due> heap_;  // cancelled ones too, until they surface
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;
};

}  // namespace hydra::sim
