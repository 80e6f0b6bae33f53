// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/losses/dice.hpp>

namespace tutti {

TUTTI_INLINE at::Tensor DiceLoss::operator()(const at::Tensor& input,
                                             const at::Tensor& target) const {
  TUTTI_CHECK_VALUE(!(sigmoid && softmax),
                    "DiceLoss: sigmoid and softmax are both set; choose one of them");
  TUTTI_CHECK_VALUE(input.dim() >= (batch ? 2 : 3), "DiceLoss: the outputs are ", input.sizes(),
                    ", expected [N, C, d1, ...]");
  at::Tensor wanted = functional::ensure_targets_one_hot(input, target);
  TUTTI_CHECK_VALUE(wanted.sizes() == input.sizes(), "DiceLoss: the targets are ", target.sizes(),
                    " and the outputs ", input.sizes(), ", expected one target for each example");
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
