// SPDX-License-Identifier: Apache-2.0
//
// The members of groups: being let in, following the catalogue one step at a time where this node
// is a group's master, telling the master of group 0 what is done, and there, noting it.
#include <utility>

#include <fmt/format.h>

#include "base/logging.h"
#include "daemon/catalogue.h"
#include "daemon/member_plan.h"
#include "daemon/membership.h"
#include "daemon/node_impl.h"

namespace hydra {
namespace {

// Of the groups that this node leads: new replicas of so many are brought up to date at a time.
constexpr size_t kGroupsAtOnce = 4;
constexpr Nanos kTendSystem = 500 * kMillisecond;
// Others get so long to answer before they may be called lost.
constexpr Nanos kSurvivorPatience = 5 * kSecond;
constexpr Nanos kAnswersAgain = 5 * kSecond;
// A voter that is to leave and is silent for so long leaves before its successor votes.
constexpr Nanos kGoneAfter = 60 * kSecond;

bool HasMajority(const paxos::Config& config, const std::set<NodeId>& alive) {
  size_t count = 0;
  for (const paxos::Member& member : config.members()) {
    const bool votes = member.role == paxos::Role::kVoter;
    count += votes && alive.contains(member.id.node) ? 1 : 0;
  }
  return count >= config.majority();
}

}  // namespace

// --- Being let in, and leaving ------------------------------------------------------------------

// A peer says that the catalogue knows this node by this very data directory: from here on it is a
// member of group 0, and learns everything else there.
void Node::Impl::LetIn(uint32_t incarnation) {
  if (core_->shard(kSystemGroup) != nullptr) return;
  const bool news = std::exchange(let_in_, incarnation) != incarnation;
  if (news) HYDRA_LOG_INFO("node {} is let in, as incarnation {}", options_.node, incarnation);
  const Status created = core_->CreateGroup(kSystemGroup, 1, incarnation, {}, clock_.Now());
  if (IsForNow(created)) {  // TendMembers tries again
    if (news) HYDRA_LOG_WARN("no replica of the catalogue can be made yet: {}", created.ToString());
    return;
  }
  if (!created.ok()) return EndWith(created.WithContext("make a replica of the catalogue"));
  Wake();
}

bool Node::Impl::IsSystemMember() {
  const Shard* shard = std::as_const(*core_).shard(kSystemGroup);
  return shard != nullptr && shard->state().config().IndexOf(shard->replica().options().self) >= 0;
}

std::set<NodeId> Node::Impl::AliveNodes() {
  std::set<NodeId> alive;
  const Nanos now = clock_.Now();
  for (const rpc::CatalogueNode& node : keeper_->catalogue().nodes()) {
    // A process that was killed is silent for a while before its lease says so; its connections
    // are closed at once.
    const bool here = node.id() == options_.node || (server_ && server_->HasPeer(node.id()));
    if (here && core_->leases().Alive(node.id(), now)) alive.insert(node.id());
  }
  return alive;
}

// A node that has not answered yet is waited for since the start of this one.
std::set<NodeId> Node::Impl::SilentNodes(Nanos patience) {
  std::set<NodeId> silent;
  const std::set<NodeId> alive = AliveNodes();
  const Nanos now = clock_.Now();
  for (const rpc::CatalogueNode& node : keeper_->catalogue().nodes()) {
    if (alive.contains(node.id())) continue;
    const auto last = answered_.find(node.id());
    const Nanos since = last == answered_.end() ? started_ : last->second;
    if (now >= since + patience) silent.insert(node.id());
  }
  return silent;
}

bool Node::Impl::StillAnswers(NodeId node) {
  return server_ && server_->HasPeer(node) && !SilentNodes(kAnswersAgain).contains(node);
}

// Whoever is connected as a node that another data directory speaks for now, or nobody any more.
void Node::Impl::DropStrangers(const rpc::Catalogue& catalogue) {
  for (auto it = peer_hellos_.begin(); it != peer_hellos_.end();) {
    const auto& [node, hello] = *it;
    const Status stays = MayBeStoreOf(catalogue, node, hello.store(), hello.joining());
    if (stays.ok()) {
      ++it;
      continue;
    }
    HYDRA_LOG_INFO("hanging up on node {}: {}", node, stays.message());
    if (server_) server_->DropPeer(node);
    if (FindNode(catalogue, node) == nullptr) core_->Forget(node);
    it = peer_hellos_.erase(it);
  }
}

// --- Replicas to drop ---------------------------------------------------------------------------

// Numbers of groups are never used again: one that is given and not listed is of a volume that is
// deleted, one that is not yet given of a volume made later.
void Node::Impl::DropReplicas(const std::set<GroupId>& wanted, const rpc::Catalogue& catalogue) {
  unwanted_.Clear();
  if (!keeper_->confirmed()) return;
  std::set<GroupId> listed;
  for (const rpc::CatalogueGroup& group : catalogue.groups()) listed.insert(group.id());
  std::set<GroupId> deleted;
  std::set<GroupId> moved;
  for (const auto& [group, shard] : core_->shards()) {
    if (wanted.contains(group)) continue;
    if (listed.contains(group)) {
      moved.insert(group);
    } else if (group < catalogue.next_group()) {
      deleted.insert(group);
    }
  }
  unwanted_.Set(deleted, moved);
  unwanted_.Tend(core_.get(), clock_.Now());
}

// --- What people ask for ------------------------------------------------------------------------

// What is refused for want of nodes that answer is refused by a master that has its majority. One
// that was just cut off would say what is wrong for reasons of its own, while its lease lasts.
void Node::Impl::ChangeMembers(const Server::ClientPtr& client, const Frame& frame,
                               const rpc::ChangeNodes& request) {
  std::set<NodeId> alive = AliveNodes();
  const Shard* system = std::as_const(*core_).shard(kSystemGroup);
  if (system != nullptr && system->ready() && !HasMajority(system->replica().config(), alive)) {
    return Answer(client, frame, rpc::Reply::BUSY,
                  "a majority of the nodes that hold the catalogue does not answer");
  }
  if (StillAnswers(request.node())) alive.insert(request.node());
  Change(client, frame, [this, request, alive](rpc::Catalogue* catalogue) {
    const auto incarnation = [&] {
      const rpc::CatalogueNode* node = FindNode(*catalogue, request.node());
      return node == nullptr ? 0 : SystemIncarnation(*node);
    };
    const uint32_t before = incarnation();
    HYDRA_RETURN_IF_ERROR(ChangeNodes(request, alive, catalogue));
    const bool lost = request.kind() == rpc::ChangeNodes::REPLACE && incarnation() != before;
    if (lost && !KeepsCatalogue(*catalogue)) {
      return Status::FailedPrecondition(fmt::format(
          "without node {} no majority of those that hold the catalogue answers: start the others "
          "first",
          request.node()));
    }
    return Status::Ok();
  });
}

// A store that is declared lost ends, and takes its vote on the catalogue with it: whether those
// that this catalogue still knows as the voters they are would decide without it.
bool Node::Impl::KeepsCatalogue(const rpc::Catalogue& catalogue) {
  const Shard* system = std::as_const(*core_).shard(kSystemGroup);
  if (system == nullptr || !system->ready()) return true;  // nor is anything decided here
  std::set<NodeId> voters;
  for (const paxos::Member& member : system->replica().config().members()) {
    const NodeId id = member.id.node;
    const rpc::CatalogueNode* node = FindNode(catalogue, id);
    if (node == nullptr || SystemIncarnation(*node) != member.id.incarnation) continue;
    if (id == options_.node || StillAnswers(id)) voters.insert(id);
  }
  return HasMajority(system->replica().config(), voters);
}

// --- Groups that this node leads ----------------------------------------------------------------

void Node::Impl::TendMembers() {
  if (let_in_ != 0 && !stopping_) LetIn(let_in_);
  Shard* system = core_->shard(kSystemGroup);
  if (stopping_ || system == nullptr || !keeper_->known()) return;
  if (keeper_->catalogue().version() > acted_on_) {
    OnCatalogue(keeper_->catalogue());
  } else {
    MakeReplicas(keeper_->catalogue());
  }
  for (const NodeId node : AliveNodes()) answered_[node] = clock_.Now();
  if (acted_on_ == 0 || !ended_.ok()) return;
  if (system->state().config().FindNode(options_.node) == nullptr) {
    HYDRA_LOG_INFO(
        "node {} was removed from the cluster; its data directory {} is not needed any "
        "more",
        options_.node, options_.dir);
    return BeginStop();
  }
  unwanted_.Tend(core_.get(), clock_.Now());
  changes_.clear();
  if (!keeper_->confirmed()) return;
  // Who does not hear the catalogue's master may know less than others.
  const NodeId master = system->ready() ? options_.node : system->replica().master_hint().node;
  if (master == 0 || !core_->leases().Alive(master, clock_.Now())) return;
  size_t busy = 0;
  for (const auto& [group, shard] : core_->shards()) {
    const auto wanted = wanted_members_.find(group);
    if (wanted == wanted_members_.end() || !shard->ready()) continue;
    if (IsCatchingUp(wanted->second, shard->replica().config())) ++busy;
  }
  if (system->ready()) {
    const paxos::Config& config = system->replica().config();
    TendGroup(kSystemGroup, WantedSystemMembers(keeper_->catalogue(), config), &busy);
  }
  for (const auto& [group, wanted] : wanted_members_) {
    TendGroup(group, wanted, &busy);
    if (rows_pending_.contains(group)) Report(group, master);
  }
  TendSystem();
}

void Node::Impl::TendGroup(GroupId group, const std::vector<paxos::Member>& wanted, size_t* busy) {
  Shard* shard = core_->shard(group);
  if (shard == nullptr || !shard->ready()) return;
  const MembersView view = ViewOf(shard->replica(), AliveNodes(), SilentNodes(kGoneAfter));
  const MemberStep step = NextMemberStep(wanted, view);
  if (step.kind == MemberStep::Kind::kDone) return;
  changes_[group] = step.why;
  if (step.kind == MemberStep::Kind::kWait) return;
  if (step.kind == MemberStep::Kind::kHandOver) {
    HandOver(group, step.to.node);
    return;
  }
  const bool begins =
      !IsCatchingUp(wanted, view.config) && IsCatchingUp(wanted, paxos::Config(0, step.members));
  if (begins && group != kSystemGroup) {
    if (*busy >= kGroupsAtOnce) {
      changes_[group] = "waits for its turn";
      return;
    }
    ++*busy;
  }
  const Status begun = shard->ChangeMembers(step.members, clock_.Now());
  if (begun.ok()) {
    HYDRA_LOG_INFO("group {}: {}", group, step.why);
  } else {
    changes_[group] = std::string(begun.message());
  }
  Wake();
}

// --- The catalogue follows ----------------------------------------------------------------------

void Node::Impl::Report(GroupId group, NodeId to) {
  const Shard* shard = std::as_const(*core_).shard(group);
  if (shard == nullptr || !shard->ready() || shard->replica().changing_members()) return;
  const paxos::Config& config = shard->replica().config();
  rpc::GroupReport report;
  report.set_group(group);
  report.set_config(config.instance());
  for (const paxos::Member& member : config.members()) {
    const bool votes = member.role == paxos::Role::kVoter;
    rpc::CatalogueReplica* row = votes ? report.add_voters() : report.add_learners();
    row->set_node(member.id.node);
    row->set_incarnation(member.id.incarnation);
  }
  if (to == options_.node) {
    OnReport(report);
  } else {
    links_->Send(to, report);
  }
}

void Node::Impl::OnReport(const rpc::GroupReport& report) {
  for (const rpc::CatalogueGroup& group : keeper_->catalogue().groups()) {
    if (group.id() == report.group() && IsNews(report, group)) reports_[group.id()] = report;
  }
}

// Where this node is the master of group 0.
void Node::Impl::TendSystem() {
  Shard* system = core_->shard(kSystemGroup);
  if (survivor_ && !DecidesAlone()) {
    HYDRA_LOG_WARN("node {} is not the only survivor: others decide again", options_.node);
    survivor_ = false;
  }
  if (!system->ready()) {
    reports_.clear();
    return;
  }
  const Nanos now = clock_.Now();
  if (keeper_->busy()) return;
  const auto done = [](const Status& status) {
    if (!status.ok()) HYDRA_LOG_WARN("the catalogue does not follow yet: {}", status.ToString());
  };
  if (survivor_) {
    keeper_->Submit(
        [survivor = options_.node](rpc::Catalogue* catalogue) {
          OnlySurvivor(survivor, catalogue);
          return Status::Ok();
        },
        [this, done](const Status& status) {
          survivor_ = survivor_ && !status.ok();
          // Those too that a catalogue made which was open when the majority was lost.
          if (!survivor_) ForceGroups().IgnoreError();
          done(status);
        },
        now);
    return;
  }
  if (!reports_.empty()) {
    keeper_->Submit(
        [reports = std::exchange(reports_, {})](rpc::Catalogue* catalogue) {
          for (const auto& [group, report] : reports) NoteGroup(report, catalogue);
          return Status::Ok();
        },
        done, now);
    return;
  }
  if (now < tended_system_ + kTendSystem) return;
  tended_system_ = now;
  const paxos::Replica& replica = system->replica();
  if (replica.changing_members()) return;
  SystemView view{replica.config(), NearLearners(replica), AliveNodes()};
  rpc::Catalogue next = keeper_->catalogue();
  if (!TendMembership(view, &next)) return;
  keeper_->Submit(
      [view](rpc::Catalogue* catalogue) {
        TendMembership(view, catalogue);
        return Status::Ok();
      },
      done, now);
}

// --- A lost majority ----------------------------------------------------------------------------

void Node::Impl::ForceSurvivor(const Server::ClientPtr& client, const Frame& frame,
                               const rpc::ForceSurvivor& request) {
  if (!request.may_lose_data()) {
    return Answer(client, frame, rpc::Reply::INVALID,
                  "this may lose data that was acknowledged; it has to be said");
  }
  AnswerStatus(client, frame, BeSurvivor());
  Wake();
}

// Whether nobody else has a say in the catalogue: by force, or because no other node votes.
bool Node::Impl::DecidesAlone() {
  const Shard& system = *std::as_const(*core_).shard(kSystemGroup);
  const paxos::Config& config = system.replica().config();
  if (!system.sole())
    return config.voters() == 1 && config.IsVoter(system.replica().options().self);
  // Those who were taken for lost are there, and can decide without this node.
  std::set<NodeId> others = AliveNodes();
  others.erase(options_.node);
  return !HasMajority(system.state().config(), others);
}

Status Node::Impl::ForceGroups() {
  Status catalogue = Status::Ok();
  const std::set<NodeId> alive = AliveNodes();
  for (const auto& [group, shard] : core_->shards()) {
    const paxos::Replica& replica = shard->replica();
    // A learner may have anything between nothing and everything.
    if (!replica.config().IsVoter(replica.options().self) || HasMajority(replica.config(), alive))
      continue;
    const Status forced = shard->ForceSole(clock_.Now());
    if (forced.ok()) {
      HYDRA_LOG_WARN("group {}: this replica decides alone from instance {} on, by force", group,
                     replica.applied());
    } else {
      HYDRA_LOG_ERROR("group {} cannot be saved here: {}", group, forced.message());
      if (group == kSystemGroup) catalogue = forced;
    }
  }
  return catalogue;
}

Status Node::Impl::MayBeSurvivor() {
  const Nanos now = clock_.Now();
  const Shard* system = std::as_const(*core_).shard(kSystemGroup);
  if (system == nullptr || acted_on_ == 0) {
    return Status::FailedPrecondition("this node has no catalogue to go on with; try another");
  }
  if (now < started_ + kSurvivorPatience) {
    return Status::FailedPrecondition(
        "this node has only just started, and others may still come: try again in some seconds");
  }
  const paxos::Config& nodes = system->replica().config();
  if (!DecidesAlone() && HasMajority(nodes, AliveNodes())) {
    return Status::FailedPrecondition(
        "a majority of the nodes answers, so nothing has to be forced: `hydractl node replace` is "
        "for those that are lost");
  }
  if (!nodes.IsVoter(system->replica().options().self)) {
    std::string voters;
    for (const paxos::Member& member : nodes.members()) {
      if (member.role != paxos::Role::kVoter) continue;
      voters += fmt::format("{}{}", voters.empty() ? "" : ", ", member.id.node);
    }
    return Status::FailedPrecondition(
        fmt::format("node {} only has a copy of the catalogue, and may not know its newest; use "
                    "one of those who vote on it: {}",
                    options_.node, voters));
  }
  // It would be taken for lost, and with it what no other node has.
  for (const rpc::CatalogueNode& node : keeper_->catalogue().nodes()) {
    if (node.id() == options_.node || !StillAnswers(node.id())) continue;
    return Status::FailedPrecondition(fmt::format(
        "node {0} answers, and would be taken for lost with all that it has. If this node is to go "
        "on without it, stop node {0} first and never start it on its data directory again; if a "
        "majority can be had with it, bring others back instead, and use `hydractl node replace` "
        "for those that are lost",
        node.id()));
  }
  return Status::Ok();
}

Status Node::Impl::BeSurvivor() {
  HYDRA_RETURN_IF_ERROR(MayBeSurvivor());
  const Status forced = ForceGroups();
  if (!forced.ok()) return forced.WithContext("the catalogue cannot be saved here; try another");
  survivor_ = true;
  return Status::Ok();
}

}  // namespace hydra
