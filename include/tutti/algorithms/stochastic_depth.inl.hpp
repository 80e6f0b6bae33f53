// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/algorithms/stochastic_depth.hpp>

namespace tutti {

TUTTI_INLINE void StochasticDepth::apply(Init, State& state) {
  if (stochastic_method == DropMethod::block && !rng.replays()) {
    rng = Rng::for_policy(state.rank_zero_seed, name);
  }
  *run.blocks = functional::apply_stochastic_depth(*state.model, options());
  (*run.blocks)->draw_from(&rng);
  if (drop_warmup) {
    (*run.blocks)->set_drop_rate(0);
  }
  state.log_metrics(
      {{"stochastic_depth/num_stochastic_layers", static_cast<double>((*run.blocks)->size())}});
}

TUTTI_INLINE void StochasticDepth::apply(BatchStart, State& state) {
  const double rate = rate_at(state);
  (*run.blocks)->set_drop_rate(rate);
  state.log_metrics({{"stochastic_depth/drop_rate", rate}});
}

TUTTI_INLINE void StochasticDepth::close(State&) {
  if (*run.blocks) {
    (*run.blocks)->draw_from(nullptr);
  }
}

TUTTI_INLINE double StochasticDepth::rate_at(const State& state) const {
  Progress progress = state.progress();
  double part = 0;  // of the warm-up
  if (drop_warmup.is_fraction()) {
    part = progress.elapsed_fraction().value_or(1.0) / drop_warmup.value();
  } else {
    progress.max_duration = drop_warmup;  // counts batches inside an epoch, too
    part = progress.elapsed_fraction().value_or(1.0);
  }
  return drop_rate * std::min(part, 1.0);
}

}  // namespace tutti

namespace tutti::functional {

TUTTI_INLINE std::shared_ptr<models::StochasticBlocks> apply_stochastic_depth(
    torch::nn::Module& model, const StochasticDepthOptions& options, const Rng& rng) {
  options.validate();
  if (options.drop_rate == 0) {
    TORCH_WARN("StochasticDepth: drop_rate is 0, so no block is ever skipped");
  }
  const std::string_view target = options.target_layer_name;
  auto blocks = std::make_shared<models::StochasticBlocks>(options.stochastic_method,
                                                           options.drop_distribution, rng);
  std::vector<surgery::Kept> kept;
  surgery::for_each<models::ResidualBlock>(model, [&](models::ResidualBlock& block,
                                                      const surgery::Visit& where) {
    if (target.empty() || target == block.layer_name()) {
      models::StochasticBlocks::add(blocks, block);
    } else {
      kept.push_back({where.path, "layer_name() is \"" + std::string(block.layer_name()) +
                                      "\", target_layer_name is \"" + std::string(target) + "\""});
    }
  });
  blocks->set_drop_rate(options.drop_rate);
  if (blocks->size() == 0) {
    surgery::report_none(options.if_none, "residual block", "StochasticDepth", kept);
  }
  return blocks;
}

}  // namespace tutti::functional
