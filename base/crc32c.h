// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace hydra {

// CRC32C (Castagnoli, reflected, as in RFC 3720): initial value and result inverted, so that
// Crc32c("123456789") == 0xE3069283. `crc` continues an earlier result:
// Crc32c(b, Crc32c(a)) == Crc32c(a + b).
uint32_t Crc32c(std::span<const uint8_t> bytes, uint32_t crc = 0);

inline uint32_t Crc32c(const void* data, size_t length, uint32_t crc = 0) {
  return Crc32c({static_cast<const uint8_t*>(data), length}, crc);
}

}  // namespace hydra
