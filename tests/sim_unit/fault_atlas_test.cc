// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/fault_atlas.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/rng.h"

namespace hydra::sim {
namespace {

using Mode = FaultAtlas::Mode;
using Members = FaultAtlas::Members;

void Damage(FaultAtlas* atlas, NodeId node) {
  FaultAtlas::Permit permit = atlas->MayRot(node);
  ASSERT_TRUE(permit);
  permit.Commit();
}

TEST(FaultAtlas, AMinorityMayBeDamagedUntilItIsRepaired) {
  FaultAtlas atlas(1, Mode::kNodes);
  atlas.AddGroup(1, {1, 2, 3});
  Damage(&atlas, 2);
  EXPECT_FALSE(atlas.MayRot(1));
  EXPECT_FALSE(atlas.MayWipe(3));
  EXPECT_FALSE(atlas.MayFailWrite(3));
  EXPECT_FALSE(atlas.MayLoseWrites(3));
  Damage(&atlas, 2);  // again: nothing more to lose
  atlas.Repaired(2);
  Damage(&atlas, 3);
  EXPECT_EQ(atlas.damaged(), std::set<NodeId>{3});
  EXPECT_EQ(atlas.granted(), 3u);
  EXPECT_EQ(atlas.refused(), 4u);
}

TEST(FaultAtlas, FiveReplicasMayLoseTwoAndOneMayLoseNone) {
  FaultAtlas five(1, Mode::kNodes);
  five.AddGroup(1, {1, 2, 3, 4, 5});
  Damage(&five, 1);
  Damage(&five, 5);
  EXPECT_FALSE(five.MayWipe(3));
  FaultAtlas one(1, Mode::kNodes);
  one.AddGroup(1, {1});
  EXPECT_FALSE(one.MayRot(1));
  Damage(&one, 2);  // is in no group
}

TEST(FaultAtlas, EveryGroupOfANodeHasASay) {
  FaultAtlas atlas(1, Mode::kNodes);
  atlas.AddGroup(1, {1, 2, 3});
  atlas.AddGroup(2, {3, 4, 5});
  atlas.AddGroup(3, {1, 4, 5});
  Damage(&atlas, 1);
  EXPECT_FALSE(atlas.MayRot(3)) << "group 1";
  EXPECT_FALSE(atlas.MayRot(4)) << "group 3";
  atlas.DropGroup(3);
  Damage(&atlas, 4);
  EXPECT_FALSE(atlas.MayRot(5));
}

TEST(FaultAtlas, AnUnusedPermitIsGivenBack) {
  FaultAtlas atlas(1, Mode::kNodes);
  atlas.AddGroup(1, {1, 2, 3});
  {
    FaultAtlas::Permit permit = atlas.MayWipe(1);
    ASSERT_TRUE(permit);
    EXPECT_FALSE(atlas.MayWipe(2)) << "while it may still be used";
    FaultAtlas::Permit moved = std::move(permit);
    EXPECT_FALSE(permit);  // NOLINT: that is the point
    EXPECT_TRUE(moved);
  }
  EXPECT_FALSE(atlas.damaged(1));
  Damage(&atlas, 2);
  { const FaultAtlas::Permit again = atlas.MayWipe(2); }
  EXPECT_TRUE(atlas.damaged(2)) << "the first damage stays";
}

TEST(FaultAtlas, TheFirstOfTwoPermitsGoesBackTheSecondCounts) {
  FaultAtlas atlas(1, Mode::kNodes);
  atlas.AddGroup(1, {1, 2, 3});
  FaultAtlas::Permit first = atlas.MayRot(1);
  FaultAtlas::Permit second = atlas.MayWipe(1);
  ASSERT_TRUE(second);
  first = FaultAtlas::Permit();
  EXPECT_FALSE(atlas.MayRot(2)) << "the second is still out";
  second.Commit();
  EXPECT_EQ(atlas.damaged(), std::set<NodeId>{1});
  EXPECT_FALSE(atlas.MayRot(2));
  atlas.Repaired(1);
  EXPECT_TRUE(atlas.MayRot(2));
}

TEST(FaultAtlas, PayloadsRotOnAMinorityOfEachRange) {
  FaultAtlas atlas(7, Mode::kPayloads);
  atlas.AddGroup(1, {1, 2, 3});
  atlas.AddGroup(2, {1, 2, 3, 4, 5});
  std::map<NodeId, int> ranges;
  for (uint64_t range = 0; range < 300; ++range) {
    std::set<NodeId> first;
    for (uint64_t i = 0; i < FaultAtlas::kRotRange; ++i) {
      const uint64_t instance = range * FaultAtlas::kRotRange + i;
      std::set<NodeId> rotten;
      for (const NodeId node : {1, 2, 3, 4, 5}) {
        if (atlas.MayRotPayload(node, 2, instance)) rotten.insert(node);
      }
      ASSERT_EQ(rotten.size(), 2u);
      if (i == 0) first = rotten;
      ASSERT_EQ(rotten, first);
      size_t in_three = 0;
      for (const NodeId node : {1, 2, 3}) in_three += atlas.MayRotPayload(node, 1, instance);
      ASSERT_EQ(in_three, 1u);
    }
    for (const NodeId node : first) ++ranges[node];
  }
  EXPECT_FALSE(atlas.MayRotPayload(4, 1, 5)) << "no member";
  for (const NodeId node : {1, 2, 3, 4, 5}) EXPECT_NEAR(ranges[node], 120, 40);
  EXPECT_FALSE(atlas.MayRot(1)) << "payloads use up all that may be lost";
}

TEST(FaultAtlas, TheSeedDrawsTheModeAndTheRanges) {
  std::map<Mode, int> modes;
  for (uint64_t seed = 0; seed < 300; ++seed) ++modes[FaultAtlas(seed).mode()];
  EXPECT_EQ(modes.size(), 3u);
  FaultAtlas a(3, Mode::kPayloads);
  FaultAtlas b(4, Mode::kPayloads);
  a.AddGroup(1, {1, 2, 3});
  b.AddGroup(1, {1, 2, 3});
  int differ = 0;
  for (uint64_t i = 0; i < 1600; i += FaultAtlas::kRotRange) {
    differ += a.MayRotPayload(1, 1, i) != b.MayRotPayload(1, 1, i);
  }
  EXPECT_GT(differ, 10);
}

TEST(FaultAtlas, ADamagedNodeMayBeReplacedButNoOtherRemoved) {
  FaultAtlas atlas(1, Mode::kNodes);
  atlas.AddGroup(1, {1, 2, 3});
  Damage(&atlas, 1);
  EXPECT_FALSE(atlas.BeginChange(1, {1, 2})) << "3 may have the only good copy besides 1's";
  EXPECT_TRUE(atlas.BeginChange(1, {2, 3}));
  EXPECT_TRUE(atlas.changing(1));
  EXPECT_FALSE(atlas.MayRot(2));
  EXPECT_FALSE(atlas.BeginChange(1, {3})) << "one change at a time";
  atlas.ConfigChosen(1, {2, 3}, {2});
  EXPECT_FALSE(atlas.changing(1));
  EXPECT_TRUE(atlas.BeginChange(1, {2, 3, 4}));
  atlas.ConfigChosen(1, {2, 3, 4}, {2});
  EXPECT_FALSE(atlas.MayRot(2)) << "3 and 4 are behind";
  EXPECT_FALSE(atlas.MayRot(3));
  atlas.CaughtUp(1, 4);
  EXPECT_FALSE(atlas.MayRot(2));
  Damage(&atlas, 3);  // which is behind anyway
  atlas.Repaired(3);
  atlas.CaughtUp(1, 3);
  Damage(&atlas, 2);
}

TEST(FaultAtlas, AConfigurationThatCannotSpareItsDamagedMembersIsNotBegun) {
  FaultAtlas atlas(1, Mode::kNodes);
  atlas.AddGroup(1, {1, 2, 3});
  atlas.AddGroup(2, {4, 5, 6});
  Damage(&atlas, 1);
  Damage(&atlas, 4);
  EXPECT_FALSE(atlas.BeginChange(1, {1, 2, 3, 4})) << "2 and 3 are no majority of it";
  EXPECT_TRUE(atlas.BeginChange(1, {1, 2, 3, 5}));
}

TEST(FaultAtlas, AChangeThatFailedLeavesTheOldConfiguration) {
  FaultAtlas atlas(1, Mode::kNodes);
  atlas.AddGroup(1, {1, 2, 3});
  ASSERT_TRUE(atlas.BeginChange(1, {1, 2}));
  EXPECT_FALSE(atlas.MayRot(1)) << "in the new one nothing may be lost";
  EXPECT_FALSE(atlas.MayRot(2));
  atlas.ConfigChosen(1, {1, 2, 3}, {1, 2, 3});
  Damage(&atlas, 1);
}

// Entries, and which nodes hold them. The atlas decides what may be damaged; whatever it allows,
// every entry that was chosen must be left with a good copy on a member.
class Model {
 public:
  Model(uint64_t seed, Mode mode, size_t nodes, size_t voters) : rng_(seed), atlas_(seed, mode) {
    for (NodeId n = 1; n <= nodes; ++n) nodes_.push_back(n);
    for (uint32_t g = 1; g <= 3; ++g) {
      std::vector<NodeId> shuffled = nodes_;
      for (size_t i = shuffled.size(); i > 1; --i) {
        std::swap(shuffled[i - 1], shuffled[rng_.Below(i)]);
      }
      groups_[g].config = Members(shuffled.begin(), shuffled.begin() + static_cast<long>(voters));
      atlas_.AddGroup(g, groups_[g].config);
    }
  }

  // "" or what was lost. With `careless`, the atlas is not asked.
  std::string Run(int steps, bool careless = false) {
    for (int i = 0; i < steps; ++i) {
      Step(careless);
      for (const auto& [id, group] : groups_) {
        for (size_t e = 0; e < group.entries.size(); ++e) {
          if (Good(group, group.entries[e]) > 0) continue;
          return "step " + std::to_string(i) + ": group " + std::to_string(id) + " lost entry " +
                 std::to_string(e) + "\n" + atlas_.Describe();
        }
      }
    }
    return "";
  }

  uint64_t granted() const { return atlas_.granted(); }
  uint64_t changes() const { return changes_; }
  uint64_t rotted() const { return rotted_; }

 private:
  struct Group {
    Members config;
    std::vector<Members> entries;  // who holds it
    Members next;                  // a change in flight
  };

  static size_t Good(const Group& group, const Members& holders) {
    return static_cast<size_t>(std::count_if(holders.begin(), holders.end(),
                                             [&](NodeId n) { return group.config.contains(n); }));
  }
  Group& AnyGroup(uint32_t* id) {
    *id = static_cast<uint32_t>(rng_.Between(1, groups_.size()));
    return groups_[*id];
  }
  static void Fetch(Group* group, NodeId node) {
    for (Members& holders : group->entries) holders.insert(node);
  }

  void Step(bool careless) {
    uint32_t id = 0;
    Group& group = AnyGroup(&id);
    const NodeId node = nodes_[rng_.Below(nodes_.size())];
    switch (rng_.Below(8)) {
      case 0:
      case 1: return Choose(&group);
      case 2: return DamageNode(node, careless);
      case 3: return Repair(node);
      case 4: return BeginChange(id, &group, node, careless);
      case 5: return EndChange(id, &group);
      case 6:
        if (group.config.contains(node) && group.next.empty()) {
          Fetch(&group, node);
          atlas_.CaughtUp(id, node);
        }
        return;
      default: return RotPayload(id, &group, node);
    }
  }

  // A random majority has it, and no one else.
  void Choose(Group* group) {
    if (!group->next.empty()) return;  // a change is a barrier
    std::vector<NodeId> voters(group->config.begin(), group->config.end());
    for (size_t i = voters.size(); i > 1; --i) std::swap(voters[i - 1], voters[rng_.Below(i)]);
    const size_t quorum = voters.size() / 2 + 1;
    group->entries.emplace_back(voters.begin(), voters.begin() + static_cast<long>(quorum));
  }

  void DamageNode(NodeId node, bool careless) {
    FaultAtlas::Permit permit = atlas_.MayWipe(node);
    if (!permit && !careless) return;
    for (auto& [id, group] : groups_) {
      for (Members& holders : group.entries) holders.erase(node);
    }
    if (permit) permit.Commit();
  }

  void Repair(NodeId node) {
    if (!atlas_.damaged(node)) return;
    for (auto& [id, group] : groups_) {
      if (group.config.contains(node)) Fetch(&group, node);
    }
    atlas_.Repaired(node);
  }

  void BeginChange(uint32_t id, Group* group, NodeId node, bool careless) {
    if (!group->next.empty()) return;
    Members next = group->config;
    if (next.erase(node) == 0) next.insert(node);
    if (next.empty() || next.size() > 6) return;
    if (!atlas_.BeginChange(id, next) && !careless) return;
    if (atlas_.changing(id)) group->next = next;
  }

  void EndChange(uint32_t id, Group* group) {
    if (group->next.empty()) return;
    if (rng_.Percent(70)) group->config = group->next;
    group->next.clear();
    ++changes_;
    Members complete;
    for (const NodeId n : group->config) {
      const bool all = std::all_of(group->entries.begin(), group->entries.end(),
                                   [&](const Members& holders) { return holders.contains(n); });
      if (all) complete.insert(n);
    }
    atlas_.ConfigChosen(id, group->config, complete);
  }

  void RotPayload(uint32_t id, Group* group, NodeId node) {
    if (group->entries.empty()) return;
    const uint64_t entry = rng_.Below(group->entries.size());
    if (!atlas_.MayRotPayload(node, id, entry)) return;
    rotted_ += group->entries[entry].erase(node);
  }

  Rng rng_;
  FaultAtlas atlas_;
  std::vector<NodeId> nodes_;
  std::map<uint32_t, Group> groups_;
  uint64_t changes_ = 0;
  uint64_t rotted_ = 0;
};

TEST(FaultAtlas, WhateverItAllowsAGoodCopyOfEverythingStays) {
  uint64_t granted = 0;
  uint64_t changes = 0;
  uint64_t rotted = 0;
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    for (const Mode mode : {Mode::kNodes, Mode::kMixed, Mode::kPayloads}) {
      Model model(seed, mode, 3 + seed % 5, seed % 2 == 0 || seed % 5 < 2 ? 3 : 5);
      ASSERT_EQ(model.Run(400), "") << "seed " << seed;
      granted += model.granted();
      changes += model.changes();
      rotted += model.rotted();
    }
  }
  EXPECT_GT(granted, 1000u);
  EXPECT_GT(changes, 1000u);
  EXPECT_GT(rotted, 1000u);
}

TEST(FaultAtlas, TheModelFindsLossesWhereNobodyAsksTheAtlas) {
  int lost = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    lost += Model(seed, Mode::kNodes, 5, 3).Run(400, /*careless=*/true).empty() ? 0 : 1;
  }
  EXPECT_EQ(lost, 20);
}

}  // namespace
}  // namespace hydra::sim
