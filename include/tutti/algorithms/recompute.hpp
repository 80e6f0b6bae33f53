// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <torch/nn/module.h>

#include <tutti/config.hpp>
#include <tutti/core/event.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/nn/surgery.hpp>

/// Recompute: activation checkpointing, memory for time.
namespace tutti {

/// Keeps only the inputs of some blocks for the backward pass, which computes them a second time.
///
/// Source: Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016;
/// `torch.utils.checkpoint`.
struct Recompute final {
  /// Which modules, as globs of their paths: "transformer.h.*", "layer3.?", "layer4". They are
  /// nn::Block or nn::Sequential; of modules inside of each other the outer one counts. Empty:
  /// every nn::Block of the model.
  Keys blocks{};
  double share = 1;  ///< of these, spread evenly over the model; in (0, 1]
  surgery::IfNone if_none = surgery::IfNone::error;  ///< when the model has no such module

  static constexpr std::string_view name = "Recompute";
  static constexpr About about{
      .reads_batch = false,
      .no_graph = "puts the generators back on the host, while the model runs",
  };
  using events = types<Init>;
  static constexpr Rules rules{
      .runs_after = {{id<changes_model>, "the blocks are those that the surgeries leave"}},
      .conflicts_with = {{id<draws_masks>,
                          "a block that is computed again would draw other masks than it had"}},
  };

  template <class Model>
  static constexpr bool supports = !lists<Model, is_compiled>;

  /// Throws c10::ValueError when share is out of range.
  constexpr void validate() const {
    expect(share > 0 && share <= 1, "Recompute: share", share, "a number above 0, at most 1");
  }

  /// Chooses the blocks, and logs `recompute/num_blocks`: how many there are.
  void apply(Init, State& state) const;
};

namespace functional {

/// Switches activation checkpointing on for the modules of `model` that `options` names, and off
/// for all others.
///
/// Gradients stay the same, bit for bit on a CPU; see functional::checkpoint_activations().
/// Returns the paths of the modules, in the order of surgery::walk(). A share of n modules is
/// `ceil(share * n)` of them, the first one among them.
/// Throws as Recompute::validate(); c10::Error (ValueError) when a glob matches no module that can
/// be computed again; c10::Error when there is none at all and if_none is error.
/// Source: Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016.
std::vector<std::string> apply_recompute(torch::nn::Module& model, const Recompute& options = {});

}  // namespace functional

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/algorithms/recompute.inl.hpp>
#endif
