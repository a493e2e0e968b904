// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/scheduler.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"

namespace hydra::sim {

const char* Scheduler::StopName(Stop stop) {
  switch (stop) {
    case Stop::kIdle: return "nothing left to do";
    case Stop::kDeadline: return "deadline";
    case Stop::kAsked: return "asked to stop";
    case Stop::kEvents: return "too many events";
    case Stop::kStandstill: return "too many events at one time";
    case Stop::kPending: return "too many pending events";
  }
  return "?";
}

EventId Scheduler::At(Nanos time, const Label& label, std::function<void()> run) {
  HYDRA_CHECK(run != nullptr);
  if (free_.empty()) {
    free_.push_back(static_cast<uint32_t>(slots_.size()));
    slots_.emplace_back();
  }
  const uint32_t slot = free_.back();
  free_.pop_back();
  const uint64_t sequence = ++sequence_;
  slots_[slot] = {sequence, label, std::move(run)};
  ++pending_;
  heap_.push_back({std::max(time, now_), sequence, slot});
  std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
  return {sequence, slot};
}

bool Scheduler::Cancel(EventId event) {
  if (event.sequence == 0 || slots_[event.slot].sequence != event.sequence) return false;
  Release(event.slot);
  DropCancelled();
  return true;
}

std::optional<Scheduler::Stop> Scheduler::Step() {
  if (pending_ > limits_.pending) return Stop::kPending;
  if (events_ >= limits_.events) return Stop::kEvents;
  const Due* next = Next();
  if (next == nullptr) return Stop::kIdle;
  const Due due = *next;
  if (due.time > now_) {
    now_ = due.time;
    events_now_ = 0;
  }
  if (events_now_ >= limits_.events_at_one_time) return Stop::kStandstill;
  ++events_now_;
  ++events_;
  std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
  heap_.pop_back();
  trace_.Add(now_, slots_[due.slot].label);
  const std::function<void()> run = std::move(slots_[due.slot].run);
  Release(due.slot);
  run();
  return std::nullopt;
}

Scheduler::Stop Scheduler::RunUntil(Nanos deadline) {
  stop_ = false;
  while (!stop_) {
    const Due* next = Next();
    if (next == nullptr || next->time > deadline) {
      if (deadline > now_) {
        now_ = deadline;
        events_now_ = 0;
      }
      return Stop::kDeadline;
    }
    if (const std::optional<Stop> stopped = Step()) return *stopped;
  }
  return Stop::kAsked;
}

Scheduler::Stop Scheduler::Run() {
  stop_ = false;
  while (!stop_) {
    if (const std::optional<Stop> stopped = Step()) return *stopped;
  }
  return Stop::kAsked;
}

void Scheduler::Release(uint32_t slot) {
  slots_[slot].sequence = 0;
  slots_[slot].run = nullptr;
  free_.push_back(slot);
  --pending_;
}

const Scheduler::Due* Scheduler::Next() {
  while (!heap_.empty()) {
    const Due& due = heap_.front();
    if (slots_[due.slot].sequence == due.sequence) return &due;
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    heap_.pop_back();
  }
  return nullptr;
}

// Keeps a timer that is set and cancelled all the time from filling memory. The order in which
// events surface does not depend on the heap's layout.
void Scheduler::DropCancelled() {
  constexpr size_t kWorthIt = 1024;
  if (heap_.size() < kWorthIt || heap_.size() < 4 * pending_) return;
  std::erase_if(heap_, [&](const Due& d) { return slots_[d.slot].sequence != d.sequence; });
  std::make_heap(heap_.begin(), heap_.end(), std::greater<>());
}

}  // namespace hydra::sim
