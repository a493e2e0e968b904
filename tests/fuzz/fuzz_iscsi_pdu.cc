// SPDX-License-Identifier: Apache-2.0
//
// Fuzzes what a portal parses before anyone has logged in: PDUs, their lengths and digests, text
// keys and the login they make up. The first byte says which digests are on and whether a secret is
// asked for; the rest is what arrives on the socket.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/check.h"
#include "iscsi/login.h"
#include "iscsi/pdu.h"
#include "iscsi/text.h"

namespace {

using namespace hydra;         // NOLINT: a program of its own
using namespace hydra::iscsi;  // NOLINT: a program of its own

class LoginSink : public PduReader::Sink {
 public:
  explicit LoginSink(bool secret)
      : login_(LoginPolicy{[secret](const std::string&, const std::string&) {
                             LoginPolicy::Decision decision;
                             if (secret) {
                               decision.chap.initiator = ChapAccount{"name", "a long secret"};
                               decision.chap.target = ChapAccount{"disk", "another secret"};
                             }
                             return decision;
                           },
                           1, 1},
               Offer()),
        secret_(secret) {}

  Result<std::span<uint8_t>> Begin(const Header& header, std::span<const uint8_t> ahs) override {
    HYDRA_CHECK(header.data_bytes() <= kDefaultDataSegment);
    HYDRA_CHECK(ahs.size() == header.ahs_bytes());
    header_ = header;
    data_.assign(header.data_bytes(), 0);
    return std::span(data_);
  }

  Status End(bool intact) override {
    if (!intact) return Status::Ok();
    const auto keys = ParseText(data_);
    if (keys.ok()) {
      HYDRA_CHECK(keys->size() <= kMaxKeys);
      for (const KeyValue& pair : *keys) {
        HYDRA_CHECK(pair.key.size() <= kMaxKeyName && pair.value.size() <= kMaxKeyValue);
        const auto binary = ParseBinary(pair.value, 64);
        HYDRA_CHECK(!binary || binary->size() <= 64);
      }
    }
    if (ended_) return Status::Ok();
    OutPdu response;
    const Login::Outcome outcome = login_.Step(header_, data_, &response);
    ended_ = outcome != Login::Outcome::kGoOn;
    HYDRA_CHECK(response.data().size() <= kMaxTextBytes);
    // Nobody guesses an answer to a random challenge.
    HYDRA_CHECK(!secret_ || outcome != Login::Outcome::kDone);
    const Framing framing = Frame(&response, {true, true});
    HYDRA_CHECK(framing.head_bytes == kHeaderBytes + kDigestBytes);
    return Status::Ok();
  }

 private:
  Login login_;
  bool secret_;
  bool ended_ = false;
  Header header_;
  std::vector<uint8_t> data_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  LoginSink sink((data[0] & 4) != 0);
  PduReader reader(&sink);
  reader.SetDigests({(data[0] & 1) != 0, (data[0] & 2) != 0});
  std::span<const uint8_t> bytes(data + 1, size - 1);
  while (!bytes.empty()) {
    const std::span<uint8_t> want = reader.Want();
    HYDRA_CHECK(!want.empty());
    const size_t now = std::min(want.size(), bytes.size());
    std::memcpy(want.data(), bytes.data(), now);
    bytes = bytes.subspan(now);
    if (!reader.Got(now).ok()) return 0;
  }
  return 0;
}
