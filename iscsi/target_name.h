// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace hydra::iscsi {

// Every target's name begins like this; the rest is the volume's. Its one disk is unit 0.
inline constexpr std::string_view kTargetPrefix = "iqn.2026-11.io.hydra:";

}  // namespace hydra::iscsi
