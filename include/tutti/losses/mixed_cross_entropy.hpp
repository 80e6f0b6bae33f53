// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/losses/reduction.hpp>

namespace tutti {

namespace detail {

// Classes and weights [N, P] of the examples' targets; what is ignored has weight 0.
struct MixedClasses {
  at::Tensor classes;  // int64
  at::Tensor weights;  // fp32
};

MixedClasses mixed_classes(const at::Tensor& logits, const at::Tensor& target,
                           const at::Tensor& rows, const std::vector<double>& weights);

// Losses [N] of logits [N, C], and their gradient, without targets [N, C].
struct MixedCrossEntropy : torch::autograd::Function<MixedCrossEntropy> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& logits,
                            const at::Tensor& classes, const at::Tensor& weights, double smoothing);

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor& logits = saved[0];
    const at::Tensor& log_prob = saved[1];
    const at::Tensor& classes = saved[2];
    const at::Tensor& weights = saved[3];
    const double smoothing = context->saved_data["smoothing"].toDouble();
    const at::Tensor outer = gradients[0].unsqueeze(1);        // [N, 1]
    const at::Tensor share = weights.sum(1, true).mul(outer);  // [N, 1]
    const at::Tensor pairs = weights.mul(outer).mul(smoothing - 1).to(log_prob.scalar_type());
    const double uniform = smoothing / static_cast<double>(logits.size(1));
    at::Tensor gradient;               // [N, C]
    if (at::GradMode::is_enabled()) {  // a gradient of this one needs the way back to the logits
      gradient = logits.softmax(1, log_prob.scalar_type()).sub(uniform).mul(share);
      gradient = gradient.scatter_add(1, classes, pairs);
    } else {
      gradient = smoothing == 0 ? log_prob.exp() : log_prob.exp().sub_(uniform);
      gradient.mul_(share).scatter_add_(1, classes, pairs);
    }
    return {gradient.to(logits.scalar_type()), {}, {}, {}};
  }
};

void expect_mixed(const at::Tensor& logits, const at::Tensor& target, const at::Tensor& rows,
                  const std::vector<double>& weights, double smoothing);

}  // namespace detail

namespace functional {

/// Cross entropy against targets that are mixed, and smoothed, from those of other examples,
/// without a weight for every class in memory.
///
/// The target of example n is `(1 - smoothing) * sum_j(weights[j] * one_hot(target[rows[n, j]])) +
/// smoothing / C`, where pairs whose index is negative are left out and the uniform part shrinks
/// with them.
/// logits: [N, C], floating. target: [N], indices of an integer type. rows: int64 [N, P], examples
/// of the batch. weights: [P], the same for all examples. smoothing: in [0, 1].
/// Returns what soft_cross_entropy gives for these targets, but for rounding: none gives [N], mean
/// divides by what weight is left. Half-precision logits are taken to fp32.
/// Throws c10::Error (ValueError) when shapes or types do not fit or, on the CPU, an index is C or
/// more or a mean is asked of negative ones alone; IndexError when rows names no example.
/// Source: `fused::Plan::targets` gives rows and weights; the algebra of Zhang et al., "mixup",
/// ICLR 2018, and Yun et al., "CutMix", ICCV 2019.
at::Tensor mixed_cross_entropy(const at::Tensor& logits, const at::Tensor& target,
                               const at::Tensor& rows, const std::vector<double>& weights,
                               double smoothing = 0, Reduction reduction = Reduction::mean);

}  // namespace functional
}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/losses/mixed_cross_entropy.inl.hpp>
#endif
