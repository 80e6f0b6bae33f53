// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include <ATen/core/Tensor.h>

#include <tutti/core/detail/throw.hpp>

namespace tutti::detail {

/// Outputs or targets of a regression as [n, num_outputs] in double; with one output all places of
/// any shape are examples. Always memory of its own.
inline at::Tensor regression_rows(const at::Tensor& x, std::int64_t num_outputs) {
  return x.reshape({-1, num_outputs}).to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
}

/// Refuses what is not of one shape, or not [N, num_outputs] where several are asked for.
inline void check_regression(std::string_view name, const at::Tensor& outputs,
                             const at::Tensor& targets, std::int64_t num_outputs) {
  TUTTI_CHECK_VALUE(outputs.sizes() == targets.sizes(), name, ": outputs ", outputs.sizes(),
                    " and targets ", targets.sizes(), ", expected one shape");
  TUTTI_CHECK_VALUE(num_outputs == 1 || (outputs.dim() == 2 && outputs.size(1) == num_outputs),
                    name, ": outputs ", outputs.sizes(), ", expected [N, ", num_outputs, "]");
}

/// The same for what correlates: [N], or [N, num_outputs].
inline void check_correlation(std::string_view name, const at::Tensor& outputs,
                              const at::Tensor& targets, std::int64_t num_outputs) {
  check_regression(name, outputs, targets, num_outputs);
  TUTTI_CHECK_VALUE(outputs.dim() == 1 || (outputs.dim() == 2 && outputs.size(1) == num_outputs),
                    name, ": outputs ", outputs.sizes(), ", expected [N] or [N, ", num_outputs,
                    "]");
  TUTTI_CHECK_VALUE(outputs.is_floating_point() && targets.is_floating_point(), name,
                    ": outputs are ", outputs.scalar_type(), " and targets ", targets.scalar_type(),
                    ", expected floating types");
}

/// Refuses a number of outputs below 1.
inline void check_num_outputs(std::string_view name, std::int64_t num_outputs) {
  TUTTI_CHECK_VALUE(num_outputs >= 1, name, ": num_outputs is ", num_outputs,
                    ", expected 1 or more");
}

}  // namespace tutti::detail
