// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace tutti::detail {

inline constexpr std::array<std::uint8_t, 192> xxh3_secret{
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e};

// XXH3 of 64 and of 128 bits, seed 0. Source: Collet, "xxHash fast digest algorithm", version
// 0.2.0.
class Xxh3 {
 public:
  explicit Xxh3(std::string_view text)
      : in_(reinterpret_cast<const std::uint8_t*>(text.data())), size_(text.size()) {}

  [[nodiscard]] std::uint64_t value() const {
    return size_ <= 16 ? tiny() : size_ <= 128 ? small() : size_ <= 240 ? medium() : large();
  }
  // The high half, then the low one.
  [[nodiscard]] std::array<std::uint64_t, 2> value128() const {
    return size_ <= 16 ? tiny128() : size_ <= 240 ? medium128() : large128();
  }

 private:
  __extension__ using Wide = unsigned __int128;
  static constexpr std::uint64_t p32_1 = 0x9E3779B1;
  static constexpr std::uint64_t p32_2 = 0x85EBCA77;
  static constexpr std::uint64_t p32_3 = 0xC2B2AE3D;
  static constexpr std::uint64_t p1 = 0x9E3779B185EBCA87;
  static constexpr std::uint64_t p2 = 0xC2B2AE3D27D4EB4F;
  static constexpr std::uint64_t p3 = 0x165667B19E3779F9;
  static constexpr std::uint64_t p4 = 0x85EBCA77C2B2AE63;
  static constexpr std::uint64_t p5 = 0x27D4EB2F165667C5;

  template <class Word = std::uint64_t>
  static Word word(const std::uint8_t* at) {
    Word out = 0;
    std::memcpy(&out, at, sizeof out);
    return out;
  }
  static const std::uint8_t* secret(std::size_t at) { return xxh3_secret.data() + at; }
  static std::uint64_t fold(std::uint64_t a, std::uint64_t b) {
    const Wide product = Wide{a} * b;
    return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
  }
  static std::uint64_t avalanche(std::uint64_t h) {
    h = (h ^ h >> 37) * 0x165667919E3779F9;
    return h ^ h >> 32;
  }
  static std::uint64_t avalanche64(std::uint64_t h) {
    h = (h ^ h >> 33) * p2;
    h = (h ^ h >> 29) * p3;
    return h ^ h >> 32;
  }
  static std::uint64_t mix16(const std::uint8_t* in, const std::uint8_t* key) {
    return fold(word(in) ^ word(key), word(in + 8) ^ word(key + 8));
  }

  [[nodiscard]] std::uint64_t tiny() const {
    if (size_ == 0) {
      return avalanche64(word(secret(56)) ^ word(secret(64)));
    }
    if (size_ < 4) {
      const std::uint32_t mixed = std::uint32_t{in_[0]} << 16 |
                                  std::uint32_t{in_[size_ / 2]} << 24 | in_[size_ - 1] |
                                  static_cast<std::uint32_t>(size_) << 8;
      const std::uint64_t key = word<std::uint32_t>(secret(0)) ^ word<std::uint32_t>(secret(4));
      return avalanche64(mixed ^ key);
    }
    if (size_ <= 8) {
      const std::uint64_t both =
          word<std::uint32_t>(in_ + size_ - 4) + (std::uint64_t{word<std::uint32_t>(in_)} << 32);
      std::uint64_t h = both ^ word(secret(8)) ^ word(secret(16));
      h ^= std::rotl(h, 49) ^ std::rotl(h, 24);
      h *= 0x9FB21C651E98DF25;
      h ^= (h >> 35) + size_;
      h *= 0x9FB21C651E98DF25;
      return h ^ h >> 28;
    }
    const std::uint64_t low = word(in_) ^ word(secret(24)) ^ word(secret(32));
    const std::uint64_t high = word(in_ + size_ - 8) ^ word(secret(40)) ^ word(secret(48));
    return avalanche(size_ + __builtin_bswap64(low) + high + fold(low, high));
  }

  [[nodiscard]] std::uint64_t small() const {
    std::uint64_t sum = size_ * p1;
    for (std::size_t i = (size_ - 1) / 32 + 1; i-- > 0;) {
      sum += mix16(in_ + 16 * i, secret(32 * i));
      sum += mix16(in_ + size_ - 16 * (i + 1), secret(32 * i + 16));
    }
    return avalanche(sum);
  }

  [[nodiscard]] std::uint64_t medium() const {
    std::uint64_t sum = size_ * p1;
    for (std::size_t i = 0; i < 8; ++i) {
      sum += mix16(in_ + 16 * i, secret(16 * i));
    }
    sum = avalanche(sum);
    for (std::size_t i = 8; i < size_ / 16; ++i) {
      sum += mix16(in_ + 16 * i, secret(16 * (i - 8) + 3));
    }
    return avalanche(sum + mix16(in_ + size_ - 16, secret(136 - 17)));
  }

  static void accumulate(std::array<std::uint64_t, 8>& lane, const std::uint8_t* in,
                         const std::uint8_t* key) {
    for (std::size_t i = 0; i < 8; ++i) {
      const std::uint64_t value = word(in + 8 * i);
      const std::uint64_t mixed = value ^ word(key + 8 * i);
      lane[i ^ 1] += value;
      lane[i] += (mixed & 0xFFFFFFFF) * (mixed >> 32);
    }
  }

  [[nodiscard]] std::array<std::uint64_t, 8> lanes() const {
    std::array<std::uint64_t, 8> lane{p32_3, p1, p2, p3, p4, p32_2, p5, p32_1};
    constexpr std::size_t stripes = (192 - 64) / 8;
    const std::size_t blocks = (size_ - 1) / (64 * stripes);
    for (std::size_t b = 0; b <= blocks; ++b) {
      const std::uint8_t* in = in_ + 64 * stripes * b;
      const std::size_t count = b < blocks ? stripes : (size_ - 1 - 64 * stripes * blocks) / 64;
      for (std::size_t i = 0; i < count; ++i) {
        accumulate(lane, in + 64 * i, secret(8 * i));
      }
      for (std::size_t i = 0; b < blocks && i < 8; ++i) {
        lane[i] = (lane[i] ^ lane[i] >> 47 ^ word(secret(128 + 8 * i))) * p32_1;
      }
    }
    accumulate(lane, in_ + size_ - 64, secret(192 - 64 - 7));
    return lane;
  }
  static std::uint64_t merge(const std::array<std::uint64_t, 8>& lane, const std::uint8_t* key,
                             std::uint64_t sum) {
    for (std::size_t i = 0; i < 4; ++i) {
      sum += fold(lane[2 * i] ^ word(key + 16 * i), lane[2 * i + 1] ^ word(key + 16 * i + 8));
    }
    return avalanche(sum);
  }
  [[nodiscard]] std::uint64_t large() const { return merge(lanes(), secret(11), size_ * p1); }
  [[nodiscard]] std::array<std::uint64_t, 2> large128() const {
    const auto lane = lanes();
    return {merge(lane, secret(192 - 64 - 11), ~(size_ * p2)), merge(lane, secret(11), size_ * p1)};
  }

  [[nodiscard]] std::array<std::uint64_t, 2> tiny128() const {
    if (size_ == 0) {
      return {avalanche64(word(secret(80)) ^ word(secret(88))),
              avalanche64(word(secret(64)) ^ word(secret(72)))};
    }
    if (size_ < 4) {
      const std::uint32_t mixed = std::uint32_t{in_[0]} << 16 |
                                  std::uint32_t{in_[size_ / 2]} << 24 | in_[size_ - 1] |
                                  static_cast<std::uint32_t>(size_) << 8;
      const std::uint32_t turned = std::rotl(__builtin_bswap32(mixed), 13);
      const auto key = [](std::size_t at) {
        return std::uint64_t{word<std::uint32_t>(secret(at)) ^ word<std::uint32_t>(secret(at + 4))};
      };
      return {avalanche64(turned ^ key(8)), avalanche64(mixed ^ key(0))};
    }
    if (size_ <= 8) {
      const std::uint64_t both =
          word<std::uint32_t>(in_) + (std::uint64_t{word<std::uint32_t>(in_ + size_ - 4)} << 32);
      const Wide product = Wide{both ^ word(secret(16)) ^ word(secret(24))} * (p1 + (size_ << 2));
      auto low = static_cast<std::uint64_t>(product);
      const std::uint64_t high = static_cast<std::uint64_t>(product >> 64) + (low << 1);
      low ^= high >> 3;
      low = (low ^ low >> 35) * 0x9FB21C651E98DF25;
      return {avalanche(high), low ^ low >> 28};
    }
    const std::uint64_t first = word(in_);
    const std::uint64_t last = word(in_ + size_ - 8);
    const Wide mixed = Wide{first ^ last ^ word(secret(32)) ^ word(secret(40))} * p1;
    const std::uint64_t flipped = last ^ word(secret(48)) ^ word(secret(56));
    const std::uint64_t high =
        static_cast<std::uint64_t>(mixed >> 64) + flipped + (flipped & 0xFFFFFFFF) * (p32_2 - 1);
    const std::uint64_t low = static_cast<std::uint64_t>(mixed) + ((size_ - 1) << 54);
    const Wide product = Wide{low ^ __builtin_bswap64(high)} * p2;
    return {avalanche(static_cast<std::uint64_t>(product >> 64) + high * p2),
            avalanche(static_cast<std::uint64_t>(product))};
  }

  // Up to 240 bytes: halves that take 16 bytes each at a time.
  [[nodiscard]] std::array<std::uint64_t, 2> medium128() const {
    std::uint64_t low = size_ * p1;
    std::uint64_t high = 0;
    const auto mix = [&](const std::uint8_t* one, const std::uint8_t* two, std::size_t key) {
      low = (low + mix16(one, secret(key))) ^ (word(two) + word(two + 8));
      high = (high + mix16(two, secret(key + 16))) ^ (word(one) + word(one + 8));
    };
    if (size_ <= 128) {
      for (std::size_t i = (size_ - 1) / 32 + 1; i-- > 0;) {
        mix(in_ + 16 * i, in_ + size_ - 16 * (i + 1), 32 * i);
      }
    } else {
      for (std::size_t i = 0; i < size_ / 32; ++i) {
        mix(in_ + 32 * i, in_ + 32 * i + 16, i < 4 ? 32 * i : 32 * (i - 4) + 3);
        if (i == 3) {
          low = avalanche(low);
          high = avalanche(high);
        }
      }
      mix(in_ + size_ - 16, in_ + size_ - 32, 136 - 17 - 16);
    }
    return {0 - avalanche(low * p1 + high * p4 + size_ * p2), avalanche(low + high)};
  }

  const std::uint8_t* in_;
  std::size_t size_;
};

}  // namespace tutti::detail
