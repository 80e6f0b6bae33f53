// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/checkpoint/stored_tensor.hpp>

namespace tutti::checkpoint {

namespace detail {

TUTTI_INLINE std::vector<std::int64_t> contiguous_strides(const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> out(shape.size());
  std::int64_t step = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    out[i] = step;
    step *= std::max<std::int64_t>(shape[i], 1);
  }
  return out;
}

}  // namespace detail

TUTTI_INLINE at::Tensor StoredTensor::view() const {
  const auto options = at::TensorOptions(dtype).device(at::kCPU);  // now, in deferred_init() too
  if (extent == 0) {
    return at::empty_strided(shape, strides, options);
  }
  unsigned char* const bytes = file->data() + offset;
  if (dtype == at::kBool) {
    TUTTI_CHECK(std::none_of(bytes, bytes + extent, [](unsigned char byte) { return byte > 1; }),
                "checkpoint: '", file->path().string(), "' is refused: the bool tensor '", name,
                "' has bytes other than 0 and 1");
  }
  const std::size_t element = c10::elementSize(dtype);
  if (reinterpret_cast<std::uintptr_t>(bytes) % element == 0) {
    return at::from_blob(bytes, shape, strides, [keep = file](void*) {}, options);
  }
  const auto count = static_cast<std::int64_t>(extent / element);
  const at::Tensor copy = at::empty({count}, options);
  std::memcpy(copy.mutable_data_ptr(), bytes, extent);
  return copy.as_strided(shape, strides);
}

TUTTI_INLINE void StoredTensor::copy_to(const at::Tensor& target) const {
  const c10::AutoGradMode no_grad(false);
  if (const auto tape = tutti::detail::InitTape::of(target)) {
    tape->fill(target, [stored = *this](std::int64_t first, const at::Tensor& rows) {
      rows.copy_(tutti::detail::rows_of(stored.view(), first, rows));
    });
    return;
  }
  const bool plain = target.is_cpu() && target.scalar_type() == dtype && dtype != at::kBool &&
                     target.is_contiguous() && strides == detail::contiguous_strides(shape);
  if (plain && target.sizes() == at::IntArrayRef(shape)) {
    detail::stream_copy(target.mutable_data_ptr(), file->data() + offset, extent);
    target.unsafeGetTensorImpl()->bump_version();
  } else {
    target.copy_(view());
  }
}

TUTTI_INLINE std::vector<StoredTensor> stored_in_safetensors(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  const auto mapping = std::make_shared<const detail::Mapping>(file.file());
  std::vector<StoredTensor> out;
  out.reserve(file.tensors().size());
  for (const TensorLayout& tensor : file.tensors()) {
    const std::uint64_t end = file.data_begin() + tensor.end;
    TUTTI_CHECK(end <= mapping->size(), "checkpoint: '", path.string(),
                "' became shorter while it was read");
    out.push_back({.name = tensor.name,
                   .dtype = tensor.dtype,
                   .shape = tensor.shape,
                   .strides = detail::contiguous_strides(tensor.shape),
                   .file = mapping,
                   .offset = file.data_begin() + tensor.begin,
                   .extent = tensor.bytes()});
  }
  return out;
}

}  // namespace tutti::checkpoint
