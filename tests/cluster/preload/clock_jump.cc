// SPDX-License-Identifier: Apache-2.0
//
// Loaded into a process before its libraries (LD_PRELOAD): its clocks run ahead or behind by what
// the file named in HYDRA_TEST_CLOCKS says, two native 64-bit numbers of nanoseconds: one for the
// wall clock, one for the clocks that count since boot. The file may change at any time.
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace {

constexpr int64_t kSecond = 1'000'000'000;

struct Offsets {
  int64_t wall;
  int64_t since_boot;
};

const volatile Offsets* Map() {
  static const volatile Offsets kNone = {0, 0};
  const char* path = getenv("HYDRA_TEST_CLOCKS");
  const int file = path == nullptr ? -1 : open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return &kNone;
  void* mapped = mmap(nullptr, sizeof(Offsets), PROT_READ, MAP_SHARED, file, 0);
  close(file);
  return mapped == MAP_FAILED ? &kNone : static_cast<const volatile Offsets*>(mapped);
}

}  // namespace

extern "C" int clock_gettime(clockid_t clock, struct timespec* now) noexcept {
  static const volatile Offsets* const offsets = Map();
  const int result = static_cast<int>(syscall(SYS_clock_gettime, clock, now));
  if (result != 0) return result;
  int64_t offset = 0;
  switch (clock) {
    case CLOCK_REALTIME:
    case CLOCK_REALTIME_COARSE: offset = offsets->wall; break;
    case CLOCK_MONOTONIC:
    case CLOCK_MONOTONIC_RAW:
    case CLOCK_MONOTONIC_COARSE:
    case CLOCK_BOOTTIME: offset = offsets->since_boot; break;
    default: break;
  }
  const int64_t sum = now->tv_sec * kSecond + now->tv_nsec + offset;
  now->tv_sec = sum / kSecond;
  now->tv_nsec = sum % kSecond;
  return 0;
}
