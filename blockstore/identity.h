// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "blockstore/engine.h"

namespace hydra {

inline constexpr uint32_t kStoreFormat = 1;
inline constexpr char kIdentityName[] = "IDENTITY";

// The IDENTITY file (docs/disk-format.md, section 2).
std::string EncodeIdentity(const StoreIdentity& identity);
// Says what is wrong and what to do: kUnsupported for a newer format, kCorruption else.
Result<StoreIdentity> ParseIdentity(std::string_view text);

// Whether a store can have such segments.
Status ValidateSegmentBytes(uint64_t bytes);

}  // namespace hydra
