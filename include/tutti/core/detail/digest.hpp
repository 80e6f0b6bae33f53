// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/core/detail/blake2.hpp>
#include <tutti/core/detail/sha2.hpp>
#include <tutti/core/detail/sha3.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/detail/xxh3.hpp>
#include <tutti/core/detail/xxh64.hpp>

// Digests of whole texts, as files of shards name them: hashlib's and xxhash's names, hexadecimal.

namespace tutti::detail {

// Source: FIPS 180-4.
inline std::string sha1(std::string_view text) {
  std::array<std::uint32_t, 5> h{0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476, 0xC3D2E1F0};
  each_block<64>(text, true, [&h](const std::uint8_t* block) {
    std::array<std::uint32_t, 80> w{};
    for (std::size_t i = 0; i < 80; ++i) {
      w[i] = i < 16 ? big_word<std::uint32_t>(block + 4 * i)
                    : std::rotl(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
    }
    auto [a, b, c, d, e] = h;
    for (std::size_t i = 0; i < 80; ++i) {
      const std::uint32_t f = i < 20   ? (b & c) | (~b & d)
                              : i < 40 ? b ^ c ^ d
                              : i < 60 ? (b & c) | (b & d) | (c & d)
                                       : b ^ c ^ d;
      static constexpr std::array<std::uint32_t, 4> k{0x5A827999, 0x6ED9EBA1, 0x8F1BBCDC,
                                                      0xCA62C1D6};
      const std::uint32_t next = std::rotl(a, 5) + f + e + k[i / 20] + w[i];
      e = d;
      d = c;
      c = std::rotl(b, 30);
      b = a;
      a = next;
    }
    h = {h[0] + a, h[1] + b, h[2] + c, h[3] + d, h[4] + e};
  });
  return big_digits(h, 20);
}

// Source: RFC 1321.
inline std::string md5(std::string_view text) {
  static const std::array<std::uint32_t, 64> k = [] {
    std::array<std::uint32_t, 64> out{};
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = static_cast<std::uint32_t>(std::abs(std::sin(static_cast<double>(i + 1))) * 0x1p32);
    }
    return out;
  }();
  static constexpr std::array<int, 16> turns{7, 12, 17, 22, 5, 9,  14, 20,
                                             4, 11, 16, 23, 6, 10, 15, 21};
  std::array<std::uint32_t, 4> h{0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476};
  each_block<64>(text, false, [&h](const std::uint8_t* block) {
    std::array<std::uint32_t, 16> m{};
    std::memcpy(m.data(), block, 64);
    auto [a, b, c, d] = h;
    for (std::size_t i = 0; i < 64; ++i) {
      const std::size_t round = i / 16;
      const std::uint32_t f = round == 0   ? (b & c) | (~b & d)
                              : round == 1 ? (d & b) | (~d & c)
                              : round == 2 ? b ^ c ^ d
                                           : c ^ (b | ~d);
      static constexpr std::array<std::size_t, 4> step{1, 5, 3, 7};
      static constexpr std::array<std::size_t, 4> start{0, 1, 5, 0};
      const std::uint32_t sum = a + f + k[i] + m[(step[round] * i + start[round]) % 16];
      a = d;
      d = c;
      c = b;
      b += std::rotl(sum, turns[4 * round + i % 4]);
    }
    h = {h[0] + a, h[1] + b, h[2] + c, h[3] + d};
  });
  std::array<std::uint8_t, 16> out{};
  std::memcpy(out.data(), h.data(), out.size());
  return hexadecimal(out.data(), out.size());
}

// Source: Collet, "xxHash fast digest algorithm", version 0.1.1.
inline std::string xxh32(std::string_view text) {
  constexpr std::uint32_t p1 = 0x9E3779B1;
  constexpr std::uint32_t p2 = 0x85EBCA77;
  constexpr std::uint32_t p3 = 0xC2B2AE3D;
  constexpr std::uint32_t p4 = 0x27D4EB2F;
  constexpr std::uint32_t p5 = 0x165667B1;
  const auto word = [&](std::size_t at) {
    std::uint32_t out = 0;
    std::memcpy(&out, text.data() + at, sizeof out);
    return out;
  };
  std::size_t at = 0;
  std::uint32_t hash = p5;
  if (text.size() >= 16) {
    std::array<std::uint32_t, 4> lane{p1 + p2, p2, 0, 0 - p1};
    for (; at + 16 <= text.size(); at += 16) {
      for (std::size_t i = 0; i < 4; ++i) {
        lane[i] = std::rotl(lane[i] + word(at + 4 * i) * p2, 13) * p1;
      }
    }
    hash = std::rotl(lane[0], 1) + std::rotl(lane[1], 7) + std::rotl(lane[2], 12) +
           std::rotl(lane[3], 18);
  }
  hash += static_cast<std::uint32_t>(text.size());
  for (; at + 4 <= text.size(); at += 4) {
    hash = std::rotl(hash + word(at) * p3, 17) * p4;
  }
  for (; at < text.size(); ++at) {
    hash = std::rotl(hash + static_cast<std::uint8_t>(text[at]) * p5, 11) * p1;
  }
  hash = (hash ^ (hash >> 15)) * p2;
  hash = (hash ^ (hash >> 13)) * p3;
  return big_digits(std::array<std::uint32_t, 1>{hash ^ (hash >> 16)}, 4);
}

inline constexpr std::array<std::uint64_t, 8> sha512_start{
    0x6A09E667F3BCC908, 0xBB67AE8584CAA73B, 0x3C6EF372FE94F82B, 0xA54FF53A5F1D36F1,
    0x510E527FADE682D1, 0x9B05688C2B3E6C1F, 0x1F83D9ABFB41BD6B, 0x5BE0CD19137E2179};

inline std::string sha224(std::string_view text) {
  constexpr std::array<std::uint32_t, 8> start{0xC1059ED8, 0x367CD507, 0x3070DD17, 0xF70E5939,
                                               0xFFC00B31, 0x68581511, 0x64F98FA7, 0xBEFA4FA4};
  return sha2(text, start, 28);
}

inline std::string sha384(std::string_view text) {
  constexpr std::array<std::uint64_t, 8> start{
      0xCBBB9D5DC1059ED8, 0x629A292A367CD507, 0x9159015A3070DD17, 0x152FECD8F70E5939,
      0x67332667FFC00B31, 0x8EB44A8768581511, 0xDB0C2E0D64F98FA7, 0x47B5481DBEFA4FA4};
  return sha2(text, start, 48);
}

inline std::string xxh64(std::string_view text) {
  ::tutti::detail::Xxh64 hash;
  hash.update(text.data(), text.size());
  return hash.text();
}

struct KnownDigest {
  std::string_view name;
  std::string (*of)(std::string_view text);
};

// Every hash of the MDS format: those of Python's hashlib and xxhash.
inline constexpr std::array<KnownDigest, 17> known_digests{
    {{"blake2b", [](std::string_view text) { return blake2(text, sha512_start); }},
     {"blake2s", [](std::string_view text) { return blake2(text, sha256_start); }},
     {"md5", md5},
     {"sha1", sha1},
     {"sha224", sha224},
     {"sha256", sha256},
     {"sha384", sha384},
     {"sha3_224", [](std::string_view text) { return sha3(text, 28); }},
     {"sha3_256", [](std::string_view text) { return sha3(text, 32); }},
     {"sha3_384", [](std::string_view text) { return sha3(text, 48); }},
     {"sha3_512", [](std::string_view text) { return sha3(text, 64); }},
     {"sha512", [](std::string_view text) { return sha2(text, sha512_start, 64); }},
     {"xxh128", [](std::string_view text) { return big_digits(Xxh3(text).value128(), 16); }},
     {"xxh32", xxh32},
     {"xxh3_128", [](std::string_view text) { return big_digits(Xxh3(text).value128(), 16); }},
     {"xxh3_64",
      [](std::string_view text) { return big_digits(std::array{Xxh3(text).value()}, 8); }},
     {"xxh64", xxh64}}};

inline const KnownDigest* find_digest(std::string_view name) {
  for (const KnownDigest& known : known_digests) {
    if (name == known.name) {
      return &known;
    }
  }
  return nullptr;
}

// Throws c10::NotImplementedError naming a digest that is not known here.
inline void check_digest(std::string_view name, const std::string& where) {
  if (find_digest(name) != nullptr) {
    return;
  }
  std::string names;
  for (const KnownDigest& known : known_digests) {
    names.append(names.empty() ? "" : ", ").append(known.name);
  }
  TUTTI_CHECK_NOT_IMPLEMENTED(false, where, "the hash \"", name, "\" is not known; known are ",
                              names);
}

// name: one that check_digest() lets pass.
inline std::string digest(std::string_view name, std::string_view text) {
  return find_digest(name)->of(text);
}

}  // namespace tutti::detail
