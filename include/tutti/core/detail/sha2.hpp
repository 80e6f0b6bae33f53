// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

// SHA-2 and what it shares with other hashes of blocks. LibTorch-free.

namespace tutti::detail {

inline std::string hexadecimal(const std::uint8_t* bytes, std::size_t count) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string out;
  for (std::size_t i = 0; i < count; ++i) {
    out += {digits[bytes[i] >> 4], digits[bytes[i] & 15]};
  }
  return out;
}

// The blocks of Merkle-Damgard hashes: calls mix(block) for each, with the padding at the end.
// big: the length in bits is written with its highest byte first.
template <std::size_t block, class Mix>
void each_block(std::string_view text, bool big, const Mix& mix) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(text.data());
  std::size_t left = text.size();
  for (; left >= block; left -= block, bytes += block) {
    mix(bytes);
  }
  constexpr std::size_t length = block / 8;
  std::array<std::uint8_t, 2 * block> end{};
  if (left > 0) {
    std::memcpy(end.data(), bytes, left);
  }
  end[left] = 0x80;
  const std::size_t size = left + 1 + length <= block ? block : 2 * block;
  const std::uint64_t bits = std::uint64_t{text.size()} * 8;
  for (std::size_t i = 0; i < 8; ++i) {
    end[big ? size - 1 - i : size - length + i] = static_cast<std::uint8_t>(bits >> (8 * i));
  }
  mix(end.data());
  if (size > block) {
    mix(end.data() + block);
  }
}

template <class Word>
Word big_word(const std::uint8_t* at) {
  Word out = 0;
  for (std::size_t i = 0; i < sizeof(Word); ++i) {
    out = static_cast<Word>(out << 8 | at[i]);
  }
  return out;
}

template <class Word, std::size_t n>
std::string big_digits(const std::array<Word, n>& words, std::size_t bytes) {
  std::vector<std::uint8_t> out;
  for (const Word word : words) {
    for (std::size_t i = sizeof(Word); i-- > 0;) {
      out.push_back(static_cast<std::uint8_t>(word >> (8 * i)));
    }
  }
  return hexadecimal(out.data(), bytes);
}

// The first 64 bits behind the point of the cube roots of the first 80 primes; of the first 64 of
// them, 32 bits are those of the smaller hashes.
inline constexpr std::array<std::uint64_t, 80> sha2_constants{
    0x428A2F98D728AE22, 0x7137449123EF65CD, 0xB5C0FBCFEC4D3B2F, 0xE9B5DBA58189DBBC,
    0x3956C25BF348B538, 0x59F111F1B605D019, 0x923F82A4AF194F9B, 0xAB1C5ED5DA6D8118,
    0xD807AA98A3030242, 0x12835B0145706FBE, 0x243185BE4EE4B28C, 0x550C7DC3D5FFB4E2,
    0x72BE5D74F27B896F, 0x80DEB1FE3B1696B1, 0x9BDC06A725C71235, 0xC19BF174CF692694,
    0xE49B69C19EF14AD2, 0xEFBE4786384F25E3, 0x0FC19DC68B8CD5B5, 0x240CA1CC77AC9C65,
    0x2DE92C6F592B0275, 0x4A7484AA6EA6E483, 0x5CB0A9DCBD41FBD4, 0x76F988DA831153B5,
    0x983E5152EE66DFAB, 0xA831C66D2DB43210, 0xB00327C898FB213F, 0xBF597FC7BEEF0EE4,
    0xC6E00BF33DA88FC2, 0xD5A79147930AA725, 0x06CA6351E003826F, 0x142929670A0E6E70,
    0x27B70A8546D22FFC, 0x2E1B21385C26C926, 0x4D2C6DFC5AC42AED, 0x53380D139D95B3DF,
    0x650A73548BAF63DE, 0x766A0ABB3C77B2A8, 0x81C2C92E47EDAEE6, 0x92722C851482353B,
    0xA2BFE8A14CF10364, 0xA81A664BBC423001, 0xC24B8B70D0F89791, 0xC76C51A30654BE30,
    0xD192E819D6EF5218, 0xD69906245565A910, 0xF40E35855771202A, 0x106AA07032BBD1B8,
    0x19A4C116B8D2D0C8, 0x1E376C085141AB53, 0x2748774CDF8EEB99, 0x34B0BCB5E19B48A8,
    0x391C0CB3C5C95A63, 0x4ED8AA4AE3418ACB, 0x5B9CCA4F7763E373, 0x682E6FF3D6B2B8A3,
    0x748F82EE5DEFB2FC, 0x78A5636F43172F60, 0x84C87814A1F0AB72, 0x8CC702081A6439EC,
    0x90BEFFFA23631E28, 0xA4506CEBDE82BDE9, 0xBEF9A3F7B2C67915, 0xC67178F2E372532B,
    0xCA273ECEEA26619C, 0xD186B8C721C0C207, 0xEADA7DD6CDE0EB1E, 0xF57D4F7FEE6ED178,
    0x06F067AA72176FBA, 0x0A637DC5A2C898A6, 0x113F9804BEF90DAE, 0x1B710B35131C471B,
    0x28DB77F523047D84, 0x32CAAB7B40C72493, 0x3C9EBE0A15C9BEBC, 0x431D67C49C100D4C,
    0x4CC5D4BECB3E42B6, 0x597F299CFC657E2A, 0x5FCB6FAB3AD6FAEC, 0x6C44198C4A475817};

// One of SHA-2's rounds, of 32-bit or 64-bit words. Source: FIPS 180-4.
template <class Word>
void sha2_mix(std::array<Word, 8>& h, const std::uint8_t* block) {
  constexpr bool wide = sizeof(Word) == 8;
  constexpr std::size_t rounds = wide ? 80 : 64;
  const auto rotr = [](Word x, int n) { return std::rotr(x, n); };
  std::array<Word, rounds> w{};
  for (std::size_t i = 0; i < rounds; ++i) {
    if (i < 16) {
      w[i] = big_word<Word>(block + sizeof(Word) * i);
      continue;
    }
    const Word x = w[i - 15];
    const Word y = w[i - 2];
    const Word s0 = wide ? rotr(x, 1) ^ rotr(x, 8) ^ (x >> 7) : rotr(x, 7) ^ rotr(x, 18) ^ (x >> 3);
    const Word s1 =
        wide ? rotr(y, 19) ^ rotr(y, 61) ^ (y >> 6) : rotr(y, 17) ^ rotr(y, 19) ^ (y >> 10);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  std::array<Word, 8> v = h;
  for (std::size_t i = 0; i < rounds; ++i) {
    const Word a = v[0];
    const Word e = v[4];
    const Word s1 =
        wide ? rotr(e, 14) ^ rotr(e, 18) ^ rotr(e, 41) : rotr(e, 6) ^ rotr(e, 11) ^ rotr(e, 25);
    const Word s0 =
        wide ? rotr(a, 28) ^ rotr(a, 34) ^ rotr(a, 39) : rotr(a, 2) ^ rotr(a, 13) ^ rotr(a, 22);
    const auto k = static_cast<Word>(sha2_constants[i] >> (wide ? 0 : 32));
    const Word one = v[7] + s1 + ((e & v[5]) ^ (~e & v[6])) + k + w[i];
    const Word two = s0 + ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
    v = {one + two, a, v[1], v[2], v[3] + one, e, v[5], v[6]};
  }
  for (std::size_t i = 0; i < 8; ++i) {
    h[i] += v[i];
  }
}

template <class Word>
std::string sha2(std::string_view text, std::array<Word, 8> h, std::size_t bytes) {
  each_block<16 * sizeof(Word)>(text, true,
                                [&h](const std::uint8_t* block) { sha2_mix(h, block); });
  return big_digits(h, bytes);
}

inline constexpr std::array<std::uint32_t, 8> sha256_start{
    0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19};

// The 32 bytes themselves.
inline std::string sha256(std::string_view text) {
  return sha2(text, sha256_start, 32);
}

inline std::string sha256_bytes(std::string_view text) {
  std::array<std::uint32_t, 8> h = sha256_start;
  each_block<64>(text, true, [&h](const std::uint8_t* block) { sha2_mix(h, block); });
  std::string bytes;
  for (const std::uint32_t word : h) {
    for (int shift = 24; shift >= 0; shift -= 8) {
      bytes += static_cast<char>(word >> shift & 255);
    }
  }
  return bytes;
}

}  // namespace tutti::detail
