// SPDX-License-Identifier: Apache-2.0
#include "iscsi/text.h"

#include <algorithm>
#include <charconv>
#include <set>

#include <fmt/format.h>

namespace hydra::iscsi {
namespace {

constexpr size_t kMaxNameBytes = 223;

bool ValidKey(std::string_view key) {
  if (key.empty() || key.size() > kMaxKeyName) return false;
  if (key[0] < 'A' || key[0] > 'Z') return false;
  return std::all_of(key.begin(), key.end(), [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '-' || c == '+' || c == '@' || c == '_' || c == '#';
  });
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::optional<std::vector<uint8_t>> ParseHex(std::string_view digits, size_t max_bytes) {
  if (digits.empty() || (digits.size() + 1) / 2 > max_bytes) return std::nullopt;
  std::vector<uint8_t> bytes;
  // An odd number of digits: the first byte has one.
  size_t at = 0;
  if (digits.size() % 2 == 1) {
    const int low = HexDigit(digits[at++]);
    if (low < 0) return std::nullopt;
    bytes.push_back(static_cast<uint8_t>(low));
  }
  for (; at < digits.size(); at += 2) {
    const int high = HexDigit(digits[at]);
    const int low = HexDigit(digits[at + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    bytes.push_back(static_cast<uint8_t>(high << 4 | low));
  }
  return bytes;
}

int Base64Digit(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  if (c == '+') return 62;
  return c == '/' ? 63 : -1;
}

std::optional<std::vector<uint8_t>> ParseBase64(std::string_view digits, size_t max_bytes) {
  while (digits.ends_with('=')) digits.remove_suffix(1);
  if (digits.empty() || digits.size() * 3 / 4 > max_bytes) return std::nullopt;
  std::vector<uint8_t> bytes;
  uint32_t bits = 0;
  unsigned count = 0;
  for (const char c : digits) {
    const int digit = Base64Digit(c);
    if (digit < 0) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(digit);
    count += 6;
    if (count >= 8) {
      count -= 8;
      bytes.push_back(static_cast<uint8_t>(bits >> count));
    }
  }
  return bytes;
}

}  // namespace

Result<std::vector<KeyValue>> ParseText(std::span<const uint8_t> bytes) {
  if (bytes.size() > kMaxTextBytes) return Status::InvalidArgument("too much text");
  std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  std::vector<KeyValue> keys;
  std::set<std::string, std::less<>> seen;
  while (!text.empty()) {
    const size_t end = text.find('\0');
    const std::string_view pair = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (pair.empty()) continue;  // padding that was counted as data
    const size_t equals = pair.find('=');
    if (equals == std::string_view::npos || !ValidKey(pair.substr(0, equals))) {
      return Status::InvalidArgument("text that is not key=value");
    }
    if (pair.size() - equals - 1 > kMaxKeyValue || keys.size() == kMaxKeys) {
      return Status::InvalidArgument("a value that is too long, or too many keys");
    }
    keys.push_back({std::string(pair.substr(0, equals)), std::string(pair.substr(equals + 1))});
    if (!seen.insert(keys.back().key).second) {
      return Status::InvalidArgument(fmt::format("{} is there twice", keys.back().key));
    }
  }
  return keys;
}

void AppendText(std::string_view key, std::string_view value, std::string* text) {
  text->append(key).append("=").append(value).push_back('\0');
}

std::optional<bool> ParseBool(std::string_view value) {
  if (value == "Yes") return true;
  if (value == "No") return false;
  return std::nullopt;
}

std::optional<uint32_t> ParseNumber(std::string_view value) {
  const bool hex = value.starts_with("0x") || value.starts_with("0X");
  if (hex) value.remove_prefix(2);
  uint32_t number = 0;
  const auto [end, error] =
      std::from_chars(value.data(), value.data() + value.size(), number, hex ? 16 : 10);
  if (error != std::errc() || end != value.data() + value.size()) return std::nullopt;
  return number;
}

std::vector<std::string_view> SplitList(std::string_view value) {
  std::vector<std::string_view> items;
  while (true) {
    const size_t comma = value.find(',');
    items.push_back(value.substr(0, comma));
    if (comma == std::string_view::npos) return items;
    value.remove_prefix(comma + 1);
  }
}

std::optional<std::vector<uint8_t>> ParseBinary(std::string_view value, size_t max_bytes) {
  const std::string_view digits = value.substr(std::min<size_t>(2, value.size()));
  if (value.starts_with("0x") || value.starts_with("0X")) return ParseHex(digits, max_bytes);
  if (value.starts_with("0b") || value.starts_with("0B")) return ParseBase64(digits, max_bytes);
  return std::nullopt;
}

std::string HexBinary(std::span<const uint8_t> bytes) {
  std::string text = "0x";
  for (const uint8_t byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

bool ValidName(std::string_view name) {
  if (name.size() > kMaxNameBytes) return false;
  if (!name.starts_with("iqn.") && !name.starts_with("eui.") && !name.starts_with("naa.")) {
    return false;
  }
  // Names are UTF-8 after stringprep; what matters here is that no character can end a field.
  return std::all_of(name.begin(), name.end(), [](char c) {
    return static_cast<unsigned char>(c) > 0x20 && c != ',' && c != '=' && c != 0x7f;
  });
}

}  // namespace hydra::iscsi
