// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>

#include <tutti/checkpoint/detail/mapping.hpp>
#include <tutti/checkpoint/detail/stream_copy.hpp>
#include <tutti/checkpoint/detail/tensor_layout.hpp>
#include <tutti/checkpoint/safetensors.hpp>
#include <tutti/config.hpp>
#include <tutti/core/detail/init_tape.hpp>
#include <tutti/core/detail/throw.hpp>

namespace tutti::checkpoint {

/// A tensor in a file of weights that has been checked but not read: name, type, shape, and where
/// its bytes are.
struct StoredTensor {
  std::string name;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<std::int64_t> shape{};
  std::vector<std::int64_t> strides{};            ///< in elements
  std::shared_ptr<const detail::Mapping> file{};  ///< the file that it is in
  std::uint64_t offset = 0;                       ///< of the first element, bytes into the file
  std::uint64_t extent = 0;                       ///< bytes from the first to the last element

  /// The tensor, on the CPU, over the bytes of the file, which stays mapped as long as a tensor
  /// is over it. Changing it changes nothing on disk. Where the bytes lie at an address that the
  /// type does not allow it is a copy. Throws c10::Error for bools that are neither 0 nor 1.
  [[nodiscard]] at::Tensor view() const;

  /// Copies it into a tensor of the same shape, of any strides, type and device; once, straight
  /// from the file. Throws c10::Error as view() does.
  void copy_to(const at::Tensor& target) const;
};

/// All tensors of a safetensors file, in its order; nothing but the header is read.
/// Throws as SafetensorsFile does.
std::vector<StoredTensor> stored_in_safetensors(const std::filesystem::path& path);

namespace detail {

/// The strides of a contiguous tensor.
std::vector<std::int64_t> contiguous_strides(const std::vector<std::int64_t>& shape);

}  // namespace detail

}  // namespace tutti::checkpoint

#if TUTTI_BODIES
#include <tutti/checkpoint/stored_tensor.inl.hpp>
#endif
