// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace tutti::detail {

// This processor has the instructions that functions of the target "avx2,fma" need.
inline bool has_avx2() {
#if defined(__x86_64__)
  static const bool can = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return can;
#else
  return false;
#endif
}

// Products of bfloat16 matrices are faster than those of floats on this processor.
inline bool has_fast_bfloat16() {
#if defined(__x86_64__)
  static const bool can = __builtin_cpu_supports("avx512bf16");
  return can;
#else
  return false;
#endif
}

}  // namespace tutti::detail
