// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace hydra {

// Names a store, a volume or a node for ever. Compared and stored as 16 bytes in the order in
// which they are printed.
struct Uuid {
  std::array<uint8_t, 16> bytes{};

  // Version 4, from the kernel's random source.
  static Uuid Random();
  // Exactly the canonical 36 characters; upper case is accepted.
  static Result<Uuid> Parse(std::string_view text);

  std::string ToString() const;  // 8-4-4-4-12, lower case
  std::string AsBytes() const;   // the 16 of them
  bool IsNil() const { return *this == Uuid(); }

  friend bool operator==(const Uuid&, const Uuid&) = default;
  friend auto operator<=>(const Uuid&, const Uuid&) = default;
};

}  // namespace hydra
