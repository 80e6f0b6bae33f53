// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/core/rng.hpp>

namespace tutti {

TUTTI_INLINE Rng Rng::for_policy(std::uint64_t seed, std::string_view name) {
  std::uint64_t hash = 14695981039346656037ULL;  // FNV-1a
  for (const char c : name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  }
  return Rng(seed, hash);
}

TUTTI_INLINE double Rng::uniform() {
  if (replays()) {
    return take((*tape_)->uniforms, "uniform");
  }
  return draw([](auto& bits) { return std::generate_canonical<double, 53>(bits); });
}

TUTTI_INLINE std::int64_t Rng::integer(std::int64_t low, std::int64_t high) {
  TUTTI_CHECK(low < high, "Rng::integer: the range [", low, ", ", high, ") is empty");
  if (replays()) {
    return take((*tape_)->integers, "integer");
  }
  return draw(
      [&](auto& bits) { return std::uniform_int_distribution<std::int64_t>(low, high - 1)(bits); });
}

TUTTI_INLINE double Rng::beta(double a, double b) {
  TUTTI_CHECK(a > 0 && b > 0, "Rng::beta: parameters are ", a, ", ", b, ", expected > 0");
  if (replays()) {
    return take((*tape_)->betas, "beta");
  }
  return draw([&](auto& bits) {
    // With small parameters both gammas can round to 0; such a draw says nothing, so draw again.
    for (;;) {
      const double x = std::gamma_distribution<double>(a)(bits);
      const double y = std::gamma_distribution<double>(b)(bits);
      if (x + y > 0) {
        return x / (x + y);
      }
    }
  });
}

TUTTI_INLINE std::vector<double> Rng::dirichlet(double alpha, std::int64_t n) {
  TUTTI_CHECK(alpha > 0 && n > 0, "Rng::dirichlet: alpha is ", alpha, " and n ", n,
              ", expected both > 0");
  if (replays()) {
    const at::Tensor recorded = take((*tape_)->weights, "dirichlet");
    const auto* first = recorded.const_data_ptr<double>();
    return {first, first + recorded.numel()};
  }
  return draw([&](auto& bits) {
    std::vector<double> weights(static_cast<std::size_t>(n));
    double sum = 0;
    while (sum <= 0) {  // as in beta()
      for (double& weight : weights) {
        weight = std::gamma_distribution<double>(alpha)(bits);
      }
      sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    }
    for (double& weight : weights) {
      weight /= sum;
    }
    return weights;
  });
}

TUTTI_INLINE at::Tensor Rng::choose(const std::vector<double>& weights, std::int64_t count) {
  TUTTI_CHECK(count >= 0 && count <= std::ssize(weights), "Rng::choose: count is ", count,
              ", expected 0 to ", weights.size());
  if (replays()) {
    at::Tensor recorded = take((*tape_)->choices, "choice");
    TUTTI_CHECK(recorded.numel() == count, "Rng: the recorded choice has ", recorded.numel(),
                " entries, expected ", count);
    return recorded;
  }
  // A race: the first to arrive of independent exponential times is drawn by weight.
  std::vector<std::pair<double, std::int64_t>> arrivals(weights.size());
  draw([&](auto& bits) {
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const double time = std::exponential_distribution<double>(1)(bits) / weights[i];
      arrivals[i] = {time, static_cast<std::int64_t>(i)};
    }
    return 0;
  });
  std::partial_sort(arrivals.begin(), arrivals.begin() + count, arrivals.end());
  at::Tensor out(at::detail::empty_cpu({count}, at::kLong, /*pin_memory=*/false, std::nullopt));
  auto* data = out.mutable_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < count; ++i) {
    data[i] = arrivals[static_cast<std::size_t>(i)].second;
  }
  return out;
}

TUTTI_INLINE at::Tensor Rng::permutation(std::int64_t n) {
  if (replays()) {
    at::Tensor recorded = take((*tape_)->permutations, "permutation");
    TUTTI_CHECK(recorded.numel() == n, "Rng: the recorded permutation has ", recorded.numel(),
                " entries, expected ", n);
    return recorded;
  }
  at::Tensor out(at::detail::empty_cpu({n}, at::kLong, /*pin_memory=*/false, std::nullopt));
  auto* data = out.mutable_data_ptr<std::int64_t>();
  std::iota(data, data + n, std::int64_t{0});
  draw([&](auto& bits) {
    for (std::int64_t i = n - 1; i > 0; --i) {
      std::swap(data[i], data[std::uniform_int_distribution<std::int64_t>(0, i)(bits)]);
    }
    return 0;
  });
  return out;
}

}  // namespace tutti
