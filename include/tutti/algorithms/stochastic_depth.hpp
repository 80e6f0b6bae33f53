// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/event.hpp>
#include <tutti/core/lazy.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/core/state.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/models/residual_block.hpp>
#include <tutti/models/stochastic_blocks.hpp>
#include <tutti/nn/surgery.hpp>

/// StochasticDepth: residual blocks that are skipped at random.
namespace tutti {

namespace functional {

/// What apply_stochastic_depth does unless told otherwise.
struct StochasticDepthOptions {
  /// Which blocks: "ResNetBottleneck", "ResNetBasicBlock"; empty: every models::ResidualBlock.
  Key target_layer_name{};
  DropMethod stochastic_method = DropMethod::block;
  double drop_rate = 0.2;  ///< how often the last block is skipped; in [0, 1]
  DropDistribution drop_distribution = DropDistribution::linear;
  surgery::IfNone if_none = surgery::IfNone::error;  ///< when the model has no such block

  /// Throws c10::ValueError when an option is out of range.
  constexpr void validate() const {
    const std::string_view target = target_layer_name;
    expect(target.empty() || target == "ResNetBottleneck" || target == "ResNetBasicBlock",
           "StochasticDepth: target_layer_name", target,
           "\"ResNetBottleneck\", \"ResNetBasicBlock\" or nothing");
    expect(drop_rate >= 0 && drop_rate <= 1, "StochasticDepth: drop_rate", drop_rate,
           "a number from 0 to 1");
  }
};

/// Lets the residual blocks of `model` be skipped at random in training.
///
/// A skipped block gives its shortcut alone; in evaluation all blocks are computed, each residual
/// scaled by how often it is kept. Parameters, their names and optimizers stay as they are. A
/// second application replaces the first. rng: where draws start, a copy.
/// Returns the blocks, whose rates can be changed.
/// Throws as StochasticDepthOptions::validate(), and c10::Error when there is no such block and
/// if_none is error.
/// Source: Huang et al., "Deep Networks with Stochastic Depth", ECCV 2016; MosaicML Composer,
/// `composer.algorithms.stochastic_depth.apply_stochastic_depth`.
std::shared_ptr<models::StochasticBlocks> apply_stochastic_depth(
    torch::nn::Module& model, const StochasticDepthOptions& options = {}, const Rng& rng = Rng{});

}  // namespace functional

/// Skips residual blocks at random in training, the later ones more often.
///
/// Source: Huang et al., "Deep Networks with Stochastic Depth", ECCV 2016.
struct StochasticDepth final {
  /// Which blocks: "ResNetBottleneck", "ResNetBasicBlock"; empty: every models::ResidualBlock.
  Key target_layer_name{};
  DropMethod stochastic_method = DropMethod::block;
  double drop_rate = 0.2;  ///< how often the last block is skipped; in [0, 1]
  DropDistribution drop_distribution = DropDistribution::linear;
  Time drop_warmup{};  ///< over which the rate rises from 0, "0.25dur" or "5ep"; 0: at once
  surgery::IfNone if_none = surgery::IfNone::error;  ///< when the model has no such block
  Rng rng{};

  /// What it holds while it runs; not an option.
  struct Run {
    Lazy<std::shared_ptr<models::StochasticBlocks>> blocks{};  ///< those of the model that it skips
  } run{};

  static constexpr std::string_view name = "StochasticDepth";
  static constexpr About about{
      .reads_batch = false,
      .no_graph = "draws on the host, while the model runs, what it skips",
      .required_on_load = true,
  };
  using events = types<Init, AfterLoad, BatchStart>;
  static constexpr Rules rules{
      .tags = {id<changes_model>, id<draws_masks>},
      .runs_after = {{id<SqueezeExcite>, one_order_of_surgeries},
                     {id<Factorize>, one_order_of_surgeries},
                     {id<BlurPool>, one_order_of_surgeries},
                     {id<GhostBatchNorm>, one_order_of_surgeries}},
  };

  template <class Model>
  static constexpr bool supports = offers<Model, has_residual_blocks>;

  /// Some parameters get no gradient in some steps, which data-parallel runs have to know.
  [[nodiscard]] constexpr bool leaves_parameters_unused() const {
    return stochastic_method == DropMethod::block;
  }

  /// Throws c10::ValueError when an option is out of range, or for a warm-up of single examples.
  constexpr void validate() const {
    options().validate();
    expect(drop_warmup.value() >= 0, "StochasticDepth: drop_warmup", drop_warmup, "0 or more");
    expect(stochastic_method == DropMethod::block || !drop_warmup,
           "StochasticDepth: drop_warmup is set and stochastic_method is sample, which has no "
           "warm-up; take it out or use DropMethod::block.");
  }

  bool match(AfterLoad, const State& state) const {
    return bool(drop_warmup) && state.timestamp.batch > 0;
  }
  bool match(BatchStart, const State&) const { return bool(drop_warmup); }

  /// Prepares the blocks, and logs `stochastic_depth/num_stochastic_layers`: how many there are.
  /// Ranks skip the same blocks, but examples each on its own.
  void apply(Init, State& state);

  /// Goes on with the rate of the checkpoint's time.
  void apply(AfterLoad, State& state) { (*run.blocks)->set_drop_rate(rate_at(state)); }

  /// Sets the rate of this batch, and logs it as `stochastic_depth/drop_rate`.
  void apply(BatchStart, State& state);

  /// The model may outlive this policy and draws for itself then.
  void close(State&);

 private:
  [[nodiscard]] constexpr functional::StochasticDepthOptions options() const {
    return {target_layer_name, stochastic_method, drop_rate, drop_distribution, if_none};
  }

  [[nodiscard]] double rate_at(const State& state) const;
};

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/algorithms/stochastic_depth.inl.hpp>
#endif
