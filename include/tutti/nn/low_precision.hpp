// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include <tutti/config.hpp>
#include <tutti/core/autocast.hpp>
#include <tutti/nn/normalization.hpp>
#include <tutti/nn/rms_norm.hpp>
#include <tutti/nn/slot.hpp>

#include <ATen/Context.h>
#include <ATen/ops/group_norm.h>
#include <ATen/ops/layer_norm.h>

/// Normalisations that autocast would run in fp32, run in its low precision.
namespace tutti::nn {

namespace detail {

// Calls norm(x, weight, bias): cast to the autocast type of x's device, with autocast off for the
// call; as they are where autocast is off.
template <class F>
at::Tensor in_autocast_type(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                            F&& norm) {
  const at::DeviceType device = x.device().type();
  if (!at::autocast::is_autocast_enabled(device)) {
    return norm(x, weight, bias);
  }
  const at::ScalarType type = at::autocast::get_autocast_dtype(device);
  const Autocast off(device, type, /*enabled=*/false);
  const auto cast = [type](const at::Tensor& t) { return t.defined() ? t.to(type) : t; };
  return norm(cast(x), cast(weight), cast(bias));
}

}  // namespace detail

/// A LayerNorm that runs in the autocast type of its input's device; elsewhere the plain layer.
///
/// Mean and variance are summed in fp32 from the low-precision input. Parameters as LayerNorm.
class LowPrecisionLayerNormImpl : public Replaceable<torch::nn::LayerNormImpl> {
 public:
  ~LowPrecisionLayerNormImpl() override;
  using Replaceable::Replaceable;

  /// x: [..., normalized_shape]. Returns the same shape, in the autocast type where that is on.
  at::Tensor compute(const at::Tensor& x) override {
    return detail::in_autocast_type(
        x, weight, bias, [this](const at::Tensor& y, const at::Tensor& w, const at::Tensor& b) {
          return at::layer_norm(y, options.normalized_shape(), w, b, options.eps(),
                                at::globalContext().userEnabledCuDNN());
        });
  }
  std::shared_ptr<Replaceable> twin() const override { return twin_of(*this); }
};
TORCH_MODULE(LowPrecisionLayerNorm);

/// A GroupNorm that runs in the autocast type of its input's device; elsewhere the plain layer.
///
/// Mean and variance are summed in fp32 from the low-precision input. Parameters as GroupNorm.
class LowPrecisionGroupNormImpl : public Replaceable<torch::nn::GroupNormImpl> {
 public:
  ~LowPrecisionGroupNormImpl() override;
  using Replaceable::Replaceable;

  /// x: [N, C, ...]. Returns the same shape, in the autocast type where that is on.
  at::Tensor compute(const at::Tensor& x) override {
    return detail::in_autocast_type(
        x, weight, bias, [this](const at::Tensor& y, const at::Tensor& w, const at::Tensor& b) {
          return at::group_norm(y, options.num_groups(), w, b, options.eps(),
                                at::globalContext().userEnabledCuDNN());
        });
  }
  std::shared_ptr<Replaceable> twin() const override { return twin_of(*this); }
};
TORCH_MODULE(LowPrecisionGroupNorm);

/// An RMSNorm that runs in the autocast type of its input's device; elsewhere the plain layer.
///
/// Squares are summed in fp32 from the low-precision input. Parameters as RMSNorm.
class LowPrecisionRMSNormImpl : public Replaceable<PlainRMSNormImpl> {
 public:
  using Replaceable::Replaceable;

  /// x: [..., size]. Returns the same shape, in the autocast type where that is on.
  at::Tensor compute(const at::Tensor& x) override {
    return detail::in_autocast_type(
        x, weight, {}, [this](const at::Tensor& y, const at::Tensor& w, const at::Tensor&) {
          return functional::rms_norm(y, w, options.eps);
        });
  }
  std::shared_ptr<Replaceable> twin() const override { return twin_of(*this); }
};
TORCH_MODULE(LowPrecisionRMSNorm);

}  // namespace tutti::nn

#if TUTTI_BODIES

namespace tutti::nn {

TUTTI_INLINE LowPrecisionLayerNormImpl::~LowPrecisionLayerNormImpl() = default;
TUTTI_INLINE LowPrecisionGroupNormImpl::~LowPrecisionGroupNormImpl() = default;

}  // namespace tutti::nn

#endif
