// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <numeric>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/losses/reduction.hpp>
#include <tutti/losses/targets.hpp>

namespace tutti {

/// Dice loss for segmentation: 1 minus the overlap of prediction and target, class by class.
///
/// Call it with input: [N, C, d1, ...], floating, and target: indices [N, d1, ...] of an integer
/// type or dense [N, C, d1, ...]. With I the sum of target*input over d1, ... and U the sums of
/// both, the loss of a class is `1 - (2I + 1e-5) / (U + 1e-5)`. Positions without any target count
/// nowhere.
/// Returns a scalar; with reduction none [N, C], or [C] with `batch`, less the absent classes.
/// Throws c10::Error (ValueError) when both sigmoid and softmax are set, when input has no d1
/// (unless `batch`), and as ensure_targets_one_hot does.
/// Source: MosaicML Composer, `composer.loss.DiceLoss`; Milletari et al., "V-Net", 3DV 2016.
struct DiceLoss final {
  bool sigmoid = false;                   ///< input are logits of classes that may overlap
  bool softmax = false;                   ///< input are logits of classes that exclude each other
  bool squared_pred = false;              ///< U sums squares
  bool jaccard = false;                   ///< U becomes 2(U - I)
  bool batch = false;                     ///< I and U sum over the examples too
  bool ignore_absent_classes = false;     ///< leaves out classes that no target of the batch names
  Reduction reduction = Reduction::mean;  ///< over classes and examples

  at::Tensor operator()(const at::Tensor& input, const at::Tensor& target) const;

 private:
  static constexpr double epsilon = 1e-5;

  [[nodiscard]] at::Tensor activated(const at::Tensor& input) const;

  [[nodiscard]] std::vector<std::int64_t> summed_dims(std::int64_t dims) const;

  // Without waiting for the device to know how many classes there are, unless the shape needs it.
  [[nodiscard]] at::Tensor reduce_present(const at::Tensor& loss, const at::Tensor& present) const;
};

}  // namespace tutti

#if TUTTI_BODIES
#include <tutti/losses/dice.inl.hpp>
#endif
