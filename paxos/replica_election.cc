// SPDX-License-Identifier: Apache-2.0
//
// Becoming master: pre-vote, prepare, and the recovery of what may have been chosen.
#include <algorithm>

#include "base/check.h"
#include "base/probe.h"
#include "base/sabotage.h"
#include "paxos/replica.h"

namespace hydra::paxos {
namespace {

// Attempts in a row that do not wait for the election time-out: others may learn a little later
// that the master is lost.
constexpr unsigned kHurriedPreVotes = 8;
// Spreads that a candidate has before its rivals: its ballot has to reach the disk first.
constexpr int kHeadStart = 3;

}  // namespace

void Replica::ResetElectionTimer(Nanos now) {
  election_due_ =
      now + options_.election_timeout +
      static_cast<Nanos>(rng_.Below(static_cast<uint64_t>(options_.election_timeout) + 1));
}

// The master is gone, and what binds this replica to it ends at a known time.
void Replica::HurryElection(Nanos now) {
  if (hurried_pre_votes_ >= kHurriedPreVotes) return;
  ++hurried_pre_votes_;
  const Nanos bound = std::max(now, leases_->GrantedUntil(promised_.node, promised_boot_));
  // Who is owed blocks would have to fetch them for its readers: others come first.
  const Nanos behind = owes_ ? options_.election_spread : 0;
  const auto spread = static_cast<uint64_t>(options_.election_spread) + 1;
  election_due_ = std::min(election_due_, bound + behind + static_cast<Nanos>(rng_.Below(spread)));
}

// --- Asking -------------------------------------------------------------------------------------

void Replica::Campaign(Nanos now) {
  now_ = std::max(now_, now);
  if (mode_ == Mode::kFollower) StartPreVote(now_);
}

// What a pre-vote is answered with, without the wish to be elected: leases bind this replica to a
// master that may have said its last word to it.
void Replica::AskMembership(Nanos now) {
  now_ = std::max(now_, now);
  if (mode_ != Mode::kFollower) return;
  HYDRA_PROBE("members: a replica asks whether it is still one");
  for (const MemberId& id : Sources()) Send(id, PreVote{promised_, config_.instance()});
}

void Replica::StartPreVote(Nanos now) {
  ResetElectionTimer(now);
  if (!IsVoter() || install_.active || leases_->Quiet(now)) return;
  mode_ = Mode::kPreVoting;
  ballot_ = {std::max(highest_round_, promised_.round) + 1, options_.self.node};
  if (LeaseForbids(ballot_, {}, now)) {
    mode_ = Mode::kFollower;
    return;
  }
  phase_deadline_ = now + options_.election_timeout;
  pre_votes_ = {options_.self};
  pre_vote_refused_ = false;
  if (config_.majority() == 1) {
    StartPrepare(now, {});
    return;
  }
  for (const MemberId& id : Others()) Send(id, PreVote{ballot_, config_.instance()});
}

void Replica::On(const PreVote& m, const Message& in, Nanos now) {
  if (suspect_ || leases_->Quiet(now)) return;
  if (IsStranger(in.from, m.config)) {
    HYDRA_PROBE("election: a removed node is refused");
    Send(in.from, Reject{m.ballot, promised_, Refusal::kNotMember, config_.instance()});
    return;
  }
  // Who has just come forward itself is about to ask: rivals wait a little.
  const bool asking = (mode_ == Mode::kPreparing || mode_ == Mode::kRecovering) &&
                      now < prepared_at_ + kHeadStart * options_.election_spread;
  const bool granted =
      m.ballot > promised_ && !asking && !MasterAlive(now) && !LeaseForbids(m.ballot, {}, now);
  if (!granted) HYDRA_PROBE("election: pre-vote refused");
  Send(in.from, PreVoteReply{m.ballot, granted, promised_});
}

void Replica::On(const PreVoteReply& m, const Message& in, Nanos now) {
  highest_round_ = std::max(highest_round_, m.promised.round);
  if (mode_ != Mode::kPreVoting || m.ballot != ballot_) return;
  if (!m.granted) {
    pre_vote_refused_ = true;
    if (config_.IsVoter(in.from)) {
      phase_deadline_ = std::min(phase_deadline_, now + options_.election_spread);
    }
    return;
  }
  pre_votes_.insert(in.from);
  if (HavePreVotes(config_)) StartPrepare(now, {});
}

bool Replica::HavePreVotes(const Config& config) const {
  uint32_t bits = 0;
  for (const MemberId& id : pre_votes_) {
    const int index = config.IndexOf(id);
    if (index >= 0) bits |= 1u << index;
  }
  return config.IsMajority(bits);
}

// A configuration above may be in force already; promises will tell. Only if nobody objects:
// whoever does may be about to elect another, and three who displace each other elect none.
void Replica::EndPreVote(Nanos now) {
  const std::vector<Config> open = OpenConfigs();
  const bool above = std::any_of(open.begin(), open.end(),
                                 [this](const Config& config) { return HavePreVotes(config); });
  if (above && !pre_vote_refused_) {
    HYDRA_PROBE("election: pre-votes of an open configuration alone");
    StartPrepare(now, {});
  } else {
    StepDown(now, false);
    if (hurried_pre_votes_ > 0) HurryElection(now);
  }
}

void Replica::StartPrepare(Nanos now, const Ballot& released) {
  ballot_ = {std::max(highest_round_, promised_.round) + 1, options_.self.node};
  if (LeaseForbids(ballot_, released, now)) {
    StepDown(now, false);
    return;
  }
  highest_round_ = ballot_.round;
  mode_ = Mode::kPreparing;
  released_ = released;
  promises_.clear();
  reproposals_.clear();
  self_promised_ = false;
  prepared_at_ = now;
  phase_deadline_ = now + options_.prepare_timeout;
  resend_at_ = now + options_.retransmit_after;
  MovePromise(ballot_, now);
  // The ballot must never be used by a later life of this node: durable before it is said.
  AppendHardState();
  for (const MemberId& id : Others()) {
    SayWhenDurable(id, Prepare{ballot_, commit_ + 1, config_.instance(), released_});
  }
}

// --- Promising ----------------------------------------------------------------------------------

// Whether a lease that this replica granted (or holds) speaks against promising `candidate`.
bool Replica::LeaseForbids(const Ballot& candidate, const Ballot& released, Nanos now) const {
  const NodeId holder = promised_.node;
  if (holder == 0 || holder == candidate.node) return false;
  if (released == promised_) return false;
  if (GaveUpPromised(promised_boot_)) return false;
  if (holder == options_.self.node) return mode_ == Mode::kMaster && LeaseValid(now);
  return now < leases_->GrantedUntil(holder, promised_boot_);
}

void Replica::MovePromise(const Ballot& ballot, Nanos now) {
  HYDRA_CHECK(ballot > promised_);
  const Ballot old = promised_;
  promised_ = ballot;
  promised_to_ = {};
  promised_boot_ = 0;
  highest_round_ = std::max(highest_round_, ballot.round);
  has_master_ = false;    // whoever asked for the promise gets the time to become one
  accepted_now_.clear();  // accepted in a ballot that no longer counts here
  if (old.node != 0 && old.node != ballot.node && old.node != options_.self.node) {
    leases_->Notify(old.node, options_.group, Notice::Kind::kMoved, ballot);
  }
  // Whoever was asked leads no more, and may never answer.
  for (const auto& [read, deadline] : asked_master_) out_.reads.push_back({read, false, 0});
  asked_master_.clear();
  ResetElectionTimer(now);
}

void Replica::On(const Prepare& m, const Message& in, Nanos now) {
  if (suspect_ || m.ballot.node != in.from.node) return;
  // A node that restarted may have granted a lease that it does not remember.
  if (leases_->Quiet(now)) {
    HYDRA_PROBE("election: a restarted node stays silent");
    return;
  }
  highest_round_ = std::max(highest_round_, m.ballot.round);
  if (IsStranger(in.from, m.config)) {
    Send(in.from, Reject{m.ballot, promised_, Refusal::kNotMember, config_.instance()});
    return;
  }
  if (m.ballot < promised_) {
    HYDRA_PROBE("election: prepare in an old ballot");
    Send(in.from, Reject{m.ballot, promised_, Refusal::kBallot, config_.instance()});
    return;
  }
  if (m.ballot > promised_) {
    if (LeaseForbids(m.ballot, m.released, now)) {
      HYDRA_PROBE("election: a lease forbids the promise");
      Send(in.from, Reject{m.ballot, promised_, Refusal::kLease, config_.instance()});
      return;
    }
    if (mode_ != Mode::kFollower) StepDown(now, true);
    MovePromise(m.ballot, now);
    AppendHardState();
  }
  promised_to_ = in.from;
  promised_boot_ = in.boot;
  ResetElectionTimer(now);
  SayWhenDurable(in.from, MakePromise(m.ballot, m.from));
}

Promise Replica::MakePromise(const Ballot& ballot, Instance from) const {
  Promise promise;
  promise.ballot = ballot;
  promise.commit = commit_;
  for (Instance i = std::max(from, commit_ + 1); i <= last(); ++i) {
    const Slot* slot = Find(i);
    if (slot->ballot == Ballot{}) continue;
    promise.entries.push_back({i, slot->ballot, slot->meta, slot->faulty});
  }
  return promise;
}

// --- Collecting promises ------------------------------------------------------------------------

void Replica::On(const Promise& m, const Message& in, Nanos now) {
  if ((mode_ != Mode::kPreparing && mode_ != Mode::kRecovering) || m.ballot != ballot_) return;
  promises_[in.from] = {in.boot, now, m.commit, m.entries};
  commit_heard_ = std::max(commit_heard_, m.commit);
  CheckPromises(now);
}

void Replica::On(const Reject& m, const Message& in, Nanos now) {
  highest_round_ = std::max(highest_round_, m.promised.round);
  if (m.reason == Refusal::kNotMember) {
    // Learn of the removal from the one who knows.
    if (m.config > config_.instance()) {
      commit_heard_ = std::max(commit_heard_, m.config);
      if (mode_ != Mode::kFollower) StepDown(now, true);
      RequestCatchUp(in.from, now);
    }
    return;
  }
  if (mode_ == Mode::kFollower || mode_ == Mode::kPreVoting || m.ballot != ballot_) return;
  if (m.reason == Refusal::kBallot && m.promised > ballot_) {
    HYDRA_PROBE("election: deposed by a reject");
    StepDown(now, true);
  }
}

// Calls f(instance, ballot, meta) for every acceptance above commit_ that this candidate knows of.
template <typename F>
void Replica::ForEachOpen(F&& f) const {
  for (Instance i = commit_ + 1; i <= last(); ++i) {
    const Slot* slot = Find(i);
    if (slot->ballot != Ballot{}) f(i, slot->ballot, slot->meta);
  }
  for (const auto& [id, promise] : promises_) {
    for (const PromisedEntry& entry : promise.entries) {
      if (entry.instance > commit_) f(entry.instance, entry.ballot, entry.meta);
    }
  }
}

// The configurations of open instances that this candidate knows of, by the best entry of each.
std::vector<Config> Replica::OpenConfigs() const {
  std::map<Instance, std::pair<Ballot, const EntryMeta*>> best;
  ForEachOpen([&](Instance instance, const Ballot& ballot, const EntryMeta& meta) {
    if (ballot < fence_) return;
    auto& slot = best[instance];
    if (slot.second == nullptr || ballot > slot.first) slot = {ballot, &meta};
  });
  std::vector<Config> configs;
  for (const auto& [instance, entry] : best) {
    if (entry.second->kind == EntryKind::kConfig) configs.push_back(*entry.second->config);
  }
  return configs;
}

// Whether an open configuration is known to be chosen: who proposed it also proposed above it, in
// the same ballot, which a master does only afterwards; or a later mastership began with it.
bool Replica::IsProven(const Config& config) const {
  std::set<Ballot> proposed_in;
  std::set<Ballot> gone_on;
  bool begun_with = false;
  ForEachOpen([&](Instance instance, const Ballot& ballot, const EntryMeta& meta) {
    if (instance == config.instance() && meta.kind == EntryKind::kConfig &&
        *meta.config == config) {
      proposed_in.insert(ballot);
    }
    if (instance > config.instance()) gone_on.insert(ballot);
    if (meta.fence != Ballot{} && meta.fence_config == config.instance()) begun_with = true;
  });
  return begun_with || std::any_of(proposed_in.begin(), proposed_in.end(),
                                   [&](const Ballot& b) { return gone_on.contains(b); });
}

Instance Replica::LastProven(const std::vector<Config>& open) const {
  for (auto it = open.rbegin(); it != open.rend(); ++it) {
    if (IsProven(*it)) return it->instance();
  }
  return 0;
}

std::vector<MemberId> Replica::PrepareTargets() const {
  std::vector<MemberId> targets = Others();
  for (const Config& config : OpenConfigs()) {
    for (const Member& member : config.members()) {
      if (member.id != options_.self &&
          std::find(targets.begin(), targets.end(), member.id) == targets.end()) {
        targets.push_back(member.id);
      }
    }
  }
  return targets;
}

bool Replica::HavePromiseQuorum() const {
  if (!self_promised_) return false;
  const std::vector<Config> open = OpenConfigs();
  const Instance proven = LastProven(open);
  const auto agrees = [&](const Config& config) {
    uint32_t bits = 0;
    for (size_t i = 0; i < config.members().size(); ++i) {
      const MemberId& id = config.members()[i].id;
      if (id == options_.self || promises_.contains(id)) bits |= 1u << i;
    }
    // One that was replaced has chosen all it ever will. What that is, is among the promises if
    // they meet each of its majorities.
    if (config.instance() < proven) return config.MeetsEveryMajority(bits);
    return config.IsMajority(bits);
  };
  if (!agrees(config_)) return false;
  // A configuration that may have been chosen also has to agree.
  for (const Config& config : open) {
    if (agrees(config)) continue;
    HYDRA_PROBE("election: an open configuration needs a majority of its own");
    return false;
  }
  return true;
}

Instance Replica::HighestPromisedCommit(MemberId* holder) const {
  Instance highest = commit_;
  for (const auto& [id, promise] : promises_) {
    if (promise.commit <= highest) continue;
    highest = promise.commit;
    *holder = id;
  }
  return highest;
}

void Replica::CheckPromises(Nanos now) {
  if (mode_ != Mode::kPreparing && mode_ != Mode::kRecovering) return;
  if (!HavePromiseQuorum()) return;
  mode_ = Mode::kRecovering;
  MemberId holder;
  if (HighestPromisedCommit(&holder) > commit_) {
    HYDRA_PROBE("election: the candidate catches up first");
    if (!catch_up_out_ && !install_.active) RequestCatchUp(holder, now);
    return;
  }
  if (install_.active) return;
  const Instance proven = LastProven(OpenConfigs());
  if (proven != 0) {
    LearnUpTo(proven, now);
  } else {
    Decide(now);
  }
}

// --- Recovering open instances ------------------------------------------------------------------

// The value to propose at `instance`: that of the highest ballot in which anyone accepted one,
// unless a mastership that began below it proves it dead.
void Replica::ChooseBest(Instance instance, const Ballot& fence, Reproposal* out) const {
  struct Candidate {
    MemberId id;
    const EntryMeta* meta;
    Ballot ballot;
    bool faulty;
  };
  std::vector<Candidate> candidates;
  const Slot* own = Find(instance);
  if (own != nullptr && own->ballot != Ballot{}) {
    candidates.push_back({options_.self, &own->meta, own->ballot, own->faulty});
  }
  for (const auto& [id, promise] : promises_) {
    for (const PromisedEntry& entry : promise.entries) {
      if (entry.instance == instance) {
        candidates.push_back({id, &entry.meta, entry.ballot, entry.faulty});
      }
    }
  }
  const size_t dead = std::erase_if(
      candidates, [&](const Candidate& candidate) { return candidate.ballot < fence; });
  if (dead > 0) HYDRA_PROBE("recovery: an entry below a later mastership is dead");
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.ballot > b.ballot; });
  *out = {};
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (i > 0 && candidates[i].ballot == candidates[i - 1].ballot) continue;
    const Candidate& best = candidates[i];
    for (const Candidate& other : candidates) {
      if (!other.faulty && other.meta->digest == best.meta->digest &&
          other.meta->kind == best.meta->kind) {
        out->holders.push_back(other.id);
      }
    }
    if (!out->holders.empty() || best.meta->kind == EntryKind::kNoop) {
      if (own != nullptr && own->ballot != Ballot{} && best.ballot > own->ballot &&
          own->meta.digest != best.meta->digest) {
        HYDRA_PROBE("recovery: a promise carried a higher-ballot value");
      }
      out->decided = true;
      out->ballot = best.ballot;
      out->meta = *best.meta;
      return;
    }
    // Its body is lost to rot wherever it is known. It was chosen unless a majority certainly did
    // not accept it in that ballot. What holds an entry of a higher ballot may have held this one
    // before.
    const auto not_chosen = [&](const Config& config) {
      uint32_t without = 0;
      for (size_t m = 0; m < config.members().size(); ++m) {
        const MemberId& id = config.members()[m].id;
        if (id != options_.self && !promises_.contains(id)) continue;
        const bool may_have =
            std::any_of(candidates.begin(), candidates.end(),
                        [&](const Candidate& c) { return c.id == id && c.ballot >= best.ballot; });
        if (!may_have) without |= 1u << m;
      }
      return config.IsMajority(without);
    };
    // Above an open configuration that one may have been in force.
    const std::vector<Config> open = OpenConfigs();
    if (!not_chosen(config_) || !std::all_of(open.begin(), open.end(), not_chosen)) {
      HYDRA_PROBE("recovery: waits for a good copy of a faulty entry");
      return;  // undecided: wait for another promise
    }
    HYDRA_PROBE("recovery: a faulty entry was certainly not chosen");
  }
  HYDRA_PROBE("recovery: a gap is filled with a no-op");
  out->decided = true;
  out->has_body = true;
}

void Replica::Decide(Nanos now) {
  Instance highest = last();
  for (const auto& [id, promise] : promises_) {
    if (!promise.entries.empty()) highest = std::max(highest, promise.entries.back().instance);
  }
  if (DecideUpTo(highest)) {
    BecomeMaster(now);
  } else {
    AskForBodies(now);
  }
}

// Everything up to `instance` is chosen, so what would be proposed again is what was chosen. It is
// taken as such, not proposed: those who could vote for it may be gone.
void Replica::LearnUpTo(Instance instance, Nanos now) {
  if (!DecideUpTo(instance)) {
    AskForBodies(now);
    return;
  }
  HYDRA_PROBE("recovery: a configuration is proven to be chosen");
  while (mode_ == Mode::kRecovering && commit_ < instance) {
    Slot& slot = Reach(commit_ + 1);
    Reproposal& known = reproposals_.at(commit_ + 1);
    const bool held = slot.ballot != Ballot{} && !slot.faulty &&
                      slot.meta.digest == known.meta.digest && slot.meta.kind == known.meta.kind;
    if (!held) {
      HYDRA_CHECK(known.ballot != Ballot{});
      slot.ballot = std::max(slot.ballot, known.ballot);
      slot.meta = std::move(known.meta);
      slot.body = std::move(known.body);
      slot.faulty = false;
      slot.durable = false;
      AppendAccept(commit_ + 1, slot);
    }
    slot.chosen = true;
    AdvanceCommit();
  }
  CheckPromises(now);
}

// Whether it is known what to propose at each open instance up to `highest`, bodies included.
bool Replica::DecideUpTo(Instance highest) {
  // What was open may be known as chosen by now.
  reproposals_.erase(reproposals_.begin(), reproposals_.upper_bound(commit_));
  bool complete = true;
  Ballot fence = fence_;
  for (Instance i = commit_ + 1; i <= highest; ++i) {
    Reproposal& reproposal = reproposals_[i];
    if (!reproposal.decided) ChooseBest(i, fence, &reproposal);
    if (!reproposal.decided) {
      complete = false;
      break;  // it may hold a fence
    }
    fence = std::max(fence, reproposal.meta.fence);
    if (HYDRA_SABOTAGE(kSkipReproposal)) {
      reproposal = {};
      reproposal.decided = reproposal.has_body = true;
    }
    if (reproposal.decided && reproposal.meta.kind == EntryKind::kNoop) reproposal.has_body = true;
    const Slot* own = Find(i);
    if (reproposal.decided && !reproposal.has_body && own != nullptr && own->body != nullptr &&
        !own->faulty && own->meta.digest == reproposal.meta.digest) {
      reproposal.has_body = true;
      reproposal.body = own->body;
    }
    complete = complete && reproposal.decided && reproposal.has_body;
  }
  return complete;
}

void Replica::AskForBodies(Nanos now) {
  for (auto& [instance, reproposal] : reproposals_) {
    if (!reproposal.decided || reproposal.has_body || now < reproposal.ask_again) continue;
    const MemberId& holder = reproposal.holders[reproposal.asked++ % reproposal.holders.size()];
    reproposal.ask_again = now + options_.retransmit_after;
    const FetchBody request{instance, reproposal.ballot, reproposal.meta.digest};
    if (holder == options_.self) {
      out_.bodies.push_back({holder, request});
    } else {
      HYDRA_PROBE("recovery: a body is fetched from a peer");
      Send(holder, request);
    }
  }
}

void Replica::On(const FetchBody& m, const Message& in, Nanos) {
  if (suspect_) return;
  const Slot* slot = Find(m.instance);
  if (slot != nullptr && slot->body != nullptr && !slot->faulty && slot->meta.digest == m.digest) {
    Send(in.from, FetchedBody{m.instance, m.ballot, m.digest, true, slot->body});
    return;
  }
  out_.bodies.push_back({in.from, m});
}

void Replica::On(const FetchedBody& m, const Message&, Nanos now) {
  const auto found = reproposals_.find(m.instance);
  if (mode_ != Mode::kRecovering || !m.found || found == reproposals_.end()) return;
  if (!found->second.decided || found->second.meta.digest != m.digest) return;
  found->second.has_body = true;
  found->second.body = m.body;
  CheckPromises(now);
}

void Replica::BodyLoaded(Instance instance, const Ballot& ballot, Body body, Nanos now) {
  now_ = std::max(now_, now);
  const auto found = reproposals_.find(instance);
  if (mode_ != Mode::kRecovering || found == reproposals_.end() || body == nullptr) return;
  if (!found->second.decided || found->second.ballot != ballot) return;
  found->second.has_body = true;
  found->second.body = std::move(body);
  CheckPromises(now_);
}

// --- Mastership ---------------------------------------------------------------------------------

void Replica::BecomeMaster(Nanos now) {
  mode_ = Mode::kMaster;
  active_ = false;
  noop_ = 0;
  peers_.clear();
  for (const MemberId& id : PrepareTargets()) {
    Peer peer{.id = id};
    const auto promise = promises_.find(id);
    if (promise != promises_.end()) {
      peer.confirmed_boot = promise->second.boot;
      peer.confirmed_at = promise->second.at;
    }
    peers_.push_back(peer);
  }
  open_bytes_ = 0;
  next_ = unsent_ = commit_ + 1;
  commit_told_ = 0;
  config_at_ = 0;
  config_waiting_.reset();
  handing_over_ = false;
  promises_.clear();
  out_.mastership_changed = true;
  if (HYDRA_SABOTAGE(kReadWithoutNoop)) active_ = true;
  ProposeRecovered(now);
}

// Open instances under the own ballot, then the no-op. Nothing goes above a configuration before it
// is chosen, not even what was accepted there: whose votes count for it is not known before.
void Replica::ProposeRecovered(Nanos now) {
  if (noop_ != 0) return;
  while (config_at_ == 0 && !reproposals_.empty()) {
    const Instance instance = reproposals_.begin()->first;
    Reproposal reproposal = std::move(reproposals_.begin()->second);
    reproposals_.erase(reproposals_.begin());
    if (reproposal.meta.kind == EntryKind::kConfig) {
      HYDRA_PROBE("recovery: an open configuration is proposed again");
      config_at_ = instance;
      AddPeersOf(*reproposal.meta.config);
    }
    ProposeAt(instance, std::move(reproposal.meta), std::move(reproposal.body), now);
  }
  if (config_at_ == 0) ProposeNoop(now);
}

void Replica::StepDown(Nanos now, bool tell) {
  const bool was_master = mode_ == Mode::kMaster;
  const bool tried = was_master || mode_ == Mode::kPreparing || mode_ == Mode::kRecovering;
  if (tried && durable_promise_ < ballot_) {
    // It was said to nobody yet, and is not any more; a later life of this node may use it.
    for (Durable& record : pending_) {
      std::erase_if(record.say, [this](const Message& message) {
        const auto* prepare = std::get_if<Prepare>(&message.body);
        return prepare != nullptr && prepare->ballot == ballot_;
      });
    }
  } else if (tell && tried) {
    for (const MemberId& id : Others()) {
      leases_->Notify(id.node, options_.group, Notice::Kind::kResigned, ballot_);
    }
  }
  if (was_master) {
    out_.mastership_changed = true;
    HYDRA_PROBE("a master steps down");
  }
  mode_ = Mode::kFollower;
  active_ = false;
  handing_over_ = false;
  pre_votes_.clear();
  promises_.clear();
  reproposals_.clear();
  peers_.clear();
  config_waiting_.reset();
  config_body_.reset();
  config_at_ = 0;
  open_bytes_ = 0;
  for (Slot& slot : slots_) slot.votes = 0;
  FailReads();
  ResetElectionTimer(now);
}

void Replica::Resign(Nanos now) {
  now_ = std::max(now_, now);
  if (mode_ != Mode::kFollower) StepDown(now_, true);
}

void Replica::On(const TakeOver& m, const Message& in, Nanos now) {
  if (m.ballot != promised_ || in.from.node != m.ballot.node || mode_ == Mode::kMaster) return;
  if (!IsVoter() || install_.active || leases_->Quiet(now)) return;
  HYDRA_PROBE("hand-over: the target takes over");
  if (mode_ != Mode::kFollower) StepDown(now, true);
  StartPrepare(now, m.ballot);
}

}  // namespace hydra::paxos
