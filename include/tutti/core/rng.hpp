// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <numeric>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/EmptyTensor.h>
#include <ATen/core/PhiloxRNGEngine.h>
#include <ATen/core/Tensor.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/switched.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/lazy.hpp>
#include <tutti/core/policy.hpp>

namespace tutti {

/// Recorded draws, given out first in, first out, by kind; feeds an Rng that replays.
struct Tape {
  std::deque<double> betas;             ///< values of beta()
  std::deque<double> uniforms;          ///< values of uniform()
  std::deque<std::int64_t> integers;    ///< values of integer()
  std::deque<at::Tensor> permutations;  ///< values of permutation(), int64 [n]
  std::deque<at::Tensor> choices;       ///< values of choose(), int64 [count]
  std::deque<at::Tensor> weights;       ///< values of dirichlet(), double [n]
};

/// A stream of random numbers of one policy.
///
/// A policy that draws has a member `Rng rng`; the engine seeds it with the run's seed and the
/// policy's name and puts it into checkpoints, so adding a policy does not shift the draws of
/// another. The stream is a counter (Philox 4x32-10): saving it is saving three numbers.
/// Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
class Rng {
  struct Bits {  // a uniform random bit generator that counts what it takes
    using result_type = std::uint32_t;
    static constexpr result_type min() { return 0; }
    static constexpr result_type max() { return 0xffffffffU; }
    result_type operator()() {
      ++taken;
      return engine();
    }
    at::philox_engine engine;
    std::uint64_t taken = 0;
  };

  template <class F>
  auto draw(F&& f) {
    Bits bits{at::philox_engine(seed_, stream_)};
    bits.engine.set_offset(position_);
    auto value = std::forward<F>(f)(bits);
    position_ += (bits.taken + 3) / 4;
    return value;
  }

 public:
  /// seed: of the run and rank; stream: which of its independent streams.
  constexpr explicit Rng(std::uint64_t seed = 0, std::uint64_t stream = 0)
      : seed_(seed), stream_(stream) {}

  /// The stream of the policy called `name`, at its beginning.
  static Rng for_policy(std::uint64_t seed, std::string_view name);

  /// Uniform in [0, 1).
  double uniform();

  /// Uniform in [low, high).
  double uniform(double low, double high) { return low + (high - low) * uniform(); }

  /// A whole number of [low, high), each as likely. Throws c10::Error unless low < high.
  std::int64_t integer(std::int64_t low, std::int64_t high);

  /// Beta(a, b) in [0, 1]. Throws c10::Error unless a > 0 and b > 0.
  double beta(double a, double b);

  /// `n` positive numbers that sum to 1, from Dirichlet(alpha, ..., alpha). Throws c10::Error
  /// unless alpha > 0 and n > 0.
  std::vector<double> dirichlet(double alpha, std::int64_t n);

  /// `count` of the numbers 0..n-1, n = weights.size(), without repetition: each next one with a
  /// probability in proportion to its weight among those that are left. int64 [count], on the CPU.
  /// weights: > 0. Throws c10::Error unless 0 <= count <= n.
  at::Tensor choose(const std::vector<double>& weights, std::int64_t count);

  /// The numbers 0..n-1 in random order: int64 [n], on the CPU.
  at::Tensor permutation(std::int64_t n);

  /// Gives out recorded draws from now on, for comparison with another system's run; a draw of a
  /// kind that has run out throws c10::Error. nullptr draws again.
  void replay(std::shared_ptr<Tape> tape) { *tape_ = std::move(tape); }

  /// Draws are recorded ones.
  [[nodiscard]] bool replays() const { return *tape_ != nullptr; }

  [[nodiscard]] std::uint64_t seed() const { return seed_; }
  [[nodiscard]] std::uint64_t stream() const { return stream_; }

  /// How far the stream has come, in blocks of four 32-bit numbers.
  [[nodiscard]] std::uint64_t position() const { return position_; }

  /// Goes on from a saved position.
  void restore(std::uint64_t seed, std::uint64_t stream, std::uint64_t position) {
    seed_ = seed;
    stream_ = stream;
    position_ = position;
  }

 private:
  template <class T>
  static T take(std::deque<T>& recorded, const char* kind) {
    TUTTI_CHECK(!recorded.empty(), "Rng: no recorded ", kind, " is left to replay");
    T value = std::move(recorded.front());
    recorded.pop_front();
    return value;
  }

 public:  // structural types, which With<MixUp{...}> needs, have no private data
  std::uint64_t seed_;
  std::uint64_t stream_;
  std::uint64_t position_ = 0;
  Lazy<std::shared_ptr<Tape>> tape_{};
};

/// The stream of a policy that draws, also of one inside a Switch; nullptr when it draws nothing.
template <class P>
Rng* rng_of(P& policy) {
  if constexpr (detail::Draws<detail::Unswitched<P>>) {
    return &detail::unswitched(policy).rng;
  } else {
    return nullptr;
  }
}

/// Puts the stream of a policy that draws at its beginning, unless it replays recorded draws.
template <class P>
void seed_policy(P& policy, std::uint64_t seed) {
  if (Rng* rng = rng_of(policy); rng != nullptr && !rng->replays()) {
    *rng = Rng::for_policy(seed, name_of<P>());
  }
}

/// The same for all policies of an Engine. The trainer does it; a loop of one's own has to.
template <class Engine>
void seed_policies(Engine& engine, std::uint64_t seed) {
  engine.for_each([seed](auto& policy) { seed_policy(policy, seed); });
}

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/core/rng.inl.hpp>
#endif
