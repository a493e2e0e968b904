// SPDX-License-Identifier: Apache-2.0
//
// Beats, leases and linearizable reads.
#include <algorithm>

#include "base/check.h"
#include "base/probe.h"
#include "base/sabotage.h"
#include "paxos/replica.h"

namespace hydra::paxos {

const Replica::Peer* Replica::FindPeer(const MemberId& id) const {
  return const_cast<Replica*>(this)->FindPeer(id);
}

Replica::Peer* Replica::FindPeer(const MemberId& id) {
  for (Peer& peer : peers_) {
    if (peer.id == id) return &peer;
  }
  return nullptr;
}

// --- Leases -------------------------------------------------------------------------------------

// `peer` is known, through a message of this boot of its process, to have promised ballot_.
void Replica::Confirm(Peer* peer, uint64_t boot, Nanos now) {
  if (peer->confirmed_boot == boot) return;
  // What a former process of it had applied, or had, may have been lost with that.
  if (peer->confirmed_boot != 0) peer->applied = 0;
  peer->confirmed_boot = boot;
  peer->confirmed_at = now;
}

// Whether no other master can have been elected yet: a majority has granted this node a lease, each
// of them in answer to a heartbeat sent after it was known to have promised this ballot.
bool Replica::LeaseValid(Nanos now) const {
  if (mode_ != Mode::kMaster) return false;
  if (HYDRA_SABOTAGE(kReadWithoutLease)) return true;
  const auto covered = [&](const Config& config) {
    uint32_t bits = 0;
    for (size_t i = 0; i < config.members().size(); ++i) {
      const MemberId& id = config.members()[i].id;
      if (id == options_.self) {
        bits |= 1u << i;
        continue;
      }
      const auto peer =
          std::find_if(peers_.begin(), peers_.end(), [&](const Peer& p) { return p.id == id; });
      if (peer == peers_.end() || peer->confirmed_boot == 0) continue;
      const LeaseTable::Held held = leases_->HeldFrom(id.node);
      if (held.boot == peer->confirmed_boot && peer->confirmed_at <= held.sent &&
          now < held.until) {
        bits |= 1u << i;
      }
    }
    return config.IsMajority(bits);
  };
  if (!covered(config_)) return false;
  // A configuration under way may be chosen already.
  const Slot* open = config_at_ != 0 ? Find(config_at_) : nullptr;
  return open == nullptr || covered(*open->meta.config);
}

// --- Beats --------------------------------------------------------------------------------------

void Replica::On(const Beat& m, const Message& in, Nanos now) {
  if (m.ballot.node != in.from.node) return;
  if (m.ballot < promised_) {
    HYDRA_PROBE("a deposed master learns it from a beat");
    Send(in.from, Reject{m.ballot, promised_, Refusal::kBallot, config_.instance()});
    return;
  }
  commit_heard_ = std::max(commit_heard_, m.commit);
  if (suspect_) return;
  if (m.ballot > promised_) {
    if (mode_ != Mode::kFollower) StepDown(now, true);
    MovePromise(m.ballot, now);
    AppendHardState();
  }
  if (mode_ != Mode::kFollower) StepDown(now, true);
  promised_to_ = in.from;
  promised_boot_ = in.boot;
  master_seen_ = m.ballot;
  master_boot_ = in.boot;
  const BeatReply reply{m.ballot, m.round, applied_, WhatItLacks()};
  if (durable_promise_ == promised_) {
    Send(in.from, reply);
  } else {
    SayWhenDurable(in.from, reply);
  }
  LearnCommit(m.ballot, m.commit, in.from, now);
}

void Replica::On(const BeatReply& m, const Message& in, Nanos now) {
  if (mode_ != Mode::kMaster || m.ballot != ballot_) return;
  Peer* peer = FindPeer(in.from);
  if (peer == nullptr) return;
  Confirm(peer, in.boot, now);
  peer->Take(m.applied, m.lacks);
  peer->round = std::max(peer->round, m.round);
  if (HYDRA_SABOTAGE(kStaleReadRound)) peer->round = round_;
  FinishReadRounds(now);
}

// --- Reads --------------------------------------------------------------------------------------

void Replica::Read(uint64_t id, Nanos now) {
  now_ = std::max(now_, now);
  if (serving()) {
    if (LeaseValid(now_)) {
      out_.reads.push_back({id, true, commit_});
    } else if (next_reads_.size() >= options_.max_reads) {
      out_.reads.push_back({id, false, 0});
    } else {
      HYDRA_PROBE("read: by a round, without a lease");
      next_reads_.push_back({id, options_.self});
      if (round_reads_.empty()) StartReadRound(now_);
    }
    return;
  }
  const MemberId master = master_hint();
  if (master.node == 0 || master == options_.self || asked_master_.size() >= options_.max_reads) {
    out_.reads.push_back({id, false, 0});
    return;
  }
  asked_master_[id] = now_ + 2 * options_.election_timeout;
  Send(master, ReadIndex{id});
}

void Replica::On(const ReadIndex& m, const Message& in, Nanos now) {
  if (!serving() || next_reads_.size() >= options_.max_reads) {
    Send(in.from, ReadIndexReply{m.id, false, 0});
  } else if (LeaseValid(now)) {
    Send(in.from, ReadIndexReply{m.id, true, commit_});
  } else {
    next_reads_.push_back({m.id, in.from});
    if (round_reads_.empty()) StartReadRound(now);
  }
}

void Replica::On(const ReadIndexReply& m, const Message&, Nanos) {
  if (asked_master_.erase(m.id) == 0) return;
  HYDRA_PROBE("read: a follower serves it");
  out_.reads.push_back({m.id, m.ok, m.instance});
}

// Reads that arrive while a round is out wait for the next: an answer to a round that began before
// a read was asked proves nothing for it.
void Replica::StartReadRound(Nanos now) {
  ++round_;
  round_instance_ = commit_;
  round_reads_ = std::move(next_reads_);
  next_reads_.clear();
  round_due_ = now + options_.retransmit_after;
  for (const Peer& peer : peers_) Send(peer.id, Beat{ballot_, commit_, round_});
  FinishReadRounds(now);
}

void Replica::FinishReadRounds(Nanos now) {
  while (!round_reads_.empty()) {
    const auto answered = [&](const Config& config) {
      uint32_t bits = 0;
      for (size_t i = 0; i < config.members().size(); ++i) {
        const MemberId& id = config.members()[i].id;
        const Peer* peer = FindPeer(id);
        if (id == options_.self || (peer != nullptr && peer->round == round_)) bits |= 1u << i;
      }
      return config.IsMajority(bits);
    };
    const Slot* open = config_at_ != 0 ? Find(config_at_) : nullptr;
    if (!answered(config_) || (open != nullptr && !answered(*open->meta.config))) return;
    for (const WaitingRead& read : round_reads_) {
      AnswerRead(read.id, read.asker, true, round_instance_);
    }
    round_reads_.clear();
    if (next_reads_.empty()) return;
    HYDRA_PROBE("read: a second round for those that came during the first");
    StartReadRound(now);
  }
}

void Replica::AnswerRead(uint64_t id, const MemberId& asker, bool ok, Instance instance) {
  if (asker == options_.self) {
    out_.reads.push_back({id, ok, instance});
  } else {
    Send(asker, ReadIndexReply{id, ok, instance});
  }
}

void Replica::FailReads() {
  for (const auto* reads : {&round_reads_, &next_reads_}) {
    for (const WaitingRead& read : *reads) AnswerRead(read.id, read.asker, false, 0);
  }
  round_reads_.clear();
  next_reads_.clear();
}

void Replica::TickReads(Nanos now) {
  if (!round_reads_.empty() && now >= round_due_) {
    round_due_ = now + options_.retransmit_after;
    for (const Peer& peer : peers_) {
      if (peer.round != round_) Send(peer.id, Beat{ballot_, commit_, round_});
    }
  }
  // An idle group's followers learn the last commit soon; those who lag are told again, and say
  // when they lack nothing any more; a peer that restarted is asked to confirm its promise, so that
  // its lease counts again.
  const bool tell = commit_told_ < commit_ && now >= commit_told_at_ + options_.commit_interval;
  const bool laggards = now >= laggards_due_;
  if (laggards) laggards_due_ = now + 2 * options_.retransmit_after;
  for (Peer& peer : peers_) {
    const uint64_t boot = leases_->BootOf(peer.id.node);
    const bool unconfirmed = boot != 0 && boot != peer.confirmed_boot && now >= peer.probe_due;
    if (unconfirmed) peer.probe_due = now + options_.retransmit_after;
    const bool lags = peer.applied < commit_ || peer.lacks != Lacks::kNothing;
    if (tell || unconfirmed || (laggards && lags)) {
      Send(peer.id, Beat{ballot_, commit_, 0});
    }
  }
  if (tell) {
    commit_told_ = commit_;
    commit_told_at_ = now;
  }
  // Without a majority in reach nothing can be served: let others know whom not to ask. (A
  // connection that broke may be back in a moment.)
  uint32_t reachable = 0;
  for (size_t i = 0; i < config_.members().size(); ++i) {
    if (leases_->Heard(config_.members()[i].id.node, now)) reachable |= 1u << i;
  }
  if (!config_.IsMajority(reachable)) {
    HYDRA_PROBE("a master without a majority steps down");
    StepDown(now, true);
  }
}

}  // namespace hydra::paxos
