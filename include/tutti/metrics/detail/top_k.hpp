// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>

namespace tutti::detail {

/// Whether fewer than k classes come before the right one: those that score higher, NaN being the
/// largest, and of equal ones those of lower number. scores: [N, C, d1, ...]; [N, d1, ...]
inline at::Tensor among_best(const at::Tensor& scores, const at::Tensor& targets, std::int64_t k) {
  const std::int64_t classes = scores.size(1);
  const at::Tensor own = targets.to(at::kLong).clamp(0, classes - 1).unsqueeze(1);
  const at::Tensor at_target = scores.gather(1, own);
  std::vector<std::int64_t> column(static_cast<std::size_t>(scores.dim()), 1);
  column[1] = classes;
  const at::Tensor earlier = at::arange(classes, own.options()).view(column).lt(own);
  const at::Tensor not_number = at_target.isnan();
  const at::Tensor higher = scores.le(at_target).logical_or(not_number).logical_not();
  const at::Tensor equal = scores.eq(at_target).logical_or(not_number.logical_and(scores.isnan()));
  return higher.logical_or(equal.logical_and(earlier)).sum(1).lt(k);
}

}  // namespace tutti::detail
