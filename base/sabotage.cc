// SPDX-License-Identifier: Apache-2.0
#include "base/sabotage.h"

#ifdef HYDRA_SIM

#include "base/check.h"

namespace hydra {
namespace {

constexpr SabotageInfo kAll[] = {
#define HYDRA_SABOTAGE_INFO(enumerator, name, first, seeds, what) \
  {Sabotage::enumerator, name, first, seeds, what},
    HYDRA_SABOTAGES(HYDRA_SABOTAGE_INFO)
#undef HYDRA_SABOTAGE_INFO
};

}  // namespace

namespace sabotage_internal {
constinit std::atomic<int> current{kNone};
}

std::span<const SabotageInfo> AllSabotages() { return kAll; }

std::string_view SabotageName(Sabotage sabotage) {
  const auto index = static_cast<size_t>(sabotage);
  HYDRA_CHECK(index < std::size(kAll));
  return kAll[index].name;
}

std::optional<Sabotage> FindSabotage(std::string_view name) {
  for (const SabotageInfo& info : kAll) {
    if (info.name == name) return info.sabotage;
  }
  return std::nullopt;
}

void SetSabotage(std::optional<Sabotage> sabotage) {
  sabotage_internal::current.store(sabotage ? static_cast<int>(*sabotage)
                                            : sabotage_internal::kNone);
}

std::optional<Sabotage> CurrentSabotage() {
  const int current = sabotage_internal::current.load();
  if (current == sabotage_internal::kNone) return std::nullopt;
  return static_cast<Sabotage>(current);
}

}  // namespace hydra

#endif
