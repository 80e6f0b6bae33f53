// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/optim/detail/elementwise.hpp>
#include <tutti/optim/detail/step_loops_x86.hpp>

#include <cstddef>

/// The loops of the optimizers that LibTorch has no fused kernel for: 8 elements of each rule, and
/// one skeleton that loads and stores them. Products are contracted where a sum follows, so results
/// differ from LibTorch's single functions in the last bits.
namespace tutti::optim::detail {

/// 8 elements of a parameter.
struct Elements {
  Floats p;           ///< decayed
  Floats g;           ///< turned, and joined by weight decay
  Floats buffers[3];  ///< those that the parameter has
  bool has[3];
};

[[gnu::target("avx2,fma"), gnu::always_inline]] inline Floats lerp(Floats a, Floats b,
                                                                   const Lerp& weight) {
  return fma(all(weight.factor), b - a, weight.from_a ? a : b);
}
/// -1, 0 or 1; NaN stays.
[[gnu::target("avx2,fma"), gnu::always_inline]] inline Floats sign_of(Floats x) {
  const Floats zero{};
  return x > zero ? all(1.0F) : x < zero ? all(-1.0F) : x;
}
/// The larger ones; NaN where one is.
[[gnu::target("avx2,fma"), gnu::always_inline]] inline Floats largest_of(Floats a, Floats b) {
  return a != a ? a : larger(a, b);
}

[[gnu::target("avx2,fma"), gnu::always_inline]] inline void update(const AdagradNumbers& n,
                                                                   Elements& x) {
  Floats& sum = x.buffers[0];
  sum = fma(x.g, x.g, sum);
  x.p = fma(all(n.step), x.g / (root_of(sum) + all(n.eps)), x.p);
}

[[gnu::target("avx2,fma"), gnu::always_inline]] inline void update(const RMSpropNumbers& n,
                                                                   Elements& x) {
  Floats& square = x.buffers[0];
  square = fma(all(n.rest) * x.g, x.g, square * all(n.alpha));
  Floats variance = square;
  if (x.has[2]) {
    Floats& centre = x.buffers[2];
    centre = lerp(centre, x.g, n.centre);
    variance = fma(-centre, centre, square);
  }
  Floats step = x.g / (root_of(variance) + all(n.eps));
  if (x.has[1]) {
    Floats& momentum = x.buffers[1];
    momentum = fma(momentum, all(n.momentum), step);
    step = momentum;
  }
  x.p = fma(all(n.step), step, x.p);
}

[[gnu::target("avx2,fma"), gnu::always_inline]] inline void update(const AdadeltaNumbers& n,
                                                                   Elements& x) {
  Floats& square = x.buffers[0];
  Floats& deltas = x.buffers[1];
  square = fma(all(n.rest) * x.g, x.g, square * all(n.rho));
  const Floats delta = root_of(deltas + all(n.eps)) / root_of(square + all(n.eps)) * x.g;
  deltas = fma(all(n.rest) * delta, delta, deltas * all(n.rho));
  x.p = fma(all(n.step), delta, x.p);
}

[[gnu::target("avx2,fma"), gnu::always_inline]] inline void update(const AdamaxNumbers& n,
                                                                   Elements& x) {
  Floats& momentum = x.buffers[0];
  Floats& largest = x.buffers[1];
  momentum = lerp(momentum, x.g, n.first);
  const Floats size = x.g < Floats{} ? -x.g : x.g;
  largest = largest_of(largest * all(n.beta2), size + all(n.eps));
  x.p = fma(all(n.step), momentum / largest, x.p);
}

[[gnu::target("avx2,fma"), gnu::always_inline]] inline void update(const NAdamNumbers& n,
                                                                   Elements& x) {
  Floats& momentum = x.buffers[0];
  Floats& square = x.buffers[1];
  momentum = lerp(momentum, x.g, n.first);
  square = fma(all(n.rest2) * x.g, x.g, square * all(n.beta2));
  const Floats root = root_of(square / all(n.correction2)) + all(n.eps);
  x.p = x.p + fma(all(n.momentum_step), momentum, all(n.gradient_step) * x.g) / root;
}

[[gnu::target("avx2,fma"), gnu::always_inline]] inline void update(const RAdamNumbers& n,
                                                                   Elements& x) {
  Floats& momentum = x.buffers[0];
  Floats& square = x.buffers[1];
  momentum = lerp(momentum, x.g, n.first);
  square = fma(all(n.rest2) * x.g, x.g, square * all(n.beta2));
  x.p = n.rectified ? fma(all(n.step), momentum / (root_of(square) + all(n.eps)), x.p)
                    : fma(all(n.step), momentum, x.p);
}

[[gnu::target("avx2,fma"), gnu::always_inline]] inline void update(const ASGDNumbers& n,
                                                                   Elements& x) {
  x.p = fma(all(n.step), x.g, x.p);
  Floats& average = x.buffers[0];
  average = n.averages ? lerp(average, x.p, n.average) : x.p;
}

[[gnu::target("avx2,fma"), gnu::always_inline]] inline void update(const RpropNumbers& n,
                                                                   Elements& x) {
  Floats& before = x.buffers[0];
  Floats& step = x.buffers[1];
  const Floats zero{};
  const Floats agreement = sign_of(x.g * before);
  const Floats factor = agreement > zero   ? all(n.eta_plus)
                        : agreement < zero ? all(n.eta_minus)
                                           : all(1.0F);
  step = smaller(all(n.largest), larger(all(n.smallest), step * factor));
  x.g = agreement < zero ? zero : x.g;
  x.p = x.p - sign_of(x.g) * step;
  before = x.g;
}

[[gnu::target("avx2,fma"), gnu::always_inline]] inline void update(const LionNumbers& n,
                                                                   Elements& x) {
  Floats& momentum = x.buffers[0];
  x.p = fma(all(n.step), sign_of(lerp(momentum, x.g, n.update)), x.p);
  momentum = lerp(momentum, x.g, n.first);
}

[[gnu::target("avx2,fma"), gnu::always_inline]] inline void update(const ScheduleFreeNumbers& n,
                                                                   Elements& x) {
  Floats direction = x.g;
  if (n.adam) {
    Floats& square = x.buffers[1];
    square = fma(all(n.rest2) * x.g, x.g, square * all(n.beta2));
    direction = x.g / (root_of(square / all(n.correction2)) + all(n.eps));
  }
  if (n.decay != 0) {
    direction = fma(all(n.decay), x.p, direction);
  }
  Floats& z = x.buffers[0];
  x.p = fma(all(n.y_step), direction, lerp(x.p, z, n.average));
  z = fma(all(n.z_step), direction, z);
}

template <bool Last, class Numbers>
  requires(Numbers::buffers > 0)
[[gnu::target("avx2,fma"), gnu::always_inline]] inline void advance(const ParameterView& s,
                                                                    const Block<Last>& block,
                                                                    const Numbers& n,
                                                                    const StepExtras& f) {
  Elements x;
  x.g = gradient(s, block, f) * all(n.sign);
  x.p = load(s.parameter, block);
  if (n.coupled != 0) {
    x.g = fma(x.p, all(n.coupled), x.g);
  }
  x.p = x.p * all(n.keep);
  for (std::size_t b = 0; b < Numbers::buffers; ++b) {
    x.has[b] = s.buffers[b] != nullptr;
    x.buffers[b] = x.has[b] ? load(s.buffers[b], block) : Floats{};
  }
  update(n, x);
  for (std::size_t b = 0; b < Numbers::buffers; ++b) {
    if (x.has[b]) {
      store(s.buffers[b], block, x.buffers[b]);
    }
  }
  finish(s, block, f, x.p);
}

}  // namespace tutti::optim::detail
