// SPDX-License-Identifier: Apache-2.0
//
// HYDRA_CHECK: what cannot be false in a correct program. On in every build: a store that goes on
// after a broken invariant loses data later and elsewhere.
#pragma once

namespace hydra {

[[noreturn]] void CheckFailed(const char* file, int line, const char* expression);

}  // namespace hydra

#define HYDRA_CHECK(condition)                              \
  do {                                                      \
    if (!(condition)) [[unlikely]] {                        \
      ::hydra::CheckFailed(__FILE__, __LINE__, #condition); \
    }                                                       \
  } while (0)
