// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace tutti::detail {

// Reflected CRC-32 with the given (reflected) polynomial: EDB88320 is PNG's and zip's, 82F63B78 the
// Castagnoli CRC of TensorBoard's records.
template <std::uint32_t Polynomial>
constexpr std::uint32_t crc32(std::string_view bytes) {
  constexpr auto table = [] {
    std::array<std::uint32_t, 256> out{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      out[i] = i;
      for (int bit = 0; bit < 8; ++bit) {
        out[i] = (out[i] & 1U) != 0 ? (out[i] >> 1) ^ Polynomial : out[i] >> 1;
      }
    }
    return out;
  }();
  std::uint32_t crc = ~0U;
  for (const char c : bytes) {
    crc = table[(crc ^ static_cast<unsigned char>(c)) & 0xFF] ^ (crc >> 8);
  }
  return ~crc;
}

constexpr std::uint32_t crc32_png(std::string_view bytes) {
  return crc32<0xEDB88320>(bytes);
}
constexpr std::uint32_t crc32c(std::string_view bytes) {
  return crc32<0x82F63B78>(bytes);
}

}  // namespace tutti::detail
