// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/nn/activation.hpp>
#include <tutti/nn/detail/operation.hpp>
#include <tutti/nn/detail/parameter_groups.hpp>
#include <tutti/nn/dropout.hpp>
#include <tutti/nn/linear.hpp>
#include <tutti/nn/normalization.hpp>
#include <tutti/nn/optimizers.hpp>
#include <tutti/nn/slot.hpp>
#include <tutti/nn/walk.hpp>

#include <torch/nn/init.h>
#include <torch/nn/modules/linear.h>

/// The gated feed-forward half of a transformer block, and how it comes into a model.
namespace tutti::nn {

/// The layers of a block's feed-forward half: `norm(down(dropout(act(up(x)))) + x)`, or with the
/// dropout after `down`.
struct FeedForwardParts {
  std::shared_ptr<torch::nn::LinearImpl> up;
  std::shared_ptr<torch::nn::LinearImpl> down;
  std::shared_ptr<torch::nn::LayerNormImpl> norm;
  double dropout = 0;
  Activation activation = Activation::gelu;
  double initializer_range = 0.02;  ///< of weights that are added
};

/// `norm(wo(dropout(act(gated_layer(x)) * non_gated_layer(x))) + residual)`.
class GatedFeedForwardImpl : public Substitute {
 public:
  ~GatedFeedForwardImpl() override;
  /// Over the tensors of `parts`, which stay the same objects: up's become gated_layer's, down's
  /// wo's; non_gated_layer is new. Biases: whether those two have one; up's is left out otherwise.
  /// What is new is frozen where up is.
  GatedFeedForwardImpl(const FeedForwardParts& parts, Activation act, bool gated_layer_bias,
                       bool non_gated_layer_bias)
      : activation(act) {
    gated_layer = register_module("gated_layer", gate(*parts.up, gated_layer_bias));
    torch::nn::LinearOptions options = parts.up->options;
    options.bias(non_gated_layer_bias);
    non_gated_layer = register_module("non_gated_layer", Linear(options));
    torch::nn::init::normal_(non_gated_layer->weight, 0, parts.initializer_range);
    non_gated_layer->weight.set_requires_grad(parts.up->weight.requires_grad());
    if (non_gated_layer_bias) {
      torch::nn::init::zeros_(non_gated_layer->bias);
      non_gated_layer->bias.set_requires_grad(bias_learns(*parts.up));
    }
    wo = register_module("wo", Linear(twin(*parts.down)));
    dropout = register_module("dropout", Dropout(parts.dropout));
    layernorm = register_module("layernorm", LayerNorm(twin(*parts.norm)));
  }

  /// x, residual: [..., d]. Returns [..., d].
  at::Tensor forward(const at::Tensor& x, const at::Tensor& residual) {
    const at::Tensor gated = nn::activate(activation, gated_layer(x)).mul(non_gated_layer(x));
    return layernorm(wo(dropout(gated)) + residual);
  }

  Activation activation;
  Linear gated_layer{nullptr}, non_gated_layer{nullptr}, wo{nullptr};
  Dropout dropout{nullptr};
  LayerNorm layernorm{nullptr};

 private:
  // A linear layer over another's tensors, with or without its bias.
  struct Shared : torch::nn::LinearImpl {
    Shared(const torch::nn::LinearImpl& layer, bool with_bias)
        : torch::nn::LinearImpl(torch::nn::LinearOptions(layer.options).bias(with_bias)) {
      parameters_["weight"] = weight = layer.weight;
      if (with_bias && layer.bias.defined()) {
        parameters_["bias"] = bias = layer.bias;
      } else if (with_bias) {
        bias.set_requires_grad(bias_learns(layer));
      }
    }
  };
  // Of the layer, or would if it had one.
  static bool bias_learns(const torch::nn::LinearImpl& layer) {
    return (layer.bias.defined() ? layer.bias : layer.weight).requires_grad();
  }
  static Linear gate(const torch::nn::LinearImpl& layer, bool with_bias) {
    const Shared shared(layer, with_bias);
    return Linear(std::make_shared<LinearImpl>(static_cast<const torch::nn::LinearImpl&>(shared)));
  }
};
TORCH_MODULE(GatedFeedForward);

/// A transformer block whose feed-forward half, its children `intermediate` and `output`, can be
/// exchanged for a gated one.
class GatedHost {
 public:
  virtual ~GatedHost() = default;

  /// The layers of the half as it is; only while it is not gated.
  virtual FeedForwardParts feed_forward_parts() = 0;

  /// The gated half if there is one.
  [[nodiscard]] virtual std::shared_ptr<GatedFeedForwardImpl> gated() const = 0;

  /// From now on computes with `gated`, which becomes the child `output`; `intermediate` becomes an
  /// identity. Called by surgery::gate(), which keeps the optimizers in step.
  virtual void set_gated(std::shared_ptr<GatedFeedForwardImpl> gated,
                         std::shared_ptr<torch::nn::IdentityImpl> identity) = 0;
};

}  // namespace tutti::nn

namespace tutti::surgery {

/// Gives blocks of `model` the gated halves that `make` returns for them, with the optimizers in
/// step: `make(nn::GatedHost&)` returns a shared_ptr to one, or null to leave the block.
///
/// A parameter that is added joins the group of the one whose part it takes.
/// Returns the paths of the blocks. Throws c10::Error when a parameter fits no optimizer group;
/// then the model is as it was.
template <class Make>
std::vector<std::string> gate(torch::nn::Module& model, Make&& make,
                              const Optimizers& optimizers = {}) {
  struct Exchange {
    nn::GatedHost* host;
    std::shared_ptr<nn::GatedFeedForwardImpl> gated;
    std::shared_ptr<torch::nn::IdentityImpl> identity;
  };
  std::vector<Exchange> exchanges;
  std::vector<detail::Swap> swaps;
  std::vector<std::string> paths;
  for (const Visit& where : walk(model)) {
    auto* host = dynamic_cast<nn::GatedHost*>(where.module.get());
    if (host == nullptr) {
      continue;
    }
    if (std::shared_ptr<nn::GatedFeedForwardImpl> gated = make(*host)) {
      auto identity = std::make_shared<torch::nn::IdentityImpl>();
      const auto children = where.module->named_children();
      swaps.push_back({children["output"], gated, where.path + ".output"});
      swaps.push_back({children["intermediate"], identity, where.path + ".intermediate"});
      exchanges.push_back({host, std::move(gated), std::move(identity)});
      paths.push_back(where.path);
    }
  }
  const detail::Census before(model);
  const detail::Census after(model, swaps);
  detail::Places places(optimizers);
  std::vector<detail::Addition> added = detail::additions(swaps, before, after);
  for (detail::Addition& addition : added) {
    addition.places = places.of(addition, before);
  }
  const auto of_model = detail::Placement::of(model);
  for (const detail::Swap& swap : swaps) {
    swap.after->train(swap.before->is_training());
    const auto placement = detail::Placement::of(*swap.before).otherwise(of_model);
    for (const at::Tensor& parameter : swap.after->parameters()) {
      if (!before.contains(parameter)) {
        placement.move(parameter, /*with_dtype=*/true);
      }
    }
  }
  for (const Exchange& exchange : exchanges) {
    exchange.host->set_gated(exchange.gated, exchange.identity);
  }
  detail::remove_parameters(optimizers, before, after);
  for (const detail::Addition& addition : added) {
    places.add(addition.parameter.tensor, addition.places);
  }
  return paths;
}

}  // namespace tutti::surgery

#if TUTTI_BODIES

namespace tutti::nn {

TUTTI_INLINE GatedFeedForwardImpl::~GatedFeedForwardImpl() = default;

}  // namespace tutti::nn

#endif
