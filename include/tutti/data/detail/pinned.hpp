// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <utility>

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>

#include <tutti/core/batch.hpp>

namespace tutti::data::detail {

// Page-locked memory is asked for, and there is a CUDA device to copy from it.
inline bool pins(bool pin_memory) {
  return pin_memory && at::hasCUDA();
}

// Uninitialised and contiguous, in page-locked memory. LibTorch keeps that memory when nobody holds
// the tensor any more, and gives it out again once the device has read it. There is a CUDA device.
inline at::Tensor pinned_empty(at::IntArrayRef sizes, at::ScalarType type) {
  return at::Tensor(at::detail::empty_cpu(sizes, type, /*pin_memory=*/true, std::nullopt));
}

// x in page-locked memory; shared when it is there already, or not on the CPU.
inline at::Tensor pinned(const at::Tensor& x) {
  if (!x.is_cpu() || x.is_pinned()) {
    return x;
  }
  // LibTorch copies gaps as well, and refuses what lies in the same place.
  const bool dense = x.layout() != at::kStrided || x.is_non_overlapping_and_dense();
  return (dense ? x : x.contiguous()).pin_memory();
}

// The batch with its CPU tensors there. Where there is no CUDA device, the batch as it is.
inline Batch pinned(Batch batch) {
  if (at::hasCUDA()) {
    for (auto& [name, tensor] : batch) {
      tensor = pinned(tensor);
    }
  }
  return batch;
}

}  // namespace tutti::data::detail
