// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>

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
