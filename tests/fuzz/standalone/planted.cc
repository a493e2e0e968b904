// SPDX-License-Identifier: Apache-2.0
//
// A fuzz target with a bug: three bytes in a row that no stored input has.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  for (std::size_t i = 2; i < size; ++i) {
    if (data[i - 2] == 'b' && data[i - 1] == 'u' && data[i] == 'g') std::abort();
  }
  return 0;
}
