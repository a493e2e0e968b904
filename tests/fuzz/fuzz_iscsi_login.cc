// SPDX-License-Identifier: Apache-2.0
//
// Fuzzes sequences of login requests and their text keys. The first byte says whether a secret is
// asked for, and whether the target has one; then request by request
//
//   flags (1) | oddities (1) | length of text (2, little-endian) | text
//
// where oddities are the bits of Oddity. A right answer to a challenge is never found by chance, so
// one of them has it given: what follows the proof is fuzzed as well, and nobody is let in without.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "iscsi/chap.h"
#include "iscsi/login.h"
#include "iscsi/pdu.h"
#include "iscsi/text.h"

namespace {

using namespace hydra;         // NOLINT: a program of its own
using namespace hydra::iscsi;  // NOLINT: a program of its own

enum Oddity : uint8_t {
  kOtherTag = 0x01,
  kOtherVersion = 0x02,
  kOtherOpcode = 0x04,
  kNotImmediate = 0x08,
  kOldSession = 0x10,
  kOtherPort = 0x20,
  kRightAnswer = 0x40,
  kNames = 0x80,  // says who is there, before its text
};
constexpr size_t kMaxRequests = 64;
constexpr uint16_t kTsih = 77;

const ChapAccount kInitiatorAccount = {"name", "a long secret"};
const ChapAccount kTargetAccount = {"disk", "another secret"};

class Dialogue {
 public:
  explicit Dialogue(uint8_t mode)
      : asks_((mode & 1) != 0), mutual_((mode & 3) == 3), login_(Policy(asks_, mutual_), Offer()) {}

  // False: it is over.
  bool Step(uint8_t flags, uint8_t oddities, std::span<const uint8_t> bytes) {
    const Header request = MakeRequest(flags, oddities);
    std::string text;
    if ((oddities & kNames) != 0) {
      AppendText("InitiatorName", "iqn.a", &text);
      AppendText("TargetName", "iqn.b", &text);
    }
    const bool answers = (oddities & kRightAnswer) != 0 && challenge_.has_value();
    if (answers) AppendRightAnswer(&text);
    text.append(bytes.begin(), bytes.end());
    const size_t taken = std::min<size_t>(text.size(), kDefaultDataSegment);
    const std::span<const uint8_t> data(reinterpret_cast<const uint8_t*>(text.data()), taken);
    OutPdu response;
    const Login::Outcome outcome = login_.Step(request, data, &response);
    CheckHeaders(request, response, outcome);
    CheckText(response, answers);
    if (outcome == Login::Outcome::kDone) CheckAgreement();
    return outcome == Login::Outcome::kGoOn;
  }

 private:
  static LoginPolicy Policy(bool asks, bool mutual) {
    return {[asks, mutual](const std::string& initiator, const std::string& target) {
              HYDRA_CHECK(ValidName(initiator) && (target.empty() || ValidName(target)));
              LoginPolicy::Decision decision;
              if (asks) decision.chap.initiator = kInitiatorAccount;
              if (mutual) decision.chap.target = kTargetAccount;
              return decision;
            },
            1, kTsih};
  }

  static Header MakeRequest(uint8_t flags, uint8_t oddities) {
    Header request(Opcode::kLoginRequest, flags);
    if ((oddities & kOtherOpcode) != 0) request.bytes[0] = static_cast<uint8_t>(Opcode::kNopOut);
    if ((oddities & kNotImmediate) == 0) request.bytes[0] |= 0x40;
    if ((oddities & kOtherVersion) != 0) request.bytes[3] = 1;
    if ((oddities & kOtherPort) != 0) request.bytes[10] = 1;
    if ((oddities & kOldSession) != 0) request.bytes[15] = 1;
    request.set_task_tag((oddities & kOtherTag) != 0 ? 6 : 5);
    request.SetField32(24, 100);
    return request;
  }

  void AppendRightAnswer(std::string* text) const {
    AppendText("CHAP_N", kInitiatorAccount.name, text);
    AppendText("CHAP_R",
               HexBinary(ChapResponse(hash_, identifier_, kInitiatorAccount.secret, *challenge_)),
               text);
  }

  void CheckHeaders(const Header& request, const OutPdu& response, Login::Outcome outcome) {
    const Header& h = response.header;
    HYDRA_CHECK(h.opcode() == Opcode::kLoginResponse);
    HYDRA_CHECK(std::equal(&h.bytes[8], &h.bytes[14], &request.bytes[8]));
    HYDRA_CHECK(h.task_tag() == request.task_tag());
    HYDRA_CHECK(!stat_sn_ || h.Field32(24) == *stat_sn_ + 1);
    stat_sn_ = h.Field32(24);
    const bool failed = outcome == Login::Outcome::kFailed;
    HYDRA_CHECK((Get16(&h.bytes[36]) != 0) == failed);
    HYDRA_CHECK(!failed || (!h.final() && response.data().empty() && !login_.why().empty()));
    const bool enters = (h.flags() & 0x83) == 0x83;
    HYDRA_CHECK(enters == (outcome == Login::Outcome::kDone));
    HYDRA_CHECK(!enters || Get16(&h.bytes[14]) == kTsih);
  }

  void CheckText(const OutPdu& response, bool answered) {
    HYDRA_CHECK(response.data().size() <= kDefaultDataSegment);
    const auto keys = ParseText(response.data());
    HYDRA_CHECK(keys.ok());
    for (const ChapAccount* account : {&kInitiatorAccount, &kTargetAccount}) {
      HYDRA_CHECK(response.text.find(account->secret) == std::string::npos);
    }
    for (const KeyValue& pair : *keys) {
      if (pair.key == "CHAP_A") hash_ = static_cast<ChapHash>(*ParseNumber(pair.value));
      if (pair.key == "CHAP_I") identifier_ = static_cast<uint8_t>(*ParseNumber(pair.value));
      if (pair.key == "CHAP_C") challenge_ = ParseBinary(pair.value, kMaxChallengeBytes);
      // It proves itself to nobody who has not.
      if (pair.key == "CHAP_R") HYDRA_CHECK(mutual_ && answered);
    }
    // It can only have helped in the request that it came with or, in pieces, in a later one.
    proved_ = proved_ || answered;
  }

  void CheckAgreement() const {
    HYDRA_CHECK(!asks_ || proved_);
    const SessionParameters& p = login_.parameters();
    const Offer offer;
    HYDRA_CHECK(ValidName(p.initiator) && p.discovery == p.target.empty());
    HYDRA_CHECK(p.max_burst >= 512 && p.max_burst <= offer.max_burst);
    HYDRA_CHECK(p.first_burst >= 512 && p.first_burst <= p.max_burst);
    HYDRA_CHECK(p.max_send_data >= 512 && p.max_send_data < 1 << 24);
    HYDRA_CHECK(p.max_recv_data == offer.max_recv_data || p.max_recv_data == kDefaultDataSegment);
    HYDRA_CHECK(p.max_outstanding_r2t >= 1 && p.max_outstanding_r2t <= offer.max_outstanding_r2t);
  }

  const bool asks_;
  const bool mutual_;
  Login login_;
  std::optional<uint32_t> stat_sn_;
  ChapHash hash_ = ChapHash::kMd5;
  uint8_t identifier_ = 0;
  std::optional<std::vector<uint8_t>> challenge_;
  bool proved_ = false;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  Dialogue dialogue(data[0]);
  std::span<const uint8_t> bytes(data + 1, size - 1);
  for (size_t i = 0; i < kMaxRequests && bytes.size() >= 4; ++i) {
    const size_t length = std::min<size_t>(bytes[2] | bytes[3] << 8, bytes.size() - 4);
    if (!dialogue.Step(bytes[0], bytes[1], bytes.subspan(4, length))) return 0;
    bytes = bytes.subspan(4 + length);
  }
  return 0;
}
