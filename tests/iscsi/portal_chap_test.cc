// SPDX-License-Identifier: Apache-2.0
//
// CHAP on a socket, for discovery and for a target: who gets in, and above all who does not. The
// machine itself is tested in login_test.cc.
#include <functional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <iscsi/iscsi.h>

#include "iscsi/chap.h"
#include "tests/iscsi/support/portal_thread.h"
#include "tests/iscsi/support/raw_initiator.h"

namespace hydra::iscsi {
namespace {

using Keys = RawInitiator::Keys;

const ChapAccount kHost = {"host", "what the host knows"};
const ChapAccount kDisk = {"disk", "what the disk knows"};

// "": discovery.
class PortalChap : public testing::TestWithParam<std::string> {
 protected:
  PortalChap() {
    portal_.Run([&] {
      portal_.directory().Add("disk", 16 << 20);
      portal_.directory().chap = {kHost, kDisk};
    });
  }

  // Up to the challenge.
  LoginAnswer Challenged(RawInitiator* initiator, const std::string& algorithms = "5") {
    Keys keys = initiator->Greeting(GetParam());
    keys["AuthMethod"] = "CHAP,None";
    const LoginAnswer method = initiator->Say(keys, 0, -1);
    EXPECT_EQ(method.keys.at("AuthMethod"), "CHAP");
    return initiator->Say({{"CHAP_A", algorithms}}, 0, -1);
  }
  static std::string Response(const LoginAnswer& challenge, const std::string& secret,
                              ChapHash hash = ChapHash::kMd5) {
    const auto identifier = ParseNumber(challenge.keys.at("CHAP_I"));
    const auto bytes = ParseBinary(challenge.keys.at("CHAP_C"), kMaxChallengeBytes);
    return HexBinary(ChapResponse(hash, static_cast<uint8_t>(*identifier), secret, *bytes));
  }
  static Keys RightAnswer(const LoginAnswer& challenge) {
    return {{"CHAP_N", kHost.name}, {"CHAP_R", Response(challenge, kHost.secret)}};
  }
  // The login is refused, nothing is given away, and the connection ends.
  void ExpectRefused(RawInitiator* initiator, const LoginAnswer& answer, const std::string& what) {
    EXPECT_TRUE(answer.answered) << what;
    EXPECT_EQ(answer.status, LoginStatus::kAuthenticationFailed) << what;
    EXPECT_FALSE(answer.moves_on()) << what;
    EXPECT_TRUE(answer.keys.empty()) << what;
    EXPECT_TRUE(initiator->WaitForEnd()) << what;
    EXPECT_EQ(portal_.Sessions(), 0u) << what;
  }
  void ExpectWorks(RawInitiator* initiator) {
    if (!GetParam().empty()) {
      EXPECT_TRUE(initiator->ReadBlocks(0, 1).has_value());
      return;
    }
    Header request(Opcode::kTextRequest);
    request.bytes[0] |= 0x40;
    request.set_task_tag(4);
    request.set_transfer_tag(kNoTag);
    const std::string text("SendTargets=All\0", 16);
    initiator->Send(request, {reinterpret_cast<const uint8_t*>(text.data()), text.size()});
    const auto answer = initiator->Receive();
    ASSERT_TRUE(answer.has_value());
    const std::string list(answer->data.begin(), answer->data.end());
    EXPECT_NE(list.find("iqn.2026-11.io.hydra:disk"), std::string::npos);
  }

  PortalThread portal_;
};

INSTANTIATE_TEST_SUITE_P(Sessions, PortalChap,
                         testing::Values(std::string(), std::string("iqn.2026-11.io.hydra:disk")),
                         [](const auto& info) {
                           return info.param.empty() ? "Discovery" : "Disk";
                         });

TEST_P(PortalChap, WhoKnowsTheSecretGetsIn) {
  RawInitiator initiator(portal_.port());
  const LoginAnswer challenge = Challenged(&initiator);
  const LoginAnswer passed = initiator.Say(RightAnswer(challenge), 0, 1);
  ASSERT_TRUE(passed.moves_on());
  EXPECT_FALSE(passed.keys.contains("CHAP_R")) << "nobody asked the target to prove itself";
  ASSERT_TRUE(initiator.Say({}, 1, 3).moves_on());
  ExpectWorks(&initiator);
}

TEST_P(PortalChap, WhoDoesNotKnowTheSecretIsRefused) {
  struct Row {
    const char* what;
    std::function<Keys(const LoginAnswer& challenge)> answer;
  };
  const Row table[] = {
      {"wrong secret",
       [](auto& c) {
         return Keys{{"CHAP_N", kHost.name}, {"CHAP_R", Response(c, "what nobody knows")}};
       }},
      {"no secret",
       [](auto& c) {
         return Keys{{"CHAP_N", kHost.name}, {"CHAP_R", Response(c, "")}};
       }},
      {"the target's secret",
       [](auto& c) {
         return Keys{{"CHAP_N", kHost.name}, {"CHAP_R", Response(c, kDisk.secret)}};
       }},
      {"another name",
       [](auto& c) {
         return Keys{{"CHAP_N", "hosts"}, {"CHAP_R", Response(c, kHost.secret)}};
       }},
      {"the target's name",
       [](auto& c) {
         return Keys{{"CHAP_N", kDisk.name}, {"CHAP_R", Response(c, kHost.secret)}};
       }},
      {"no name",
       [](auto& c) {
         return Keys{{"CHAP_R", Response(c, kHost.secret)}};
       }},
      {"no response",
       [](auto&) {
         return Keys{{"CHAP_N", kHost.name}};
       }},
      {"the challenge itself",
       [](auto& c) {
         return Keys{{"CHAP_N", kHost.name}, {"CHAP_R", c.keys.at("CHAP_C")}};
       }},
      {"part of the response",
       [](auto& c) {
         return Keys{{"CHAP_N", kHost.name}, {"CHAP_R", Response(c, kHost.secret).substr(0, 32)}};
       }},
      {"more than the response",
       [](auto& c) {
         return Keys{{"CHAP_N", kHost.name}, {"CHAP_R", Response(c, kHost.secret) + "00"}};
       }},
      {"a response of another algorithm",
       [](auto& c) {
         return Keys{{"CHAP_N", kHost.name},
                     {"CHAP_R", Response(c, kHost.secret, ChapHash::kSha256)}};
       }},
      {"nothing that is binary",
       [](auto&) {
         return Keys{{"CHAP_N", kHost.name}, {"CHAP_R", "please"}};
       }},
      {"a challenge instead of a response",
       [](auto&) {
         return Keys{{"CHAP_I", "1"}, {"CHAP_C", "0x000102030405060708090a0b0c0d0e0f"}};
       }},
  };
  for (const Row& row : table) {
    RawInitiator initiator(portal_.port());
    const LoginAnswer challenge = Challenged(&initiator);
    ExpectRefused(&initiator, initiator.Say(row.answer(challenge), 0, 1), row.what);
  }
  RawInitiator after(portal_.port());
  EXPECT_TRUE(after.Say(RightAnswer(Challenged(&after)), 0, 1).moves_on());
}

TEST_P(PortalChap, NobodyGetsAroundIt) {
  struct Row {
    const char* what;
    Keys keys;
    int stage;
    int next;
  };
  const Row table[] = {
      {"straight on", {}, 1, 3},
      {"past it", {}, 0, 3},
      {"without a word about it", {}, 0, 1},
      {"none, please", {{"AuthMethod", "None"}}, 0, 1},
      {"what we do not have", {{"AuthMethod", "KRB5,SRP"}}, 0, 1},
  };
  for (const Row& row : table) {
    RawInitiator initiator(portal_.port());
    Keys keys = initiator.Greeting(GetParam());
    keys.insert(row.keys.begin(), row.keys.end());
    ExpectRefused(&initiator, initiator.Say(keys, row.stage, row.next), row.what);
  }
  RawInitiator initiator(portal_.port());
  ExpectRefused(&initiator, Challenged(&initiator, "6,8"), "algorithms that we do not have");
}

// Asking to move on does not move on; and the stage cannot be changed on the initiator's own.
TEST_P(PortalChap, NobodyMovesOnBeforeTheProof) {
  RawInitiator initiator(portal_.port());
  Keys keys = initiator.Greeting(GetParam());
  keys["AuthMethod"] = "CHAP";
  EXPECT_FALSE(initiator.Say(keys, 0, 3).moves_on());
  EXPECT_FALSE(initiator.Say({}, 0, 1).moves_on());
  const LoginAnswer challenge = initiator.Say({{"CHAP_A", "5"}}, 0, 3);
  EXPECT_FALSE(challenge.moves_on());
  const LoginAnswer refused = initiator.Say({}, 1, 3);
  EXPECT_NE(refused.status, LoginStatus::kSuccess);
  EXPECT_TRUE(initiator.WaitForEnd());
  EXPECT_EQ(portal_.Sessions(), 0u);
}

TEST_P(PortalChap, AResponseThatWasGoodOnceIsNotGoodAgain) {
  RawInitiator first(portal_.port());
  const LoginAnswer challenge = Challenged(&first);
  const Keys recorded = RightAnswer(challenge);
  ASSERT_TRUE(first.Say(recorded, 0, 1).moves_on());
  first.Drop(false);
  RawInitiator second(portal_.port());
  const LoginAnswer another = Challenged(&second);
  EXPECT_NE(challenge.keys.at("CHAP_C"), another.keys.at("CHAP_C"));
  ExpectRefused(&second, second.Say(recorded, 0, 1), "replayed");
}

// A challenge is good for one answer, right or wrong.
TEST_P(PortalChap, NobodyGuessesTwice) {
  RawInitiator wrong(portal_.port());
  const LoginAnswer challenge = Challenged(&wrong);
  ExpectRefused(&wrong,
                wrong.Say({{"CHAP_N", kHost.name}, {"CHAP_R", Response(challenge, "guess")}}, 0, 1),
                "a guess");
  RawInitiator again(portal_.port());
  Challenged(&again);
  EXPECT_NE(again.Say({{"CHAP_A", "5"}}, 0, -1).status, LoginStatus::kSuccess)
      << "another challenge in the same login";
  EXPECT_TRUE(again.WaitForEnd());
}

TEST_P(PortalChap, TheTargetDoesNotAnswerItsOwnChallenge) {
  RawInitiator known(portal_.port());
  const LoginAnswer challenge = Challenged(&known);
  Keys reflected = RightAnswer(challenge);
  reflected["CHAP_I"] = challenge.keys.at("CHAP_I");
  reflected["CHAP_C"] = challenge.keys.at("CHAP_C");
  ExpectRefused(&known, known.Say(reflected, 0, 1), "reflected by one who knows the secret");

  // By one who does not, through a second connection: it is not told what it could answer.
  RawInitiator victim(portal_.port());
  const LoginAnswer wanted = Challenged(&victim);
  RawInitiator oracle(portal_.port(), "iqn.2026-11.io.example:raw", 2);
  Challenged(&oracle);
  ExpectRefused(&oracle,
                oracle.Say({{"CHAP_N", kHost.name},
                            {"CHAP_R", "0x00112233445566778899aabbccddeeff"},
                            {"CHAP_I", wanted.keys.at("CHAP_I")},
                            {"CHAP_C", wanted.keys.at("CHAP_C")}},
                           0, 1),
                "an oracle");
}

TEST_P(PortalChap, TheTargetProvesItselfWhenAsked) {
  for (const ChapHash hash : {ChapHash::kMd5, ChapHash::kSha256}) {
    RawInitiator initiator(portal_.port());
    const LoginAnswer challenge =
        Challenged(&initiator, std::to_string(static_cast<uint32_t>(hash)));
    const std::vector<uint8_t> ours(24, 0x5a);
    const LoginAnswer proof = initiator.Say({{"CHAP_N", kHost.name},
                                             {"CHAP_R", Response(challenge, kHost.secret, hash)},
                                             {"CHAP_I", "7"},
                                             {"CHAP_C", HexBinary(ours)}},
                                            0, 1);
    ASSERT_TRUE(proof.moves_on());
    EXPECT_EQ(proof.keys.at("CHAP_N"), kDisk.name);
    EXPECT_EQ(proof.keys.at("CHAP_R"), HexBinary(ChapResponse(hash, 7, kDisk.secret, ours)));
  }
}

// --- libiscsi, which does all of that properly --------------------------------------------------

// Empty: it got in; else why not.
std::string LogInWithLibiscsi(uint16_t port, const std::string& target, const ChapAccount& host,
                              const ChapAccount& disk) {
  iscsi_context* context = iscsi_create_context("iqn.2026-11.io.example:library");
  iscsi_set_noautoreconnect(context, 1);
  iscsi_set_timeout(context, 20);
  iscsi_set_session_type(context, target.empty() ? ISCSI_SESSION_DISCOVERY : ISCSI_SESSION_NORMAL);
  if (!target.empty()) iscsi_set_targetname(context, target.c_str());
  iscsi_set_initiator_username_pwd(context, host.name.c_str(), host.secret.c_str());
  if (!disk.name.empty()) {
    iscsi_set_target_username_pwd(context, disk.name.c_str(), disk.secret.c_str());
  }
  const std::string portal = fmt::format("127.0.0.1:{}", port);
  std::string why;
  if (iscsi_connect_sync(context, portal.c_str()) != 0 || iscsi_login_sync(context) != 0) {
    why = fmt::format("refused: {}", iscsi_get_error(context));
  }
  iscsi_destroy_context(context);
  return why;
}

TEST_P(PortalChap, LibiscsiGetsInWithTheRightSecretsOnly) {
  const ChapAccount wrong_host = {kHost.name, "what nobody knows"};
  const ChapAccount wrong_disk = {kDisk.name, "nor what this is"};
  EXPECT_EQ(LogInWithLibiscsi(portal_.port(), GetParam(), kHost, {}), "");
  EXPECT_EQ(LogInWithLibiscsi(portal_.port(), GetParam(), kHost, kDisk), "");
  EXPECT_NE(LogInWithLibiscsi(portal_.port(), GetParam(), wrong_host, {}), "");
  EXPECT_NE(LogInWithLibiscsi(portal_.port(), GetParam(), wrong_host, kDisk), "");
  EXPECT_NE(LogInWithLibiscsi(portal_.port(), GetParam(), kHost, wrong_disk), "")
      << "a target that is not the right one, as it seems to the initiator";
  portal_.Run([&] { portal_.directory().chap = {kHost, {}}; });
  EXPECT_EQ(LogInWithLibiscsi(portal_.port(), GetParam(), kHost, {}), "");
  EXPECT_NE(LogInWithLibiscsi(portal_.port(), GetParam(), kHost, kDisk), "")
      << "the target has no secret to prove itself with";
}

}  // namespace
}  // namespace hydra::iscsi
