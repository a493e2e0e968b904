// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/node_gate.h"

#include <utility>

#include "base/check.h"

namespace hydra::sim {

void NodeGate::Start() {
  HYDRA_CHECK(!alive_);
  alive_ = true;
  paused_ = false;
  ++life_;
  scheduler_->Note({"start", node_, life_, 0});
}

void NodeGate::Die() {
  HYDRA_CHECK(alive_);
  alive_ = false;
  paused_ = false;
  waiting_.clear();
  scheduler_->Note({"die", node_, life_, 0});
}

void NodeGate::Pause() {
  HYDRA_CHECK(alive_);
  paused_ = true;
  scheduler_->Note({"pause", node_, life_, 0});
}

void NodeGate::Resume() {
  if (!paused_) return;
  paused_ = false;
  scheduler_->Note({"resume", node_, life_, waiting_.size()});
  // Work may pause or kill the process: the rest then waits on, or is gone.
  while (alive_ && !paused_ && !waiting_.empty()) {
    const std::function<void()> work = std::move(waiting_.front());
    waiting_.pop_front();
    work();
  }
}

void NodeGate::Do(std::function<void()> work) {
  if (!alive_) return;
  // Behind what waits, also while Resume is at it.
  if (paused_ || !waiting_.empty()) return waiting_.push_back(std::move(work));
  work();
}

bool NodeGate::Offer(std::function<void()> work) {
  if (!alive_ || waiting_.size() >= kMaxWaiting) return false;
  Do(std::move(work));
  return true;
}

EventId NodeGate::After(Nanos delay, const Label& label, std::function<void()> work) {
  return scheduler_->After(delay, label, InThisLife(std::move(work)));
}

EventId NodeGate::At(Nanos time, const Label& label, std::function<void()> work) {
  return scheduler_->At(time, label, InThisLife(std::move(work)));
}

std::function<void()> NodeGate::InThisLife(std::function<void()> work) {
  return [this, life = life_, work = std::move(work)]() mutable {
    if (life == life_) Do(std::move(work));
  };
}

}  // namespace hydra::sim
