// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include <tutti/core/detail/sha2.hpp>

namespace tutti::detail {

// Keccak-f[1600]; lane (x, y) is a[x + 5 * y].
inline void keccak(std::array<std::uint64_t, 25>& a) {
  constexpr std::array<std::uint64_t, 24> constants{
      0x0000000000000001, 0x0000000000008082, 0x800000000000808A, 0x8000000080008000,
      0x000000000000808B, 0x0000000080000001, 0x8000000080008081, 0x8000000000008009,
      0x000000000000008A, 0x0000000000000088, 0x0000000080008009, 0x000000008000000A,
      0x000000008000808B, 0x800000000000008B, 0x8000000000008089, 0x8000000000008003,
      0x8000000000008002, 0x8000000000000080, 0x000000000000800A, 0x800000008000000A,
      0x8000000080008081, 0x8000000000008080, 0x0000000080000001, 0x8000000080008008};
  for (const std::uint64_t constant : constants) {
    std::array<std::uint64_t, 5> column{};
    for (std::size_t i = 0; i < 25; ++i) {
      column[i % 5] ^= a[i];
    }
    for (std::size_t i = 0; i < 25; ++i) {
      a[i] ^= column[(i + 4) % 5] ^ std::rotl(column[(i + 1) % 5], 1);
    }
    std::size_t x = 1;
    std::size_t y = 0;
    std::uint64_t moved = a[1];
    for (int step = 1; step <= 24; ++step) {  // lane (x, y) goes to (y, 2x + 3y)
      const std::size_t next = (2 * x + 3 * y) % 5;
      x = y;
      y = next;
      const std::uint64_t turned = std::rotl(moved, step * (step + 1) / 2 % 64);
      moved = a[x + 5 * y];
      a[x + 5 * y] = turned;
    }
    for (std::size_t row = 0; row < 25; row += 5) {
      std::array<std::uint64_t, 5> b{};
      std::memcpy(b.data(), a.data() + row, sizeof b);
      for (std::size_t i = 0; i < 5; ++i) {
        a[row + i] = b[i] ^ (~b[(i + 1) % 5] & b[(i + 2) % 5]);
      }
    }
    a[0] ^= constant;
  }
}

// SHA-3. bytes: of the digest, 28, 32, 48 or 64. Source: FIPS 202.
inline std::string sha3(std::string_view text, std::size_t bytes) {
  const std::size_t rate = 200 - 2 * bytes;
  std::array<std::uint64_t, 25> a{};
  const auto absorb = [&](const char* block) {
    for (std::size_t i = 0; i < rate / 8; ++i) {
      std::uint64_t word = 0;
      std::memcpy(&word, block + 8 * i, sizeof word);
      a[i] ^= word;
    }
    keccak(a);
  };
  for (; text.size() >= rate; text.remove_prefix(rate)) {
    absorb(text.data());
  }
  std::string end(text);
  end.resize(rate, '\0');
  end[text.size()] = 0x06;
  end[rate - 1] = static_cast<char>(end[rate - 1] | 0x80);
  absorb(end.data());
  std::array<std::uint8_t, 64> out{};
  std::memcpy(out.data(), a.data(), bytes);
  return hexadecimal(out.data(), bytes);
}

}  // namespace tutti::detail
