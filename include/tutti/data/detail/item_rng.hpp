// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <tutti/core/rng.hpp>

namespace tutti::data::detail {

// One number of two: SplitMix64.
constexpr std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  std::uint64_t z = a + 0x9e3779b97f4a7c15ULL * (b | 1U);
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27U)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31U);
}

// What one use of one example draws from: `purpose` sets streams of the same seed apart, `number`
// is of the use, epoch times size of the data set plus index.
inline Rng item_rng(std::uint64_t seed, std::uint64_t purpose, std::uint64_t number) {
  return Rng(mix(seed, purpose), number);
}

}  // namespace tutti::data::detail
