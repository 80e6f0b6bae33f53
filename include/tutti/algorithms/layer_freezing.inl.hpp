// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/algorithms/layer_freezing.hpp>

#include <tutti/algorithms/detail/frozen_layers.hpp>

namespace tutti::functional {

TUTTI_INLINE void freeze_first_layers(torch::nn::Module& model,
                                      const surgery::Optimizers& optimizers, std::int64_t depth) {
  const auto layers = freezable_layers(model);
  std::unordered_set<c10::TensorImpl*> later;
  std::unordered_set<c10::TensorImpl*> frozen;
  for (auto i = static_cast<std::int64_t>(layers.size()) - 1; i >= 0; --i) {
    for (const at::Tensor& parameter :
         layers[static_cast<std::size_t>(i)]->parameters(/*recurse=*/false)) {
      const bool freeze = i < depth && i + 1 < static_cast<std::int64_t>(layers.size());
      if (!freeze || later.contains(parameter.unsafeGetTensorImpl())) {
        later.insert(parameter.unsafeGetTensorImpl());
      } else {
        parameter.set_requires_grad(false);
        parameter.mutable_grad().reset();
        frozen.insert(parameter.unsafeGetTensorImpl());
      }
    }
  }
  surgery::forget(optimizers, frozen);
}

TUTTI_INLINE FreezeReport freeze_layers(torch::nn::Module& model,
                                        const surgery::Optimizers& optimizers,
                                        double current_duration, double freeze_start,
                                        double freeze_level) {
  TUTTI_CHECK_VALUE(current_duration >= 0 && current_duration <= 1,
                    "freeze_layers: current_duration is ", current_duration,
                    ", expected a number from 0 to 1");
  TUTTI_CHECK_VALUE(freeze_start >= 0 && freeze_start < 1, "freeze_layers: freeze_start is ",
                    freeze_start, ", expected a number from 0 to below 1");
  TUTTI_CHECK_VALUE(freeze_level >= 0 && freeze_level <= 1, "freeze_layers: freeze_level is ",
                    freeze_level, ", expected a number from 0 to 1");
  FreezeReport report;
  if (current_duration > freeze_start) {
    // In this order of operations, which decides when a product is just below a whole number.
    const double range = 1.0 - freeze_start;
    report.fraction = freeze_level * ((current_duration - freeze_start) / range);
    const auto count = static_cast<std::int64_t>(freezable_layers(model).size());
    report.layers =
        count == 0 ? 0
                   : static_cast<std::int64_t>(report.fraction * static_cast<double>(count - 1));
    freeze_first_layers(model, optimizers, report.layers);
  }
  return report;
}

}  // namespace tutti::functional

namespace tutti {

TUTTI_INLINE void LayerFreezing::apply(BeforeDataloader, State&) {
  for (const auto& layer : *run.still) {
    layer->eval();
  }
}

TUTTI_INLINE void LayerFreezing::apply(EpochEnd, State& state) {
  const double now = std::min(1.0, state.progress().elapsed_fraction().value_or(0));
  const functional::FreezeReport report =
      functional::freeze_layers(*state.model, state.optimizers, now, freeze_start, freeze_level);
  freeze(*state.model, state.optimizers, std::max(run.depth, report.layers));
  if (state.sharding != nullptr) {
    surgery::forget(state.optimizers, detail::follow_parameters(*state.sharding));
  }
  state.log_metrics({{"layer_freezing/layers_frozen", static_cast<double>(run.depth)},
                     {"layer_freezing/percentage_frozen", report.fraction}});
}

TUTTI_INLINE void LayerFreezing::freeze(torch::nn::Module& of, const surgery::Optimizers& with,
                                        std::int64_t layers) {
  run.depth = layers;
  functional::freeze_first_layers(of, with, layers);
  run.still->clear();
  if (freeze_statistics) {
    const auto all = functional::freezable_layers(of);
    for (std::size_t i = 0; i + 1 < all.size() && static_cast<std::int64_t>(i) < layers; ++i) {
      const auto buffers = all[i]->named_buffers(/*recurse=*/false);
      if (buffers.contains("running_mean") && buffers["running_mean"].defined()) {
        run.still->push_back(all[i]->shared_from_this());
      }
    }
  }
}

}  // namespace tutti
