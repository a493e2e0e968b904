// SPDX-License-Identifier: Apache-2.0
#include "paxos/lease_table.h"

#include <algorithm>

#include "base/check.h"
#include "base/probe.h"
#include "base/sabotage.h"

namespace hydra::paxos {
namespace {

// If each clock runs within kDriftPercent of true time, `lease` of the grantor's clock lasts at
// least lease / 1.1, and `x` of the holder's clock at most x / 0.9: usable is lease * 0.9 / 1.1.
Nanos Usable(Nanos lease) {
  if (HYDRA_SABOTAGE(kLeaseIgnoresDrift)) return lease;
  return lease * (100 - LeaseTable::kDriftPercent) / (100 + LeaseTable::kDriftPercent);
}

constexpr size_t kMaxUnanswered = 64;
constexpr size_t kMaxProcesses = 64;  // of one peer that are remembered
// A credit is worth nothing when so many heartbeats went unanswered since: what was left of the
// room then, others may have used.
constexpr int kCreditIntervals = 4;

}  // namespace

LeaseTable::LeaseTable(const Options& options) : options_(options), longest_grant_(options.lease) {
  HYDRA_CHECK(options.node != 0 && options.boot != 0);
  HYDRA_CHECK(options.interval > 0 && options.lease >= 2 * options.interval);
}

void LeaseTable::SetPeers(const std::vector<NodeId>& peers, Nanos now) {
  for (const NodeId node : peers) {
    if (node == options_.node || peers_.contains(node)) continue;
    Peer peer;
    peer.next_due = now;
    peers_.emplace(node, std::move(peer));
  }
  // What was granted to a peer that is no longer one still binds; it is dropped when it ran out.
  // And a notice must not get lost: with the next lease the peer would count on what was taken
  // back.
  std::erase_if(peers_, [&](const auto& peer) {
    return std::find(peers.begin(), peers.end(), peer.first) == peers.end() &&
           peer.second.notices.empty() &&
           std::all_of(peer.second.granted.begin(), peer.second.granted.end(),
                       [now](const auto& grant) { return grant.second <= now; });
  });
}

void LeaseTable::ConnectionLost(NodeId peer) {
  const auto found = peers_.find(peer);
  if (found != peers_.end()) found->second.lost = true;
}

void LeaseTable::SetRoom(uint64_t bytes, bool known) {
  own_ = {bytes / (2 * (peers_.size() + 1)), known, settled_, 0};
}

void LeaseTable::FillNotices(Peer* peer, Heartbeat* message) const {
  for (const auto& [key, notice] : peer->notices) message->notices.push_back(notice);
  std::sort(message->notices.begin(), message->notices.end(),
            [](const Notice& a, const Notice& b) { return a.sequence < b.sequence; });
  if (message->notices.size() > options_.max_notices_per_message) {
    HYDRA_PROBE("lease: more notices than one heartbeat carries");
    message->notices.resize(options_.max_notices_per_message);
    message->more_notices = true;
  }
  message->last_notice = peer->last_notice;
  message->seen_boot = peer->boot;
  message->seen_notice = peer->seen_notice;
}

void LeaseTable::Tick(Nanos now, std::vector<Heartbeat>* out) {
  for (auto& [node, peer] : peers_) {
    if (now < peer.next_due) continue;
    peer.next_due = now + options_.interval;
    Heartbeat message;
    message.from = options_.node;
    message.to = node;
    message.boot = options_.boot;
    message.sequence = peer.next_sequence++;
    message.lease = options_.lease;
    message.store = options_.store;
    message.durable_batch = durable_batch_;
    FillNotices(&peer, &message);
    peer.sent.emplace(message.sequence, Sent{now, settled_});
    if (peer.sent.size() > kMaxUnanswered) peer.sent.erase(peer.sent.begin());
    out->push_back(std::move(message));
  }
}

// Boots are random, so which of two came later is told by cause and effect: an answer to a
// heartbeat that left after the known process was last heard can only be of its successor. Anything
// else of another process may be late, and its sender dead.
bool LeaseTable::IsCurrent(Peer* peer, const Heartbeat& in) {
  if (in.boot == peer->boot) return true;
  if (peer->boot != 0) {
    const bool answers_us = in.is_reply && peer->sent.contains(in.sequence);
    if (!answers_us || in.sequence < peer->heard_before) {
      HYDRA_PROBE("lease: a heartbeat of another process of the peer");
      peer->next_due = 0;  // its answer will tell
      return false;
    }
    // (The second line of defence against recovery that loses the end of the log.)
    if (in.store == peer->store && in.durable_batch < peer->durable_batch &&
        !HYDRA_SABOTAGE(kTreatRotAsTorn) &&
        std::find(rolled_back_.begin(), rolled_back_.end(), in.from) == rolled_back_.end()) {
      HYDRA_PROBE("lease: a peer's store went back in time");
      rolled_back_.push_back(in.from);
    }
  }
  if (in.store != peer->store) {
    peer->store = in.store;
    peer->durable_batch = 0;
    std::erase(rolled_back_, in.from);  // that one was replaced
  }
  peer->boot = in.boot;
  peer->held = {};
  peer->credit = {};
  peer->seen_notice = 0;
  return true;
}

void LeaseTable::Answer(Peer* peer, const Heartbeat& in, bool grant, Nanos now,
                        std::vector<Heartbeat>* out) {
  Heartbeat reply;
  reply.from = options_.node;
  reply.to = in.from;
  reply.boot = options_.boot;
  reply.is_reply = true;
  reply.sequence = in.sequence;
  reply.asker_boot = in.boot;
  reply.store = options_.store;
  reply.durable_batch = durable_batch_;
  reply.credit = own_.bytes;
  reply.credit_known = own_.known;
  if (!grant) {
    // Granted only to the process that is known as the peer's: replicas rely on that.
  } else if (!Quiet(now)) {
    reply.lease = std::min({in.lease, options_.lease, longest_grant_});
    Grant(peer, in.boot, now + reply.lease);
  } else {
    HYDRA_PROBE("lease: a restarted node grants nothing yet");
  }
  FillNotices(peer, &reply);
  out->push_back(std::move(reply));
}

void LeaseTable::Step(const Heartbeat& in, Nanos now, std::vector<Heartbeat>* out,
                      std::vector<std::pair<NodeId, Notice>>* notices) {
  const auto found = peers_.find(in.from);
  if (found == peers_.end() || in.to != options_.node || in.boot == 0) return;
  if (in.is_reply && in.asker_boot != options_.boot) {
    HYDRA_PROBE("lease: an answer to a former process of this node");
    return;
  }
  Peer& peer = found->second;
  if (!IsCurrent(&peer, in)) {
    if (!in.is_reply) Answer(&peer, in, false, now, out);
    return;
  }
  if (std::find(rolled_back_.begin(), rolled_back_.end(), in.from) != rolled_back_.end()) return;
  peer.heard = now;
  peer.lost = false;
  peer.heard_before = peer.next_sequence;
  peer.durable_batch = std::max(peer.durable_batch, in.durable_batch);

  for (const Notice& notice : in.notices) {
    if (notice.sequence <= peer.seen_notice) continue;
    peer.seen_notice = notice.sequence;
    notices->emplace_back(in.from, notice);
  }
  if (!in.more_notices) peer.seen_notice = std::max(peer.seen_notice, in.last_notice);
  if (in.seen_boot == options_.boot) {
    std::erase_if(peer.notices, [&](const auto& n) { return n.second.sequence <= in.seen_notice; });
  }
  if (!in.is_reply) {
    Answer(&peer, in, true, now, out);
    return;
  }

  const auto sent = peer.sent.find(in.sequence);
  if (sent == peer.sent.end()) return;  // an answer counted before, or too old
  const Nanos left = sent->second.at;
  if (left >= peer.credit.at) {
    peer.credit = {in.credit, in.credit_known, sent->second.settled, left};
  }
  peer.sent.erase(peer.sent.begin(), std::next(sent));
  if (in.lease <= 0) return;
  if (peer.seen_notice < in.last_notice) {
    HYDRA_PROBE("lease: not counted, notices are missing");
    return;
  }
  if (left < peer.held.sent) return;
  peer.held = {in.boot, left, left + Usable(in.lease)};
}

Nanos LeaseTable::GrantedUntil(NodeId peer, uint64_t boot) const {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return 0;
  for (const auto& [granted_to, until] : found->second.granted) {
    if (granted_to == boot) return until;
  }
  return 0;
}

void LeaseTable::Grant(Peer* peer, uint64_t boot, Nanos until) {
  for (auto& grant : peer->granted) {
    if (grant.first != boot) continue;
    grant.second = std::max(grant.second, until);
    return;
  }
  peer->granted.emplace_back(boot, until);
  // The first is the oldest, and ran out long ago: no node starts so often within a lease.
  if (peer->granted.size() > kMaxProcesses) peer->granted.erase(peer->granted.begin());
}

LeaseTable::Held LeaseTable::HeldFrom(NodeId peer) const {
  const auto found = peers_.find(peer);
  return found == peers_.end() ? Held{} : found->second.held;
}

bool LeaseTable::HeardLately(const Peer& peer, Nanos now) const {
  return peer.boot != 0 && now < peer.heard + options_.dead_after;
}

bool LeaseTable::Heard(NodeId peer, Nanos now) const {
  if (peer == options_.node) return true;
  const auto found = peers_.find(peer);
  return found != peers_.end() && HeardLately(found->second, now);
}

bool LeaseTable::Alive(NodeId peer, Nanos now) const {
  if (peer == options_.node) return true;
  const auto found = peers_.find(peer);
  return found != peers_.end() && !found->second.lost && HeardLately(found->second, now);
}

LeaseTable::Space LeaseTable::SpaceOf(NodeId node, uint64_t bytes, Nanos now) const {
  const bool self = node == options_.node;
  if (!self && !Alive(node, now)) return Space::kUnknown;
  const Credit& credit = self ? own_ : peers_.at(node).credit;
  if (!self && now > credit.at + kCreditIntervals * options_.interval) return Space::kUnknown;
  // (Settled since then may be what was charged before: both counts only grow.)
  if (credit.bytes >= bytes + (charged_ - credit.settled)) return Space::kEnough;
  return credit.known && credit.bytes < bytes ? Space::kFull : Space::kUnknown;
}

uint64_t LeaseTable::BootOf(NodeId peer) const {
  const auto found = peers_.find(peer);
  return found == peers_.end() ? 0 : found->second.boot;
}

void LeaseTable::Notify(NodeId node, GroupId group, Notice::Kind kind, const Ballot& ballot) {
  if (node == options_.node) return;
  Peer& peer = peers_[node];
  Notice& notice = peer.notices[{group, kind}];
  notice = {++last_notice_, group, kind, ballot};
  peer.last_notice = last_notice_;
  peer.next_due = 0;  // tell it soon
}

}  // namespace hydra::paxos
