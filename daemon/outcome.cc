// SPDX-License-Identifier: Apache-2.0
#include "daemon/outcome.h"

#include <span>

#include "base/check.h"

namespace hydra {
namespace {

constexpr auto kLastCode = static_cast<uint8_t>(Code::kAborted);
static_assert(kLastCode == 13, "codes are in the replicated state: append new ones, then say here");

}  // namespace

void PutOutcome(std::string* to, const Outcome& outcome) {
  HYDRA_CHECK(outcome.detail.size() <= kMaxDetailBytes);
  PutU8(to, static_cast<uint8_t>(outcome.code));
  PutVarint64(to, outcome.version);
  PutVarint64(to, outcome.detail.size());
  to->append(outcome.detail);
}

bool GetOutcome(Decoder* in, Outcome* outcome) {
  uint8_t code = 0;
  uint64_t length = 0;
  std::span<const uint8_t> detail;
  if (!in->U8(&code) || code > kLastCode || !in->Varint64(&outcome->version) ||
      !in->Varint64(&length) || length > kMaxDetailBytes || !in->Bytes(length, &detail)) {
    return false;
  }
  outcome->code = static_cast<Code>(code);
  outcome->detail.assign(detail.begin(), detail.end());
  return true;
}

}  // namespace hydra
