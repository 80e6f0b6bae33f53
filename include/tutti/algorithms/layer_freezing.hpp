// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <tutti/config.hpp>
#include <tutti/core/archive.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/lazy.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/nn/optimizers.hpp>
#include <tutti/nn/walk.hpp>

/// LayerFreezing: layers leave training from the front.
namespace tutti {

namespace functional {

/// What freeze_layers did.
struct FreezeReport {
  std::int64_t layers = 0;  ///< how many layers are to be frozen at this point
  double fraction = 0;      ///< of all layers but the last, before rounding to layers
};

/// The modules that own parameters themselves, each once, in the order of their registration,
/// parents before children, the model itself first.
inline std::vector<torch::nn::Module*> freezable_layers(torch::nn::Module& model) {
  std::vector<torch::nn::Module*> out;
  const auto take = [&](torch::nn::Module& module) {
    if (!module.parameters(/*recurse=*/false).empty()) {
      out.push_back(&module);
    }
  };
  take(model);
  for (const surgery::Visit& visit : surgery::walk(model)) {
    take(*visit.module);
  }
  return out;
}

/// Takes the first `depth` layers out of training: their parameters require no gradient any more
/// and leave every group of `optimizers`, with their state. Parameters that a later layer shares
/// stay in training. The last layer is never frozen. Calling it again changes nothing.
void freeze_first_layers(torch::nn::Module& model, const surgery::Optimizers& optimizers,
                         std::int64_t depth);

/// Freezes as many layers, from the front, as a run has to have frozen by now.
///
/// The fraction is 0 up to freeze_start and then rises linearly to freeze_level at the end; of n
/// layers `int(fraction * (n - 1))` are frozen. Layers: modules that own parameters.
/// current_duration: the elapsed part of the run, in [0, 1]. freeze_start: in [0, 1). freeze_level:
/// in [0, 1].
/// Throws c10::Error (ValueError) when one is out of range.
/// Source: Raghu et al., "SVCCA", NeurIPS 2017; Brock et al., "FreezeOut", 2017; MosaicML Composer,
/// `composer.algorithms.layer_freezing.freeze_layers`.
FreezeReport freeze_layers(torch::nn::Module& model, const surgery::Optimizers& optimizers,
                           double current_duration, double freeze_start = 0.5,
                           double freeze_level = 1.0);

}  // namespace functional

/// Freezes layers from the front, more of them with every epoch.
///
/// Source: Raghu et al., "SVCCA: Singular Vector Canonical Correlation Analysis for Deep Learning
/// Dynamics and Interpretability", NeurIPS 2017; Brock et al., "FreezeOut", 2017.
struct LayerFreezing final {
  double freeze_start = 0.5;      ///< the part of the run after which freezing begins; in [0, 1)
  double freeze_level = 1.0;      ///< the part of the layers frozen at the end; in [0, 1]
  bool freeze_statistics = true;  ///< frozen batch normalisation uses its running statistics

  /// What it holds while it runs; not an option.
  struct Run {
    std::int64_t depth = 0;  ///< layers frozen so far, never fewer

    /// Frozen layers with running statistics.
    Lazy<std::vector<std::shared_ptr<torch::nn::Module>>> still{};
  } run{};

  static constexpr std::string_view name = "LayerFreezing";
  static constexpr About about{
      .reads_batch = false,
      .no_tensor_parallel = "it is not made for layers of which a rank has a part",
  };
  using events = types<BeforeDataloader, EpochEnd>;
  static constexpr Rules rules{.tags = {id<freezes_parameters>}};

  /// Frozen parameters get no gradient, which the reduction over ranks has to know.
  [[nodiscard]] static constexpr bool leaves_parameters_unused() { return true; }

  /// Throws c10::ValueError when an option is out of range.
  constexpr void validate() const {
    expect(freeze_start >= 0 && freeze_start < 1, "LayerFreezing: freeze_start", freeze_start,
           "a number from 0 to below 1");
    expect(freeze_level >= 0 && freeze_level <= 1, "LayerFreezing: freeze_level", freeze_level,
           "a number from 0 to 1");
  }

  bool match(BeforeDataloader, const State&) const { return !run.still->empty(); }

  /// Frozen statistics stay so, whatever train() said since: before anyone passes the batch through
  /// the model.
  void apply(BeforeDataloader, State&);

  /// Freezes, and logs `layer_freezing/layers_frozen` and `layer_freezing/percentage_frozen`.
  void apply(EpochEnd, State& state);

  void save(Archive& archive) const { archive.put("depth", run.depth); }

  void load(const Archive& archive) { run.depth = archive.get<std::int64_t>("depth"); }

  /// Freezes what the saved run had frozen, so that the optimizer has the parameters that it had
  /// when it was saved. Called before anything else is read.
  void prepare_load(const Archive& archive, State& state) {
    freeze(*state.model, state.optimizers, archive.get<std::int64_t>("depth"));
  }

 private:
  void freeze(torch::nn::Module& of, const surgery::Optimizers& with, std::int64_t layers);
};

}  // namespace tutti

#if TUTTI_BODIES

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

#endif
