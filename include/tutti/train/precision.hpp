// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/full.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <tutti/core/archive.hpp>
#include <tutti/core/on_or_auto.hpp>
#include <tutti/core/state.hpp>
#include <tutti/dist/communicator.hpp>

namespace tutti::train {

/// Lets fp32 matrix products and convolutions of a GPU be computed in TF32, with 10 bits of
/// mantissa, or not; for the whole process.
/// Source: PyTorch, `torch.backends.cuda.matmul.allow_tf32`, `torch.backends.cudnn.allow_tf32`.
inline void allow_tf32(bool on) {
  at::globalContext().setAllowTF32CuBLAS(on);
  at::globalContext().setAllowTF32CuDNN(on);
}

/// What the options tf32 and cudnn_benchmark say; "auto": as LibTorch is set.
inline void set_cuda_arithmetic(const OnOrAuto& tf32, const OnOrAuto& cudnn_benchmark) {
  if (!tf32.automatic) {
    allow_tf32(tf32.on);
  }
  if (!cudnn_benchmark.automatic) {
    at::globalContext().setBenchmarkCuDNN(cudnn_benchmark.on);
  }
}

/// Gives the floating parameters and buffers of `model` another type; they stay the same objects,
/// so that optimizers keep them.
inline void cast_floats(torch::nn::Module& model, at::ScalarType type) {
  const auto cast = [&](at::Tensor tensor) {
    if (tensor.defined() && tensor.is_floating_point() && tensor.scalar_type() != type) {
      tensor.set_data(tensor.detach().to(type));
    }
  };
  for (const at::Tensor& parameter : model.parameters()) {
    cast(parameter);
  }
  for (const at::Tensor& buffer : model.buffers()) {
    cast(buffer);
  }
}

/// Gives the floating tensors of the batch the type that the model computes in, under bf16_true.
inline void cast_inputs(State& state) {
  if (state.precision == Precision::bf16_true) {
    for (auto& [name, tensor] : state.batch) {
      if (tensor.defined() && tensor.is_floating_point()) {
        tensor = tensor.to(at::kBFloat16);
      }
    }
  }
}

/// Options of GradScaler; the defaults are torch.amp.GradScaler's.
struct GradScalerOptions {
  double init_scale = 65536.0;  ///< > 0
  double growth_factor = 2.0;   ///< > 1
  double backoff_factor = 0.5;  ///< in (0, 1)
  int growth_interval = 2000;   ///< clean steps before the scale grows; >= 1
};

/// Dynamic loss scaling for fp16 gradients: losses are multiplied so that small gradients do not
/// vanish; a step whose gradients overflowed is skipped, on all ranks together.
/// Source: torch.amp.GradScaler.
class GradScaler {
 public:
  explicit GradScaler(at::Device device, GradScalerOptions options = {})
      : options_(options),
        scale_(at::full({}, options.init_scale, at::TensorOptions(at::kFloat).device(device))),
        growth_tracker_(at::full({}, 0, at::TensorOptions(at::kInt).device(device))),
        found_inf_(at::full({}, 0.0, at::TensorOptions(at::kFloat).device(device))) {}

  /// The loss times the scale.
  [[nodiscard]] at::Tensor scale(const at::Tensor& loss) const { return loss.mul(scale_); }

  /// Divides the optimizer's gradients by the scale, once per backward, and notes whether any is
  /// not finite. Returns true when all are finite on every rank.
  bool unscale(torch::optim::Optimizer& optimizer, dist::Communicator& communicator) {
    std::vector<at::Tensor> gradients;
    for (auto& group : optimizer.param_groups()) {
      for (auto& parameter : group.params()) {
        if (parameter.grad().defined()) {
          gradients.push_back(parameter.mutable_grad());
        }
      }
    }
    found_inf_.zero_();
    if (!gradients.empty()) {
      const at::Device where = gradients.front().device();  // the host, with cpu_offload
      at::Tensor found_inf = found_inf_.to(where);
      const at::Tensor inverse = scale_.to(at::kDouble).reciprocal().to(at::kFloat).to(where);
      at::_amp_foreach_non_finite_check_and_unscale_(gradients, found_inf, inverse);
      found_inf_.copy_(found_inf);
    }
    communicator.all_reduce(found_inf_, dist::ReduceOp::maximum);
    finite_ = found_inf_.item<float>() == 0.0F;
    seen_inf_ = seen_inf_ || !finite_;
    return finite_;
  }

  /// The last unscale() found only finite gradients: the optimizer may step.
  [[nodiscard]] bool finite() const { return finite_; }

  /// Ends the batch: shrinks the scale when any backward of it overflowed, else counts towards
  /// growth.
  void update() {
    found_inf_.fill_(seen_inf_ ? 1.0 : 0.0);
    at::_amp_update_scale_(scale_, growth_tracker_, found_inf_, options_.growth_factor,
                           options_.backoff_factor, options_.growth_interval);
    seen_inf_ = false;
  }

  /// The present scale.
  [[nodiscard]] double get_scale() const { return scale_.item<double>(); }

  void save(Archive& archive) const {
    archive.put("scale", get_scale());
    archive.put("growth_tracker", growth_tracker_.item<std::int64_t>());
  }
  void load(const Archive& archive) {
    scale_.fill_(archive.get<double>("scale"));
    growth_tracker_.fill_(archive.get<std::int64_t>("growth_tracker"));
  }

 private:
  GradScalerOptions options_;
  at::Tensor scale_;           // [] float
  at::Tensor growth_tracker_;  // [] int32
  at::Tensor found_inf_;       // [] float, 0 or 1
  bool finite_ = true;
  bool seen_inf_ = false;  // in any backward of this batch
};

}  // namespace tutti::train
