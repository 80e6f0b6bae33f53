// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/data/weighted_sampling.hpp>

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
