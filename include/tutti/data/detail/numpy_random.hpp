// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <unordered_set>
#include <utility>
#include <vector>

namespace tutti::data::detail {

/// NumPy's default_rng(seed), as far as orders of samples need it: PCG64 (XSL RR 128/64) seeded by
/// SeedSequence, Lemire's bounded integers, and shuffles by masks.
///
/// Source: NumPy 2.1, numpy/random; O'Neill, "PCG", 2014; Lemire, "Fast Random Integer Generation
/// in an Interval", 2019.
class NumpyRandom {
 public:
  explicit NumpyRandom(std::uint64_t seed)
      : NumpyRandom(
            std::array{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)}) {}

  /// seed: any number as 32-bit words, the lowest first.
  explicit NumpyRandom(std::span<const std::uint32_t> seed) {
    const std::array<std::uint64_t, 4> words = seed_words(seed);
    increment_ = (wide(words[2], words[3]) << 1) | 1;
    step();
    state_ += wide(words[0], words[1]);
    step();
  }

  std::uint64_t u64() {
    step();
    const auto high = static_cast<std::uint64_t>(state_ >> 64);
    return std::rotr(high ^ static_cast<std::uint64_t>(state_), static_cast<int>(high >> 58));
  }

  /// The lower half of a new 64-bit number; the next call gives its upper half.
  std::uint32_t u32() {
    if (has_half_) {
      has_half_ = false;
      return half_;
    }
    const std::uint64_t both = u64();
    half_ = static_cast<std::uint32_t>(both >> 32);
    has_half_ = true;
    return static_cast<std::uint32_t>(both);
  }

  /// Uniform in [low, high). high > low.
  std::int64_t integers(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(bounded(static_cast<std::uint64_t>(high - low - 1)));
  }

  /// Uniform in [low, high).
  double uniform(double low, double high) {
    return low + (high - low) * (static_cast<double>(u64() >> 11) * 0x1p-53);
  }

  template <class T>
  void shuffle(std::span<T> values) {
    for (std::size_t i = values.size(); i-- > 1;) {
      std::swap(values[i], values[interval(i)]);
    }
  }

  std::vector<std::int64_t> permutation(std::int64_t n) {
    std::vector<std::int64_t> out(static_cast<std::size_t>(n));
    std::iota(out.begin(), out.end(), std::int64_t{0});
    shuffle(std::span(out));
    return out;
  }

  /// k different numbers of 0 .. n - 1, in random order.
  std::vector<std::int64_t> choice(std::int64_t n, std::int64_t k) {
    const auto below = [&](std::int64_t most) {
      return static_cast<std::int64_t>(bounded(static_cast<std::uint64_t>(most)));
    };
    if (n > 10000 && k > n / 50) {
      std::vector<std::int64_t> all(static_cast<std::size_t>(n));
      std::iota(all.begin(), all.end(), std::int64_t{0});
      for (std::int64_t i = n - 1; i >= std::max<std::int64_t>(n - k, 1); --i) {
        std::swap(all[static_cast<std::size_t>(i)], all[static_cast<std::size_t>(below(i))]);
      }
      return {all.end() - k, all.end()};
    }
    std::vector<std::int64_t> out;
    std::unordered_set<std::int64_t> seen;
    for (std::int64_t i = n - k; i < n; ++i) {
      const std::int64_t drawn = below(i);
      out.push_back(seen.insert(drawn).second ? drawn : i);
      seen.insert(out.back());
    }
    for (std::int64_t i = k - 1; i > 0; --i) {
      std::swap(out[static_cast<std::size_t>(i)], out[static_cast<std::size_t>(below(i))]);
    }
    return out;
  }

 private:
  __extension__ using Wide = unsigned __int128;

  static Wide wide(std::uint64_t high, std::uint64_t low) { return (Wide{high} << 64) | low; }

  void step() { state_ = state_ * wide(0x2360ED051FC65DA4U, 0x4385DF649FCCF645U) + increment_; }

  // What SeedSequence(seed) gives as four 64-bit words.
  static std::array<std::uint64_t, 4> seed_words(std::span<const std::uint32_t> seed) {
    std::array<std::uint32_t, 4> pool{};
    std::uint32_t factor = 0x43B0D7E5;
    const auto hash = [&](std::uint32_t value) {
      value ^= factor;
      factor *= 0x931E8875;
      value *= factor;
      return value ^ (value >> 16);
    };
    const auto mix = [](std::uint32_t x, std::uint32_t y) {
      const std::uint32_t result = 0xCA01F9DDU * x - 0x4973F715U * y;
      return result ^ (result >> 16);
    };
    for (std::size_t i = 0; i < pool.size(); ++i) {
      pool[i] = hash(i < seed.size() ? seed[i] : 0);
    }
    for (std::size_t from = 0; from < pool.size(); ++from) {
      for (std::size_t to = 0; to < pool.size(); ++to) {
        if (from != to) {
          pool[to] = mix(pool[to], hash(pool[from]));
        }
      }
    }
    for (std::size_t i = pool.size(); i < seed.size(); ++i) {
      for (std::uint32_t& word : pool) {
        word = mix(word, hash(seed[i]));
      }
    }
    std::array<std::uint64_t, 4> out{};
    factor = 0x8B51F9DD;
    for (std::size_t i = 0; i < 8; ++i) {
      std::uint32_t value = pool[i % 4] ^ factor;
      factor *= 0x58F38DED;
      value *= factor;
      value ^= value >> 16;
      out[i / 2] |= static_cast<std::uint64_t>(value) << (32 * (i % 2));
    }
    return out;
  }

  // Uniform in 0 .. most.
  std::uint64_t bounded(std::uint64_t most) {
    constexpr std::uint64_t all = 0xFFFFFFFF;
    if (most == 0) {
      return 0;
    }
    if (most == all) {
      return u32();
    }
    if (most < all) {
      const std::uint64_t n = most + 1;
      std::uint64_t product = std::uint64_t{u32()} * n;
      if ((product & all) < n) {
        const std::uint64_t threshold = (all - most) % n;
        while ((product & all) < threshold) {
          product = std::uint64_t{u32()} * n;
        }
      }
      return product >> 32;
    }
    if (most == ~std::uint64_t{0}) {
      return u64();
    }
    const std::uint64_t n = most + 1;
    Wide product = Wide{u64()} * n;
    if (static_cast<std::uint64_t>(product) < n) {
      const std::uint64_t threshold = (~std::uint64_t{0} - most) % n;
      while (static_cast<std::uint64_t>(product) < threshold) {
        product = Wide{u64()} * n;
      }
    }
    return static_cast<std::uint64_t>(product >> 64);
  }

  // Uniform in 0 .. most, by masks.
  std::uint64_t interval(std::uint64_t most) {
    const std::uint64_t mask = ~std::uint64_t{0} >> std::countl_zero(most);
    for (;;) {
      const std::uint64_t drawn = (most > 0xFFFFFFFF ? u64() : u32()) & mask;
      if (drawn <= most) {
        return drawn;
      }
    }
  }

  Wide state_ = 0;
  Wide increment_ = 0;
  std::uint32_t half_ = 0;
  bool has_half_ = false;
};

}  // namespace tutti::data::detail
