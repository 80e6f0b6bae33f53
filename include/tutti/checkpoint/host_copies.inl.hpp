// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/checkpoint/host_copies.hpp>

namespace tutti::checkpoint {

TUTTI_INLINE void HostCopies::take(std::initializer_list<std::vector<NamedTensor>*> lists) {
  std::size_t host = 0;
  std::size_t device = 0;
  for (auto* list : lists) {
    for (auto& [name, tensor] : *list) {
      tensor = tensor.detach().resolve_conj().resolve_neg();
      (tensor.is_cuda() ? device : host) += room(tensor);
    }
  }
  reserve(host_, host, false);
  reserve(pinned_, device, true);
  Cursor cursors[] = {{&host_}, {&pinned_}};
  std::map<int, std::pair<at::Tensor, at::Tensor>> last;  // by device: a copy to wait for
  for (auto* list : lists) {
    for (auto& [name, tensor] : *list) {
      if (tensor.layout() == at::kStrided && !tensor.is_meta()) {
        tensor = copy(tensor, cursors[tensor.is_cuda() ? 1 : 0], last);
      }
    }
  }
  for (auto& [index, pair] : last) {
    pair.first.copy_(pair.second);  // a blocking copy: those before it on the stream are done
  }
}

TUTTI_INLINE void HostCopies::reserve(at::Tensor& buffer, std::size_t size, bool pinned) {
  if (size <= size_of(buffer)) {
    return;
  }
  buffer.reset();
  const auto bytes = static_cast<std::int64_t>(size);
  buffer = pinned ? at::empty({bytes}, at::TensorOptions(at::kByte).pinned_memory(true))
                  : ::tutti::detail::host_empty({bytes}, at::kByte);
}

TUTTI_INLINE at::Tensor HostCopies::copy(const at::Tensor& tensor, Cursor& cursor,
                                         std::map<int, std::pair<at::Tensor, at::Tensor>>& last) {
  char* const to = static_cast<char*>(cursor.buffer->mutable_data_ptr()) + cursor.at;
  cursor.at += room(tensor);
  const auto options = at::TensorOptions(tensor.scalar_type());
  const bool dense = tensor.is_non_overlapping_and_dense();
  at::Tensor out = dense ? at::from_blob(to, tensor.sizes(), tensor.strides(), options)
                         : at::from_blob(to, tensor.sizes(), options);
  if (tensor.is_cuda()) {
    out.copy_(tensor, /*non_blocking=*/true);
    last.insert_or_assign(tensor.get_device(), std::pair(out, tensor));
  } else if (!dense || !tensor.device().is_cpu()) {
    out.copy_(tensor);
  } else if (tensor.nbytes() > 0) {
    detail::stream_copy(to, tensor.const_data_ptr(), tensor.nbytes());
  }
  return out;
}

}  // namespace tutti::checkpoint
