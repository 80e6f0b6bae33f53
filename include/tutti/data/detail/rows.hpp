// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/batch_memory.hpp>
#include <tutti/core/detail/parallel.hpp>
#include <tutti/data/detail/pinned.hpp>

namespace tutti::data::detail {

// Its rows lie in memory one after the other, as plain bytes.
inline bool has_plain_rows(const at::Tensor& x) {
  return x.is_cpu() && x.layout() == at::kStrided && x.is_contiguous() && !x.is_conj() &&
         !x.is_neg() && !x.is_quantized() && !x.requires_grad();
}

// x[rows] as a tensor of its own, with several threads where there is much to copy. x: one
// dimension or more. rows: in range. pins: plain rows into page-locked memory, which is LibTorch's
// to use again, since `memory` does not know when the device has read it.
at::Tensor take_rows(const at::Tensor& x, std::span<const std::int64_t> rows,
                     ::tutti::detail::BatchMemory& memory, bool pins = false);

}  // namespace tutti::data::detail

#if TUTTI_BODIES

namespace tutti::data::detail {

// Copies rows first .. last of `rows` from one block of memory to another.
TUTTI_INLINE void copy_rows(std::byte* to, const std::byte* from,
                            std::span<const std::int64_t> rows, std::size_t bytes) {
  if (bytes == sizeof(std::int64_t)) {  // a class index: a call costs more than the copy
    for (std::size_t i = 0; i < rows.size(); ++i) {
      std::memcpy(to + i * sizeof(std::int64_t),
                  from + static_cast<std::size_t>(rows[i]) * sizeof(std::int64_t),
                  sizeof(std::int64_t));
    }
    return;
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::memcpy(to + i * bytes, from + static_cast<std::size_t>(rows[i]) * bytes, bytes);
  }
}

TUTTI_INLINE at::Tensor take_rows(const at::Tensor& x, std::span<const std::int64_t> rows,
                                  ::tutti::detail::BatchMemory& memory, bool pins) {
  const auto n = static_cast<std::int64_t>(rows.size());
  if (!has_plain_rows(x)) {
    const at::Tensor view = at::from_blob(const_cast<std::int64_t*>(rows.data()), {n}, at::kLong);
    const at::Tensor index = view.to(x.device(), at::kLong, /*non_blocking=*/false, /*copy=*/true);
    return x.index_select(0, index);  // autograd may keep the index
  }
  std::vector<std::int64_t> sizes = x.sizes().vec();
  sizes.front() = n;
  at::Tensor out =
      pins ? pinned_empty(sizes, x.scalar_type()) : memory.tensor(sizes, x.scalar_type());
  if (out.numel() == 0) {
    return out;
  }
  const auto bytes = static_cast<std::size_t>(x.numel() / x.size(0)) * x.itemsize();
  const auto* from = static_cast<const std::byte*>(x.const_data_ptr());
  auto* to = static_cast<std::byte*>(out.mutable_data_ptr());
  constexpr std::size_t much = 1 << 20;  // bytes for which another thread is worth waking
  const std::int64_t parts = std::clamp<std::int64_t>(
      static_cast<std::int64_t>(rows.size() * bytes / much), 1, at::get_num_threads());
  ::tutti::detail::parallel_each(parts, [&](std::int64_t part) {
    const auto first = static_cast<std::size_t>(n * part / parts);
    const auto last = static_cast<std::size_t>(n * (part + 1) / parts);
    copy_rows(to + first * bytes, from, rows.subspan(first, last - first), bytes);
  });
  return out;
}

}  // namespace tutti::data::detail

#endif
