// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <immintrin.h>

#include <tutti/fused/detail/values.hpp>

/// The loops of kernels.hpp with AVX2 and AVX-512. Every function names the instructions that it
/// needs, so the program is compiled for any x86-64 processor and asks at run time.
namespace tutti::fused::detail {

[[gnu::target("avx2,fma"), gnu::always_inline]] inline __m256 times(__m256 x, const Split& by) {
  return _mm256_fmadd_ps(x, _mm256_set1_ps(by.high), _mm256_mul_ps(x, _mm256_set1_ps(by.low)));
}

// Values of 8 bytes.
[[gnu::target("avx2,fma"), gnu::always_inline]] inline __m256 values_avx2(const std::uint8_t* bytes,
                                                                          const Values& values) {
  const __m128i packed = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes));
  const __m256 x = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(packed));
  return times(_mm256_sub_ps(times(x, values.unit), _mm256_set1_ps(values.mean)), values.inverse);
}

[[gnu::target("avx2,fma")]] inline void plain_avx2(const std::uint8_t* bytes, float* out,
                                                   std::int64_t n, const Values& values) {
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    _mm256_storeu_ps(out + i, values_avx2(bytes + i, values));
  }
  look_up(bytes + i, out + i, n - i, values);
}

[[gnu::target("avx2,fma")]] inline void mixed_avx2(const std::uint8_t* bytes,
                                                   const std::uint8_t* partners, float* out,
                                                   std::int64_t n, const Values& values) {
  const __m256 keep = _mm256_set1_ps(values.keep);
  const __m256 mixing = _mm256_set1_ps(values.mixing);
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    __m256 own = _mm256_mul_ps(values_avx2(bytes + i, values), keep);
    __m256 partner = _mm256_mul_ps(values_avx2(partners + i, values), mixing);
    __asm__("" : "+x"(own), "+x"(partner));  // no contraction of product and sum to one rounding
    _mm256_storeu_ps(out + i, _mm256_add_ps(own, partner));
  }
  look_up_mixed(bytes + i, partners + i, out + i, n - i, values);
}

[[gnu::target("avx512f,avx512bw,avx512vl"), gnu::always_inline]] inline __m512 times(
    __m512 x, const Split& by) {
  return _mm512_fmadd_ps(x, _mm512_set1_ps(by.high), _mm512_mul_ps(x, _mm512_set1_ps(by.low)));
}

// Values of 16 bytes.
[[gnu::target("avx512f,avx512bw,avx512vl"), gnu::always_inline]] inline __m512 values_avx512(
    __m128i bytes, const Values& values) {
  // The masks change nothing; without them GCC 12 warns of its own header's uninitialised values.
  const __m512 x = _mm512_maskz_cvtepi32_ps(0xffff, _mm512_maskz_cvtepu8_epi32(0xffff, bytes));
  return times(_mm512_sub_ps(times(x, values.unit), _mm512_set1_ps(values.mean)), values.inverse);
}

// Blends of two times 16 bytes.
[[gnu::target("avx512f,avx512bw,avx512vl"), gnu::always_inline]] inline __m512 blend_avx512(
    __m128i bytes, __m128i partners, const Values& values) {
  __m512 own = _mm512_mul_ps(values_avx512(bytes, values), _mm512_set1_ps(values.keep));
  __m512 partner = _mm512_mul_ps(values_avx512(partners, values), _mm512_set1_ps(values.mixing));
  __asm__("" : "+v"(own), "+v"(partner));  // as above
  return _mm512_add_ps(own, partner);
}

[[gnu::target("avx512f,avx512bw,avx512vl")]] inline void plain_avx512(const std::uint8_t* bytes,
                                                                      float* out, std::int64_t n,
                                                                      const Values& values) {
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m128i packed = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes + i));
    _mm512_storeu_ps(out + i, values_avx512(packed, values));
  }
  if (i < n) {
    const auto rest = static_cast<__mmask16>((1 << (n - i)) - 1);
    const __m128i packed = _mm_maskz_loadu_epi8(rest, bytes + i);
    _mm512_mask_storeu_ps(out + i, rest, values_avx512(packed, values));
  }
}

[[gnu::target("avx512f,avx512bw,avx512vl")]] inline void mixed_avx512(const std::uint8_t* bytes,
                                                                      const std::uint8_t* partners,
                                                                      float* out, std::int64_t n,
                                                                      const Values& values) {
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m128i packed = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes + i));
    const __m128i other = _mm_loadu_si128(reinterpret_cast<const __m128i*>(partners + i));
    _mm512_storeu_ps(out + i, blend_avx512(packed, other, values));
  }
  if (i < n) {
    const auto rest = static_cast<__mmask16>((1 << (n - i)) - 1);
    const __m128i packed = _mm_maskz_loadu_epi8(rest, bytes + i);
    const __m128i other = _mm_maskz_loadu_epi8(rest, partners + i);
    _mm512_mask_storeu_ps(out + i, rest, blend_avx512(packed, other, values));
  }
}

}  // namespace tutti::fused::detail
