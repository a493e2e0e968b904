// SPDX-License-Identifier: Apache-2.0
#include "iscsi/login.h"

#include <map>
#include <string>

#include <gtest/gtest.h>

#include "base/coding.h"
#include "tests/support/gtest_status.h"

namespace hydra::iscsi {
namespace {

constexpr char kInitiator[] = "iqn.2026-11.io.example:host";
constexpr char kTarget[] = "iqn.2026-11.io.hydra:disk";

// An initiator that says what a test tells it to.
class Dialogue {
 public:
  explicit Dialogue(ChapAccounts chap = {}, LoginStatus status = LoginStatus::kSuccess)
      : Dialogue(LoginPolicy::Decision{status, std::move(chap)}) {}
  explicit Dialogue(const LoginPolicy::Decision& decision)
      : login_(LoginPolicy{[decision](const std::string&, const std::string&) { return decision; },
                           3, 77},
               Offer()) {}

  // Stages: from `stage`, on to `next` unless it is negative.
  Login::Outcome Say(const std::map<std::string, std::string>& keys, int stage, int next) {
    std::string text;
    for (const auto& [key, value] : keys) AppendText(key, value, &text);
    Header header(Opcode::kLoginRequest, static_cast<uint8_t>(stage << 2));
    header.bytes[0] |= 0x40;
    if (next >= 0) header.bytes[1] |= static_cast<uint8_t>(0x80 | next);
    header.set_task_tag(5);
    header.SetField32(24, 100);
    if (change) change(&header);
    const Login::Outcome outcome = login_.Step(header, AsBytes(text), &response);
    answers.clear();
    auto parsed = ParseText(AsBytes(response.text));
    if (parsed.ok()) {
      for (const KeyValue& pair : *parsed) answers[pair.key] = pair.value;
    }
    return outcome;
  }
  // ... beginning with who is there.
  Login::Outcome Greet(std::map<std::string, std::string> keys, int stage, int next) {
    keys.emplace("InitiatorName", kInitiator);
    keys.emplace("TargetName", kTarget);
    return Say(keys, stage, next);
  }
  LoginStatus status() const { return static_cast<LoginStatus>(Get16(&response.header.bytes[36])); }
  const SessionParameters& parameters() const { return login_.parameters(); }

  OutPdu response;
  std::map<std::string, std::string> answers;
  std::function<void(Header*)> change;

 private:
  Login login_;
};

TEST(Login, OneStepIntoTheFullFeaturePhase) {
  Dialogue dialogue;
  ASSERT_EQ(dialogue.Greet({}, 1, 3), Login::Outcome::kDone);
  EXPECT_EQ(dialogue.status(), LoginStatus::kSuccess);
  EXPECT_EQ(dialogue.answers["TargetPortalGroupTag"], "3");
  EXPECT_EQ(dialogue.answers["MaxRecvDataSegmentLength"], "262144");
  EXPECT_EQ(Get16(&dialogue.response.header.bytes[14]), 77) << "TSIH";
  EXPECT_EQ(dialogue.response.header.flags(), 0x87);
  EXPECT_EQ(dialogue.parameters().command_sn, 100u);
  EXPECT_EQ(dialogue.parameters().max_send_data, 8192u) << "the default, since nothing was said";
}

TEST(Login, ThroughAllStages) {
  Dialogue dialogue;
  EXPECT_EQ(dialogue.Greet({{"AuthMethod", "CHAP,None"}}, 0, 1), Login::Outcome::kGoOn);
  EXPECT_EQ(dialogue.answers["AuthMethod"], "None");
  EXPECT_EQ(dialogue.response.header.flags(), 0x81);
  EXPECT_EQ(dialogue.Say({{"HeaderDigest", "CRC32C,None"}}, 1, -1), Login::Outcome::kGoOn);
  EXPECT_EQ(dialogue.answers["HeaderDigest"], "CRC32C");
  EXPECT_EQ(dialogue.Say({}, 1, 3), Login::Outcome::kDone);
  EXPECT_TRUE(dialogue.parameters().digests.header);
  EXPECT_FALSE(dialogue.parameters().digests.data);
}

struct Negotiation {
  const char* key;
  const char* offered;
  const char* answer;  // nullptr: none
};

TEST(Login, EveryKeyHasItsRule) {
  const Negotiation table[] = {
      {"HeaderDigest", "None", "None"},
      {"HeaderDigest", "None,CRC32C", "None"},
      {"HeaderDigest", "MD5,CRC32C", "CRC32C"},
      {"DataDigest", "CRC32C", "CRC32C"},
      {"DataDigest", "MD5", "Reject"},
      {"MaxConnections", "8", "1"},
      {"MaxConnections", "0", "Reject"},
      {"InitialR2T", "Yes", "Yes"},
      {"InitialR2T", "No", "No"},
      {"InitialR2T", "Perhaps", "Reject"},
      {"ImmediateData", "Yes", "Yes"},
      {"ImmediateData", "No", "No"},
      {"MaxRecvDataSegmentLength", "65536", "262144"},
      {"MaxRecvDataSegmentLength", "100", "262144"},
      {"MaxBurstLength", "262144", "262144"},
      {"MaxBurstLength", "16776192", "1048576"},
      {"MaxBurstLength", "16777216", "Reject"},
      {"MaxBurstLength", "nonsense", "Reject"},
      {"FirstBurstLength", "65536", "65536"},
      {"DefaultTime2Wait", "0", "2"},
      {"DefaultTime2Wait", "9", "9"},
      {"DefaultTime2Retain", "20", "0"},
      {"MaxOutstandingR2T", "1", "1"},
      {"MaxOutstandingR2T", "64", "8"},
      {"DataPDUInOrder", "No", "Yes"},
      {"DataSequenceInOrder", "No", "Yes"},
      {"ErrorRecoveryLevel", "2", "0"},
      {"ErrorRecoveryLevel", "3", "Reject"},
      {"IFMarker", "Yes", "No"},
      {"OFMarker", "No", "No"},
      {"IFMarkInt", "2048~65535", "Irrelevant"},
      {"TaskReporting", "ResponseFence,RFC3720", "RFC3720"},
      {"X-com.example.Thing", "1", "NotUnderstood"},
      {"InitiatorAlias", "me", nullptr},
  };
  for (const Negotiation& row : table) {
    Dialogue dialogue;
    ASSERT_EQ(dialogue.Greet({{row.key, row.offered}}, 1, -1), Login::Outcome::kGoOn) << row.key;
    if (row.answer == nullptr) {
      EXPECT_FALSE(dialogue.answers.contains(row.key)) << row.key;
    } else {
      EXPECT_EQ(dialogue.answers[row.key], row.answer) << row.key << "=" << row.offered;
    }
  }
}

TEST(Login, WhatWasAgreedOnIsUsed) {
  Dialogue dialogue;
  ASSERT_EQ(dialogue.Greet({{"MaxBurstLength", "65536"},
                            {"FirstBurstLength", "262144"},
                            {"InitialR2T", "No"},
                            {"ImmediateData", "No"},
                            {"MaxOutstandingR2T", "4"},
                            {"MaxRecvDataSegmentLength", "4096"}},
                           1, 3),
            Login::Outcome::kDone);
  const SessionParameters& p = dialogue.parameters();
  EXPECT_EQ(p.max_burst, 65536u);
  EXPECT_EQ(p.first_burst, 65536u) << "never more than a burst";
  EXPECT_FALSE(p.initial_r2t);
  EXPECT_FALSE(p.immediate_data);
  EXPECT_EQ(p.max_outstanding_r2t, 4u);
  EXPECT_EQ(p.max_send_data, 4096u);
}

TEST(Login, KeysOfASessionMeanNothingToDiscovery) {
  Dialogue dialogue;
  ASSERT_EQ(dialogue.Say({{"InitiatorName", kInitiator},
                          {"SessionType", "Discovery"},
                          {"MaxBurstLength", "65536"},
                          {"HeaderDigest", "CRC32C"}},
                         1, 3),
            Login::Outcome::kDone);
  EXPECT_TRUE(dialogue.parameters().discovery);
  EXPECT_EQ(dialogue.answers["MaxBurstLength"], "Irrelevant");
  EXPECT_EQ(dialogue.answers["HeaderDigest"], "CRC32C");
  EXPECT_FALSE(dialogue.answers.contains("TargetPortalGroupTag"));
}

TEST(Login, NonsenseIsRefusedWithTheRightStatus) {
  struct Row {
    std::map<std::string, std::string> keys;
    int stage;
    int next;
    LoginStatus status;
  };
  const Row table[] = {
      {{{"TargetName", kTarget}}, 1, 3, LoginStatus::kMissingParameter},
      {{{"InitiatorName", kInitiator}}, 1, 3, LoginStatus::kMissingParameter},
      {{{"InitiatorName", "me"}, {"TargetName", kTarget}}, 1, 3, LoginStatus::kInitiatorError},
      {{{"InitiatorName", kInitiator}, {"SessionType", "Odd"}},
       1,
       3,
       LoginStatus::kSessionTypeNotSupported},
      {{{"InitiatorName", kInitiator}, {"TargetName", kTarget}},
       2,
       3,
       LoginStatus::kInitiatorError},
      {{{"InitiatorName", kInitiator}, {"TargetName", kTarget}},
       1,
       0,
       LoginStatus::kInitiatorError},
      {{{"InitiatorName", kInitiator}, {"TargetName", kTarget}, {"SendTargets", "All"}},
       1,
       3,
       LoginStatus::kInitiatorError},
      {{{"InitiatorName", kInitiator}, {"TargetName", kTarget}, {"AuthMethod", "None"}},
       1,
       3,
       LoginStatus::kInitiatorError},
  };
  for (const Row& row : table) {
    Dialogue dialogue;
    EXPECT_EQ(dialogue.Say(row.keys, row.stage, row.next), Login::Outcome::kFailed);
    EXPECT_EQ(dialogue.status(), row.status);
  }
}

TEST(Login, HeadersAreChecked) {
  const auto with = [](std::function<void(Header*)> change) {
    Dialogue dialogue;
    dialogue.change = std::move(change);
    EXPECT_EQ(dialogue.Greet({}, 1, 3), Login::Outcome::kFailed);
    return dialogue.status();
  };
  EXPECT_EQ(with([](Header* h) { h->bytes[3] = 1; }), LoginStatus::kUnsupportedVersion);
  EXPECT_EQ(with([](Header* h) { h->bytes[1] |= 0x40; }), LoginStatus::kInitiatorError);
  EXPECT_EQ(with([](Header* h) { h->bytes[15] = 1; }), LoginStatus::kSessionDoesNotExist);
  EXPECT_EQ(with([](Header* h) { h->bytes[0] = 0x41; }), LoginStatus::kInvalidDuringLogin);
}

TEST(Login, APolicyCanForbid) {
  for (const LoginStatus status : {LoginStatus::kForbidden, LoginStatus::kNotFound}) {
    Dialogue dialogue({}, status);
    EXPECT_EQ(dialogue.Greet({}, 1, 3), Login::Outcome::kFailed);
    EXPECT_EQ(dialogue.status(), status);
  }
}

TEST(Login, TextMayComeInPieces) {
  Dialogue dialogue;
  dialogue.change = [](Header* h) { h->bytes[1] |= 0x40; };
  EXPECT_EQ(dialogue.Say({{"InitiatorName", kInitiator}}, 1, -1), Login::Outcome::kGoOn);
  EXPECT_TRUE(dialogue.response.text.empty());
  dialogue.change = {};
  EXPECT_EQ(dialogue.Say({{"TargetName", kTarget}}, 1, 3), Login::Outcome::kDone);
}

// Its first pieces were each taken for the beginning of a login.
TEST(Login, TextInPiecesIsOneRequest) {
  const auto go_on = [](Header* h) { h->bytes[1] |= 0x40; };
  Dialogue dialogue;
  dialogue.change = go_on;
  EXPECT_EQ(dialogue.Say({{"InitiatorName", kInitiator}}, 1, -1), Login::Outcome::kGoOn);
  const uint32_t first = dialogue.response.header.Field32(24);
  EXPECT_EQ(dialogue.Say({{"X-a", "1"}}, 1, -1), Login::Outcome::kGoOn);
  EXPECT_EQ(dialogue.response.header.Field32(24), first + 1) << "StatSN";
  Dialogue other;
  other.change = go_on;
  EXPECT_EQ(other.Say({{"InitiatorName", kInitiator}}, 1, -1), Login::Outcome::kGoOn);
  other.change = [](Header* h) { h->set_task_tag(6); };
  EXPECT_EQ(other.Say({{"TargetName", kTarget}}, 1, 3), Login::Outcome::kFailed);
  EXPECT_EQ(other.status(), LoginStatus::kInitiatorError);
}

TEST(Login, EndlessTextIsCutOff) {
  Dialogue dialogue;
  dialogue.change = [](Header* h) { h->bytes[1] |= 0x40; };
  Login::Outcome outcome = Login::Outcome::kGoOn;
  for (int i = 0; i < 100 && outcome == Login::Outcome::kGoOn; ++i) {
    outcome = dialogue.Say({{"X-a", std::string(2000, 'x')}}, 1, -1);
  }
  EXPECT_EQ(outcome, Login::Outcome::kFailed);
}

TEST(Login, AKeyIsNegotiatedOnce) {
  Dialogue dialogue;
  EXPECT_EQ(dialogue.Greet({{"MaxBurstLength", "4096"}}, 1, -1), Login::Outcome::kGoOn);
  EXPECT_EQ(dialogue.Say({{"MaxBurstLength", "8192"}}, 1, 3), Login::Outcome::kFailed);
}

// Only a target declares it: nothing to answer, and ours is said once.
TEST(Login, APortalGroupThatAnInitiatorDeclaresIsPassedOver) {
  Dialogue dialogue;
  ASSERT_EQ(dialogue.Greet({{"TargetPortalGroupTag", "Yes"}}, 1, 3), Login::Outcome::kDone);
  ASSERT_OK(ParseText(AsBytes(dialogue.response.text)).status());
  EXPECT_EQ(dialogue.answers["TargetPortalGroupTag"], "3");
}

TEST(Login, AnAnswerBeyondWhatAnInitiatorTakesFailsInsteadOfBeingSent) {
  std::map<std::string, std::string> keys;
  for (int i = 0; i < 120; ++i) {
    keys["X-" + std::string(50, 'a') + std::to_string(i)] = "1";
  }
  Dialogue dialogue;
  EXPECT_EQ(dialogue.Greet(keys, 1, 3), Login::Outcome::kFailed);
  EXPECT_EQ(dialogue.status(), LoginStatus::kInitiatorError);
  EXPECT_TRUE(dialogue.response.text.empty());
}

// --- CHAP ---------------------------------------------------------------------------------------

const ChapAccount kAccount = {"host", "a secret of 16 b"};
const ChapAccount kTargetAccount = {"disk", "another of 17 byt"};

TEST(Chap, Vectors) {
  std::vector<uint8_t> challenge(16);
  for (size_t i = 0; i < challenge.size(); ++i) challenge[i] = static_cast<uint8_t>(i);
  EXPECT_EQ(HexBinary(ChapResponse(ChapHash::kMd5, 0x17, kAccount.secret, challenge)),
            "0x6f0eb31b6a17db293893feaf81315dc3");
  EXPECT_EQ(HexBinary(ChapResponse(ChapHash::kSha256, 0x17, kAccount.secret, challenge)),
            "0x37d9d731073074cbe46825893e06520ecfe4e44aa12c721044fea7ca8fc1e158");
}

TEST(Chap, AccountsAreChecked) {
  EXPECT_OK((ChapAccounts{kAccount, kTargetAccount}.Check()));
  EXPECT_FALSE((ChapAccounts{ChapAccount{"host", "elevenbytes"}, {}}.Check().ok()));
  EXPECT_FALSE((ChapAccounts{kAccount, ChapAccount{"disk", "elevenbytes"}}.Check().ok()));
  EXPECT_OK((ChapAccounts{ChapAccount{"host", "twelve bytes"}, {}}.Check()));
  EXPECT_FALSE((ChapAccounts{ChapAccount{"host", std::string(256, 'x')}, {}}.Check().ok()));
  EXPECT_FALSE((ChapAccounts{ChapAccount{"", kAccount.secret}, {}}.Check().ok()));
  EXPECT_FALSE((ChapAccounts{{}, kTargetAccount}.Check().ok())) << "mutual without one-way";
  EXPECT_FALSE((ChapAccounts{kAccount, ChapAccount{"disk", kAccount.secret}}.Check().ok()));
}

TEST(Chap, ChallengesAreRandom) {
  EXPECT_NE(RandomBytes(16), RandomBytes(16));
  EXPECT_EQ(ChooseChapHash("5"), ChapHash::kMd5);
  EXPECT_EQ(ChooseChapHash("5,7"), ChapHash::kSha256);
  EXPECT_FALSE(ChooseChapHash("6").has_value());
}

// Up to the challenge, which is in dialogue.answers afterwards.
void UpToChallenge(Dialogue* dialogue) {
  ASSERT_EQ(dialogue->Greet({{"AuthMethod", "CHAP,None"}}, 0, 1), Login::Outcome::kGoOn);
  EXPECT_EQ(dialogue->answers["AuthMethod"], "CHAP");
  EXPECT_EQ(dialogue->response.header.flags() & 0x80, 0) << "not on to the next stage yet";
  ASSERT_EQ(dialogue->Say({{"CHAP_A", "5"}}, 0, -1), Login::Outcome::kGoOn);
}

std::string RightAnswer(Dialogue* dialogue, const std::string& secret) {
  const auto challenge = ParseBinary(dialogue->answers["CHAP_C"], 1024);
  const auto identifier = ParseNumber(dialogue->answers["CHAP_I"]);
  return HexBinary(
      ChapResponse(ChapHash::kMd5, static_cast<uint8_t>(*identifier), secret, *challenge));
}

TEST(Chap, TheRightSecretGetsIn) {
  Dialogue dialogue({kAccount, {}});
  UpToChallenge(&dialogue);
  const std::string answer = RightAnswer(&dialogue, kAccount.secret);
  ASSERT_EQ(dialogue.Say({{"CHAP_N", "host"}, {"CHAP_R", answer}}, 0, 1), Login::Outcome::kGoOn);
  EXPECT_EQ(dialogue.response.header.flags(), 0x81);
  EXPECT_EQ(dialogue.Say({}, 1, 3), Login::Outcome::kDone);
}

TEST(Chap, NobodyElseGetsIn) {
  const auto attempt = [](const std::string& name, const std::string& secret) {
    Dialogue dialogue({kAccount, {}});
    UpToChallenge(&dialogue);
    const std::string answer = RightAnswer(&dialogue, secret);
    EXPECT_EQ(dialogue.Say({{"CHAP_N", name}, {"CHAP_R", answer}}, 0, 1), Login::Outcome::kFailed);
    return dialogue.status();
  };
  EXPECT_EQ(attempt("host", "a wrong secret!!"), LoginStatus::kAuthenticationFailed);
  EXPECT_EQ(attempt("other", kAccount.secret), LoginStatus::kAuthenticationFailed);
}

TEST(Chap, SkippingItDoesNotGetIn) {
  Dialogue straight({kAccount, {}});
  EXPECT_EQ(straight.Greet({}, 1, 3), Login::Outcome::kFailed);
  EXPECT_EQ(straight.status(), LoginStatus::kAuthenticationFailed);
  Dialogue none({kAccount, {}});
  EXPECT_EQ(none.Greet({{"AuthMethod", "None"}}, 0, 1), Login::Outcome::kFailed);
  Dialogue silent({kAccount, {}});
  EXPECT_EQ(silent.Greet({}, 0, 3), Login::Outcome::kFailed);
  Dialogue early({kAccount, {}});
  ASSERT_EQ(early.Greet({{"AuthMethod", "CHAP"}}, 0, 3), Login::Outcome::kGoOn);
  EXPECT_EQ(early.Say({}, 0, 3), Login::Outcome::kGoOn);
  EXPECT_EQ(early.response.header.flags() & 0x80, 0);
}

TEST(Chap, AnAnswerIsGoodForOneChallenge) {
  Dialogue first({kAccount, {}});
  UpToChallenge(&first);
  const std::string answer = RightAnswer(&first, kAccount.secret);
  Dialogue second({kAccount, {}});
  UpToChallenge(&second);
  EXPECT_EQ(second.Say({{"CHAP_N", "host"}, {"CHAP_R", answer}}, 0, 1), Login::Outcome::kFailed);
}

TEST(Chap, TheTargetProvesItself) {
  Dialogue dialogue({kAccount, kTargetAccount});
  UpToChallenge(&dialogue);
  const std::string answer = RightAnswer(&dialogue, kAccount.secret);
  ASSERT_EQ(dialogue.Say({{"CHAP_N", "host"},
                          {"CHAP_R", answer},
                          {"CHAP_I", "9"},
                          {"CHAP_C", "0x000102030405060708090a0b0c0d0e0f"}},
                         0, 1),
            Login::Outcome::kGoOn);
  std::vector<uint8_t> challenge(16);
  for (size_t i = 0; i < challenge.size(); ++i) challenge[i] = static_cast<uint8_t>(i);
  EXPECT_EQ(dialogue.answers["CHAP_N"], "disk");
  EXPECT_EQ(dialogue.answers["CHAP_R"],
            HexBinary(ChapResponse(ChapHash::kMd5, 9, kTargetAccount.secret, challenge)));
}

TEST(Chap, AReflectedChallengeIsRefused) {
  Dialogue dialogue({kAccount, kTargetAccount});
  UpToChallenge(&dialogue);
  const std::string answer = RightAnswer(&dialogue, kAccount.secret);
  const std::string reflected = dialogue.answers["CHAP_C"];
  EXPECT_EQ(
      dialogue.Say({{"CHAP_N", "host"}, {"CHAP_R", answer}, {"CHAP_I", "9"}, {"CHAP_C", reflected}},
                   0, 1),
      Login::Outcome::kFailed);
}

TEST(Chap, ATargetWithoutASecretDoesNotPretend) {
  Dialogue dialogue({kAccount, {}});
  UpToChallenge(&dialogue);
  const std::string answer = RightAnswer(&dialogue, kAccount.secret);
  EXPECT_EQ(dialogue.Say({{"CHAP_N", "host"},
                          {"CHAP_R", answer},
                          {"CHAP_I", "9"},
                          {"CHAP_C", "0x00112233445566778899"}},
                         0, 1),
            Login::Outcome::kFailed);
}

TEST(Chap, DiscoveryHasToProveItselfToo) {
  Dialogue dialogue({kAccount, {}});
  EXPECT_EQ(dialogue.Say({{"InitiatorName", kInitiator}, {"SessionType", "Discovery"}}, 1, 3),
            Login::Outcome::kFailed);
  EXPECT_EQ(dialogue.status(), LoginStatus::kAuthenticationFailed);
}

TEST(Login, TheSessionKnowsByWhichAccountsItWasLetIn) {
  Dialogue sure(LoginPolicy::Decision{LoginStatus::kSuccess, {}, 7, true});
  ASSERT_EQ(sure.Greet({}, 1, 3), Login::Outcome::kDone);
  EXPECT_EQ(sure.parameters().chap_revision, 7u);
  EXPECT_TRUE(sure.parameters().confirmed);
  Dialogue unsure(LoginPolicy::Decision{LoginStatus::kSuccess, {}, 8, false});
  ASSERT_EQ(unsure.Greet({}, 1, 3), Login::Outcome::kDone);
  EXPECT_EQ(unsure.parameters().chap_revision, 8u);
  EXPECT_FALSE(unsure.parameters().confirmed);
}

}  // namespace
}  // namespace hydra::iscsi
