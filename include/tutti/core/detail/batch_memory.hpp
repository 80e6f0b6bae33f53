// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <tutti/core/detail/host_empty.hpp>

namespace tutti::detail {

/// Memory of large batches, used again once nobody holds the batch any more: a new one would be
/// pages that the system has to clear, which takes as long as filling them.
class BatchMemory {
 public:
  /// Uninitialised, contiguous in the memory format, on the CPU.
  at::Tensor tensor(at::IntArrayRef sizes, at::ScalarType type,
                    at::MemoryFormat format = at::MemoryFormat::Contiguous) {
    const auto bytes =
        static_cast<std::size_t>(c10::multiply_integers(sizes)) * c10::elementSize(type);
    constexpr std::size_t large = 1 << 17;  // smaller ones the C library keeps itself
    if (bytes < large) {
      return host_empty(sizes, type, format);
    }
    for (const c10::Storage& held : held_) {
      if (held.use_count() == 1 && held.nbytes() == bytes) {
        std::atomic_thread_fence(std::memory_order_acquire);  // what its last user did is done
        at::Tensor out = at::detail::make_tensor<c10::TensorImpl>(
            c10::Storage(held), c10::DispatchKeySet(c10::DispatchKey::CPU),
            c10::scalarTypeToTypeMeta(type));
        out.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
        out.unsafeGetTensorImpl()->empty_tensor_restride(format);
        return out;
      }
    }
    at::Tensor out = host_empty(sizes, type, format);
    if (held_.size() == most) {
      held_.erase(held_.begin());
    }
    held_.push_back(out.storage());
    return out;
  }

 private:
  static constexpr std::size_t most = 4;  // inputs and targets, of two batches
  std::vector<c10::Storage> held_;
};

}  // namespace tutti::detail
