// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

namespace tutti::dist::detail {

// Gives the memory of a tensor back, whoever still has the tensor: Gloo's threads have a message
// until their next one.
inline void give_back(const at::Tensor& tensor) {
  c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(c10::DataPtr(nullptr, storage->device()));
  storage->set_nbytes(0);
}

}  // namespace tutti::dist::detail
