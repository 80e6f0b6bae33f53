// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/nn/conv.hpp>
#include <tutti/nn/linear.hpp>
#include <tutti/nn/sequential.hpp>
#include <tutti/nn/slot.hpp>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>

/// Gates on channels.
///
/// Source: Hu et al., "Squeeze-and-Excitation Networks", CVPR 2018.
namespace tutti::nn {

/// The mean of each channel: [N, C, H, W] to [N, C].
///
/// What an average pool to one pixel gives, but its gradient is divided before it is spread over
/// the pixels, which saves a pass over all of them.
struct ChannelMeansImpl : torch::nn::Cloneable<ChannelMeansImpl> {
  ~ChannelMeansImpl() override;
  void reset() override;

  at::Tensor forward(const at::Tensor& x) {
    if (x.scalar_type() == at::kHalf) {  // whose sums may exceed it
      return x.mean({2, 3});
    }
    return x.sum({2, 3}).div(x.size(2) * x.size(3));
  }
};
TORCH_MODULE(ChannelMeans);

/// Scales each channel of an image by a number that a small network computes from the means of all
/// channels: `x * sigmoid(W2 relu(W1 mean(x)))`.
class SqueezeExcite2dImpl : public torch::nn::Cloneable<SqueezeExcite2dImpl> {
 public:
  ~SqueezeExcite2dImpl() override;
  /// num_features: C. latent_channels: the inner width, see width().
  explicit SqueezeExcite2dImpl(std::int64_t num_features, double latent_channels = 0.125);

  /// The inner width for `num_features` channels: latent_channels itself from 1 on, else that
  /// fraction of them, both rounded down.
  /// Throws c10::Error (ValueError) when that is less than 1.
  static std::int64_t width(double latent_channels, std::int64_t num_features) {
    const double wanted = latent_channels >= 1
                              ? latent_channels
                              : latent_channels * static_cast<double>(num_features);
    TUTTI_CHECK_VALUE(wanted >= 1, "SqueezeExcite2d: latent_channels ", latent_channels, " of ",
                      num_features, " channels are less than 1; take a larger fraction, a number ",
                      "of channels, or leave out layers as narrow as this one");
    return static_cast<std::int64_t>(wanted);
  }

  void reset() override;

  /// x: [N, C, H, W]. Returns the same shape.
  at::Tensor forward(const at::Tensor& x) {
    return x.mul(pool_and_mlp(x).view({x.size(0), x.size(1), 1, 1}));
  }

  Sequential pool_and_mlp{nullptr};  ///< [N, C, H, W] to [N, C]; the linear layers are 2 and 4

 private:
  std::int64_t num_features_;
  std::int64_t latent_;
};
TORCH_MODULE(SqueezeExcite2d);

/// A convolution with a gate behind it; the convolution is the child `conv`, the gate `se`.
class SqueezeExciteConv2dImpl : public Substitute {
 public:
  ~SqueezeExciteConv2dImpl() override;
  /// Over the tensors of `layer`: they stay the same objects. latent_channels: as SqueezeExcite2d,
  /// of the convolution's output channels.
  explicit SqueezeExciteConv2dImpl(const torch::nn::Conv2dImpl& layer,
                                   double latent_channels = 0.125)
      : conv(register_module("conv", Conv2d(twin(layer)))),
        se(register_module("se", SqueezeExcite2d(layer.options.out_channels(), latent_channels))) {}

  /// x: [N, in, H, W]. Returns [N, out, H', W'], the shape that the convolution gives.
  at::Tensor forward(const at::Tensor& x) { return se(conv(x)); }

  Conv2d conv;
  SqueezeExcite2d se;
};
TORCH_MODULE(SqueezeExciteConv2d);

}  // namespace tutti::nn

#if TUTTI_BODIES

namespace tutti::nn {

TUTTI_INLINE ChannelMeansImpl::~ChannelMeansImpl() = default;

TUTTI_INLINE void ChannelMeansImpl::reset() {}
TUTTI_INLINE SqueezeExcite2dImpl::~SqueezeExcite2dImpl() = default;

TUTTI_INLINE SqueezeExcite2dImpl::SqueezeExcite2dImpl(std::int64_t num_features,
                                                      double latent_channels)
    : num_features_(num_features), latent_(width(latent_channels, num_features)) {
  reset();
}

TUTTI_INLINE void SqueezeExcite2dImpl::reset() {
  const auto linear = [](std::int64_t in, std::int64_t out) {
    return Linear(torch::nn::LinearOptions(in, out).bias(false));
  };
  pool_and_mlp = register_module(
      "pool_and_mlp",
      Sequential(ChannelMeans(), torch::nn::Flatten(), linear(num_features_, latent_),
                 torch::nn::ReLU(), linear(latent_, num_features_), torch::nn::Sigmoid()));
}
TUTTI_INLINE SqueezeExciteConv2dImpl::~SqueezeExciteConv2dImpl() = default;

}  // namespace tutti::nn

#endif
