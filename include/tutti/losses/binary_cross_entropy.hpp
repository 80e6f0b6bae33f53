// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ops/binary_cross_entropy_with_logits.h>

#include <tutti/config.hpp>
#include <tutti/losses/reduction.hpp>
#include <tutti/losses/targets.hpp>

namespace tutti {

/// Options of `functional::binary_cross_entropy_with_logits`, and the loss itself as an object.
struct BinaryCrossEntropyWithLogits final {
  at::Tensor weight{};                   ///< broadcasts to [N, C, ...]; undefined: all alike
  Reduction reduction = Reduction::sum;  ///< over all elements
  at::Tensor pos_weight{};          ///< factor of the positive targets, broadcasts; undefined: 1
  bool scale_by_batch_size = true;  ///< divides by N

  at::Tensor operator()(const at::Tensor& input, const at::Tensor& target) const;
};

namespace functional {

/// Binary cross entropy of every class by itself, by default summed up and divided by the number of
/// examples.
///
/// input: logits [N, C, d1, ...], floating. target: indices [N, d1, ...] of an integer type, made
/// one-hot, or dense [N, C, d1, ...] in [0, 1].
/// Returns a scalar, or [N, C, d1, ...] with reduction none.
/// Throws c10::Error (ValueError) as ensure_targets_one_hot does, and for another number of targets
/// than of examples.
/// Source: MosaicML Composer, `composer.loss.binary_cross_entropy_with_logits`.
at::Tensor binary_cross_entropy_with_logits(const at::Tensor& input, const at::Tensor& target,
                                            const BinaryCrossEntropyWithLogits& options = {});

}  // namespace functional

inline at::Tensor BinaryCrossEntropyWithLogits::operator()(const at::Tensor& input,
                                                           const at::Tensor& target) const {
  return functional::binary_cross_entropy_with_logits(input, target, *this);
}

}  // namespace tutti

#if TUTTI_BODIES

namespace tutti::functional {

TUTTI_INLINE at::Tensor binary_cross_entropy_with_logits(
    const at::Tensor& input, const at::Tensor& target,
    const BinaryCrossEntropyWithLogits& options) {
  const at::Tensor wanted = ensure_targets_one_hot(input, target);
  TUTTI_CHECK_VALUE(wanted.sizes() == input.sizes(),
                    "binary_cross_entropy_with_logits: the targets are ", target.sizes(),
                    " and the outputs ", input.sizes(), ", expected one target for each example");
  const at::Tensor loss = at::binary_cross_entropy_with_logits(
      input, wanted, options.weight, options.pos_weight, detail::to_aten(options.reduction));
  return options.scale_by_batch_size ? loss.div(input.size(0)) : loss;
}

}  // namespace tutti::functional

#endif
