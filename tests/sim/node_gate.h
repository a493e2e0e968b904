// SPDX-License-Identifier: Apache-2.0
//
// NodeGate: through it goes everything that a simulated process does. While the process is paused
// (a long garbage collection, a stopped virtual machine, SIGSTOP) its work waits, in order, and
// its clock goes on. When it dies, what waited and what was still to come for this life is gone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>

#include "tests/sim/scheduler.h"

namespace hydra::sim {

class NodeGate {
 public:
  // What a paused process lets pile up of work that may be lost (messages).
  static constexpr size_t kMaxWaiting = 4096;

  // `scheduler` outlives the gate, and so does the gate all events made through it.
  NodeGate(Scheduler* scheduler, NodeId node) : scheduler_(scheduler), node_(node) {}
  NodeGate(const NodeGate&) = delete;
  NodeGate& operator=(const NodeGate&) = delete;

  bool alive() const { return alive_; }
  bool paused() const { return paused_; }
  uint64_t life() const { return life_; }  // counts starts
  size_t waiting() const { return waiting_.size(); }

  void Start();  // a dead process (as it is at first) lives, not paused
  void Die();    // and forgets
  void Pause();
  void Resume();  // does what waited, unless that pauses it again

  // Now, or when resumed; not at all if it is dead, or dies before.
  void Do(std::function<void()> work);
  // The same for work that may get lost. False if it did: dead, or too much waits already.
  bool Offer(std::function<void()> work);
  // In this life, after `delay` of virtual time.
  EventId After(Nanos delay, const Label& label, std::function<void()> work);
  EventId At(Nanos time, const Label& label, std::function<void()> work);
  // Wraps a completion, which is called once: it does nothing in a later life.
  std::function<void()> InThisLife(std::function<void()> work);

 private:
  Scheduler* const scheduler_;
  const NodeId node_;
  bool alive_ = false;
  bool paused_ = false;
  uint64_t life_ = 0;
  std::deque<std::function<void()>> waiting_;
};

}  // namespace hydra::sim
