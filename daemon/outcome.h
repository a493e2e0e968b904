// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

#include "base/coding.h"
#include "base/status.h"
#include "blockstore/types.h"

namespace hydra {

// More than a miscompare offset or the sense of a refusal never needs.
inline constexpr size_t kMaxDetailBytes = 256;

// What a request was answered, small enough to be kept until the client says it has it.
//
// Bytes: u8 code (the number of base/status.h), varint version, varint length, detail.
struct Outcome {
  Code code = Code::kOk;
  Version version = 0;  // that it wrote; 0: it wrote nothing
  std::string detail;   // at most kMaxDetailBytes; the layers above know what it means

  friend bool operator==(const Outcome&, const Outcome&) = default;
};

void PutOutcome(std::string* to, const Outcome& outcome);
// False, and `in` has failed or stands anywhere, unless a valid outcome was read.
bool GetOutcome(Decoder* in, Outcome* outcome);

}  // namespace hydra
