// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/GradMode.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>

#include <tutti/config.hpp>

namespace tutti::detail {

// Everything but the batch normalisation of a model in eval mode, and that with statistics that are
// plain means over the batches seen; all is as before on destruction, except the statistics.
class StatisticsOnly {
 public:
  explicit StatisticsOnly(torch::nn::Module& model) {
    for (const auto& module : model.modules()) {
      modes_.emplace_back(module, module->is_training());
    }
    model.eval();
    for (const auto& [module, mode] : modes_) {
      found_ = begin<torch::nn::BatchNorm1dImpl>(*module) ||
               begin<torch::nn::BatchNorm2dImpl>(*module) ||
               begin<torch::nn::BatchNorm3dImpl>(*module) || found_;
    }
  }
  StatisticsOnly(const StatisticsOnly&) = delete;
  StatisticsOnly& operator=(const StatisticsOnly&) = delete;
  ~StatisticsOnly() {
    for (const auto& [module, mode] : modes_) {
      end<torch::nn::BatchNorm1dImpl>(*module);
      end<torch::nn::BatchNorm2dImpl>(*module);
      end<torch::nn::BatchNorm3dImpl>(*module);
    }
    for (const auto& [module, mode] : modes_) {
      module->train(mode);  // also sets the module's children, which come later here
    }
  }

  // The model has batch normalisation.
  explicit operator bool() const { return found_; }

 private:
  template <class Norm>
  bool begin(torch::nn::Module& module) {
    auto* norm = dynamic_cast<Norm*>(&module);
    if (norm == nullptr || !norm->options.track_running_stats()) {
      return false;
    }
    momenta_.push_back(norm->options.momentum());
    norm->options.momentum(std::nullopt);
    norm->reset_running_stats();
    norm->train();
    return true;
  }
  template <class Norm>
  void end(torch::nn::Module& module) {
    auto* norm = dynamic_cast<Norm*>(&module);
    if (norm != nullptr && norm->options.track_running_stats()) {
      norm->options.momentum(momenta_[next_++]);
    }
  }

  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> modes_;
  std::vector<std::optional<double>> momenta_;
  std::size_t next_ = 0;
  bool found_ = false;
};

bool has_batch_statistics(const torch::nn::Module& model);

}  // namespace tutti::detail

#if TUTTI_BODIES

namespace tutti::detail {

TUTTI_INLINE bool has_batch_statistics(const torch::nn::Module& model) {
  for (const auto& buffer : model.named_buffers()) {
    if (buffer.key().ends_with("running_mean") && buffer.value().defined()) {
      return true;
    }
  }
  return false;
}

}  // namespace tutti::detail

#endif
