// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <iterator>
#include <optional>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>

namespace tutti::data {

/// Examples of an epoch drawn by weights, for instance so that rare classes come as often as
/// others.
///
///     tutti::DataLoader train{set, {.weighted = {{.weights = weights}}, .num_workers = 4}};
///
/// The draws depend on the seed and the epoch alone, so that they are dealt to ranks and resume
/// inside an epoch; they are those of torch.multinomial, bit for bit.
/// Source: PyTorch, `torch.utils.data.WeightedRandomSampler`.
struct WeightedSampling {
  std::vector<double> weights{};              ///< one for each example, >= 0; they need no sum of 1
  std::optional<std::int64_t> num_samples{};  ///< draws in an epoch; as many as weights; >= 1
  bool replacement = true;  ///< an example may be drawn more than once in an epoch

  /// Draws in an epoch.
  [[nodiscard]] std::int64_t size() const { return num_samples.value_or(std::ssize(weights)); }

  /// Throws c10::ValueError when the numbers cannot serve a data set of dataset_size examples.
  void validate(std::int64_t dataset_size) const;

  /// The draws of one epoch: int64 [size()], numbers of examples.
  [[nodiscard]] at::Tensor draw(std::uint64_t seed) const;
};

/// Weights with which every class is drawn as often as the others: one by the number of examples
/// of its class. labels: the class of each example.
std::vector<double> balanced_weights(const std::vector<std::int64_t>& labels);

}  // namespace tutti::data

#if TUTTI_BODIES
#include <tutti/data/weighted_sampling.inl.hpp>
#endif
