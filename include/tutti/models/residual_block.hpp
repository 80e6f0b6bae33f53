// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <tutti/nn/activation_checkpointing.hpp>

/// What the blocks of residual networks and vision transformers have in common.
namespace tutti::models {

/// A block `finish(residual(x) + shortcut(x))` that an algorithm may join otherwise.
///
/// Find the blocks of a model with surgery::for_each<models::ResidualBlock>. A block of your own is
/// a torch::nn::Module too, whose forward(x) returns joined(x).
class ResidualBlock : public nn::Block {
 public:
  /// Computes a block's output from its input.
  using Join = std::function<at::Tensor(ResidualBlock&, const at::Tensor&)>;

  /// The branch that may be left out. x: [N, ...]. Returns [N, ...], which the caller may
  /// overwrite.
  virtual at::Tensor residual(const at::Tensor& x) = 0;

  /// What the residual is added to: x, or its projection where the shapes differ.
  virtual at::Tensor shortcut(const at::Tensor& x) = 0;

  /// The shortcut changes the shape.
  [[nodiscard]] virtual bool projects() const = 0;

  /// What Composer calls such a block, for those who choose blocks by it; empty: nothing.
  [[nodiscard]] virtual std::string_view layer_name() const { return {}; }

  /// What follows the sum, which it may overwrite: a relu unless a block says otherwise.
  virtual at::Tensor finish(const at::Tensor& sum) { return sum.relu_(); }

  /// The output when nothing is left out; a block may compute it in another way.
  virtual at::Tensor whole(const at::Tensor& x) { return finish(residual(x).add_(shortcut(x))); }

  /// The weight and bias of the last layer of residual(): multiplied by a number they multiply the
  /// residual by it. Empty: no parameters do that.
  [[nodiscard]] virtual std::vector<at::Tensor> residual_scale() const { return {}; }

  /// Replaces whole(); an empty function restores it. A clone keeps it. factor: what the join
  /// multiplies the residual by in evaluation, where it computes whole() but for that; empty: it
  /// computes something else.
  void set_join(Join join, std::function<double()> factor = {}) {
    join_ = std::move(join);
    factor_ = std::move(factor);
  }

  /// An algorithm joins the block otherwise.
  [[nodiscard]] bool is_joined_otherwise() const { return join_ != nullptr; }

  /// What the residual is multiplied by in evaluation; none: something else is computed.
  [[nodiscard]] std::optional<double> evaluation_factor() const {
    if (!join_) {
      return 1;
    }
    return factor_ ? std::optional<double>(factor_()) : std::nullopt;
  }

 protected:
  at::Tensor joined(const at::Tensor& input) {
    return in_block(input,
                    [this](const at::Tensor& x) { return join_ ? join_(*this, x) : whole(x); });
  }

 private:
  Join join_;
  std::function<double()> factor_;
};

}  // namespace tutti::models
