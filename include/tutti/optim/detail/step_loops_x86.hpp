// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/optim/detail/parameter_view.hpp>

#include <cstdint>

/// The loops of views.hpp with AVX2. Every function names the instructions that it needs, so the
/// program is compiled for any x86-64 processor and asks at run time.
///
/// Results are those of LibTorch's fused kernels, bit by bit: the same blocks of 8, the same
/// products contracted, and in the last n % 8 elements the other ones that its compiler chose.
namespace tutti::optim::detail {

using Floats = float __attribute__((vector_size(32)));
using Lanes = std::int32_t __attribute__((vector_size(32)));

// Instructions that the language has no sign for, without the 40,000 lines of <immintrin.h>.
[[gnu::target("avx2,fma"), gnu::always_inline]] inline Floats all(float x) {
  return Floats{x, x, x, x, x, x, x, x};
}
/// a * b + c, rounded once.
[[gnu::target("avx2,fma"), gnu::always_inline]] inline Floats fma(Floats a, Floats b, Floats c) {
  __asm__("vfmadd231ps {%2, %1, %0|%0, %1, %2}" : "+x"(c) : "x"(a), "x"(b));
  return c;
}
[[gnu::target("avx2,fma"), gnu::always_inline]] inline Floats root_of(Floats x) {
  __asm__("vsqrtps {%1, %0|%0, %1}" : "=x"(x) : "x"(x));
  return x;
}
/// The smaller and the larger ones; b where one is NaN.
[[gnu::target("avx2,fma"), gnu::always_inline]] inline Floats smaller(Floats a, Floats b) {
  __asm__("vminps {%2, %1, %0|%0, %1, %2}" : "=x"(a) : "x"(a), "x"(b));
  return a;
}
[[gnu::target("avx2,fma"), gnu::always_inline]] inline Floats larger(Floats a, Floats b) {
  __asm__("vmaxps {%2, %1, %0|%0, %1, %2}" : "=x"(a) : "x"(a), "x"(b));
  return a;
}

/// Where a block of 8 elements is; of the last one only those in `mask` exist.
template <bool Last>
struct Block {
  std::int64_t at;
  Lanes mask;
};

template <bool Last>
[[gnu::target("avx2,fma"), gnu::always_inline]] inline Floats load(const float* x,
                                                                   const Block<Last>& block) {
  Floats out;
  if constexpr (Last) {
    const float* from = x + block.at;
    __asm__("vmaskmovps {(%1), %2, %0|%0, %2, [%1]}"
            : "=x"(out)
            : "r"(from), "x"(block.mask)
            : "memory");
  } else {
    __builtin_memcpy(&out, x + block.at, sizeof(out));
  }
  return out;
}

template <bool Last>
[[gnu::target("avx2,fma"), gnu::always_inline]] inline void store(float* x,
                                                                  const Block<Last>& block,
                                                                  Floats value) {
  if constexpr (Last) {
    float* to = x + block.at;
    __asm__ volatile("vmaskmovps {%2, %1, (%0)|[%0], %1, %2}"
                     :
                     : "r"(to), "x"(block.mask), "x"(value)
                     : "memory");
  } else {
    __builtin_memcpy(x + block.at, &value, sizeof(value));
  }
}

/// The gradient, scaled and limited; NaN stays.
template <bool Last>
[[gnu::target("avx2,fma"), gnu::always_inline]] inline Floats gradient(const ParameterView& s,
                                                                       const Block<Last>& block,
                                                                       const StepExtras& f) {
  Floats g = load(s.gradient, block) * all(f.scale);
  g = smaller(all(f.limit), larger(all(-f.limit), g));
  if (f.keep) {
    store(s.gradient, block, g);
  }
  return g;
}

template <bool Last>
[[gnu::target("avx2,fma"), gnu::always_inline]] inline void finish(const ParameterView& s,
                                                                   const Block<Last>& block,
                                                                   const StepExtras& f, Floats p) {
  store(s.parameter, block, p);
  if (s.average != nullptr) {
    const Floats e = load(s.average, block);
    store(s.average, block, fma(e - p, all(f.follow), e));
  }
}

template <bool Last>
[[gnu::target("avx2,fma"), gnu::always_inline]] inline void advance(const ParameterView& s,
                                                                    const Block<Last>& block,
                                                                    const AdamNumbers& a,
                                                                    const StepExtras& f) {
  Floats g = gradient(s, block, f) * all(a.sign);
  Floats p = load(s.parameter, block);
  if (a.shrink != 0) {
    p = fma(p, all(a.shrink), p);
  }
  if (a.coupled != 0) {
    g = fma(p, all(a.coupled), g);
  }
  p = p * all(a.keep);
  __asm__("" : "+x"(p));  // no contraction with the sum below
  Floats m = load(s.buffers[0], block);
  m = fma(all(a.lerp), g - m, a.lerp > 0 ? m : g);
  store(s.buffers[0], block, m);
  Floats v = load(s.buffers[1], block);
  const Floats part = all(a.rest2) * g;
  v = Last ? fma(v, all(a.beta2), part * g) : fma(part, g, v * all(a.beta2));
  store(s.buffers[1], block, v);
  if (s.buffers[2] != nullptr) {
    const Floats largest = load(s.buffers[2], block);
    v = largest != largest ? largest : larger(largest, v);  // NaN where one is
    store(s.buffers[2], block, v);
  }
  const Floats root = root_of(v) / all(a.root) + all(a.eps);
  p = p + all(a.step) * m / root;
  finish(s, block, f, p);
}

template <bool Last>
[[gnu::target("avx2,fma"), gnu::always_inline]] inline void advance(const ParameterView& s,
                                                                    const Block<Last>& block,
                                                                    const SgdNumbers& a,
                                                                    const StepExtras& f) {
  Floats g = gradient(s, block, f) * all(a.sign);
  Floats p = load(s.parameter, block);
  if (a.shrink != 0) {
    p = fma(p, all(a.shrink), p);
  }
  if (a.coupled != 0) {
    g = fma(p, all(a.coupled), g);
  }
  if (s.buffers[0] != nullptr) {
    Floats buffer = g;
    if (!a.first) {
      buffer = load(s.buffers[0], block);
      buffer = Last ? fma(buffer, all(a.momentum), g * all(a.undamped))
                    : fma(all(a.undamped), g, buffer * all(a.momentum));
    }
    store(s.buffers[0], block, buffer);
    g = a.nesterov ? fma(buffer, all(a.momentum), g) : buffer;
  }
  finish(s, block, f, fma(g, all(a.step), p));
}

/// Elements [from, to) of a view; both are multiples of 8, or `to` is its end. Numbers come by
/// value, so that no store can change them.
template <class Numbers>
[[gnu::target("avx2,fma")]] void step_avx2(const ParameterView s, const std::int64_t from,
                                           const std::int64_t to, const Numbers numbers,
                                           const StepExtras extras) {
  std::int64_t i = from;
  for (; i + 8 <= to; i += 8) {
    advance(s, Block<false>{i, {}}, numbers, extras);
  }
  if (i < to) {
    Lanes mask{};
    for (std::int64_t lane = 0; lane < to - i; ++lane) {
      mask[lane] = -1;
    }
    advance(s, Block<true>{i, mask}, numbers, extras);
  }
}

}  // namespace tutti::optim::detail
