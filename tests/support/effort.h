// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace hydra::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// How often a test repeats itself with other seeds. A sanitizer makes it five times slower and
// looks at the paths taken rather than at the outcome, so there fewer repetitions do; the release
// build, which makes the claim, does them all.
constexpr uint64_t Repeat(uint64_t times, uint64_t times_sanitized) {
  return kSanitized ? times_sanitized : times;
}

}  // namespace hydra::test
