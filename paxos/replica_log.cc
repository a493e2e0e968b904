// SPDX-License-Identifier: Apache-2.0
//
// The log: proposing, accepting, learning what was chosen, catching up, changing members.
#include <algorithm>

#include <fmt/format.h>

#include "base/check.h"
#include "base/probe.h"
#include "base/sabotage.h"
#include "paxos/replica.h"

namespace hydra::paxos {

// --- Proposing ----------------------------------------------------------------------------------

Result<Instance> Replica::Propose(EntryMeta meta, Body body, Nanos now) {
  now_ = std::max(now_, now);
  if (!serving()) return Status::Unavailable("not the master of this group, or not serving yet");
  if (!HYDRA_SABOTAGE(kConfigWithoutBarrier) && (config_waiting_ || config_at_ != 0)) {
    return Status::Busy("the group's members are being changed; try again shortly");
  }
  if (next_ - 1 - commit_ >= options_.window_instances ||
      (open_bytes_ > 0 && open_bytes_ + meta.bytes > options_.window_bytes)) {
    HYDRA_PROBE("window full");
    return Status::Busy("the group's window is full; try again when an entry was chosen");
  }
  if (next_ - 1 - applied_ >= options_.apply_backlog) {
    return Status::Busy("chosen entries wait to be applied; try again shortly");
  }
  const Instance instance = next_;
  ProposeAt(instance, std::move(meta), std::move(body), now_);
  return instance;
}

void Replica::ProposeAt(Instance instance, EntryMeta meta, Body body, Nanos now) {
  HYDRA_CHECK(mode_ == Mode::kMaster && promised_ == ballot_);
  HYDRA_CHECK(instance == next_);
  Slot& slot = Reach(instance);
  HYDRA_CHECK(!slot.chosen || slot.meta.digest == meta.digest);
  slot.ballot = ballot_;
  slot.meta = std::move(meta);
  slot.body = std::move(body);
  slot.faulty = false;
  slot.durable = false;
  slot.votes = 0;
  slot.sent = now;
  open_bytes_ += slot.meta.bytes;
  next_ = instance + 1;
  AppendAccept(instance, slot);
}

void Replica::ProposeNoop(Nanos now) {
  noop_ = next_;
  ProposeAt(next_, FenceEntry(ballot_, config_.instance()), nullptr, now);
}

// Everything proposed since the last flush goes out in as few messages as the limits allow; all
// receivers share one list.
void Replica::FlushProposals() {
  while (unsent_ < next_) {
    if (unsent_ <= applied_) {
      unsent_ = applied_ + 1;
      continue;
    }
    auto entries = std::make_shared<std::vector<AcceptEntry>>();
    uint64_t bytes = 0;
    entries->reserve(std::min<uint64_t>(next_ - unsent_, options_.max_entries_per_message));
    while (unsent_ < next_ && entries->size() < options_.max_entries_per_message) {
      const Slot* slot = Find(unsent_);
      if (!entries->empty() && bytes + slot->meta.bytes > options_.max_bytes_per_message) break;
      bytes += slot->meta.bytes;
      entries->push_back({unsent_, slot->meta, slot->body});
      ++unsent_;
    }
    const std::shared_ptr<const std::vector<AcceptEntry>> shared = std::move(entries);
    for (const Peer& peer : peers_) {
      if (!IsFarBehind(peer)) Send(peer.id, Accept{ballot_, commit_, shared});
    }
    commit_told_ = commit_;
    commit_told_at_ = now_;
  }
}

// It would not keep what lies so far above what it has applied (see On(Accept)), and catches up by
// other means: beats tell it how far, and its answers when it is near.
bool Replica::IsFarBehind(const Peer& peer) const {
  if (peer.applied == 0) return false;  // or has not said
  const uint64_t kept = options_.apply_backlog + 3 * uint64_t{options_.window_instances};
  if (next_ - 1 <= peer.applied + kept) return false;
  HYDRA_PROBE("accepts are not sent to a peer that is far behind");
  return true;
}

void Replica::Retransmit(Nanos now) {
  // To each peer, what it has not answered for; each entry at its own time.
  std::vector<Instance> due;
  for (Instance i = commit_ + 1; i < unsent_ && due.size() < options_.max_entries_per_message;
       ++i) {
    Slot* slot = Find(i);
    if (slot->chosen || now < slot->sent + options_.retransmit_after) continue;
    slot->sent = now;
    due.push_back(i);
  }
  for (const Peer& peer : peers_) {
    if (IsFarBehind(peer)) continue;
    const int index = config_.IndexOf(peer.id);
    auto entries = std::make_shared<std::vector<AcceptEntry>>();
    uint64_t bytes = 0;
    for (const Instance i : due) {
      const Slot* slot = Find(i);
      if (index >= 0 && (slot->votes >> index & 1) != 0) continue;
      if (!entries->empty() && bytes + slot->meta.bytes > options_.max_bytes_per_message) break;
      bytes += slot->meta.bytes;
      entries->push_back({i, slot->meta, slot->body});
    }
    if (entries->empty()) continue;
    HYDRA_PROBE("accepts are sent again");
    Send(peer.id, Accept{ballot_, commit_, std::move(entries)});
  }
}

void Replica::Vote(Slot* slot, uint32_t bits) {
  if (slot->chosen && slot->ballot == ballot_) return;
  slot->votes |= bits;
  if (config_.IsMajority(slot->votes)) slot->chosen = true;
}

void Replica::On(const Accepted& m, const Message& in, Nanos now) {
  if (mode_ != Mode::kMaster || m.ballot != ballot_) return;
  Peer* peer = FindPeer(in.from);
  if (peer == nullptr) return;
  Confirm(peer, in.boot, now);
  peer->Take(m.applied, m.lacks);
  const int index = config_.IndexOf(in.from);
  if (index < 0) return;  // of a configuration that is not chosen yet
  for (const InstanceRange& range : m.ranges) {
    for (Instance i = std::max(range.from, applied_ + 1); i <= std::min(range.to, next_ - 1); ++i) {
      Slot* slot = Find(i);
      HYDRA_CHECK(slot->ballot == ballot_);
      if (HYDRA_SABOTAGE(kCountDuplicateVotes) && (slot->votes >> index & 1) != 0) {
        // The sabotaged master counts messages, so a second one stands for another member.
        Vote(slot, ~slot->votes & (slot->votes + 1));
        continue;
      }
      Vote(slot, 1u << index);
    }
  }
  AdvanceCommit();
  MaybeProposeConfig(now);
  MaybeFinishHandOver(now);
}

// --- Members ------------------------------------------------------------------------------------

Status Replica::ProposeConfig(std::vector<Member> members, uint64_t digest, Body body, Nanos now) {
  now_ = std::max(now_, now);
  if (!serving()) return Status::Unavailable("not the master of this group, or not serving yet");
  if (changing_members()) {
    return Status::Busy("a change of members is under way; try again when it is done");
  }
  if (members.size() > kMaxMembers) {
    return Status::InvalidArgument(fmt::format("a group has at most {} members", kMaxMembers));
  }
  std::set<NodeId> nodes;
  std::set<MemberId> voters;
  for (const Member& member : members) {
    if (!nodes.insert(member.id.node).second || member.id.node == 0) {
      return Status::InvalidArgument("a node can be a member once");
    }
    if (member.role == Role::kVoter) voters.insert(member.id);
    const Member* known = config_.FindNode(member.id.node);
    if (known != nullptr && member.id.incarnation < known->id.incarnation) {
      return Status::InvalidArgument(
          fmt::format("node {} is incarnation {} already; one that was replaced does not come back",
                      member.id.node, known->id.incarnation));
    }
  }
  if (voters.empty()) return Status::InvalidArgument("a group needs a voter");
  size_t changes = 0;
  for (const Member& member : config_.members()) {
    if (member.role == Role::kVoter && !voters.contains(member.id)) ++changes;
  }
  if (changes > 0) HYDRA_RETURN_IF_ERROR(CheckWhole(voters));
  for (const MemberId& id : voters) {
    if (config_.IsVoter(id)) continue;
    ++changes;
    if (!PeerIsWhole(id)) {
      return Status::FailedPrecondition(fmt::format(
          "node {} has not caught up: it has applied {} of {}, or is owed blocks; try again later",
          id.node, PeerApplied(id), commit_));
    }
  }
  if (changes > 1) {
    return Status::InvalidArgument(
        "one voter at a time: add or replace a node as a learner first, then promote it");
  }
  EntryMeta meta;
  meta.kind = EntryKind::kConfig;
  meta.digest = digest;
  meta.config = std::make_shared<Config>(0, std::move(members));
  config_waiting_ = std::move(meta);
  config_body_ = std::move(body);
  MaybeProposeConfig(now_);
  return Status::Ok();
}

// Whatever is chosen has to be whole at a majority of those who vote from now on: who goes takes
// its copy along.
Status Replica::CheckWhole(const std::set<MemberId>& voters) const {
  const auto is_whole = [&](const MemberId& id) { return PeerIsWhole(id); };
  const auto whole = static_cast<size_t>(std::ranges::count_if(voters, is_whole));
  if (2 * whole > voters.size()) return Status::Ok();
  HYDRA_PROBE("config: a voter may not go before others are whole");
  return Status::FailedPrecondition(
      fmt::format("only {} of the {} that would vote have all blocks; try again when the others "
                  "have caught up (`hydractl status --wait`)",
                  whole, voters.size()));
}

// New members get their configuration too; they are told by the same messages as the others.
void Replica::AddPeersOf(const Config& config) {
  for (const Member& member : config.members()) {
    if (member.id == options_.self || FindPeer(member.id) != nullptr) continue;
    peers_.push_back(Peer{.id = member.id});
  }
}

// A configuration goes out alone: everything below it is chosen (this ballot's no-op included),
// nothing goes above it before it is chosen itself. Then a no-op does, so that it is settled soon.
void Replica::MaybeProposeConfig(Nanos now) {
  if (mode_ != Mode::kMaster) return;
  ProposeRecovered(now);
  if (config_at_ != 0 || !active_) return;
  if (!settled() && next_ == config_.instance() + 1) ProposeAt(next_, EntryMeta{}, nullptr, now);
  if (!config_waiting_) return;
  if (commit_ + 1 != next_ && !HYDRA_SABOTAGE(kConfigWithoutBarrier)) {
    HYDRA_PROBE("config: waits for the entries below");
    return;
  }
  config_waiting_->config = std::make_shared<Config>(next_, config_waiting_->config->members());
  config_at_ = next_;
  AddPeersOf(*config_waiting_->config);
  EntryMeta meta = std::move(*config_waiting_);
  config_waiting_.reset();
  ProposeAt(config_at_, std::move(meta), std::move(config_body_), now);
}

// --- Hand-over ----------------------------------------------------------------------------------

Status Replica::HandOver(const MemberId& target, Nanos now) {
  now_ = std::max(now_, now);
  if (!serving()) return Status::Unavailable("not the master of this group");
  if (target == options_.self) return Status::InvalidArgument("this node is the master already");
  if (!config_.IsVoter(target)) {
    return Status::InvalidArgument(fmt::format("node {} does not vote in this group", target.node));
  }
  if (!leases_->Alive(target.node, now_)) {
    return Status::FailedPrecondition(fmt::format("node {} does not answer", target.node));
  }
  handing_over_ = true;
  hand_over_to_ = target;
  hand_over_deadline_ = now_ + options_.hand_over_timeout;
  MaybeFinishHandOver(now_);
  return Status::Ok();
}

void Replica::MaybeFinishHandOver(Nanos now) {
  if (mode_ != Mode::kMaster || !handing_over_) return;
  if (now >= hand_over_deadline_) {
    HYDRA_PROBE("hand-over: given up");
    handing_over_ = false;
    out_.mastership_changed = true;
    return;
  }
  if (commit_ + 1 != next_ || config_waiting_ || config_at_ != 0) return;
  // Reads that wait for a round are refused by stepping down; a lease read was answered at once.
  FlushProposals();
  Send(hand_over_to_, TakeOver{ballot_});
  if (HYDRA_SABOTAGE(kHandoverKeepsLease)) {
    handing_over_ = false;
    return;
  }
  StepDown(now, true);
}

// --- Accepting ----------------------------------------------------------------------------------

void Replica::On(const Accept& m, const Message& in, Nanos now) {
  if (m.ballot.node != in.from.node) return;
  if (m.ballot < promised_) {
    HYDRA_PROBE("accept in an old ballot");
    Send(in.from, Reject{m.ballot, promised_, Refusal::kBallot, config_.instance()});
    return;
  }
  if (suspect_) {
    // It may have promised more than it remembers. What is chosen it still learns.
    commit_heard_ = std::max(commit_heard_, m.commit);
    return;
  }
  const bool moved = m.ballot > promised_;
  if (moved) {
    if (mode_ != Mode::kFollower) StepDown(now, true);
    MovePromise(m.ballot, now);
  }
  HYDRA_CHECK(mode_ != Mode::kMaster);
  if (mode_ != Mode::kFollower) StepDown(now, true);
  promised_to_ = in.from;
  promised_boot_ = in.boot;
  master_seen_ = m.ballot;
  master_boot_ = in.boot;
  // Bounds the memory that a gap can cost; the master sends again what is dropped here.
  const Instance limit = applied_ + options_.apply_backlog + 2 * options_.window_instances;
  bool recorded = !moved;  // the promise: with an entry, or by itself
  for (const AcceptEntry& entry : *m.entries) {
    if (entry.instance > limit) {
      HYDRA_PROBE("accept beyond the follower's limit");
      break;
    }
    if (entry.instance <= commit_) {
      // Chosen, so nothing depends on this acceptance any more.
      if (durable_promise_ == promised_) AddAccepted(entry.instance);
      continue;
    }
    Slot& slot = Reach(entry.instance);
    HYDRA_CHECK(!slot.chosen || slot.meta.digest == entry.meta.digest);
    if (slot.ballot == m.ballot && !slot.faulty) {
      if (slot.meta.digest != entry.meta.digest) {
        // The chosen value, which catching up once put in this one's place.
        HYDRA_PROBE("accept of a value that was not chosen");
      } else if (slot.durable) {
        AddAccepted(entry.instance);
      }
      continue;
    }
    if (slot.ballot != Ballot{}) HYDRA_PROBE("an accept replaces one of an older ballot");
    slot.ballot = m.ballot;
    slot.meta = entry.meta;
    slot.body = entry.body;
    slot.faulty = false;
    slot.durable = false;
    AppendAccept(entry.instance, slot);
    recorded = true;
  }
  if (!recorded) AppendHardState();
  LearnCommit(m.ballot, m.commit, in.from, now);
}

// A commit index speaks of its own ballot: what was accepted here in another may differ.
void Replica::LearnCommit(const Ballot& ballot, Instance commit, const MemberId& from, Nanos now) {
  commit_heard_ = std::max(commit_heard_, commit);
  if (install_.active && !HYDRA_SABOTAGE(kInstallNotExclusive)) return;
  while (commit_ < commit) {
    Slot* slot = Find(commit_ + 1);
    if (slot == nullptr || slot->faulty) break;
    const bool known = slot->chosen || slot->ballot == ballot ||
                       (HYDRA_SABOTAGE(kCommitFromAnotherBallot) && slot->ballot != Ballot{});
    if (!known) {
      if (slot->ballot != Ballot{}) HYDRA_PROBE("commit: accepted in another ballot");
      break;
    }
    slot->chosen = true;
    AdvanceCommit();
  }
  AdvanceCommit();
  if (commit_ < commit && !catch_up_out_ && catch_up_due_ <= now) {
    catch_up_from_ = from;
    // The accept may be under way: ask a little later, though not later and later while others
    // come.
    if (catch_up_gap_ == commit_ + 1) return RequestCatchUp({}, now);
    catch_up_gap_ = commit_ + 1;
    catch_up_due_ = now + options_.commit_interval;
  }
}

// --- Catching up --------------------------------------------------------------------------------

void Replica::RequestCatchUp(const MemberId& from, Nanos now) {
  catch_up_due_ = now + options_.catch_up_retry;
  if (install_.active && !HYDRA_SABOTAGE(kInstallNotExclusive)) return;
  if (commit_heard_ <= commit_) return;
  if (commit_ - applied_ >= options_.apply_backlog) return;
  MemberId to = from;
  // A master may let it wait for a while, and knows best what to send.
  constexpr uint32_t kTriesAtMaster = 4;
  if (to.node == 0 && catch_up_tries_ < kTriesAtMaster && MasterAlive(now)) to = promised_to_;
  if (to.node == 0 && catch_up_tries_ == 0) to = catch_up_from_;
  if (to.node == 0 || to == options_.self) {
    const std::vector<MemberId> sources = Sources();
    if (!sources.empty()) to = sources[rng_.Below(sources.size())];
    if (to.node == 0) to = catch_up_from_;
    if (to.node == 0) return;
  }
  ++catch_up_tries_;
  CatchUp request;
  request.from = commit_ + 1;
  const uint64_t count =
      std::min<uint64_t>(commit_heard_ - commit_, options_.max_entries_per_message);
  for (uint64_t i = 0; i < count; ++i) {
    const Slot* slot = Find(request.from + i);
    const bool any = slot != nullptr && slot->ballot != Ballot{} && !slot->faulty;
    request.held.push_back({any, any ? slot->meta.digest : 0});
  }
  catch_up_out_ = true;
  catch_up_from_ = to;
  Send(to, std::move(request));
}

void Replica::On(const CatchUp& m, const Message& in, Nanos) {
  if (m.held.size() > options_.max_entries_per_message) return;
  out_.catch_ups.push_back({in.from, m, commit_});
}

void Replica::On(const CatchUpReply& m, const Message& in, Nanos now) {
  catch_up_out_ = false;
  commit_heard_ = std::max(commit_heard_, m.commit);
  if (install_.active && !HYDRA_SABOTAGE(kInstallNotExclusive)) return;
  if (m.truncated > commit_) {
    BeginInstall(in.from, now);
    return;
  }
  const Instance before = commit_;
  for (const ChosenEntry& entry : m.entries) {
    if (entry.instance <= commit_) continue;
    if (entry.instance != commit_ + 1 || mode_ == Mode::kMaster) break;
    if (commit_ - applied_ >= options_.apply_backlog) break;
    Slot& slot = Reach(entry.instance);
    if (entry.same) {
      if (slot.faulty || slot.ballot == Ballot{} || slot.meta.digest != entry.meta.digest) break;
      HYDRA_PROBE("catch-up: confirmed without a body");
    } else {
      if (slot.faulty) HYDRA_PROBE("catch-up: a rotten entry is fetched");
      // The sender may hold it from a ballot below the one in which it was chosen, and below that
      // of another value here. The record must not go back: what is chosen may be held in any
      // ballot.
      const Ballot ballot = std::max(slot.ballot, entry.ballot);
      if (ballot > promised_) {
        if (mode_ != Mode::kFollower) StepDown(now, true);
        MovePromise(ballot, now);
      }
      slot.ballot = ballot;
      slot.meta = entry.meta;
      slot.body = entry.body;
      slot.faulty = false;
      slot.durable = false;
      AppendAccept(entry.instance, slot);
      HYDRA_PROBE("catch-up: a chosen entry is fetched");
    }
    slot.chosen = true;
    AdvanceCommit();
  }
  if (commit_ > before) {
    catch_up_tries_ = 0;
    if (commit_heard_ > commit_) RequestCatchUp(in.from, now);
    CheckPromises(now);  // a candidate may have learned what it lacked
  } else {
    // (A candidate asks again with its next tick.)
    catch_up_due_ = now + options_.catch_up_retry;
  }
}

// --- Installing a peer's state ------------------------------------------------------------------

void Replica::BeginInstall(const MemberId& source, Nanos now) {
  HYDRA_CHECK(!install_.active);
  HYDRA_PROBE("install: begun");
  if (mode_ != Mode::kFollower) StepDown(now, true);
  install_ = {};
  install_.active = true;
  install_.source = source;
  out_.install_begun = true;
  RequestInstall(now);
}

void Replica::RequestInstall(Nanos now) {
  constexpr uint32_t kTriesPerSource = 4;
  if (install_.source.node == 0 || install_.tries >= kTriesPerSource) {
    const std::vector<MemberId> sources = Sources();
    if (install_.source.node != 0) HYDRA_PROBE("install: another source is asked");
    if (!sources.empty()) install_.source = sources[rng_.Below(sources.size())];
    if (install_.source.node == 0) return;
    install_.tries = 0;
  }
  ++install_.tries;
  install_.transfer = rng_.Next();
  install_.retry_at = now + 2 * options_.catch_up_retry;
  const bool bare = may_ask_bare_ && IsVoter();
  Send(install_.source, InstallRequest{install_.transfer, applied_, install_.cursor, bare});
}

void Replica::On(const InstallRequest& m, const Message& in, Nanos) {
  if (install_.active || suspect_ || m.base >= applied_) return;
  out_.installs.push_back({in.from, m});
}

void Replica::On(const InstallChunk& m, const Message&, Nanos now) {
  // Answers to anything but the last request are late or doubled.
  if (!install_.active || install_.waiting || m.transfer != install_.transfer ||
      m.cursor != install_.cursor) {
    return;
  }
  install_.waiting = true;
  install_.tries = 0;
  install_.retry_at = now + 2 * options_.catch_up_retry;
  out_.piece = InstallPiece{m};
}

void Replica::InstallProgress(const std::string& cursor, Nanos now) {
  now_ = std::max(now_, now);
  if (!install_.active) return;
  install_.waiting = false;
  install_.cursor = cursor;
  RequestInstall(now_);
}

void Replica::Installed(Instance applied, const Config& config, const Ballot& fence, Nanos now) {
  now_ = std::max(now_, now);
  HYDRA_CHECK(install_.active && applied >= applied_);
  HYDRA_PROBE("install: finished");
  install_ = {};
  while (applied_ < applied) {
    if (!slots_.empty()) slots_.pop_front();
    ++applied_;
  }
  commit_ = std::max(commit_, applied_);
  commit_heard_ = std::max(commit_heard_, commit_);
  fence_ = std::max(fence_, fence);
  if (config.instance() > config_.instance() && !HYDRA_SABOTAGE(kConfigLostInImage)) {
    AdoptConfig(config);
  }
  catch_up_out_ = false;
  catch_up_tries_ = 0;
  AdvanceCommit();
  if (commit_heard_ > commit_) RequestCatchUp({}, now_);
}

}  // namespace hydra::paxos
