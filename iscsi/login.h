// SPDX-License-Identifier: Apache-2.0
//
// Login (RFC 7143, sections 6 and 11.12): who calls, may they, and by which rules the session
// works. A pure machine: one request in, one response out. It knows three stages,
//
//   security negotiation (0) -> operational negotiation (1) -> full feature phase (3)
//
// of which an initiator may skip the first two, and refuses with a status (11.13.5) whatever does
// not fit.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "iscsi/chap.h"
#include "iscsi/pdu.h"
#include "iscsi/text.h"

namespace hydra::iscsi {

// What the target offers; what was agreed on is in SessionParameters.
struct Offer {
  uint32_t max_recv_data = 256 << 10;  // per PDU
  uint32_t max_burst = 1 << 20;        // per R2T
  uint32_t first_burst = 256 << 10;    // without R2T
  uint32_t max_outstanding_r2t = 8;
};

struct SessionParameters {
  std::string initiator;
  std::string target;  // empty: a discovery session
  bool discovery = false;
  std::array<uint8_t, 6> isid{};
  uint16_t cid = 0;
  uint16_t tsih = 0;
  uint64_t chap_revision = 0;  // by which it was let in
  bool confirmed = true;       // false: the cluster could not be asked whether that still counts

  Digests digests;
  uint32_t max_recv_data = 256 << 10;
  uint32_t max_send_data = kDefaultDataSegment;
  uint32_t max_burst = 262144;
  uint32_t first_burst = 65536;
  uint32_t max_outstanding_r2t = 1;
  bool initial_r2t = true;
  bool immediate_data = true;

  // First StatSN and CmdSN of the full feature phase.
  uint32_t stat_sn = 0;
  uint32_t command_sn = 0;

  std::string PortName() const;  // of the initiator: "name,i,0x<isid>"
};

// Status class and detail in one number.
enum class LoginStatus : uint16_t {
  kSuccess = 0x0000,
  kInitiatorError = 0x0200,
  kAuthenticationFailed = 0x0201,
  kForbidden = 0x0202,
  kNotFound = 0x0203,
  kUnsupportedVersion = 0x0205,
  kTooManyConnections = 0x0206,
  kMissingParameter = 0x0207,
  kSessionTypeNotSupported = 0x0209,
  kSessionDoesNotExist = 0x020a,
  kInvalidDuringLogin = 0x020b,
  kTargetError = 0x0300,
  kUnavailable = 0x0301,
  kOutOfResources = 0x0302,
};

// How the machine learns about targets. Asked once, with the first request.
struct LoginPolicy {
  struct Decision {
    LoginStatus status = LoginStatus::kSuccess;
    ChapAccounts chap;
    uint64_t chap_revision = 0;  // of the target's accounts, as they are known here
    bool confirmed = true;       // ... and as the cluster says now
  };
  // `target` is empty for a discovery session.
  std::function<Decision(const std::string& initiator, const std::string& target)> decide;
  uint16_t portal_group = 1;
  uint16_t new_tsih = 1;  // of the session, should it come to be
};

class Login {
 public:
  Login(LoginPolicy policy, Offer offer);

  enum class Outcome {
    kGoOn,    // send the response and wait for the next request
    kDone,    // send the response; the full feature phase begins
    kFailed,  // send the response and close
  };
  // `data` is the request's data segment.
  Outcome Step(const Header& request, std::span<const uint8_t> data, OutPdu* response);

  // When done: what was agreed on. Before: what is known, for logs.
  const SessionParameters& parameters() const { return parameters_; }
  const std::string& why() const { return why_; }  // after kFailed

  // More text of the same request follows (the C bit).
  static bool TextGoesOn(const Header& request);
  // What the first request says about itself, so that its target can be looked up before Step. All
  // of its text.
  static std::string TargetNameIn(std::span<const uint8_t> data);

 private:
  enum class Chap { kNone, kChosen, kChallenged, kPassed };

  Outcome Fail(LoginStatus status, std::string why, const Header& request, OutPdu* response);
  // Each returns kSuccess, or why the login fails; `why_` says it in words.
  LoginStatus First(const Header& request);
  LoginStatus CheckHeader(const Header& request);
  LoginStatus HandleKeys(unsigned stage);
  LoginStatus HandleKey(unsigned stage, const KeyValue& pair);
  LoginStatus AuthMethod(const std::string& offered);
  LoginStatus ChapKeys();
  LoginStatus ChapAnswer();
  LoginStatus Refuse(LoginStatus status, std::string why);
  void Negotiate(const KeyValue& pair);
  void Answer(std::string_view key, std::string_view value) { AppendText(key, value, &answer_); }
  const std::string* Given(std::string_view key) const;

  LoginPolicy policy_;
  Offer offer_;
  SessionParameters parameters_;
  LoginPolicy::Decision decision_;
  bool begun_ = false;
  bool first_ = true;  // until the text of the first request is whole
  unsigned stage_ = 0;
  uint32_t task_tag_ = 0;
  std::vector<uint8_t> pending_;  // text of requests with the C bit
  std::vector<KeyValue> keys_;    // of the present request
  std::set<std::string, std::less<>> negotiated_;
  std::string answer_;
  std::string why_;
  bool declared_ = false;  // our own declarations are out

  Chap chap_ = Chap::kNone;
  ChapHash hash_ = ChapHash::kMd5;
  uint8_t identifier_ = 0;
  std::vector<uint8_t> challenge_;
};

}  // namespace hydra::iscsi
