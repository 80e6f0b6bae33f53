// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/paged_memory.hpp>
#include <tutti/core/detail/throw.hpp>

namespace c10 {
class OperatorHandle;
struct IValue;
}  // namespace c10

// Operators that read memory which has a Pager.

namespace tutti::detail {

/// The memory of `tensor`, flat and contiguous, in another tensor: the operators that get it, or a
/// view of it, are asked about by LibTorch's dispatcher, on whatever thread, once install_calls()
/// has been called.
at::Tensor watched(const at::Tensor& tensor);

/// Brings the memory that an operator reads. Throws c10::Error when it writes there.
void bring_arguments(const c10::OperatorHandle& op, const std::vector<c10::IValue>& stack);

}  // namespace tutti::detail

#if TUTTI_BODIES
#include <tutti/core/detail/paged_calls.inl.hpp>
#endif
