#pragma once

#include <tutti/optim/detail/strip.hpp>

#include <cstdint>

#include <immintrin.h>

/// The loops of strips.hpp with AVX2. Every function names the instructions that it needs, so the
/// program is compiled for any x86-64 processor and asks at run time.
///
/// Results are those of LibTorch's fused kernels, bit by bit: the same blocks of 8, the same
/// products contracted, and in the last n % 8 elements the other ones that its compiler chose.
namespace tutti::optim::detail {

/// Where a block of 8 elements is; of the last one only `mask` exists.
template <bool Last>
struct Block {
  std::int64_t at;
  __m256i mask;
};

template <bool Last>
[[gnu::target("avx2,fma"), gnu::always_inline]] inline __m256 load(const float* x,
                                                                   const Block<Last>& block) {
  if constexpr (Last) {
    return _mm256_maskload_ps(x + block.at, block.mask);
  } else {
    return _mm256_loadu_ps(x + block.at);
  }
}

template <bool Last>
[[gnu::target("avx2,fma"), gnu::always_inline]] inline void store(float* x,
                                                                  const Block<Last>& block,
                                                                  __m256 value) {
  if constexpr (Last) {
    _mm256_maskstore_ps(x + block.at, block.mask, value);
  } else {
    _mm256_storeu_ps(x + block.at, value);
  }
}

[[gnu::target("avx2,fma"), gnu::always_inline]] inline __m256 all(float x) {
  return _mm256_set1_ps(x);
}

/// The gradient, scaled and limited; NaN stays.
template <bool Last>
[[gnu::target("avx2,fma"), gnu::always_inline]] inline __m256 gradient(const Strip& s,
                                                                       const Block<Last>& block,
                                                                       const Fold& f) {
  __m256 g = _mm256_mul_ps(load(s.gradient, block), all(f.scale));
  g = _mm256_min_ps(all(f.limit), _mm256_max_ps(all(-f.limit), g));
  if (f.keep) {
    store(s.gradient, block, g);
  }
  return g;
}

template <bool Last>
[[gnu::target("avx2,fma"), gnu::always_inline]] inline void finish(const Strip& s,
                                                                   const Block<Last>& block,
                                                                   const Fold& f, __m256 p) {
  store(s.parameter, block, p);
  if (s.average != nullptr) {
    const __m256 e = load(s.average, block);
    store(s.average, block, _mm256_fmadd_ps(_mm256_sub_ps(e, p), all(f.follow), e));
  }
}

template <bool Last>
[[gnu::target("avx2,fma"), gnu::always_inline]] inline void advance(const Strip& s,
                                                                    const Block<Last>& block,
                                                                    const AdamNumbers& a,
                                                                    const Fold& f) {
  __m256 g = _mm256_mul_ps(gradient(s, block, f), all(a.sign));
  __m256 p = load(s.parameter, block);
  if (a.shrink != 0) {
    p = _mm256_fmadd_ps(p, all(a.shrink), p);
  }
  if (a.coupled != 0) {
    g = _mm256_fmadd_ps(p, all(a.coupled), g);
  }
  p = _mm256_mul_ps(p, all(a.keep));
  __asm__("" : "+x"(p));  // no contraction with the sum below
  __m256 m = load(s.buffers[0], block);
  m = _mm256_fmadd_ps(all(a.lerp), _mm256_sub_ps(g, m), a.lerp > 0 ? m : g);
  store(s.buffers[0], block, m);
  __m256 v = load(s.buffers[1], block);
  const __m256 part = _mm256_mul_ps(all(a.rest2), g);
  v = Last ? _mm256_fmadd_ps(v, all(a.beta2), _mm256_mul_ps(part, g))
           : _mm256_fmadd_ps(part, g, _mm256_mul_ps(v, all(a.beta2)));
  store(s.buffers[1], block, v);
  if (s.buffers[2] != nullptr) {
    const __m256 largest = load(s.buffers[2], block);
    const __m256 unordered = _mm256_cmp_ps(largest, v, _CMP_UNORD_Q);
    v = _mm256_or_ps(_mm256_max_ps(largest, v), unordered);  // NaN where one is
    store(s.buffers[2], block, v);
  }
  const __m256 root = _mm256_add_ps(_mm256_div_ps(_mm256_sqrt_ps(v), all(a.root)), all(a.eps));
  p = _mm256_add_ps(p, _mm256_div_ps(_mm256_mul_ps(all(a.step), m), root));
  finish(s, block, f, p);
}

template <bool Last>
[[gnu::target("avx2,fma"), gnu::always_inline]] inline void advance(const Strip& s,
                                                                    const Block<Last>& block,
                                                                    const SgdNumbers& a,
                                                                    const Fold& f) {
  __m256 g = _mm256_mul_ps(gradient(s, block, f), all(a.sign));
  __m256 p = load(s.parameter, block);
  if (a.shrink != 0) {
    p = _mm256_fmadd_ps(p, all(a.shrink), p);
  }
  if (a.coupled != 0) {
    g = _mm256_fmadd_ps(p, all(a.coupled), g);
  }
  if (s.buffers[0] != nullptr) {
    __m256 buffer = g;
    if (!a.first) {
      buffer = load(s.buffers[0], block);
      buffer = Last ? _mm256_fmadd_ps(buffer, all(a.momentum), _mm256_mul_ps(g, all(a.undamped)))
                    : _mm256_fmadd_ps(all(a.undamped), g, _mm256_mul_ps(buffer, all(a.momentum)));
    }
    store(s.buffers[0], block, buffer);
    g = a.nesterov ? _mm256_fmadd_ps(buffer, all(a.momentum), g) : buffer;
  }
  finish(s, block, f, _mm256_fmadd_ps(g, all(a.step), p));
}

/// Elements [from, to) of a strip; both are multiples of 8, or `to` is its end. Numbers come by
/// value, so that no store can change them.
template <class Numbers>
[[gnu::target("avx2,fma")]] void sweep_avx2(const Strip s, const std::int64_t from,
                                            const std::int64_t to, const Numbers numbers,
                                            const Fold fold) {
  std::int64_t i = from;
  for (; i + 8 <= to; i += 8) {
    advance(s, Block<false>{i, {}}, numbers, fold);
  }
  if (i < to) {
    alignas(32) static constexpr std::int32_t lanes[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
    const auto* mask = reinterpret_cast<const __m256i*>(lanes + 8 - (to - i));
    advance(s, Block<true>{i, _mm256_loadu_si256(mask)}, numbers, fold);
  }
}

}  // namespace tutti::optim::detail
