// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/algorithms/recompute.hpp>

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
