// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include <tutti/config.hpp>

namespace tutti::detail {

// The tensor is all of its storage, which owns its memory.
bool fills_storage(const at::Tensor& tensor);

// Exchanges the contents of two tensors of one shape, type and device, for everybody who looks at
// them. Where both are all of their storages only the pointers to the memory change places.
void exchange(const at::Tensor& a, const at::Tensor& b);

}  // namespace tutti::detail

#if TUTTI_BODIES

namespace tutti::detail {

TUTTI_INLINE bool fills_storage(const at::Tensor& tensor) {
  const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  return tensor.storage_offset() == 0 && tensor.is_non_overlapping_and_dense() &&
         tensor.nbytes() == storage->nbytes() && storage->data_ptr().get_context() != nullptr;
}

TUTTI_INLINE void exchange(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() == b.sizes() && a.strides() == b.strides() && a.device() == b.device() &&
      a.scalar_type() == b.scalar_type() && fills_storage(a) && fills_storage(b)) {
    c10::StorageImpl* x = a.storage().unsafeGetStorageImpl();
    c10::StorageImpl* y = b.storage().unsafeGetStorageImpl();
    at::DataPtr from_x = x->set_data_ptr(at::DataPtr(nullptr, a.device()));
    x->set_data_ptr(y->set_data_ptr(std::move(from_x)));
    return;
  }
  const c10::AutoGradMode no_grad(false);
  const at::Tensor copy = a.clone();
  a.copy_(b);
  b.copy_(copy);
}

}  // namespace tutti::detail

#endif
