// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/models/residual_block.hpp>

#include <ATen/ops/empty.h>
#include <torch/nn/module.h>

/// Residual blocks that are skipped at random.
///
/// Source: Huang et al., "Deep Networks with Stochastic Depth", ECCV 2016.
namespace tutti {

/// What stochastic depth skips.
enum class DropMethod : std::uint8_t {
  block,   ///< a block, for the whole batch: it is not computed at all
  sample,  ///< a block, for each example on its own: computed and thrown away
};

/// How often which block is skipped.
enum class DropDistribution : std::uint8_t {
  uniform,  ///< all as often
  linear,   ///< block l of n, counted from 1, at l/n of the rate: the last one most often
};

namespace models {

/// The residual blocks of a model under stochastic depth, and how often each is skipped.
///
/// Made by functional::apply_stochastic_depth(). The blocks share it, so it lives as long as they
/// do.
class StochasticBlocks {
 public:
  /// Draws come from `rng`, a copy, until draw_from() names another.
  StochasticBlocks(DropMethod method, DropDistribution distribution, const Rng& rng)
      : method_(method), distribution_(distribution), own_(rng) {}

  /// How many blocks there are.
  [[nodiscard]] std::size_t size() const { return rates_.size(); }

  /// How often each block is skipped, first block first.
  [[nodiscard]] const std::vector<double>& drop_rates() const { return rates_; }

  /// Skips by this rate from now on, spread over the blocks by the distribution. rate: in [0, 1].
  void set_drop_rate(double rate);

  /// Draws from `rng`, which must outlive the next call of this; null: from a copy of the last.
  void draw_from(Rng* rng);

  /// Takes `block` among these, as the last one. self: what this function is called on.
  static void add(const std::shared_ptr<StochasticBlocks>& self, ResidualBlock& block);

 private:
  at::Tensor join(ResidualBlock& block, const at::Tensor& x, std::size_t index);

  // 1 for examples that keep the block, 0 for others: [N, 1, ...], as many dimensions as y has.
  at::Tensor mask(const at::Tensor& y, double keep);

  Rng& rng() { return source_ == nullptr ? own_ : *source_; }

  DropMethod method_;
  DropDistribution distribution_;
  std::vector<double> rates_;
  Rng own_;
  Rng* source_ = nullptr;
};

}  // namespace models

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/models/stochastic_blocks.inl.hpp>
#endif
