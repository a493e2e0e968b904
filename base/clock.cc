// SPDX-License-Identifier: Apache-2.0
#include "base/clock.h"

#include <time.h>

#include "base/check.h"

namespace hydra {

Nanos RealClock::Now() const {
  timespec now;
  HYDRA_CHECK(clock_gettime(CLOCK_BOOTTIME, &now) == 0);
  return now.tv_sec * kSecond + now.tv_nsec;
}

}  // namespace hydra
