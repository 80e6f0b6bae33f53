// SPDX-License-Identifier: Apache-2.0
#pragma once

// Batches and stages that the tests of the passes share.

#include <ATen/ATen.h>

#include <tuple>
#include <vector>

#include <tutti/fused/normalize.hpp>

namespace fused_subsets {

inline const std::vector<std::vector<std::int64_t>> sizes{
    {6, 3, 16, 20}, {1, 3, 16, 20}, {5, 3, 13, 17}, {3, 1, 7, 5}, {2, 2, 3, 2}, {4, 3, 40, 33}};

inline at::Tensor bytes(const std::vector<std::int64_t>& size, std::uint64_t seed) {
  at::manual_seed(seed);
  return at::randint(0, 256, size, at::kByte);
}

inline tutti::fused::Normalize normalize(std::int64_t channels) {
  const std::vector<double> mean{0.485, 0.456, 0.406};
  const std::vector<double> std{0.229, 0.224, 0.225};
  return {.mean = {mean.begin(), mean.begin() + channels},
          .std = {std.begin(), std.begin() + channels}};
}

// Those stages of all whose bit is set in Subset, in order, as a tuple.
template <unsigned Subset, std::size_t I = 0, class... Stages>
auto chosen(const std::tuple<Stages...>& all) {
  if constexpr (I == sizeof...(Stages)) {
    return std::tuple<>{};
  } else if constexpr ((Subset >> I & 1U) != 0) {
    return std::tuple_cat(std::tuple(std::get<I>(all)), chosen<Subset, I + 1>(all));
  } else {
    return chosen<Subset, I + 1>(all);
  }
}

}  // namespace fused_subsets
