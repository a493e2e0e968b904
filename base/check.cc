// SPDX-License-Identifier: Apache-2.0
#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace hydra {

void CheckFailed(const char* file, int line, const char* expression) {
  std::fprintf(stderr, "fatal: %s:%d: check failed: %s\n", file, line, expression);
  std::fflush(stderr);
  std::abort();
}

}  // namespace hydra
