// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/core/detail/throw.hpp>
#include <tutti/optim/detail/parameter_groups.hpp>

#include <cmath>
#include <optional>
#include <string_view>

#include <ATen/ops/_foreach_mul_ops.h>
#include <ATen/ops/_fused_sgd_ops.h>
#include <c10/util/Exception.h>

/// Decoupled weight decay, and the checks that optimizers share.

namespace tutti::optim::detail {

inline void need_at_least_zero(std::string_view name, const char* what, double value) {
  TUTTI_CHECK_VALUE(value >= 0.0 && std::isfinite(value), name, ": ", what, " is ", value,
                    ", expected 0 or more, and no infinity.");
}

inline void need_learning_rate(std::string_view name, double lr) {
  TUTTI_CHECK_VALUE(lr == lr, name, ": the learning rate is not set; set it, e.g. ", name,
                    "{.lr = 0.1}.");
  need_at_least_zero(name, "lr", lr);
}

inline void warn_of_large_decay(std::string_view name, double weight_decay) {
  if (weight_decay >= 1e-3) {
    TORCH_WARN(name, ": weight_decay = ", weight_decay, " takes that part off every weight in ",
               "every step, whatever the learning rate; multiply a value meant for coupled decay ",
               "by the learning rate.");
  }
}

/// The part of a weight that one step takes away.
inline double decay(double lr, double initial_lr, double weight_decay) {
  return initial_lr == 0.0 ? weight_decay : lr / initial_lr * weight_decay;
}

/// Whether the CPU's fused SGD kernel can be trusted with the bucket: up to LibTorch 2.13 it leaves
/// float16 and bfloat16 weights half updated (pytorch/pytorch#191763).
inline bool has_fused_sgd(const Bucket& bucket) {
  return !bucket.device.is_cpu() || !at::isReducedFloatingType(bucket.type);
}

/// p -= part * p, for all parameters of the bucket.
inline void shrink(const Bucket& bucket, double part) {
  if (part == 0.0) {
    return;
  }
  if (bucket.device.is_cpu() && has_fused_sgd(bucket)) {
    // The CPU has no multi-tensor multiplication, but its SGD kernel reads every element before it
    // writes it: with the parameters as their own gradients it is one call, not one a parameter.
    at::_ops::_fused_sgd_::call(bucket.parameters, bucket.parameters, {}, 0.0, 0.0, part, 0.0,
                                false, false, false, std::nullopt, std::nullopt);
  } else {
    at::_ops::_foreach_mul__Scalar::call(bucket.parameters, 1.0 - part);
  }
}

}  // namespace tutti::optim::detail
