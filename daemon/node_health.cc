// SPDX-License-Identifier: Apache-2.0
//
// A node that is not fit to lead (daemon/self_watch.h) hands its masterships over, and tells its
// peers, which then do not hand any to it. Nothing of it is a matter of consensus: a hint that is
// lost, late or wrong costs time, never data.
#include <fmt/format.h>

#include "base/logging.h"
#include "daemon/node_impl.h"

namespace hydra {
namespace {

constexpr Nanos kTellUnfit = 1 * kSecond;  // how often
// What a peer said counts so long; it has said it again by then.
constexpr Nanos kAvoidFor = 5 * kSecond;
constexpr Nanos kGiveAwayAgain = 2 * kSecond;

}  // namespace

void Node::Impl::CountBeat(const PeerMessage& message, bool sent) {
  const auto* beat = std::get_if<paxos::Heartbeat>(&message);
  if (beat == nullptr || beat->is_reply == sent) return;
  if (!sent) {
    ++beats_[beat->from].answered;
  } else if (links_->connected(beat->to)) {
    ++beats_[beat->to].asked;
  }
}

void Node::Impl::TendHealth() {
  const Nanos now = clock_.Now();
  SelfWatch::Disk disk;
  disk.writes = disk_->writes();
  disk.write_nanos = disk_->writing_nanos();
  disk.writing_since = disk_->writing_since();
  disk.longest_write = disk_->TakeLongestWrite();
  disk.answers = answers_;
  disk.answer_nanos = answer_nanos_;
  self_watch_.LookAtDisk(disk, now);
  std::map<NodeId, SelfWatch::Beats> beats;
  for (const auto& [peer, counts] : beats_) {
    if (links_->connected(peer)) beats.emplace(peer, counts);
  }
  self_watch_.LookAtLinks(beats, now);
  const std::string why = self_watch_.Complaint();
  if (!why.empty() && unfit_.empty()) {
    HYDRA_LOG_WARN("node {} is not fit to lead: {}", options_.node, why);
  } else if (why.empty() && !unfit_.empty()) {
    HYDRA_LOG_INFO("node {} is fit to lead again", options_.node);
  }
  unfit_ = why;
  if (why.empty()) gave_away_.clear();
  if (why.empty() || stopping_) return;
  if (now >= told_unfit_ + kTellUnfit) {
    told_unfit_ = now;
    rpc::Unfit unfit;
    unfit.set_why(why);
    for (const auto& [peer, address] : options_.peers) {
      if (peer != options_.node) links_->Send(peer, unfit);
    }
  }
  for (const auto& [group, shard] : core_->shards()) GiveAway(group);
}

// To whoever is fit; if nobody is, it stays. Who was asked may fail to take over, and this node may
// be elected again: it serves for a while then, rather than nobody.
void Node::Impl::GiveAway(GroupId group) {
  const Nanos now = clock_.Now();
  Shard* shard = core_->shard(group);
  if (!shard->replica().serving() || now < gave_away_[group] + kGiveAwayAgain) return;
  for (const NodeId node : Successors(group)) {
    if (IsAvoided(node) || !HandOver(group, node)) continue;
    gave_away_[group] = now;
    return;
  }
}

void Node::Impl::OnUnfit(NodeId peer, const rpc::Unfit& unfit) {
  if (!IsAvoided(peer)) {
    HYDRA_LOG_INFO("node {} is not fit to lead: {}", peer, unfit.why().substr(0, 200));
  }
  avoided_until_[peer] = clock_.Now() + kAvoidFor;
}

bool Node::Impl::IsAvoided(NodeId peer) const {
  const auto found = avoided_until_.find(peer);
  return found != avoided_until_.end() && clock_.Now() < found->second;
}

}  // namespace hydra
