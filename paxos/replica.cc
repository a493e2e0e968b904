// SPDX-License-Identifier: Apache-2.0
//
// The replica's frame: slots, output, durability, time. The protocol is in replica_election.cc,
// replica_log.cc and replica_read.cc.
#include "paxos/replica.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/probe.h"
#include "base/sabotage.h"

namespace hydra::paxos {

void Output::Clear() {
  messages.clear();
  appends.clear();
  chosen.clear();
  reads.clear();
  catch_ups.clear();
  bodies.clear();
  installs.clear();
  piece.reset();
  install_begun = false;
  mastership_changed = false;
  removed = false;
}

void Output::Swap(Output* other) {
  messages.swap(other->messages);
  appends.swap(other->appends);
  chosen.swap(other->chosen);
  reads.swap(other->reads);
  catch_ups.swap(other->catch_ups);
  bodies.swap(other->bodies);
  installs.swap(other->installs);
  piece.swap(other->piece);
  std::swap(install_begun, other->install_begun);
  std::swap(mastership_changed, other->mastership_changed);
  std::swap(removed, other->removed);
}

bool Output::empty() const {
  return messages.empty() && appends.empty() && chosen.empty() && reads.empty() &&
         catch_ups.empty() && bodies.empty() && installs.empty() && !piece && !install_begun &&
         !mastership_changed && !removed;
}

Replica::Replica(const ReplicaOptions& options, const RecoveredState& recovered, LeaseTable* leases,
                 Nanos now)
    : options_(options),
      leases_(leases),
      rng_(options.seed),
      promised_(recovered.promised),
      applied_(recovered.applied),
      commit_(recovered.applied),
      fence_(recovered.fence),
      config_(recovered.config),
      suspect_(recovered.suspect),
      now_(now),
      commit_heard_(recovered.applied) {
  HYDRA_CHECK(options.self.node != 0 && options.window_instances > 0);
  for (const RecoveredEntry& entry : recovered.entries) {
    HYDRA_CHECK(entry.instance > applied_);
    Slot& slot = Reach(entry.instance);
    slot.ballot = entry.ballot;
    slot.meta = entry.meta;
    slot.faulty = entry.faulty;
    slot.durable = true;
    if (entry.faulty) HYDRA_PROBE("restart with a faulty entry");
    // An accept record implies the promise.
    promised_ = std::max(promised_, entry.ballot);
  }
  recovered_slots_ = slots_.size();
  if (HYDRA_SABOTAGE(kForgetPromiseOnRestart)) promised_ = {};
  durable_promise_ = promised_;
  highest_round_ = std::max(promised_.round, options_.used_round);
  if (recovered.installing) {
    HYDRA_PROBE("install: resumed after a restart");
    install_.active = true;
    install_.cursor = recovered.install_cursor;
  }
  ResetElectionTimer(now);
}

// --- Slots ------------------------------------------------------------------------------------

Replica::Slot* Replica::Find(Instance instance) {
  if (instance <= applied_ || instance - applied_ > slots_.size()) return nullptr;
  return &slots_[instance - applied_ - 1];
}

const Replica::Slot* Replica::Find(Instance instance) const {
  return const_cast<Replica*>(this)->Find(instance);
}

Replica::Slot& Replica::Reach(Instance instance) {
  HYDRA_CHECK(instance > applied_);
  while (slots_.size() < instance - applied_) slots_.emplace_back();
  return slots_[instance - applied_ - 1];
}

void Replica::Applied(Instance instance) {
  HYDRA_CHECK(instance == applied_ + 1 && instance <= commit_);
  slots_.pop_front();
  applied_ = instance;
}

void Replica::AdvanceCommit() {
  for (Slot* slot = Find(commit_ + 1); slot != nullptr && slot->chosen; slot = Find(commit_ + 1)) {
    HYDRA_CHECK(!slot->faulty);
    ++commit_;
    if (mode_ == Mode::kMaster) open_bytes_ -= std::min<uint64_t>(open_bytes_, slot->meta.bytes);
    out_.chosen.push_back({commit_, slot->ballot, slot->meta, slot->body});
    fence_ = std::max(fence_, slot->meta.fence);
    if (slot->meta.kind == EntryKind::kConfig) AdoptConfig(*slot->meta.config);
    if (mode_ == Mode::kMaster && !active_ && noop_ != 0 && commit_ >= noop_) {
      active_ = true;
      out_.mastership_changed = true;
    }
  }
  commit_heard_ = std::max(commit_heard_, commit_);
}

// --- Output and durability ----------------------------------------------------------------------

void Replica::Send(const MemberId& to, MessageBody body) {
  out_.messages.push_back({options_.group, options_.self, to, leases_->boot(), std::move(body)});
}

// The one way out for what asserts a promise: behind every record queued so far. (Acceptances
// leave in FlushAccepted, which Persisted fills, and On(Accept) with what was durable before.)
void Replica::SayWhenDurable(const MemberId& to, MessageBody body) {
  if (pending_.empty() || HYDRA_SABOTAGE(kAckBeforeFlush)) {
    Send(to, std::move(body));
    return;
  }
  pending_.back().say.push_back(
      {options_.group, options_.self, to, leases_->boot(), std::move(body)});
}

uint64_t Replica::AppendHardState() {
  const uint64_t token = next_token_++;
  out_.appends.push_back({token, Append::Kind::kHardState, promised_, 0, {}, nullptr});
  pending_.push_back({token, Append::Kind::kHardState, promised_, 0, {}});
  return token;
}

void Replica::AppendAccept(Instance instance, const Slot& slot) {
  HYDRA_CHECK(slot.ballot <= promised_);
  const uint64_t token = next_token_++;
  out_.appends.push_back(
      {token, Append::Kind::kAccept, slot.ballot, instance, slot.meta, slot.body});
  pending_.push_back({token, Append::Kind::kAccept, slot.ballot, instance, {}});
  if (HYDRA_SABOTAGE(kAckBeforeFlush) && mode_ != Mode::kMaster && slot.ballot == promised_) {
    AddAccepted(instance);
  }
}

void Replica::Persisted(uint64_t token, Nanos now) {
  now_ = std::max(now_, now);
  while (!pending_.empty() && pending_.front().token <= token) {
    Durable record = std::move(pending_.front());
    pending_.pop_front();
    durable_promise_ = std::max(durable_promise_, record.ballot);
    if (record.kind == Append::Kind::kAccept) {
      Slot* slot = Find(record.instance);
      if (slot != nullptr && slot->ballot == record.ballot) slot->durable = true;
      if (mode_ == Mode::kMaster && record.ballot == ballot_) {
        const int self = config_.IndexOf(options_.self);
        if (slot != nullptr && self >= 0) Vote(slot, 1u << self);
      } else if (record.ballot == promised_) {
        AddAccepted(record.instance);
      }
    } else if (mode_ == Mode::kPreparing && record.ballot == ballot_) {
      self_promised_ = true;
      CheckPromises(now_);
    }
    for (Message& message : record.say) out_.messages.push_back(std::move(message));
  }
  if (mode_ != Mode::kMaster) return;
  AdvanceCommit();
  MaybeProposeConfig(now_);
  MaybeFinishHandOver(now_);
}

void Replica::AddAccepted(Instance instance) {
  if (!accepted_now_.empty() && accepted_now_.back().to + 1 == instance) {
    accepted_now_.back().to = instance;
  } else {
    accepted_now_.push_back({instance, instance});
  }
}

void Replica::FlushAccepted() {
  if (accepted_now_.empty()) return;
  if (mode_ != Mode::kMaster && promised_to_.node == promised_.node && !suspect_) {
    Send(promised_to_, Accepted{promised_, std::move(accepted_now_), applied_, WhatItLacks()});
  }
  accepted_now_.clear();
}

void Replica::TakeOutput(Output* output) {
  if (mode_ == Mode::kMaster) FlushProposals();
  FlushAccepted();
  output->Clear();
  if (!out_.empty()) output->Swap(&out_);  // every other time there is nothing
}

// --- Members ------------------------------------------------------------------------------------

std::vector<MemberId> Replica::Others() const {
  std::vector<MemberId> others;
  const auto add = [&](const Config& config) {
    for (const Member& member : config.members()) {
      if (member.id.node == options_.self.node) continue;  // another incarnation is no peer
      if (std::find(others.begin(), others.end(), member.id) == others.end()) {
        others.push_back(member.id);
      }
    }
  };
  add(config_);
  for (Instance i = commit_ + 1; i <= last(); ++i) {
    const Slot* slot = Find(i);
    if (slot->meta.kind == EntryKind::kConfig) add(*slot->meta.config);
  }
  return others;
}

// Who may have what this replica lacks: the members it knows of, and whoever spoke to it as a
// master. While it was away, every other place may have been given to a new incarnation, and none
// of those answers to the old name.
std::vector<MemberId> Replica::Sources() const {
  std::vector<MemberId> sources = Others();
  for (const MemberId& id : {promised_to_, told_by_}) {
    if (id.node == 0 || id.node == options_.self.node) continue;
    if (std::find(sources.begin(), sources.end(), id) == sources.end()) sources.push_back(id);
  }
  return sources;
}

bool Replica::IsStranger(const MemberId& sender, Instance their_config) const {
  return config_.IndexOf(sender) < 0 && their_config <= config_.instance();
}

void Replica::AdoptConfig(const Config& config) {
  HYDRA_CHECK(config.instance() > config_.instance());
  const std::vector<MemberId> former = Others();
  config_ = config;
  config_at_ = 0;
  const bool member = config_.IndexOf(options_.self) >= 0;
  if (!member) out_.removed = true;
  if (mode_ != Mode::kMaster) {
    // A candidate that learns, while it catches up, that it votes no more.
    if (mode_ != Mode::kFollower && !config_.IsVoter(options_.self)) StepDown(now_, true);
    return;
  }
  std::vector<Peer> peers;
  for (const MemberId& id : Others()) {
    Peer* known = FindPeer(id);
    peers.push_back(known != nullptr ? *known : Peer{.id = id});
  }
  // Those who are no longer members should learn that they are not.
  for (const MemberId& id : former) {
    if (config_.IndexOf(id) < 0) Send(id, Beat{ballot_, commit_, 0});
  }
  peers_ = std::move(peers);
  if (!config_.IsVoter(options_.self)) {
    HYDRA_PROBE("config: the master removed itself");
    for (const Peer& peer : peers_) Send(peer.id, Beat{ballot_, commit_, 0});
    StepDown(now_, true);
  }
}

Lacks Replica::WhatItLacks() const {
  return install_.active ? Lacks::kBlocks : owes_ ? Lacks::kPayload : Lacks::kNothing;
}

Instance Replica::PeerApplied(const MemberId& id) const {
  const Peer* peer = FindPeer(id);
  return peer == nullptr ? 0 : peer->applied;
}

bool Replica::PeerIsWhole(const MemberId& id) const {
  if (id == options_.self) return WhatItLacks() == Lacks::kNothing;
  const Peer* peer = FindPeer(id);
  // (One that never said what it has applied may not even exist.)
  return peer != nullptr && peer->applied != 0 && peer->lacks == Lacks::kNothing &&
         peer->confirmed_boot == leases_->BootOf(id.node) &&
         peer->applied + options_.window_instances >= commit_;
}

bool Replica::KeepsUpWithout(const MemberId& id, Instance at_least, Nanos now) const {
  uint32_t near = 0;
  for (size_t i = 0; i < config_.members().size(); ++i) {
    const MemberId& member = config_.members()[i].id;
    if (member == id) continue;
    const bool self = member == options_.self;
    if (!self && !leases_->Alive(member.node, now)) continue;
    const Peer* peer = FindPeer(member);
    const bool installs = peer != nullptr && peer->lacks == Lacks::kBlocks;
    const Instance applied = self ? applied_ : PeerApplied(member);
    if (applied >= at_least && !installs) near |= 1u << i;
  }
  return config_.IsMajority(near);
}

MemberId Replica::master_hint() const {
  if (mode_ == Mode::kMaster) return options_.self;
  const bool known = master_seen_ == promised_ && promised_to_.node == promised_.node &&
                     promised_to_ != options_.self;
  return known ? promised_to_ : MemberId{};
}

// --- Time and messages --------------------------------------------------------------------------

bool Replica::MasterAlive(Nanos now) const {
  if (mode_ == Mode::kMaster) return true;
  if (GaveUpPromised(master_boot_)) return false;  // a notice may overtake the last messages
  return promised_.node != 0 && promised_.node != options_.self.node && master_seen_ == promised_ &&
         leases_->Alive(promised_.node, now) && leases_->BootOf(promised_.node) == master_boot_;
}

bool Replica::GaveUpPromised(uint64_t boot) const {
  const auto resigned = resigned_.find(promised_.node);
  return resigned != resigned_.end() && resigned->second.boot == boot &&
         resigned->second.ballot >= promised_;
}

void Replica::FollowerTick(Nanos now) {
  if (MasterAlive(now)) {
    has_master_ = true;
    hurried_pre_votes_ = 0;
    if (now + options_.election_timeout > election_due_) ResetElectionTimer(now);
    return;
  }
  if (std::exchange(has_master_, false)) {
    HYDRA_PROBE("election: the master is lost");
    HurryElection(now);
  }
  if (now >= election_due_) StartPreVote(now);
}

void Replica::Tick(Nanos now) {
  now_ = std::max(now_, now);
  switch (mode_) {
    case Mode::kFollower: FollowerTick(now); break;
    case Mode::kPreVoting:
      if (now >= phase_deadline_) EndPreVote(now);
      break;
    case Mode::kPreparing:
    case Mode::kRecovering:
      if (now >= phase_deadline_) {
        HYDRA_PROBE("election: timed out");
        StepDown(now, true);
        break;
      }
      if (now >= resend_at_) {
        resend_at_ = now + options_.retransmit_after;
        for (const MemberId& id : PrepareTargets()) {
          if (promises_.contains(id)) continue;
          SayWhenDurable(id, Prepare{ballot_, commit_ + 1, config_.instance(), released_});
        }
      }
      if (mode_ == Mode::kRecovering) CheckPromises(now);
      break;
    case Mode::kMaster:
      Retransmit(now);
      TickReads(now);
      MaybeProposeConfig(now);
      MaybeFinishHandOver(now);
      break;
  }
  if (install_.active) {
    if (now >= install_.retry_at && !install_.waiting) RequestInstall(now);
  } else if (commit_heard_ > commit_ && now >= catch_up_due_ && mode_ != Mode::kMaster) {
    RequestCatchUp({}, now);
  }
  for (auto it = asked_master_.begin(); it != asked_master_.end();) {
    if (now < it->second) {
      ++it;
      continue;
    }
    out_.reads.push_back({it->first, false, 0});
    it = asked_master_.erase(it);
  }
}

void Replica::Step(Message message, Nanos now) {
  now_ = std::max(now_, now);
  if (message.group != options_.group || message.to.node != options_.self.node) return;
  if (message.to.incarnation > options_.self.incarnation) {
    // The place was given to a successor, which this replica can become when it learns of that.
    // Nobody speaks to it as itself any more.
    HYDRA_PROBE("config: a message for a later incarnation of this node");
    const auto* accept = std::get_if<Accept>(&message.body);
    const auto* beat = std::get_if<Beat>(&message.body);
    const Instance commit = accept != nullptr ? accept->commit : beat != nullptr ? beat->commit : 0;
    if (commit > commit_) catch_up_from_ = told_by_ = message.from;
    commit_heard_ = std::max(commit_heard_, commit);
  }
  if (message.to != options_.self) return;
  std::visit([&](const auto& body) { On(body, message, now_); }, message.body);
}

void Replica::OnNotice(NodeId from, const Notice& notice, Nanos now) {
  now_ = std::max(now_, now);
  highest_round_ = std::max(highest_round_, notice.ballot.round);
  if (notice.kind == Notice::Kind::kMoved) {
    if (mode_ != Mode::kFollower && notice.ballot > ballot_) {
      HYDRA_PROBE("lease: a notice deposes the master");
      StepDown(now_, true);
    }
    return;
  }
  if (notice.ballot.node != from) return;
  Resigned& resigned = resigned_[from];
  const uint64_t boot = leases_->BootOf(from);
  if (resigned.boot != boot) resigned = {{}, boot};
  resigned.ballot = std::max(resigned.ballot, notice.ballot);
  // Who gives up a ballot has given up all before, of which it may have had no time to tell.
  if (master_seen_.node == from && master_boot_ == boot && master_seen_ <= resigned.ballot) {
    master_seen_ = {};
    if (mode_ != Mode::kFollower) return;
    // Nothing binds this replica, but whom the master handed over to may be on its way.
    has_master_ = false;
    const Nanos due = election_due_;
    ResetElectionTimer(now_);
    election_due_ = std::min(due, election_due_ - options_.election_timeout / 2);
  }
}

}  // namespace hydra::paxos
