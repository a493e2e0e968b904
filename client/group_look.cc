// SPDX-License-Identifier: Apache-2.0
//
// What a client does about a master that is silent: a process that stands still keeps its
// connections, so only the other replicas can tell that there is a new master.
#include <algorithm>

#include "client/router_core.h"

namespace hydra {
namespace {

// Between two questions of a group.
constexpr std::chrono::milliseconds kLookAgain(50);

}  // namespace

TimePoint GroupClient::Watch(const GroupOp& op, TimePoint now) {
  const auto patience = core_->options.look_around_after;
  const TimePoint due = op.attempted + patience;
  if (now < due) return due;
  if (IsSilent(op.node, now)) LookAround(op, now);
  return std::max(look_at_, now + kLookAgain);
}

bool GroupClient::IsSilent(NodeId node, TimePoint now) {
  const auto link = core_->LinkOf(node);
  return link && link->SilentFor(core_->options.look_around_after, now);
}

// By a read that moves no data and waits for nobody: every answer says who the master is, as far
// as that node knows.
void GroupClient::LookAround(const GroupOp& op, TimePoint now) {
  if (looking_ || now < look_at_) return;
  look_at_ = now + kLookAgain;
  const NodeId silent = op.node;
  GroupOp question;
  question.request.kind = GroupRequest::Kind::kRead;
  question.request.group = id_;
  question.request.lba = op.request.lba;
  question.request.count = 1;
  question.request.map_only = true;
  question.request.local = true;
  for (size_t i = 0; i < replicas_.size(); ++i) {
    const NodeId node = replicas_[turn_++ % replicas_.size()];
    if (node == silent) continue;
    const auto link = core_->LinkOf(node);
    if (!link || !link->usable()) continue;
    ++core_->stats.looks;
    looking_ = true;
    link->Call(Encode(question), {}, 0, core_->options.attempt_timeout,
               [self = shared_from_this(), core = core_->weak_from_this(),
                silent](const NodeLink::Answer& answer) {
                 self->looking_ = false;
                 const auto alive = core.lock();
                 if (!alive || alive->stopped || !answer.status.ok()) return;
                 self->OnLook(silent, answer.reply.master());
               });
    return;
  }
}

void GroupClient::OnLook(NodeId silent, NodeId master) {
  if (master == 0 || master == silent) return;
  if (!IsSilent(silent, SteadyClock::now())) return;  // it was only slow
  if (master_ == silent || master_ == 0) master_ = master;
  // Copies that lie with the silent node change nothing any more, or are the same requests by
  // their numbers.
  const std::vector<std::shared_ptr<GroupOp>> ops(ops_.begin(), ops_.end());
  for (const auto& op : ops) {
    if (op->finished || !op->out || op->node != silent) continue;
    op->maybe_executed = true;
    Attempt(op);
  }
}

}  // namespace hydra
