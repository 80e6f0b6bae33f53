// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <tutti/checkpoint/detail/stream_copy.hpp>
#include <tutti/checkpoint/safetensors.hpp>
#include <tutti/config.hpp>
#include <tutti/core/detail/host_empty.hpp>

namespace tutti::checkpoint {

/// Copies of tensors in host memory that is reserved once and used again, so that a checkpoint can
/// be written while training goes on. Pinned where a tensor is on a CUDA device.
class HostCopies {
 public:
  /// Replaces every tensor of the lists by a copy of it, valid until the next call.
  ///
  /// Strides are kept where the elements lie densely in memory, so that a copy is one of memory.
  /// Returns when all is copied, also from CUDA devices. The memory grows when the tensors do.
  void take(std::initializer_list<std::vector<NamedTensor>*> lists);

  /// Bytes that are reserved.
  [[nodiscard]] std::size_t capacity() const { return size_of(host_) + size_of(pinned_); }

 private:
  static constexpr std::size_t alignment = 64;

  struct Cursor {
    at::Tensor* buffer;
    std::size_t at = 0;
  };

  static std::size_t size_of(const at::Tensor& buffer) {
    return buffer.defined() ? static_cast<std::size_t>(buffer.numel()) : 0;
  }
  static std::size_t room(const at::Tensor& tensor) {
    return (tensor.nbytes() + alignment - 1) / alignment * alignment;
  }

  static void reserve(at::Tensor& buffer, std::size_t size, bool pinned);

  static at::Tensor copy(const at::Tensor& tensor, Cursor& cursor,
                         std::map<int, std::pair<at::Tensor, at::Tensor>>& last);

  at::Tensor host_;
  at::Tensor pinned_;
};

}  // namespace tutti::checkpoint

#if TUTTI_BODIES
#include <tutti/checkpoint/host_copies.inl.hpp>
#endif
