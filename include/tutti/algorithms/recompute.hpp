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

#include <algorithm>
#include <cmath>
#include <utility>

#include <tutti/checkpoint/glob.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/nn/activation_checkpointing.hpp>

namespace tutti::detail {

// The modules that a recipe may mean, outer ones only, by their paths.
TUTTI_INLINE std::vector<std::pair<std::string, nn::Recomputable*>> recomputable(
    torch::nn::Module& model, const Keys& globs) {
  std::vector<std::pair<std::string, nn::Recomputable*>> out;
  std::vector<bool> used(16);
  std::vector<const torch::nn::Module*> chosen;
  surgery::for_each<nn::Recomputable>(
      model, [&](nn::Recomputable& one, const surgery::Visit& where) {
        bool wanted = globs.empty() && dynamic_cast<nn::Block*>(&one) != nullptr;
        std::size_t i = 0;
        for (const std::string_view glob : globs) {
          if (checkpoint::glob_matches(glob, where.path)) {
            wanted = used[i] = true;
          }
          ++i;
        }
        const bool inside = std::any_of(
            where.ancestors.begin(), where.ancestors.end(), [&](const torch::nn::Module* ancestor) {
              return std::find(chosen.begin(), chosen.end(), ancestor) != chosen.end();
            });
        if (wanted && !inside) {
          chosen.push_back(where.module.get());
          out.emplace_back(where.path, &one);
        }
      });
  std::size_t i = 0;
  for (const std::string_view glob : globs) {
    TUTTI_CHECK_VALUE(used[i++], "Recompute: blocks has \"", glob,
                      "\", which matches no nn::Block and no nn::Sequential of the model; write "
                      "the path of one as in named_modules(), or derive the module from nn::Block");
  }
  return out;
}

}  // namespace tutti::detail

namespace tutti::functional {

TUTTI_INLINE std::vector<std::string> apply_recompute(torch::nn::Module& model,
                                                      const Recompute& options) {
  options.validate();
  const auto found = detail::recomputable(model, options.blocks);
  for (const auto& module : model.modules()) {
    if (auto* const one = dynamic_cast<nn::Recomputable*>(module.get())) {
      one->set_activation_checkpointing(false);
    }
  }
  std::vector<std::string> out;
  // A hair less, so that a third of three is one.
  const auto up_to = [&](std::size_t count) {
    return std::ceil(static_cast<double>(count) * options.share - 1e-9);
  };
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (up_to(i + 1) > up_to(i)) {
      found[i].second->set_activation_checkpointing(true);
      out.push_back(found[i].first);
    }
  }
  if (out.empty()) {
    constexpr std::string_view none =
        "Recompute: the model has no nn::Block, so there is nothing to compute again; derive its "
        "blocks from nn::Block, or name an nn::Sequential in blocks";
    TUTTI_CHECK(options.if_none != surgery::IfNone::error, none);
    if (options.if_none == surgery::IfNone::warn) {
      TORCH_WARN(none);
    }
  }
  return out;
}

}  // namespace tutti::functional

namespace tutti {

TUTTI_INLINE void Recompute::apply(Init, State& state) const {
  const auto blocks_chosen = functional::apply_recompute(*state.model, *this);
  state.logger.log_hyperparameters(
      {{"recompute/num_blocks", static_cast<std::int64_t>(blocks_chosen.size())}});
}

}  // namespace tutti

#endif
