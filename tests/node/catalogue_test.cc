// SPDX-License-Identifier: Apache-2.0
#include "daemon/catalogue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/gtest_status.h"

namespace hydra {
namespace {

using testing::HasSubstr;

rpc::Catalogue OfNodes(uint32_t count) {
  std::vector<rpc::CatalogueNode> nodes;
  for (uint32_t i = 1; i <= count; ++i) {
    rpc::CatalogueNode node;
    node.set_id(i);
    node.set_rpc("127.0.0.1:" + std::to_string(7100 + i));
    nodes.push_back(node);
  }
  return FirstCatalogue(std::string(16, 'c'), nodes);
}

rpc::CreateVolume Create(const std::string& name, uint64_t bytes = 1 << 20) {
  rpc::CreateVolume request;
  request.set_name(name);
  request.set_bytes(bytes);
  return request;
}

TEST(Catalogue, ComesBackFromItsBlocks) {
  rpc::Catalogue catalogue = OfNodes(3);
  for (int i = 0; i < 100; ++i) ASSERT_OK(AddVolume(Create("v" + std::to_string(i)), &catalogue));
  const auto blocks = EncodeCatalogue(catalogue);
  ASSERT_OK(blocks.status());
  EXPECT_GT(blocks->size(), kPageSize);
  const auto count = CatalogueBlocks(blocks->span().first(kPageSize));
  ASSERT_OK(count.status());
  EXPECT_EQ(*count * kPageSize, blocks->size());
  const auto back = DecodeCatalogue(blocks->span());
  ASSERT_OK(back.status());
  EXPECT_EQ(back->SerializeAsString(), catalogue.SerializeAsString());
}

TEST(Catalogue, ZeroesAreNoCatalogueAndDamageIsNoticed) {
  Buffer zeroes = Buffer::Allocate(kPageSize);
  EXPECT_EQ(*CatalogueBlocks(zeroes.span()), 0u);
  EXPECT_CODE(DecodeCatalogue(zeroes.span()).status(), Code::kNotFound);
  auto blocks = EncodeCatalogue(OfNodes(3));
  ASSERT_OK(blocks.status());
  for (const size_t at : {0, 5, 9, 20}) {
    blocks->data()[at] ^= 0x40;
    EXPECT_CODE(DecodeCatalogue(blocks->span()).status(), Code::kCorruption) << at;
    blocks->data()[at] ^= 0x40;
  }
  EXPECT_OK(DecodeCatalogue(blocks->span()).status());
}

TEST(Catalogue, AnOddNumberOfNodesVotesInTheSystemGroup) {
  EXPECT_EQ(SystemVoters({1}), (std::vector<NodeId>{1}));
  EXPECT_EQ(SystemVoters({2, 1}), (std::vector<NodeId>{1}));
  EXPECT_EQ(SystemVoters({3, 1, 2}), (std::vector<NodeId>{1, 2, 3}));
  EXPECT_EQ(SystemVoters({1, 2, 3, 4}).size(), 3u);
  EXPECT_EQ(SystemVoters({1, 2, 3, 4, 5, 6, 7}).size(), 5u);
}

TEST(Catalogue, SpreadsReplicasAndMasters) {
  rpc::Catalogue catalogue = OfNodes(5);
  for (int i = 0; i < 10; ++i) ASSERT_OK(AddVolume(Create("v" + std::to_string(i)), &catalogue));
  std::map<uint32_t, int> replicas;
  std::map<uint32_t, int> masters;
  std::set<uint32_t> groups;
  for (const rpc::CatalogueGroup& group : catalogue.groups()) {
    EXPECT_TRUE(groups.insert(group.id()).second);
    EXPECT_EQ(group.replicas_size(), 3);
    std::set<uint32_t> nodes;
    for (const auto& replica : group.replicas()) {
      nodes.insert(replica.node());
      ++replicas[replica.node()];
    }
    EXPECT_EQ(nodes.size(), 3u);
    EXPECT_TRUE(nodes.contains(group.preferred_master()));
    ++masters[group.preferred_master()];
  }
  EXPECT_EQ(groups.size(), 40u);
  for (uint32_t node = 1; node <= 5; ++node) {
    EXPECT_EQ(replicas[node], 24) << node;
    EXPECT_NEAR(masters[node], 8, 1) << node;
  }
}

TEST(Catalogue, IdsAreNeverUsedAgain) {
  rpc::Catalogue catalogue = OfNodes(3);
  ASSERT_OK(AddVolume(Create("a"), &catalogue));
  const uint32_t group = catalogue.groups(3).id();
  rpc::DeleteVolume gone;
  gone.set_name("a");
  ASSERT_OK(DeleteVolume(gone, &catalogue));
  EXPECT_EQ(catalogue.groups_size(), 0);
  EXPECT_CODE(DeleteVolume(gone, &catalogue), Code::kNotFound);
  ASSERT_OK(AddVolume(Create("a"), &catalogue));
  EXPECT_EQ(catalogue.groups(0).id(), group + 1);
  EXPECT_EQ(catalogue.volumes(0).id(), 2u);
}

TEST(Catalogue, RefusesWhatCannotBe) {
  rpc::Catalogue catalogue = OfNodes(3);
  ASSERT_OK(AddVolume(Create("a"), &catalogue));
  const std::string before = catalogue.SerializeAsString();
  EXPECT_CODE(AddVolume(Create("a"), &catalogue), Code::kAlreadyExists);
  for (const char* name : {"", "A", "a b", "-a", ".a", "a/b", "ä"}) {
    EXPECT_CODE(AddVolume(Create(name), &catalogue), Code::kInvalidArgument) << name;
  }
  EXPECT_CODE(AddVolume(Create(std::string(65, 'a')), &catalogue), Code::kInvalidArgument);
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{1000}, uint64_t{1} << 60}) {
    EXPECT_CODE(AddVolume(Create("b", bytes), &catalogue), Code::kInvalidArgument) << bytes;
  }
  rpc::CreateVolume request = Create("b");
  request.set_block_bytes(1000);
  EXPECT_CODE(AddVolume(request, &catalogue), Code::kInvalidArgument);
  request.set_block_bytes(0);
  request.set_shards(65);
  EXPECT_CODE(AddVolume(request, &catalogue), Code::kInvalidArgument);
  request.set_shards(1);
  request.set_replicas(2);
  EXPECT_CODE(AddVolume(request, &catalogue), Code::kInvalidArgument);
  request.set_replicas(5);
  EXPECT_THAT(std::string(AddVolume(request, &catalogue).message()), HasSubstr("add nodes"));
  EXPECT_EQ(catalogue.SerializeAsString(), before);
}

// An older node would serve such a volume in blocks of 512.
TEST(Catalogue, LogicalBlocksOf4096NeedACatalogueThatEveryNodeUnderstands) {
  rpc::Catalogue catalogue = OfNodes(3);
  rpc::CreateVolume request = Create("a");
  const std::string before = catalogue.SerializeAsString();
  request.set_logical_block(4096);
  EXPECT_CODE(AddVolume(request, &catalogue), Code::kFailedPrecondition);
  catalogue.set_feature_level(kLogicalBlockLevel - 1);
  EXPECT_CODE(AddVolume(request, &catalogue), Code::kFailedPrecondition);
  for (const uint32_t odd : {1u, 256u, 1024u, 8192u, 4097u}) {
    request.set_logical_block(odd);
    EXPECT_CODE(AddVolume(request, &catalogue), Code::kInvalidArgument) << odd;
  }
  catalogue.set_feature_level(1);
  EXPECT_EQ(catalogue.SerializeAsString(), before);
  // 512, said or not, is what there always was.
  request.set_logical_block(512);
  ASSERT_OK(AddVolume(request, &catalogue));
  ASSERT_OK(AddVolume(Create("b"), &catalogue));
  catalogue.set_feature_level(kLogicalBlockLevel);
  request.set_name("c");
  request.set_logical_block(4096);
  ASSERT_OK(AddVolume(request, &catalogue));
  EXPECT_EQ(catalogue.volumes(0).logical_block(), 0u);
  EXPECT_EQ(catalogue.volumes(1).logical_block(), 0u);
  EXPECT_EQ(catalogue.volumes(2).logical_block(), 4096u);
}

TEST(Catalogue, GrowsAtOnceAndShrinksInTwoSteps) {
  rpc::Catalogue catalogue = OfNodes(3);
  ASSERT_OK(AddVolume(Create("a", 8 << 20), &catalogue));
  rpc::ResizeVolume request;
  request.set_name("a");
  request.set_bytes(16 << 20);
  ASSERT_OK(ResizeVolume(request, &catalogue));
  EXPECT_EQ(catalogue.volumes(0).bytes(), 16u << 20);
  request.set_bytes(4 << 20);
  EXPECT_THAT(std::string(ResizeVolume(request, &catalogue).message()), HasSubstr("--force"));
  request.set_force(true);
  request.set_unmapped(true);  // a lie: nothing was announced
  ASSERT_OK(ResizeVolume(request, &catalogue));
  EXPECT_EQ(catalogue.volumes(0).bytes(), 16u << 20);
  EXPECT_EQ(catalogue.volumes(0).state(), rpc::CatalogueVolume::SHRINKING);
  EXPECT_EQ(EpochOf(catalogue.volumes(0)), 2u);  // what was checked before is refused from now on
  rpc::ResizeVolume other = request;
  other.set_bytes(32 << 20);
  EXPECT_CODE(ResizeVolume(other, &catalogue), Code::kFailedPrecondition);
  ASSERT_OK(ResizeVolume(request, &catalogue));
  EXPECT_EQ(catalogue.volumes(0).bytes(), 4u << 20);
  EXPECT_EQ(catalogue.volumes(0).state(), rpc::CatalogueVolume::ACTIVE);
  EXPECT_EQ(EpochOf(catalogue.volumes(0)), 2u);
}

TEST(Catalogue, AccessChangesOnlyFromTheEpochThatWasLookedAt) {
  rpc::Catalogue catalogue = OfNodes(3);
  ASSERT_OK(AddVolume(Create("a", 8 << 20), &catalogue));
  catalogue.mutable_volumes(0)->clear_epoch();  // as one made before there were epochs
  rpc::ChangeAccess request;
  request.set_name("a");
  request.set_epoch(1);
  request.set_reservations("x");
  ASSERT_OK(ChangeAccess(request, &catalogue));
  EXPECT_EQ(EpochOf(catalogue.volumes(0)), 2u);
  EXPECT_CODE(ChangeAccess(request, &catalogue), Code::kFailedPrecondition);
  request.set_epoch(2);
  request.set_reservations(std::string(kMaxReservationBytes + 1, 'x'));
  EXPECT_CODE(ChangeAccess(request, &catalogue), Code::kNoSpace);
  EXPECT_EQ(catalogue.volumes(0).reservations(), "x");
  request.set_name("b");
  EXPECT_CODE(ChangeAccess(request, &catalogue), Code::kNotFound);
}

rpc::Hello HelloOf(NodeId node, char store, uint32_t feature_level = 1) {
  rpc::Hello hello;
  hello.set_node(node);
  hello.set_store(std::string(16, store));
  hello.set_feature_level(feature_level);
  return hello;
}

TEST(Catalogue, BelievesTheFirstStoreOfANode) {
  rpc::Catalogue catalogue = OfNodes(3);
  EXPECT_FALSE(IsNoted(HelloOf(2, 'x'), catalogue.nodes(1)));
  ASSERT_OK(NoteNode(HelloOf(2, 'x'), &catalogue));
  EXPECT_TRUE(IsNoted(HelloOf(2, 'x'), catalogue.nodes(1)));
  ASSERT_OK(NoteNode(HelloOf(2, 'x'), &catalogue));
  EXPECT_CODE(NoteNode(HelloOf(2, 'y'), &catalogue), Code::kFailedPrecondition);
  EXPECT_CODE(NoteNode(HelloOf(9, 'y'), &catalogue), Code::kNotFound);
}

TEST(Catalogue, FeatureLevelRisesWhenAllNodesCanAndNeverFalls) {
  rpc::Catalogue catalogue = OfNodes(3);
  for (const NodeId node : {1, 2, 3}) ASSERT_OK(NoteNode(HelloOf(node, 'x', 1), &catalogue));
  EXPECT_EQ(catalogue.feature_level(), 1u);
  ASSERT_OK(NoteNode(HelloOf(1, 'x', 3), &catalogue));
  ASSERT_OK(NoteNode(HelloOf(2, 'x', 2), &catalogue));
  EXPECT_EQ(catalogue.feature_level(), 1u);  // node 3 is not upgraded yet
  ASSERT_OK(NoteNode(HelloOf(3, 'x', 3), &catalogue));
  EXPECT_EQ(catalogue.feature_level(), 2u);
  ASSERT_OK(NoteNode(HelloOf(2, 'x', 1), &catalogue));
  EXPECT_EQ(catalogue.feature_level(), 2u);
}

}  // namespace
}  // namespace hydra
