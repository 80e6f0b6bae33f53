// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/core/detail/throw.hpp>
#include <tutti/dist/communicator.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

/// Averaging gradients, or parameters, outside of the backward pass.

namespace tutti::dist {

namespace detail {

/// Which parameters have a gradient on any rank: 1 or 0 for each.
inline std::vector<std::int64_t> gradients_anywhere(const std::vector<at::Tensor>& parameters,
                                                    Communicator& group) {
  std::vector<std::int64_t> present;
  for (const at::Tensor& parameter : parameters) {
    const at::Tensor& gradient = parameter.grad();
    TUTTI_CHECK(!gradient.defined() || gradient.layout() == c10::kStrided,
                "tutti::dist::all_reduce_gradients: a gradient is sparse; use single_auto_sync or "
                "multi_auto_sync, or a dense embedding");
    present.push_back(gradient.defined() ? 1 : 0);
  }
  group.all_reduce(std::span<std::int64_t>(present), ReduceOp::maximum);
  return present;
}

/// Averages tensors of one dtype and device in one message.
inline void all_reduce_together(const std::vector<at::Tensor>& tensors, Communicator& group) {
  std::int64_t total = 0;
  for (const at::Tensor& tensor : tensors) {
    total += tensor.numel();
  }
  const at::Tensor flat = tensors.front().new_empty({total});
  std::int64_t offset = 0;
  for (const at::Tensor& tensor : tensors) {
    flat.narrow(0, offset, tensor.numel()).view(tensor.sizes()).copy_(tensor.detach());
    offset += tensor.numel();
  }
  group.all_reduce(flat, ReduceOp::mean);
  offset = 0;
  for (const at::Tensor& tensor : tensors) {
    tensor.detach().copy_(flat.narrow(0, offset, tensor.numel()).view(tensor.sizes()));
    offset += tensor.numel();
  }
}

}  // namespace detail

/// Replaces every tensor by its mean over all ranks.
///
/// tensors: floating and dense, the same shapes, types and order on every rank. Gradients are not
/// recorded. bucket_cap_mb: MiB that travel together; > 0.
/// Throws c10::Error when a rank does not answer, c10::ValueError when bucket_cap_mb is not above
/// 0.
inline void average_over_ranks(const std::vector<at::Tensor>& tensors, Communicator& group,
                               double bucket_cap_mb = 25) {
  TUTTI_CHECK_VALUE(bucket_cap_mb > 0, "tutti::dist: bucket_cap_mb is ", bucket_cap_mb,
                    ", expected more than 0");
  if (group.size() == 1) {
    return;
  }
  const double cap = bucket_cap_mb * 1024 * 1024;
  std::vector<at::Tensor> together;
  std::size_t bytes = 0;
  const auto send = [&] {
    if (!together.empty()) {
      detail::all_reduce_together(together, group);
      together.clear();
      bytes = 0;
    }
  };
  for (const at::Tensor& tensor : tensors) {
    const bool fits = together.empty() || (static_cast<double>(bytes + tensor.nbytes()) <= cap &&
                                           tensor.scalar_type() == together.front().scalar_type() &&
                                           tensor.device() == together.front().device());
    if (!fits) {
      send();
    }
    together.push_back(tensor);
    bytes += tensor.nbytes();
  }
  send();
}

/// Replaces every parameter's gradient by its mean over all ranks.
///
/// A gradient that exists on some ranks only counts as zero on the others, who get the mean too;
/// one that exists nowhere stays undefined. No message is sent before all local gradients are
/// complete, so a rank whose backward pass fails leaves nobody inside a half-done reduction: agree
/// on success first (`group.all_reduce_value(failed, ReduceOp::maximum)`), then call this.
///
/// parameters: the same on every rank, in the same order; dense gradients.
/// bucket_cap_mb: MiB that travel together; > 0.
/// Throws c10::Error when a gradient is sparse or a rank does not answer, c10::ValueError when
/// bucket_cap_mb is not above 0.
inline void all_reduce_gradients(const std::vector<at::Tensor>& parameters, Communicator& group,
                                 double bucket_cap_mb = 25) {
  TUTTI_CHECK_VALUE(bucket_cap_mb > 0, "tutti::dist::all_reduce_gradients: bucket_cap_mb is ",
                    bucket_cap_mb, ", expected more than 0");
  if (group.size() == 1 || parameters.empty()) {
    return;
  }
  const std::vector<std::int64_t> present = detail::gradients_anywhere(parameters, group);
  std::vector<at::Tensor> gradients;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (present[i] == 0) {
      continue;
    }
    at::Tensor& gradient = parameters[i].mutable_grad();
    if (!gradient.defined()) {
      gradient = parameters[i].detach().new_zeros(parameters[i].sizes());
    }
    gradients.push_back(gradient);
  }
  average_over_ranks(gradients, group, bucket_cap_mb);
}

}  // namespace tutti::dist
