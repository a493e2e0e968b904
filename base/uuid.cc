// SPDX-License-Identifier: Apache-2.0
#include "base/uuid.h"

#include <sys/random.h>

#include <cerrno>

#include "base/check.h"

namespace hydra {

namespace {

constexpr size_t kTextLength = 36;

bool IsDashPosition(size_t i) { return i == 8 || i == 13 || i == 18 || i == 23; }

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Quotes at most as much as a UUID is long: the text may come from the network.
Status Malformed(std::string_view text) {
  return Status::InvalidArgument("'" + std::string(text.substr(0, kTextLength)) +
                                 "' is not a UUID (expected 8-4-4-4-12 hexadecimal digits)");
}

}  // namespace

Uuid Uuid::Random() {
  Uuid uuid;
  ssize_t got;
  do {
    got = getrandom(uuid.bytes.data(), uuid.bytes.size(), 0);
  } while (got < 0 && errno == EINTR);
  HYDRA_CHECK(got == static_cast<ssize_t>(uuid.bytes.size()));
  uuid.bytes[6] = (uuid.bytes[6] & 0x0f) | 0x40;
  uuid.bytes[8] = (uuid.bytes[8] & 0x3f) | 0x80;
  return uuid;
}

Result<Uuid> Uuid::Parse(std::string_view text) {
  if (text.size() != kTextLength) return Malformed(text);
  Uuid uuid;
  size_t digits = 0;
  for (size_t i = 0; i < kTextLength; ++i) {
    if (IsDashPosition(i)) {
      if (text[i] != '-') return Malformed(text);
      continue;
    }
    const int digit = HexDigit(text[i]);
    if (digit < 0) return Malformed(text);
    uint8_t& byte = uuid.bytes[digits++ / 2];
    byte = static_cast<uint8_t>(byte << 4 | digit);
  }
  return uuid;
}

std::string Uuid::AsBytes() const {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string Uuid::ToString() const {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string text;
  text.reserve(kTextLength);
  for (const uint8_t byte : bytes) {
    if (IsDashPosition(text.size())) text.push_back('-');
    text.push_back(kHex[byte >> 4]);
    text.push_back(kHex[byte & 15]);
  }
  return text;
}

}  // namespace hydra
