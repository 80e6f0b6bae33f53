// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <tutti/algorithms/detail/averages.hpp>
#include <tutti/config.hpp>
#include <tutti/core/archive.hpp>
#include <tutti/core/detail/throw.hpp>

/// The functional form of SWA; include <tutti/algorithms/swa.hpp>.
namespace tutti::functional {

/// The mean of a model's weights over several moments of its training, each counting the same.
///
///     functional::WeightMean mean;
///     for (...) { train_an_epoch(); mean.update(*model); }
///     mean.copy_to(*model);
///
/// Parameters are averaged where they are, on their device and in their type; buffers are copied
/// from the latest model. Tied tensors are averaged once.
/// Source: Izmailov et al., "Averaging Weights Leads to Wider Optima and Better Generalization",
/// UAI 2018, algorithm 1; PyTorch, `torch.optim.swa_utils.AveragedModel`.
class WeightMean {
 public:
  /// Takes the present weights in: the first are copied, then `a += (w - a) / (n + 1)`.
  ///
  /// average_buffers: floating buffers, such as running statistics, are averaged too. sharding: of
  /// the model; set, its shards stand for the parameters.
  /// Throws c10::Error when the model has other tensors than in the calls before.
  void update(const torch::nn::Module& model, bool average_buffers = false,
              const dist::Sharding* sharding = nullptr);

  /// Copies the mean into the model's tensors; parameters that require no gradient keep what they
  /// have. sharding: as above; after_step() has to follow on it. Throws c10::Error when the model
  /// has other tensors.
  void copy_to(const torch::nn::Module& model, const dist::Sharding* sharding = nullptr) const;

  /// Keeps this rank's parts of the mean: the model has been sharded.
  void cut(const torch::nn::Module& model, const dist::Sharding& sharding);

  /// How many moments are in the mean.
  [[nodiscard]] std::int64_t count() const { return count_; }

  /// The mean by name; empty before the first update.
  [[nodiscard]] const std::vector<std::pair<std::string, at::Tensor>>& means() const {
    return means_;
  }

  void save(Archive& archive) const;
  void load(const Archive& archive);

 private:
  static std::unordered_set<const void*> buffers_of(const torch::nn::Module& model) {
    std::unordered_set<const void*> out;
    for (const at::Tensor& buffer : model.buffers()) {
      out.insert(buffer.unsafeGetTensorImpl());
    }
    return out;
  }

  void check(const ::tutti::detail::NamedTensorList& weights) const;

  std::vector<std::pair<std::string, at::Tensor>> means_;
  std::int64_t count_ = 0;
};

}  // namespace tutti::functional

#if TUTTI_BODIES

namespace tutti::functional {

TUTTI_INLINE void WeightMean::update(const torch::nn::Module& model, bool average_buffers,
                                     const dist::Sharding* sharding) {
  const auto weights = ::tutti::detail::weights_of(model, /*trainable=*/false, sharding);
  if (count_ == 0) {
    for (const auto& [name, weight] : weights) {
      means_.emplace_back(name, weight.detach().clone());
    }
  } else {
    check(weights);
    const auto buffers = buffers_of(model);
    ::tutti::detail::AverageLists averaged;
    ::tutti::detail::AverageLists copied;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const at::Tensor& weight = weights[i].second;
      at::Tensor& mean = means_[i].second;
      mean = mean.to(weight.device());
      const bool copies = !average_buffers && buffers.contains(weight.unsafeGetTensorImpl());
      (copies ? copied : averaged).add(mean, weight.detach());
    }
    const auto n = static_cast<double>(count_);
    averaged.update(n / (n + 1), /*average_integers=*/false);
    copied.update(0, /*average_integers=*/false);
  }
  ++count_;
}

TUTTI_INLINE void WeightMean::cut(const torch::nn::Module& model, const dist::Sharding& sharding) {
  const auto now = ::tutti::detail::tensors_by_name(model);
  for (auto& [name, mean] : means_) {
    if (const auto found = now.find(name); found != now.end()) {
      mean = ::tutti::detail::part_of(sharding, found->second, mean);
    }
  }
}

TUTTI_INLINE void WeightMean::copy_to(const torch::nn::Module& model,
                                      const dist::Sharding* sharding) const {
  const auto weights = ::tutti::detail::weights_of(model, /*trainable=*/false, sharding);
  check(weights);
  const auto buffers = buffers_of(model);
  const c10::AutoGradMode no_grad(false);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    at::Tensor weight = weights[i].second;
    if (weight.requires_grad() || buffers.contains(weight.unsafeGetTensorImpl())) {
      weight.copy_(means_[i].second);
    }
  }
}

TUTTI_INLINE void WeightMean::save(Archive& archive) const {
  archive.put("count", count_);
  Archive& weights = archive.child("weights");
  for (const auto& [name, mean] : means_) {
    weights.put(name, mean);
  }
}

TUTTI_INLINE void WeightMean::load(const Archive& archive) {
  count_ = archive.get<std::int64_t>("count");
  means_.clear();
  const Archive& weights = archive.child("weights");
  for (const std::string& name : weights.names()) {
    means_.emplace_back(name, weights.tensor(name).clone());
  }
}

TUTTI_INLINE void WeightMean::check(const ::tutti::detail::NamedTensorList& weights) const {
  TUTTI_CHECK(weights.size() == means_.size(), "SWA: the model has ", weights.size(),
              " tensors, expected ", means_.size(),
              " as when averaging began; replace layers before that, and resume with the same "
              "model");
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const auto& [name, weight] = weights[i];
    TUTTI_CHECK(name == means_[i].first && weight.sizes() == means_[i].second.sizes(),
                "SWA: the model's tensor \"", name, "\" is ", weight.sizes(), ", expected \"",
                means_[i].first, "\" of ", means_[i].second.sizes(),
                " as when averaging began; replace layers before that, and resume with the same "
                "model");
  }
}

}  // namespace tutti::functional

#endif
