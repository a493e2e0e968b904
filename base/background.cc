// SPDX-License-Identifier: Apache-2.0
#include "base/background.h"

#include <sys/resource.h>
#include <unistd.h>

namespace hydra {
namespace {

// A weight of 335 beside one of 1024. Next to nothing (19) would let checkpoints fall behind what
// is written on a busy machine.
constexpr int kNice = 5;

}  // namespace

void LowerPriority() {
  thread_local const int done = setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kNice);
  static_cast<void>(done);  // it only ever costs time
}

}  // namespace hydra
