// SPDX-License-Identifier: Apache-2.0
//
// Which initiators may use a target. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace hydra::iscsi {

inline constexpr size_t kMaxRules = 64;  // of a target

// Names are compared without regard to case, as RFC 7143 (4.2.7.2) has it. A name is what the
// initiator says: only CHAP proves anything.
struct AccessRules {
  bool offered = true;               // false: to initiators there is no such target
  bool restricted = false;           // true: only those who are listed may
  std::vector<std::string> allowed;  // normal rules

  bool Allows(std::string_view initiator) const;
  bool operator==(const AccessRules&) const = default;
};

// A rule is an initiator's name, or the beginning of names and a '*'. In the form in which rules
// are kept and compared; kInvalidArgument: it is none.
Result<std::string> NormalRule(std::string_view rule);
// Of a normal rule.
bool RuleCovers(std::string_view rule, std::string_view initiator);

}  // namespace hydra::iscsi
