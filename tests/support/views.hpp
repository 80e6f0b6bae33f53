// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>

#include <tutti/core/batch.hpp>
#include <tutti/views/examples.hpp>

/// What the tests of views share.
namespace views_test {

namespace views = tutti::views;

/// Example number i.
inline at::Tensor example(std::int64_t i) {
  return at::full({2}, static_cast<float>(i));
}

/// The batches of an epoch from one of them on.
template <class Loader>
std::vector<tutti::Batch> rest_of(Loader loader, std::int64_t epoch, std::int64_t from = 0) {
  std::vector<tutti::Batch> out;
  loader.start(epoch, from);
  while (auto batch = loader.next()) {
    out.push_back(std::move(*batch));
  }
  return out;
}

inline bool same(const std::vector<tutti::Batch>& a, const std::vector<tutti::Batch>& b) {
  return std::equal(
      a.begin(), a.end(), b.begin(), b.end(),
      [](const tutti::Batch& x, const tutti::Batch& y) { return x.inputs().equal(y.inputs()); });
}

/// What a step gives in a pass.
template <class T, bool indexed>
std::vector<T> all_of(const views::Examples<T, indexed>& step, std::int64_t epoch = 0,
                      std::uint64_t seed = 0, std::int64_t rank = 0, std::int64_t world = 1) {
  tutti::detail::Pass pass{.epoch = epoch, .seed = seed, .rank = rank, .world_size = world};
  const tutti::detail::InPass in_pass(pass);
  std::vector<T> out;
  for (auto&& element : step) {
    out.push_back(std::move(element));
  }
  return out;
}

}  // namespace views_test
