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

namespace tutti::models {

TUTTI_INLINE void StochasticBlocks::set_drop_rate(double rate) {
  for (std::size_t l = 0; l < rates_.size(); ++l) {
    const double share = static_cast<double>(l + 1) / static_cast<double>(rates_.size());
    rates_[l] = distribution_ == DropDistribution::linear ? rate * share : rate;
  }
}

TUTTI_INLINE void StochasticBlocks::draw_from(Rng* rng) {
  if (rng == nullptr && source_ != nullptr) {
    own_ = *source_;
  }
  source_ = rng;
}

TUTTI_INLINE void StochasticBlocks::add(const std::shared_ptr<StochasticBlocks>& self,
                                        ResidualBlock& block) {
  const std::size_t index = self->rates_.size();
  self->rates_.push_back(0);
  block.set_join(
      [self, index](ResidualBlock& one, const at::Tensor& x) { return self->join(one, x, index); });
}

TUTTI_INLINE at::Tensor StochasticBlocks::join(ResidualBlock& block, const at::Tensor& x,
                                               std::size_t index) {
  const double keep = 1 - rates_[index];
  if (!dynamic_cast<torch::nn::Module&>(block).is_training()) {
    return block.finish(block.residual(x).mul_(keep).add_(block.shortcut(x)));
  }
  if (method_ == DropMethod::sample) {
    at::Tensor y = block.residual(x);
    if (keep < 1) {
      y.mul_(mask(y, keep));
    }
    return block.finish(y.add_(block.shortcut(x)));
  }
  if (rng().uniform() < keep) {
    return block.whole(x);
  }
  return block.projects() ? block.finish(block.shortcut(x)) : x;
}

TUTTI_INLINE at::Tensor StochasticBlocks::mask(const at::Tensor& y, double keep) {
  at::Tensor ones = at::empty({y.size(0)}, at::TensorOptions().dtype(at::kFloat));
  auto* data = ones.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < y.size(0); ++i) {
    data[i] = keep + rng().uniform() >= 1 ? 1.0F : 0.0F;
  }
  std::vector<std::int64_t> shape(static_cast<std::size_t>(y.dim()), 1);
  shape.front() = -1;
  return ones.to(y.device(), y.scalar_type()).view(shape);
}

}  // namespace tutti::models

#endif
