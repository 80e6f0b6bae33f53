// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include <tutti/config.hpp>

namespace tutti::detail {

/// XXH64 (seed 0) of a stream of bytes: finds damage, not forgery.
///
/// Chosen because it is exactly specified, small, reads several bytes a cycle without special
/// instructions, and `xxhsum -H1` and Python's `xxhash` print the same sixteen digits.
/// Source: Collet, "xxHash fast digest algorithm", version 0.1.1.
class Xxh64 {
  static_assert(std::endian::native == std::endian::little);

 public:
  /// Adds the next `size` bytes at `data`.
  void update(const void* data, std::size_t size);

  /// The hash of all bytes so far; more may follow.
  std::uint64_t value() const;

  /// value() as sixteen lower-case hexadecimal digits.
  std::string text() const;

 private:
  static constexpr std::uint64_t p1 = 0x9E3779B185EBCA87U;
  static constexpr std::uint64_t p2 = 0xC2B2AE3D27D4EB4FU;
  static constexpr std::uint64_t p3 = 0x165667B19E3779F9U;
  static constexpr std::uint64_t p4 = 0x85EBCA77C2B2AE63U;
  static constexpr std::uint64_t p5 = 0x27D4EB2F165667C5U;
  static constexpr std::size_t stripe = 32;

  static std::uint64_t round(std::uint64_t lane, std::uint64_t input) {
    return std::rotl(lane + input * p2, 31) * p1;
  }

  template <class Word>
  static Word word(const unsigned char* at) {
    Word out;
    std::memcpy(&out, at, sizeof out);
    return out;
  }

  void mix(const unsigned char* at) {
    for (std::size_t i = 0; i < 4; ++i) {
      lane_[i] = round(lane_[i], word<std::uint64_t>(at + 8 * i));
    }
  }

  std::uint64_t finish(std::uint64_t hash) const;

  std::uint64_t lane_[4] = {p1 + p2, p2, 0, 0 - p1};
  std::uint64_t total_ = 0;
  std::size_t held_ = 0;
  unsigned char buffer_[stripe] = {};
};

}  // namespace tutti::detail

#if TUTTI_BODIES

namespace tutti::detail {

TUTTI_INLINE void Xxh64::update(const void* data, std::size_t size) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  total_ += size;
  if (held_ > 0) {
    const std::size_t taken = size < stripe - held_ ? size : stripe - held_;
    std::memcpy(buffer_ + held_, bytes, taken);
    held_ += taken;
    bytes += taken;
    size -= taken;
    if (held_ < stripe) {
      return;
    }
    mix(buffer_);
    held_ = 0;
  }
  for (; size >= stripe; bytes += stripe, size -= stripe) {
    mix(bytes);
  }
  if (size > 0) {
    std::memcpy(buffer_, bytes, size);
    held_ = size;
  }
}

TUTTI_INLINE std::uint64_t Xxh64::value() const {
  std::uint64_t hash = p5;
  if (total_ >= stripe) {
    hash = std::rotl(lane_[0], 1) + std::rotl(lane_[1], 7) + std::rotl(lane_[2], 12) +
           std::rotl(lane_[3], 18);
    for (const std::uint64_t lane : lane_) {
      hash = (hash ^ round(0, lane)) * p1 + p4;
    }
  }
  return finish(hash + total_);
}

TUTTI_INLINE std::string Xxh64::text() const {
  constexpr char digits[] = "0123456789abcdef";
  std::string out;
  for (int shift = 60; shift >= 0; shift -= 4) {
    out += digits[(value() >> shift) & 15];
  }
  return out;
}

TUTTI_INLINE std::uint64_t Xxh64::finish(std::uint64_t hash) const {
  const unsigned char* at = buffer_;
  const unsigned char* const end = buffer_ + held_;
  for (; end - at >= 8; at += 8) {
    hash = std::rotl(hash ^ round(0, word<std::uint64_t>(at)), 27) * p1 + p4;
  }
  if (end - at >= 4) {
    hash = std::rotl(hash ^ (word<std::uint32_t>(at) * p1), 23) * p2 + p3;
    at += 4;
  }
  for (; at < end; ++at) {
    hash = std::rotl(hash ^ (*at * p5), 11) * p1;
  }
  hash = (hash ^ (hash >> 33)) * p2;
  hash = (hash ^ (hash >> 29)) * p3;
  return hash ^ (hash >> 32);
}

}  // namespace tutti::detail

#endif
