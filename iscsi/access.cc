// SPDX-License-Identifier: Apache-2.0
#include "iscsi/access.h"

#include <algorithm>

#include <fmt/format.h>

#include "iscsi/text.h"

namespace hydra::iscsi {
namespace {

std::string LowerCase(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

}  // namespace

Result<std::string> NormalRule(std::string_view rule) {
  std::string normal = LowerCase(rule);
  std::string_view name = normal;
  if (name.ends_with('*')) name.remove_suffix(1);
  if (!ValidName(name) || name.size() <= 4 || name.find('*') != std::string_view::npos) {
    return Status::InvalidArgument(
        fmt::format("'{}' is no initiator's name: write iqn.2026-11.com.example:host, or "
                    "iqn.2026-11.com.example:* for all names that begin like this",
                    rule));
  }
  return normal;
}

bool RuleCovers(std::string_view rule, std::string_view initiator) {
  const std::string name = LowerCase(initiator);
  if (!rule.ends_with('*')) return rule == name;
  rule.remove_suffix(1);
  return name.starts_with(rule);
}

bool AccessRules::Allows(std::string_view initiator) const {
  if (!offered) return false;
  if (!restricted) return true;
  return std::any_of(allowed.begin(), allowed.end(),
                     [&](const std::string& rule) { return RuleCovers(rule, initiator); });
}

}  // namespace hydra::iscsi
