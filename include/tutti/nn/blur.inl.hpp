// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/nn/blur.hpp>

namespace tutti::detail {

TUTTI_INLINE at::Tensor pad_by_reflection(const at::Tensor& x, at::IntArrayRef padding) {
  const std::vector<std::int64_t> sides = {padding[1], padding[1], padding[0], padding[0]};
  const bool fits = x.size(-2) > padding[0] && x.size(-1) > padding[1];
  return fits ? at::reflection_pad2d(x, sides) : at::replication_pad2d(x, sides);
}

}  // namespace tutti::detail

namespace tutti::functional {

TUTTI_INLINE at::Tensor blur_2d(const at::Tensor& x, std::int64_t channels,
                                torch::ExpandingArray<2> stride, const at::Tensor& filter,
                                BlurBorder border) {
  TUTTI_CHECK(x.dim() == 4 || x.dim() == 3, "blur_2d: x is ", x.sizes(),
              ", expected [N, C, H, W] or [C, H, W]");
  at::Tensor weight = (filter.defined() ? filter : blur_filter()).to(x.device(), x.scalar_type());
  TUTTI_CHECK(weight.dim() == 4 && weight.size(1) == 1, "blur_2d: filter is ", weight.sizes(),
              ", expected [1 or C, 1, kh, kw]");
  const std::int64_t rows = weight.size(2);
  const std::int64_t columns = weight.size(3);
  TUTTI_CHECK_INDEX(rows % 2 == 1 && columns % 2 == 1, "blur_2d: the filter is ", rows, " x ",
                    columns, ", expected odd sides");
  const std::vector<std::int64_t> padding = {(rows - 1) / 2, (columns - 1) / 2};
  if (channels < 1) {
    if (x.size(-2) + 2 * padding[0] < rows || x.size(-1) + 2 * padding[1] < columns) {
      return x;
    }
    channels = x.size(-3);
  }
  TUTTI_CHECK(x.size(-3) == channels && (weight.size(0) == 1 || weight.size(0) == channels),
              "blur_2d: x has ", x.size(-3), " channels and the filter ", weight.size(0),
              ", expected ", channels, " and 1 or ", channels);
  const at::Tensor given = weight;
  at::Tensor blurred;
  if (border != BlurBorder::reflect) {
    blurred = detail::blur_on_host(x, weight, stride->at(0), stride->at(1));
  }
  if (!blurred.defined()) {
    if (weight.size(0) != channels) {
      weight = weight.repeat({channels, 1, 1, 1});
    }
    if (border == BlurBorder::reflect) {
      return at::conv2d(detail::pad_by_reflection(x, padding), weight, {}, *stride,
                        at::IntArrayRef{0, 0}, 1, channels);
    }
    blurred = at::conv2d(x, weight, {}, *stride, padding, 1, channels);
  }
  if (border == BlurBorder::renormalize) {
    const at::Tensor ones = at::ones({1, given.size(0), x.size(-2), x.size(-1)}, x.options());
    const at::Tensor inside = at::conv2d(ones, given, {}, *stride, padding, 1, given.size(0));
    blurred = blurred.div(inside.squeeze(0));  // [1 or C, H', W'] against [N, C, H', W']
  }
  return blurred;
}

TUTTI_INLINE at::Tensor blurmax_pool2d(const at::Tensor& x, torch::ExpandingArray<2> kernel_size,
                                       torch::ExpandingArray<2> stride,
                                       torch::ExpandingArray<2> padding,
                                       torch::ExpandingArray<2> dilation, bool ceil_mode,
                                       const at::Tensor& filter, BlurBorder border) {
  at::Tensor maxima = nn::detail::host_max_pool(x, {.kernel = *kernel_size,
                                                    .stride = {1, 1},
                                                    .padding = *padding,
                                                    .dilation = *dilation,
                                                    .ceil_mode = ceil_mode});
  if (!maxima.defined()) {
    maxima = at::max_pool2d(x, *kernel_size, 1, *padding, *dilation, ceil_mode);
  }
  return blur_2d(maxima, -1, stride, filter, border);
}

}  // namespace tutti::functional

namespace tutti::nn {

TUTTI_INLINE BlurConv2dImpl::BlurConv2dImpl(const torch::nn::Conv2dImpl& layer, bool blur_first,
                                            BlurBorder border)
    : blur_first_(blur_first), border_(border) {
  conv = register_module("conv", Conv2d(twin(layer)));
  if (!blur_first) {
    blur_stride_ = layer.options.stride();
    conv->options.stride(1);
  }
  channels_ = blur_first ? layer.options.in_channels() : layer.options.out_channels();
  blur_filter = register_buffer(
      "blur_filter",
      functional::blur_filter().repeat({channels_, 1, 1, 1}).to(layer.weight.options()));
}

TUTTI_INLINE BlurPool2dImpl::~BlurPool2dImpl() = default;
TUTTI_INLINE BlurMaxPool2dImpl::~BlurMaxPool2dImpl() = default;
TUTTI_INLINE BlurConv2dImpl::~BlurConv2dImpl() = default;

}  // namespace tutti::nn
