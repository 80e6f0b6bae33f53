// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include <tutti/core/detail/cpu.hpp>
#include <tutti/fused/detail/values.hpp>
#if defined(__x86_64__)
#include <tutti/fused/detail/kernels_x86.hpp>
#endif

/// The inner loops of a fused pass, for the processor that the program runs on.
namespace tutti::fused::detail {

/// Loops for processors with one set of instructions.
struct Kernels {
  const char* name;
  void (*plain)(const std::uint8_t*, float*, std::int64_t, const Values&);  ///< v
  void (*mixed)(const std::uint8_t*, const std::uint8_t*, float*, std::int64_t,
                const Values&);  ///< (1 - mixing) * v + mixing * v of the second
};

inline constexpr Kernels by_table{"table", look_up, look_up_mixed};

/// What the processor can do, best last.
inline const std::vector<Kernels>& available() {
  static const std::vector<Kernels> found = [] {
    std::vector<Kernels> all{by_table};
#if defined(__x86_64__)
    if (::tutti::detail::has_avx2()) {
      all.push_back({"AVX2", plain_avx2, mixed_avx2});
    }
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl")) {
      all.push_back({"AVX-512", plain_avx512, mixed_avx512});
    }
#endif
    return all;
  }();
  return found;
}

/// The kernels compute what the table says, bit by bit, for each of the 256 bytes.
inline bool agrees(const Kernels& kernels, const Values& values) {
  std::array<std::uint8_t, 256> bytes;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::uint8_t>(i);
  }
  std::array<float, 256> got;
  kernels.plain(bytes.data(), got.data(), std::ssize(got), values);
  return std::memcmp(got.data(), values.plain.data(), sizeof(got)) == 0;
}

/// The best kernels for these values.
inline Kernels choose(const Values& values) {
  const Kernels& best = available().back();
  return agrees(best, values) ? best : by_table;
}

}  // namespace tutti::fused::detail
