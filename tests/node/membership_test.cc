// SPDX-License-Identifier: Apache-2.0
#include "daemon/membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/catalogue.h"
#include "daemon/placement.h"
#include "tests/support/gtest_status.h"

namespace hydra::membership_test {
namespace {

using testing::HasSubstr;
using Kind = rpc::ChangeNodes;

// A catalogue, the nodes that answer, and masters that do at once what it wants.
class MembershipTest : public testing::Test {
 protected:
  void Form(uint32_t nodes) {
    std::vector<rpc::CatalogueNode> rows;
    for (uint32_t id = 1; id <= nodes; ++id) {
      rows.emplace_back();
      rows.back().set_id(id);
      rows.back().set_rpc("host:" + std::to_string(7100 + id));
      alive_.insert(id);
    }
    catalogue_ = FirstCatalogue(std::string(16, 'c'), rows);
    for (uint32_t id = 1; id <= nodes; ++id) Speak(id, "store" + std::to_string(id), false);
  }
  Status AddVolume(const std::string& name, uint32_t shards, uint32_t replicas = 3) {
    rpc::CreateVolume request;
    request.set_name(name);
    request.set_bytes(1 << 20);
    request.set_shards(shards);
    request.set_replicas(replicas);
    return hydra::AddVolume(request, &catalogue_);
  }
  void Speak(NodeId node, const std::string& store, bool joining = true) {
    ASSERT_OK(TrySpeak(node, store, joining));
    alive_.insert(node);
  }
  Status TrySpeak(NodeId node, const std::string& store, bool joining = true) {
    rpc::Hello hello;
    hello.set_node(node);
    hello.set_store(store);
    hello.set_joining(joining);
    return NoteNode(hello, &catalogue_);
  }

  Status Change(Kind::Kind kind, NodeId node, bool force = false, const std::string& rpc = "") {
    rpc::ChangeNodes request;
    request.set_kind(kind);
    request.set_node(node);
    request.set_rpc(rpc);
    request.set_force(force);
    return Apply(request);
  }
  Status SetReplicas(const std::string& volume, uint32_t count, bool force = false) {
    rpc::ChangeNodes request;
    request.set_kind(Kind::SET_REPLICAS);
    request.set_volume(volume);
    request.set_replicas(count);
    request.set_force(force);
    return Apply(request);
  }
  // A refused change changes nothing, as CatalogueKeeper sees to it.
  Status Apply(const rpc::ChangeNodes& request) {
    rpc::Catalogue next = catalogue_;
    const Status changed = ChangeNodes(request, alive_, &next);
    if (changed.ok()) catalogue_ = next;
    return changed;
  }

  // Every group's master has done what is wanted of it, and reported.
  void MastersReport(uint64_t config) {
    const rpc::Catalogue before = catalogue_;
    for (const rpc::CatalogueGroup& group : before.groups()) {
      rpc::GroupReport report;
      report.set_group(group.id());
      report.set_config(config);
      for (const paxos::Member& member : WantedMembers(group)) {
        report.add_voters()->set_node(member.id.node);
        report.mutable_voters(report.voters_size() - 1)->set_incarnation(member.id.incarnation);
      }
      NoteGroup(report, &catalogue_);
    }
  }
  // Until nothing is left to do; the most groups that were changed at a time.
  size_t Settle() {
    size_t most = 0;
    paxos::Config system;
    for (int round = 1; round < 400; ++round) {
      system = paxos::Config(system.instance() + 1, WantedSystemMembers(catalogue_, system));
      SystemView view{system, {}, alive_};
      for (const paxos::Member& member : system.members()) {
        if (member.role == paxos::Role::kLearner) view.near.insert(member.id);
      }
      const bool changed = TendMembership(view, &catalogue_);
      most = std::max<size_t>(most, static_cast<size_t>(std::count_if(
                                        catalogue_.groups().begin(), catalogue_.groups().end(),
                                        [](const auto& group) { return IsBusy(group); })));
      CheckRows();
      MastersReport(++reported_);
      if (!changed && ChangesUnderWay(catalogue_) == 0) return most;
    }
    ADD_FAILURE() << "it never ends: " << ChangesUnderWay(catalogue_);
    return most;
  }
  // What must hold of every catalogue: no incarnation twice, no two places for a node.
  void CheckRows() {
    for (const rpc::CatalogueGroup& group : catalogue_.groups()) {
      std::set<NodeId> wanted;
      for (const ReplicaRow& row : group.replicas()) {
        const std::pair id(row.node(), row.incarnation());
        if (row.incarnation() > 1) {
          const auto known = given_.emplace(std::pair(group.id(), row.incarnation()), row.node());
          EXPECT_EQ(known.first->second, row.node()) << "an incarnation was given twice";
        }
        if (row.state() == ReplicaRow::LEAVING) continue;
        EXPECT_TRUE(wanted.insert(row.node()).second) << "two places for node " << row.node();
      }
    }
  }
  std::map<NodeId, size_t> Replicas() const { return NodeLoad(catalogue_).replicas; }
  const rpc::CatalogueNode& Node(NodeId id) const { return *FindNode(catalogue_, id); }

  rpc::Catalogue catalogue_;
  std::set<NodeId> alive_;
  uint64_t reported_ = 100;
  std::map<std::pair<GroupId, uint32_t>, NodeId> given_;
};

// --- Replacing ----------------------------------------------------------------------------------

TEST_F(MembershipTest, ALostDiskIsReplacedUnderNewIncarnationsEverywhere) {
  Form(3);
  ASSERT_OK(AddVolume("v", 8));
  alive_.erase(2);
  ASSERT_OK(Change(Kind::REPLACE, 2, false, "other:1"));
  EXPECT_STREQ(StateName(Node(2)), "lost");
  EXPECT_EQ(Node(2).rpc(), "other:1");
  EXPECT_EQ(SystemIncarnation(Node(2)), 2u);
  for (const rpc::CatalogueGroup& group : catalogue_.groups()) {
    ASSERT_EQ(group.replicas_size(), 4);
    std::set<uint32_t> incarnations;
    for (const paxos::Member& member : WantedMembers(group)) {
      if (member.id.node == 2) incarnations.insert(member.id.incarnation);
    }
    EXPECT_EQ(incarnations, std::set<uint32_t>{2});
    EXPECT_EQ(FirstMembers(group).size(), 3u) << "who was down since then begins with those";
  }
  EXPECT_EQ(ChangesUnderWay(catalogue_), 9u);
  ASSERT_OK(Change(Kind::REPLACE, 2)) << "saying it again changes nothing";
  EXPECT_EQ(SystemIncarnation(Node(2)), 2u);

  EXPECT_CODE(TrySpeak(2, "store2", false), Code::kFailedPrecondition);
  EXPECT_CODE(TrySpeak(2, "store2", true), Code::kFailedPrecondition) << "the old disk is gone";
  EXPECT_CODE(TrySpeak(2, "fresh", false), Code::kFailedPrecondition) << "--bootstrap";
  Speak(2, "fresh");
  EXPECT_STREQ(StateName(Node(2)), "joining");
  EXPECT_CODE(TrySpeak(2, "another", true), Code::kFailedPrecondition);
  Settle();
  EXPECT_STREQ(StateName(Node(2)), "active");
  for (const rpc::CatalogueGroup& group : catalogue_.groups()) EXPECT_EQ(group.replicas_size(), 3);
  // And again, while it joins.
  alive_.erase(2);
  ASSERT_OK(Change(Kind::REPLACE, 2));
  Speak(2, "third");
  alive_.erase(2);
  ASSERT_OK(Change(Kind::REPLACE, 2));
  EXPECT_EQ(Node(2).former_stores_size(), 3);
  Speak(2, "fourth");
  Settle();
  EXPECT_EQ(SystemIncarnation(Node(2)), 4u);
  EXPECT_EQ(WantedMembers(catalogue_.groups(0)).back().id.incarnation, 4u);
}

// It may have voted before the catalogue knew its data directory, which is lost now.
TEST_F(MembershipTest, AnEmptyDiskDoesNotTakeThePlaceOfAFounderWhoseStoreWasNeverNoted) {
  Form(3);
  catalogue_.mutable_nodes(1)->clear_store();
  EXPECT_THAT(MayBeStoreOf(catalogue_, 2, "fresh", true).ToString(),
              HasSubstr("hydractl node replace 2"));
  EXPECT_OK(MayBeStoreOf(catalogue_, 2, "store2", false));
  catalogue_.mutable_nodes(1)->set_state(rpc::CatalogueNode::DRAINING);
  EXPECT_CODE(MayBeStoreOf(catalogue_, 2, "fresh", true), Code::kFailedPrecondition);
  catalogue_.mutable_nodes(1)->set_state(rpc::CatalogueNode::ACTIVE);
  alive_.erase(2);
  ASSERT_OK(Change(Kind::REPLACE, 2));
  EXPECT_EQ(SystemIncarnation(Node(2)), 2u);
  EXPECT_OK(MayBeStoreOf(catalogue_, 2, "fresh", true));
}

// As a client says it once more that did not hear the answer.
TEST_F(MembershipTest, ReplacingOneIncarnationTwiceLosesOneDisk) {
  Form(3);
  ASSERT_OK(AddVolume("v", 2));
  alive_.erase(2);
  rpc::ChangeNodes request;
  request.set_kind(Kind::REPLACE);
  request.set_node(2);
  request.set_force(true);
  request.set_incarnation(1);
  ASSERT_OK(Apply(request));
  Speak(2, "fresh");
  ASSERT_OK(Apply(request));
  EXPECT_EQ(SystemIncarnation(Node(2)), 2u);
  EXPECT_EQ(Node(2).store(), "fresh");
  Settle();
  ASSERT_OK(Apply(request));
  EXPECT_STREQ(StateName(Node(2)), "active");
  request.set_incarnation(2);
  ASSERT_OK(Apply(request));
  EXPECT_STREQ(StateName(Node(2)), "lost");
}

TEST_F(MembershipTest, ReplacingIsRefusedWithTheReason) {
  Form(3);
  ASSERT_OK(AddVolume("v", 2));
  EXPECT_CODE(Change(Kind::REPLACE, 9), Code::kNotFound);
  const Status answers = Change(Kind::REPLACE, 2);
  EXPECT_CODE(answers, Code::kFailedPrecondition);
  EXPECT_THAT(answers.ToString(), HasSubstr("Stop it first"));
  alive_ = {1};
  const Status few = Change(Kind::REPLACE, 2);
  EXPECT_CODE(few, Code::kFailedPrecondition);
  EXPECT_THAT(few.ToString(), HasSubstr("no majority"));
  EXPECT_THAT(few.ToString(), HasSubstr("volume 'v'"));
  alive_ = {1, 3};
  EXPECT_CODE(Change(Kind::REPLACE, 2, false, "host:7103"), Code::kAlreadyExists);
  EXPECT_CODE(Change(Kind::REPLACE, 2, false, "nonsense"), Code::kInvalidArgument);
  ASSERT_OK(AddVolume("single", 3, 1));
  const Status only = Change(Kind::REPLACE, 2);
  EXPECT_CODE(only, Code::kFailedPrecondition);
  EXPECT_THAT(only.ToString(), HasSubstr("only replica"));
  alive_ = {1, 2, 3};
  EXPECT_OK(SetReplicas("single", 3));
  Settle();
  EXPECT_OK(Change(Kind::REPLACE, 2, true)) << "it answers, and that is meant";
}

TEST_F(MembershipTest, AReplicaThatIsNotThereYetDoesNotCountAsOneThatAnswers) {
  Form(3);
  ASSERT_OK(AddVolume("v", 1));
  alive_.erase(2);
  ASSERT_OK(Change(Kind::REPLACE, 2));
  Speak(2, "fresh");  // up, with nothing on its new disk
  alive_.erase(3);
  const Status few = Change(Kind::REPLACE, 3);
  EXPECT_CODE(few, Code::kFailedPrecondition) << "only node 1 has the data";
  EXPECT_THAT(few.ToString(), HasSubstr("only 1 of the 3 replicas"));
  EXPECT_THAT(few.ToString(), HasSubstr("hydractl volume delete v"));
  EXPECT_CODE(Change(Kind::REMOVE, 3, true), Code::kFailedPrecondition);
  alive_.insert(3);
  Settle();
  alive_.erase(3);
  EXPECT_OK(Change(Kind::REPLACE, 3)) << "now node 2 has it too";
}

TEST_F(MembershipTest, AMoveUnderWayIsNoMajority) {
  Form(4);
  ASSERT_OK(AddVolume("v", 1));
  const NodeId leaves = catalogue_.groups(0).replicas(0).node();
  const NodeId dies = catalogue_.groups(0).replicas(1).node();
  ASSERT_OK(Change(Kind::REMOVE, leaves));
  alive_.erase(dies);
  EXPECT_CODE(Change(Kind::REPLACE, dies), Code::kFailedPrecondition)
      << "of the four that may vote two answer for certain";
  alive_.insert(dies);
  Settle();
  alive_.erase(dies);
  EXPECT_OK(Change(Kind::REPLACE, dies));
}

// --- Adding and removing ------------------------------------------------------------------------

TEST_F(MembershipTest, ANewNodeGetsItsShareAFewGroupsAtATime) {
  Form(3);
  ASSERT_OK(AddVolume("v", 32));
  ASSERT_OK(Change(Kind::ADD, 0, false, "host:7104"));
  ASSERT_OK(Change(Kind::ADD, 0, false, "host:7104")) << "said again";
  ASSERT_EQ(catalogue_.nodes_size(), 4);
  EXPECT_STREQ(StateName(Node(4)), "joining");
  EXPECT_OK(AddVolume("w", 1));
  EXPECT_EQ(Replicas().count(4), 0u) << "it takes none before it is there";
  Speak(4, "store4");
  EXPECT_LE(Settle(), kMovesAtOnce);
  for (const auto& [node, count] : Replicas()) EXPECT_NEAR(count, 33.0 * 3 / 4, 1.0) << node;
  for (const auto& [node, count] : NodeLoad(catalogue_).led) EXPECT_NEAR(count, 33.0 / 4, 1.0);
}

TEST_F(MembershipTest, AddingIsRefusedWithTheReason) {
  Form(3);
  EXPECT_CODE(Change(Kind::ADD, 2, false, "host:1"), Code::kAlreadyExists);
  EXPECT_CODE(Change(Kind::ADD, 4, false, "host:7101"), Code::kAlreadyExists);
  EXPECT_CODE(Change(Kind::ADD, 4, false, "host"), Code::kInvalidArgument);
  for (NodeId node = 4; node <= kMaxNodes; ++node) {
    ASSERT_OK(Change(Kind::ADD, node, false, "host:" + std::to_string(7100 + node)));
  }
  EXPECT_CODE(Change(Kind::ADD, 17, false, "host:1"), Code::kNoSpace);
}

TEST_F(MembershipTest, ARemovedNodeIsEmptiedFirstAndItsNumberNeverUsedAgain) {
  Form(4);
  ASSERT_OK(AddVolume("v", 12));
  ASSERT_OK(Change(Kind::REMOVE, 1));
  ASSERT_OK(Change(Kind::REMOVE, 1));
  EXPECT_STREQ(StateName(Node(1)), "draining");
  const paxos::Config before(1, {{{1, 1}, paxos::Role::kVoter},
                                 {{2, 1}, paxos::Role::kVoter},
                                 {{3, 1}, paxos::Role::kVoter},
                                 {{4, 1}, paxos::Role::kLearner}});
  const auto wanted = WantedSystemMembers(catalogue_, before);
  ASSERT_EQ(wanted.size(), 4u) << "it hears what it is to give up";
  for (const paxos::Member& member : wanted) {
    EXPECT_EQ(member.role == paxos::Role::kVoter, member.id.node != 1) << member.id.node;
  }
  for (const rpc::CatalogueGroup& group : catalogue_.groups()) {
    EXPECT_NE(group.preferred_master(), 1u);
    EXPECT_EQ(WantedMembers(group).size(), 3u);
  }
  Settle();
  EXPECT_EQ(catalogue_.nodes_size(), 3);
  EXPECT_OK(Change(Kind::REMOVE, 1)) << "it is gone already";
  const Status again = Change(Kind::ADD, 1, false, "host:7101");
  EXPECT_THAT(again.ToString(), HasSubstr("never used again"));
  EXPECT_THAT(MayBeStoreOf(catalogue_, 1, "store1", false).ToString(), HasSubstr("was removed"));
  ASSERT_OK(Change(Kind::ADD, 0, false, "host:7101"));
  EXPECT_EQ(catalogue_.nodes(3).id(), 5u);
}

TEST_F(MembershipTest, RemovingIsRefusedWithTheReason) {
  Form(3);
  ASSERT_OK(AddVolume("v", 4));
  EXPECT_CODE(Change(Kind::REMOVE, 7), Code::kNotFound);
  const Status refused = Change(Kind::REMOVE, 3);
  EXPECT_CODE(refused, Code::kFailedPrecondition);
  EXPECT_THAT(refused.ToString(), HasSubstr("left with 2 replica(s)"));
  EXPECT_THAT(refused.ToString(), HasSubstr("hydractl node add"));
  EXPECT_STREQ(StateName(Node(3)), "active");
  alive_ = {1};
  EXPECT_CODE(Change(Kind::REMOVE, 3, true), Code::kFailedPrecondition);
  alive_ = {1, 2, 3};
  ASSERT_OK(Change(Kind::REMOVE, 3, true));
  Settle();
  EXPECT_EQ(catalogue_.nodes_size(), 2);
  for (const auto& group : catalogue_.groups()) EXPECT_EQ(WantedReplicas(group), 2u);
  // Two voters hold the catalogue, not one.
  const paxos::Config two(1, {{{1, 1}, paxos::Role::kVoter}, {{2, 1}, paxos::Role::kVoter}});
  EXPECT_EQ(paxos::Config(2, WantedSystemMembers(catalogue_, two)).voters(), 2u);
  // What is missing is made good for when there is a node again.
  ASSERT_OK(Change(Kind::ADD, 0, false, "host:7104"));
  Speak(4, "store4");
  Settle();
  for (const auto& group : catalogue_.groups()) EXPECT_EQ(WantedReplicas(group), 3u);
}

TEST_F(MembershipTest, TheLastReplicaOfAVolumeIsNeverGivenUp) {
  Form(2);
  ASSERT_OK(AddVolume("v", 2, 1));
  alive_ = {1};
  EXPECT_CODE(Change(Kind::REMOVE, 2, true), Code::kFailedPrecondition);
  alive_ = {1, 2};
  ASSERT_OK(Change(Kind::REMOVE, 2)) << "it can move";
  Settle();
  EXPECT_EQ(Replicas(), (std::map<NodeId, size_t>{{1, 2}}));
  EXPECT_CODE(Change(Kind::REMOVE, 1, true), Code::kFailedPrecondition);
}

TEST_F(MembershipTest, ADeadNodeIsRemovedIfAMajorityIsThere) {
  Form(4);
  ASSERT_OK(AddVolume("v", 4));
  alive_.erase(2);
  ASSERT_OK(Change(Kind::REMOVE, 2));
  Settle();
  EXPECT_EQ(catalogue_.nodes_size(), 3);
  for (const auto& [node, count] : Replicas()) EXPECT_EQ(count, 4u) << node;
}

// --- More and fewer replicas --------------------------------------------------------------------

TEST_F(MembershipTest, ReplicasGrowFromThreeToFiveAndBackAndAgain) {
  Form(5);
  ASSERT_OK(AddVolume("v", 6));
  for (int round = 0; round < 3; ++round) {
    ASSERT_OK(SetReplicas("v", 5));
    EXPECT_CODE(SetReplicas("v", 3), Code::kFailedPrecondition) << "one change at a time";
    Settle();
    for (const rpc::CatalogueGroup& group : catalogue_.groups()) {
      EXPECT_EQ(group.replicas_size(), 5);
    }
    ASSERT_OK(SetReplicas("v", 3));
    Settle();
    for (const rpc::CatalogueGroup& group : catalogue_.groups()) {
      EXPECT_EQ(group.replicas_size(), 3);
      EXPECT_TRUE(IsOn(group, group.preferred_master()));
    }
  }
}

TEST_F(MembershipTest, NumbersOfReplicasAreRefusedWithTheReason) {
  Form(4);
  ASSERT_OK(AddVolume("v", 2));
  EXPECT_CODE(SetReplicas("v", 2), Code::kInvalidArgument);
  EXPECT_CODE(SetReplicas("none", 3), Code::kNotFound);
  EXPECT_THAT(SetReplicas("v", 5).ToString(), HasSubstr("5 replicas on 4 nodes"));
  EXPECT_THAT(SetReplicas("v", 1).ToString(), HasSubstr("--force"));
  EXPECT_OK(SetReplicas("v", 3)) << "as it is";
  EXPECT_OK(SetReplicas("v", 1, true));
}

// --- A lost majority ----------------------------------------------------------------------------

TEST_F(MembershipTest, TheOnlySurvivorTakesAllOthersForLost) {
  Form(5);
  ASSERT_OK(AddVolume("v", 5));
  ASSERT_OK(Change(Kind::REMOVE, 1));
  OnlySurvivor(1, &catalogue_);
  const rpc::Catalogue once = catalogue_;
  OnlySurvivor(1, &catalogue_);
  EXPECT_EQ(catalogue_.SerializeAsString(), once.SerializeAsString()) << "it may be said again";
  EXPECT_STREQ(StateName(Node(1)), "active");
  for (NodeId node = 2; node <= 5; ++node) EXPECT_STREQ(StateName(Node(node)), "lost");
  for (const rpc::CatalogueGroup& group : catalogue_.groups()) {
    for (const paxos::Member& member : WantedMembers(group)) {
      EXPECT_EQ(member.id.incarnation == 1, member.id.node == 1)
          << "no replica begins anew under a name that may have promised something";
    }
    if (!IsOn(group, 1)) continue;
    EXPECT_EQ(group.preferred_master(), 1u);
  }
  EXPECT_CODE(TrySpeak(3, "store3", false), Code::kFailedPrecondition);
}

// While node 1 is cut off, the others go on, and are lost then.
TEST_F(MembershipTest, ASurvivorGivesNoNumberThatThoseWhoAreGoneMayHaveGiven) {
  Form(3);
  ASSERT_OK(AddVolume("v", 3));
  ASSERT_OK(Change(Kind::REPLACE, 3, true));
  rpc::Catalogue gone = catalogue_;
  Speak(3, "second3");
  Settle();
  ASSERT_OK(Change(Kind::REPLACE, 3, true));
  Speak(3, "third3");
  Settle();
  ASSERT_OK(AddVolume("theirs", 2));
  ASSERT_OK(Change(Kind::REPLACE, 1, true));
  catalogue_.set_version(catalogue_.version() + 20);
  catalogue_.mutable_volumes(0)->set_epoch(7);
  std::swap(gone, catalogue_);
  OnlySurvivor(1, &catalogue_);

  EXPECT_GT(catalogue_.version(), gone.version());
  EXPECT_GT(catalogue_.volumes(0).epoch(), 7u);
  for (NodeId node = 2; node <= 3; ++node) {
    const rpc::CatalogueNode* there = FindNode(gone, node);
    EXPECT_GT(Node(node).incarnation(), there->incarnation()) << node;
    Speak(node, "again" + std::to_string(node));
  }
  for (int i = 0; i < catalogue_.groups_size(); ++i) {
    EXPECT_EQ(catalogue_.groups(i).config(), 0u) << "its replica may have missed the last one";
    for (const paxos::Member& member : WantedMembers(catalogue_.groups(i))) {
      if (member.id.node == 1) continue;
      EXPECT_GT(member.id.incarnation, gone.groups(i).last_incarnation());
    }
  }
  Settle();
  ASSERT_OK(AddVolume("ours", 1));
  EXPECT_GE(catalogue_.volumes(1).id(), gone.next_volume());
  EXPECT_GE(catalogue_.groups(3).id(), gone.next_group());
  ASSERT_OK(Change(Kind::REPLACE, 1, true));
  EXPECT_GT(Node(1).incarnation(), FindNode(gone, 1)->incarnation());
}

// --- Reports ------------------------------------------------------------------------------------

TEST_F(MembershipTest, AnOldReportChangesNothing) {
  Form(4);
  ASSERT_OK(AddVolume("v", 1));
  rpc::GroupReport first;
  first.set_group(1);
  first.set_config(10);
  for (const paxos::Member& member : WantedMembers(catalogue_.groups(0))) {
    first.add_voters()->set_node(member.id.node);
    first.mutable_voters(first.voters_size() - 1)->set_incarnation(member.id.incarnation);
  }
  EXPECT_FALSE(IsNews(first, catalogue_.groups(0)));
  ASSERT_OK(Change(Kind::REMOVE, 1));
  EXPECT_FALSE(IsNews(first, catalogue_.groups(0))) << "the one who leaves still votes";
  MastersReport(20);
  EXPECT_EQ(catalogue_.groups(0).replicas_size(), 3);
  alive_.erase(2);
  ASSERT_OK(Change(Kind::REPLACE, 2));
  first.clear_voters();
  EXPECT_FALSE(IsNews(first, catalogue_.groups(0))) << "of an older configuration";
}

// A master that has not heard of it might let it vote, when its node has dropped it.
TEST_F(MembershipTest, ARowThatLeavesStaysWhileItsReplicaIsALearner) {
  Form(4);
  ASSERT_OK(AddVolume("v", 1));
  ASSERT_OK(Change(Kind::REMOVE, catalogue_.groups(0).replicas(0).node()));
  const ReplicaRow joins = catalogue_.groups(0).replicas(3);
  ASSERT_EQ(joins.state(), ReplicaRow::JOINING);
  ASSERT_OK(Change(Kind::REMOVE, joins.node(), true)) << "meant otherwise, before it has arrived";
  rpc::GroupReport report;
  report.set_group(1);
  report.set_config(20);
  for (int i = 1; i < 3; ++i) *report.add_voters() = catalogue_.groups(0).replicas(i);
  *report.add_learners() = joins;
  NoteGroup(report, &catalogue_);
  ASSERT_EQ(catalogue_.groups(0).replicas_size(), 3) << "the voter that left is gone";
  EXPECT_EQ(catalogue_.groups(0).replicas(2).node(), joins.node());
  EXPECT_FALSE(IsNews(report, catalogue_.groups(0)));
  report.clear_learners();
  NoteGroup(report, &catalogue_);
  EXPECT_EQ(catalogue_.groups(0).replicas_size(), 2);
}

}  // namespace
}  // namespace hydra::membership_test
