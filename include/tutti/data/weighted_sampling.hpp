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

#include <map>

namespace tutti::data {

TUTTI_INLINE void WeightedSampling::validate(std::int64_t dataset_size) const {
  TUTTI_CHECK_VALUE(std::ssize(weights) == dataset_size, "WeightedSampling: there are ",
                    weights.size(), " weights and ", dataset_size, " examples, expected as many");
  constexpr std::int64_t most = 1 << 24;  // LibTorch's multinomial
  TUTTI_CHECK_VALUE(dataset_size <= most, "WeightedSampling: there are ", dataset_size,
                    " weights, expected at most ", most);
  std::int64_t positive = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    TUTTI_CHECK_VALUE(weights[i] >= 0 && std::isfinite(weights[i]), "WeightedSampling: weight ", i,
                      " is ", weights[i], ", expected a finite number of 0 or more");
    positive += weights[i] > 0 ? 1 : 0;
  }
  TUTTI_CHECK_VALUE(positive > 0, "WeightedSampling: no weight is above 0");
  TUTTI_CHECK_VALUE(size() >= 1, "WeightedSampling: num_samples is ", size(),
                    ", expected 1 or more");
  TUTTI_CHECK_VALUE(replacement || size() <= positive, "WeightedSampling: num_samples is ", size(),
                    ", expected at most ", positive,
                    ", the number of weights above 0, without replacement");
}

TUTTI_INLINE at::Tensor WeightedSampling::draw(std::uint64_t seed) const {
  const at::Tensor all =
      at::from_blob(const_cast<double*>(weights.data()), {std::ssize(weights)}, at::kDouble);
  return all.multinomial(size(), replacement, at::detail::createCPUGenerator(seed));
}

TUTTI_INLINE std::vector<double> balanced_weights(const std::vector<std::int64_t>& labels) {
  std::map<std::int64_t, double> counts;
  for (const std::int64_t label : labels) {
    ++counts[label];
  }
  std::vector<double> weights;
  weights.reserve(labels.size());
  for (const std::int64_t label : labels) {
    weights.push_back(1 / counts[label]);
  }
  return weights;
}

}  // namespace tutti::data

#endif
