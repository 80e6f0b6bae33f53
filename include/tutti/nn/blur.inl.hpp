// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/config.hpp>
#include <tutti/core/autocast.hpp>
#include <tutti/core/detail/host_empty.hpp>
#include <tutti/nn/blur.hpp>
#include <tutti/nn/detail/gradient.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

// The filter [1,2,1]^T [1,2,1] / 16 over each channel of small images on the CPU, where a
// convolution prepares for longer than the sums take. Large ones are faster as convolutions.
namespace tutti::detail {

TUTTI_INLINE constexpr std::int64_t small_enough = 1 << 16;  // numbers in all images

TUTTI_INLINE constexpr std::array<double, 9> binomial = {0.0625, 0.125,  0.0625, 0.125, 0.25,
                                                         0.125,  0.0625, 0.125,  0.0625};

// A batch of images as planes of rows of pixels of `inner` neighbouring numbers: one in
// [N, C, H, W] order, C in channels-last order.
struct Planes {
  std::int64_t count = 0, rows = 0, columns = 0, inner = 1;
  [[nodiscard]] std::int64_t row() const { return columns * inner; }
};

// One plane with padding 1, every `strides`-th pixel of it. line: room for a row and a pixel on
// either side, zero there.
template <class T>
void blur_plane(const T* __restrict from, const Planes& whole, T* __restrict to, const Planes& kept,
                std::array<std::int64_t, 2> strides, T* __restrict line) {
  const std::int64_t row = whole.row();
  const std::int64_t inner = whole.inner;
  for (std::int64_t o = 0; o < kept.rows; ++o, to += kept.row()) {
    const std::int64_t y = o * strides[0];
    const T* __restrict at = from + y * row;
    T* __restrict sum = line + inner;
    if (y > 0 && y + 1 < whole.rows) {
      for (std::int64_t i = 0; i < row; ++i) {
        sum[i] = at[i] * T(0.125) + (at[i - row] + at[i + row]) * T(0.0625);
      }
    } else {
      for (std::int64_t i = 0; i < row; ++i) {
        sum[i] = at[i] * T(0.125);
      }
      if (whole.rows > 1) {
        const T* __restrict beside = y > 0 ? at - row : at + row;
        for (std::int64_t i = 0; i < row; ++i) {
          sum[i] += beside[i] * T(0.0625);
        }
      }
    }
    if (strides[1] == 1) {
      for (std::int64_t i = 0; i < row; ++i) {
        to[i] = line[i] + 2 * line[i + inner] + line[i + 2 * inner];
      }
      continue;
    }
    for (std::int64_t x = 0; x < kept.columns; ++x) {
      const T* __restrict pixel = line + x * strides[1] * inner;
      for (std::int64_t i = 0; i < inner; ++i) {
        to[x * inner + i] = pixel[i] + 2 * pixel[i + inner] + pixel[i + 2 * inner];
      }
    }
  }
}

// The transpose of blur_plane: from the pixels that were kept to the whole plane, zero before.
template <class T>
void spread_plane(const T* __restrict from, const Planes& kept, T* __restrict to,
                  const Planes& whole, std::array<std::int64_t, 2> strides, T* __restrict line) {
  const std::int64_t row = whole.row();
  const std::int64_t inner = whole.inner;
  for (std::int64_t o = 0; o < kept.rows; ++o, from += kept.row()) {
    std::fill_n(line, row + 2 * inner, T(0));
    for (std::int64_t x = 0; x < kept.columns; ++x) {
      T* __restrict pixel = line + x * strides[1] * inner;
      for (std::int64_t i = 0; i < inner; ++i) {
        const T value = from[x * inner + i] * T(0.0625);
        pixel[i] += value;
        pixel[i + inner] += 2 * value;
        pixel[i + 2 * inner] += value;
      }
    }
    const std::int64_t y = o * strides[0];
    const T* __restrict sum = line + inner;
    for (std::int64_t other = std::max<std::int64_t>(y - 1, 0); other < std::min(y + 2, whole.rows);
         ++other) {
      const T weight = other == y ? T(2) : T(1);
      for (std::int64_t i = 0; i < row; ++i) {
        to[other * row + i] += weight * sum[i];
      }
    }
  }
}

// The linear map: which way, and the size that it gives.
struct BinomialMap {
  std::array<std::int64_t, 2> strides{1, 1};
  std::int64_t rows = 0, columns = 0;  // of what it returns
  bool transposed = false;             // spreads what a blur kept
};

// A batch of images blurred, or, transposed, spread from what a blur kept.
at::Tensor run_binomial(const at::Tensor& given, const BinomialMap& map);

// The gradient of a linear map: the transposed one, so that gradients of any order exist.
class BinomialBackward final : public torch::autograd::Node {
 public:
  // Where every pixel is kept, the map is its own transpose.
  BinomialBackward(const at::Tensor& x, const BinomialMap& map);

 private:
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;

  BinomialMap map_;
};

// run_binomial, with a gradient when x needs one.
at::Tensor binomial_map(const at::Tensor& x, const BinomialMap& map);

// `x` blurred with padding 1, or nothing where a convolution has to do it: large images, other
// devices, types and filters, forward-mode gradients, and autocast, which chooses the type for
// convolutions.
at::Tensor blur_on_host(const at::Tensor& x, const at::Tensor& filter, std::int64_t row_stride,
                        std::int64_t column_stride);

}  // namespace tutti::detail

namespace tutti::detail {

TUTTI_INLINE Planes planes_of(const at::Tensor& x, at::MemoryFormat format) {
  const bool last = format == at::MemoryFormat::ChannelsLast;
  return {.count = last ? x.size(0) : x.size(0) * x.size(1),
          .rows = x.size(2),
          .columns = x.size(3),
          .inner = last ? x.size(1) : 1};
}

// The memory order in which the loops above can read `x`.
TUTTI_INLINE at::MemoryFormat order_of(const at::Tensor& x) {
  return !x.is_contiguous() && x.is_contiguous(at::MemoryFormat::ChannelsLast)
             ? at::MemoryFormat::ChannelsLast
             : at::MemoryFormat::Contiguous;
}

TUTTI_INLINE at::Tensor run_binomial(const at::Tensor& given, const BinomialMap& map) {
  const at::MemoryFormat format = order_of(given);
  const at::Tensor x = given.contiguous(format);
  at::Tensor out = ::tutti::detail::host_empty({x.size(0), x.size(1), map.rows, map.columns},
                                               x.scalar_type(), format);
  const Planes from = planes_of(x, format);
  const Planes to = planes_of(out, format);
  const Planes& whole = map.transposed ? to : from;
  if (map.transposed) {
    out.zero_();
  }
  const auto run = [&]<class T>(const T* source, T* target) {
    const std::int64_t size = whole.row() + 2 * whole.inner;
    const at::Tensor room = ::tutti::detail::host_empty({size}, x.scalar_type());
    T* const line = room.mutable_data_ptr<T>();
    std::fill_n(line, size, T(0));
    for (std::int64_t plane = 0; plane < from.count; ++plane) {
      if (map.transposed) {
        spread_plane(source, from, target, to, map.strides, line);
      } else {
        blur_plane(source, from, target, to, map.strides, line);
      }
      source += from.rows * from.row();
      target += to.rows * to.row();
    }
  };
  if (x.scalar_type() == at::kFloat) {
    run(x.const_data_ptr<float>(), out.mutable_data_ptr<float>());
  } else {
    run(x.const_data_ptr<double>(), out.mutable_data_ptr<double>());
  }
  return out;
}

TUTTI_INLINE BinomialBackward::BinomialBackward(const at::Tensor& x, const BinomialMap& map)
    : map_{.strides = map.strides,
           .rows = x.size(2),
           .columns = x.size(3),
           .transposed = !map.transposed && map.strides != std::array<std::int64_t, 2>{1, 1}} {
  add_next_edge(torch::autograd::impl::gradient_edge(x));
}

TUTTI_INLINE torch::autograd::variable_list BinomialBackward::apply(
    torch::autograd::variable_list&& gradients) {
  at::Tensor& gradient = gradients[0];
  if (gradient.defined()) {
    const bool readable = ::tutti::detail::is_in_host_memory(gradient);
    gradient = binomial_map(readable ? gradient : gradient.clone(), map_);
  }
  return std::move(gradients);
}

TUTTI_INLINE at::Tensor binomial_map(const at::Tensor& x, const BinomialMap& map) {
  at::Tensor out = run_binomial(x.detach(), map);
  if (at::GradMode::is_enabled() && x.requires_grad()) {
    set_gradient(out, new BinomialBackward(x, map));
  }
  return out;
}

// Whether `filter`, [1 or C, 1, 3, 3], is the binomial one for every channel.
TUTTI_INLINE bool is_binomial(const at::Tensor& filter) {
  const auto same = [&]<class T>(const T* weights) {
    for (std::int64_t i = 0; i < filter.numel(); ++i) {
      if (static_cast<double>(weights[i]) != binomial[static_cast<std::size_t>(i % 9)]) {
        return false;
      }
    }
    return true;
  };
  return filter.size(2) == 3 && filter.size(3) == 3 && filter.is_contiguous() &&
         (filter.scalar_type() == at::kFloat ? same(filter.const_data_ptr<float>())
                                             : same(filter.const_data_ptr<double>()));
}

TUTTI_INLINE at::Tensor blur_on_host(const at::Tensor& x, const at::Tensor& filter,
                                     std::int64_t row_stride, std::int64_t column_stride) {
  const at::ScalarType type = x.scalar_type();
  if (x.dim() != 4 || (type != at::kFloat && type != at::kDouble) || x.numel() == 0 ||
      x.numel() > small_enough || !::tutti::detail::is_in_host_memory(x) ||
      filter.requires_grad() || at::autocast::is_autocast_enabled(at::kCPU) ||
      !is_binomial(filter)) {
    return {};
  }
  return binomial_map(x, {.strides = {row_stride, column_stride},
                          .rows = (x.size(2) - 1) / row_stride + 1,
                          .columns = (x.size(3) - 1) / column_stride + 1});
}

}  // namespace tutti::detail

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
  TUTTI_CHECK(stride->at(0) >= 1 && stride->at(1) >= 1, "blur_2d: stride is ", stride->at(0), " x ",
              stride->at(1), ", expected 1 or more");
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

TUTTI_INLINE BlurPool2dImpl::BlurPool2dImpl(std::int64_t channels, torch::ExpandingArray<2> stride,
                                            BlurBorder border)
    : channels_(channels), stride_(stride), border_(border) {
  reset();
}

TUTTI_INLINE void BlurPool2dImpl::reset() {
  blur_filter = register_buffer(
      "blur_filter",
      functional::blur_filter().repeat({std::max<std::int64_t>(channels_, 1), 1, 1, 1}));
}
TUTTI_INLINE BlurMaxPool2dImpl::~BlurMaxPool2dImpl() = default;
TUTTI_INLINE BlurConv2dImpl::~BlurConv2dImpl() = default;

}  // namespace tutti::nn
