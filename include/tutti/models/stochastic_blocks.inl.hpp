// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/models/stochastic_blocks.hpp>

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
      [self, index](ResidualBlock& one, const at::Tensor& x) { return self->join(one, x, index); },
      [self, index] { return 1 - self->rates_[index]; });
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
