// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/ops/cross_entropy_loss.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/losses/reduction.hpp>
#include <tutti/losses/targets.hpp>

namespace tutti {

namespace functional {

/// Cross entropy of outputs against indices of classes or against a weight for every class.
///
/// input: logits [N, C, d1, ...], floating. target: indices [N, d1, ...] of an integer type, or
/// dense [N, C, d1, ...] such as mixed or smoothed ones. weight: [C], a factor for each class, or
/// undefined. ignore_index: positions with this index are left out; says nothing about dense
/// targets.
/// Indices: as torch.nn.functional.cross_entropy. Dense: `x = -sum_c(weight_c * target_c *
/// log_softmax(input)_c)` per position; none gives x [N, d1, ...], sum gives sum(x), mean gives
/// sum(x) / sum(target), which does not divide by the weights.
/// Throws c10::Error (ValueError) when the shapes do not fit, indices are of a floating type, or a
/// mean is asked of dense targets that sum up to 0 or less.
/// Differences from the reference: off the CPU that sum is not looked at, since that would wait for
/// the device in every step (a sum of 0 gives NaN); half-precision logits against dense targets are
/// taken to fp32.
/// Source: MosaicML Composer, `composer.loss.soft_cross_entropy`.
at::Tensor soft_cross_entropy(const at::Tensor& input, const at::Tensor& target,
                              const at::Tensor& weight = {}, std::int64_t ignore_index = -100,
                              Reduction reduction = Reduction::mean);

}  // namespace functional

/// `functional::soft_cross_entropy` with its options, to be handed over as a loss.
struct SoftCrossEntropy final {
  at::Tensor weight{};                    ///< [C]; undefined: all classes alike
  std::int64_t ignore_index = -100;       ///< of index targets
  Reduction reduction = Reduction::mean;  ///< over positions

  at::Tensor operator()(const at::Tensor& input, const at::Tensor& target) const {
    return functional::soft_cross_entropy(input, target, weight, ignore_index, reduction);
  }
};

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/losses/soft_cross_entropy.inl.hpp>
#endif
