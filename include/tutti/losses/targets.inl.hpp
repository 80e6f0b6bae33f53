// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/losses/targets.hpp>

namespace tutti::functional {

TUTTI_INLINE bool is_index_targets(const at::Tensor& targets) {
  switch (targets.scalar_type()) {
    case at::kByte:
    case at::kChar:
    case at::kShort:
    case at::kInt:
    case at::kLong:
      return true;
    default:
      return false;
  }
}

TUTTI_INLINE TargetType infer_target_type(const at::Tensor& input, const at::Tensor& targets) {
  if (input.sizes() == targets.sizes()) {
    return TargetType::dense;
  }
  TUTTI_CHECK_VALUE(input.dim() == targets.dim() + 1, "the targets are ", targets.sizes(),
                    " and the outputs ", input.sizes(),
                    "; expected targets of the outputs' shape (a weight for every class) or "
                    "without their dimension 1 (indices of classes)");
  return TargetType::indices;
}

}  // namespace tutti::functional

namespace tutti::detail {

// One pass that checks and writes: [N, inner] of indices to zeroed [N, classes, inner].
// Returns whether an index is negative.
TUTTI_INLINE bool write_one_hot(const std::int64_t* index, float* out, std::int64_t n,
                                std::int64_t classes, std::int64_t inner) {
  bool negative = false;
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t j = 0; j < inner; ++j) {
      const std::int64_t at = index[i * inner + j];
      TUTTI_CHECK_VALUE(at < classes, "example ", i, " has target ", at, ", expected less than ",
                        classes, ", the number of classes");
      negative = negative || at < 0;
      if (at >= 0) {
        out[(i * classes + at) * inner + j] = 1.0F;
      }
    }
  }
  return negative;
}

TUTTI_INLINE at::Tensor one_hot(const at::Tensor& targets, std::int64_t classes) {
  std::vector<std::int64_t> shape = targets.sizes().vec();
  shape.insert(shape.begin() + 1, classes);
  if (!targets.is_cpu()) {  // no waiting for the device: the check fails there
    at::_assert_async(targets.lt(classes).all(), "a target is not less than the number of classes");
    std::vector<std::int64_t> column(shape.size(), 1);
    column[1] = classes;
    const at::Tensor all = at::arange(classes, targets.options()).view(column);
    return targets.unsqueeze(1).eq(all).to(at::kFloat);
  }
  at::Tensor out = at::zeros(shape, targets.options().dtype(at::kFloat));
  const at::Tensor index = targets.to(at::kLong).contiguous();
  const std::int64_t n = targets.size(0);
  const std::int64_t inner = n == 0 ? 0 : targets.numel() / n;
  if (write_one_hot(index.const_data_ptr<std::int64_t>(), out.mutable_data_ptr<float>(), n, classes,
                    inner)) {
    TORCH_WARN_ONCE(
        "some targets are negative; they become rows without any class, which a loss over dense "
        "targets leaves out");
  }
  return out;
}

}  // namespace tutti::detail

namespace tutti::functional {

TUTTI_INLINE at::Tensor ensure_targets_one_hot(const at::Tensor& input, const at::Tensor& targets,
                                               std::optional<std::int64_t> num_classes) {
  if (infer_target_type(input, targets) == TargetType::dense) {
    return targets.to(at::kFloat);
  }
  TUTTI_CHECK_VALUE(is_index_targets(targets), "the targets ", targets.sizes(), " are ",
                    targets.scalar_type(),
                    ", expected an integer type for indices of classes; for a weight for every "
                    "class give them the outputs' shape ",
                    input.sizes());
  TUTTI_CHECK_VALUE(input.dim() >= 2, "the outputs are ", input.sizes(),
                    ", expected [N, C, ...]; a single example needs a dimension of its own");
  return detail::one_hot(targets, num_classes.value_or(input.size(1)));
}

}  // namespace tutti::functional
