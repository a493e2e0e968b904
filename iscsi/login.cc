// SPDX-License-Identifier: Apache-2.0
#include "iscsi/login.h"

#include <algorithm>

#include <fmt/format.h>

namespace hydra::iscsi {
namespace {

constexpr unsigned kSecurity = 0;
constexpr unsigned kOperational = 1;
constexpr unsigned kFullFeature = 3;
constexpr size_t kChallengeBytes = 32;

constexpr uint8_t kTransit = 0x80;
constexpr uint8_t kContinue = 0x40;

unsigned CurrentStage(const Header& h) { return h.flags() >> 2 & 3; }
unsigned NextStage(const Header& h) { return h.flags() & 3; }

// --- Operational keys: how the two sides' values become one (RFC 7143, 6.2). ---

enum class Rule { kMinimum, kMaximum, kOr, kAnd, kDigest, kDeclared, kFixedNo, kIrrelevant };

struct KeyRule {
  std::string_view name;
  Rule rule;
  uint32_t low;  // legal range of numbers
  uint32_t high;
  bool leading;  // of the session, not the connection: means nothing in a discovery session
};

constexpr uint32_t kMaxLength = (1u << 24) - 1;

constexpr KeyRule kRules[] = {
    {"HeaderDigest", Rule::kDigest, 0, 0, false},
    {"DataDigest", Rule::kDigest, 0, 0, false},
    {"MaxConnections", Rule::kMinimum, 1, 65535, true},
    {"InitialR2T", Rule::kOr, 0, 0, true},
    {"ImmediateData", Rule::kAnd, 0, 0, true},
    {"MaxRecvDataSegmentLength", Rule::kDeclared, kMinDataSegment, kMaxDataSegment, false},
    {"MaxBurstLength", Rule::kMinimum, 512, kMaxLength, true},
    {"FirstBurstLength", Rule::kMinimum, 512, kMaxLength, true},
    {"DefaultTime2Wait", Rule::kMaximum, 0, 3600, false},
    {"DefaultTime2Retain", Rule::kMinimum, 0, 3600, false},
    {"MaxOutstandingR2T", Rule::kMinimum, 1, 65535, true},
    {"DataPDUInOrder", Rule::kOr, 0, 0, true},
    {"DataSequenceInOrder", Rule::kOr, 0, 0, true},
    {"ErrorRecoveryLevel", Rule::kMinimum, 0, 2, false},
    {"iSCSIProtocolLevel", Rule::kMinimum, 0, 31, false},
    {"IFMarker", Rule::kFixedNo, 0, 0, false},
    {"OFMarker", Rule::kFixedNo, 0, 0, false},
    {"IFMarkInt", Rule::kIrrelevant, 0, 0, false},
    {"OFMarkInt", Rule::kIrrelevant, 0, 0, false},
};

const KeyRule* FindRule(std::string_view key) {
  const auto found = std::find_if(std::begin(kRules), std::end(kRules),
                                  [&](const KeyRule& rule) { return rule.name == key; });
  return found == std::end(kRules) ? nullptr : found;
}

uint32_t OurNumber(std::string_view key, const Offer& offer) {
  if (key == "MaxBurstLength") return offer.max_burst;
  if (key == "FirstBurstLength") return offer.first_burst;
  if (key == "MaxOutstandingR2T") return offer.max_outstanding_r2t;
  if (key == "MaxConnections" || key == "iSCSIProtocolLevel") return 1;
  if (key == "DefaultTime2Wait") return 2;
  return 0;  // DefaultTime2Retain: no task outlives its connection; ErrorRecoveryLevel
}

bool OurBool(std::string_view key) { return key != "InitialR2T"; }

}  // namespace

std::string SessionParameters::PortName() const {
  std::string name = initiator + ",i,0x";
  for (const uint8_t byte : isid) name += fmt::format("{:02x}", byte);
  return name;
}

Login::Login(LoginPolicy policy, Offer offer) : policy_(std::move(policy)), offer_(offer) {
  parameters_.max_recv_data = offer.max_recv_data;
}

bool Login::TextGoesOn(const Header& request) { return (request.flags() & kContinue) != 0; }

std::string Login::TargetNameIn(std::span<const uint8_t> data) {
  const auto keys = ParseText(data);
  if (!keys.ok()) return "";
  for (const KeyValue& pair : *keys) {
    if (pair.key == "TargetName") return pair.value;
  }
  return "";
}

const std::string* Login::Given(std::string_view key) const {
  for (const KeyValue& pair : keys_) {
    if (pair.key == key) return &pair.value;
  }
  return nullptr;
}

LoginStatus Login::Refuse(LoginStatus status, std::string why) {
  why_ = std::move(why);
  return status;
}

Login::Outcome Login::Fail(LoginStatus status, std::string why, const Header& request,
                           OutPdu* response) {
  if (!why.empty()) why_ = std::move(why);
  response->text.clear();
  Header& h = response->header;
  h.bytes[1] = static_cast<uint8_t>(request.flags() & 0x0c);
  Put16(&h.bytes[36], static_cast<uint16_t>(status));
  return Outcome::kFailed;
}

Login::Outcome Login::Step(const Header& request, std::span<const uint8_t> data, OutPdu* response) {
  *response = OutPdu();
  response->header = Header(Opcode::kLoginResponse, 0);
  Header& h = response->header;
  std::copy_n(&request.bytes[8], 8, &h.bytes[8]);  // ISID, TSIH
  h.set_task_tag(request.task_tag());
  const uint32_t command_sn = request.command_sn();
  if (!begun_) parameters_.stat_sn = request.Field32(28);
  h.SetField32(24, parameters_.stat_sn++);
  h.SetField32(28, command_sn);  // ExpCmdSN: a login is immediate, it takes no number
  h.SetField32(32, command_sn);

  LoginStatus status = CheckHeader(request);
  if (status != LoginStatus::kSuccess) return Fail(status, "", request, response);
  const unsigned stage = CurrentStage(request);
  h.bytes[1] = static_cast<uint8_t>(stage << 2);

  if (pending_.size() + data.size() > kMaxTextBytes) {
    return Fail(LoginStatus::kInitiatorError, "too much text", request, response);
  }
  pending_.insert(pending_.end(), data.begin(), data.end());
  if (TextGoesOn(request)) return Outcome::kGoOn;
  auto keys = ParseText(pending_);
  pending_.clear();
  if (!keys.ok()) {
    return Fail(LoginStatus::kInitiatorError, std::string(keys.status().message()), request,
                response);
  }
  keys_ = std::move(*keys);
  answer_.clear();
  if (first_) {
    first_ = false;
    status = First(request);
    if (status != LoginStatus::kSuccess) return Fail(status, "", request, response);
  }
  stage_ = stage;
  status = HandleKeys(stage);
  if (status != LoginStatus::kSuccess) return Fail(status, "", request, response);
  // The answer goes into one PDU, of which the initiator has not said yet how long it may be.
  if (answer_.size() > kDefaultDataSegment) {
    return Fail(LoginStatus::kInitiatorError, "more keys than can be answered", request, response);
  }

  bool transit = (request.flags() & kTransit) != 0;
  const bool must_prove = decision_.chap.initiator.has_value() && chap_ != Chap::kPassed;
  if (stage == kSecurity && must_prove) {
    if (transit && chap_ == Chap::kNone) {
      return Fail(LoginStatus::kAuthenticationFailed, "no authentication", request, response);
    }
    transit = false;  // in the middle of it
  }
  const unsigned next = NextStage(request);
  if (transit && next == kFullFeature && !declared_ && stage == kSecurity) {
    // The initiator skips the operational stage, and with it our limit: it may send the default.
    parameters_.max_recv_data = kDefaultDataSegment;
  }
  response->text = std::move(answer_);
  if (!transit) return Outcome::kGoOn;
  h.bytes[1] = static_cast<uint8_t>(kTransit | stage << 2 | next);
  if (next != kFullFeature) {
    stage_ = next;
    return Outcome::kGoOn;
  }
  parameters_.tsih = policy_.new_tsih;
  parameters_.command_sn = command_sn;
  parameters_.first_burst = std::min(parameters_.first_burst, parameters_.max_burst);
  Put16(&h.bytes[14], parameters_.tsih);
  return Outcome::kDone;
}

// --- The request as such ---

LoginStatus Login::CheckHeader(const Header& request) {
  if (request.opcode() != Opcode::kLoginRequest || !request.immediate()) {
    return Refuse(LoginStatus::kInvalidDuringLogin, "something else before the login was complete");
  }
  // Version-max, version-min: there is one version.
  if (request.bytes[3] != 0) {
    return Refuse(LoginStatus::kUnsupportedVersion, "an unknown version of iSCSI");
  }
  const unsigned stage = CurrentStage(request);
  const unsigned next = NextStage(request);
  const bool transit = (request.flags() & kTransit) != 0;
  if (transit && (request.flags() & kContinue) != 0) {
    return Refuse(LoginStatus::kInitiatorError, "both the T and the C bit");
  }
  if (stage > kOperational || (transit && (next <= stage || next == 2))) {
    return Refuse(LoginStatus::kInitiatorError, "stages that do not exist or go backwards");
  }
  if (!begun_) {
    begun_ = true;
    stage_ = stage;
    task_tag_ = request.task_tag();
    std::copy_n(&request.bytes[8], 6, parameters_.isid.begin());
    parameters_.cid = Get16(&request.bytes[20]);
    if (Get16(&request.bytes[14]) != 0) {
      return Refuse(LoginStatus::kSessionDoesNotExist,
                    "a connection for a session that there is not: sessions have one connection");
    }
    return LoginStatus::kSuccess;
  }
  if (stage != stage_) return Refuse(LoginStatus::kInitiatorError, "a stage out of turn");
  if (!std::equal(parameters_.isid.begin(), parameters_.isid.end(), &request.bytes[8]) ||
      request.task_tag() != task_tag_) {
    return Refuse(LoginStatus::kInitiatorError, "another login in the middle of this one");
  }
  return LoginStatus::kSuccess;
}

LoginStatus Login::First(const Header& request) {
  const std::string* name = Given("InitiatorName");
  if (name == nullptr) return Refuse(LoginStatus::kMissingParameter, "no InitiatorName");
  if (!ValidName(*name)) return Refuse(LoginStatus::kInitiatorError, "not an InitiatorName");
  parameters_.initiator = *name;
  const std::string* type = Given("SessionType");
  if (type != nullptr && *type != "Discovery" && *type != "Normal") {
    return Refuse(LoginStatus::kSessionTypeNotSupported, "an unknown SessionType");
  }
  parameters_.discovery = type != nullptr && *type == "Discovery";
  const std::string* target = Given("TargetName");
  if (!parameters_.discovery) {
    if (target == nullptr) return Refuse(LoginStatus::kMissingParameter, "no TargetName");
    if (!ValidName(*target)) return Refuse(LoginStatus::kInitiatorError, "not a TargetName");
    parameters_.target = *target;
  }
  decision_ = policy_.decide(parameters_.initiator, parameters_.target);
  parameters_.chap_revision = decision_.chap_revision;
  parameters_.confirmed = decision_.confirmed;
  if (decision_.status != LoginStatus::kSuccess) {
    return Refuse(decision_.status, "the target is not there, or not for this initiator");
  }
  if (decision_.chap.initiator && CurrentStage(request) != kSecurity) {
    return Refuse(LoginStatus::kAuthenticationFailed, "no authentication, but it is required");
  }
  if (!parameters_.discovery) {
    Answer("TargetPortalGroupTag", std::to_string(policy_.portal_group));
  }
  return LoginStatus::kSuccess;
}

// --- Keys ---

LoginStatus Login::HandleKeys(unsigned stage) {
  for (const KeyValue& pair : keys_) {
    const LoginStatus status = HandleKey(stage, pair);
    if (status != LoginStatus::kSuccess) return status;
  }
  if (stage == kSecurity) {
    const LoginStatus status = ChapKeys();
    if (status != LoginStatus::kSuccess) return status;
  }
  if (stage == kOperational && !declared_) {
    declared_ = true;
    Answer("MaxRecvDataSegmentLength", std::to_string(offer_.max_recv_data));
    parameters_.max_recv_data = offer_.max_recv_data;
  }
  return LoginStatus::kSuccess;
}

LoginStatus Login::HandleKey(unsigned stage, const KeyValue& pair) {
  static constexpr std::string_view kInformative[] = {"InitiatorName",
                                                      "InitiatorAlias",
                                                      "TargetName",
                                                      "SessionType",
                                                      "TargetAddress",
                                                      "TargetAlias",
                                                      "TargetPortalGroupTag",
                                                      "CHAP_A",
                                                      "CHAP_I",
                                                      "CHAP_C",
                                                      "CHAP_N",
                                                      "CHAP_R"};
  // An answer to something we said: we never offer anything that has to be answered.
  if (pair.value == "NotUnderstood" || pair.value == "Irrelevant" || pair.value == "Reject") {
    return LoginStatus::kSuccess;
  }
  if (pair.key.starts_with("CHAP_") && stage != kSecurity) {
    return Refuse(LoginStatus::kInitiatorError, "CHAP outside the security stage");
  }
  if (std::find(std::begin(kInformative), std::end(kInformative), pair.key) !=
      std::end(kInformative)) {
    return LoginStatus::kSuccess;
  }
  if (!negotiated_.insert(pair.key).second) {
    return Refuse(LoginStatus::kInitiatorError, fmt::format("{} is negotiated twice", pair.key));
  }
  if (pair.key == "AuthMethod") {
    if (stage != kSecurity) {
      return Refuse(LoginStatus::kInitiatorError, "AuthMethod outside the security stage");
    }
    return AuthMethod(pair.value);
  }
  if (pair.key == "TaskReporting") {
    Answer(pair.key, "RFC3720");
    return LoginStatus::kSuccess;
  }
  if (pair.key == "SendTargets") {
    return Refuse(LoginStatus::kInitiatorError, "SendTargets before the login was complete");
  }
  Negotiate(pair);
  return LoginStatus::kSuccess;
}

void Login::Negotiate(const KeyValue& pair) {
  const KeyRule* rule = FindRule(pair.key);
  if (rule == nullptr) return Answer(pair.key, "NotUnderstood");
  if (rule->rule == Rule::kIrrelevant || (rule->leading && parameters_.discovery)) {
    return Answer(pair.key, "Irrelevant");
  }
  if (rule->rule == Rule::kFixedNo) return Answer(pair.key, "No");
  if (rule->rule == Rule::kDigest) {
    for (const std::string_view item : SplitList(pair.value)) {
      if (item != "CRC32C" && item != "None") continue;
      bool& digest =
          pair.key == "HeaderDigest" ? parameters_.digests.header : parameters_.digests.data;
      digest = item == "CRC32C";
      return Answer(pair.key, item);
    }
    return Answer(pair.key, "Reject");
  }
  if (rule->rule == Rule::kOr || rule->rule == Rule::kAnd) {
    const std::optional<bool> theirs = ParseBool(pair.value);
    if (!theirs) return Answer(pair.key, "Reject");
    const bool ours = OurBool(pair.key);
    const bool both = rule->rule == Rule::kOr ? *theirs || ours : *theirs && ours;
    if (pair.key == "InitialR2T") parameters_.initial_r2t = both;
    if (pair.key == "ImmediateData") parameters_.immediate_data = both;
    return Answer(pair.key, both ? "Yes" : "No");
  }
  const std::optional<uint32_t> theirs = ParseNumber(pair.value);
  if (rule->rule == Rule::kDeclared) {
    // What is declared is not answered; of nonsense, what comes nearest.
    if (theirs) parameters_.max_send_data = std::clamp(*theirs, rule->low, rule->high);
    return;
  }
  if (!theirs || *theirs < rule->low || *theirs > rule->high) return Answer(pair.key, "Reject");
  const uint32_t ours = OurNumber(pair.key, offer_);
  const uint32_t both =
      rule->rule == Rule::kMinimum ? std::min(*theirs, ours) : std::max(*theirs, ours);
  if (pair.key == "MaxBurstLength") parameters_.max_burst = both;
  if (pair.key == "FirstBurstLength") parameters_.first_burst = both;
  if (pair.key == "MaxOutstandingR2T") parameters_.max_outstanding_r2t = both;
  Answer(pair.key, std::to_string(both));
}

// --- Authentication ---

LoginStatus Login::AuthMethod(const std::string& offered) {
  const std::string_view wanted = decision_.chap.initiator ? "CHAP" : "None";
  for (const std::string_view item : SplitList(offered)) {
    if (item != wanted) continue;
    if (wanted == "CHAP") chap_ = Chap::kChosen;
    Answer("AuthMethod", wanted);
    return LoginStatus::kSuccess;
  }
  return Refuse(LoginStatus::kAuthenticationFailed,
                fmt::format("the initiator does not offer AuthMethod={}", wanted));
}

// CHAP_A -> CHAP_A, CHAP_I, CHAP_C -> CHAP_N, CHAP_R (and its own CHAP_I, CHAP_C) -> CHAP_N,
// CHAP_R.
LoginStatus Login::ChapKeys() {
  const std::string* algorithms = Given("CHAP_A");
  if (algorithms != nullptr) {
    if (chap_ != Chap::kChosen) {
      return Refuse(LoginStatus::kInitiatorError, "CHAP_A out of turn");
    }
    const std::optional<ChapHash> hash = ChooseChapHash(*algorithms);
    if (!hash) return Refuse(LoginStatus::kAuthenticationFailed, "no CHAP algorithm in common");
    hash_ = *hash;
    identifier_ = RandomBytes(1)[0];
    challenge_ = RandomBytes(kChallengeBytes);
    chap_ = Chap::kChallenged;
    Answer("CHAP_A", std::to_string(static_cast<uint32_t>(hash_)));
    Answer("CHAP_I", std::to_string(identifier_));
    Answer("CHAP_C", HexBinary(challenge_));
    return LoginStatus::kSuccess;
  }
  if (Given("CHAP_R") == nullptr && Given("CHAP_N") == nullptr && Given("CHAP_C") == nullptr) {
    return LoginStatus::kSuccess;
  }
  return ChapAnswer();
}

LoginStatus Login::ChapAnswer() {
  // A challenge is good for one answer: what follows a wrong one is a new login.
  if (chap_ != Chap::kChallenged) return Refuse(LoginStatus::kInitiatorError, "CHAP out of turn");
  const std::string* name = Given("CHAP_N");
  const std::string* answer = Given("CHAP_R");
  if (name == nullptr || answer == nullptr) {
    return Refuse(LoginStatus::kAuthenticationFailed, "CHAP_N or CHAP_R is missing");
  }
  const ChapAccount& account = *decision_.chap.initiator;
  const auto given = ParseBinary(*answer, ChapResponseBytes(hash_));
  const std::vector<uint8_t> right = ChapResponse(hash_, identifier_, account.secret, challenge_);
  const bool same_name = EqualInConstantTime(
      {reinterpret_cast<const uint8_t*>(name->data()), name->size()},
      {reinterpret_cast<const uint8_t*>(account.name.data()), account.name.size()});
  const bool same_answer = given.has_value() && EqualInConstantTime(*given, right);
  if (!same_name || !same_answer) {
    return Refuse(LoginStatus::kAuthenticationFailed, "wrong CHAP name or secret");
  }
  chap_ = Chap::kPassed;

  const std::string* their_identifier = Given("CHAP_I");
  const std::string* their_challenge = Given("CHAP_C");
  if (their_identifier == nullptr && their_challenge == nullptr) return LoginStatus::kSuccess;
  const uint32_t identifier = their_identifier == nullptr
                                  ? UINT32_MAX
                                  : ParseNumber(*their_identifier).value_or(UINT32_MAX);
  const auto challenge =
      their_challenge == nullptr ? std::nullopt : ParseBinary(*their_challenge, kMaxChallengeBytes);
  if (identifier > 255 || !challenge) {
    return Refuse(LoginStatus::kInitiatorError, "CHAP_I or CHAP_C is missing or malformed");
  }
  if (!decision_.chap.target) {
    return Refuse(LoginStatus::kAuthenticationFailed,
                  "the initiator wants the target to authenticate, which has no secret");
  }
  // Our own challenge sent back to us would make us compute the answer to it.
  if (*challenge == challenge_) {
    return Refuse(LoginStatus::kAuthenticationFailed, "our own challenge came back");
  }
  const ChapAccount& ours = *decision_.chap.target;
  Answer("CHAP_N", ours.name);
  Answer("CHAP_R",
         HexBinary(ChapResponse(hash_, static_cast<uint8_t>(identifier), ours.secret, *challenge)));
  return LoginStatus::kSuccess;
}

}  // namespace hydra::iscsi
