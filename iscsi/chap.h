// SPDX-License-Identifier: Apache-2.0
//
// CHAP (RFC 1994, as RFC 7143 section 12.1 uses it): response = H(identifier | secret | challenge).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace hydra::iscsi {

enum class ChapHash : uint32_t { kMd5 = 5, kSha256 = 7 };  // values of CHAP_A

// RFC 7143 wants 96 bits of randomness in a secret; fewer characters cannot have them.
inline constexpr size_t kMinSecretBytes = 12;
inline constexpr size_t kMaxSecretBytes = 255;
inline constexpr size_t kMaxChallengeBytes = 1024;

struct ChapAccount {
  std::string name;
  std::string secret;
};

// Who has to prove what. Without `initiator` nobody has to.
struct ChapAccounts {
  std::optional<ChapAccount> initiator;  // what an initiator proves to know
  std::optional<ChapAccount> target;     // what the target proves, to initiators that ask

  // kInvalidArgument says which rule they break: lengths; the two secrets must differ, or an
  // initiator's challenge could be answered with the target's own.
  Status Check() const;
};

// Of a target, as someone set them the revision-th time.
struct RevisedAccounts {
  uint64_t revision = 0;
  ChapAccounts accounts;
};

// An algorithm of the initiator's list that we have, the strongest first; nothing if there is none.
std::optional<ChapHash> ChooseChapHash(std::string_view offered);
size_t ChapResponseBytes(ChapHash hash);
std::vector<uint8_t> ChapResponse(ChapHash hash, uint8_t identifier, std::string_view secret,
                                  std::span<const uint8_t> challenge);

// From the kernel, or not at all: the process ends if it has none to give.
std::vector<uint8_t> RandomBytes(size_t count);

// Takes as long whatever the bytes are.
bool EqualInConstantTime(std::span<const uint8_t> a, std::span<const uint8_t> b);

}  // namespace hydra::iscsi
