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

namespace tutti {

TUTTI_INLINE at::Tensor DiceLoss::operator()(const at::Tensor& input,
                                             const at::Tensor& target) const {
  TUTTI_CHECK_VALUE(!(sigmoid && softmax),
                    "DiceLoss: sigmoid and softmax are both set; choose one of them");
  TUTTI_CHECK_VALUE(input.dim() >= (batch ? 2 : 3), "DiceLoss: the outputs are ", input.sizes(),
                    ", expected [N, C, d1, ...]");
  at::Tensor wanted = functional::ensure_targets_one_hot(input, target);
  at::Tensor predicted = activated(input);
  const at::Tensor mask = wanted.sum(1, /*keepdim=*/true).ne(0);  // [N, 1, d1, ...]
  const std::vector<std::int64_t> dims = summed_dims(input.dim());
  const at::Tensor overlap = wanted.mul(predicted).sum(dims);
  if (squared_pred) {
    wanted = wanted.square();
    predicted = predicted.square();
  }
  const at::Tensor present = wanted.sum(dims);  // [N, C], or [C] with batch
  at::Tensor both = present.add(predicted.mul(mask).sum(dims));
  if (jaccard) {
    both = both.sub(overlap).mul(2.0);
  }
  const at::Tensor loss = overlap.mul(2.0).add(epsilon).div(both.add(epsilon)).neg().add(1.0);
  return ignore_absent_classes ? reduce_present(loss, present) : detail::reduce(loss, reduction);
}

TUTTI_INLINE at::Tensor DiceLoss::activated(const at::Tensor& input) const {
  if (sigmoid) {
    return input.sigmoid();
  }
  if (softmax && input.size(1) == 1) {
    TORCH_WARN_ONCE("DiceLoss: softmax over a single channel would be 1 everywhere; left out");
    return input;
  }
  return softmax ? input.softmax(1) : input;
}

TUTTI_INLINE std::vector<std::int64_t> DiceLoss::summed_dims(std::int64_t dims) const {
  std::vector<std::int64_t> out(static_cast<std::size_t>(dims - 2));
  std::iota(out.begin(), out.end(), std::int64_t{2});
  if (batch) {
    out.insert(out.begin(), 0);
  }
  return out;
}

TUTTI_INLINE at::Tensor DiceLoss::reduce_present(const at::Tensor& loss,
                                                 const at::Tensor& present) const {
  const at::Tensor classes = (batch ? present : present.sum(0)).gt(0);  // [C]
  if (reduction == Reduction::none) {
    return loss.index_select(batch ? 0 : 1, classes.nonzero().squeeze(1));
  }
  const at::Tensor sum = loss.mul(classes).sum();
  if (reduction == Reduction::sum) {
    return sum;
  }
  return sum.div(classes.sum().mul(batch ? 1 : loss.size(0)));
}

}  // namespace tutti

#endif
