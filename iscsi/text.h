// SPDX-License-Identifier: Apache-2.0
//
// Text keys (RFC 7143, section 6): "key=value", each ended by a NUL.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace hydra::iscsi {

// Far more than any initiator sends: limits against those that mean harm.
inline constexpr size_t kMaxTextBytes = 32 << 10;  // of one exchange, however many PDUs it takes
inline constexpr size_t kMaxKeys = 128;
inline constexpr size_t kMaxKeyName = 63;
inline constexpr size_t kMaxKeyValue = 2048;  // a long binary value in hex

struct KeyValue {
  std::string key;
  std::string value;
};

// In the order sent. kInvalidArgument: not text keys, too many, too long, or one of them twice.
Result<std::vector<KeyValue>> ParseText(std::span<const uint8_t> bytes);

void AppendText(std::string_view key, std::string_view value, std::string* text);

// "Yes", "No"; decimal or 0x numbers; lists between commas.
std::optional<bool> ParseBool(std::string_view value);
std::optional<uint32_t> ParseNumber(std::string_view value);
std::vector<std::string_view> SplitList(std::string_view value);

// Binary values: 0x (hex) or 0b (base 64). Nothing if it is neither or longer than `max_bytes`.
std::optional<std::vector<uint8_t>> ParseBinary(std::string_view value, size_t max_bytes);
std::string HexBinary(std::span<const uint8_t> bytes);

// iqn., eui. or naa., of at most 223 bytes, with nothing in it that a log or a list could not bear.
bool ValidName(std::string_view name);

}  // namespace hydra::iscsi
