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
#include <tutti/algorithms/layer_freezing.inl.hpp>
#endif
