// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/nn/conv.hpp>
#include <tutti/nn/detail/max_pool.hpp>
#include <tutti/nn/slot.hpp>

#include <ATen/ops/conv2d.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/reflection_pad2d.h>
#include <ATen/ops/replication_pad2d.h>
#include <ATen/ops/tensor.h>
#include <torch/expanding_array.h>
#include <torch/nn/modules/pooling.h>

/// Low-pass filters for images, and the layers that sub-sample behind one.
///
/// Source: Zhang, "Making Convolutional Networks Shift-Invariant Again", ICML 2019.
namespace tutti {

/// What the blur sees beyond the edge of an image.
enum class BlurBorder : std::uint8_t {
  zero,         ///< zeros, which darken the edge; what the reference does
  renormalize,  ///< nothing: the weights that fall inside are scaled to sum to one
  reflect,      ///< the image mirrored
};

namespace functional {

/// The binomial filter [1,2,1]^T [1,2,1] / 16. Returns [1, 1, 3, 3], fp32, on the CPU.
inline at::Tensor blur_filter() {
  constexpr float weights[] = {1, 2, 1, 2, 4, 2, 1, 2, 1};
  return at::tensor(at::ArrayRef<float>(weights), at::TensorOptions(at::kFloat).device(at::kCPU))
      .div_(16)
      .view({1, 1, 3, 3});
}

/// Blurs each channel of `x` on its own and keeps every `stride`-th pixel.
///
/// x: [N, C, H, W] or [C, H, W], floating. channels: C where it is known; below 1 it is taken from
/// x. filter: [1 or C, 1, kh, kw], kh and kw odd; undefined: blur_filter(). Padding is half the
/// filter, so stride 1 keeps the size.
/// Returns [N, C, ceil(H / stride), ceil(W / stride)] with x's dtype and device; x itself when
/// channels is below 1 and x is smaller than the filter can cover.
/// Throws c10::IndexError for a filter with an even side, c10::Error for shapes that do not fit.
at::Tensor blur_2d(const at::Tensor& x, std::int64_t channels = -1,
                   torch::ExpandingArray<2> stride = 1, const at::Tensor& filter = {},
                   BlurBorder border = BlurBorder::zero);

/// Max-pooling with stride 1, then a blur with the stride of the pool.
///
/// x: [N, C, H, W] or [C, H, W], floating. kernel_size to ceil_mode: as torch's max_pool2d.
/// filter, border: as blur_2d. Returns the shape that max_pool2d with that stride has, give or take
/// the last row and column.
at::Tensor blurmax_pool2d(const at::Tensor& x, torch::ExpandingArray<2> kernel_size = 2,
                          torch::ExpandingArray<2> stride = 2, torch::ExpandingArray<2> padding = 0,
                          torch::ExpandingArray<2> dilation = 1, bool ceil_mode = false,
                          const at::Tensor& filter = {}, BlurBorder border = BlurBorder::zero);

}  // namespace functional

namespace nn {

/// Blurs and sub-samples: functional::blur_2d as a layer.
class BlurPool2dImpl : public torch::nn::Cloneable<BlurPool2dImpl> {
 public:
  ~BlurPool2dImpl() override;
  /// channels: of the inputs; 0 takes them from each input.
  explicit BlurPool2dImpl(std::int64_t channels = 0, torch::ExpandingArray<2> stride = 2,
                          BlurBorder border = BlurBorder::zero);

  void reset() override;

  /// x: [N, C, H, W]. Returns [N, C, ceil(H / stride), ceil(W / stride)].
  at::Tensor forward(const at::Tensor& x) {
    return functional::blur_2d(x, channels_, stride_, blur_filter, border_);
  }

  at::Tensor blur_filter;  ///< [C or 1, 1, 3, 3]

 private:
  std::int64_t channels_;
  torch::ExpandingArray<2> stride_;
  BlurBorder border_;
};
TORCH_MODULE(BlurPool2d);

/// Max-pooling whose sub-sampling is blurred: functional::blurmax_pool2d as a layer.
class BlurMaxPool2dImpl : public Substitute {
 public:
  ~BlurMaxPool2dImpl() override;
  explicit BlurMaxPool2dImpl(const torch::nn::MaxPool2dOptions& pool,
                             BlurBorder border = BlurBorder::zero)
      : options(pool), border_(border) {
    filt2d = register_buffer("filt2d", functional::blur_filter());
  }

  /// x: [N, C, H, W]. Returns the pooled and blurred [N, C, H', W'].
  at::Tensor forward(const at::Tensor& x) {
    return functional::blurmax_pool2d(x, options.kernel_size(), options.stride(), options.padding(),
                                      options.dilation(), options.ceil_mode(), filt2d, border_);
  }

  torch::nn::MaxPool2dOptions options;
  at::Tensor filt2d;  ///< [1, 1, 3, 3]; the buffer's name is the reference's

 private:
  BlurBorder border_;
};
TORCH_MODULE(BlurMaxPool2d);

/// A strided convolution whose sub-sampling is blurred; the convolution is the child `conv`.
class BlurConv2dImpl : public Substitute {
 public:
  ~BlurConv2dImpl() override;
  /// Over the tensors of `layer`: they stay the same objects. blur_first: blur, then convolve;
  /// else convolve with stride 1, then blur with the stride, at the cost of the stride's product.
  explicit BlurConv2dImpl(const torch::nn::Conv2dImpl& layer, bool blur_first = true,
                          BlurBorder border = BlurBorder::zero);

  /// With a convolution of its own, freshly initialised.
  explicit BlurConv2dImpl(const torch::nn::Conv2dOptions& options, bool blur_first = true,
                          BlurBorder border = BlurBorder::zero)
      : BlurConv2dImpl(torch::nn::Conv2dImpl(options), blur_first, border) {}

  /// x: [N, in, H, W]. Returns [N, out, H', W'], the shape that the plain convolution gives.
  at::Tensor forward(const at::Tensor& x) { return blur_first_ ? conv(blur(x)) : blur(conv(x)); }

  Conv2d conv{nullptr};
  at::Tensor blur_filter;  ///< [in or out, 1, 3, 3]

 private:
  at::Tensor blur(const at::Tensor& x) const {
    return functional::blur_2d(x, channels_, blur_stride_, blur_filter, border_);
  }

  bool blur_first_;
  BlurBorder border_;
  std::int64_t channels_ = 0;
  torch::ExpandingArray<2> blur_stride_ = 1;
};
TORCH_MODULE(BlurConv2d);

}  // namespace nn

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/nn/blur.inl.hpp>
#endif
