// SPDX-License-Identifier: Apache-2.0
//
// Nodes that are lost, replaced, added and removed while clients write.
#include <filesystem>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/cluster/fixture.h"
#include "tests/cluster/verified_load.h"
#include "tests/support/gtest_status.h"

namespace hydra::cluster_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Json = nlohmann::json;

// A cluster whose members change: `nodes` of the options are formed, more may be added.
class ChangingCluster {
 public:
  explicit ChangingCluster(uint32_t nodes, uint32_t spare = 0)
      : nodes_(nodes), cluster_({.nodes = nodes + spare, .extra = {}}, false) {
    for (uint32_t node = 1; node <= nodes_; ++node) Start(node);
    EXPECT_TRUE(cluster_.WaitHealthy());
  }

  TestCluster& operator*() { return cluster_; }
  TestCluster* operator->() { return &cluster_; }

  // As Start of the cluster, but only those who form it know of each other at first.
  void Start(uint32_t node, bool join = false, const std::string& dir = "") {
    std::vector<std::string> command;
    const std::vector<std::string> all = cluster_.Command(node);
    for (size_t i = 0; i < all.size(); ++i) {
      if (all[i] == "--peer" && node <= nodes_ && std::stoul(all[i + 1]) > nodes_) {
        ++i;
      } else if (all[i] == "--dir" && !dir.empty()) {
        command.insert(command.end(), {"--dir", dir});
        ++i;
      } else {
        command.push_back(all[i]);
      }
    }
    if (join) {
      std::erase(command, "--bootstrap");
      command.push_back("--join");
    }
    cluster_.process(node) = Process(command, cluster_.log(node));
  }

  void Wipe(uint32_t node) {
    cluster_.Kill(node);
    std::filesystem::remove_all(cluster_.dir(node));
  }
  void MoveAway(uint32_t node) {
    cluster_.Kill(node);
    std::filesystem::rename(cluster_.dir(node), cluster_.dir(node) + ".old");
  }

  // hydractl, which has to succeed.
  std::string Ctl(std::vector<std::string> arguments) {
    const Outcome outcome = cluster_.Ctl(arguments);
    EXPECT_EQ(outcome.code, 0) << fmt::format("{}", fmt::join(arguments, " ")) << "\n"
                               << outcome.err << outcome.out;
    return outcome.out;
  }
  // Until every node is up and no change is under way.
  bool Settled(const std::string& timeout = "60s") {
    const Outcome outcome = cluster_.Ctl({"status", "--wait", "--timeout", timeout});
    EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err << cluster_.Ctl({"group", "list"}).out;
    return outcome.code == 0;
  }
  Json Groups() { return Json::parse(Ctl({"group", "list", "--json"})); }
  std::string Membership(uint32_t node) {
    for (const Json& row : Json::parse(Ctl({"node", "list", "--json"}))) {
      if (row["node"] == node) return row["membership"];
    }
    return "none";
  }
  // How many replicas of groups other than 0 a node has.
  size_t ReplicasOn(uint32_t node) {
    size_t count = 0;
    for (const Json& group : Groups()) {
      for (const Json& replica : group["replicas"]) {
        count += group["group"] != 0 && replica["node"] == node ? 1 : 0;
      }
    }
    return count;
  }

 private:
  const uint32_t nodes_;
  TestCluster cluster_;
};

// --- Replacing ----------------------------------------------------------------------------------

TEST(SoakClusterMembership, AReplacedNodeHoldsEverythingWhenAnotherOneDies) {
  ChangingCluster cluster(3);
  cluster->MakeVolume("data", 32 * kMiB, 6);
  VerifiedLoad load(*cluster, "data", 3, 512);
  ASSERT_TRUE(load.WaitFor(300, kPatience));
  cluster.Wipe(2);
  ASSERT_TRUE(load.WaitFor(100, kPatience)) << "two of three go on";
  // The new one waits to be let in, and says how.
  cluster.Start(2, true);
  ASSERT_TRUE(Eventually(
      [&] { return cluster->LogText(2).find("hydractl node replace 2") != std::string::npos; }));
  EXPECT_FALSE(cluster->Healthy(2));
  cluster.Ctl({"node", "replace", "2"});
  ASSERT_TRUE(cluster.Settled());
  EXPECT_EQ(cluster.Membership(2), "active");
  EXPECT_EQ(cluster.ReplicasOn(2), 6u);
  for (const Json& group : cluster.Groups()) {
    for (const Json& replica : group["replicas"]) {
      EXPECT_EQ(replica["incarnation"], replica["node"] == 2 ? 2 : 1) << group.dump();
    }
  }
  ASSERT_TRUE(load.WaitFor(100, kPatience));
  // Whatever was acknowledged needs the new one from here on.
  cluster->Kill(1);
  ASSERT_TRUE(load.WaitFor(200, kPatience)) << "with node 2 instead of node 1";
  EXPECT_THAT(load.Stop(), IsEmpty());
  EXPECT_THAT(load.Verify(), IsEmpty());
}

// Whoever leads the catalogue in the end was let in by others, and has to let in the last one.
TEST(SoakClusterMembership, EveryNodeLosesItsDiskInTurn) {
  ChangingCluster cluster(3);
  cluster->MakeVolume("data", 16 * kMiB, 2);
  VerifiedLoad load(*cluster, "data", 2, 256);
  for (const uint32_t node : {2u, 3u, 1u}) {
    ASSERT_TRUE(load.WaitFor(100, kPatience));
    cluster.Wipe(node);
    cluster.Ctl({"node", "replace", std::to_string(node)});
    cluster.Start(node, true);
    ASSERT_TRUE(cluster.Settled()) << node;
    EXPECT_EQ(cluster.ReplicasOn(node), 2u);
  }
  ASSERT_TRUE(load.WaitFor(100, kPatience));
  EXPECT_THAT(load.Stop(), IsEmpty());
  EXPECT_THAT(load.Verify(), IsEmpty());
}

TEST(SoakClusterMembership, AReplacementGoesOnWhenWhoDrivesItIsKilled) {
  ChangingCluster cluster(3);
  cluster->MakeVolume("data", 64 * kMiB, 12);
  VerifiedLoad load(*cluster, "data", 3, 1024);
  ASSERT_TRUE(load.WaitFor(500, kPatience));
  cluster.Wipe(3);
  cluster.Ctl({"node", "replace", "3"});
  cluster.Start(3, true);
  // Both of those who lead groups, the catalogue's among them, in the middle of it, one after the
  // other: they come back, and the new one too.
  for (const uint32_t node : {1u, 2u, 3u, 1u}) {
    ASSERT_TRUE(load.WaitFor(20, kPatience));
    cluster->Kill(node);
    cluster.Start(node, node == 3);
    ASSERT_TRUE(cluster->WaitHealthy(kPatience)) << node;
  }
  ASSERT_TRUE(cluster.Settled());
  EXPECT_EQ(cluster.ReplicasOn(3), 12u);
  cluster->Kill(2);
  ASSERT_TRUE(load.WaitFor(100, kPatience));
  EXPECT_THAT(load.Stop(), IsEmpty());
  EXPECT_THAT(load.Verify(), IsEmpty());
}

TEST(SoakClusterMembership, TheOldDiskOfAReplacedNodeIsRefusedAndDisturbsNothing) {
  ChangingCluster cluster(3);
  cluster->MakeVolume("data", 16 * kMiB, 4);
  VerifiedLoad load(*cluster, "data", 2, 256);
  ASSERT_TRUE(load.WaitFor(100, kPatience));
  cluster.MoveAway(2);
  cluster.Start(2, true);
  cluster.Ctl({"node", "replace", "2"});
  ASSERT_TRUE(cluster.Settled());
  ASSERT_TRUE(load.WaitFor(50, kPatience));
  cluster->Kill(2);
  cluster.Start(2, false, cluster->dir(2) + ".old");
  EXPECT_TRUE(Eventually([&] {
    return cluster->LogText(2).find("former data directory") != std::string::npos;
  })) << cluster->LogText(2);
  ASSERT_TRUE(load.WaitFor(100, kPatience)) << "the other two go on";
  // What the killed one led has another master soon, and the old disk has nobody ask for votes.
  const auto candidates = [&] {
    size_t count = 0;
    for (const Json& group : cluster.Groups()) {
      for (const Json& replica : group["replicas"]) count += replica["role"] == "candidate" ? 1 : 0;
    }
    return count;
  };
  EXPECT_TRUE(Eventually([&] { return candidates() == 0; }, kPatience)) << cluster.Groups().dump(1);
  cluster->Kill(2);
  cluster.Start(2);
  ASSERT_TRUE(cluster.Settled()) << "on its new disk it is welcome";
  EXPECT_THAT(load.Stop(), IsEmpty());
  EXPECT_THAT(load.Verify(), IsEmpty());
}

TEST(SoakClusterMembership, ANodeThatIsReplacedWhileItRunsEnds) {
  ChangingCluster cluster(3);
  cluster->MakeVolume("data", 16 * kMiB, 4);
  VerifiedLoad load(*cluster, "data", 2, 256);
  ASSERT_TRUE(load.WaitFor(100, kPatience));
  cluster.Ctl({"node", "replace", "2", "--force"});
  EXPECT_TRUE(Eventually([&] { return !cluster->process(2).running(); }, kPatience));
  EXPECT_THAT(cluster->LogText(2), HasSubstr("this is its former data directory"));
  std::filesystem::remove_all(cluster->dir(2));
  cluster.Start(2, true);
  ASSERT_TRUE(cluster.Settled());
  EXPECT_THAT(load.Stop(), IsEmpty());
  EXPECT_THAT(load.Verify(), IsEmpty());
}

// Its replicas went while it was down, and come back when it may not have dropped what it has.
TEST(SoakClusterMembership, ANodeThatWasAwayTakesUpItsReplicasUnderTheirNewNames) {
  ChangingCluster cluster(3);
  cluster->MakeVolume("data", 16 * kMiB, 4);
  VerifiedLoad load(*cluster, "data", 2, 256);
  ASSERT_TRUE(load.WaitFor(100, kPatience));
  const auto replicas = [&](size_t count) {
    return Eventually(
        [&] {
          const Json groups = cluster.Groups();
          return std::all_of(groups.begin(), groups.end(), [&](const Json& group) {
            return group["volume"] != "data" || group["replicas"].size() == count;
          });
        },
        3 * kPatience);
  };
  cluster->Kill(3);
  cluster.Ctl({"volume", "set-replicas", "data", "1", "--force"});
  ASSERT_TRUE(replicas(1)) << cluster.Groups().dump(1);
  cluster.Ctl({"volume", "set-replicas", "data", "3"});
  cluster.Start(3);
  ASSERT_TRUE(cluster.Settled());
  ASSERT_TRUE(replicas(3)) << cluster.Groups().dump(1);
  EXPECT_THAT(load.Stop(), IsEmpty());
  EXPECT_THAT(load.Verify(), IsEmpty());
}

TEST(SoakClusterMembership, AReplacedNodeMayComeBackAtAnotherAddress) {
  ChangingCluster cluster(3, 1);
  cluster->MakeVolume("data", 16 * kMiB, 2);
  VerifiedLoad load(*cluster, "data", 2, 256);
  ASSERT_TRUE(load.WaitFor(50, kPatience));
  cluster.Wipe(2);
  // What would have been node 4's port.
  std::vector<std::string> command = cluster->Command(2);
  const std::string address = cluster->address(4);
  for (size_t i = 0; i + 1 < command.size(); ++i) {
    if (command[i] == "--listen") command[i + 1] = address;
    if (command[i] == "--peer" && command[i + 1].starts_with("2=")) command[i + 1] = "2=" + address;
  }
  std::erase(command, "--bootstrap");
  command.push_back("--join");
  cluster.Ctl({"node", "replace", "2", "--rpc", address});
  EXPECT_EQ(cluster.Membership(2), "lost");
  cluster->process(2) = Process(command, cluster->log(2));
  ASSERT_TRUE(cluster.Settled());
  cluster->Kill(3);
  ASSERT_TRUE(load.WaitFor(50, kPatience));
  EXPECT_THAT(load.Stop(), IsEmpty());
  EXPECT_THAT(load.Verify(), IsEmpty());
}

// --- Adding, removing, spreading ----------------------------------------------------------------

TEST(SoakClusterMembership, AFourthNodeTakesItsShareAndAnotherOneLeaves) {
  ChangingCluster cluster(3, 1);
  cluster->MakeVolume("data", 32 * kMiB, 8);
  VerifiedLoad load(*cluster, "data", 3, 512);
  ASSERT_TRUE(load.WaitFor(200, kPatience));
  const std::string told = cluster.Ctl({"node", "add", "--rpc", cluster->address(4)});
  EXPECT_THAT(told, HasSubstr("--join --node 4"));
  EXPECT_EQ(cluster.Membership(4), "joining");
  cluster.Start(4, true);
  ASSERT_TRUE(cluster.Settled());
  EXPECT_EQ(cluster.Membership(4), "active");
  for (uint32_t node = 1; node <= 4; ++node) EXPECT_NEAR(cluster.ReplicasOn(node), 6.0, 1.0);

  cluster.Ctl({"node", "remove", "1", "--wait", "--timeout", "60s"});
  EXPECT_EQ(cluster->process(1).Wait(kPatience), 0) << "it stops when it is empty";
  EXPECT_THAT(cluster->LogText(1), HasSubstr("was removed from the cluster"));
  EXPECT_EQ(cluster.Membership(1), "none");
  for (uint32_t node = 2; node <= 4; ++node) EXPECT_EQ(cluster.ReplicasOn(node), 8u) << node;
  ASSERT_TRUE(load.WaitFor(100, kPatience));
  // It comes back with its disk, and is told.
  cluster.Start(1);
  EXPECT_TRUE(Eventually([&] {
    return cluster->LogText(1).find("its number is never used again") != std::string::npos;
  })) << cluster->LogText(1);
  ASSERT_TRUE(load.WaitFor(50, kPatience));
  cluster->Kill(1);
  // Any one of the three may die.
  cluster->Kill(4);
  ASSERT_TRUE(load.WaitFor(100, kPatience));
  cluster.Start(4);
  ASSERT_TRUE(cluster.Settled());
  EXPECT_THAT(load.Stop(), IsEmpty());
  EXPECT_THAT(load.Verify(), IsEmpty());
}

TEST(SoakClusterMembership, ReplicasGrowFromThreeToFiveAndBackAndAgain) {
  ChangingCluster cluster(5);
  cluster->MakeVolume("data", 32 * kMiB, 4);
  VerifiedLoad load(*cluster, "data", 3, 512);
  ASSERT_TRUE(load.WaitFor(100, kPatience));
  for (int round = 0; round < 2; ++round) {
    cluster.Ctl({"volume", "set-replicas", "data", "5", "--wait", "--timeout", "60s"});
    for (uint32_t node = 1; node <= 5; ++node) EXPECT_EQ(cluster.ReplicasOn(node), 4u) << node;
    // With five, two may be away.
    cluster->Kill(1);
    cluster->Kill(4);
    ASSERT_TRUE(load.WaitFor(100, kPatience)) << "round " << round;
    cluster.Start(1);
    cluster.Start(4);
    ASSERT_TRUE(cluster.Settled());
    cluster.Ctl({"volume", "set-replicas", "data", "3", "--wait", "--timeout", "60s"});
    size_t replicas = 0;
    ASSERT_TRUE(Eventually([&] {
      replicas = 0;
      for (uint32_t node = 1; node <= 5; ++node) replicas += cluster.ReplicasOn(node);
      return replicas == 12;
    })) << replicas;
  }
  ASSERT_TRUE(load.WaitFor(50, kPatience));
  EXPECT_THAT(load.Stop(), IsEmpty());
  EXPECT_THAT(load.Verify(), IsEmpty());
}

// --- What stays behind --------------------------------------------------------------------------

TEST(SoakClusterMembership, APurgeReachesNodesWhoseReplicasHaveMovedAway) {
  ChangingCluster cluster(5);
  const std::string text = "what-has-to-be-gone-afterwards/";
  std::vector<uint8_t> data(256 * kKiB);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<uint8_t>(text[i % text.size()]);
  Volume volume = cluster->MakeVolume("data", 16 * kMiB, 1);
  cluster.Ctl({"volume", "set-replicas", "data", "5", "--wait", "--timeout", "60s"});
  for (uint64_t at = 0; at < 8 * kMiB; at += data.size()) ASSERT_OK(volume.Write(at, data));
  ASSERT_TRUE(cluster.Settled());
  cluster.Ctl({"volume", "set-replicas", "data", "3", "--wait", "--timeout", "60s"});
  // How often the text is in the files of a node; it runs.
  const auto found = [&](uint32_t node) {
    size_t count = 0;
    std::error_code gone;  // LevelDB removes files all the time
    std::filesystem::recursive_directory_iterator it(cluster->dir(node), gone);
    for (; it != std::filesystem::recursive_directory_iterator(); it.increment(gone)) {
      if (!it->is_regular_file(gone)) continue;
      const std::string bytes = ReadFile(it->path().string());
      for (size_t at = bytes.find(text); at != std::string::npos; at = bytes.find(text, at + 1)) {
        ++count;
      }
    }
    return count;
  };
  for (uint32_t node = 1; node <= 5; ++node) EXPECT_GT(found(node), 1000u) << "node " << node;
  ASSERT_TRUE(Eventually([&] {
    size_t without = 0;
    for (uint32_t node = 1; node <= 5; ++node) without += cluster.ReplicasOn(node) == 0 ? 1 : 0;
    return without == 2;
  })) << "two have no replica any more";
  ASSERT_OK(volume.Discard(0, 16 * kMiB));
  ASSERT_OK(volume.Purge("everything"));
  for (uint32_t node = 1; node <= 5; ++node) EXPECT_EQ(found(node), 0u) << "node " << node;
}

// --- Guard rails --------------------------------------------------------------------------------

TEST(SoakClusterMembership, WhatWouldBeUnsafeIsRefusedWithTheReason) {
  ChangingCluster cluster(3);
  cluster->MakeVolume("data", 16 * kMiB, 2);
  const auto refused = [&](std::vector<std::string> arguments, const char* why) {
    const Outcome outcome = cluster->Ctl(arguments);
    EXPECT_NE(outcome.code, 0) << arguments[1];
    EXPECT_THAT(outcome.err, HasSubstr(why)) << arguments[1];
  };
  refused({"node", "replace", "2"}, "Stop it first");
  refused({"node", "remove", "2"}, "left with 2 replica(s)");
  refused({"node", "add", "--id", "2", "--rpc", "127.0.0.1:1"}, "there is a node 2 already");
  refused({"volume", "set-replicas", "data", "5"}, "5 replicas on 3 nodes");
  refused({"node", "replace", "9"}, "there is no node 9");
  // Without a majority the catalogue itself cannot change: it says so in time.
  cluster->Kill(2);
  cluster->Kill(3);
  const Outcome outcome = cluster->Ctl({"node", "replace", "2", "--timeout", "3s"});
  EXPECT_EQ(outcome.code, 4) << outcome.err;
  EXPECT_EQ(cluster->Ctl({"rebalance", "--timeout", "1s"}).code, 4);
}

TEST(SoakClusterMembership, TheOnlyNodeThatHoldsTheCatalogueIsNotReplaced) {
  ChangingCluster cluster(2);  // one of them votes on it
  ASSERT_TRUE(cluster.Settled());
  const Outcome outcome = cluster->Ctl({"node", "replace", "1", "--force"});
  EXPECT_NE(outcome.code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("without node 1 no majority"));
  EXPECT_TRUE(cluster->process(1).running());
}

// Either may be lost, but not both: whichever is declared lost first votes no more.
TEST(SoakClusterMembership, OfTwoThatAreReplacedAtOnceOneStays) {
  ChangingCluster cluster(3);
  cluster->MakeVolume("data", 16 * kMiB, 4);           // so the nodes' data directories are known,
  cluster.Ctl({"volume", "delete", "data", "--yes"});  // and the catalogue alone is in the way
  ASSERT_TRUE(cluster.Settled());
  Outcome second;
  std::thread other([&] { second = cluster->Ctl({"node", "replace", "3", "--force"}); });
  const Outcome first = cluster->Ctl({"node", "replace", "2", "--force"});
  other.join();
  EXPECT_NE(first.code == 0, second.code == 0) << first.err << second.err;
  const uint32_t lost = first.code == 0 ? 2 : 3;
  EXPECT_TRUE(Eventually([&] { return !cluster->process(lost).running(); }, kPatience));
  EXPECT_TRUE(cluster->process(5 - lost).running());
  std::filesystem::remove_all(cluster->dir(lost));
  cluster.Start(lost, true);
  EXPECT_TRUE(cluster.Settled());
}

// --- A lost majority ----------------------------------------------------------------------------

TEST(SoakClusterMembership, OnlyAVoterGoesOnByForceAndOnlyWhenNobodyElseAnswers) {
  ChangingCluster cluster(4);  // three vote on the catalogue
  cluster->MakeVolume("data", 16 * kMiB, 4);
  const auto force = [&](uint32_t node) {
    return cluster->Ctl(
        {"recover", "--force-survivor", std::to_string(node), "--yes-i-may-lose-data"});
  };
  const auto refused = [&](uint32_t node, const char* why) {
    return Eventually([&] { return force(node).err.find(why) != std::string::npos; });
  };
  cluster->Kill(2);
  cluster->Kill(3);
  EXPECT_TRUE(refused(4, "one of those who vote on it: 1, 2, 3")) << force(4).err;
  EXPECT_TRUE(refused(1, "node 4 answers")) << force(1).err;
  EXPECT_THAT(force(1).err, HasSubstr("stop node 4 first"));
  // Nothing of that was noted for later.
  cluster.Start(2);
  cluster.Start(3);
  ASSERT_TRUE(cluster.Settled());
  for (uint32_t node = 1; node <= 4; ++node) EXPECT_EQ(cluster.Membership(node), "active");
  for (uint32_t node = 2; node <= 4; ++node) cluster->Kill(node);
  ASSERT_TRUE(Eventually([&] { return force(1).code == 0; })) << force(1).err;
  const auto lost = [&] {
    const Outcome list = cluster->Ctl({"node", "list"});
    return list.code == 0 && list.out.find("lost") != std::string::npos;
  };
  ASSERT_TRUE(Eventually(lost, kPatience)) << cluster->LogText(1);
  EXPECT_EQ(cluster.Membership(1), "active");
  for (uint32_t node = 2; node <= 4; ++node) EXPECT_EQ(cluster.Membership(node), "lost");
}

TEST(SoakClusterMembership, OneNodeGoesOnByForceWhenTheMajorityIsLost) {
  ChangingCluster cluster(3);
  cluster->MakeVolume("data", 16 * kMiB, 4);
  cluster->MakeVolume("later", 16 * kMiB, 4);
  VerifiedLoad load(*cluster, "data", 2, 256);
  ASSERT_TRUE(load.WaitFor(300, kPatience));
  EXPECT_THAT(load.Stop(), IsEmpty());
  ASSERT_TRUE(cluster.Settled()) << "so that node 1 has everything";
  const std::vector<std::string> force = {"recover", "--force-survivor", "1",
                                          "--yes-i-may-lose-data"};
  const auto refused = [&](std::vector<std::string> arguments, const char* why) {
    const Outcome outcome = cluster->Ctl(arguments);
    EXPECT_NE(outcome.code, 0);
    EXPECT_THAT(outcome.err, HasSubstr(why));
  };
  ASSERT_TRUE(Eventually([&] {  // it has been there for long enough to know
    return cluster->Ctl(force).err.find("a majority of the nodes answers") != std::string::npos;
  }));
  cluster.MoveAway(2);
  cluster.Wipe(3);
  refused({"recover", "--force-survivor", "1"}, "--yes-i-may-lose-data");
  // Whether it is made is open, and decided with everything else.
  EXPECT_EQ(cluster->Ctl({"volume", "create", "w", "--size", "1M", "--timeout", "2s"}).code, 4);
  cluster.Ctl(force);
  ASSERT_TRUE(Eventually(
      [&] {
        return cluster->Ctl({"status", "--timeout", "5s"}).code == 0;
      },
      kPatience))
      << cluster->Ctl({"group", "list"}).out;
  EXPECT_THAT(load.Verify(), IsEmpty());
  // It survives its own restart before anyone joins.
  cluster->Kill(1);
  cluster.Start(1);
  ASSERT_TRUE(cluster->WaitHealthy());
  VerifiedLoad more(*cluster, "later", 2, 256);
  ASSERT_TRUE(more.WaitFor(50, kPatience));
  EXPECT_EQ(cluster.Membership(2), "lost");
  // A lost node that comes back is too late.
  cluster.Start(2, false, cluster->dir(2) + ".old");
  EXPECT_TRUE(Eventually([&] {
    return cluster->LogText(2).find("former data directory") != std::string::npos;
  })) << cluster->LogText(2);
  cluster->Kill(2);
  cluster.Start(2, true);
  cluster.Start(3, true);
  ASSERT_TRUE(cluster.Settled());
  EXPECT_GE(cluster.ReplicasOn(2), 8u);
  cluster->Kill(1);
  ASSERT_TRUE(more.WaitFor(50, kPatience)) << "the other two have everything";
  EXPECT_THAT(more.Stop(), IsEmpty());
  EXPECT_THAT(more.Verify(), IsEmpty());
  EXPECT_THAT(load.Verify(), IsEmpty());
}

}  // namespace
}  // namespace hydra::cluster_test
