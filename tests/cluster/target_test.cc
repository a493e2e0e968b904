// SPDX-License-Identifier: Apache-2.0
//
// Who may use a target: set by hydractl, felt by initiators at every portal.
#include <signal.h>

#include <boost/asio/io_context.hpp>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "client/node_link.h"
#include "tests/cluster/fixture.h"
#include "tests/cluster/initiator.h"
#include "tests/support/gtest_status.h"

namespace hydra::cluster_test {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using Json = nlohmann::json;

constexpr int kAuthenticationFailed = 0x0201;
constexpr int kForbidden = 0x0202;
constexpr int kNotFound = 0x0203;
constexpr char kAlice[] = "iqn.2026-11.com.example:alice";
constexpr char kBob[] = "iqn.2026-11.com.example:bob";
constexpr char kDisk[] = "iqn.2026-11.io.hydra:disk";
constexpr char kOther[] = "iqn.2026-11.io.hydra:other";
constexpr char kSecret[] = "wouldnt-you-like-to-know";
constexpr char kMutual[] = "the-target-knows-this-one";
// How soon sessions end that are not allowed any more (docs/iscsi.md says 2 s), on a busy machine.
constexpr milliseconds kEndsWithin(8'000);

class SoakClusterTargets : public testing::Test {
 protected:
  explicit SoakClusterTargets(TestClusterOptions options = WithPortals())
      : cluster_(std::move(options)) {
    cluster_.MakeVolume("disk", 16 * kMiB);
    cluster_.MakeVolume("other", 16 * kMiB);
    // Rules need a cluster that knows that all its nodes know them.
    EXPECT_TRUE(Eventually([&] { return Run({"target", "acl", "disk", "--open"}).code == 0; }));
  }

  Outcome Run(std::vector<std::string> arguments, const std::string& input = "") {
    Outcome outcome = cluster_.Ctl(std::move(arguments), input);
    said_ += outcome.out + outcome.err;
    return outcome;
  }
  std::string Ctl(std::vector<std::string> arguments, const std::string& input = "") {
    const Outcome outcome = Run(std::move(arguments), input);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.out;
  }
  void SetChap(const std::string& secret) {
    Ctl({"target", "chap", "disk", "--user", "alice", "--secret-file", "-"}, secret + "\n");
  }
  int Login(uint32_t node, const std::string& name, const ChapUser& chap = {}) {
    return Initiator::TryLogin(name, cluster_.iscsi_port(node), "disk", chap);
  }
  std::vector<std::string> Discover(uint32_t node, const std::string& name) {
    const auto found = Initiator::Discover(name, cluster_.iscsi_port(node));
    EXPECT_TRUE(found.has_value());
    return found.value_or(std::vector<std::string>());
  }
  // What a node tells any client, as bytes.
  std::string RawCatalogue(uint32_t node) {
    boost::asio::io_context io;
    NodeLink::Options options;
    options.name = "test";
    options.allocate = [](size_t bytes) { return Result<Buffer>(Buffer::Allocate(bytes)); };
    const auto link = std::make_shared<NodeLink>(&io, cluster_.address(node), options);
    rpc::Request request;
    request.mutable_get_catalogue();
    std::string bytes;
    link->Call(request.SerializeAsString(), {}, 0, milliseconds(5'000),
               [&](const NodeLink::Answer& answer) {
                 EXPECT_OK(answer.status);
                 bytes = answer.reply.SerializeAsString();
                 io.stop();
               });
    io.run_for(milliseconds(10'000));
    EXPECT_THAT(bytes, HasSubstr("disk"));
    return bytes;
  }

  TestCluster cluster_;
  std::string said_;  // all that hydractl printed
};

TEST_F(SoakClusterTargets, OnlyWhoIsAllowedLogsInAndSeesTheTarget) {
  for (uint32_t node = 1; node <= 3; ++node) {
    EXPECT_EQ(Login(node, kBob), 0) << "open in the beginning";
  }
  EXPECT_THAT(Ctl({"target", "acl", "disk", "--allow", kAlice}), HasSubstr(kAlice));
  for (uint32_t node = 1; node <= 3; ++node) {
    EXPECT_EQ(Login(node, kAlice), 0) << node;
    EXPECT_EQ(Login(node, kBob), kForbidden) << node;
    EXPECT_THAT(Discover(node, kAlice), ElementsAre(kDisk, kOther));
    EXPECT_THAT(Discover(node, kBob), ElementsAre(kOther));
  }
  Ctl({"target", "acl", kDisk, "--allow", "iqn.2026-11.com.example:*"});
  EXPECT_EQ(Login(2, kBob), 0);
  const Outcome covered = Run({"target", "acl", "disk", "--deny", kBob});
  EXPECT_EQ(covered.code, 1);
  EXPECT_THAT(covered.err, HasSubstr("example:*"));
  Ctl({"target", "acl", "disk", "--remove", "iqn.2026-11.com.example:*"});
  EXPECT_EQ(Login(2, kBob), kForbidden);
  EXPECT_EQ(Login(2, kAlice), 0);
  EXPECT_THAT(Ctl({"target", "acl", "disk", "--close"}), HasSubstr("no initiator"));
  EXPECT_EQ(Login(3, kAlice), kForbidden);
  const Json shown = Json::parse(Ctl({"target", "acl", "disk", "--json"}));
  EXPECT_EQ(shown["restricted"], true);
  EXPECT_EQ(shown["allowed"], Json::array());
  EXPECT_THAT(Ctl({"target", "acl", "disk", "--open"}), HasSubstr("every initiator"));
  EXPECT_EQ(Login(1, kBob), 0);
  // Wrong usage.
  for (const auto& [arguments, code] :
       std::vector<std::pair<std::vector<std::string>, int>>{{{"--allow", "host"}, 2},
                                                             {{"--open", "--close"}, 2},
                                                             {{"--open", "--allow", kAlice}, 2},
                                                             {{"--remove", kAlice}, 1}}) {
    std::vector<std::string> words = {"target", "acl", "disk"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    EXPECT_EQ(Run(words).code, code) << fmt::format("{}", fmt::join(arguments, " "));
  }
  EXPECT_EQ(Run({"target", "acl", "nothing"}).code, 3);
}

TEST_F(SoakClusterTargets, DenyingEndsLiveSessionsAtEveryPortal) {
  std::vector<std::unique_ptr<Initiator>> bobs;
  for (uint32_t node = 1; node <= 3; ++node) {
    bobs.push_back(std::make_unique<Initiator>(kBob, node, cluster_.iscsi_port(node), "disk"));
    ASSERT_EQ(bobs.back()->Write(kLba, 1), 0);
  }
  Initiator alice(kAlice, 1, cluster_.iscsi_port(1), "disk");
  Ctl({"target", "acl", "disk", "--allow", kAlice});
  for (auto& bob : bobs) EXPECT_TRUE(bob->WaitUntilClosed(kEndsWithin));
  EXPECT_EQ(alice.Write(kLba, 2), 0) << "hers goes on";
  EXPECT_EQ(alice.Read(kLba), 2);
  EXPECT_THAT(cluster_.LogText(2), HasSubstr("not allowed any more"));
  EXPECT_TRUE(Eventually([&] {
    return Ctl({"target", "sessions", "disk"}).find(kBob) == std::string::npos;
  }));
}

// The portal that holds the write hears of nothing until long after the command has succeeded.
TEST_F(SoakClusterTargets, AWriteThatWasUnderWayDoesNotLandAfterItsInitiatorWasDenied) {
  Initiator bob(kBob, 1, cluster_.iscsi_port(1), "disk");
  Initiator alice(kAlice, 1, cluster_.iscsi_port(2), "disk");
  ASSERT_EQ(bob.Write(kLba, 1), 0);
  ASSERT_EQ(alice.Read(kLba), 1);
  cluster_.process(1).Signal(SIGSTOP);
  bob.Send(kLba, 2);
  Ctl({"target", "acl", "disk", "--allow", kAlice});
  ASSERT_EQ(alice.Read(kLba), 1);
  cluster_.process(1).Signal(SIGCONT);
  EXPECT_TRUE(bob.WaitUntilClosed(milliseconds(20'000)));
  for (int look = 0; look < 10; ++look) {
    ASSERT_EQ(alice.Read(kLba), 1) << look;
    std::this_thread::sleep_for(milliseconds(100));
  }
  EXPECT_EQ(Login(1, kBob), kForbidden);
}

// The same from below: a gateway that still goes by the rules of before gets nothing done.
TEST_F(SoakClusterTargets, WhatAGatewayCheckedAgainstOlderRulesIsNeitherReadNorWritten) {
  Volume volume = cluster_.OpenVolume("disk");
  const Result<VolumeAccess> before = volume.GetAccess();
  ASSERT_OK(before.status());
  Volume checked = volume.Under({{}, before->epoch});
  std::vector<uint8_t> bytes(4096);
  for (const char* option : {"--close", "--open"}) {
    ASSERT_OK(checked.Write(0, Pattern(0, 1, 4096)));
    Ctl({"target", "acl", "disk", option});
    for (uint64_t extent = 0; extent < 4; ++extent) {
      EXPECT_CODE(checked.Write(extent * kMiB, Pattern(0, 2, 4096)), Code::kFenced);
      EXPECT_CODE(checked.Read(extent * kMiB, bytes), Code::kFenced);
    }
    const Result<VolumeAccess> now = volume.GetAccess();
    ASSERT_OK(now.status());
    EXPECT_EQ(now->target.restricted, std::string(option) == "--close");
    EXPECT_GT(now->epoch, before->epoch);
    checked = volume.Under({{}, now->epoch});
  }
  EXPECT_OK(volume.Read(0, bytes));
  EXPECT_EQ(bytes, Pattern(0, 1, 4096));
}

TEST_F(SoakClusterTargets, ATargetsOwnSecretIsAskedForAtEveryPortalAndOutlivesAll) {
  SetChap(kSecret);
  const auto check = [&] {
    for (uint32_t node = 1; node <= 3; ++node) {
      EXPECT_EQ(Login(node, kAlice, {"alice", kSecret, "", ""}), 0) << node;
      EXPECT_EQ(Login(node, kAlice, {"alice", "another-secret-of-hers", "", ""}),
                kAuthenticationFailed);
      EXPECT_EQ(Login(node, kAlice, {"bob", kSecret, "", ""}), kAuthenticationFailed);
      EXPECT_EQ(Login(node, kAlice), kAuthenticationFailed);
      EXPECT_EQ(Initiator::TryLogin(kAlice, cluster_.iscsi_port(node), "other"), 0);
    }
    EXPECT_EQ(Login(1, kBob, {"alice", kSecret, "", ""}), kForbidden) << "both have to be right";
  };
  Ctl({"target", "acl", "disk", "--allow", kAlice});
  check();
  for (uint32_t node = 1; node <= 3; ++node) cluster_.Kill(node);
  cluster_.StartAll();
  ASSERT_TRUE(cluster_.WaitHealthy());
  ASSERT_TRUE(Eventually([&] { return Login(1, kAlice, {"alice", kSecret, "", ""}) == 0; }));
  ASSERT_TRUE(Eventually([&] { return Login(2, kAlice, {"alice", kSecret, "", ""}) == 0; }));
  ASSERT_TRUE(Eventually([&] { return Login(3, kAlice, {"alice", kSecret, "", ""}) == 0; }));
  check();
  // A new secret counts for the next login; who is there stays.
  SetChap("a-new-secret-for-alice");
  EXPECT_EQ(Login(2, kAlice, {"alice", kSecret, "", ""}), kAuthenticationFailed);
  EXPECT_EQ(Login(2, kAlice, {"alice", "a-new-secret-for-alice", "", ""}), 0);
  Ctl({"target", "chap", "disk", "--off"});
  EXPECT_EQ(Login(2, kAlice), 0);
}

// A portal that does not reach the cluster lets in whom it knows; what it hears then decides.
TEST_F(SoakClusterTargets, WhoLoggedInWhileTheClusterWasOutOfReachIsLookedAtAgain) {
  { Initiator known(kAlice, 1, cluster_.iscsi_port(3), "disk"); }
  const auto cut_off = [&] {
    cluster_.Kill(1);
    cluster_.Kill(2);
    // A master answers alone while its lease lasts.
    EXPECT_TRUE(Eventually([&] {
      const Json status = Json::parse(cluster_.Get(3, "/api/status").second, nullptr, false);
      return status.is_object() && !status["groups"][0]["ready"].get<bool>();
    }));
    auto initiator = std::make_unique<Initiator>(kAlice, 1, cluster_.iscsi_port(3), "disk", false);
    cluster_.process(3).Signal(SIGSTOP);
    cluster_.Start(1);
    cluster_.Start(2);
    return initiator;
  };
  const char* const why = "logged in by a CHAP account that did not count any more";
  // Nothing had changed: it is a session like others, and stays when something does.
  auto stays = cut_off();
  cluster_.process(3).Signal(SIGCONT);
  ASSERT_TRUE(cluster_.WaitHealthy());
  ASSERT_TRUE(Eventually([&] { return stays->Write(0, 1) == 0; }));
  ASSERT_TRUE(Eventually([&] { return stays->NotReady() == 0; }));
  SetChap(kSecret);
  EXPECT_FALSE(stays->WaitUntilClosed(milliseconds(3'000)));
  EXPECT_THAT(cluster_.LogText(3), Not(HasSubstr(why)));
  stays.reset();
  Ctl({"target", "chap", "disk", "--off"});
  // The first that the portal hears is that another account counts.
  auto ends = cut_off();
  ASSERT_TRUE(Eventually([&] { return cluster_.Healthy(1) && cluster_.Healthy(2); }));
  ASSERT_TRUE(Eventually(
      [&] {
        return Run({"target", "chap", "disk", "--user", "alice", "--secret-file", "-"},
                   std::string(kSecret) + "\n")
                   .code == 0;
      },
      kPatience));
  cluster_.process(3).Signal(SIGCONT);
  EXPECT_TRUE(ends->WaitUntilClosed(milliseconds(20'000)));
  // It says so when the last of the session is gone.
  EXPECT_TRUE(
      Eventually([&] { return cluster_.LogText(3).find(why) != std::string::npos; }, kPatience));
}

TEST_F(SoakClusterTargets, MutualChapProvesTheTargetToo) {
  const std::string file = cluster_.path() + "/mutual";
  WriteFile(file, std::string(kMutual) + "\n");
  Ctl({"target", "chap", "disk", "--user", "alice", "--secret-file", "-", "--mutual-user", "disk",
       "--mutual-secret-file", file},
      kSecret);
  EXPECT_EQ(Login(3, kAlice, {"alice", kSecret, "disk", kMutual}), 0);
  EXPECT_NE(Login(3, kAlice, {"alice", kSecret, "disk", "it-does-not-know-this"}), 0);
  EXPECT_THAT(Ctl({"target", "chap", "disk"}), HasSubstr("'alice', the target 'disk'"));
  // Wrong usage, in words.
  const auto refused = [&](std::vector<std::string> words, const std::string& input,
                           const std::string& says) {
    words.insert(words.begin(), {"target", "chap", "disk"});
    const Outcome outcome = Run(words, input);
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(says));
  };
  refused({"--user", "alice", "--secret-file", "-"}, "brief", "12 to 255 bytes");
  refused({"--user", "alice"}, "", "--secret-file");
  refused({"--user", "alice", "--secret-file", "-", "--mutual-user", "disk", "--mutual-secret-file",
           file},
          kMutual, "must differ");
  refused({"--user", "alice", "--secret-file", "-"}, "two\nlines of a secret", "several lines");
  EXPECT_EQ(Run({"target", "chap", "disk", "--user", "a", "--secret-file", "/nowhere"}).code, 3);
}

class SoakClusterTargetsLoud : public SoakClusterTargets {
 protected:
  SoakClusterTargetsLoud() : SoakClusterTargets(WithPortals({"--log-level", "debug"})) {}
};

TEST_F(SoakClusterTargetsLoud, SecretsAreToldToNobody) {
  SetChap(kSecret);
  EXPECT_EQ(Login(1, kAlice, {"alice", kSecret, "", ""}), 0);
  for (const bool json : {false, true}) {
    for (std::vector<std::string> words :
         std::vector<std::vector<std::string>>{{"target", "chap", "disk"},
                                               {"target", "acl", "disk"},
                                               {"target", "show", "disk"},
                                               {"target", "list"},
                                               {"target", "sessions"},
                                               {"volume", "show", "disk"},
                                               {"volume", "list"},
                                               {"status"},
                                               {"node", "list"}}) {
      if (json) words.push_back("--json");
      Ctl(words);
    }
  }
  EXPECT_THAT(said_, HasSubstr("alice"));
  EXPECT_THAT(said_, Not(HasSubstr(kSecret)));
  for (uint32_t node = 1; node <= 3; ++node) {
    EXPECT_THAT(RawCatalogue(node), HasSubstr("alice"));
    EXPECT_THAT(RawCatalogue(node), Not(HasSubstr(kSecret))) << node;
    EXPECT_THAT(cluster_.LogText(node), Not(HasSubstr(kSecret))) << node;
    for (const char* page : {"/metrics", "/api/status"}) {
      const auto [status, body] = cluster_.Get(node, page);
      EXPECT_EQ(status, 200);
      EXPECT_THAT(body, Not(HasSubstr(kSecret))) << page;
    }
  }
}

// The account that nodes are started with is that of discovery, and of targets without their own.
class SoakClusterTargetsChapFile : public SoakClusterTargets {
 protected:
  SoakClusterTargetsChapFile()
      : SoakClusterTargets(WithPortals({"--iscsi-chap-file", MakeFile()})) {}
  static std::string MakeFile() {
    static const TemporaryDirectory* const kDirectory = new TemporaryDirectory;
    const std::string path = kDirectory->path() + "/chap";
    WriteFile(path, "everyone the-secret-of-everyone\n");
    return path;
  }
};

TEST_F(SoakClusterTargetsChapFile, TheFilesAccountIsForDiscoveryAndForTargetsWithoutOne) {
  const ChapUser everyone{"everyone", "the-secret-of-everyone", "", ""};
  const ChapUser alice{"alice", kSecret, "", ""};
  EXPECT_EQ(Login(1, kAlice, everyone), 0);
  SetChap(kSecret);
  EXPECT_EQ(Login(1, kAlice, everyone), kAuthenticationFailed);
  EXPECT_EQ(Login(1, kAlice, alice), 0);
  EXPECT_EQ(Initiator::TryLogin(kAlice, cluster_.iscsi_port(2), "other", everyone), 0);
  EXPECT_EQ(Initiator::TryLogin(kAlice, cluster_.iscsi_port(2), "other", alice),
            kAuthenticationFailed);
  EXPECT_FALSE(Initiator::Discover(kAlice, cluster_.iscsi_port(3)).has_value());
  EXPECT_FALSE(Initiator::Discover(kAlice, cluster_.iscsi_port(3), alice).has_value());
  const auto found = Initiator::Discover(kAlice, cluster_.iscsi_port(3), everyone);
  ASSERT_TRUE(found.has_value());
  EXPECT_THAT(*found, ElementsAre(kDisk, kOther));
  Ctl({"target", "chap", "disk", "--off"});
  EXPECT_EQ(Login(1, kAlice, everyone), 0);
  EXPECT_EQ(Login(1, kAlice, alice), kAuthenticationFailed);
}

TEST_F(SoakClusterTargets, AVolumeNeedNotBeATarget) {
  const std::string made = Ctl({"volume", "create", "shown", "--size", "16M", "--target"});
  EXPECT_THAT(made, HasSubstr("iqn.2026-11.io.hydra:shown"));
  EXPECT_THAT(made, HasSubstr(fmt::format("127.0.0.1:{}", cluster_.iscsi_port(3))));
  const Json json =
      Json::parse(Ctl({"volume", "create", "json", "--size", "16M", "--target", "--json"}));
  EXPECT_EQ(json["target"]["target"], "iqn.2026-11.io.hydra:json");
  Ctl({"volume", "create", "hidden", "--size", "16M", "--no-target"});
  EXPECT_EQ(Initiator::TryLogin(kAlice, cluster_.iscsi_port(1), "hidden"), kNotFound);
  EXPECT_THAT(Discover(2, kAlice), Not(Contains("iqn.2026-11.io.hydra:hidden")));
  Ctl({"target", "enable", "hidden"});
  // A portal that cannot learn the news in time shows what it knows.
  EXPECT_TRUE(Eventually([&] {
    return testing::Value(Discover(2, kAlice), Contains("iqn.2026-11.io.hydra:hidden"));
  }));
  Initiator alice(kAlice, 1, cluster_.iscsi_port(1), "hidden");
  ASSERT_EQ(alice.Write(kLba, 1), 0);
  EXPECT_THAT(Ctl({"target", "disable", "hidden"}), HasSubstr("not offered"));
  EXPECT_TRUE(alice.WaitUntilClosed(kEndsWithin));
  EXPECT_EQ(Initiator::TryLogin(kAlice, cluster_.iscsi_port(1), "hidden"), kNotFound);
  EXPECT_EQ(
      Ctl({"io", "read", "hidden", "--offset", std::to_string(kLba * 512), "--length", "512"}),
      std::string(512, '\1'))
      << "it is a volume like any other";
}

TEST_F(SoakClusterTargets, SessionsAreSeenWhileTheyLast) {
  {
    Initiator alice(kAlice, 1, cluster_.iscsi_port(2), "disk");
    for (int i = 0; i < 3; ++i) ASSERT_EQ(alice.Write(kLba, 1), 0);
    ASSERT_EQ(alice.Read(kLba), 1);
    Json session;
    EXPECT_TRUE(Eventually([&] {
      const Json status = Json::parse(Ctl({"status", "--json"}));
      for (const Json& node : status["nodes"]) {
        if (node["node"] != 2 || node["sessions"].empty()) continue;
        session = node["sessions"][0];
        return session["read_bytes"].get<uint64_t>() >= 512;
      }
      return false;
    }));
    EXPECT_EQ(session["initiator"], kAlice);
    EXPECT_EQ(session["target"], kDisk);
    EXPECT_EQ(session["written_bytes"], 3 * 512);
    EXPECT_GE(session["commands"].get<int>(), 4);
    EXPECT_EQ(session["tasks"], 0);
    EXPECT_THAT(session["address"].get<std::string>(), HasSubstr("127.0.0.1:"));
    EXPECT_THAT(Ctl({"status"}), HasSubstr(kAlice));
    EXPECT_THAT(Ctl({"target", "sessions", "disk"}), HasSubstr(kAlice));
    EXPECT_THAT(Ctl({"target", "sessions", "other"}), HasSubstr("no sessions"));
    const Json local = Json::parse(cluster_.Get(2, "/api/status").second);
    EXPECT_EQ(local["iscsi_sessions"][0]["initiator"], kAlice);
    const std::string metrics = cluster_.Get(2, "/metrics").second;
    const std::string labels = fmt::format("initiator=\"{}\",target=\"{}\"", kAlice, kDisk);
    for (const char* name : {"commands", "read_bytes", "written_bytes", "aborted", "damaged",
                             "latency_seconds_bucket"}) {
      EXPECT_THAT(metrics, testing::ContainsRegex(fmt::format(
                               "hydra_iscsi_session_{}\\{{address=\"[^\"]*\",{}", name, labels)));
    }
  }
  EXPECT_TRUE(Eventually([&] {
    return cluster_.Get(2, "/metrics").second.find("hydra_iscsi_session_") == std::string::npos;
  })) << "they end with the session";
  EXPECT_TRUE(Eventually([&] {
    return Ctl({"target", "sessions"}).find("no sessions") != std::string::npos;
  }));
}

}  // namespace
}  // namespace hydra::cluster_test
