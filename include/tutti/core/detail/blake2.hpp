// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include <tutti/core/detail/sha2.hpp>

namespace tutti::detail {

inline constexpr std::array<std::array<std::uint8_t, 16>, 10> blake2_order{
    {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
     {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
     {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
     {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
     {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
     {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
     {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
     {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
     {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
     {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}}};

// One block of 16 words. count: bytes of the text up to the end of the block.
template <class Word>
void blake2_mix(std::array<Word, 8>& h, const std::array<Word, 8>& start,
                const std::array<Word, 16>& block, std::uint64_t count, bool last) {
  constexpr bool wide = sizeof(Word) == 8;
  constexpr std::array<int, 4> turns =
      wide ? std::array<int, 4>{32, 24, 16, 63} : std::array<int, 4>{16, 12, 8, 7};
  std::array<Word, 16> v{};
  std::copy(h.begin(), h.end(), v.begin());
  std::copy(start.begin(), start.end(), v.begin() + 8);
  v[12] ^= static_cast<Word>(count);
  v[13] ^= wide ? 0 : static_cast<Word>(count >> 32);
  v[14] ^= last ? ~Word{0} : 0;
  for (std::size_t round = 0; round < (wide ? 12 : 10); ++round) {
    const auto& order = blake2_order[round % 10];
    for (std::size_t i = 0; i < 8; ++i) {  // four columns, then four diagonals
      const std::size_t turn = i / 4;
      Word& a = v[i % 4];
      Word& b = v[4 + (i + turn) % 4];
      Word& c = v[8 + (i + 2 * turn) % 4];
      Word& d = v[12 + (i + 3 * turn) % 4];
      for (std::size_t half = 0; half < 2; ++half) {
        a += b + block[order[2 * i + half]];
        d = std::rotr(d ^ a, turns[2 * half]);
        c += d;
        b = std::rotr(b ^ c, turns[2 * half + 1]);
      }
    }
  }
  for (std::size_t i = 0; i < 8; ++i) {
    h[i] ^= v[i] ^ v[i + 8];
  }
}

// BLAKE2b of 64-bit words, BLAKE2s of 32-bit words, of the full length and without a key. start:
// that of SHA-2. Source: RFC 7693.
template <class Word>
std::string blake2(std::string_view text, const std::array<Word, 8>& start) {
  constexpr std::size_t size = 16 * sizeof(Word);
  std::array<Word, 8> h = start;
  h[0] ^= static_cast<Word>(0x01010000 ^ sizeof h);
  std::size_t at = 0;
  do {  // an empty text has one block too
    const std::size_t count = std::min(size, text.size() - at);
    std::array<Word, 16> block{};
    if (count > 0) {
      std::memcpy(block.data(), text.data() + at, count);
    }
    at += count;
    blake2_mix(h, start, block, at, at == text.size());
  } while (at < text.size());
  std::array<std::uint8_t, sizeof h> out{};
  std::memcpy(out.data(), h.data(), out.size());
  return hexadecimal(out.data(), out.size());
}

}  // namespace tutti::detail
