// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <tutti/core/detail/only_operators.hpp>
#include <tutti/core/detail/set_gradient.hpp>

namespace tutti::detail {

// A loop of our own may read this tensor: its numbers are in the CPU's memory as they are (no sign
// still to be turned, no zeros that have none), it has no tangent, and no operators are recorded.
inline bool is_in_host_memory(const at::Tensor& x) {
  return x.is_cpu() && x.layout() == at::kStrided && x.has_storage() && !x.is_neg() &&
         !x._is_zerotensor() && !x._fw_grad(0).defined() && !only_operators();
}

inline bool is_host_floats(const at::Tensor& x) {
  return x.scalar_type() == at::kFloat && is_in_host_memory(x);
}

// It may take this gradient: likewise, and no gradient of what it gives is wanted.
inline bool is_host_gradient(const at::Tensor& dy) {
  return !at::GradMode::is_enabled() && is_host_floats(dy);
}

}  // namespace tutti::detail
