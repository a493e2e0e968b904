// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace hydra {

// Nanoseconds since an unspecified start; never goes back.
using Nanos = int64_t;
inline constexpr Nanos kMicrosecond = 1'000;
inline constexpr Nanos kMillisecond = 1'000'000;
inline constexpr Nanos kSecond = 1'000'000'000;

class Clock {
 public:
  virtual ~Clock() = default;
  virtual Nanos Now() const = 0;
};

// CLOCK_BOOTTIME: counts while the machine sleeps, so a lease never outlives a suspend.
class RealClock final : public Clock {
 public:
  Nanos Now() const override;
};

// Moves only when told to.
class ManualClock final : public Clock {
 public:
  Nanos Now() const override { return now_; }
  void Advance(Nanos by) { now_ += by; }

 private:
  Nanos now_ = 0;
};

}  // namespace hydra
